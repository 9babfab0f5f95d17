"""How far a classifier's confidence lies from its accuracy, and what a temperature mends of it.

`alignattn.evaluation.calibration.metric.CalibrationError` is the same as an `evaluate.Metric`; it stands apart because
importing `evaluate` takes seconds.
"""

from alignattn.evaluation.calibration.measures import (
    ECE_BINS,
    Reliability,
    adaptive_calibration_error,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
)
from alignattn.evaluation.calibration.passes import PassScores, pavpu, summarise_passes
from alignattn.evaluation.calibration.rows import PROBABILITY_FLOOR, SUM_TOLERANCE, find_bad_rows, log_probabilities
from alignattn.evaluation.calibration.scaling import SCALINGS, IsotonicScaling, VectorScaling, fit_isotonic, fit_vector
from alignattn.evaluation.calibration.selective import (
    RiskCoverage,
    area_under_risk_coverage,
    risk_coverage,
    shift_auroc,
    shift_auroc_interval,
)
from alignattn.evaluation.calibration.summary import FIGURES, Estimate, EstimatesByState, summarise
from alignattn.evaluation.calibration.temperature import apply_temperature, fit_temperature

__all__ = [
    "ECE_BINS",
    "FIGURES",
    "PROBABILITY_FLOOR",
    "SCALINGS",
    "SUM_TOLERANCE",
    "Estimate",
    "EstimatesByState",
    "IsotonicScaling",
    "PassScores",
    "Reliability",
    "RiskCoverage",
    "VectorScaling",
    "adaptive_calibration_error",
    "apply_temperature",
    "area_under_risk_coverage",
    "brier_score",
    "classwise_calibration_error",
    "expected_calibration_error",
    "find_bad_rows",
    "fit_isotonic",
    "fit_temperature",
    "fit_vector",
    "log_probabilities",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "pavpu",
    "reliability",
    "risk_coverage",
    "shift_auroc",
    "shift_auroc_interval",
    "summarise",
    "summarise_passes",
]

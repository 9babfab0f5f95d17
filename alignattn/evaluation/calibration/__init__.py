"""Calibration of a classifier's confidence, and temperature scaling."""

from alignattn.evaluation.calibration.measures import (
    ECE_BINS,
    PROBABILITY_FLOOR,
    SUM_TOLERANCE,
    Reliability,
    adaptive_calibration_error,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    find_bad_rows,
    log_probabilities,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
)
from alignattn.evaluation.calibration.passes import PassScores, pavpu, summarise_passes
from alignattn.evaluation.calibration.scaling import (
    apply_temperature,
    fit_temperature,
)
from alignattn.evaluation.calibration.selective import (
    RiskCoverage,
    area_under_risk_coverage,
    risk_coverage,
    shift_auroc,
    shift_auroc_interval,
)
from alignattn.evaluation.calibration.summary import FIGURES, summarise
from alignattn.evaluation.estimates import Estimate, EstimatesByState

__all__ = [
    "ECE_BINS",
    "FIGURES",
    "PROBABILITY_FLOOR",
    "SUM_TOLERANCE",
    "Estimate",
    "EstimatesByState",
    "PassScores",
    "Reliability",
    "RiskCoverage",
    "adaptive_calibration_error",
    "apply_temperature",
    "area_under_risk_coverage",
    "brier_score",
    "classwise_calibration_error",
    "expected_calibration_error",
    "find_bad_rows",
    "fit_temperature",
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

"""The expected calibration error as a local `evaluate.Metric`, not one from the Hub.

Importing this module takes seconds (because of `evaluate`): import it only where scores are computed.
"""

from typing import Any

import datasets
import evaluate

from alignattn.evaluation.calibration.measures import ECE_BINS, checked_rows, expected_calibration_error


class CalibrationError(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """The expected calibration error (Naeini et al. 2015; Guo et al. 2017), a fraction.

    `compute(predictions=, references=, num_bins=10)`, with probabilities `[N, C]` and class numbers `[N]`, returns
    `{"calibration_error": ...}`, and raises `AlignAttnError` as `expected_calibration_error` does. The inputs stay in
    memory: the metric makes no folder in the user's cache.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**(options | {"keep_in_memory": True}))

    def _build_data_dir(self) -> str:
        return str(self._data_dir_root)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="",
            # `evaluate` stores its inputs in these types: float32 would move confidences over the edges of bins.
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("float64")), "references": datasets.Value("int64")}
            ),
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **options: Any) -> None:
        """Add rows; `evaluate` would convert a label such as 1.5 or "1" to the class 1."""
        checked_rows(predictions, references)
        super().add_batch(predictions=predictions, references=references, **options)

    def add(self, *, prediction: Any = None, reference: Any = None, **options: Any) -> None:
        """Add a row."""
        self.add_batch(predictions=[prediction], references=[reference], **options)

    def _compute(
        self, predictions: list[list[float]], references: list[int], num_bins: int = ECE_BINS
    ) -> dict[str, float]:
        return {self.name: expected_calibration_error(predictions, references, num_bins)}

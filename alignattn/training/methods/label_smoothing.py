"""Label smoothing (Szegedy et al. 2016, section 7), which transformers' Trainer implements."""

from dataclasses import dataclass

from alignattn.tasks import Task
from alignattn.training.methods.base import OptionsOfMethod, TrainingMethod
from alignattn.utils.options import option


@dataclass(frozen=True, kw_only=True)
class LabelSmoothingOptions(OptionsOfMethod):
    """The option of `LabelSmoothing`, which transformers defines."""

    label_smoothing_factor: float = option(0.0, "Label smoothing: target share spread over all classes.", low=0, high=1)


class LabelSmoothing(TrainingMethod):
    """Cross-entropy against labels that spread a part of their weight over all classes.

    Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision". transformers' Trainer computes the
    loss.
    """

    label = "label smoothing"
    summary = "cross-entropy against softened labels (Szegedy et al. 2016)"
    switch = "label_smoothing_factor"
    options = LabelSmoothingOptions

    @classmethod
    def reason_unsupported(cls, task: Task | None, *, has_crf: bool) -> str:
        """Return why a task's labels cannot be smoothed, as in `TrainingMethod`."""
        if has_crf:
            return " needs probabilities per word, but a CRF has those of whole sequences"
        if task is not None and not task.can_smooth_labels:
            return f": task {task.name!r} has no classes to smooth"
        return ""

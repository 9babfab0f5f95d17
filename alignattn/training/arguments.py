"""What the alignment loss adds to the arguments of a Trainer."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import TrainingArguments

from alignattn.training.parameter_groups import ALIGNMENT_LEARNING_RATE
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.exclusive import refuse_together

AVERAGES = ("ema", "swa")
"""How weights are averaged."""


class Range(NamedTuple):
    """What a number must be, and the words for it."""

    holds: Callable[[Any], bool]
    words: str


_POSITIVE = Range(lambda value: 0 < value < math.inf, "be positive")

BASELINE_RANGES: Mapping[str, Range] = {
    "l2_penalty": Range(lambda value: 0 <= value < math.inf, "not be negative"),
    "r_drop_weight": Range(lambda value: 0 <= value < math.inf, "not be negative"),
    "freelb_steps": Range(lambda value: value >= 1, "be at least 1"),
    "freelb_step_size": _POSITIVE,
    "freelb_max_norm": _POSITIVE,
    "weight_averaging": Range(lambda value: value in AVERAGES, f"be one of {', '.join(AVERAGES)}"),
    "ema_decay": Range(lambda value: 0 <= value < 1, "be at least 0 and below 1"),
    "swa_start": Range(lambda value: 0 <= value < 1, "be at least 0 and below 1"),
}


@dataclass
class AlignmentArguments:
    """The arguments that `AlignmentMixin` reads: the first base of the arguments of another library's trainer.

        @dataclass
        class Arguments(AlignmentArguments, SentenceTransformerTrainingArguments): ...

    Raises:
        AlignAttnError: if one is out of its range.
    """

    alignment_learning_rate: float = field(
        default=ALIGNMENT_LEARNING_RATE,
        metadata={"help": "Learning rate of the alignment losses' own networks."},
    )
    alignment_warmup_ratio: float = field(
        default=0.0,
        metadata={"help": "Share of the training steps over which the alignment weight rises linearly from 0."},
    )
    slot_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of the parameters that scores, normalizers and values add to the model."},
    )

    l2_penalty: float = field(
        default=0.0,
        metadata={"help": "Half of it times the squared weights joins the loss, where a weight decays: Adam with L2."},
    )
    r_drop_weight: float = field(
        default=0.0,
        metadata={"help": "Weight α of R-Drop: two forwards of each batch, and their divergence (Liang et al. 2021)."},
    )
    freelb_steps: int | None = field(
        default=None,
        metadata={"help": "Forwards of each batch with FreeLB's adversarial word embeddings (Zhu et al. 2020)."},
    )
    freelb_step_size: float = field(default=0.1, metadata={"help": "Length α of an ascent step of FreeLB."})
    freelb_max_norm: float = field(default=0.3, metadata={"help": "Largest norm ε of a perturbation of FreeLB."})
    weight_averaging: str | None = field(
        default=None,
        metadata={"help": "What the trained model is in place of its last weights: ema or swa, means over steps."},
    )
    ema_decay: float = field(default=0.999, metadata={"help": "Most that a step leaves of an average of ema."})
    swa_start: float = field(default=0.75, metadata={"help": "Share of the steps before those that swa averages."})

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        self._check_alignment()
        self._check_baselines()
        refuse_together(vars(self))

    def _check_baselines(self) -> None:
        self.freelb_steps = None if self.freelb_steps is None else int(self.freelb_steps)
        for name in ("l2_penalty", "r_drop_weight", "freelb_step_size", "freelb_max_norm", "ema_decay", "swa_start"):
            setattr(self, name, float(getattr(self, name)))
        for name, range_ in BASELINE_RANGES.items():
            value = getattr(self, name)
            if value is not None and not range_.holds(value):
                raise AlignAttnError(f"{name}={value} must {range_.words}")

    def _check_alignment(self) -> None:
        # Accelerate's YAML gives 1e-3 as a string.
        self.alignment_learning_rate = float(self.alignment_learning_rate)
        self.alignment_warmup_ratio = float(self.alignment_warmup_ratio)
        if self.slot_learning_rate is not None:
            self.slot_learning_rate = float(self.slot_learning_rate)
        if not 0 <= self.alignment_warmup_ratio <= 1:
            raise AlignAttnError(f"alignment_warmup_ratio={self.alignment_warmup_ratio} must lie between 0 and 1")
        for name in ("alignment_learning_rate", "slot_learning_rate"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise AlignAttnError(f"{name}={rate} must be positive")


@dataclass
class AlignmentTrainingArguments(AlignmentArguments, TrainingArguments):
    """`transformers.TrainingArguments` and what the alignment loss needs."""


def refuse_data_parallel(args: TrainingArguments, what: str) -> None:
    """Refuse several GPUs in one process, whose replicas see a part of a batch each.

    Raises:
        AlignAttnError: if `args` asks for them.
    """
    if args.n_gpu > 1:
        raise AlignAttnError(
            f"{what} does not run in DataParallel: start one process a GPU with torchrun --nproc_per_node, or show one "
            "GPU only with CUDA_VISIBLE_DEVICES"
        )

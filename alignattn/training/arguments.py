"""What the alignment loss adds to the arguments of a Trainer."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

from alignattn.support.errors import AlignAttnError
from alignattn.training.parameter_groups import ALIGNMENT_LEARNING_RATE


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

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
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

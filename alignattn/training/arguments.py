"""What the alignment loss and the training methods add to the arguments of a Trainer."""

from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments

from alignattn.training.methods import MethodOptions, fields_of_methods
from alignattn.training.parameter_groups import ALIGNMENT_LEARNING_RATE
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import OPTION, Option
from alignattn.utils.options import check_together, options_of

BEST = Option(name="load_best_model_at_end", types=(bool,), default=False)
"""An option of transformers that a method may exclude."""


def method_arguments(*, predicts: bool) -> type:
    """Return a dataclass of the methods' options, as the arguments of a Trainer declare them.

    Args:
        predicts: as for `fields_of_methods`.
    """
    fields = [
        (name, kind, field(default=declared.default, metadata={"help": declared.metadata[OPTION]["help"]}))
        for name, kind, declared in fields_of_methods(predicts=predicts)
    ]
    return make_dataclass("MethodArguments", fields)


if TYPE_CHECKING:

    class MethodArguments:
        """The options of the methods that change a training."""

        def __getattr__(self, name: str) -> Any: ...
else:
    MethodArguments = method_arguments(predicts=False)


@dataclass
class AlignmentArguments(MethodArguments):
    """The arguments that `AlignmentMixin` reads: the first base of the arguments of another library's trainer.

        @dataclass
        class Arguments(AlignmentArguments, SentenceTransformerTrainingArguments): ...

    Its fields are those below, and the options of the methods in `alignattn.training.methods` that change a training.

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

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        # Accelerate's YAML gives 1e-3 as a string.
        for name in ("alignment_learning_rate", "alignment_warmup_ratio", "slot_learning_rate", "l2_penalty"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else float(value))
        if not 0 <= self.alignment_warmup_ratio <= 1:
            raise AlignAttnError(f"alignment_warmup_ratio={self.alignment_warmup_ratio} must lie between 0 and 1")
        if not 0 <= self.l2_penalty < float("inf"):
            raise AlignAttnError(f"l2_penalty={self.l2_penalty} must not be negative")
        for name in ("alignment_learning_rate", "slot_learning_rate"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise AlignAttnError(f"{name}={rate} must be positive")
        declared = {name: known for name, known in options_of(MethodOptions).items() if hasattr(self, name)}
        for name, known in declared.items():
            setattr(self, name, known.checked(getattr(self, name)))
        check_together({**declared, BEST.name: BEST}, vars(self))


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

"""Training arguments of the alignment loss and the training methods."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from transformers import TrainingArguments

from alignattn.training.methods import METHODS
from alignattn.training.options import AlignmentTrainingOptions
from alignattn.utils.errors import ONE_PROCESS_PER_GPU, AlignAttnError
from alignattn.utils.options import OPTION, Option, Options, check_together, options_of

GROUPS = (AlignmentTrainingOptions, *(method.options for method in METHODS if not method.predicts))
"""The options of alignattn that change training."""

BEST = Option(name="load_best_model_at_end", types=(bool,), default=False)
"""An option of transformers that a method may exclude."""


def arguments_of(groups: Iterable[type[Options]]) -> type:
    """Return a dataclass whose fields are the options, as in the arguments of a Trainer."""
    declared = [
        (
            option.name,
            get_type_hints(group)[option.name],
            field(default=option.default, metadata={"help": option.metadata[OPTION]["help"]}),
        )
        for group in groups
        for option in fields(group)
    ]
    return make_dataclass("OptionArguments", declared)


if TYPE_CHECKING:

    class OptionArguments:
        """The options of `GROUPS`."""

        def __getattr__(self, name: str) -> Any: ...
else:
    OptionArguments = arguments_of(GROUPS)


@dataclass
class AlignmentArguments(OptionArguments):
    """The arguments of `AlignmentMixin`; the first base of the arguments of another library's trainer.

        @dataclass
        class Arguments(AlignmentArguments, SentenceTransformerTrainingArguments): ...

    Its fields are the options of `AlignmentTrainingOptions` and of the methods in `alignattn.training.methods` that
    change training.

    Raises:
        AlignAttnError: if an option is out of its range, or two options exclude each other.
    """

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        options = {name: option for group in GROUPS for name, option in options_of(group).items()}
        for name, option in options.items():
            setattr(self, name, option.checked(getattr(self, name)))
        check_together({**options, BEST.name: BEST}, vars(self))


@dataclass
class AlignmentTrainingArguments(AlignmentArguments, TrainingArguments):
    """`transformers.TrainingArguments` with the arguments of `AlignmentMixin`."""


def refuse_data_parallel(args: TrainingArguments, what: str) -> None:
    """Refuse several GPUs in one process (DataParallel), where each replica sees only a part of a batch.

    Raises:
        AlignAttnError: if `args` uses several GPUs.
    """
    if args.n_gpu > 1:
        raise AlignAttnError(f"{what} {ONE_PROCESS_PER_GPU}")

"""The arguments that the alignment loss and the training methods add to a Trainer's."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from transformers import TrainingArguments

from alignattn.training.methods import METHODS
from alignattn.training.options import AlignmentTrainingOptions
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import OPTION, Option
from alignattn.utils.options import Options, check_together, options_of

GROUPS = (AlignmentTrainingOptions, *(method.options for method in METHODS if not method.predicts))
"""The options of alignattn that change training."""

BEST = Option(name="load_best_model_at_end", types=(bool,), default=False)
"""An option of transformers that a method may exclude."""


def arguments_of(groups: Iterable[type[Options]]) -> type:
    """Return a dataclass of options, as the arguments of a Trainer declare them."""
    declared = [
        (
            one.name,
            get_type_hints(group)[one.name],
            field(default=one.default, metadata={"help": one.metadata[OPTION]["help"]}),
        )
        for group in groups
        for one in fields(group)
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
    """The arguments that `AlignmentMixin` reads: the first base of the arguments of another library's trainer.

        @dataclass
        class Arguments(AlignmentArguments, SentenceTransformerTrainingArguments): ...

    Its fields are the options of `AlignmentTrainingOptions`, and those of the methods in `alignattn.training.methods`
    that change a training.

    Raises:
        AlignAttnError: if one is out of its range, or two exclude each other.
    """

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        known = {name: one for group in GROUPS for name, one in options_of(group).items()}
        for name, one in known.items():
            setattr(self, name, one.checked(getattr(self, name)))
        check_together({**known, BEST.name: BEST}, vars(self))


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
            f"{what} does not run in DataParallel: start one process per GPU with torchrun --nproc_per_node, or show "
            "one GPU with CUDA_VISIBLE_DEVICES"
        )

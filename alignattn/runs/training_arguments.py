"""transformers' training arguments of a run, made of its options when it begins."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

from transformers import TrainingArguments

from alignattn.runs.training_options import UNWRITTEN_OPTION, TransformersOptions
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.publishing import publishable
from alignattn.training import AlignmentTrainingArguments

T = TypeVar("T", bound=TrainingArguments)


@dataclass
class RunArguments(AlignmentTrainingArguments):
    """The training arguments of a run, which keep its secret."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled, as into the `training_args.bin` of a checkpoint: no secret, no local path."""
        return dict(publishable(vars(self) | {UNWRITTEN_OPTION: None}))


def training_arguments(options: TransformersOptions, arguments: Callable[..., T]) -> T:
    """Return what a Trainer takes, with what transformers asks of a CPU.

    Args:
        options: of the training.
        arguments: the class to return.
    """
    names = [field.name for field in fields(cast(Any, arguments)) if field.init and hasattr(options, field.name)]
    values: dict[str, Any] = {name: getattr(options, name) for name in names}
    try:
        args = arguments(**{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()})
    except AlignAttnError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise AlignAttnError(one_line(error)) from error
    if args.device.type == "cpu":
        # Pinning serves the copy to an accelerator; without one torch warns at every loader.
        args.dataloader_pin_memory = False
    return args


def check_full_batch(args: TrainingArguments, rows: int) -> None:
    """Refuse a training without a step: no batch is full, and those that are not are left out.

    Args:
        args: of the training.
        rows: to train on, as many as the model is given.
    """
    batch = args.train_batch_size * args.world_size
    if args.dataloader_drop_last and rows < batch:
        raise AlignAttnError(
            f"--dataloader_drop_last leaves out batches that are not full, and the {rows} rows to train on fill none "
            f"of {batch}: leave it out, or give a smaller --per_device_train_batch_size"
        )

"""transformers' training arguments of a run, made of its options when it begins."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import torch
from transformers import TrainingArguments
from transformers.training_args import ParallelMode

from alignattn.finetuning.training_options import PRIVATE_OPTION, TransformersOptions
from alignattn.tasks import NodeClassification, Task
from alignattn.training.arguments import AlignmentTrainingArguments, method_arguments
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.option import BOOLEANS
from alignattn.utils.publishing import publishable

T = TypeVar("T", bound=TrainingArguments)

YES = ("True", "true", "1")
WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Values of a variable of accelerate's, and the variables by which launchers tell a process how many there are."""


@dataclass
class RunArguments(AlignmentTrainingArguments, method_arguments(predicts=True)):  # type: ignore[misc]
    """The training arguments of a run, with those of methods that change its predictions; they keep its secret."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled, as into the `training_args.bin` of a checkpoint: no secret, no local path."""
        return dict(publishable(vars(self) | {PRIVATE_OPTION: None}))


def training_arguments(options: TransformersOptions, arguments: Callable[..., T]) -> T:
    """Return what a Trainer takes, with what transformers asks of a CPU.

    Args:
        options: of the training.
        arguments: the class to return.
    """
    names = [field.name for field in fields(cast(Any, arguments)) if field.init and hasattr(options, field.name)]
    values: dict[str, Any] = {name: getattr(options, name) for name in names}
    _check_launch()
    if _processes() > 1 and not torch.accelerator.is_available():
        # Without it each process would make the whole run by itself, in the same folder.
        values["use_cpu"] = True
    # transformers takes a yes or no, or words that it is about to forget.
    values["fsdp"] = BOOLEANS.get(str(values["fsdp"]).lower(), values["fsdp"])
    try:
        args = arguments(**{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()})
    except AlignAttnError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise AlignAttnError(one_line(error)) from error
    _check_sharding(args)
    if args.device.type == "cpu":
        # Pinning serves the copy to an accelerator; without one torch warns at every loader.
        args.dataloader_pin_memory = False
    return args


def _processes() -> int:
    """How many processes a launcher says that this one is of."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _check_launch() -> None:
    """Say that a launcher which was asked for several processes on a CPU started one."""
    # accelerate (issue 2741) names the place where several processes meet, and starts one that knows of no other.
    asked_for_several = os.environ.get("ACCELERATE_USE_CPU", "") in YES and "MASTER_PORT" in os.environ
    if asked_for_several and not any(name in os.environ for name in WORLD_SIZES):
        print(
            "accelerate launch started one process: on a CPU, torchrun --nproc_per_node N -m alignattn … starts N",
            file=sys.stderr,
        )


def _check_sharding(args: TrainingArguments) -> None:
    """Refuse FSDP where accelerate would leave it out and say nothing of it, and where there is one process."""
    if args.fsdp and args.device.type == "cpu":
        raise AlignAttnError(
            "--fsdp shares the weights out over GPUs, and here is none: leave it out (processes on a CPU hold all of "
            "them, each)"
        )
    if args.fsdp and args.parallel_mode in (ParallelMode.NOT_PARALLEL, ParallelMode.NOT_DISTRIBUTED):
        raise AlignAttnError(
            "--fsdp shares the weights out over processes, and here is one: start one a GPU, by torchrun "
            "--nproc_per_node N -m alignattn …"
        )


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


def check_shared_graph(task: Task, args: TrainingArguments, rows: int, fan_out: Sequence[int] | None) -> None:
    """Refuse a step of the whole graph in several processes: each would make the very same one.

    Args:
        task: of the run.
        args: of the training.
        rows: to train on.
        fan_out: as of `alignattn.tasks.task.TaskOptions`.
    """
    is_whole = fan_out is None and rows <= args.per_device_train_batch_size
    if isinstance(task, NodeClassification) and is_whole and args.world_size > 1:
        raise AlignAttnError(
            f"a step is the whole graph, and {args.world_size} processes would all make the same: start one, or share "
            "the nodes out by --fan_out and a smaller --per_device_train_batch_size"
        )

"""The `TrainingArguments` of a run, made from its options when it begins."""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, make_dataclass
from enum import Enum
from typing import Any, cast, get_args, get_origin, get_type_hints

import torch
from transformers import HfArgumentParser, TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.training_args import ParallelMode

from alignattn.finetuning.options import PUSH_OPTIONS, TrainingOptions
from alignattn.tasks import NodeClassification, Task
from alignattn.training.arguments import AlignmentTrainingArguments, arguments_of
from alignattn.training.methods import METHODS
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.options import BOOLEANS, OneLineErrorParser, range_problem, values_of

SET_BY_ALIGNATTN = frozenset(
    {
        *("do_train", "do_eval", "do_predict", "include_for_metrics", "length_column_name"),
        *("prediction_loss_only", "label_names", "remove_unused_columns", "eval_do_concat_batches"),
        *("batch_eval_metrics", "hub_strategy", "hub_always_push"),
        # No text can give it a value.
        "parallelism_config",
    }
)
"""Fields of `TrainingArguments` that are not options: each run trains, evaluates and is scored; the end pushes it."""

RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("adam_epsilon", "dataloader_num_workers", "eval_delay", "neftune_noise_alpha"), (0, math.inf)),
    **dict.fromkeys(("dataloader_prefetch_factor", "ddp_bucket_cap_mb", "ddp_timeout"), (1, math.inf)),
    **dict.fromkeys(("eval_accumulation_steps", "torch_empty_cache_steps"), (1, math.inf)),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), (0, 1)),
    "data_seed": (0, 2**32),
}
"""Minimum, and limit that is too large, of numbers that transformers and torch check only when training begins."""

PREDICTING = [method.options for method in METHODS if method.predicts]
"""Options of the training methods that change predictions."""

FULL_STATE_DICT = "FULL_STATE_DICT"
"""FSDP's type of state with which the Trainer saves a model that can be loaded; with the others, it saves none."""

YES = ("True", "true", "1")
"""True values of accelerate's variables."""


@dataclass
class RunArguments(AlignmentTrainingArguments, arguments_of(PREDICTING)):  # type: ignore[misc]
    """The training arguments of a run, with those of methods that change its predictions."""


def training_arguments(options: TrainingOptions) -> RunArguments:
    """Return the arguments of a run's Trainer, adjusted for a CPU as transformers requires."""
    # The finished run is pushed, not the Trainer's checkpoints.
    taken = {field.name for field in fields(RunArguments) if field.init}.difference(PUSH_OPTIONS)
    values = {name: value for name, value in values_of(options).items() if name in taken}
    # accelerate (issue 2741) sets the port where several processes meet, but starts one that knows of no other.
    asked_for_several = os.environ.get("ACCELERATE_USE_CPU", "") in YES and "MASTER_PORT" in os.environ
    world_sizes = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    if asked_for_several and not any(name in os.environ for name in world_sizes):
        print(
            "accelerate launch started one process: on a CPU, torchrun --nproc_per_node N -m alignattn … starts N",
            file=sys.stderr,
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.accelerator.is_available():
        # Otherwise each process would do the whole run by itself, in the same folder.
        values["use_cpu"] = True
    if "fsdp" in values:
        # transformers accepts a Boolean, or legacy strings that it will stop accepting.
        values["fsdp"] = BOOLEANS.get(str(values["fsdp"]).lower(), values["fsdp"])
    with_lists: Any = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    try:
        args = RunArguments(**with_lists)
    except AlignAttnError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        raise AlignAttnError(one_line(error)) from error
    check_sharding(args)
    by_launcher = not args.bf16 and os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower() == "fp16"
    if args.device.type == "cpu" and (args.fp16 or by_launcher):
        # accelerate would silently compute in the type of the weights.
        given = "--fp16 true" if args.fp16 else "ACCELERATE_MIXED_PRECISION=fp16"
        raise AlignAttnError(f"{given} needs a GPU: leave it out, or give --bf16 true --use_cpu true")
    missing = set(args.report_to or ()) - set(get_available_reporting_integrations())
    if missing:
        raise AlignAttnError(f"--report_to {' '.join(sorted(missing))}: install that package, or leave it out")
    if args.device.type == "cpu":
        # Pinned memory speeds up the copy to an accelerator; without one, torch warns in each loader.
        args.dataloader_pin_memory = False
    return args


class OtherArgumentsParser(OneLineErrorParser, HfArgumentParser):
    """The parser of transformers' training options that alignattn does not declare itself."""


def other_arguments_parser(ours: Collection[str]) -> OtherArgumentsParser:
    """Return the parser of the fields of `TrainingArguments` that are neither ours nor set by alignattn.

    Args:
        ours: names of the options that alignattn declares.
    """
    hints = get_type_hints(TrainingArguments)
    own = {*ours, *SET_BY_ALIGNATTN}
    others = [copy(field) for field in fields(TrainingArguments) if field.init and field.name not in own]
    parser = OtherArgumentsParser(
        cast(Any, make_dataclass("OtherArguments", [(field.name, hints[field.name], field) for field in others])),
        prog="alignattn finetune",
        description="transformers' other options:",
        usage=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )

    def json_object(text: str) -> dict[str, Any]:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError
        return value

    def json_object_or_file(text: str) -> dict[str, Any] | str:
        return json_object(text) if text.startswith("{") else text

    def in_range(name: str, kind: Any) -> Callable[[str], Any]:
        low, below = RANGES[name]

        def number(text: str) -> Any:
            if problem := range_problem(kind(text), low=low, below=below):
                raise argparse.ArgumentTypeError(problem)
            return kind(text)

        number.__name__ = kind.__name__  # argparse's messages name it
        return number

    for action in parser._actions:
        # In messages and in the help, a name is spelled in one way.
        action.option_strings = action.option_strings[:1]
        if action.dest in RANGES:
            action.type = in_range(action.dest, action.type)
        elif get_origin(action.type) is dict or action.dest.endswith("_kwargs"):
            action.type = json_object
        elif action.dest in TrainingArguments._VALID_DICT_FIELDS:
            action.type = json_object_or_file
        elif isinstance(action.type, type) and issubclass(action.type, Enum):
            action.choices, action.type = [choice.value for choice in action.type], str
        elif bool in get_args(hints[action.dest]) and action.nargs is None:
            # As for our own options, a flag needs no value.
            action.nargs, action.const = "?", True
    return parser


def check_sharding(args: TrainingArguments) -> None:
    """Refuse FSDP where accelerate would silently ignore it, in a single process, and if it would save no model.

    Args:
        args: the training arguments. `accelerate launch` may choose FSDP by environment variables instead.
    """
    if args.fsdp and args.device.type == "cpu":
        raise AlignAttnError("--fsdp needs GPUs, and there is none: leave it out")
    if args.fsdp and args.parallel_mode in (ParallelMode.NOT_PARALLEL, ParallelMode.NOT_DISTRIBUTED):
        raise AlignAttnError(
            "--fsdp needs several processes: start one per GPU with torchrun --nproc_per_node N -m alignattn …"
        )
    kind = FULL_STATE_DICT
    if args.fsdp:
        kind = str(cast(dict[str, Any], args.fsdp_config).get("state_dict_type", kind))
    elif os.environ.get("ACCELERATE_USE_FSDP") in YES:
        kind = os.environ.get("FSDP_STATE_DICT_TYPE", kind)
    if kind.upper() != FULL_STATE_DICT:
        raise AlignAttnError(f"FSDP's state_dict_type {kind} saves no model that can be loaded: set {FULL_STATE_DICT}")


def check_steps(task: Task, args: TrainingArguments, rows: int, fan_out: Sequence[int] | None) -> None:
    """Refuse a training without a step, and steps of the whole graph in several processes, each of which is the same.

    Args:
        task: the task of the run.
        args: the training arguments.
        rows: the number of training rows that the model gets.
        fan_out: as in `alignattn.tasks.task.TaskOptions`.
    """
    batch = args.train_batch_size * args.world_size
    if args.dataloader_drop_last and rows < batch:
        raise AlignAttnError(
            f"--dataloader_drop_last drops incomplete batches, and {rows} training rows fill no batch of {batch}: "
            "leave it out, or give a smaller --per_device_train_batch_size"
        )
    is_whole = fan_out is None and rows <= args.per_device_train_batch_size
    if isinstance(task, NodeClassification) and is_whole and args.world_size > 1:
        raise AlignAttnError(
            f"each step is the whole graph, so {args.world_size} processes would compute the same: start one, or "
            "split the nodes with --fan_out and a smaller --per_device_train_batch_size"
        )

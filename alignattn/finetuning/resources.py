"""Resources of a run: the types of its weights, and checks of memory and disk space."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from transformers.trainer_utils import SaveStrategy

from alignattn.finetuning.model_options import AS_STORED, ModelOptions
from alignattn.finetuning.options import RunOptions
from alignattn.models.packaged import model_source
from alignattn.patching.sizes import stored_types
from alignattn.training.saving import ADAM_MOMENTS, ADAMS, bytes_of
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.errors import AlignAttnError, free_space, in_megabytes, listing

ORIGINAL = ".original_module."

AUTOCAST = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
"""accelerate's names of the types of autocast."""

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""File with the memory limit of this container in bytes, or `max` for no limit."""


def loading_type(arguments: ModelOptions) -> Any:
    """Return the `dtype` of `from_pretrained`: float32, as stored (the default with adapters), or as asked for."""
    if arguments.dtype is None:
        return torch.float32 if arguments.lora_r is None else AS_STORED
    return arguments.dtype if arguments.dtype == AS_STORED else getattr(torch, arguments.dtype)


def type_of_weights(arguments: ModelOptions, config: Any) -> torch.dtype:
    """Return the type in which a pretrained model will be loaded; as stored, the type in its config or of its weights.

    Args:
        arguments: the options.
        config: the config of the model.
    """
    asked = loading_type(arguments)
    if asked == AS_STORED:
        asked = getattr(config, "dtype", None) or next(iter(_stored(arguments)), "float32")
    found: torch.dtype = getattr(torch, asked) if isinstance(asked, str) else asked
    return found


def check_precision(options: RunOptions, weights: torch.dtype) -> None:
    """Refuse float16 weights without adapters, and computing in another half precision than that of the weights.

    Args:
        options: the options of the run.
        weights: the type of the pretrained model.
    """
    given = f"--dtype {options.model.dtype}"
    if options.model.lora_r is None and weights == torch.float16:
        raise AlignAttnError(
            f"{given}: weights in float16 cannot be trained, because small gradients and the optimizer's moments "
            "underflow: leave it out (on a GPU, --fp16 true computes in float16), give --dtype bfloat16, or train "
            "adapters over such weights (--lora_r 8)"
        )
    computed = {"fp16": torch.float16, "bf16": torch.bfloat16}
    for name, dtype in computed.items():
        if options.values.get(name) and weights in computed.values() and weights != dtype:
            raise AlignAttnError(
                f"--{name} true computes in {_name(dtype)}, and the weights are loaded in {_name(weights)}: give "
                f"--dtype float32, or --{name} false"
            )


def check_memory(options: RunOptions, model: nn.Module, weights: torch.dtype) -> None:
    """Refuse a training whose weights, gradients and moments need more memory than there is.

    Args:
        options: the options of the run.
        model: the run's model on the meta device, without adapters.
        weights: the type of its weights.
    """
    arguments, values = options.model, options.values
    if values.get("fsdp") or values.get("deepspeed"):
        # They shard the weights.
        return
    parameters, free = (
        sum(parameter.numel() for parameter in model.parameters()),
        _free_memory(options.training.use_cpu),
    )
    needed = parameters * weights.itemsize * (1 if arguments.lora_r is not None else _copies(options.training.optim))
    if needed > free:
        what = "the weights" if arguments.lora_r is not None else "weights, gradients and the optimizer's moments"
        raise AlignAttnError(
            f"{arguments.model}: {what} need at least {in_megabytes(needed)} ({parameters:,} parameters in "
            f"{_name(weights)}), and {in_megabytes(free)} of memory are free: train adapters (--lora_r 8), give "
            "--dtype bfloat16, or a smaller model"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _copies(optimizer: str) -> int:
    """Return the minimum number of values that training keeps per parameter: itself, its gradient, Adam's moments."""
    return 2 + (ADAM_MOMENTS if optimizer in ADAMS else 0)


def _free_memory(use_cpu: bool) -> int:
    if torch.cuda.is_available() and not use_cpu:
        free, _ = torch.cuda.mem_get_info()
        return int(free)
    free = psutil.virtual_memory().available + psutil.swap_memory().free
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else ""
    return min(free, int(limit)) if limit.isdecimal() else int(free)


def describe_precision(options: RunOptions, model: nn.Module) -> str:
    """Return a line on the types in which a pretrained model's weights are stored, frozen and trained.

    Args:
        options: the options of the run.
        model: the model to train, with its adapters.
    """
    # peft keeps the untrained head next to the trained one.
    weights = [one for name, one in model.named_parameters() if ORIGINAL not in name]
    frozen, trained = ([one for one in weights if one.requires_grad == trains] for trains in (False, True))
    size = bytes_of(frozen) + _copies(options.training.optim) * bytes_of(trained)
    parts = {"stored": _stored(options.model), "frozen": _types(frozen), "trained": _types(trained)}
    summary = ", ".join(f"{what} in {listing(types)}" for what, types in parts.items() if types)
    lossy = any(one.dtype == torch.bfloat16 for one in trained)
    advice = " (steps too small for that type are lost: --dtype float32 keeps them)" if lossy else ""
    return f"weights: {summary}{advice}; with gradients and the optimizer's moments {in_megabytes(size)}"


def computed_types(trainer: AlignmentTrainer) -> str:
    """Return the type in which a run computes, as its results and its card name it: autocast, weights, evaluation.

    Args:
        trainer: the trainer of the run, before it trains.
    """
    model, args, mixed = trainer.model, trainer.args, str(trainer.accelerator.mixed_precision)
    assert model is not None
    weights = listing(_types(one for one in model.parameters() if one.is_floating_point()))
    summary = f"{AUTOCAST[mixed]}, weights in {weights}" if mixed in AUTOCAST else weights
    if args.tf32 and args.device.type == "cuda":
        summary += ", matrix products in TF32"
    evaluated = {"float16": args.fp16_full_eval, "bfloat16": args.bf16_full_eval}
    return summary + "".join(f", evaluated in {name}" for name, is_chosen in evaluated.items() if is_chosen)


def _stored(arguments: ModelOptions) -> list[str]:
    hub = {"revision": arguments.model_revision, "cache_dir": arguments.cache_dir}
    return stored_types(model_source(arguments.model), hub)


def _types(weights: Iterable[Tensor]) -> list[str]:
    return list(dict.fromkeys(_name(one.dtype) for one in weights))


def check_disk_room(trainer: AlignmentTrainer) -> None:
    """Refuse to start a training whose checkpoints and weights do not fit on the disk.

    The estimate is a lower bound: the disk may still become full.

    Args:
        trainer: the trainer of the run.

    Raises:
        AlignAttnError: if the free space is smaller than the estimate.
    """
    folder = Path(str(trainer.args.output_dir))
    count, free = _checkpoints_at_once(trainer), free_space(folder)
    needed = count * trainer.checkpoint_bytes() + trainer.model_bytes()
    if needed > free:
        raise AlignAttnError(
            f"{folder}: the run writes at least {in_megabytes(needed)} ({count} checkpoint(s) of "
            f"{in_megabytes(trainer.checkpoint_bytes())} at once, and the model), and {in_megabytes(free)} are free: "
            "free some space, give --save_strategy no or --save_only_model true, or another --output_dir"
        )


def _checkpoints_at_once(trainer: AlignmentTrainer) -> int:
    """Return the minimum number of checkpoints on disk at once: the next is written before the oldest is removed."""
    args = trainer.args
    if args.save_strategy == SaveStrategy.NO:
        return 0
    saves = 1
    if args.save_strategy == SaveStrategy.EPOCH and args.max_steps <= 0:
        saves = math.ceil(args.num_train_epochs)
    if args.save_strategy == SaveStrategy.STEPS:
        rows_a_step = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
        rows: Any = trainer.train_dataset
        steps = args.max_steps if args.max_steps > 0 else math.floor(len(rows) / rows_a_step * args.num_train_epochs)
        saves = math.floor(steps / args.save_steps) if args.save_steps >= 1 else 1
    limit = args.save_total_limit
    return min(saves, limit + 1) if limit else saves

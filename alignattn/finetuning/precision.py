"""The types in which a run stores, trains and computes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from alignattn.finetuning.model_options import AS_STORED, ModelOptions
from alignattn.finetuning.options import RunOptions
from alignattn.models.packaged import model_source
from alignattn.patching.checkpoint_files import stored_types
from alignattn.utils.errors import AlignAttnError, listing

if TYPE_CHECKING:
    # Predictions need no Trainer, whose import takes seconds.
    from alignattn.training.trainer import AlignmentTrainer

ORIGINAL = ".original_module."

AUTOCAST = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
"""accelerate's names of the types of autocast."""


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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe_precision(options: RunOptions, model: nn.Module) -> str:
    """Return a line on the types in which a pretrained model's weights are stored, frozen and trained.

    Args:
        options: the options of the run.
        model: the model to train, with its adapters.
    """
    # peft keeps the untrained head next to the trained one.
    weights = [one for name, one in model.named_parameters() if ORIGINAL not in name]
    frozen, trained = ([one for one in weights if one.requires_grad == trains] for trains in (False, True))
    parts = {"stored": _stored(options.model), "frozen": _types(frozen), "trained": _types(trained)}
    summary = ", ".join(f"{what} in {listing(types)}" for what, types in parts.items() if types)
    lossy = any(one.dtype == torch.bfloat16 for one in trained)
    advice = " (steps too small for that type are lost: --dtype float32 keeps them)" if lossy else ""
    return f"weights: {summary}{advice}"


def computed_types(trainer: "AlignmentTrainer") -> str:
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

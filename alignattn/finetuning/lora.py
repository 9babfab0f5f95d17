"""LoRA (Hu et al. 2022) in a run: adapters around the patched model while it trains, merged into what the run keeps."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available

from alignattn.finetuning.model_options import ModelOptions
from alignattn.models.packaged import PACKAGED
from alignattn.patching import CHILD_NAME, alignment_parameters, function_parameters
from alignattn.patching.adapter_files import merge_adapters
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.errors import AlignAttnError, did_you_mean, install_extra, listing, one_line

ADAPTER_FOLDER = "adapter"
"""Folder of a run with the adapters, which `alignattn.from_pretrained` and peft load onto the pretrained model."""


def adapt(model: PreTrainedModel, arguments: ModelOptions) -> Any:
    """Return a patched model with the adapters that the options ask for; its head is trained, too.

    Args:
        model: with a head for the task.
        arguments: the options.

    Returns:
        A `peft.PeftModel`; `model` itself if none is asked for.
    """
    if arguments.lora_r is None:
        return model
    if not is_peft_available():
        raise AlignAttnError(f"--lora_r needs peft: {install_extra('peft')}")
    from peft import LoraConfig, get_peft_model
    from peft.utils import ModulesToSaveWrapper

    heads = [
        name
        for name, child in model.named_children()
        if name not in (model.base_model_prefix, CHILD_NAME) and any(True for _ in child.parameters())
    ]
    config = LoraConfig(
        r=arguments.lora_r,
        lora_alpha=arguments.lora_scale,  # type: ignore[arg-type]  # a factor, however peft declares it
        target_modules=list(arguments.lora_target_modules or ()) or "all-linear",
        modules_to_save=heads,
    )
    try:
        adapted: Any = get_peft_model(model, config)
    except ValueError as error:
        raise AlignAttnError(f"--lora_target_modules: {one_line(error)}") from error
    for module in adapted.modules():
        if isinstance(module, ModulesToSaveWrapper):
            # peft keeps adapters in float32 over a base in half precision, but no head.
            module.float()
            module.register_forward_pre_hook(_in_float32, with_kwargs=True)
    return adapted


def _in_float32(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs of a float32 head, cast from a base in half precision."""

    def converted(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(converted, args)), {name: converted(value) for name, value in kwargs.items()}


def check_targets(model: nn.Module, arguments: ModelOptions) -> None:
    """Refuse names of layers to adapt that no layer of a model bears; peft takes a name for the end of a layer's."""
    names = [name for name, _ in model.named_modules()]
    linear = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and CHILD_NAME not in name
    ]
    for target in arguments.lora_target_modules or ():
        if not any(f".{name}".endswith(f".{target}") for name in names):
            known = sorted({name.rpartition(".")[2] for name in linear})
            hint = did_you_mean(target, known, aside=True)
            raise AlignAttnError(
                f"--lora_target_modules {target!r}: {arguments.model} has no such layer; its linear layers are "
                f"{listing(known)}{hint}"
            )


def keep_merged(trainer: AlignmentTrainer, arguments: ModelOptions, folder: Path) -> None:
    """Save the adapter of a trained model, and let the trainer go on with its weights merged.

    Args:
        trainer: of a model that `adapt` returned.
        arguments: the options.
        folder: of the run.
    """
    adapted: Any = trainer.model
    if arguments.lora_r is None:
        return
    if trainer.is_world_process_zero():
        if arguments.model in PACKAGED:
            (config,) = adapted.peft_config.values()
            config.base_model_name_or_path = PACKAGED[arguments.model].hub_id
        adapted.save_pretrained(folder / ADAPTER_FOLDER, save_embedding_layers=False)
        # peft's card names paths of this machine; the run has a card of its own.
        (folder / ADAPTER_FOLDER / "README.md").unlink(missing_ok=True)
    kept = next(weights.dtype for weights in adapted.parameters() if not weights.requires_grad)
    # Merged into half precision, most of what was learned would round to nothing.
    merged: nn.Module = merge_adapters(adapted.float())
    if arguments.dtype is not None:
        _convert(merged, kept)
    trainer.model = trainer.model_wrapped = merged


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of a patched model, except those of the slots, which stay in float32."""
    own = {id(weights) for weights in (*alignment_parameters(model), *function_parameters(model))}
    for weights in model.parameters():
        if id(weights) not in own:
            weights.data = weights.data.to(dtype)

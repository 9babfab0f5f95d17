"""LoRA (Hu et al. 2022) in a run: adapters around the patched model during training, merged into the saved model."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available

from alignattn.finetuning.options import ModelOptions
from alignattn.models.packaged import PACKAGED, model_source
from alignattn.patching import CHILD_NAME, alignment_parameters, function_parameters
from alignattn.patching.checkpoint_files import stored_weights
from alignattn.patching.checkpoints import CLASSIFIER, merge_adapters
from alignattn.patching.slots import is_patched
from alignattn.utils.errors import AlignAttnError, did_you_mean, install_extra, listing, one_line

ADAPTER_FOLDER = "adapter"
"""Folder of a run with the adapters, which `alignattn.from_pretrained` and peft load onto the pretrained model."""


def adapt(model: PreTrainedModel, options: ModelOptions) -> Any:
    """Return a patched model with the adapters that the options ask for, a `peft.PeftModel`; its head is trained, too.

    Args:
        model: the patched model, with a head for the task.
        options: the options of the model.
    """
    if not is_peft_available():
        raise AlignAttnError(f"--lora_r needs peft: {install_extra('peft')}")
    from peft import LoraConfig, get_peft_model
    from peft.utils import ModulesToSaveWrapper

    modules = dict(model.named_modules())
    for target in options.lora_target_modules or ():
        # As in peft, a target is the end of a module's name.
        if not any(f".{name}".endswith(f".{target}") for name in modules):
            linear = (name for name, module in modules.items() if isinstance(module, nn.Linear))
            known = sorted({name.rpartition(".")[2] for name in linear if CHILD_NAME not in name})
            hint = did_you_mean(target, known, aside=True)
            raise AlignAttnError(
                f"--lora_target_modules {target!r}: {options.model} has no such layer; its linear layers are "
                f"{listing(known)}{hint}"
            )
    heads = [
        name
        for name, child in model.named_children()
        if name not in (model.base_model_prefix, CHILD_NAME)
        # CLIP's and SigLIP's image classifiers are their own base model: their other children are the encoder.
        and (model.base_model is not model or f"{name}." == CLASSIFIER)
        and any(True for _ in child.parameters())
    ]
    pooler = getattr(model.base_model, "pooler", None)
    if model.base_model is not model and isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        stored = stored_weights(model_source(options.model), options.hub)
        if stored and not any("pooler." in name for name in stored):
            # New weights, as of masked language models, are a part of the head: nothing else would hold them.
            heads.append(f"{model.base_model_prefix}.pooler")
    config = LoraConfig(
        r=options.lora_r,  # type: ignore[arg-type]  # a run without adapters does not come here
        lora_alpha=options.lora_scale,  # type: ignore[arg-type]  # a factor, however peft declares it
        target_modules=list(options.lora_target_modules or ()) or "all-linear",
        modules_to_save=heads,
    )
    try:
        adapted: Any = get_peft_model(model, config)
    except ValueError as error:
        raise AlignAttnError(f"--lora_target_modules: {one_line(error)}") from error
    for module in adapted.modules():
        if isinstance(module, ModulesToSaveWrapper):
            # Over a base in half precision, peft keeps adapters in float32, but not heads.
            module.float()
            module.register_forward_pre_hook(_in_float32, with_kwargs=True)
    return adapted


def _in_float32(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs of a float32 head, cast from a base in half precision."""

    def converted(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(converted, args)), {name: converted(value) for name, value in kwargs.items()}


def keep_merged(trainer: Any, options: ModelOptions, folder: Path) -> None:
    """Save the adapter of a trained model, and give the trainer the model with merged weights.

    Args:
        trainer: the `AlignmentTrainer` of a model that `adapt` returned.
        options: the options of the model.
        folder: the run's folder.
    """
    adapted: Any = trainer.model
    if trainer.is_world_process_zero():
        if options.model in PACKAGED:
            (config,) = adapted.peft_config.values()
            config.base_model_name_or_path = PACKAGED[options.model].hub_id
        adapted.save_pretrained(folder / ADAPTER_FOLDER, save_embedding_layers=False)
        base = adapted.get_base_model()
        if not is_patched(base):
            # It names the labels, for which the head is built; of a patched model, the adapter describes them.
            base.config.save_pretrained(folder / ADAPTER_FOLDER)
        # peft's card contains local paths; the run has its own card.
        (folder / ADAPTER_FOLDER / "README.md").unlink(missing_ok=True)
    kept = next(weights.dtype for weights in adapted.parameters() if not weights.requires_grad)
    # Merge in float32: in half precision, most of the learned changes would be rounded away.
    merged: nn.Module = merge_adapters(adapted.float())
    if options.dtype is not None:
        # The slots stay in float32.
        own = {id(weights) for weights in (*alignment_parameters(merged), *function_parameters(merged))}
        for weights in merged.parameters():
            if id(weights) not in own:
                weights.data = weights.data.to(kept)
    trainer.model = trainer.model_wrapped = merged

"""Save a patched model with its current layers, so that nothing loads it with another function; load its slots.

An alignment does not change the function, and such a model is saved as an ordinary folder. A score, normalizer or value
changes it, but plain transformers would load the folder with softmax attention. So its `config.json` names a model type
that transformers does not know, and hides a field that every class of transformers needs to build the model.
"""

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.patching.checkpoint_files import (
    DESCRIPTION,
    SAFETENSORS,
    bare_model,
    is_of_slots,
    read_description,
    weight_files,
)
from alignattn.patching.projections import attention_modules, declared_layers
from alignattn.patching.routing import base_of
from alignattn.patching.slots import LayerSlots, Patch, patch_of
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_json, to_json

LOADING_HINT = "load_with_alignattn_from_pretrained"
"""The attention implementation in the saved config of a model patched with slots that change its function.

No implementation has this name, so plain transformers refuses the checkpoint instead of silently running it with soft
attention.
"""

LOADER_FIELD = "attn_implementation"
"""Field of such a config that holds the hint as its attention implementation."""

TYPE_SUFFIX = f"_{LOADING_HINT}"
"""Suffix of the model type in such a config."""

HIDDEN_FIELD = "alignattn_hides"
"""Field of such a config that stores the original values of hidden fields, by name."""

REMAINING = f"{CHILD_NAME}.of_remaining_layers"
"""Tensor that marks a model whose layers changed after the patch: stacked tensors cover only its current layers."""

ADAPTERS_COPIES = "modules_to_save"
"""Attribute under which peft keeps the copies of a module that adapters train."""

SAVING = "save_pretrained"
"""The method of a patched model, and of an adapter's config, that is replaced."""


class PatchedSaving:
    """The `save_pretrained` of a patched model.

    Args:
        model: the patched model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Save as the class of the model does; arguments as for its `save_pretrained`.

        Raises:
            AlignAttnError: if layers were changed after the patch so that the folder could not be loaded, or none has
                slots any more.
        """
        model: Any = self.model
        save = functools.partial(type(model).save_pretrained, model)
        if getattr(model, "_hf_peft_config_loaded", False):
            with refused_by_plain_peft(model):
                save(*args, **kwargs)
            return
        call = inspect.signature(save).bind(*args, **kwargs)
        # The config of the patch, with `layers` counted in the current model.
        attention: AttentionConfig = patch_of(model).config
        layers = declared_layers(model) or attention_modules(model, with_cross_attention=attention.cross_attention)
        plain = {id(layer.module) for layer in layers}
        # Modules of a family have another class while they have slots, so `layers` lacks them.
        modules = [module for module in model.modules() if id(module) in plain or _has_slots(module)]
        with_slots = tuple(index for index, module in enumerate(modules) if _has_slots(module))
        if not with_slots:
            raise AlignAttnError(
                f"no attention layer of this {type(model).__name__} has the slots of its patch any more: call "
                "alignattn.unpatch before you save it"
            )
        if attention.layers is not None or len(with_slots) < len(modules):
            attention = dataclasses.replace(attention, layers=with_slots)
        if is_changed(model):
            check_loadable(model)
            state_dict = call.arguments.get("state_dict") or model.state_dict()
            call.arguments["state_dict"] = _with_remaining_layers(model, state_dict)
        own, written = model.config, copy.copy(model.config)
        # Set in the dict, because the class validates attributes and saves only its fields.
        vars(written)["save_pretrained"] = functools.partial(_save_config, written, model, attention)
        model.config = written
        try:
            save(*call.args, **call.kwargs)
        finally:
            model.config = own


@contextmanager
def refused_by_plain_peft(model: Any) -> Iterator[None]:
    """Within this context, save the adapters of a model, or of the `peft.PeftModel` around it, for no plain peft.

    If a patch changes the model's function, plain peft refuses their task type. The user's own configs stay unchanged.
    """
    patch = getattr(model, CHILD_NAME, None)
    configs = model.peft_config.values() if isinstance(patch, Patch) and patch.config.changes_function else ()

    def save_with_hint(config: Any, *args: Any, **kwargs: Any) -> None:
        written = copy.copy(config)
        del vars(written)[SAVING]
        written.task_type = LOADING_HINT
        written.save_pretrained(*args, **kwargs)

    for config in configs:
        vars(config)[SAVING] = functools.partial(save_with_hint, config)
    try:
        yield
    finally:
        for config in configs:
            vars(config).pop(SAVING, None)


def is_changed(model: nn.Module) -> bool:
    """Tell whether layers with slots were removed, added, moved or taken from another model since the patch."""
    at_patch = {size: list(range(len(paths))) for size, paths in patch_of(model).paths.items()}
    return rows_of(model) != at_patch or _is_mixed(model)


def _is_mixed(model: nn.Module) -> bool:
    return any(
        slots.collector is not patch_of(model).collector for slots in model.modules() if isinstance(slots, LayerSlots)
    )


def _has_slots(module: nn.Module) -> bool:
    # A wrapper of peft exposes the attributes of the module that it wraps.
    return isinstance(module._modules.get(CHILD_NAME), LayerSlots)


def check_loadable(model: Any) -> None:
    """Refuse a model whose layers its config no longer describes.

    Raises:
        AlignAttnError: if its config does not describe its layers, or if layers have the slots of another model.
    """
    if _is_mixed(model):
        raise AlignAttnError(
            f"layers of this {type(model).__name__} have the slots of another model's patch: call alignattn.unpatch "
            "on both before you move layers, and patch again"
        )
    described = {name: tensor.shape for name, tensor in bare_model(type(model), model.config).state_dict().items()}
    held = {name: tensor.shape for name, tensor in model.state_dict().items() if f".{CHILD_NAME}." not in f".{name}"}
    odd = sorted(name for name in described.keys() | held.keys() if described.get(name) != held.get(name))
    if odd:
        raise AlignAttnError(
            f"layers of this {type(model).__name__} were changed, but its config was not ({len(odd)} weights differ, "
            f"such as {odd[0]}): set model.config.num_hidden_layers and any other field that counts layers"
        )


def _with_remaining_layers(model: nn.Module, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict in which the stacked parameters of the alignment cover the current layers of a model."""
    cut = dict(state_dict)
    for size, rows in rows_of(model).items():
        prefix = f"{CHILD_NAME}.alignments.{size}."
        for name in [name for name in cut if name.startswith(prefix) and cut[name].dim()]:
            cut[name] = cut[name].index_select(0, torch.tensor(rows, device=cut[name].device))
    if patch_of(model).alignments:
        cut[REMAINING] = torch.ones(1, dtype=torch.uint8)
    gone = [f"{CHILD_NAME}.alignments.{size}." for size in patch_of(model).paths.keys() - rows_of(model).keys()]
    return {name: tensor for name, tensor in cut.items() if not name.startswith(tuple(gone))}


def _save_config(
    config: PreTrainedConfig, model: Any, attention: AttentionConfig, folder: str | Path, **kwargs: Any
) -> None:
    written = copy.copy(config)
    del vars(written)["save_pretrained"]
    setattr(written, CHILD_NAME, attention.to_dict())
    # The config is validated as that of the plain model: `output_attentions` needs "eager", not our name.
    vars(written)["_attn_implementation_internal"] = base_of(config._attn_implementation)
    written.save_pretrained(folder, **kwargs)
    if not attention.changes_function:
        return
    # Only `restored_fields` can read what plain transformers refuses.
    path = Path(folder, CONFIG_NAME)
    fields = read_json(path)
    plain = {name: value for name, value in fields.items() if name != LOADER_FIELD}
    # Activations first: with one hidden, the config alone can still be read, as peft does when it saves an adapter.
    names = [name for name, value in plain.items() if isinstance(value, str) and value in ACT2FN]
    common = {CHILD_NAME, *(field.name for field in dataclasses.fields(PreTrainedConfig))}
    names += [field.name for field in dataclasses.fields(model.config) if field.name in plain.keys() - common]
    hidden = next((name for name in names if _is_refused(plain | {name: LOADING_HINT}, model)), None)
    fields |= {
        "model_type": f"{fields['model_type']}{TYPE_SUFFIX}",
        HIDDEN_FIELD: {} if hidden is None else {hidden: fields[hidden]},
    }
    if hidden is not None:
        fields[hidden] = LOADING_HINT
    path.write_text(to_json(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def restored_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a saved config with its hidden fields and its model type restored.

    Args:
        fields: the content of a `config.json`, of any model.
    """
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or not model_type.endswith(TYPE_SUFFIX):
        return dict(fields)
    hidden = fields.get(HIDDEN_FIELD)
    if not isinstance(hidden, dict):
        raise ValueError(f"its config.json lacks {HIDDEN_FIELD}")
    rest = {name: value for name, value in fields.items() if name != HIDDEN_FIELD}
    return rest | hidden | {"model_type": model_type.removesuffix(TYPE_SUFFIX)}


def _is_refused(fields: Mapping[str, Any], model: PreTrainedModel) -> bool:
    """Tell whether a config can be read, for the tokenizer, but building its model fails and names the hint."""
    try:
        PreTrainedConfig.from_dict(copy.deepcopy(dict(fields)))
    except Exception:
        return False
    try:
        # The encoder is a part of every model with a head.
        bare_model(type(model.base_model), type(model.config).from_dict(copy.deepcopy(dict(fields))))
    except Exception as error:  # whatever the class raises
        return LOADING_HINT in str(error)
    return False


def prepare_state(model: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_args: Any) -> None:
    """Check a state dict before a patched model loads it, and give its stacked tensors the model's rows, in place.

    Raises:
        AlignAttnError: if it is of an adapter that was trained with another attention function.
    """
    if prefix + DESCRIPTION in state_dict:
        theirs = AttentionConfig.from_dict(read_description(state_dict[prefix + DESCRIPTION])["attention"])
        mine = patch_of(model).config
        if theirs.function_fields() != mine.function_fields():
            raise AlignAttnError(
                f"the adapter was trained with the attention {theirs.name!r}, and the model has {mine.name!r}: patch "
                "it with the adapter's, or load both with alignattn.from_pretrained"
            )
    # Tensors that were saved for the current layers go into the rows of the model's own tensors.
    is_of_remaining = state_dict.pop(f"{prefix}{REMAINING}", None) is not None
    stacked = f"{prefix}{CHILD_NAME}.alignments."
    rows = rows_of(model)
    for name, tensor in patch_of(model).alignments.state_dict(prefix=stacked).items():
        saved = state_dict.get(name)
        # A scalar, the step of the draws, belongs to all layers.
        if saved is None or not tensor.dim() or (saved.shape == tensor.shape and not is_of_remaining):
            continue
        of_size = rows.get(name.removeprefix(stacked).partition(".")[0], [])
        if saved.shape[:1] == (len(of_size),):
            index = torch.tensor(of_size, device=saved.device)
            state_dict[name] = tensor.detach().to(saved, copy=True).index_copy(0, index, saved)


def rows_of(model: nn.Module) -> dict[str, list[int]]:
    """Return the rows of the alignment's stacked parameters that the current layers of a model use, by head size.

    A copy that an adapter trains in place of a layer does not count.
    """
    rows: dict[str, list[int]] = {}
    for path, slots in model.named_modules():
        if isinstance(slots, LayerSlots) and ADAPTERS_COPIES not in path.split("."):
            rows.setdefault(str(slots.heads.size), []).append(slots.layer)
    return rows


def load_slots(
    model: PreTrainedModel, path: str, hub: dict[str, Any], variant: str | None, part: re.Pattern[str] | None = None
) -> None:
    """Load the slot parameters of a patched model from a checkpoint, or those whose names match `part`.

    Raises:
        AlignAttnError: if the checkpoint does not hold the parameters that the model has.
    """

    def is_wanted(name: str) -> bool:
        return is_of_slots(name) if part is None else part.search(f".{name}") is not None

    expected = {name: tensor for name, tensor in model.state_dict().items() if is_wanted(name)}
    saved: dict[str, Tensor] = {}
    if expected:
        files = [file for file in weight_files(path, hub, variant) if file.suffix == SAFETENSORS]
        if not files:
            raise AlignAttnError(f"{path!r} has no {SAFE_WEIGHTS_NAME}: save the model with save_pretrained")
        for file in files:
            with safe_open(file, "pt") as weights:
                saved |= {name: weights.get_tensor(name) for name in weights.keys() if is_of_slots(name)}  # noqa: SIM118
    prefix = f"{model.base_model_prefix}."
    # transformers saves some models, such as ViT, under the names of their original checkpoints.
    own_names = {next(iter(revert_weight_conversion(model, {name: own}))): name for name, own in expected.items()}
    # The names in a model with a head and in its encoder alone differ by the prefix.
    spellings = {
        name: [name, name.removeprefix(prefix) if name.startswith(prefix) else prefix + name] for name in saved
    }
    saved = {
        next((own_names[spelling] for spelling in spellings[name] if spelling in own_names), name): tensor
        for name, tensor in saved.items()
    }
    prepare_state(model, saved, "")
    saved = {name: tensor for name, tensor in saved.items() if is_wanted(name)}
    if saved.keys() != expected.keys():
        odd = sorted(saved.keys() ^ expected.keys())
        raise AlignAttnError(
            f"{path!r} does not hold the parameters of the attention its config names ({len(odd)} differ, such as "
            f"{odd[0]}): load it with {type(model).__name__}.from_pretrained and patch it again"
        )
    model.load_state_dict(saved, strict=False)

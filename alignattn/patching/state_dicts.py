"""Check and load state dicts of patched models: the rows of their layers and the parameters of their slots."""

import json
import re
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.patching.sizes import SAFETENSORS, weight_files
from alignattn.patching.slots import LayerSlots, patch_of
from alignattn.utils.errors import AlignAttnError

DESCRIPTION = f"{CHILD_NAME}.description"
"""End of the name, in an adapter's file, of a tensor of bytes: JSON that describes the patch."""

REMAINING = f"{CHILD_NAME}.of_remaining_layers"
"""Tensor that marks a model whose layers changed after the patch: stacked tensors cover only its current layers."""

SLOT_MARKER = f".{CHILD_NAME}."
"""Part of the state-dict keys of all slot parameters, if a dot is put before the key."""

ANY_SLOT = re.compile(re.escape(SLOT_MARKER))
FUNCTION_SLOT = re.compile(rf"{re.escape(SLOT_MARKER)}(score|normalizer|value)_slot\.")
"""The same for slots that change what the model computes."""

ADAPTERS_COPIES = "modules_to_save"
"""Attribute under which peft keeps the copies of a module that adapters train."""


def prepare_state(model: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_args: Any) -> None:
    """Check a state dict before a patched model loads it, and give its stacked tensors the model's rows, in place.

    Args:
        model: a patched model.
        state_dict: state dict of a patched model, of an adapter, or of neither.
        prefix: prefix of the model's names in it.

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


def read_description(tensor: Tensor) -> dict[str, Any]:
    """Return the JSON fields in a tensor of bytes."""
    fields: dict[str, Any] = json.loads(bytes(tensor.tolist()))
    return fields


def written_description(fields: dict[str, Any]) -> Tensor:
    """Return JSON as a tensor of bytes, `[N]` uint8."""
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def load_slots(
    model: PreTrainedModel, path: str, hub: dict[str, Any], variant: str | None, part: re.Pattern[str] = ANY_SLOT
) -> None:
    """Load the slot parameters of a patched model from a checkpoint.

    Args:
        model: a patched model.
        path: a folder or Hub id.
        hub: keyword arguments that say where a file is found.
        variant: variant of the weight files; None for the default.
        part: pattern in the names of the parameters to load.

    Raises:
        AlignAttnError: if the checkpoint does not hold the parameters that the model has.
    """
    expected = {name: tensor for name, tensor in model.state_dict().items() if part.search(f".{name}")}
    saved: dict[str, Tensor] = {}
    if expected:
        files = [file for file in weight_files(path, hub, variant) if file.suffix == SAFETENSORS]
        if not files:
            raise AlignAttnError(f"{path!r} has no {SAFE_WEIGHTS_NAME}: save the model with save_pretrained")
        for file in files:
            with safe_open(file, "pt") as weights:
                saved |= {name: weights.get_tensor(name) for name in weights.keys() if is_of_slots(name)}  # noqa: SIM118
    prepare_state(model, saved, "")
    saved = {name: tensor for name, tensor in saved.items() if part.search(f".{name}")}
    prefix = f"{model.base_model_prefix}."
    # The names in a model with a head and in its encoder alone differ by the prefix.
    saved = {
        name if name in expected else name.removeprefix(prefix) if name.startswith(prefix) else prefix + name: tensor
        for name, tensor in saved.items()
    }
    if saved.keys() != expected.keys():
        odd = sorted(saved.keys() ^ expected.keys())
        raise AlignAttnError(
            f"{path!r} does not hold the parameters of the attention its config names ({len(odd)} differ, such as "
            f"{odd[0]}): load it with {type(model).__name__}.from_pretrained and patch it again"
        )
    model.load_state_dict(saved, strict=False)


def is_of_slots(name: str) -> bool:
    """Tell whether a state-dict key belongs to slots."""
    return SLOT_MARKER in f".{name}"

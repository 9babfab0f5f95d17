"""What a patched model does with a state dict before it loads it: the rows of its layers, and refusals."""

import json
from typing import Any

import torch
from torch import Tensor, nn

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.patching.slots import LayerSlots, patch_of
from alignattn.utils.errors import AlignAttnError

DESCRIPTION = f"{CHILD_NAME}.description"
"""End of the name, in an adapter's file, of a tensor of bytes: JSON that tells what the patch is."""

REMAINING = f"{CHILD_NAME}.of_remaining_layers"
"""A tensor that is saved where layers were changed after the patch: stacked ones are of the layers as they stand."""

MEANS = ".means"
"""End of the name of the means that an alignment in a basis keeps, `[2, L, …]`."""

ADAPTERS_COPIES = "modules_to_save"
"""Where peft keeps the copies of a module that adapters train in its place."""


def prepare_state(model: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_args: Any) -> None:
    """Check a state dict before a patched model loads it, and give its stacked tensors the model's rows, in place.

    Args:
        model: patched.
        state_dict: of a patched model, of an adapter, or of neither.
        prefix: of the model's own names.

    Raises:
        AlignAttnError: if it is of an adapter that was trained with another attention function.
    """
    if prefix + DESCRIPTION in state_dict:
        _check_same(model, read_description(state_dict[prefix + DESCRIPTION]))
    _spread_over_layers(model, state_dict, prefix)


def rows_of(model: nn.Module) -> dict[str, list[int]]:
    """Return, by the size of a head, the rows of the alignment's stacked parameters that a model's layers have now.

    A copy that an adapter trains in the place of a layer is none of its own.
    """
    rows: dict[str, list[int]] = {}
    for path, slots in model.named_modules():
        if isinstance(slots, LayerSlots) and ADAPTERS_COPIES not in path.split("."):
            rows.setdefault(str(slots.head_dim), []).append(slots.layer)
    return rows


def layer_dim(name: str, tensor: Tensor) -> int | None:
    """Return the dimension that counts layers of a tensor of an alignment, None if it is of all layers together."""
    if not tensor.dim():
        return None
    return 1 if name.endswith(MEANS) else 0


def _spread_over_layers(model: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Give tensors that were saved of the layers as they stand now the rows that a model's own have, in place."""
    is_of_remaining = state_dict.pop(f"{prefix}{REMAINING}", None) is not None
    rows, own = rows_of(model), patch_of(model).alignments.state_dict(prefix=f"{prefix}{CHILD_NAME}.alignments.")
    for name, tensor in own.items():
        saved, dim = state_dict.get(name), layer_dim(name, tensor)
        if saved is None or dim is None or (saved.shape == tensor.shape and not is_of_remaining):
            continue
        of_size = rows.get(name.removeprefix(f"{prefix}{CHILD_NAME}.alignments.").partition(".")[0], [])
        if saved.shape[dim : dim + 1] == (len(of_size),):
            index = torch.tensor(of_size, device=saved.device)
            state_dict[name] = tensor.detach().to(saved, copy=True).index_copy(dim, index, saved)


def read_description(tensor: Tensor) -> dict[str, Any]:
    """Return the fields that a tensor of bytes holds as JSON."""
    fields: dict[str, Any] = json.loads(bytes(tensor.tolist()))
    return fields


def written_description(fields: dict[str, Any]) -> Tensor:
    """Return JSON as a tensor of bytes, `[N]` uint8."""
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def _check_same(model: nn.Module, description: dict[str, Any]) -> None:
    theirs, mine = AttentionConfig.from_dict(description["attention"]), patch_of(model).config
    if theirs.function_fields() != mine.function_fields():
        raise AlignAttnError(
            f"the adapter was trained with the attention {theirs.name!r}, and the model has {mine.name!r}: patch it as "
            "the adapter's was, or load both with alignattn.from_pretrained"
        )

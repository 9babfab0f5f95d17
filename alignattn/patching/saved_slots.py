"""The slots' own parameters in a checkpoint: transformers loads the rest."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from alignattn.patching import CHILD_NAME
from alignattn.patching.adapter_files import IF_THERE
from alignattn.patching.state_dicts import prepare_state
from alignattn.utils.errors import AlignAttnError

SLOT_MARKER = f".{CHILD_NAME}."
"""What the state-dict keys of the slots' own parameters have in common, after a dot."""

ANY_SLOT = re.compile(re.escape(SLOT_MARKER))
FUNCTION_SLOT = re.compile(rf"{re.escape(SLOT_MARKER)}(score|normalizer|value)_slot\.")
"""The same of those that are part of what the model computes."""


def load_slots(
    model: PreTrainedModel, path: str, hub: dict[str, Any], variant: str | None, part: re.Pattern[str] = ANY_SLOT
) -> None:
    """Give a patched model the parameters of its slots that a checkpoint holds.

    Args:
        model: with a patch.
        path: a folder or Hub id.
        hub: keyword arguments that say where a file is found.
        variant: of the files of weights, None for the usual ones.
        part: what the names of those to be loaded have in common.

    Raises:
        AlignAttnError: if the checkpoint holds others than the model has.
    """
    expected = {name: tensor for name, tensor in model.state_dict().items() if part.search(f".{name}")}
    saved = dict(_saved_slots(path, hub, variant)) if expected else {}
    prepare_state(model, saved, "")
    saved = {name: tensor for name, tensor in saved.items() if part.search(f".{name}")}
    prefix = f"{model.base_model_prefix}."
    # A head saved with its encoder and an encoder loaded alone, or the reverse, differ by the prefix.
    saved = {_renamed(name, expected, prefix): tensor for name, tensor in saved.items()}
    if saved.keys() != expected.keys():
        odd = sorted(saved.keys() ^ expected.keys())
        raise AlignAttnError(
            f"{path!r} does not hold the parameters of the attention its config names ({len(odd)} differ, such as "
            f"{odd[0]}): load it with {type(model).__name__}.from_pretrained and patch it anew"
        )
    model.load_state_dict(saved, strict=False)


def is_of_slots(name: str) -> bool:
    """Tell whether a parameter, by its name in a state dict, is of slots."""
    return SLOT_MARKER in f".{name}"


def _renamed(name: str, expected: dict[str, Tensor], prefix: str) -> str:
    if name in expected:
        return name
    return name.removeprefix(prefix) if name.startswith(prefix) else prefix + name


def _saved_slots(path: str, hub: dict[str, Any], variant: str | None) -> Iterator[tuple[str, Tensor]]:
    for file in _weight_files(path, hub, variant):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - a safe_open handle is not iterable
                if is_of_slots(name):
                    yield name, weights.get_tensor(name)


def _weight_files(path: str, hub: dict[str, Any], variant: str | None) -> list[str]:
    whole = cached_file(path, _of_variant(SAFE_WEIGHTS_NAME, variant), **IF_THERE, **hub)
    if whole is not None:
        return [whole]
    index = cached_file(path, _of_variant(SAFE_WEIGHTS_INDEX_NAME, variant), **IF_THERE, **hub)
    if index is None:
        raise AlignAttnError(f"{path!r} holds no {SAFE_WEIGHTS_NAME}: save the model with save_pretrained")
    file_of = json.loads(Path(index).read_text())["weight_map"]
    shards = sorted({file for name, file in file_of.items() if is_of_slots(name)})
    return [str(cached_file(path, shard, **hub)) for shard in shards]


def _of_variant(name: str, variant: str | None) -> str:
    """The name of a file of weights that `save_pretrained(variant=)` writes: the variant stands before the suffix."""
    stem, _, suffix = name.rpartition(".")
    return name if variant is None else f"{stem}.{variant}.{suffix}"

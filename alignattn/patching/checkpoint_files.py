"""Find and read the files of a checkpoint or adapter, and refuse a config that is far larger than these files."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME
from transformers.utils.hub import cached_file
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from alignattn.attention.attend import CHILD_NAME
from alignattn.utils.errors import AlignAttnError, in_megabytes, shown
from alignattn.utils.files import read_json

FILE_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""The keyword arguments of `from_pretrained` that say where a file is found."""

NEEDED = ("hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads", "vocab_size")
"""Fields of a config that every encoder needs, under the names that families give them."""

SAFETENSORS = ".safetensors"

BASE_MODEL_FIELD = "base_model_name_or_path"
"""Field of an adapter's config that names its base model."""

DESCRIPTION = f"{CHILD_NAME}.description"
"""End of the name, in an adapter's file, of a tensor of bytes: JSON that describes the patch."""

SLOT_MARKER = f".{CHILD_NAME}."
"""Part of the state-dict keys of all slot parameters, if a dot is put before the key."""

FUNCTION_SLOT = re.compile(rf"{re.escape(SLOT_MARKER)}(score|normalizer|value)_slot\.")
"""Pattern of the keys of slots that change what the model computes, likewise."""


def check_counts(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse the fields of a config with so many parts that building them takes hours, or with none."""
    for field, value in fields.items():
        # Image models may have a number for each stage.
        counts = value if isinstance(value, list) and value else [value]
        if field in NEEDED and any(type(count) is not int or count < 1 for count in counts):
            raise AlignAttnError(
                f"the config of {name} says {field} {shown(value)}: it must be a whole number of at least 1"
            )
        # Parts that are built one by one.
        for pattern, most in ((r".*(layers?|groups?|group_num|heads?)", 1_000), ("num_labels", 1_000_000)):
            if isinstance(value, int) and value > most and re.fullmatch(pattern, field, re.IGNORECASE):
                raise AlignAttnError(f"the config of {name} says {field} {value}: it must be at most {most}")


def check_fills(name: str, source: str, auto_class: Any, config: PreTrainedConfig, hub: Mapping[str, Any]) -> None:
    """Refuse a config that describes a far larger model than its checkpoint: most weights would be random."""
    check_counts(name, config.to_dict())
    saved = sum(file.stat().st_size for file in weight_files(source, hub))
    if not saved:
        return
    # A weight takes a byte at least, or a bit if it is quantised; a checkpoint may lack a head and other parts.
    fitting = saved * (8 if getattr(config, "quantization_config", None) else 1)
    parameters = sum(parameter.numel() for parameter in bare_model(auto_class, config).parameters())
    if parameters > fitting + 10**8:
        raise AlignAttnError(
            f"the config of {name} does not match its weights: it describes {parameters:,} parameters, but the weights "
            f"take {in_megabytes(saved)}: correct it"
        )


def stored_types(source: str, hub: Mapping[str, Any]) -> list[str]:
    """Return the types of the floating-point weights of a checkpoint by torch's names, the most frequent first."""
    counts = Counter(stored_weights(source, hub).values())
    floats = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    return [floats[name] for name, _ in counts.most_common() if name in floats]


def stored_weights(source: str, hub: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each weight of a checkpoint, as safetensors name it, by its name; none of other files."""
    types: dict[str, str] = {}
    for file in weight_files(source, hub):
        if file.suffix == SAFETENSORS:
            with safe_open(file, "pt") as weights:
                types |= {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    return types


def bare_model(auto_class: Any, config: PreTrainedConfig) -> Any:
    """Return the model of a class or an `AutoModel…` class that a config describes, on the meta device."""
    make = getattr(auto_class, "from_config", None) or auto_class._from_config
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return make(deepcopy(config), attn_implementation="eager")


def weight_files(source: str, hub: Mapping[str, Any], variant: str | None = None) -> list[Path]:
    """Return the weight files of a checkpoint, or of a variant of it; empty if it has none under a usual name."""
    for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME):
        stem, _, suffix = name.rpartition(".")
        file = find_file(source, name if variant is None else f"{stem}.{variant}.{suffix}", hub)
        if file is None:
            continue
        if name not in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
            return [file]
        shards = sorted(set(read_json(file).get("weight_map", {}).values()))
        return [Path(str(cached_file(source, shard, **hub))) for shard in shards]
    return []


def find_file(source: str, name: str, hub: Mapping[str, Any]) -> Path | None:
    """Return the path of a file of a checkpoint, given by its folder or Hub id; None if it is missing."""
    file = cached_file(source, name, _raise_exceptions_for_missing_entries=False, **hub)
    return None if file is None else Path(file)


def adapter_fields(path: str, hub: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an adapter's config, or None if there is no adapter in a folder or on the Hub."""
    return fields_in(path, ADAPTER_CONFIG_NAME, hub)


def fields_in(path: str, name: str, hub: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a JSON file in a folder or on the Hub, or None if it is missing."""
    file = find_file(path, name, hub)
    if file is None:
        return None
    fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return fields


def adapter_contents(path: str, hub: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the names of an adapter's weights and the description of the patch in its file, empty without a patch."""
    file = find_file(path, ADAPTER_SAFE_WEIGHTS_NAME, hub)
    if file is None:
        raise AlignAttnError(f"{path!r} has no {ADAPTER_SAFE_WEIGHTS_NAME}: save the adapter with save_pretrained")
    with safe_open(file, "pt") as weights:
        names = frozenset(weights.keys())
        descriptions = [weights.get_tensor(name) for name in names if name.endswith(DESCRIPTION)]
    description = read_description(descriptions[0]) if descriptions else {}
    return frozenset(_names_in_model(names)), description


def _names_in_model(names: Collection[str]) -> dict[str, str]:
    """Return the names in an adapter's file by those of the model's weights, without their prefix."""
    # Prompts stand beside the model's weights.
    prefix = "base_model." if "prompt_embeddings" in names else "base_model.model."
    return {name.removeprefix(prefix): name for name in names}


def labels_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's config that building its head requires, which an adapter's files lack."""
    return {name: fields[name] for name in ("id2label", "label2id", "problem_type") if fields.get(name) is not None}


def function_parameters_in(path: str, hub: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters of slots that change the function in an adapter's file, by their names in the model."""
    with safe_open(find_file(path, ADAPTER_SAFE_WEIGHTS_NAME, hub), "pt") as weights:
        names = _names_in_model(weights.keys()).items()
        return {own: weights.get_tensor(name) for own, name in names if FUNCTION_SLOT.search(name)}


def read_description(tensor: Tensor) -> dict[str, Any]:
    """Return the JSON fields in a tensor of bytes."""
    fields: dict[str, Any] = json.loads(bytes(tensor.tolist()))
    return fields


def written_description(fields: dict[str, Any]) -> Tensor:
    """Return JSON as a tensor of bytes, `[N]` uint8."""
    return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)


def is_of_slots(name: str) -> bool:
    """Tell whether a state-dict key belongs to slots."""
    return SLOT_MARKER in f".{name}"

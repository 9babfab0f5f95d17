"""Find the files of a checkpoint, and refuse a config of a model that is far larger than these files."""

import re
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME
from transformers.utils.hub import cached_file

from alignattn.utils.errors import AlignAttnError, in_megabytes, shown
from alignattn.utils.files import read_json

FILE_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""The keyword arguments of `from_pretrained` that say where a file is found."""

NEEDED = ("hidden_size", "dim", "num_hidden_layers", "n_layers", "num_attention_heads", "n_heads", "vocab_size")
"""Fields of a config that every encoder needs, under the names that families give them."""

SAFETENSORS = ".safetensors"


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
    # A weight takes a byte at least; a checkpoint may lack a head and other parts.
    parameters = sum(parameter.numel() for parameter in bare_model(auto_class, config).parameters())
    if parameters > saved + 10**8:
        raise AlignAttnError(
            f"the config of {name} does not match its weights: it describes {parameters:,} parameters, but the weights "
            f"take {in_megabytes(saved)}: correct it"
        )


def stored_types(source: str, hub: Mapping[str, Any]) -> list[str]:
    """Return the types of the floating-point weights of a checkpoint by torch's names, the most frequent first."""
    counts: Counter[str] = Counter()
    for file in weight_files(source, hub):
        if file.suffix == SAFETENSORS:
            with safe_open(file, "pt") as weights:
                counts.update(weights.get_slice(name).get_dtype() for name in weights.keys())  # noqa: SIM118
    floats = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    return [floats[name] for name, _ in counts.most_common() if name in floats]


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

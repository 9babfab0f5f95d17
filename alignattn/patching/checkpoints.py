"""Load a patched model that was saved with `save_pretrained`."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from alignattn.attention.config import AttentionConfig
from alignattn.models.build import saved_class
from alignattn.patching import CHILD_NAME, LOADING_HINT, patch
from alignattn.patching.adapter_files import adapter_description, adapter_fields, base_model_of, load_adapter
from alignattn.patching.state_dicts import convert_state_before
from alignattn.support.errors import AlignAttnError, one_line

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""What the Hub can name a model; longer paths, and those from `.`, `~` or the root, are folders."""

HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""The keyword arguments of `from_pretrained` that say where a file is found."""

DEFAULT_IMPLEMENTATION = "sdpa"
"""What the attention of a function-changing patch stands on if the caller asks for nothing else."""

SLOT_MARKER = f".{CHILD_NAME}."
"""What the state-dict keys of the slots' own parameters have in common, after a dot."""


def from_pretrained(path: str | Path, auto_class: Any, **kwargs: Any) -> PreTrainedModel:
    """Load a model saved from a patched one, and patch it again: equal outputs, the slots' trained parameters included.

        model = alignattn.from_pretrained("out", AutoModelForSequenceClassification)

    Args:
        path: a folder written by `save_pretrained`, or a Hub id; of a model, or of an adapter of peft, which names
            its model.
        auto_class: an `AutoModelFor…` class or a model class of transformers.
        **kwargs: as for `auto_class.from_pretrained`; of an adapter also `is_trainable`, whether it is to be trained
            on (not by default).

    Returns:
        The patched model in evaluation mode; a plain one if the checkpoint names no patch. Of an adapter, a
        `peft.PeftModel` around it.

    Raises:
        AlignAttnError: if there is no checkpoint at `path`, or the slots' parameters in it do not fit.
    """
    try:
        return load_with_missing(path, auto_class, **kwargs)[0]
    except OSError as error:
        raise unloadable(str(path), error) from error


def load_with_missing(path: str | Path, auto_class: Any, **kwargs: Any) -> tuple[PreTrainedModel, frozenset[str]]:
    """Load a model as `from_pretrained` does, and say which weights its checkpoint lacks.

    Args:
        path: a folder written by `save_pretrained`, or a Hub id.
        auto_class: an `AutoModelFor…` class or a model class of transformers.
        **kwargs: as for `auto_class.from_pretrained`.

    Returns:
        The model, and the names of its weights that are random; a weight tied to one that is there is not.

    Raises:
        OSError: if there is no checkpoint at `path`.
        AlignAttnError: if the slots' parameters in it do not fit.
    """
    hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
    adapter = adapter_fields(str(path), hub)
    if adapter is not None:
        return _load_adapted(str(path), adapter, auto_class, hub, kwargs)
    fields, _ = PreTrainedConfig.get_config_dict(str(path), **hub)
    model_class = saved_class(fields) or auto_class
    if fields.get("attn_implementation") == LOADING_HINT:
        has_interface = getattr(model_class, "_supports_sdpa", True)  # an Auto class does not say
        kwargs.setdefault("attn_implementation", DEFAULT_IMPLEMENTATION if has_interface else "eager")
    with _without_report_of_slots():
        model, report = auto_class.from_pretrained(str(path), **kwargs | {"output_loading_info": True})
    if CHILD_NAME in fields:
        patch(model, AttentionConfig.from_dict(fields[CHILD_NAME]))
        _load_slots(model, str(path), hub)
    return model, frozenset(report["missing_keys"])


def _load_adapted(
    path: str, fields: dict[str, Any], auto_class: Any, hub: dict[str, Any], kwargs: dict[str, Any]
) -> tuple[PreTrainedModel, frozenset[str]]:
    base = base_model_of(path, fields)
    description = adapter_description(path, hub)
    # The head is made for these labels. What says where the adapter is found says nothing of its model, but for these.
    kept = {name: value for name, value in kwargs.items() if name not in ("is_trainable", "revision", "subfolder")}
    labels = description.get("labels", {}) if "config" not in kwargs and "num_labels" not in kwargs else {}
    if "id2label" in labels:
        labels["id2label"] = {int(number): label for number, label in labels["id2label"].items()}
    kwargs_of_base = labels | kept
    model, missing = load_with_missing(base, auto_class, **kwargs_of_base)
    options = {"is_trainable": kwargs.get("is_trainable", False)} | hub
    return load_adapter(model, path, fields, description, **options), missing


def unloadable(
    name: str, error: Exception, choices: str = "a folder, or a Hub id that is cached or reachable"
) -> AlignAttnError:
    """Return the error, in one line, for a model that transformers could not load.

    Args:
        name: the model as the user named it.
        error: what transformers raised; of a folder that does not exist it speaks as of a Hub id.
        choices: what to give instead.
    """
    reason = one_line(error)
    if not Path(name).exists():
        reason = f"there is no such folder here, and: {reason}" if HUB_ID.fullmatch(name) else "there is no such folder"
    return AlignAttnError(f"cannot load the model {name!r}: {reason} (give {choices})")


def _load_slots(model: PreTrainedModel, path: str, hub: dict[str, Any]) -> None:
    expected = {name: tensor for name, tensor in model.state_dict().items() if _is_of_slots(name)}
    saved = dict(_saved_slots(path, hub)) if expected else {}
    convert_state_before(model, saved, "")
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


def _is_of_slots(name: str) -> bool:
    return SLOT_MARKER in f".{name}"


def _renamed(name: str, expected: dict[str, Tensor], prefix: str) -> str:
    if name in expected:
        return name
    return name.removeprefix(prefix) if name.startswith(prefix) else prefix + name


def _saved_slots(path: str, hub: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for file in _weight_files(path, hub):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - a safe_open handle is not iterable
                if _is_of_slots(name):
                    yield name, weights.get_tensor(name)


def _weight_files(path: str, hub: dict[str, Any]) -> list[str]:
    optional = {"_raise_exceptions_for_missing_entries": False}
    whole = cached_file(path, SAFE_WEIGHTS_NAME, **optional, **hub)
    if whole is not None:
        return [whole]
    index = cached_file(path, SAFE_WEIGHTS_INDEX_NAME, **optional, **hub)
    if index is None:
        raise AlignAttnError(f"{path!r} holds no {SAFE_WEIGHTS_NAME}: save the model with save_pretrained")
    file_of = json.loads(Path(index).read_text())["weight_map"]
    shards = sorted({file for name, file in file_of.items() if _is_of_slots(name)})
    return [str(cached_file(path, shard, **hub)) for shard in shards]


@contextmanager
def _without_report_of_slots() -> Iterator[None]:
    """Silence the table of unexpected keys that transformers prints: the slots' keys are loaded right after."""
    logger = logging.getLogger("transformers.modeling_utils")

    def is_not_report(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not ("LOAD REPORT" in message and f"{CHILD_NAME}." in message and "MISSING" not in message)

    logger.addFilter(is_not_report)
    try:
        yield
    finally:
        logger.removeFilter(is_not_report)

"""The one door by which every checkpoint comes in: what does not fit it is refused, what is odd is said in one line."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import transformers
from safetensors import safe_open
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from alignattn.attention.config import AttentionConfig
from alignattn.models.build import saved_class
from alignattn.models.packaged import model_source
from alignattn.patching import CHILD_NAME, LOADING_HINT, patch
from alignattn.patching.adapter_files import adapter_description, adapter_fields, base_model_of, load_adapter
from alignattn.patching.state_dicts import convert_state_before
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.network import say_hub

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""What the Hub can name a model; longer paths, and those from `.`, `~` or the root, are folders."""

FILE_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
"""The keyword arguments of `from_pretrained` that say where a file is found."""

CHOICES = "a folder, or a Hub id that is cached or reachable"
"""What a user may give as a model."""

DEFAULT_IMPLEMENTATION = "sdpa"
"""What the attention of a function-changing patch stands on if the caller asks for nothing else."""

SLOT_MARKER = f".{CHILD_NAME}."
"""What the state-dict keys of the slots' own parameters have in common, after a dot."""

POOLER = "pooler."
"""How the names of an encoder's own pooler begin: checkpoints of encoders that were trained without it are whole."""

logger = logging.getLogger(__name__)


def from_pretrained(path: str | Path, auto_class: Any, **kwargs: Any) -> PreTrainedModel:
    """Load a model saved from a patched one, and patch it again: equal outputs, the slots' trained parameters included.

        model = alignattn.from_pretrained("out", AutoModelForSequenceClassification)

    Args:
        path: a folder written by `save_pretrained`, a Hub id, or the name of a packaged model; of a model, or of an
            adapter of peft, which names its model.
        auto_class: an `AutoModelFor…` class or a model class of transformers.
        **kwargs: as for `auto_class.from_pretrained`; of an adapter also `is_trainable`, whether it is to be trained
            on (not by default).

    Returns:
        The patched model in evaluation mode; a plain one if the checkpoint names no patch. What of its head is new, and
        what of the checkpoint is not used, is logged in one line. Of an adapter, a `peft.PeftModel` around it.

    Raises:
        AlignAttnError: if there is no whole checkpoint at `path`: weights of the encoder are not there, do not fit its
            config or are not finite; or the slots' parameters in it do not fit.
    """
    return load_checkpoint(str(path), auto_class, **kwargs)


def load_pretrained(
    name: str, auto_class: Any, *, tokenizer_options: Mapping[str, Any] = MappingProxyType({}), **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer; arguments and errors as of `load_checkpoint` and `load_tokenizer`."""
    model = load_checkpoint(name, auto_class, **kwargs)
    return model, load_tokenizer(name, model, **tokenizer_options)


def load_checkpoint(
    name: str,
    auto_class: Any,
    *,
    with_slots: bool = True,
    lacking: str | None = None,
    choices: str = CHOICES,
    ignore_mismatched_sizes: bool = False,
    **kwargs: Any,
) -> PreTrainedModel:
    """Load a model as `from_pretrained` does.

    Args:
        name: a folder, a Hub id or a packaged model.
        auto_class: an `AutoModel…` class or a model class of transformers.
        with_slots: whether a saved patch is restored.
        lacking: the part that a checkpoint without all weights does not hold, and what a user may do then; None where a
            head may be new.
        choices: what a user may give instead of a checkpoint that cannot be loaded.
        ignore_mismatched_sizes: whether a head of another size is taken for none.
        **kwargs: as for `auto_class.from_pretrained`.
    """
    source = model_source(name)
    hub = {option: kwargs[option] for option in FILE_OPTIONS if option in kwargs}
    with loading(name, choices):
        adapter = adapter_fields(source, hub)
        if adapter is not None:
            return _load_adapted(source, adapter, auto_class, hub, kwargs | {"lacking": lacking})
        fields, _ = PreTrainedConfig.get_config_dict(source, **hub)
        model_class = saved_class(fields) or auto_class
        if fields.get("attn_implementation") == LOADING_HINT:
            has_interface = getattr(model_class, "_supports_sdpa", True)  # an Auto class does not say
            kwargs.setdefault("attn_implementation", DEFAULT_IMPLEMENTATION if has_interface else "eager")
        with _without_report():
            model, report = auto_class.from_pretrained(
                source, **kwargs | {"output_loading_info": True, "ignore_mismatched_sizes": True}
            )
        _check_family(name, model.config, fields)
        _check_whole(name, model, report, lacking, ignore_mismatched_sizes)
        if with_slots and CHILD_NAME in fields:
            patch(model, AttentionConfig.from_dict(fields[CHILD_NAME]))
            _load_slots(model, source, hub, kwargs.get("variant"))
    odd = [weight for weight, values in model.named_parameters() if not values.is_meta and not values.isfinite().all()]
    if odd:
        raise AlignAttnError(f"{name} holds {len(odd)} weights that are not finite, such as {odd[0]}: give another")
    left = {weight for weight in report["unexpected_keys"] if CHILD_NAME not in fields or not _is_of_slots(weight)}
    said = {"start random, which it does not hold": _new_weights(report), "that it holds are not used": left}
    parts = [f"{len(names)} weight(s) {what} (such as {min(names)})" for what, names in said.items() if names]
    if parts:
        logger.warning("%s: %s", name, "; ".join(parts))
    return model


def _load_adapted(
    path: str, fields: dict[str, Any], auto_class: Any, hub: dict[str, Any], kwargs: dict[str, Any]
) -> PreTrainedModel:
    base = base_model_of(path, fields)
    description = adapter_description(path, hub)
    # The head is made for these labels. What says where the adapter is found says nothing of its model, but for these.
    kept = {name: value for name, value in kwargs.items() if name not in ("is_trainable", "revision", "subfolder")}
    labels = description.get("labels", {}) if "config" not in kwargs and "num_labels" not in kwargs else {}
    if "id2label" in labels:
        labels["id2label"] = {int(number): label for number, label in labels["id2label"].items()}
    kwargs_of_base = labels | kept
    model = load_checkpoint(base, auto_class, **kwargs_of_base)
    options = {"is_trainable": kwargs.get("is_trainable", False)} | hub
    adapted: PreTrainedModel = load_adapter(model, path, fields, description, **options)
    return adapted


def load_tokenizer(name: str, model: PreTrainedModel, **kwargs: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; one that knows no words, or some that the model does not, is refused.

    Args:
        name: as for `load_checkpoint`.
        model: that was loaded by that name.
        **kwargs: as for `AutoTokenizer.from_pretrained`.
    """
    with loading(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_source(name), **kwargs)
        vocabulary = tokenizer.get_vocab()
    # Of a folder without a tokenizer's files transformers makes one that knows nothing else, and does not say so.
    if vocabulary.keys() <= set(tokenizer.all_special_tokens):
        raise AlignAttnError(f"{name!r} holds no tokenizer: save the model's own there with save_pretrained")
    rows, largest = getattr(model.config, "vocab_size", None), max(vocabulary.values())
    if rows is not None and largest >= rows:
        raise AlignAttnError(
            f"the tokenizer of {name!r} has more tokens than the model: token {largest}, and {rows} rows of embeddings"
        )
    return tokenizer


@contextmanager
def loading(name: str, choices: str = CHOICES) -> Iterator[None]:
    """Turn what transformers raises of a checkpoint into one line.

    Args:
        name: the model as the user named it.
        choices: what to give instead.
    """
    if HUB_ID.fullmatch(name) and not Path(model_source(name)).exists():
        say_hub(f"the model {name}")
    try:
        yield
    except AlignAttnError:
        raise
    # A file that is cut, empty, or of something else makes the libraries beneath raise errors of any class.
    except Exception as error:
        # Of a folder that does not exist transformers speaks as of a Hub id.
        reason = one_line(error)
        if not isinstance(error, OSError | ValueError):
            reason = f"it is damaged ({type(error).__name__}: {reason})"
        if not Path(model_source(name)).exists():
            reason = (
                f"there is no such folder here, and: {reason}" if HUB_ID.fullmatch(name) else "there is no such folder"
            )
        raise AlignAttnError(f"cannot load the model {name!r}: {reason} (give {choices})") from error


def _check_family(name: str, config: PreTrainedConfig, fields: Mapping[str, Any]) -> None:
    """Refuse one family's weights under the name of another, which bare ones fit: positions and norms do not."""
    for architecture in fields.get("architectures") or ():
        if getattr(getattr(transformers, architecture, None), "config_class", type(config)) is not type(config):
            raise AlignAttnError(
                f"{name} holds a {architecture}, and its config.json is of {config.model_type!r}: correct that"
            )


def _check_whole(name: str, model: PreTrainedModel, report: Any, lacking: str | None, may_differ: bool) -> None:
    needed = {weight for weight in _new_weights(report) if _is_needed(weight, model, is_whole=lacking is not None)}
    needed |= set() if may_differ else {weight for weight, *_ in report["mismatched_keys"]}
    if needed:
        part = lacking or f"whole {type(model).__name__}, as its config.json describes one"
        raise AlignAttnError(
            f"{name} holds no {part} ({len(needed)} weights are not there or of another size, such as {min(needed)})"
        )


def _new_weights(report: Any) -> set[str]:
    return {*report["missing_keys"], *(weight for weight, *_ in report["mismatched_keys"])}


def _is_needed(weight: str, model: PreTrainedModel, *, is_whole: bool) -> bool:
    """Whether a checkpoint is no good without a weight; a head may be new, and the pooler, which encoders may lack."""
    encoder = "" if model.base_model is model else f"{model.base_model_prefix}."
    is_of_encoder = weight.startswith(encoder) and not weight.removeprefix(encoder).startswith(POOLER)
    return is_of_encoder or (is_whole and encoder != "")


def _load_slots(model: PreTrainedModel, path: str, hub: dict[str, Any], variant: str | None) -> None:
    expected = {name: tensor for name, tensor in model.state_dict().items() if _is_of_slots(name)}
    saved = dict(_saved_slots(path, hub, variant)) if expected else {}
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


def _saved_slots(path: str, hub: dict[str, Any], variant: str | None) -> Iterator[tuple[str, Tensor]]:
    for file in _weight_files(path, hub, variant):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - a safe_open handle is not iterable
                if _is_of_slots(name):
                    yield name, weights.get_tensor(name)


def _weight_files(path: str, hub: dict[str, Any], variant: str | None) -> list[str]:
    optional = {"_raise_exceptions_for_missing_entries": False}
    whole = cached_file(path, _of_variant(SAFE_WEIGHTS_NAME, variant), **optional, **hub)
    if whole is not None:
        return [whole]
    index = cached_file(path, _of_variant(SAFE_WEIGHTS_INDEX_NAME, variant), **optional, **hub)
    if index is None:
        raise AlignAttnError(f"{path!r} holds no {SAFE_WEIGHTS_NAME}: save the model with save_pretrained")
    file_of = json.loads(Path(index).read_text())["weight_map"]
    shards = sorted({file for name, file in file_of.items() if _is_of_slots(name)})
    return [str(cached_file(path, shard, **hub)) for shard in shards]


def _of_variant(name: str, variant: str | None) -> str:
    """The name of a file of weights that `save_pretrained(variant=)` writes: the variant stands before the suffix."""
    stem, _, suffix = name.rpartition(".")
    return name if variant is None else f"{stem}.{variant}.{suffix}"


@contextmanager
def _without_report() -> Iterator[None]:
    """Silence the table of keys that transformers prints: one line of it is logged, and the slots' are loaded after."""
    transformers_logger = logging.getLogger("transformers.modeling_utils")

    def is_not_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    transformers_logger.addFilter(is_not_report)
    try:
        yield
    finally:
        transformers_logger.removeFilter(is_not_report)

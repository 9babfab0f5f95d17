"""Build models from scratch for the words of a run's rows, and register them with transformers."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from alignattn.models import MODEL_TYPE_PREFIX, MODELS
from alignattn.models.words import build_tokenizer, embedding_matrix, read_embeddings
from alignattn.tasks import Task
from alignattn.utils.errors import AlignAttnError, did_you_mean, one_line, shown

FIELDS_OF_THE_DATA = (
    "answer_words",
    "crf_tags",
    "feature_width",
    "num_features",
    "num_labels",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "pixel_deviation",
    "pixel_mean",
    "sentence_ends",
    "target_vocab_size",
    "ties_answers",
    "vocab_size",
)

OF_HARD_ATTENTION = ("reward_weight", "entropy_weight")
"""Fields that only hard attention uses."""


@dataclass(frozen=True)
class BuildContext:
    """The inputs for building a model from scratch.

    Attributes:
        task: the task to train on.
        rows: the training rows; they define the vocabulary.
        seed: seed of the weights.
        embeddings: a file of word vectors, or None.
        skip_bad_rows: skip bad lines of that file.
        config_fields: fields of the model's config that differ from its defaults, such as `hidden_dim`.
    """

    task: Task
    rows: datasets.Dataset
    seed: int
    embeddings: Path | None = None
    skip_bad_rows: bool | None = None
    config_fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EmbeddingsReport:
    """The origin of a model's word vectors.

    Args:
        file: of word vectors; None if all are random.
        words: number of words, without padding and unknown.
        found: number of words with a vector in the file.
        bad_lines: as in `Embeddings`.
    """

    file: str | None
    words: int
    found: int
    bad_lines: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class BuiltModel:
    """A model to train, and its tokenizer.

    Attributes:
        model: in evaluation mode.
        tokenizer: the tokenizer or image processor saved with the model; None if its rows need none.
        embeddings: the origin of the word vectors, if the model has any.
        remark: one line on the rows, printed before training, or None.
    """

    model: PreTrainedModel
    tokenizer: Any
    embeddings: EmbeddingsReport | None = None
    remark: str | None = None


def build_word_model(
    model_class: type[Any],
    texts: Iterable[str],
    context: BuildContext,
    *,
    num_labels: int,
    of_data: Callable[[PreTrainedTokenizerFast], Mapping[str, Any]] | None = None,
) -> BuiltModel:
    """Build an untrained model with word vectors, `embedding`, and its tokenizer, and register it with transformers.

    Args:
        model_class: its config has `vocab_size`, `pad_token_id` and `embedding_dim`, and `train_embeddings` if word
            vectors can be frozen; `reads_pairs` and `whole_words` are those of `build_tokenizer`.
        texts: the source of the vocabulary; all other words are unknown.
        context: without its file of embeddings all word vectors are random and trained, even those of `da`, which are
            otherwise frozen.
        num_labels: number of classes; 1 for a regression.
        of_data: returns further config fields that depend on the rows, given the tokenizer.
    """
    fields, embeddings = checked_fields(context.config_fields, model_class.config_class), context.embeddings
    tokenizer = build_tokenizer(texts, reads_pairs=model_class.reads_pairs, whole_words=model_class.whole_words)
    words = tokenizer.get_vocab().keys() - tokenizer.all_special_tokens
    read = None if embeddings is None else read_embeddings(embeddings, words, skip_bad_rows=context.skip_bad_rows)
    if read is None and hasattr(model_class.config_class, "train_embeddings"):
        fields = {"train_embeddings": True} | fields
    if read is not None and fields.setdefault("embedding_dim", read.dim) != read.dim:
        raise AlignAttnError(
            f"embedding_dim is {fields['embedding_dim']}, but the vectors in {embeddings} have {read.dim}"
        )
    fields |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "num_labels": num_labels}
    fields |= of_data(tokenizer) if of_data else {}
    model = build_model(model_class, fields, context.seed)
    if read is None:
        return BuiltModel(model, tokenizer, EmbeddingsReport(None, len(words), 0))
    model.embedding.weight.data.copy_(embedding_matrix(tokenizer, read.vectors, context.seed))
    report = EmbeddingsReport(str(embeddings), len(words), len(read.vectors), read.bad_lines)
    return BuiltModel(model, tokenizer, report)


def saved_class(config_fields: Mapping[str, Any]) -> type[Any] | None:
    """Return the class of `MODELS` of a saved config, and register it with transformers; None for other models.

    Afterwards the `Auto…` classes of transformers can load the folder.

    Args:
        config_fields: the content of a saved `config.json`.
    """
    model_type = str(config_fields.get("model_type"))
    name = model_type.removeprefix(MODEL_TYPE_PREFIX)
    if name == model_type or name not in MODELS:
        return None
    model_class: type[Any] = MODELS.load(name)
    _register(model_class)
    return model_class


def _register(model_class: type[Any]) -> None:
    config_class = model_class.config_class
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    model_class.auto_class.register(config_class, model_class, exist_ok=True)


def checked_fields(given: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """Return a user's fields of a model's config; integers become floats where the config has a float.

    All integer fields are counts of at least 1: units, filters, words, heads, layers, hops.

    Raises:
        AlignAttnError: if a field is determined by the data, is unknown, or has an invalid value.
    """
    inherited = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    allowed = [
        field.name for field in dataclasses.fields(config_class) if field.name not in inherited | {*FIELDS_OF_THE_DATA}
    ]
    defaults, fields = config_class(), dict(given)
    for name, value in given.items():
        if name in FIELDS_OF_THE_DATA:
            raise AlignAttnError(f"the data determine {name}: leave it out")
        if name not in allowed:
            raise AlignAttnError(
                f"{config_class.__name__} has no field {name!r}{did_you_mean(name, allowed, aside=True)}"
            )
        if expected := _unmet(name, value, getattr(defaults, name)):
            raise AlignAttnError(f"{name} is {shown(value)} and must be {expected}: correct it")
        if isinstance(getattr(defaults, name), float):
            fields[name] = float(value)
    try:
        config_class(**fields)
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise AlignAttnError(f"{config_class.__name__}: {one_line(error)}") from error
    return fields


def _unmet(name: str, value: Any, default: Any) -> str:
    """The requirement that a field's value violates; empty if none."""
    if isinstance(default, list | tuple):
        are_counts = isinstance(value, list | tuple) and all(map(_is_count, value))
        return "" if are_counts else "a list of whole numbers from 1"
    if name == "dropout":
        return "" if _is_finite(value) and 0 <= value < 1 else "a number from 0, below 1"
    if name in OF_HARD_ATTENTION:
        return "" if _is_finite(value) and value >= 0 else "a finite number from 0"
    if isinstance(default, float):
        return "" if _is_finite(value) else "a finite number"
    if isinstance(default, bool) or not isinstance(default, int):
        return ""
    if name == "filter_width":
        return "" if _is_count(value) and value % 2 else "an odd number from 1"
    return "" if _is_count(value) else "a whole number from 1"


def _is_finite(value: Any) -> bool:
    # Integers beyond the range of floats are not finite.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def build_model(model_class: type[Any], fields: Mapping[str, Any], seed: int) -> Any:
    """Return an untrained model in evaluation mode, and register its class with transformers.

    Args:
        model_class: the class of the model.
        fields: fields of its config.
        seed: seed of its weights; the global generator does not change.
    """
    _register(model_class)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return model_class(model_class.config_class(**fields)).train(False)
        except (StrictDataclassError, TypeError, ValueError, RuntimeError) as error:
            raise AlignAttnError(f"{model_class.__name__} cannot be built: {one_line(error)}") from error

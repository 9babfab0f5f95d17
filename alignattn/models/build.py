"""The baselines by name: from texts and a file of word vectors to a model that can be trained."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerFast

from alignattn.models.decomposable_attention import DecomposableAttentionForSequenceClassification
from alignattn.models.esim import EsimForSequenceClassification
from alignattn.models.sentence_pair import SentencePairClassifier, SentencePairConfig
from alignattn.models.words import Embeddings, build_tokenizer, embedding_matrix, read_embeddings
from alignattn.support.errors import AlignAttnError, one_line

BASELINES: dict[str, type[SentencePairClassifier]] = {
    "da": DecomposableAttentionForSequenceClassification,
    "esim": EsimForSequenceClassification,
}

# What each baseline is trained with, as fields of `TrainingArguments`. Optimizer, learning rate, batch size and ESIM's
# clipping are those of `decomposable_attention.jsonnet` and `esim.jsonnet` (allenai/allennlp-models,
# training_config/pair_classification): its Adagrad runs at PyTorch's learning rate, and Adam is AdamW without decay.
# Ours are the numbers of epochs (theirs are 140 and 75, stopped early), the schedule of ESIM (theirs halves the rate
# when the development set stalls) and DA's clipping by norm (theirs clips each number at 5).
BASELINE_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "da": {
        "optim": "adagrad",
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 5.0,
        "per_device_train_batch_size": 64,
        "num_train_epochs": 30,
    },
    "esim": {
        "optim": "adamw_torch",
        "learning_rate": 4e-4,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.0,
        "max_grad_norm": 10.0,
        "per_device_train_batch_size": 64,
        "num_train_epochs": 10,
    },
}

FIELDS_OF_THE_DATA = ("num_labels", "pad_token_id", "vocab_size")


@dataclass(frozen=True)
class EmbeddingsReport:
    """Where a model's word vectors come from.

    Args:
        file: the file of word vectors; None = all are random.
        words: number of words, without padding and unknown.
        found: how many of them have a vector of the file.
        bad_lines: as in `Embeddings`.
    """

    file: str | None
    words: int
    found: int
    bad_lines: tuple[tuple[int, str], ...] = ()


def build_baseline(
    name: str,
    texts: Iterable[str],
    *,
    num_labels: int,
    embeddings: Path | None,
    seed: int,
    skip_bad_rows: bool = False,
    config_fields: Mapping[str, Any] | None = None,
) -> tuple[SentencePairClassifier, PreTrainedTokenizerFast, EmbeddingsReport]:
    """Build an untrained baseline and its tokenizer.

    Args:
        name: `da` or `esim`.
        texts: what the vocabulary is made of. Words of other texts are unknown to the model.
        num_labels: number of classes; 1 for a regression.
        embeddings: a file of word vectors, as for `read_embeddings`. Without one all word vectors are random, and both
            models train them: the fixed vectors that `da` otherwise reads would tell it nothing of the words' meanings.
        seed: of all that is random; the global generator is left as it was.
        skip_bad_rows: as for `read_embeddings`.
        config_fields: fields of the model's config that differ from the published ones, such as `hidden_dim`.

    Returns:
        The model in evaluation mode, its tokenizer, and where the word vectors come from.

    Raises:
        AlignAttnError: the name or a field is unknown, a field does not fit, the texts hold no word, or the file cannot
            be read.
    """
    if name not in BASELINES:
        raise AlignAttnError(f"unknown baseline {name!r}: choose one of {', '.join(BASELINES)}")
    fields = dict(config_fields or {})
    _check_fields(fields, BASELINES[name].config_class)
    tokenizer = build_tokenizer(texts)
    words = tokenizer.get_vocab().keys() - tokenizer.all_special_tokens
    read = None if embeddings is None else read_embeddings(embeddings, words, skip_bad_rows=skip_bad_rows)
    if read is None:
        fields = {"train_embeddings": True} | fields
    elif fields.setdefault("embedding_dim", read.dim) != read.dim:
        raise AlignAttnError(
            f"embedding_dim is {fields['embedding_dim']}, but the vectors of {embeddings} have {read.dim}"
        )
    fields |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "num_labels": num_labels}
    model = _build_model(BASELINES[name], fields, seed)
    if read is not None:
        model.embedding.weight.data.copy_(embedding_matrix(tokenizer, read.vectors, seed))
    return model, tokenizer, _report(embeddings, len(words), read)


def _check_fields(fields: Mapping[str, Any], config_class: type[SentencePairConfig]) -> None:
    known = config_class()
    for field in fields:
        if field in FIELDS_OF_THE_DATA:
            raise AlignAttnError(f"{field} follows from the data: do not set it")
        if not hasattr(known, field):
            raise AlignAttnError(f"{config_class.__name__} has no field {field!r}")


def _build_model(
    model_class: type[SentencePairClassifier], fields: dict[str, Any], seed: int
) -> SentencePairClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return model_class(model_class.config_class(**fields)).train(False)
        except (StrictDataclassError, TypeError, ValueError, RuntimeError) as error:
            raise AlignAttnError(f"{model_class.__name__} cannot be built: {one_line(error)}") from error


def _report(file: Path | None, words: int, read: Embeddings | None) -> EmbeddingsReport:
    if read is None:
        return EmbeddingsReport(None, words, 0)
    return EmbeddingsReport(str(file), words, len(read.vectors), read.bad_lines)

"""Converts tags of words to labels of word pieces, and a model's outputs back to tags of words.

A tokenizer splits each word of a row into pieces, and the first piece carries the word's tag.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DataCollatorForTokenClassification, PreTrainedTokenizerBase

from alignattn.tasks.labels import is_code
from alignattn.tasks.tags.entities import OUTSIDE
from alignattn.tasks.task import check_finite, map_rows
from alignattn.utils.errors import AlignAttnError, listing, shown

IGNORED = -100
"""The label of a piece that is not the first of its word; `torch.nn.functional.cross_entropy` ignores it."""

WORDS_READ = "words_read"
"""Column that marks the words with a piece left after truncation."""

WORD_STARTS = "word_starts"
"""Column that marks the pieces that begin a word; some models take it as an argument."""


def tag_names(values: Iterable[Any], feature_names: Sequence[str], origin: str) -> tuple[str, ...]:
    """Return the tags of a training split in the order of the model's outputs; values that are no tags are ignored.

    Args:
        values: the tags of every row, class numbers as text.
        feature_names: the names of the dataset's class numbers (`datasets.ClassLabel.names`); may be empty.
        origin: the origin of the rows, for messages.

    Returns:
        `feature_names` if there are any; otherwise the names, sorted, `O` first, or the numbers in order. Codes such as
        01 are names.
    """
    if feature_names:
        return tuple(feature_names)
    rows = list(values)
    names = {tag for tags in rows if _is_list(tags) for tag in tags if isinstance(tag, str) and tag}
    if not names:
        raise AlignAttnError(
            f"{origin} has no tags (its first row has {shown(rows[0])}): give lists of words and of tags, in "
            "Parquet, JSON lines or CoNLL"
        )
    if not all(name.removeprefix("-").isdecimal() for name in names) or any(map(is_code, names)):
        return tuple(sorted(names, key=lambda name: (name != OUTSIDE, name)))
    numbers = sorted(map(int, names))
    if numbers != list(range(len(numbers))):
        raise AlignAttnError(
            f"the numbers of the {len(numbers)} tags of {origin} are from {numbers[0]} to {numbers[-1]}: number "
            "them from 0 without gaps, or give names"
        )
    return tuple(map(str, numbers))


def tag_problem(tokens: Any, tags: Any, names: tuple[str, ...]) -> str | None:
    """Return the problem of a row, as the end of a message after "row 3 of FILE:", or None.

    Args:
        tokens: the row's words.
        tags: the row's tags.
        names: the tags of the training split, from `tag_names`.
    """
    if not _is_list(tags):
        return f"its tags are {shown(tags)}, not a list" if _is_list(tokens) else words_problem(tokens)
    if _is_list(tokens) and len(tokens) != len(tags):
        return f"it has {len(tokens)} tokens and {len(tags)} tags"
    if problem := words_problem(tokens):
        return problem
    for position, tag in enumerate(tags, start=1):
        if tag not in names:
            return f"its tag {position}, {shown(tag)}, is not in the training split ({listing(names)})"
    return None


def words_problem(tokens: Any) -> str | None:
    """Return the problem of the words of a row, as `tag_problem` does."""
    if not _is_list(tokens):
        return f"its tokens are {shown(tokens)}, not a list"
    if not tokens:
        return "it has no tokens"
    for position, token in enumerate(tokens, start=1):
        if token == "":
            return f"its token {position} is empty"
        if not isinstance(token, str):
            return f"its token {position} is {shown(token)}, not text"
    return None


def _is_list(values: object) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a tokenizer splits a list of words as it splits their text.

    Byte-level BPE tokenizers (RoBERTa, ModernBERT, GPT-2) do so only with `add_prefix_space=True`. Without it they read
    each word as if it were the first of a text, in other pieces than in pretraining, and transformers 5.23 does not
    warn. Its `TokenizersBackend` (ModernBERT's) accepts the argument and ignores it.
    """
    name = tokenizer.name_or_path or type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise AlignAttnError(
            f"tokenizer {name} is slow, and tagging needs a fast one: choose a model with a fast tokenizer"
        )
    words = ["a", "a"]
    if tokenizer(words, is_split_into_words=True)["input_ids"] != tokenizer(" ".join(words))["input_ids"]:
        raise AlignAttnError(
            f"tokenizer {name} does not separate the words of a list: load it with add_prefix_space=True, set "
            "backend_tokenizer.pre_tokenizer.add_prefix_space, or choose another model"
        )


def encode_tags(
    dataset: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    names: tuple[str, ...],
    *,
    max_length: int,
    num_proc: int | None = None,
) -> datasets.Dataset:
    """Tokenize tagged sentences, one sequence per row, without padding.

    `TagCollator` pads each batch. The Trainer removes the columns that the model does not read: `words_read`, and
    usually `word_starts`.

    Args:
        dataset: a column of words and one of tags, in which `tag_problem` finds nothing.
        tokenizer: the model's tokenizer.
        names: the tags of the training split, from `tag_names`.
        max_length: the maximum number of tokens per row, special tokens included.
        num_proc: the number of processes that tokenize; this one when None.

    Returns:
        `input_ids`, `attention_mask`, `token_type_ids` if the model has them; `labels`, the number of a word's tag at
        its first piece and -100 elsewhere; `word_starts`, 1 at these pieces and 0 elsewhere; and `words_read`, one
        Boolean per word: False if `max_length` truncates it, or if the tokenizer returns no piece for it (BERT's for a
        control character).
    """
    check_tokenizer(tokenizer)
    return map_rows(
        dataset,
        _encode_batch,
        input_columns=dataset.column_names,
        fn_kwargs={"tokenizer": tokenizer, "names": names, "max_length": max_length},
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        desc="tokenizing tagged words",
    )


def _encode_batch(
    rows: list[list[str]],
    row_tags: list[list[str]],
    tokenizer: PreTrainedTokenizerBase,
    names: tuple[str, ...],
    max_length: int,
) -> dict[str, list[Any]]:
    encoding = tokenizer(rows, is_split_into_words=True, truncation=True, max_length=max_length)
    tag_ids = {name: tag_id for tag_id, name in enumerate(names)}
    labels, words_read = [], []
    for row, tags in enumerate(row_tags):
        words = encoding.word_ids(row)
        # From the end, so that the first piece of each word is kept.
        firsts = {words[position]: position for position in reversed(range(len(words))) if words[position] is not None}
        row_labels = [IGNORED] * len(words)
        for word, position in firsts.items():
            row_labels[position] = tag_ids[tags[word]]
        labels.append(row_labels)
        words_read.append([word in firsts for word in range(len(tags))])
    word_starts = [[int(label != IGNORED) for label in row_labels] for row_labels in labels]
    return {**encoding, "labels": labels, WORD_STARTS: word_starts, WORDS_READ: words_read}


def word_tags(
    logits: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    names: tuple[str, ...],
    words_read: Iterable[Sequence[bool]],
    decoded: NDArray[np.integer[Any]] | None = None,
) -> list[list[str]]:
    """Return the predicted tag of every word of every row.

    A word that the model does not read is predicted `O`, so that its entity counts as missed. The example of
    transformers (`run_ner.py`) also leaves such words out of the gold tags, which raises its recall.

    Args:
        logits: the model's outputs, `[N, n, C]`, padded to the longest row.
        labels: the labels of `encode_tags`, `[N, n]`, -100 wherever no word begins and in the padding.
        names: the tags, C of them.
        words_read: the column `words_read` of `encode_tags`, N rows with one Boolean per word.
        decoded: the numbers of the tags that the model decodes itself, `[N, n]`; if None, the largest logit decides.
    """
    if logits.ndim != 3 or logits.shape != (*labels.shape, len(names)):
        raise ValueError(f"logits {logits.shape} must be [N, n, {len(names)}] for labels {labels.shape}")
    at_words = labels != IGNORED
    outputs = logits[at_words]
    check_finite(outputs)
    predicted = np.array(names, dtype=object)[outputs.argmax(axis=-1) if decoded is None else decoded[at_words]]
    counts = at_words.sum(axis=1)
    ends = np.cumsum(counts)
    rows: list[list[str]] = []
    for read, end, count in zip(words_read, ends, counts, strict=True):
        if sum(read) != count:
            raise ValueError(f"row {len(rows)} has {count} labels and {sum(read)} words that are read")
        tags = np.full(len(read), OUTSIDE, dtype=object)
        tags[np.array(read, dtype=bool)] = predicted[end - count : end]
        rows.append(tags.tolist())
    return rows


class TagCollator(DataCollatorForTokenClassification):
    """Pads like the collator of transformers, and also pads the column of word starts, if the rows have it."""

    def torch_call(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch of encoded rows."""
        starts = [list(feature[WORD_STARTS]) for feature in features if WORD_STARTS in feature]
        others = [{name: value for name, value in feature.items() if name != WORD_STARTS} for feature in features]
        batch: dict[str, Any] = super().torch_call(others)  # type: ignore[no-untyped-call]
        if starts:
            length, pads_left = batch["input_ids"].shape[1], self.tokenizer.padding_side == "left"
            gaps = [[0] * (length - len(row)) for row in starts]
            rows = [gap + row if pads_left else row + gap for row, gap in zip(starts, gaps, strict=True)]
            batch[WORD_STARTS] = torch.tensor(rows)
        return batch

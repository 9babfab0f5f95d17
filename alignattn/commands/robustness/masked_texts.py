"""Texts for the training of a masked-language head: reading, splitting, encoding and masking."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any

import datasets
from transformers import BatchEncoding, DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from alignattn.robustness.masked_head import masked_positions
from alignattn.tasks.reading import read_file
from alignattn.tasks.task import TABLES
from alignattn.utils.compression import plain_suffix
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_text

HELD_OUT_SHARE = 0.05
MIN_TEXTS = 2


def read_texts(paths: Sequence[Path], columns: Sequence[str] | None) -> list[str]:
    """Return the distinct nonblank texts of files in their order.

    Args:
        paths: tables, by their endings; any other file holds one text per line.
        columns: the text columns of the tables.
    """
    tables = [path for path in paths if plain_suffix(path) in TABLES]
    if columns and not tables:
        raise AlignAttnError(f"--text_columns is for tables ({', '.join(TABLES)}), not lines of text: leave it out")
    parts = [_table_texts(path, columns) if path in tables else _lines(path) for path in paths]
    # Distinct, so that no held-out text is also trained on.
    texts = list(dict.fromkeys(text.strip() for text in chain.from_iterable(parts) if text.strip()))
    if len(texts) < MIN_TEXTS:
        names = ", ".join(str(path) for path in paths)
        raise AlignAttnError(f"{names}: {len(texts)} distinct text(s): give at least {MIN_TEXTS} (one is held out)")
    return texts


def split_texts(texts: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Return the texts to train on, and a held-out twentieth, at least one, both in their order."""
    num_held_out = max(1, int(HELD_OUT_SHARE * len(texts)))
    held_out = set(random.Random(seed).sample(range(len(texts)), num_held_out))  # noqa: S311 - no secret
    return (
        [text for index, text in enumerate(texts) if index not in held_out],
        [text for index, text in enumerate(texts) if index in held_out],
    )


def encode_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> datasets.Dataset:
    """Return encoded texts: `input_ids`, `attention_mask`, `special_tokens_mask`, and whether each is truncated."""

    def encode(rows: dict[str, list[str]]) -> dict[str, Any]:
        whole = tokenizer(rows["text"], return_special_tokens_mask=True, verbose=False)
        cut = tokenizer(rows["text"], truncation=True, max_length=max_length, return_special_tokens_mask=True)
        lengths = zip(whole["input_ids"], cut["input_ids"], strict=True)
        return {**cut, "is_cut": [len(long) > len(short) for long, short in lengths]}

    rows = datasets.Dataset.from_dict({"text": list(texts)})
    return rows.map(encode, batched=True, remove_columns=["text"], desc="tokenize")


def masked_batches(
    encoded: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    mlm_probability: float,
    batch_size: int,
    seed: int,
) -> list[BatchEncoding]:
    """Return fixed batches for the masked accuracy, in which every chosen token becomes the mask token.

    Args:
        encoded: the output of `encode_texts`.
        tokenizer: the model's.
        mlm_probability: the share of masked tokens.
        batch_size: texts per batch.
        seed: the seed of the choice of tokens.
    """
    collator = DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=mlm_probability, mask_replace_prob=1, random_replace_prob=0, seed=seed
    )
    rows = sorted(encoded.remove_columns("is_cut").to_list(), key=lambda row: len(row["input_ids"]))
    batches = [collator(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    if not any(masked_positions(batch).any() for batch in batches):
        raise AlignAttnError(
            f"no token of the {len(rows)} held-out texts is masked: give more texts or a higher --mlm_probability"
        )
    return batches


def most_frequent_token(encoded: datasets.Dataset) -> int:
    """Return the id of the most frequent token of encoded texts, special tokens excluded."""
    counts: Counter[int] = Counter()
    for tokens, is_special in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True):
        counts.update(compress(tokens, (not special for special in is_special)))
    if not counts:
        raise AlignAttnError("the training texts contain no tokens: give other texts with --train_file")
    return counts.most_common(1)[0][0]


def _lines(path: Path) -> list[str]:
    # Not splitlines(), which also splits at characters that a text may contain.
    return read_text(path, "give --train_file FILE").split("\n")


def _table_texts(path: Path, columns: Sequence[str] | None) -> list[str]:
    table = read_file(path)
    there = f"there: {', '.join(table.column_names)}"
    if not columns:
        raise AlignAttnError(f"{path} is a table: name its text columns with --text_columns ({there})")
    texts: list[str] = []
    for name in columns:
        if name not in table.column_names:
            raise AlignAttnError(f"--text_columns: {path} has no column {name!r} ({there})")
        for number, value in enumerate(table[name], start=1):
            if not isinstance(value, str):
                raise AlignAttnError(
                    f"row {number} of {path}: column {name!r} is {value!r}, which is not text: correct it"
                )
            texts.append(value)
    return texts

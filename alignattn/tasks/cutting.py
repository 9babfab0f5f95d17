"""Rows that are longer than what a model is given of them: how many, and what length would do."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from alignattn.tasks.cut_rows import CutRows
from alignattn.tasks.kind import EncodedSplit
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.task import Task

WHOLE_SHARE = 0.99
"""Of the rows that a length is to hold whole."""

INPUT = "input_ids"
"""The column whose lists are the rows' tokens."""

UNLIMITED = 2**31 - 1
"""More tokens than any row has."""


def cut_rows(task: Task, split: EncodedSplit, processor: Any) -> CutRows | None:
    """Return which rows of a split are cut; None where none is, or where long rows are not cut.

    Args:
        task: that the rows are of.
        split: the rows and what the model is given of them.
        processor: of the model, as it encoded them.
    """
    return cut_of(count_lengths(task, split, processor), split.options.max_length)


def cut_of(counts: Mapping[int, int], max_length: int) -> CutRows | None:
    """Return which rows are cut; None where none is.

    Args:
        counts: how many rows have so many tokens.
        max_length: of the tokens that the model is given.
    """
    total, cut = sum(counts.values()), sum(count for length, count in counts.items() if length > max_length)
    if not cut:
        return None
    lengths = sorted(counts)
    place = math.ceil(WHOLE_SHARE * (total - 1))
    whole = lengths[int(np.searchsorted(np.cumsum([counts[length] for length in lengths]), place, side="right"))]
    return CutRows(cut, cut / total, max_length, whole)


def count_lengths(task: Task, split: EncodedSplit, processor: Any) -> Counter[int]:
    """Return how many rows of a split have so many tokens before any is cut; nothing where long rows are not cut.

    Arguments as of `cut_rows`.
    """
    kind, longest = kind_of(task), split.options.max_length
    if not (kind.reads_texts and kind.cuts_rows and INPUT in split.encoded.column_names):
        return Counter()
    lengths = _lengths(split.encoded)
    (full,) = np.nonzero(lengths >= longest)
    if len(full):
        with _without_limit(processor):
            options = replace(split.options, max_length=UNLIMITED, num_proc=None)
            lengths[full] = _lengths(kind.encode(task, split.rows.select(full), processor, options))
    return Counter(lengths.tolist())


@contextmanager
def _without_limit(processor: Any) -> Iterator[None]:
    limit, processor.model_max_length = processor.model_max_length, UNLIMITED
    try:
        yield
    finally:
        processor.model_max_length = limit


def _lengths(encoded: datasets.Dataset) -> NDArray[np.int64]:
    """The tokens of each row, of several sequences those of the longest, `[N]`."""
    column = encoded.with_format("arrow")[:][INPUT]
    if not pa.types.is_nested(column.type.value_type):
        return np.array(pc.list_value_length(column), dtype=np.int64)
    return np.array([max(map(len, row)) for row in column.to_pylist()], dtype=np.int64)

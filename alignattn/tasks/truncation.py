"""Rows that are longer than what a model is given of them: how many, and what length would do."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.processors import processor_for
from alignattn.tasks.task import Task
from alignattn.tasks.truncated_rows import TruncatedRows, truncated_of

INPUT, WRITTEN = "input_ids", "labels"
"""The columns whose lists are the rows' tokens, and those that are to be written."""

UNLIMITED = 2**31 - 1
"""More tokens than any row has."""


def truncated_rows(task: Task, split: EncodedSplit, processor: Any) -> TruncatedRows | None:
    """Return which rows of a split are cut; None where none is, or where long rows are not cut.

    Args:
        task: that the rows are of.
        split: the rows and what the model is given of them.
        processor: of the model, as it encoded them.
    """
    return truncated_of(count_lengths(task, split, processor), split.options.max_length)


def count_lengths(task: Task, split: EncodedSplit, processor: Any) -> Counter[int]:
    """Return how many rows of a split have so many tokens before any is cut; nothing where long rows are not cut.

    Arguments as of `truncated_rows`.
    """
    kind, longest = processor_for(task), split.options.max_length
    counted = [INPUT, WRITTEN] if kind.is_generative else [INPUT]
    columns = [name for name in counted if name in split.encoded.column_names]
    if not (kind.reads_texts and kind.truncates_rows and columns):
        return Counter()
    lengths = _lengths(split.encoded, columns)
    (full,) = np.nonzero(lengths >= longest)
    if len(full):
        with _without_limit(processor):
            options = replace(split.options, max_length=UNLIMITED, num_proc=None)
            lengths[full] = _lengths(kind.encode(task, split.rows.select(full), processor, options), columns)
    return Counter(lengths.tolist())


@contextmanager
def _without_limit(processor: Any) -> Iterator[None]:
    limit, processor.model_max_length = processor.model_max_length, UNLIMITED
    try:
        yield
    finally:
        processor.model_max_length = limit


def _lengths(encoded: datasets.Dataset, columns: Sequence[str]) -> NDArray[np.int64]:
    """The tokens of each row, of several sequences those of the longest, `[N]`."""
    table = encoded.with_format("arrow")[:]
    return np.max([lengths_of(table[name]) for name in columns], axis=0)


def lengths_of(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return how many tokens the rows of a column have, `[N]`; of several sequences, as of choices, the longest."""
    if not pa.types.is_nested(column.type.value_type):
        return np.array(pc.list_value_length(column), dtype=np.int64)
    return np.array([max(map(len, row)) for row in column.to_pylist()], dtype=np.int64)

"""Truncated tokens and unknown words of rows, which a model does not read. This module has no heavy imports."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from alignattn.tasks.task import NEEDED_LENGTH, WINDOW_OF, Task
from alignattn.tasks.task_types import processor_for
from alignattn.utils.attributes import replaced

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from alignattn.tasks.processor import EncodedSplit

INPUT, TARGET = "input_ids", "labels"
"""The columns of a row's tokens and of the tokens to generate."""

UNLIMITED = 2**31 - 1
"""Larger than the number of tokens of any row."""

COVERED_SHARE = 0.99
"""Share of the rows that the suggested length covers."""

MANY_UNKNOWN = 0.2
"""Share of unknown words in a split above which a run warns: without every fifth word a text is hardly readable."""


@dataclass(frozen=True)
class TruncatedRows:
    """The truncated rows of a split.

    Attributes:
        rows: the number of truncated rows.
        share: their share of all rows of the split.
        max_length: the maximum number of tokens per row.
        length_of_99_percent: the length that covers 99 % of the rows.
    """

    rows: int
    share: float
    max_length: int
    length_of_99_percent: int

    def __str__(self) -> str:
        """Return the truncation in words."""
        enough = f"{self.length_of_99_percent} would cover 99 %"
        if self.length_of_99_percent <= self.max_length:
            enough = "it covers 99 %"
        return f"--max_length {self.max_length} truncates {100 * self.share:.1f} % of the rows; {enough}"

    @classmethod
    def from_lengths(cls, counts: Mapping[int, int], max_length: int) -> "TruncatedRows | None":
        """Return the truncated rows, or None if there are none.

        Args:
            counts: the number of rows of each length in tokens.
            max_length: the maximum number of tokens per row.
        """
        total = sum(counts.values())
        truncated = sum(count for length, count in counts.items() if length > max_length)
        if not truncated:
            return None
        lengths = sorted(counts)
        place = math.ceil(COVERED_SHARE * (total - 1))
        covering = lengths[bisect_right(list(accumulate(counts[length] for length in lengths)), place)]
        return cls(truncated, truncated / total, max_length, covering)


def truncated_rows(task: Task, split: "EncodedSplit", tokenizer: Any) -> TruncatedRows | None:
    """Return the truncated rows of a split; None if there are none, or if the task type does not truncate.

    Args:
        task: the task of the rows.
        split: the rows and their encoding.
        tokenizer: the tokenizer of the encoding.
    """
    return TruncatedRows.from_lengths(count_lengths(task, split, tokenizer), split.options.max_length)


def count_lengths(task: Task, split: "EncodedSplit", tokenizer: Any) -> Counter[int]:
    """Return the number of rows of each length before truncation; empty if the task type does not truncate.

    For rows that are read in windows it is the `max_length` that truncates nothing, at least the current one.

    Arguments as for `truncated_rows`.
    """
    import numpy as np

    processor, longest = processor_for(task), split.options.max_length
    if split.options.has_windows:
        windows = split.encoded.with_format("numpy")[:]
        firsts = np.unique(windows[WINDOW_OF], return_index=True)[1]
        return Counter(windows[NEEDED_LENGTH][firsts].tolist())
    counted = [INPUT, TARGET] if processor.is_generative else [INPUT]
    columns = [name for name in counted if name in split.encoded.column_names]
    if not (processor.reads_texts and processor.truncates_rows and columns):
        return Counter()
    lengths = _lengths(split.encoded, columns)
    (full,) = np.nonzero(lengths >= longest)
    if len(full):
        with replaced(tokenizer, model_max_length=UNLIMITED):
            options = replace(split.options, max_length=UNLIMITED, num_proc=None)
            lengths[full] = _lengths(processor.encode(split.rows.select(full), tokenizer, options), columns)
    return Counter(lengths.tolist())


def _lengths(encoded: "datasets.Dataset", columns: Sequence[str]) -> "NDArray[np.int64]":
    """The number of tokens of each row, or of its longest sequence if it has several, `[N]`."""
    import numpy as np

    table = encoded.with_format("arrow")[:]
    return np.max([lengths_of(table[name]) for name in columns], axis=0)


def lengths_of(column: "pa.ChunkedArray") -> "NDArray[np.int64]":
    """Return the number of tokens of each row, `[N]`; that of the longest sequence if a row has several (choices)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_nested(column.type.value_type):
        return np.array(pc.list_value_length(column), dtype=np.int64)
    return np.array([max(map(len, row)) for row in column.to_pylist()], dtype=np.int64)


def unknown_share(split: "EncodedSplit", tokenizer: Any) -> float:
    """Return the share of a split's words that the tokenizer does not know, 0 to 1."""
    counts = _count_words(split, tokenizer)
    return float(counts[0].sum() / max(counts.sum(), 1))


def count_unknown_rows(split: "EncodedSplit", tokenizer: Any) -> int:
    """Return the number of rows with words that are all unknown to the tokenizer."""
    unknown, known = _count_words(split, tokenizer)
    return int(((unknown > 0) & (known == 0)).sum())


def unknown_rows_warning(count: int) -> str:
    """Return the warning about rows without a known word."""
    return f"{count} row(s) have no word of the model's vocabulary: their predictions are meaningless"


def _count_words(split: "EncodedSplit", tokenizer: Any) -> "NDArray[np.int64]":
    """The numbers of unknown and of known words of each row, `[2, N]`."""
    import numpy as np
    import pyarrow.compute as pc

    rows = len(split.rows)
    if getattr(tokenizer, "unk_token_id", None) is None or INPUT not in split.encoded.column_names:
        return np.zeros((2, rows), dtype=np.int64)
    column = split.encoded.with_format("arrow")[:][INPUT]
    ids, row_of_id = np.array(pc.list_flatten(column)), np.array(pc.list_parent_indices(column))
    if WINDOW_OF in split.encoded.column_names:
        row_of_id = np.array(split.encoded[WINDOW_OF][:])[row_of_id]
    groups = (ids == tokenizer.unk_token_id, ~np.isin(ids, tokenizer.all_special_ids))
    return np.stack([np.bincount(row_of_id[group], minlength=rows) for group in groups])

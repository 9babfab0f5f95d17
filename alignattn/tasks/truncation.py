"""Truncated rows, and rows of unknown words, which a model does not read. This module has no heavy imports."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alignattn.tasks.names import IS_TRUNCATED, WINDOW_OF
from alignattn.tasks.question_answering import QuestionAnswering
from alignattn.tasks.task import EncodedSplit, Task
from alignattn.utils.errors import plural

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

INPUT, TARGET = "input_ids", "labels"
"""The columns of a row's tokens and of the tokens to generate."""


@dataclass(frozen=True)
class TruncatedRows:
    """The rows of a split that are as long as `--max_length`: what is longer is truncated.

    Attributes:
        rows: the number of these rows.
        share: their share of all rows of the split.
        max_length: the maximum number of tokens per row; per question if `of_questions`.
        of_questions: whether the questions of the rows are truncated, whose contexts are read in windows.
    """

    rows: int
    share: float
    max_length: int
    of_questions: bool = False

    def __str__(self) -> str:
        """Return the truncation in words."""
        share = f"{100 * self.share:.1f} % of the rows"
        if self.of_questions:
            return f"{share} have a question of more than {self.max_length} tokens, which is truncated"
        return f"{share} reach --max_length {self.max_length}; what is longer is truncated"


def truncated_rows(task: Task, split: EncodedSplit) -> TruncatedRows | None:
    """Return the rows of a split that reach `--max_length`; None if there are none, or the task type truncates none.

    Of rows that are read in windows, they are those whose shorter text or question is truncated.

    Args:
        task: the task of the rows.
        split: the rows and their encoding.
    """
    import numpy as np

    max_length, of_questions = split.options.max_length, isinstance(task, QuestionAnswering)
    counted = [INPUT, TARGET] if task.is_generative else [INPUT]
    columns = [name for name in counted if name in split.encoded.column_names]
    if IS_TRUNCATED in split.encoded.column_names:
        row_of = "row" if of_questions else WINDOW_OF
        windows = split.encoded.select_columns([row_of, IS_TRUNCATED]).with_format("numpy")[:]
        count = len(np.unique(windows[row_of][windows[IS_TRUNCATED]]))
        if count and of_questions:
            from alignattn.tasks.answers.windows import max_question_tokens

            max_length = max_question_tokens(split.tokenizer, max_length, split.options.doc_stride)
    elif task.reads_texts and task.truncates_rows and columns:
        table = split.encoded.with_format("arrow")[:]
        count = int((np.max([lengths_of(table[name]) for name in columns], axis=0) >= max_length).sum())
    else:
        count = 0
    return TruncatedRows(count, count / len(split.rows), max_length, of_questions) if count else None


def windows_hint(task: Task, splits: Iterable[EncodedSplit]) -> str:
    """Return how a run could read truncated rows whole, for the end of a line on them; empty if it cannot."""
    can_read_all = task.can_pool_windows and not any(split.options.has_windows for split in splits)
    return ", and --long_texts windows reads all of each" if can_read_all else ""


def lengths_of(column: "pa.ChunkedArray") -> "NDArray[np.int64]":
    """Return the number of tokens of each row, `[N]`; that of the longest sequence if a row has several (choices)."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_nested(column.type.value_type):
        return np.array(pc.list_value_length(column), dtype=np.int64)
    return np.array([max(map(len, row)) for row in column.to_pylist()], dtype=np.int64)


def count_unknown_rows(split: EncodedSplit, tokenizer: Any) -> int:
    """Return the number of rows with words that are all unknown to the tokenizer."""
    import numpy as np
    import pyarrow.compute as pc

    if getattr(tokenizer, "unk_token_id", None) is None or INPUT not in split.encoded.column_names:
        return 0
    column = split.encoded.with_format("arrow")[:][INPUT]
    ids, row_of_id = np.array(pc.list_flatten(column)), np.array(pc.list_parent_indices(column))
    if WINDOW_OF in split.encoded.column_names:
        row_of_id = np.array(split.encoded[WINDOW_OF][:])[row_of_id]
    unknown = np.unique(row_of_id[ids == tokenizer.unk_token_id])
    known = np.unique(row_of_id[~np.isin(ids, tokenizer.all_special_ids)])
    return len(np.setdiff1d(unknown, known))


def unknown_rows_warning(count: int) -> str:
    """Return the warning about rows without a known word."""
    return f"{plural(count, 'row')} without a word of the model's vocabulary: their predictions are meaningless"

"""Words of rows that a model does not know: one from nothing knows those of its training rows alone."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.truncation import INPUT

MANY = 0.2
"""Of the words of a split. Where every fifth is passed over, a text is hardly read."""


def unknown_share(split: EncodedSplit, processor: Any) -> float:
    """Return which share of the words of a split is unknown, 0 to 1.

    Args:
        split: the rows and what the model is given of them.
        processor: of the model, as it encoded them.
    """
    counts = _counts(split, processor)
    return float(counts[0].sum() / max(counts.sum(), 1))


def count_unknown_rows(split: EncodedSplit, processor: Any) -> int:
    """Return how many rows of a split hold words, and none that is known; arguments as of `unknown_share`."""
    unknown, known = _counts(split, processor)
    return int(((unknown > 0) & (known == 0)).sum())


def told_of_unknown_rows(count: int) -> str:
    """Return what is said of rows without a word that the model knows."""
    return f"{count} row(s) hold no word that the model knows: what is predicted of them says nothing"


def _counts(split: EncodedSplit, processor: Any) -> NDArray[np.int64]:
    """The unknown and the known words of each row, `[2, N]`."""
    rows = len(split.encoded)
    if getattr(processor, "unk_token_id", None) is None or INPUT not in split.encoded.column_names:
        return np.zeros((2, rows), dtype=np.int64)
    column = split.encoded.with_format("arrow")[:][INPUT]
    ids, row_of_id = np.array(pc.list_flatten(column)), np.array(pc.list_parent_indices(column))
    kinds = (ids == processor.unk_token_id, ~np.isin(ids, processor.all_special_ids))
    return np.stack([np.bincount(row_of_id[kind], minlength=rows) for kind in kinds])

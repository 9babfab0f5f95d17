"""What the task types share: problems of texts, the encoding of rows, tables of predictions.

This module has no heavy imports.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alignattn.utils.errors import AlignAttnError, shown

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

TEXT_DTYPES = ("string", "large_string", "string_view")
"""The types of a column of texts, as `datasets` names them."""

_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Unicode's categories of blanks, of control characters such as NUL, and of zero-width characters."""


def text_problem(place: str, text: Any, *, may_be_empty: bool = False) -> str | None:
    """Return the problem of a text, or None; `place` is where it is, such as "column 'a'"."""
    if text is not None and not isinstance(text, str):
        return f"{place} is not text ({shown(text)})"
    if text is None or not (may_be_empty or text.strip()):
        return f"{place} is empty"
    if not may_be_empty and all(unicodedata.category(character) in _INVISIBLE for character in text):
        return f"{place} has no visible character ({shown(text)})"
    return None


def text_problems(dataset: datasets.Dataset, columns: Sequence[str], *, may_be_empty: bool = False) -> dict[int, str]:
    """Return the problem of the first bad text of each bad row, by the row's index from 0."""
    problems: dict[int, str] = {}
    for column in reversed(columns):
        found = (text_problem(f"column {column!r}", text, may_be_empty=may_be_empty) for text in dataset[column][:])
        problems |= by_row(found)
    return problems


def by_row(problems: Iterable[str | None]) -> dict[int, str]:
    """Return the problems of rows by index, given one per row or None."""
    return {index: problem for index, problem in enumerate(problems) if problem is not None}


def map_rows(dataset: datasets.Dataset, function: Callable[..., dict[str, list[Any]]], **options: Any) -> Any:
    """Return `dataset.map(function, batched=True, **options)`, without a hash if the dataset is not cached on disk.

    Hashing a tokenizer takes a tenth of a second or more, as long as encoding a hundred rows.
    """
    from datasets.fingerprint import generate_random_fingerprint

    if not dataset.cache_files:
        options["new_fingerprint"] = generate_random_fingerprint()
    return dataset.map(function, batched=True, **options)


def check_max_length(task_name: str, tokenizer: PreTrainedTokenizerBase, max_length: int, num_texts: int) -> None:
    """Refuse a length without room for a token of each text, or beyond the model's maximum."""
    # Below the smallest length the tokenizer silently does not truncate at all.
    smallest = tokenizer.num_special_tokens_to_add(pair=num_texts > 1) + num_texts
    if not smallest <= max_length <= tokenizer.model_max_length:
        raise AlignAttnError(
            f"--max_length {max_length} is out of range: task {task_name!r} needs at least {smallest} tokens per row, "
            f"and the model takes at most {tokenizer.model_max_length}"
        )


def name_classes(config: PreTrainedConfig, labels: Sequence[str]) -> None:
    """Set the names, and with them the number, of a model's outputs."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def check_present(names: Sequence[str], counts: NDArray[np.int64]) -> None:
    """Refuse to balance classes if one has no training row.

    Args:
        names: the class names, `[C]`.
        counts: the number of training rows of each class, `[C]`.
    """
    if missing := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise AlignAttnError(
            f"--class_weights balanced: no training row of class {missing[0]!r}: add some, or give weights by name"
        )


def check_finite(outputs: NDArray[Any]) -> None:
    """Refuse NaN and infinity, which argmax would silently turn into a class."""
    import numpy as np

    if not np.isfinite(outputs).all():
        raise AlignAttnError(
            "the model's outputs hold NaN or infinity: the training diverged; lower the learning rate or the alignment "
            "weight"
        )


def evaluation_table(dataset: datasets.Dataset, columns: Mapping[str, pa.Array], predictions: pa.Table) -> pa.Table:
    """Return the numbers of the rows, columns of the rows such as `label`, and their predictions."""
    import numpy as np
    import pyarrow as pa

    predicted = dict(zip(predictions.column_names, predictions.columns, strict=True))
    return pa.table({"row": pa.array(np.arange(len(dataset))), **columns, **predicted})


def best_first(probabilities: NDArray[np.float64], names: pa.Array, top_k: int | None) -> pa.Array:
    """Return one list of `{label, probability}` per row, best first.

    Args:
        probabilities: `[N, C]`.
        names: the label names, `[C]`.
        top_k: the number of labels to list; all if None.
    """
    import numpy as np
    import pyarrow as pa

    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    values = np.take_along_axis(probabilities, order, axis=1)
    pairs = pa.StructArray.from_arrays(
        [names.take(pa.array(order.ravel())), pa.array(values.ravel())], ["label", "probability"]
    )
    return pa.ListArray.from_arrays(np.arange(len(order) + 1, dtype=np.int32) * order.shape[1], pairs)

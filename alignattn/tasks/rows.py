"""The rows of a task, checked: columns are there, texts are not empty, labels are in range.

Rows are counted from 1 in every message; a CSV file's header is not a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
from numpy.typing import NDArray

from alignattn.errors import AlignAttnError
from alignattn.tasks.labels import (
    UserLabel,
    labelled_rows,
    numeric_labels,
    parse_user_labels,
    user_label_numbers,
    user_task,
)
from alignattn.tasks.sources import hub_origin, read_file, read_hub, split_path
from alignattn.tasks.task import Task

TRAIN = "train"
VALIDATION = "validation"
DERIVED_SHARE = 10
"""One in so many training rows makes the validation split of a data set that has none."""
DERIVED_SEED = 42
"""One draw for all runs, whatever their seed: they are compared on the same rows."""

_MOST_TEXTS = 2  # what a tokenizer joins into one sequence


@dataclass(frozen=True)
class Rows:
    """The labelled rows of a task; each data set has the task's text columns and its label column.

    Attributes:
        train: The rows to train on; None where they were not asked for.
        evaluation: The rows to evaluate on, by the name of the split.
        dropped: How many unlabelled rows (label -1) each split lost.
        derived: How a split came about that the data set does not have, by its name.
    """

    train: datasets.Dataset | None
    evaluation: dict[str, datasets.Dataset]
    dropped: dict[str, int]
    derived: dict[str, str] = field(default_factory=dict)


def load_rows(
    task: Task, *, need_train: bool = True, data_dir: str | Path | None = None, cache_dir: str | None = None
) -> Rows:
    """Loads the splits of a task from the Hub, or from `<data_dir>/<task.folder>/<split>.parquet`.

    Args:
        task: One of `alignattn.tasks.TASKS`.
        need_train: False where the rows are only evaluated on; then no train split need exist.
        data_dir: A folder of Parquet files in the Hub's column names; the Hub when None.
        cache_dir: Where `datasets` keeps what it read; its own default when None.

    Raises:
        AlignAttnError: A split is missing or cannot be read, a column is missing, a label is out of range, or
            a text of a file is empty. On the Hub an empty text is taken as published: a user cannot mend it.
    """
    derived = (VALIDATION,) if task.derives_validation else ()
    names = ((TRAIN,) if need_train or derived else ()) + tuple(
        name for name in task.evaluation_splits if name not in derived
    )
    splits: dict[str, datasets.Dataset] = {}
    dropped: dict[str, int] = {}
    for name in names:
        if data_dir is None:
            origin = hub_origin(task, name)
            dataset = read_hub(task, name, cache_dir)
        else:
            path = split_path(task, name, data_dir)
            origin = str(path)
            dataset = read_file(path, cache_dir)
        dataset = _select_columns(dataset, task.text_columns, task.label_column, origin)
        _check_texts(dataset, task.text_columns, origin, may_be_empty=data_dir is None)
        labels = numeric_labels(dataset[task.label_column][:], origin)
        splits[name], dropped[name] = _labelled(task, dataset, labels, origin)
    train = splits.pop(TRAIN, None)
    if not derived:
        return Rows(train, splits, dropped)
    assert train is not None
    rest, tenth = _without_a_tenth(train)
    how = f"{len(tenth)} of the {len(train)} training rows, drawn with seed {DERIVED_SEED}"
    return Rows(rest if need_train else None, {VALIDATION: tenth} | splits, dropped, {VALIDATION: how})


def _without_a_tenth(dataset: datasets.Dataset) -> tuple[datasets.Dataset, datasets.Dataset]:
    """The other nine tenths of the rows and a tenth drawn at random, each in the order of the data set."""
    order = np.random.default_rng(DERIVED_SEED).permutation(len(dataset))
    count = max(1, len(dataset) // DERIVED_SHARE)
    return dataset.select(np.sort(order[count:])), dataset.select(np.sort(order[:count]))


def load_user_rows(
    train_file: str | Path,
    validation_file: str | Path | None,
    text_columns: Sequence[str],
    label_column: str,
    *,
    cache_dir: str | None = None,
) -> tuple[Task, Rows]:
    """Loads a user's own files and the task that their labels pose.

    Integers 0 to C-1 are classes, names are classes in alphabetical order, real numbers are a regression. The
    training file decides; the validation file is read by its classes.

    Args:
        train_file: A CSV, JSON lines or Parquet file.
        validation_file: Another, or None: then there is nothing to evaluate on.
        text_columns: One or two columns of text.
        label_column: The column of labels.
        cache_dir: Where `datasets` keeps what it read; its own default when None.

    Returns:
        The task, named "user", and its rows; `evaluation` has the one split "validation" or none.

    Raises:
        AlignAttnError: A file cannot be read, a column is missing, a text is empty, or a label is wrong.
    """
    _check_column_choice(text_columns, label_column)
    files = {TRAIN: train_file} | ({} if validation_file is None else {VALIDATION: validation_file})
    read = {name: _read_user_file(Path(file), text_columns, label_column, cache_dir) for name, file in files.items()}
    _, train_labels = read[TRAIN]
    task = user_task(train_labels, text_columns, label_column, str(train_file))
    splits: dict[str, datasets.Dataset] = {}
    dropped: dict[str, int] = {}
    for name, (dataset, labels) in read.items():
        origin = str(files[name])
        numbers = user_label_numbers(task, labels, origin)
        splits[name], dropped[name] = _labelled(task, dataset, numbers, origin)
    return task, Rows(splits.pop(TRAIN), splits, dropped)


def max_samples(dataset: datasets.Dataset, count: int | None) -> datasets.Dataset:
    """The first `count` rows, as transformers' examples take them; all rows where `count` is None.

    Raises:
        AlignAttnError: `count` is smaller than 1.
    """
    if count is None:
        return dataset
    if count < 1:
        raise AlignAttnError(f"cannot take {count} rows: the largest number of samples must be at least 1")
    return dataset.select(range(min(count, len(dataset))))


def _read_user_file(
    path: Path, text_columns: Sequence[str], label_column: str, cache_dir: str | None
) -> tuple[datasets.Dataset, list[UserLabel]]:
    origin = str(path)
    dataset = _select_columns(read_file(path, cache_dir), text_columns, label_column, origin)
    _check_texts(dataset, text_columns, origin)
    return dataset, parse_user_labels(dataset[label_column][:], origin)


def _check_column_choice(text_columns: Sequence[str], label_column: str) -> None:
    if not 1 <= len(text_columns) <= _MOST_TEXTS:
        raise AlignAttnError(f"--text_columns takes one or two columns, not {len(text_columns)}")
    if len({*text_columns, label_column}) <= len(text_columns):
        raise AlignAttnError(
            f"a column is named twice: --text_columns {' '.join(text_columns)} --label_column {label_column}"
        )


def _select_columns(
    dataset: datasets.Dataset, text_columns: Sequence[str], label_column: str, origin: str
) -> datasets.Dataset:
    columns = [*text_columns, label_column]
    for column in columns:
        if column not in dataset.column_names:
            there = ", ".join(dataset.column_names)
            raise AlignAttnError(f"{origin} has no column {column!r}: choose among {there}")
    return dataset.select_columns(columns)


def _check_texts(
    dataset: datasets.Dataset, text_columns: Sequence[str], origin: str, *, may_be_empty: bool = False
) -> None:
    for column in text_columns:
        for row, text in enumerate(dataset[column][:], start=1):
            if text is not None and not isinstance(text, str):
                raise AlignAttnError(
                    f"column {column!r} of {origin} is no text (row {row}: {text!r}): choose another column"
                )
            if text is None or not (may_be_empty or text.strip()):
                raise AlignAttnError(
                    f"column {column!r} is empty in row {row} of {origin}: fill it in, or leave the row out"
                )


def _labelled(
    task: Task, dataset: datasets.Dataset, labels: NDArray[np.float64], origin: str
) -> tuple[datasets.Dataset, int]:
    """The rows that have a label, which becomes float64 or int64, and how many have none."""
    has_label = labelled_rows(task, labels, origin)
    column = labels if task.is_regression else labels.astype(np.int64)
    dataset = dataset.remove_columns(task.label_column).add_column(task.label_column, column)
    if has_label.all():
        return dataset, 0
    return dataset.select(np.flatnonzero(has_label)), int((~has_label).sum())

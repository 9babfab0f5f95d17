"""Loads and checks the rows of a task: columns exist, texts are not empty, labels are valid.

Messages count rows from 1; a CSV file's header is not a row.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import datasets
import numpy as np
from numpy.typing import NDArray

from alignattn.tasks.image_classification import ImageClassification
from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.labels import class_names, only_item, parse_label
from alignattn.tasks.names import FIRST, MAX_TEXTS, TRAIN, VALIDATION
from alignattn.tasks.reading import PARQUET, read_rows, reason_of
from alignattn.tasks.sampling import SAMPLING_SEED, sample_rows
from alignattn.tasks.task import Task
from alignattn.tasks.text_classification import TextClassification
from alignattn.tasks.user_labels import (
    UserLabels,
    has_integer_names,
    label_hints,
    read_user_labels,
    share_names,
    user_label_column,
    user_task,
)
from alignattn.utils.bad_rows import BadRow, list_bad_rows, numbers_without
from alignattn.utils.compression import plain_stem
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.network import log_download

NUMBER = "__number__"
"""Temporary column with the numbers of the rows, while some are left out."""
DERIVED_SHARE = 10
"""A derived validation split has one in this many training rows."""
T = TypeVar("T", bound=Task)
U = TypeVar("U", TextClassification, ImageClassification)


@dataclass(frozen=True)
class Rows(Generic[T]):
    """The good, labelled rows of a task.

    Attributes:
        task: The task, completed from its training rows and its files.
        train: The rows to train on; empty if they were not asked for.
        evaluation: The rows to evaluate on, by split.
        dropped: The number of unlabelled rows (label -1) left out of each split.
        bad_rows: The bad rows left out, by split; splits without any have no entry.
        derived: How a split was made that the data set does not have, or which part of it is used, by split.
        left_out: The numbers, from 0, of the rows of each split that are left out.
    """

    task: T
    train: datasets.Dataset
    evaluation: dict[str, datasets.Dataset]
    dropped: dict[str, int]
    bad_rows: dict[str, list[BadRow]] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, frozenset[int]] = field(default_factory=dict)

    def numbered(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of an evaluation split with their numbers in the file, from 0."""
        yield from zip(numbers_without(self.left_out.get(split, ())), self.evaluation[split], strict=False)


@dataclass(frozen=True)
class _RawSplit:
    """The rows of a split as read.

    Attributes:
        dataset: the rows.
        origin: their source, for messages.
        is_published: whether the rows are published, so that the user cannot correct them.
        problems: known problems of rows, by index.
    """

    dataset: datasets.Dataset
    origin: str
    is_published: bool = False
    problems: Mapping[int, str] = field(default_factory=dict)


def load_rows(
    task: T,
    *,
    need_train: bool = True,
    data_dir: str | Path | None = None,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    slice_by: str | None = None,
) -> Rows[T]:
    """Load the splits of a task: from `<data_dir>/<folder>/<split>.parquet`, its own files, or the Hub.

    Args:
        task: one of `alignattn.tasks.TASKS`, or a custom one.
        need_train: whether to load the train split, too.
        data_dir: a folder of Parquet files with the Hub's column names; when None, the task's files or else the Hub.
        cache_dir: the cache of `datasets`; when None, its default for downloads, and no cache for files.
        skip_bad_rows: whether to leave out and list bad rows; None if the command has no such option.
        slice_by: another column, which the evaluation rows must have and which is kept.
    """
    names = tuple(name for name in task.evaluation_splits if name != VALIDATION or not task.derives_validation)
    if need_train or task.derives_validation:
        names = (TRAIN, *names)
    rows = _checked(
        task, {name: _read_split(task, name, data_dir, cache_dir) for name in names}, skip_bad_rows, slice_by
    )
    if not task.derives_validation:
        return rows
    order = np.random.default_rng(SAMPLING_SEED).permutation(len(rows.train))
    derived = _derive_validation(rows, np.sort(order[: max(1, len(order) // DERIVED_SHARE)]))
    # The tenth is left out of training even if it is not evaluated: all runs train on the same rows.
    asked = {name: dataset for name, dataset in derived.evaluation.items() if name in task.evaluation_splits}
    return replace(derived, evaluation=asked, train=derived.train if need_train else datasets.Dataset.from_dict({}))


def load_task_files(
    task: T,
    train_file: str | Path,
    validation_file: str | Path | None,
    *,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    encoding: str | None = None,
    slice_by: str | None = None,
) -> Rows[T]:
    """Load a user's files with rows of a task, in the task's columns.

    Args:
        task: the task of the rows.
        train_file: as for `read_rows`.
        validation_file: the file to evaluate on, if any.
        cache_dir: as for `load_rows`.
        skip_bad_rows: as for `load_rows`.
        encoding: the encoding of text files; UTF-8 when None.
        slice_by: as for `load_rows`.

    Returns:
        The rows; `evaluation` has the split "validation" or none.
    """
    files = _files(train_file, validation_file)
    raw = {name: _read_file(task, file, cache_dir, encoding) for name, file in files.items()}
    evaluation_splits = tuple(name for name in raw if name != TRAIN)
    task = replace(task, evaluation_splits=evaluation_splits, derives_validation=False)
    return _checked(task, raw, skip_bad_rows, slice_by)


def load_user_rows(
    train_file: str | Path,
    validation_file: str | Path | None,
    input_columns: Sequence[str],
    label_column: str,
    *,
    are_images: bool = False,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    encoding: str | None = None,
    slice_by: str | None = None,
) -> Rows[TextClassification | ImageClassification]:
    """Load a user's texts or images and their labels, which define the task.

    Integers are classes in numerical order, names are classes in alphabetical order or in that of a file that numbers
    them, and real numbers are a regression. The training file defines the classes of both files.

    Args:
        train_file: as for `read_rows`; the task is named after the file.
        validation_file: the file to evaluate on, if any.
        input_columns: one or two columns of text, or one of images.
        label_column: the column of labels.
        are_images: whether the rows are images.
        cache_dir: as for `load_rows`.
        skip_bad_rows: as for `load_rows`.
        encoding: as for `load_task_files`.
        slice_by: as for `load_rows`.
    """
    option = "image_column" if are_images else "text_columns"
    if not 1 <= len(input_columns) <= MAX_TEXTS:
        raise AlignAttnError(f"--{option} takes one or two columns, not {len(input_columns)}")
    if len({*input_columns, label_column}) <= len(input_columns):
        raise AlignAttnError(f"duplicate column: --{option} {' '.join(input_columns)} --label_column {label_column}")
    inputs: dict[str, Any] = (
        {"image_column": input_columns[0]} if are_images else {"text_columns": tuple(input_columns)}
    )
    task = (ImageClassification if are_images else TextClassification)(
        name=plain_stem(train_file), label_column=label_column, metrics=(), **inputs
    )
    files = _files(train_file, validation_file)
    read = {
        name: _read_user_file(task, name, path, cache_dir, skip_bad_rows, encoding, slice_by)
        for name, path in files.items()
    }
    raw = {name: split for name, (split, _) in read.items()}
    labels = share_names({name: of_file for name, (_, of_file) in read.items()})
    task = user_task(labels[TRAIN], task)
    task = replace(task, evaluation_splits=tuple(name for name in raw if name != TRAIN))
    raw = {name: _with_labels(task, split, labels[name]) for name, split in raw.items()}
    for hint in label_hints(raw[TRAIN].dataset[label_column][:], task.labels):
        print(f"{raw[TRAIN].origin}: {hint}", file=sys.stderr)
    return _checked(task, raw, skip_bad_rows, slice_by)


def load_more_user_rows(
    task: U, path: str | Path, *, skip_bad_rows: bool | None = None, encoding: str | None = None
) -> Rows[U]:
    """Load more labelled rows of a task of `load_user_rows`, with labels as in its validation file.

    Args:
        task: the task, with its labels.
        path: as for `read_rows`.
        skip_bad_rows: as for `load_rows`.
        encoding: as for `load_task_files`.

    Returns:
        The rows, as training rows.
    """
    split, labels = _read_user_file(task, TRAIN, Path(path), None, skip_bad_rows, encoding)
    if not has_integer_names(task):
        labels = share_names({"": UserLabels("the run", {}, names=task.labels), TRAIN: labels})[TRAIN]
    return _checked(task, {TRAIN: _with_labels(task, split, labels)}, skip_bad_rows)


def _read_user_file(
    task: TextClassification | ImageClassification,
    name: str,
    path: Path,
    cache_dir: str | None,
    skip_bad_rows: bool | None,
    encoding: str | None,
    slice_by: str | None = None,
) -> tuple[_RawSplit, UserLabels]:
    """The rows of a split of a user's task, and their labels as the file has them."""
    origin, label_column = str(path), task.label_column
    rows = read_rows(path, cache_dir, encoding=encoding, read_folder=task.read_folder)
    read_columns = [*task.input_columns, label_column, *_slice_columns(name, rows.dataset, slice_by)]
    dataset = select_columns(rows.dataset, list(dict.fromkeys(read_columns)), origin)
    read = read_user_labels(dataset, label_column, origin)
    dataset = task.normalise_inputs(task.locate(dataset, path.parent))
    bad_inputs = task.input_problems(dataset, may_be_empty=False)
    problems = dict(read.problems) | bad_inputs | rows.problems_in(dataset.column_names)
    # The good labels of the training file define the task, so there must be some.
    list_bad_rows(problems, origin, len(dataset), skip=skip_bad_rows)
    return _RawSplit(dataset, origin, problems=problems), read.without(problems)


def _with_labels(task: LabelledTask, split: _RawSplit, labels: UserLabels) -> _RawSplit:
    """The rows of a user's file with the labels of its task."""
    column, problems = user_label_column(task, labels, len(split.dataset))
    dataset = split.dataset.remove_columns(task.label_column).add_column(task.label_column, column)
    return replace(split, dataset=dataset, problems=problems | dict(split.problems))


def max_samples(
    task: Task, dataset: datasets.Dataset, count: int | None, take: str | None = None, seed: int = SAMPLING_SEED
) -> datasets.Dataset:
    """Return at most `count` rows; all rows if it is None.

    Args:
        task: the task of the rows.
        dataset: the rows.
        count: the maximum.
        take: `FIRST` for the first rows; otherwise `sample_rows` samples them.
        seed: the seed of the sample.
    """
    if count is None or count >= len(dataset):
        return dataset
    if count < 1:
        raise AlignAttnError(f"cannot sample {count} rows: give at least 1")
    return dataset.select(range(count) if take == FIRST else sample_rows(task, dataset, count, seed=seed))


def with_validation_share(rows: Rows[T], share: float) -> Rows[T]:
    """Return the rows with a stratified share of the training rows, between 0 and 1, as the validation split."""
    drawn = sample_rows(rows.task, rows.train, max(1, round(share * len(rows.train))), leave_each=True)
    if not 0 < len(drawn) < len(rows.train):
        raise AlignAttnError(
            f"--validation_share {share} of {len(rows.train)} training rows leaves no evaluation rows, or no "
            "training rows of a class: give a --validation_file"
        )
    return replace(_derive_validation(rows, drawn), task=replace(rows.task, evaluation_splits=(VALIDATION,)))


def _derive_validation(rows: Rows[T], chosen: NDArray[np.int64]) -> Rows[T]:
    """The rows with some training rows, by index, as the validation split."""
    rest = np.setdiff1d(np.arange(len(rows.train)), chosen)
    how = f"{len(chosen)} of the {len(rows.train)} training rows, drawn with seed {SAMPLING_SEED}"
    return replace(
        rows,
        train=rows.train.select(rest),
        evaluation={VALIDATION: rows.train.select(chosen)} | rows.evaluation,
        derived=rows.derived | {VALIDATION: how},
    )


def select_columns(dataset: datasets.Dataset, columns: Sequence[str], origin: str) -> datasets.Dataset:
    """Return the dataset with only these columns; raises `AlignAttnError` if one is missing."""
    for column in columns:
        if column not in dataset.column_names:
            there = ", ".join(dataset.column_names)
            raise AlignAttnError(f"{origin} has no column {column!r} (it has {there})")
    return dataset.select_columns(list(columns))


def _files(train_file: str | Path, validation_file: str | Path | None) -> dict[str, Path]:
    files = {TRAIN: train_file, VALIDATION: validation_file}
    return {name: Path(file) for name, file in files.items() if file is not None}


def hub_origin(task: Task, split: str) -> str:
    """Return the name of a split on the Hub for messages."""
    config = f" ({task.sources.config})" if task.sources.config else ""
    return f"split {split!r} of {task.sources.hub}{config}"


def read_hub(task: Task, split: str, cache_dir: str | None) -> datasets.Dataset:
    """Read one split of a task from the Hub, or from the `datasets` cache if the Hub is out of reach."""
    sources = task.sources
    if split == TRAIN and task.train_rows_of:
        raise AlignAttnError(
            f"task {task.name!r} has no training rows: give the training rows of {task.train_rows_of} as "
            f"--train_file FILE, and those of {task.name} as --validation_file FILE"
        )
    if not sources.hub:
        file = Path(sources.folder) / f"{split}.parquet"
        raise AlignAttnError(f"task {task.name!r} is not on the Hub: give --data_dir DIR with {file}")
    log_download(hub_origin(task, split))
    try:
        return datasets.load_dataset(
            sources.hub, sources.config or None, split=split, revision=sources.revision, cache_dir=cache_dir
        )
    # The Hub's client raises OSError, ValueError, and the classes of `datasets` and of its HTTP library. Whatever the
    # cause, the user has the same options.
    except Exception as error:
        raise AlignAttnError(
            f"cannot load {hub_origin(task, split)} from the Hub: {reason_of(error)}; give --data_dir DIR (Parquet "
            "files on disk) or --train_file FILE (your own rows)"
        ) from error


def split_path(task: Task, split: str, data_dir: str | Path | None) -> Path:
    """Return the file of a split: `<data_dir>/glue/mrpc/train.parquet`, or the task's own file without a `data_dir`."""
    if data_dir is None:
        files = task.sources.files
        if split not in files:
            raise AlignAttnError(
                f"task {task.name!r} has no {split!r} split (there: {', '.join(files)}): add its file to sources.files"
            )
        return Path(files[split])
    folder = Path(data_dir) / task.sources.folder
    if not folder.is_dir():
        raise AlignAttnError(
            f"no data for task {task.name!r}: there is no folder {folder}; "
            "put <split>.parquet files there, or leave out --data_dir to use the Hub"
        )
    path = folder / f"{split}{PARQUET}"
    if not path.is_file():
        present = ", ".join(sorted(file.stem for file in folder.glob(f"*{PARQUET}"))) or "no split"
        raise AlignAttnError(
            f"task {task.name!r} has no {split!r} split in {folder} (there: {present}): put {path.name} "
            "there, leave out --data_dir to use the Hub, or give --train_file FILE (your own rows)"
        )
    return path


def _read_split(task: Task, name: str, data_dir: str | Path | None, cache_dir: str | None) -> _RawSplit:
    own = task.read_split(name, data_dir, cache_dir)
    if own is not None:
        return _RawSplit(*own)
    if data_dir is None and not task.sources.files:
        return _RawSplit(read_hub(task, name, cache_dir), hub_origin(task, name), is_published=True)
    return _read_file(task, split_path(task, name, data_dir), cache_dir)


def _read_file(task: Task, path: Path, cache_dir: str | None, encoding: str | None = None) -> _RawSplit:
    rows = read_rows(path, cache_dir, encoding=encoding, read_folder=task.read_folder)
    problems = rows.problems_in(task.columns())
    # The good rows define the task, so there must be some.
    list_bad_rows(problems, str(path), len(rows.dataset), skip=True)
    return _RawSplit(task.locate(rows.dataset, path.parent), str(path), problems=problems)


def _slice_columns(name: str, dataset: datasets.Dataset, slice_by: str | None) -> list[str]:
    """The column of the slices; optional in training rows, which keep it because some may become validation rows."""
    is_kept = slice_by is not None and (name != TRAIN or slice_by in dataset.column_names)
    return [str(slice_by)] if is_kept else []


def _report_numbered_labels(task: LabelledTask, splits: Mapping[str, datasets.Dataset]) -> None:
    """Print how the class numbers of files without class names are read, if another file has names."""
    labelled = {origin: rows for origin, rows in splits.items() if task.label_column in rows.column_names}
    if not any(class_names(rows, task.label_column) for rows in labelled.values()):
        return
    numbered = ", ".join(f"{number} = {name}" for number, name in enumerate(task.labels))
    for origin, rows in labelled.items():
        values = [parse_label(only_item(value)) for value in rows[task.label_column][:]]
        if not class_names(rows, task.label_column) and all(isinstance(value, int | float) for value in values):
            print(f"{origin}: its labels are numbers without names, which are read as {numbered}", file=sys.stderr)


def _checked(task: T, raw: Mapping[str, _RawSplit], skip_bad_rows: bool | None, slice_by: str | None = None) -> Rows[T]:
    """The rows of the splits without bad and unlabelled ones; a task without labels gets those of the first split."""
    splits: dict[str, datasets.Dataset] = {}
    dropped: dict[str, int] = {}
    bad_rows: dict[str, list[BadRow]] = {}
    left_out: dict[str, frozenset[int]] = {}
    derived: dict[str, str] = {}
    columns = task.columns()
    if slice_by in columns and slice_by not in task.input_columns:
        raise AlignAttnError(f"--slice_by {slice_by} is the label or the id of the rows: name another column")
    selected = {
        name: select_columns(
            split.dataset, list(dict.fromkeys([*columns, *_slice_columns(name, split.dataset, slice_by)])), split.origin
        )
        for name, split in raw.items()
    }
    if isinstance(task, LabelledTask):
        _report_numbered_labels(task, {split.origin: selected[name] for name, split in raw.items()})
    first = next(iter(raw))
    task = task.infer_labels(selected[first], raw[first].origin)
    for name, split in raw.items():
        dataset = task.normalise(selected[name])
        problems = task.row_problems(dataset, may_be_empty=split.is_published) | dict(split.problems)
        bad = list_bad_rows(problems, split.origin, len(dataset), skip=skip_bad_rows)
        numbers = range(len(dataset))
        dataset = dataset.add_column(NUMBER, np.array(numbers))
        if bad:
            bad_rows[name] = bad
            dataset = dataset.select([index for index in numbers if index not in problems])
        labelled = task.drop_unlabelled(dataset, split.origin)
        dropped[name] = len(dataset) - len(labelled)
        if (subset := task.subset(labelled)) is not None:
            labelled, derived[name] = labelled.select(subset[0]), subset[1]
        left_out[name] = frozenset(numbers).difference(labelled[NUMBER][:])
        splits[name] = labelled.remove_columns(NUMBER)
    train = splits.pop(TRAIN) if TRAIN in splits else datasets.Dataset.from_dict({})
    return Rows(task, train, splits, dropped, bad_rows, derived, left_out)

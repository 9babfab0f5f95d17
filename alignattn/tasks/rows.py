"""Loads, checks and samples the rows of a task: columns exist, texts are not empty, labels are valid.

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
from alignattn.tasks.labels import (
    INTEGER,
    UserLabels,
    class_names,
    label_hints,
    only_item,
    parse_label,
    read_user_labels,
    share_names,
    user_classes,
    with_user_labels,
)
from alignattn.tasks.names import FIRST, MAX_TEXTS, TRAIN, VALIDATION
from alignattn.tasks.reading import PARQUET, read_rows, reason_of_reading
from alignattn.tasks.task import Task
from alignattn.tasks.text_classification import TextClassification
from alignattn.utils.console import hub_request
from alignattn.utils.errors import AlignAttnError, BadRow, list_bad_rows, listing, numbers_without
from alignattn.utils.files import plain_stem

NUMBER = "__number__"
"""Temporary column with the numbers of the rows, while some are left out."""
SAMPLING_SEED = 42
"""Default seed of samples, the same for all runs, so that they use the same rows."""
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
        """Yield the rows of an evaluation split with their numbers in its file, or among the drawn rows, from 0."""
        yield from zip(numbers_without(self.left_out.get(split, ())), self.evaluation[split], strict=False)


@dataclass(frozen=True)
class _RawSplit:
    """The rows of a split as read.

    Attributes:
        dataset: the rows.
        origin: their source, for messages.
        is_published: whether the rows are published, so that the user cannot correct them.
        problems: known problems of rows, by index.
        lines: as in `FileRows`.
    """

    dataset: datasets.Dataset
    origin: str
    is_published: bool = False
    problems: Mapping[int, str] = field(default_factory=dict)
    lines: Sequence[int] = ()


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
    raw = {TRAIN: _read_file(task, Path(train_file), cache_dir, encoding)}
    if validation_file is not None:
        raw[VALIDATION] = _read_file(task, Path(validation_file), cache_dir, encoding)
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
    raw: dict[str, _RawSplit] = {}
    labels: dict[str, UserLabels] = {}
    for name, file in {TRAIN: train_file, VALIDATION: validation_file}.items():
        if file is not None:
            raw[name], labels[name] = _read_user_file(
                task, name, Path(file), cache_dir, skip_bad_rows, encoding, slice_by
            )
    labels = share_names(labels)
    classes, metrics = user_classes(labels[TRAIN], label_column)
    evaluation_splits = tuple(name for name in raw if name != TRAIN)
    task = replace(task, labels=classes, metrics=metrics, evaluation_splits=evaluation_splits)
    for name, split in raw.items():
        dataset, bad_labels = with_user_labels(split.dataset, label_column, labels[name], classes)
        raw[name] = replace(split, dataset=dataset, problems=bad_labels | dict(split.problems))
    for hint in label_hints(raw[TRAIN].dataset[label_column][:], classes):
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
    # Integers that name classes are not numbers of classes.
    if not all(INTEGER.fullmatch(name.strip()) for name in task.labels):
        labels = share_names({"": UserLabels("the run", {}, names=task.labels), TRAIN: labels})[TRAIN]
    dataset, bad_labels = with_user_labels(split.dataset, task.label_column, labels, task.labels)
    split = replace(split, dataset=dataset, problems=bad_labels | dict(split.problems))
    return _checked(task, {TRAIN: split}, skip_bad_rows)


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
    dataset = _selected(task, name, rows.dataset, origin, slice_by, of_options=True)
    labels = read_user_labels(dataset, label_column, origin)
    dataset = task.normalise_inputs(task.locate(dataset, path.parent))
    bad_inputs = task.input_problems(dataset, may_be_empty=False)
    problems = dict(labels.problems) | bad_inputs | rows.problems_in(dataset.column_names)
    # The good labels of the training file define the task, so there must be some.
    list_bad_rows(problems, origin, len(dataset), skip=skip_bad_rows, lines=rows.lines)
    good = {index: label for index, label in labels.labels.items() if index not in problems}
    return _RawSplit(dataset, origin, problems=problems, lines=rows.lines), replace(labels, labels=good)


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


def sample_rows(
    task: Task, dataset: datasets.Dataset, count: int, *, leave_each: bool = False, seed: int = SAMPLING_SEED
) -> NDArray[np.int64]:
    """Return the sorted numbers of a sample of rows without replacement, `[count]`.

    Each class has its share of the sample to within one row, and at least one row if there are enough rows for all. Of
    rows with several labels, each combination is a class, and combinations with a share below one row are one class.

    Args:
        task: the task of the rows.
        dataset: the rows, as this module loads them.
        count: the size of the sample; all rows if there are fewer.
        leave_each: whether to leave a row of each class outside the sample, even if the sample is then smaller.
        seed: the seed of the sample.
    """
    classes = task.strata(dataset)
    # The number of each row's class, or combination of classes.
    strata = np.zeros(len(dataset), np.int64)
    if classes is not None:
        strata = np.unique(classes, return_inverse=True, axis=0)[1].ravel()
    if classes is not None and classes.ndim > 1:
        # Rare combinations of labels share a stratum: with one of each, or none, the sample would be of other rows.
        is_rare = np.bincount(strata) * count < len(dataset)
        strata = np.unique(np.where(is_rare[strata], -1, strata), return_inverse=True)[1]
    count, sizes = min(count, len(dataset)), np.bincount(strata)
    limits = sizes - 1 if leave_each else sizes
    exact = count * sizes / sizes.sum()
    shares = np.minimum(np.floor(exact).astype(np.int64), limits)
    if count >= len(sizes):
        shares = np.minimum(np.maximum(shares, 1), limits)
    # Change the stratum furthest below, or above, its exact share; the first in a tie.
    while shares.sum() < min(count, limits.sum()):
        shares[np.argmax(np.where(shares < limits, exact - shares, -np.inf))] += 1
    while shares.sum() > count:
        shares[np.argmax(np.where(shares > 1, shares - exact, -np.inf))] -= 1
    order = np.random.default_rng(seed).permutation(len(dataset))
    chosen = [order[strata[order] == stratum][:share] for stratum, share in enumerate(shares)]
    return np.sort(np.concatenate(chosen))


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
    """The rows of a split: from the task's own reader, its files or `data_dir`, or the Hub or its cache."""
    own = task.read_split(name, data_dir, cache_dir)
    if own is not None:
        return _RawSplit(*own)
    sources = task.sources
    if data_dir is not None or sources.files:
        return _read_file(task, split_path(task, name, data_dir), cache_dir)
    if name == TRAIN and task.train_rows_of:
        raise AlignAttnError(
            f"task {task.name!r} has no training rows: give the training rows of {task.train_rows_of} as "
            f"--train_file FILE, and those of {task.name} as --validation_file FILE"
        )
    if not sources.hub:
        file = Path(sources.folder) / f"{name}{PARQUET}"
        raise AlignAttnError(f"task {task.name!r} is not on the Hub: give --data_dir DIR with {file}")
    origin = f"split {name!r} of {sources.hub}{f' ({sources.config})' if sources.config else ''}"
    try:
        with hub_request(origin):
            dataset = datasets.load_dataset(
                sources.hub, sources.config or None, split=name, revision=sources.revision, cache_dir=cache_dir
            )
    # The Hub's client raises OSError, ValueError, and the classes of `datasets` and of its HTTP library. Whatever the
    # cause, the user has the same options.
    except Exception as error:
        raise AlignAttnError(
            f"cannot load {origin} from the Hub: {reason_of_reading(error)}; give --data_dir DIR (Parquet files on "
            "disk) or --train_file FILE (your own rows)"
        ) from error
    return _RawSplit(dataset, origin, is_published=True)


def _read_file(task: Task, path: Path, cache_dir: str | None, encoding: str | None = None) -> _RawSplit:
    rows = task.read_rows(path, encoding, cache_dir=cache_dir, is_labelled=True)
    problems = rows.problems_in(task.columns())
    # The good rows define the task, so there must be some.
    list_bad_rows(problems, str(path), len(rows.dataset), skip=True)
    return _RawSplit(task.locate(rows.dataset, path.parent), str(path), problems=problems, lines=rows.lines)


def _selected(
    task: Task, name: str, dataset: datasets.Dataset, origin: str, slice_by: str | None, *, of_options: bool = False
) -> datasets.Dataset:
    """The columns of a split that its task reads, and that of the slices; raises `AlignAttnError` if one is missing.

    The column of the slices is optional in training rows, which keep it because some may become validation rows. With
    `of_options`, options name the columns of the task.
    """
    columns = task.columns()
    if slice_by is not None and (name != TRAIN or slice_by in dataset.column_names):
        columns.append(slice_by)
    for column in columns:
        if column not in dataset.column_names:
            there = ", ".join(dataset.column_names)
            advice = f"task {task.name!r} reads {', '.join(task.columns())}: rename the columns of the file"
            if of_options or column == slice_by:
                inputs = "--image_column" if task.reads_images else "--text_columns"
                given = "--label_column" if column == getattr(task, "label_column", "") else inputs
                advice = f"give one of them to {'--slice_by' if column == slice_by else given}"
            raise AlignAttnError(f"{origin} has no column {column!r} (it has {there}): {advice}")
    return dataset.select_columns(list(dict.fromkeys(columns)))


def _checked(task: T, raw: Mapping[str, _RawSplit], skip_bad_rows: bool | None, slice_by: str | None = None) -> Rows[T]:
    """The rows of the splits without bad and unlabelled ones; a task without labels gets those of the first split."""
    splits: dict[str, datasets.Dataset] = {}
    dropped: dict[str, int] = {}
    bad_rows: dict[str, list[BadRow]] = {}
    left_out: dict[str, frozenset[int]] = {}
    derived: dict[str, str] = {}
    if slice_by in task.columns() and slice_by not in task.input_columns:
        raise AlignAttnError(f"--slice_by {slice_by} is the label or the id of the rows: name another column")
    selected = {name: _selected(task, name, split.dataset, split.origin, slice_by) for name, split in raw.items()}

    # Of several files, some may name their class numbers and others not.
    if isinstance(task, LabelledTask) and task.label_column in task.columns():
        numbered = ", ".join(f"{number} = {label}" for number, label in enumerate(task.labels))
        named = {name for name, dataset in selected.items() if class_names(dataset, task.label_column)}
        for name in [name for name in selected if named and name not in named]:
            values = [parse_label(only_item(value)) for value in selected[name][task.label_column][:]]
            if all(isinstance(value, int | float) for value in values):
                origin = raw[name].origin
                print(f"{origin}: its labels are numbers without names, which are read as {numbered}", file=sys.stderr)
        meanings = {
            raw[name].origin: names
            for name, dataset in selected.items()
            if name not in named and (names := task.names_of_integers(dataset))
        }
        for origin, names in meanings.items():
            if names != next(iter(meanings.values())):
                raise AlignAttnError(
                    f"{next(iter(meanings))} and {origin} differ in whether integers are names or numbers of "
                    f"the classes ({listing(task.labels)}): write names in both"
                )

    first = next(iter(raw))
    # A row that cannot be read defines no label.
    readable = [index for index in range(len(selected[first])) if index not in raw[first].problems]
    task = task.infer_labels(selected[first].select(readable), raw[first].origin)
    for name, split in raw.items():
        dataset = task.normalise(selected[name])
        problems = task.row_problems(dataset, may_be_empty=split.is_published) | dict(split.problems)
        bad = list_bad_rows(problems, split.origin, len(dataset), skip=skip_bad_rows, lines=split.lines)
        numbers = range(len(dataset))
        dataset = dataset.add_column(NUMBER, np.array(numbers))
        if bad:
            bad_rows[name] = bad
            dataset = dataset.select([index for index in numbers if index not in problems])
        labelled = task.drop_unlabelled(dataset, split.origin)
        dropped[name] = len(dataset) - len(labelled)
        if isinstance(task, TextClassification) and task.length_third:
            chosen, derived[name] = task.third(labelled)
            labelled = labelled.select(chosen)
        left_out[name] = frozenset(numbers).difference(labelled[NUMBER][:])
        splits[name] = labelled.remove_columns(NUMBER)
    train = splits.pop(TRAIN) if TRAIN in splits else datasets.Dataset.from_dict({})
    return Rows(task, train, splits, dropped, bad_rows, derived, left_out)

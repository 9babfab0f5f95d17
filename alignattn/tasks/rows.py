"""The rows of a task, checked: columns are there, texts are not empty, labels are in range.

Rows are counted from 1 in every message; a CSV file's header is not a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import datasets
import numpy as np

from alignattn.tasks.labels import say_numbers_read
from alignattn.tasks.multilabel.task import MultiLabelClassification
from alignattn.tasks.processors import processor_for
from alignattn.tasks.sampling import SAMPLING_SEED, sample_rows
from alignattn.tasks.sources import hub_origin, own_file, read_hub, read_rows, split_path
from alignattn.tasks.tags.task import TokenClassification
from alignattn.tasks.task import FIRST, MAX_TEXTS, TRAIN, VALIDATION, LabelledTask, Task
from alignattn.tasks.texts.label_hints import say_label_hints
from alignattn.tasks.texts.processor import text_problems
from alignattn.tasks.texts.task import TextClassification
from alignattn.tasks.texts.user_labels import UserLabels, read_user_labels, share_names, user_label_column, user_task
from alignattn.utils.bad_rows import BadRow, list_bad_rows, numbers_without
from alignattn.utils.compression import plain_stem
from alignattn.utils.errors import AlignAttnError

NUMBER = "__number__"
"""The column of the rows' numbers while some are left out."""
DERIVED_SHARE = 10
"""One in so many training rows makes the validation split of a data set that has none."""
DERIVED_SEED = 42
"""One draw for all runs, whatever their seed: they are compared on the same rows."""

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Rows(Generic[T]):
    """The good, labelled rows of a task.

    Attributes:
        task: The task, with what its training rows tell and its files have.
        train: The rows to train on; None where they were not asked for.
        evaluation: The rows to evaluate on, by the name of the split.
        dropped: How many unlabelled rows (label -1) each split lost.
        bad_rows: The rows left out because something is wrong with them, by split; splits without any have no entry.
        derived: How a split came about that the data set does not have, by its name.
        left_out: The bad and the unlabelled rows of each split that was read, by their numbers from 0.
    """

    task: T
    train: datasets.Dataset | None
    evaluation: dict[str, datasets.Dataset]
    dropped: dict[str, int]
    bad_rows: dict[str, list[BadRow]] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, frozenset[int]] = field(default_factory=dict)

    def numbered(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of an evaluation split with their numbers in it, from 0; rows left out keep theirs."""
        yield from zip(numbers_without(self.left_out.get(split, ())), self.evaluation[split], strict=False)


@dataclass(frozen=True)
class _RawSplit:
    """The rows of a split as they were read.

    Attributes:
        dataset: the rows.
        origin: where they are from, for messages.
        is_published: whether a user cannot mend them.
        problems: what is known to be wrong with rows, by index.
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
) -> Rows[T]:
    """Loads the splits of a task: from `<data_dir>/<folder>/<split>.parquet`, its own files, or the Hub.

    Args:
        task: One of `alignattn.tasks.TASKS`, or a user's own.
        need_train: False where the rows are only evaluated on; then no train split need exist.
        data_dir: A folder of Parquet files in the Hub's column names; the task's files, or else the Hub, when None.
        cache_dir: Where `datasets` keeps what it read; when None, its own default for downloads, no place for files.
        skip_bad_rows: Leave out rows with which something is wrong, and list them.
    """
    derived = (VALIDATION,) if task.derives_validation else ()
    names = ((TRAIN,) if need_train or derived else ()) + tuple(
        name for name in task.evaluation_splits if name not in derived
    )
    raw = {name: _read_split(task, name, data_dir, cache_dir) for name in names}
    rows = _checked(task, raw, skip_bad_rows)
    if not derived:
        return rows
    assert rows.train is not None
    rest, tenth = _without_a_tenth(rows.train)
    how = f"{len(tenth)} of the {len(rows.train)} training rows, drawn with seed {DERIVED_SEED}"
    return replace(
        rows,
        train=rest if need_train else None,
        evaluation={VALIDATION: tenth} | rows.evaluation,
        derived=rows.derived | {VALIDATION: how},
    )


def load_task_files(
    task: T,
    train_file: str | Path,
    validation_file: str | Path | None,
    *,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    encoding: str | None = None,
) -> Rows[T]:
    """Loads a user's own files that hold rows of a task, in the columns of its record.

    Args:
        task: What the rows are of.
        train_file: As `read_rows` takes it.
        validation_file: Another, or None: then there is nothing to evaluate on.
        cache_dir: Where `datasets` keeps what it read; when None, its own default for downloads, no place for files.
        skip_bad_rows: Leave out rows with which something is wrong, and list them.
        encoding: Of files of text; UTF-8 when None.

    Returns:
        The rows; `evaluation` has the one split "validation" or none.
    """
    raw = {
        name: _read_own(task, Path(file), cache_dir, encoding)
        for name, file in _files(train_file, validation_file).items()
    }
    evaluation_splits = tuple(name for name in raw if name != TRAIN)
    own = replace(task, evaluation_splits=evaluation_splits, derives_validation=False)
    return _checked(own, raw, skip_bad_rows)


def load_user_rows(
    train_file: str | Path,
    validation_file: str | Path | None,
    text_columns: Sequence[str],
    label_column: str,
    *,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    encoding: str | None = None,
) -> Rows[TextClassification]:
    """Loads a user's own texts and labels, which pose the task.

    Integers are classes in their order, names are classes in alphabetical order or in that of a file which numbers
    them, real numbers are a regression. The training file decides; the validation file is read by its classes.

    Args:
        train_file: As `read_rows` takes it.
        validation_file: Another, or None: then there is nothing to evaluate on.
        text_columns: One or two columns of text.
        label_column: The column of labels.
        cache_dir: Where `datasets` keeps what it read; when None, its own default for downloads, no place for files.
        skip_bad_rows: Leave out rows with which something is wrong, and list them.
        encoding: Of files of text; UTF-8 when None.

    Returns:
        The rows of a task named like the training file; `evaluation` has the one split "validation" or none.
    """
    _check_column_choice(text_columns, label_column)
    raw: dict[str, _RawSplit] = {}
    labels: dict[str, UserLabels] = {}
    for name, file in _files(train_file, validation_file).items():
        origin = str(file)
        rows = read_rows(Path(file), cache_dir, encoding=encoding)
        dataset = select_columns(rows.dataset, [*text_columns, label_column], origin)
        read = read_user_labels(dataset, label_column, origin)
        problems = dict(read.problems) | text_problems(dataset, text_columns) | rows.problems_in(dataset.column_names)
        # The good labels of the training file pose the task: there must be some before it is asked for.
        list_bad_rows(problems, origin, len(dataset), skip=skip_bad_rows)
        labels[name] = read.without(problems)
        raw[name] = _RawSplit(dataset, origin, problems=problems)
    labels = share_names(labels)
    task = user_task(labels[TRAIN], text_columns, label_column)
    task = replace(task, evaluation_splits=tuple(name for name in raw if name != TRAIN))
    for name, split in raw.items():
        column, problems = user_label_column(task, labels[name], len(split.dataset))
        dataset = split.dataset.remove_columns(label_column).add_column(label_column, column)
        raw[name] = replace(split, dataset=dataset, problems=problems | dict(split.problems))
        if name == TRAIN:
            say_label_hints(column, task.labels, split.origin)
    return _checked(task, raw, skip_bad_rows)


def load_user_multi_labels(
    train_file: str | Path,
    validation_file: str | Path | None,
    text_columns: Sequence[str],
    label_columns: Sequence[str],
    *,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    encoding: str | None = None,
) -> Rows[MultiLabelClassification]:
    """Loads a user's own texts with a column for each label: as `load_task_files`, of a task named like the file."""
    task = MultiLabelClassification(
        name=plain_stem(train_file), text_columns=tuple(text_columns), label_columns=tuple(label_columns)
    )
    problem = task.problem()
    if problem is not None:
        raise AlignAttnError(f"--text_columns and --label_column: {problem}")
    return load_task_files(
        task, train_file, validation_file, cache_dir=cache_dir, skip_bad_rows=skip_bad_rows, encoding=encoding
    )


def load_user_tags(
    train_file: str | Path,
    validation_file: str | Path | None,
    tokens_column: str,
    tags_column: str,
    *,
    cache_dir: str | None = None,
    skip_bad_rows: bool | None = None,
    encoding: str | None = None,
) -> Rows[TokenClassification]:
    """Loads a user's own lists of words and of their tags: as `load_task_files`, of a task named like the file."""
    if tokens_column == tags_column:
        raise AlignAttnError(f"a column is named twice: --tokens_column {tokens_column} --label_column {tags_column}")
    task = TokenClassification(name=plain_stem(train_file), tokens_column=tokens_column, tags_column=tags_column)
    return load_task_files(
        task, train_file, validation_file, cache_dir=cache_dir, skip_bad_rows=skip_bad_rows, encoding=encoding
    )


def max_samples(
    task: Task, dataset: datasets.Dataset, count: int | None, take: str | None = None, seed: int = SAMPLING_SEED
) -> datasets.Dataset:
    """As many rows as allowed; all rows where `count` is None.

    Args:
        task: that the rows are of.
        dataset: the rows.
        count: the most to take.
        take: `FIRST` for those that stand first; they are drawn as `sample_rows` does otherwise.
        seed: of the draw.
    """
    if count is None or count >= len(dataset):
        return dataset
    if count < 1:
        raise AlignAttnError(f"cannot take {count} rows: the largest number of samples must be at least 1")
    return dataset.select(range(count) if take == FIRST else sample_rows(task, dataset, count, seed=seed))


def with_validation_share(rows: Rows[T], share: float) -> Rows[T]:
    """The rows with a share of the training rows to evaluate on in their place, of each class as much.

    Args:
        rows: with rows to train on and none to evaluate on.
        share: of the training rows, above 0 and below 1.
    """
    assert rows.train is not None
    count = max(1, round(share * len(rows.train)))
    drawn = sample_rows(rows.task, rows.train, count, leave_each=True)
    if not 0 < len(drawn) < len(rows.train):
        raise AlignAttnError(
            f"--validation_share {share} of {len(rows.train)} training rows leaves none on one side, or none of a "
            "class to train on: give a --validation_file"
        )
    rest = np.setdiff1d(np.arange(len(rows.train)), drawn)
    how = f"{len(drawn)} of the {len(rows.train)} training rows, drawn with seed {SAMPLING_SEED}"
    return replace(
        rows,
        task=replace(rows.task, evaluation_splits=(VALIDATION,)),
        train=rows.train.select(rest),
        evaluation={VALIDATION: rows.train.select(drawn)},
        derived={VALIDATION: how},
    )


def select_columns(dataset: datasets.Dataset, columns: Sequence[str], origin: str) -> datasets.Dataset:
    """The data set with these columns alone."""
    for column in columns:
        if column not in dataset.column_names:
            there = ", ".join(dataset.column_names)
            raise AlignAttnError(f"{origin} has no column {column!r} (it has {there})")
    return dataset.select_columns(list(columns))


def _files(train_file: str | Path, validation_file: str | Path | None) -> dict[str, str | Path]:
    return {TRAIN: train_file} | ({} if validation_file is None else {VALIDATION: validation_file})


def _read_split(task: Task, name: str, data_dir: str | Path | None, cache_dir: str | None) -> _RawSplit:
    own = processor_for(task).read_split(task, name, data_dir, cache_dir)
    if own is not None:
        return _RawSplit(*own)
    if data_dir is None and not task.sources.files:
        return _RawSplit(read_hub(task, name, cache_dir), hub_origin(task, name), is_published=True)
    path = own_file(task, name) if data_dir is None else split_path(task, name, data_dir)
    return _read_own(task, path, cache_dir)


def _read_own(task: Task, path: Path, cache_dir: str | None, encoding: str | None = None) -> _RawSplit:
    rows = read_rows(path, cache_dir, encoding=encoding)
    problems = rows.problems_in(processor_for(task).columns(task))
    # The good rows tell what the task is: there must be some before it is asked for.
    list_bad_rows(problems, str(path), len(rows.dataset), skip=True)
    return _RawSplit(rows.dataset, str(path), problems=problems)


def _checked(task: T, raw: Mapping[str, _RawSplit], skip_bad_rows: bool | None) -> Rows[T]:
    """The rows of the splits without those that are bad or have no label; the first split tells what is not known."""
    kind = processor_for(task)
    splits: dict[str, datasets.Dataset] = {}
    dropped: dict[str, int] = {}
    bad_rows: dict[str, list[BadRow]] = {}
    left_out: dict[str, frozenset[int]] = {}
    derived: dict[str, str] = {}
    selected = {name: select_columns(split.dataset, kind.columns(task), split.origin) for name, split in raw.items()}
    if isinstance(task, LabelledTask):
        say_numbers_read(task, {split.origin: selected[name] for name, split in raw.items()})
    first = next(iter(raw))
    task = kind.resolve(task, selected[first], raw[first].origin)
    for name, split in raw.items():
        dataset = kind.normalise(task, selected[name])
        problems = kind.problems(task, dataset, may_be_empty=split.is_published) | dict(split.problems)
        bad = list_bad_rows(problems, split.origin, len(dataset), skip=skip_bad_rows)
        numbers = range(len(dataset))
        dataset = dataset.add_column(NUMBER, np.array(numbers))
        if bad:
            bad_rows[name] = bad
            dataset = dataset.select([index for index in numbers if index not in problems])
        labelled = kind.labelled(task, dataset, split.origin)
        dropped[name] = len(dataset) - len(labelled)
        if (part := kind.part(task, labelled)) is not None:
            labelled, derived[name] = labelled.select(part[0]), part[1]
        left_out[name] = frozenset(numbers).difference(labelled[NUMBER][:])
        splits[name] = labelled.remove_columns(NUMBER)
    return Rows(task, splits.pop(TRAIN, None), splits, dropped, bad_rows, derived, left_out)


def _without_a_tenth(dataset: datasets.Dataset) -> tuple[datasets.Dataset, datasets.Dataset]:
    """The other nine tenths of the rows and a tenth drawn at random, each in the order of the data set."""
    order = np.random.default_rng(DERIVED_SEED).permutation(len(dataset))
    count = max(1, len(dataset) // DERIVED_SHARE)
    return dataset.select(np.sort(order[count:])), dataset.select(np.sort(order[:count]))


def _check_column_choice(text_columns: Sequence[str], label_column: str) -> None:
    if not 1 <= len(text_columns) <= MAX_TEXTS:
        raise AlignAttnError(f"--text_columns takes one or two columns, not {len(text_columns)}")
    if len({*text_columns, label_column}) <= len(text_columns):
        raise AlignAttnError(
            f"a column is named twice: --text_columns {' '.join(text_columns)} --label_column {label_column}"
        )

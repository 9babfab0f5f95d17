"""The rows of a run, and the tensors that a model reads of them."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import datasets

from alignattn.runs.options import FROM_BOTH, FROM_CONLL, FROM_TAGS, FROM_TASK, DataOptions, ModelOptions, RunOptions
from alignattn.tasks import Task
from alignattn.tasks.kind import EncodedSplit
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import Rows, load_rows, load_task_files, load_user_rows, load_user_tags, max_samples
from alignattn.tasks.tags.conll import TAGS, TOKENS

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class EncodedData:
    """The tensors of a run: rows to train on and rows to evaluate on by split."""

    train: EncodedSplit
    evaluation: dict[str, EncodedSplit]


def load_run_rows(options: RunOptions) -> Rows[Any]:
    """Return the rows that the options of a run name, as many as they allow."""
    rows, data_args = _all_rows(options), options.data
    assert rows.train is not None
    evaluation = {split: max_samples(dataset, data_args.max_eval_samples) for split, dataset in rows.evaluation.items()}
    return replace(rows, train=max_samples(rows.train, data_args.max_train_samples), evaluation=evaluation)


def load_evaluation_rows(task: T, model_args: ModelOptions, data_args: DataOptions) -> Rows[T]:
    """Return all evaluation rows of a task from where the options say; raises as `load_rows` does."""
    return load_rows(
        task,
        need_train=False,
        data_dir=data_args.data_dir,
        cache_dir=model_args.cache_dir,
        skip_bad_rows=data_args.skip_bad_rows,
    )


def _all_rows(options: RunOptions) -> Rows[Any]:
    """The rows of the one source that the options name."""
    data, source = options.data, options.data.source
    reading: dict[str, Any] = {"cache_dir": options.model.cache_dir, "skip_bad_rows": data.skip_bad_rows}
    files: tuple[Any, Any] = (data.train_file, data.validation_file)
    if source == FROM_TASK:
        return load_rows(options.task, data_dir=data.data_dir, **reading)
    if source == FROM_BOTH:
        return load_task_files(options.task, *files, **reading)
    if source == FROM_CONLL:
        return load_user_tags(*files, TOKENS, TAGS, **reading)
    if source == FROM_TAGS:
        return load_user_tags(*files, str(data.tokens_column), data.label_column, **reading)
    return load_user_rows(*files, data.text_columns or (), data.label_column, **reading)


def encode_splits(rows: Rows[Any], processor: Any, arguments: DataOptions) -> EncodedData:
    """Return the rows of all splits with what a model reads of them; arguments and errors as of `encode_split`."""
    assert rows.train is not None
    return EncodedData(
        encode_split(rows.task, rows.train, processor, arguments),
        {split: encode_split(rows.task, dataset, processor, arguments) for split, dataset in rows.evaluation.items()},
    )


def encode_split(task: Task, rows: datasets.Dataset, processor: Any, arguments: DataOptions) -> EncodedSplit:
    """Return rows with what a model reads of them.

    Args:
        task: that they are of.
        rows: as loaded.
        processor: of the model, as in `BuiltModel`; the task's kind knows what to do with it.
        arguments: how long a sequence may be, and so on.
    """
    options = arguments.task_options(task)
    return EncodedSplit(rows, kind_of(task).encode(task, rows, processor, options), options)

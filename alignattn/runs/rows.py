"""The rows of a run, and the tensors that a model reads of them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import datasets

from alignattn.runs.options import DataOptions, ModelOptions, RunOptions
from alignattn.support.errors import AlignAttnError
from alignattn.tasks import Task
from alignattn.tasks.kind import EncodedSplit
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import Rows, load_rows, load_task_files, load_user_rows, load_user_tags, max_samples
from alignattn.tasks.sources import CONLL
from alignattn.tasks.tags.conll import TAGS, TOKENS

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class EncodedData:
    """The tensors of a run: rows to train on and rows to evaluate on by split."""

    train: EncodedSplit
    evaluation: dict[str, EncodedSplit]


def load_run_rows(options: RunOptions) -> Rows[Any]:
    """Return the rows that the options of a run name, as many as they allow."""
    rows, data_args = _all_rows(options.model, options.data, options.task), options.data
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


def _all_rows(model_args: ModelOptions, data_args: DataOptions, task: Task | None) -> Rows[Any]:
    """The rows of the one source that the options name; options of the others would be passed over, and are refused."""
    reading: dict[str, Any] = {"cache_dir": model_args.cache_dir, "skip_bad_rows": data_args.skip_bad_rows}
    if data_args.train_file is None:
        if task is None:
            raise AlignAttnError(
                "no data: give --task NAME or FILE.yaml, or --train_file FILE with --text_columns (or --tokens_column)"
            )
        _check_fit(data_args, "--task without --train_file", "data_dir")
        return load_rows(task, data_dir=data_args.data_dir, **reading)
    files = (data_args.train_file, data_args.validation_file)
    if task is not None:
        _check_fit(data_args, "--task and --train_file together, whose rows are the task's", "validation_file")
        return load_task_files(task, *files, **reading)
    if Path(data_args.train_file).suffix.lower() == CONLL:
        _check_fit(data_args, "a CoNLL file, whose last column has the tags", "validation_file")
        return load_user_tags(*files, TOKENS, TAGS, **reading)
    if data_args.tokens_column is not None:
        _check_fit(data_args, "--tokens_column", "validation_file", "tokens_column", "label_column")
        return load_user_tags(*files, data_args.tokens_column, data_args.label_column, **reading)
    if data_args.text_columns:
        _check_fit(data_args, "--text_columns", "validation_file", "text_columns", "label_column")
        return load_user_rows(*files, data_args.text_columns, data_args.label_column, **reading)
    raise AlignAttnError(
        "--train_file needs --text_columns with its one or two text columns, --tokens_column with its lists of "
        "words, or --task NAME where it holds rows of that task"
    )


def _check_fit(data_args: DataOptions, source: str, *fitting: str) -> None:
    untouched = DataOptions()
    for name in ("data_dir", "validation_file", "text_columns", "tokens_column", "label_column"):
        if name not in fitting and getattr(data_args, name) != getattr(untouched, name):
            raise AlignAttnError(f"--{name} does not go with {source}: leave it out")


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

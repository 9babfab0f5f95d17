"""The rows of a run, and the tensors that a model reads of them."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import datasets
from torch import Tensor

from alignattn.finetuning.data_options import FROM_BOTH, FROM_CONLL, FROM_TAGS, FROM_TASK, DataOptions
from alignattn.finetuning.model_options import ModelOptions
from alignattn.finetuning.options import RunOptions
from alignattn.tasks import Task
from alignattn.tasks.class_folders import TEXT
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.processors import processor_for
from alignattn.tasks.rows import (
    Rows,
    load_rows,
    load_task_files,
    load_user_multi_labels,
    load_user_rows,
    load_user_tags,
    max_samples,
    with_validation_share,
)
from alignattn.tasks.sampling import SAMPLING_SEED
from alignattn.tasks.tags.conll import TAGS, TOKENS
from alignattn.tasks.task import BY_SEED, TRAIN
from alignattn.tasks.truncated_rows import TruncatedRows
from alignattn.tasks.truncation import truncated_rows
from alignattn.utils.errors import AlignAttnError

T = TypeVar("T", bound=Task)

LABEL_COLUMNS = ("label", "labels")
"""Of encoded rows: what collators may want, and no forward without a loss does."""


@dataclass(frozen=True)
class EncodedData:
    """The tensors of a run: rows to train on and rows to evaluate on by split."""

    train: EncodedSplit
    evaluation: dict[str, EncodedSplit]


def load_run_rows(options: RunOptions) -> Rows[Any]:
    """Return the rows that the options of a run name, as many as they allow."""
    rows, data = _all_rows(options), options.data
    if data.validation_share is not None:
        rows = with_validation_share(rows, data.validation_share)
    assert rows.train is not None
    # Only what is trained on: runs are compared on the same rows.
    seed = options.training.seed if data.take == BY_SEED else SAMPLING_SEED
    train = max_samples(rows.task, rows.train, data.max_train_samples, data.take, seed)
    evaluation = {
        split: max_samples(rows.task, dataset, data.max_eval_samples, data.take)
        for split, dataset in rows.evaluation.items()
    }
    for split, dataset in evaluation.items():
        if len(dataset) < rows.task.fewest_rows:
            raise AlignAttnError(
                f"split {split!r} has {len(dataset)} labelled row(s) to evaluate on, and "
                f"{', '.join(rows.task.metrics)} need at least {rows.task.fewest_rows}: give it more"
            )
    return replace(rows, train=train, evaluation=evaluation)


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
    reading["encoding"] = data.encoding
    if source == FROM_BOTH:
        return load_task_files(options.task, *files, **reading)
    if source == FROM_CONLL:
        return load_user_tags(*files, TOKENS, TAGS, **reading)
    if source == FROM_TAGS:
        return load_user_tags(*files, str(data.tokens_column), data.label_column[0], **reading)
    texts = data.text_columns or (TEXT,)
    if data.is_multi_label:
        return load_user_multi_labels(*files, texts, data.label_column, **reading)
    return load_user_rows(*files, texts, data.label_column[0], **reading)


def encode_splits(rows: Rows[Any], processor: Any, arguments: DataOptions) -> EncodedData:
    """Return the rows of all splits with what a model reads of them; arguments and errors as of `encode_split`."""
    assert rows.train is not None
    length = arguments.task_options(rows.task, processor).max_length
    if arguments.max_length is None and length < rows.task.max_length:
        said = f"rows have at most {length} tokens, which is all that the model takes (task {rows.task.name}:"
        print(f"{said} {rows.task.max_length} where it takes as many)", file=sys.stderr)
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
    options = arguments.task_options(task, processor)
    return EncodedSplit(rows, processor_for(task).encode(task, rows, processor, options), options, processor)


def input_batches(
    task: Task, split: EncodedSplit, processor: Any, rows: Sequence[int], size: int, *, is_told: bool = False
) -> Iterator[dict[str, Tensor]]:
    """Give rows of a split as padded batches of what a model reads.

    Args:
        task: that they are of.
        split: encoded.
        processor: of the model.
        rows: numbers of encoded rows, in order.
        size: rows of a batch.
        is_told: whether with their labels, which a model that writes reads in its forward; otherwise without.
    """
    columns = split.encoded.column_names
    of_texts = processor_for(task).reads_texts_alone
    read = processor.model_input_names if of_texts else set(columns).difference(LABEL_COLUMNS)
    inputs = [name for name in columns if name in read]
    chosen = split.encoded.select_columns([*inputs, *(name for name in LABEL_COLUMNS if name in columns)])
    collate = processor_for(task).batches(processor, split)
    for start in range(0, len(rows), size):
        batch = collate(list(chosen.select(rows[start : start + size])))
        yield {name: values for name, values in batch.items() if is_told or name not in LABEL_COLUMNS}


def count_cut_rows(task: Task, data: EncodedData, processor: Any) -> dict[str, TruncatedRows]:
    """Return the rows that are cut, by split; splits without any have no entry."""
    found = {
        split: truncated_rows(task, encoded, processor)
        for split, encoded in {TRAIN: data.train, **data.evaluation}.items()
    }
    return {split: cut for split, cut in found.items() if cut is not None}

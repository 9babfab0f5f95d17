"""The rows of a run, their order in training, and the tensors that the model reads of them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from alignattn.finetuning.options import FROM_BOTH, FROM_TASK, DataOptions, RunOptions
from alignattn.finetuning.results import read_result
from alignattn.finetuning.run_folder import changed_rows_file, read_finished_run
from alignattn.models import AT_RANDOM, BY_LENGTH, IN_FILE_ORDER, REBALANCED
from alignattn.tasks import ImageClassification, LabelledTask, Task, TextClassification
from alignattn.tasks.long_texts import MAX_TRAIN_WINDOWS, WindowedRows
from alignattn.tasks.names import BY_SEED, MAX_TEXTS, TEXT_FILE
from alignattn.tasks.reading import read_file
from alignattn.tasks.rows import (
    SAMPLING_SEED,
    Rows,
    load_rows,
    load_task_files,
    load_user_rows,
    max_samples,
    with_validation_share,
)
from alignattn.tasks.task import EncodedSplit
from alignattn.tasks.truncation import INPUT, lengths_of
from alignattn.utils.errors import AlignAttnError, listing, plural
from alignattn.utils.files import plain_stem, plain_suffix, read_text

LABEL_COLUMNS = ("label", "labels")
"""Columns of encoded rows that a collator reads and a forward without a loss does not."""

UNREAD_LABEL = "_label"
"""Label column of texts without labels: a task needs one, and nothing reads it."""

ORDERS_IN_WORDS: Mapping[str, str] = {
    AT_RANDOM: "in random order",
    BY_LENGTH: "of similar length together",
    REBALANCED: "in random order, those of a step grouped by length",
    IN_FILE_ORDER: "in the order of the file",
}


@dataclass(frozen=True)
class EncodedData:
    """The encoded rows of a run: training rows, and evaluation rows by split."""

    train: EncodedSplit
    evaluation: dict[str, EncodedSplit]


def load_run_rows(options: RunOptions) -> Rows[Any]:
    """Return the rows that the options of a run name, at most as many as they allow."""
    data, source, task = options.data, options.data.source, options.task_of_rows
    reading: dict[str, Any] = {
        "cache_dir": options.model.cache_dir,
        "skip_bad_rows": data.skip_bad_rows,
        "slice_by": data.slice_by,
    }
    files: tuple[Any, Any] = (data.train_file, data.validation_file)
    rows: Rows[Any]
    if source == FROM_TASK:
        rows = load_rows(task, data_dir=data.data_dir, **reading)
    elif source != FROM_BOTH and isinstance(task, LabelledTask):
        reading |= {"encoding": data.encoding, "are_images": isinstance(task, ImageClassification)}
        rows = load_user_rows(*files, task.input_columns, task.label_column, **reading)
    else:
        named = task if source == FROM_BOTH else replace(task, name=plain_stem(files[0]))
        rows = load_task_files(named, *files, encoding=data.encoding, **reading)
    if data.validation_share is not None:
        rows = with_validation_share(rows, data.validation_share)

    # The seed samples only training rows: runs are compared on the same evaluation rows.
    seed = options.training.seed if data.take == BY_SEED else SAMPLING_SEED
    train = max_samples(rows.task, rows.train, data.max_train_samples, data.take, seed)
    evaluation = {
        split: max_samples(rows.task, dataset, data.max_eval_samples, data.take)
        for split, dataset in rows.evaluation.items()
    }
    for split, dataset in evaluation.items():
        if data.slice_by is not None and data.slice_by not in dataset.column_names:
            raise AlignAttnError(
                f"--slice_by: the evaluation rows ({split}) have no column {data.slice_by!r}: choose one of theirs"
            )
        if len(dataset) < rows.task.fewest_rows:
            raise AlignAttnError(
                f"split {split!r} has {plural(len(dataset), 'labelled row')} to evaluate on, and "
                f"{', '.join(rows.task.metrics)} need at least {rows.task.fewest_rows}: give more rows"
            )
    return replace(rows, train=train, evaluation=evaluation)


def encode_splits(rows: Rows[Any], tokenizer: Any, options: DataOptions) -> EncodedData:
    """Encode the rows of all splits."""
    length = options.task_options(rows.task, tokenizer).max_length
    if options.max_length is None and length < rows.task.max_length:
        limit = f"rows have at most {length} tokens, the limit of the model"
        print(f"{limit} ({rows.task.max_length} is the default of {rows.task.name})", file=sys.stderr)
    return EncodedData(
        encode_split(rows.task, rows.train, tokenizer, options),
        {split: encode_split(rows.task, dataset, tokenizer, options) for split, dataset in rows.evaluation.items()},
    )


def encode_split(task: Task, rows: datasets.Dataset, tokenizer: Any, options: DataOptions) -> EncodedSplit:
    """Encode rows for a model.

    Args:
        task: the task of the rows.
        rows: the rows as loaded.
        tokenizer: the model's tokenizer or image processor, as in `BuiltModel`.
        options: the options of the rows, such as the maximum length of a sequence.
    """
    task_options = options.task_options(task, tokenizer)
    return EncodedSplit(rows, task.encode(rows, tokenizer, task_options), task_options, tokenizer)


def input_batches(
    task: Task,
    split: EncodedSplit,
    tokenizer: Any,
    rows: Sequence[int],
    size: int,
    *,
    with_labels: bool = False,
) -> Iterator[dict[str, Tensor]]:
    """Yield rows of a split as padded batches of model inputs.

    Args:
        task: the task of the rows.
        split: the encoded split.
        tokenizer: the model's tokenizer or image processor.
        rows: the indices of the encoded rows, in order.
        size: the rows per batch.
        with_labels: whether to keep the labels, which a generative model reads in its forward.
    """
    columns = split.encoded.column_names
    of_texts = task.reads_only_texts
    read = tokenizer.model_input_names if of_texts else set(columns).difference(LABEL_COLUMNS)
    inputs = [name for name in columns if name in read]
    chosen = split.encoded.select_columns([*inputs, *(name for name in LABEL_COLUMNS if name in columns)])
    collate = task.collator(tokenizer, split)
    for start in range(0, len(rows), size):
        batch = collate(list(chosen.select(rows[start : start + size])))
        yield {name: values for name, values in batch.items() if with_labels or name not in LABEL_COLUMNS}


def load_run_evaluation(options: RunOptions, data_dir: str | None = None) -> Rows[Any]:
    """Return all evaluation rows of a run, also those that it did not use.

    Args:
        options: the options of the run.
        data_dir: a folder of Parquet files to read instead of the source of the run's task.
    """
    if data_dir is not None and options.data.train_file is not None:
        raise AlignAttnError(f"--data_dir does not go with {options.output_dir}, a run on custom files: leave it out")
    changed = changed_rows_file(options, options.output_dir) if data_dir is None else None
    if changed is not None:
        print(
            f"{changed} has changed since {options.output_dir} was made: the run may have trained on rows that it now "
            "evaluates",
            file=sys.stderr,
        )
    data, made = replace(options.data, max_eval_samples=None), read_result(options.output_dir)
    if options.task is None or data.train_file is not None:
        # The training file defines the classes of the evaluation rows.
        rows = load_run_rows(replace(options, data=data))
        labels = list(getattr(rows.task, "labels", ()))
        if made is not None and labels != made.labels:
            raise AlignAttnError(
                f"{options.output_dir} has the classes {listing(made.labels)}, and {data.train_file} now has "
                f"{listing(labels)}: restore that file"
            )
        # Keep the name that the task of a file had when the run was made.
        return rows if made is None else replace(rows, task=replace(rows.task, name=made.task))
    origin = data.data_dir if data_dir is None else data_dir
    return load_rows(
        # The training rows of the run may have defined the labels of its task.
        options.task if made is None else read_finished_run(options.output_dir, "--run").task,
        need_train=False,
        data_dir=origin,
        cache_dir=options.model.cache_dir,
        skip_bad_rows=data.skip_bad_rows,
    )


def file_texts(path: Path, columns: Sequence[str]) -> tuple[Task, datasets.Dataset]:
    """Return the texts of a file as rows, and a task that names their columns.

    Args:
        path: a file with one text per line, or a table; either may be compressed.
        columns: the one or two columns of the table that contain the texts.
    """
    rows: dict[str, list[Any]]
    if plain_suffix(path) == TEXT_FILE:
        rows = {"text": [line.strip() for line in read_text(path).split("\n") if line.strip()]}
        if not rows["text"]:
            raise AlignAttnError(f"{path} is empty: give a file with one text per line")
    else:
        dataset = read_file(path)
        present = ", ".join(dataset.column_names)
        if not 1 <= len(columns) <= MAX_TEXTS or len(set(columns)) < len(columns):
            raise AlignAttnError(f"--text_columns: give one or two different columns of {path}: {present}")
        if unknown := [column for column in columns if column not in dataset.column_names]:
            raise AlignAttnError(f"{path} has no column {unknown[0]!r}: choose from {present}")
        rows = {column: dataset[column][:] for column in columns}
    for column, values in rows.items():
        for row, value in enumerate(values, start=1):
            if not isinstance(value, str) or not value.strip():
                raise AlignAttnError(f"column {column!r} of {path} has no text in row {row} ({value!r}): correct it")
    task = TextClassification(
        name=path.name, text_columns=tuple(rows), label_column=UNREAD_LABEL, labels=("",), metrics=("accuracy",)
    )
    num_rows = len(rows[task.text_columns[0]])
    return task, datasets.Dataset.from_dict({**rows, UNREAD_LABEL: [0] * num_rows})


class LengthGroupedSteps(Sampler[int]):
    """Samples rows of similar length for each step, in an order that depends on the seed and the epoch.

    Rows are grouped as in `LengthGroupedSampler`. That sampler takes its order from the global generator, so a run that
    resumes within an epoch reads some of its rows twice and others never. Its batches also go from long to short, so
    batches of one kind, such as of one label, follow each other. Here, all steps are shuffled except the longest, which
    is first, and the last, which may be short.

    Args:
        lengths: the lengths of the rows, in tokens.
        rows_a_step: the rows of a step, over all its batches and devices.
        seed: the seed of the first epoch; the number of each later epoch is added to it.
    """

    def __init__(self, lengths: Sequence[int], rows_a_step: int, seed: int) -> None:
        self.lengths = lengths
        self.rows_a_step = rows_a_step
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        rows = get_length_grouped_indices(self.lengths, self.rows_a_step, generator=generator)
        steps = [rows[start : start + self.rows_a_step] for start in range(0, len(rows), self.rows_a_step)]
        between = range(1, len(steps) - 1)
        shuffled = [between[index] for index in torch.randperm(len(between), generator=generator).tolist()]
        for step in dict.fromkeys((0, *shuffled, len(steps) - 1)):
            yield from steps[step]


def scattered(seed: int) -> int:
    """Return a seed far from its neighbours', because adjacent seeds would share all epochs, shifted by one."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def padded_lengths(rows: datasets.Dataset | WindowedRows) -> list[int]:
    """Return the number of tokens of each row; for several sequences, such as choices, all padded to the longest."""
    if isinstance(rows, WindowedRows):
        longest = np.maximum.reduceat(padded_lengths(rows.windows), rows.starts)
        return (longest * np.minimum(rows.counts, MAX_TRAIN_WINDOWS)).tolist()
    column = rows.select_columns([INPUT]).with_format("arrow")[:][INPUT]
    lengths = lengths_of(column)
    if pa.types.is_nested(column.type.value_type):
        lengths = lengths * np.array(pc.list_value_length(column), dtype=np.int64)
    return lengths.tolist()

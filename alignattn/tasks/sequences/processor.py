"""Sequences that a model reads and writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pyarrow as pa
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedConfig,
)

from alignattn.tasks.outputs import check_finite
from alignattn.tasks.processor import EncodedSplit, Evaluation, TaskProcessor, encode_rows, row_numbers, text_problem
from alignattn.tasks.sequences.cmudict import cmudict_rows
from alignattn.tasks.sequences.errors import error_rate, nearest
from alignattn.tasks.sequences.task import CMUDICT, ERROR_RATE, EXACT, SequenceToSequence, WrittenTask
from alignattn.tasks.sequences.units import text_of, units_of
from alignattn.tasks.task import TaskOptions
from alignattn.utils.errors import AlignAttnError

NO_LABEL = -100
"""Fills up the labels of a batch."""

_REFERENCES = datasets.List(datasets.Value("string"))
"""The type of a column of what is right, once it is normalised."""


class SequencesProcessor(TaskProcessor[WrittenTask]):
    """One sequence a row; a model is trained by its right continuation, and writes by itself where it is evaluated."""

    auto_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    reads_texts_alone = False
    is_generative = True

    def read_split(
        self, task: WrittenTask, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of CMUdict; None for a task of files."""
        assert isinstance(task, SequenceToSequence)
        return cmudict_rows(task, name) if task.collection == CMUDICT and data_dir is None else None

    def columns(self, task: WrittenTask) -> list[str]:
        """Return the columns of both texts."""
        return [task.source_column, task.target_column]

    def normalise(self, task: WrittenTask, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a list of texts that are right, where a row has one alone."""
        name = task.target_column
        feature = dataset.features[name]
        is_list = isinstance(feature, datasets.List)
        dtype = getattr(feature.feature if is_list else feature, "dtype", "")
        if dtype not in ("string", "large_string", "null"):
            raise AlignAttnError(f"column {name!r} holds {dtype or feature}: give texts to write, or lists of such")
        references = [
            (given or []) if is_list else [given] if isinstance(given, str) else [] for given in dataset[name][:]
        ]
        return dataset.remove_columns(name).add_column(name, references, feature=_REFERENCES)

    def problems(self, task: WrittenTask, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows of which a side is empty."""
        problems = self.input_problems(task, dataset, may_be_empty=may_be_empty)
        for index, references in enumerate(dataset[task.target_column][:]):
            place = f"column {task.target_column!r}"
            found = [text_problem(place, text) for text in references] or [f"{place} is empty"]
            if problem := next(filter(None, found), None):
                problems.setdefault(index, problem)
        return problems

    def input_problems(self, task: WrittenTask, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows whose text is empty: of nothing nothing can be written."""
        name = task.source_column
        found = {index: text_problem(f"column {name!r}", text) for index, text in enumerate(dataset[name][:])}
        return {index: problem for index, problem in found.items() if problem is not None}

    def unlabelled(self, task: WrittenTask, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with nothing that is right."""
        return dataset.add_column(task.target_column, [[""]] * len(dataset), feature=_REFERENCES)

    def smooths_labels(self, task: WrittenTask) -> bool:
        """Return False: the Trainer takes the labels from the model for it, which reads them as it is trained."""
        return False

    def constant_prediction(self, task: WrittenTask, predictions: pa.Table) -> str | None:
        """Return what is written for every row, if that is the same of several."""
        written = set(predictions["prediction"].to_pylist())
        return repr(written.pop()) if len(written) == 1 and predictions.num_rows > 1 else None

    def configure(self, task: WrittenTask, config: PreTrainedConfig) -> None:
        """Set nothing: the vocabulary says what can be written."""

    def encode(
        self, task: WrittenTask, dataset: datasets.Dataset, processor: Any, options: TaskOptions
    ) -> datasets.Dataset:
        """Return the tokens that are read, and those of the first text that is right."""
        return encode_rows(_encode_batch, task, dataset, processor, options)

    def collator(self, processor: Any) -> DataCollatorForSeq2Seq:
        """Return what pads both sides of a batch."""
        return DataCollatorForSeq2Seq(processor)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return what a model writes for a batch, `[B, n]`, and the logarithm of its probability, `[B]`."""
        written: tuple[Tensor, Tensor] = model.write(
            batch["input_ids"], batch.get("attention_mask"), num_beams=options.num_beams, most=options.max_length
        )
        return written

    def answers(self, task: WrittenTask, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the texts that were written, and how probable the model takes each for."""
        tokens, log_probabilities = outputs[:2]
        check_finite(log_probabilities)
        texts = [text_of(parts, task.target_units) for parts in _tokens_of(split.processor, tokens)]
        probabilities = np.exp(log_probabilities.astype(np.float64))
        return pa.table({"prediction": pa.array(texts, pa.string()), "probability": pa.array(probabilities)})

    def nothing(self, task: WrittenTask, most: int | None) -> pa.Table:
        """Return the columns of what is written, without a row."""
        return pa.table({"prediction": pa.array([], pa.string()), "probability": pa.array([], pa.float64())})

    def evaluate(self, task: WrittenTask, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score what was written by the nearest of what is right."""
        rows, answers, units = split.rows, self.answers(task, split, outputs, labels), task.target_units
        references = rows[task.target_column][:]
        found = [
            nearest(units_of(text, units), [units_of(reference, units) for reference in right])
            for text, right in zip(answers["prediction"].to_pylist(), references, strict=True)
        ]
        metrics = {ERROR_RATE: error_rate(found), EXACT: sum(not one.edits for one in found) / len(found)}
        columns = {"row": pa.array(row_numbers(rows)), "label": pa.array(references)}
        columns |= {name: answers[name] for name in answers.column_names}
        columns |= {"edits": pa.array([one.edits for one in found]), "length": pa.array([one.length for one in found])}
        return Evaluation({name: metrics[name] for name in task.metrics}, pa.table(columns))


def _encode_batch(
    batch: dict[str, list[Any]], task: WrittenTask, tokenizer: Any, max_length: int
) -> dict[str, list[Any]]:
    encoded = tokenizer(batch[task.source_column], truncation=True, max_length=max_length)
    return {**encoded, "labels": target_ids(batch, task, tokenizer, max_length)}


def target_ids(batch: Mapping[str, list[Any]], task: WrittenTask, tokenizer: Any, max_length: int) -> list[list[int]]:
    """Return the tokens of the first text that is right of each row, with the end; what is cut has none."""
    texts = (references[0] for references in batch[task.target_column])
    targets = (units_of(text, task.target_units)[:max_length] for text in texts)
    return [[*tokenizer.convert_tokens_to_ids(units), tokenizer.eos_token_id][:max_length] for units in targets]


def _tokens_of(tokenizer: Any, written: Any) -> list[list[str]]:
    """The tokens of what was written, `[N, n]`, each up to its end."""
    end = tokenizer.eos_token_id
    ids = [row[: row.index(end)] if end in row else row for row in written.tolist()]
    return [tokenizer.convert_ids_to_tokens([one for one in row if one >= 0]) for row in ids]

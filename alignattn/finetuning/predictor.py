"""Predicts new rows with the trained model of a run: rows -> tensors -> model -> predictions, as in its evaluation."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import datasets
import numpy as np
import pyarrow as pa
import torch
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.utils.generic import find_labels

from alignattn.finetuning.model import ignored_outputs, load_preprocessor
from alignattn.finetuning.results import CALIBRATION_FOLDER, CALIBRATION_ROWS_FILE
from alignattn.finetuning.run_folder import FinishedRun, read_finished_run, warn_plain
from alignattn.models import capabilities_of
from alignattn.models.lengths import batches_of_rows, picture_tokens
from alignattn.patching.checkpoints import load_checkpoint
from alignattn.tasks import Task
from alignattn.tasks.formats import TextRows
from alignattn.tasks.long_texts import pooled_outputs
from alignattn.tasks.names import PROBABILITIES
from alignattn.tasks.pictures import encode_picture
from alignattn.tasks.reading import file_rows
from alignattn.tasks.sequence_to_sequence import check_generates
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.tasks.truncation import count_unknown_rows, unknown_rows_warning
from alignattn.utils.console import without_library_bars
from alignattn.utils.errors import AlignAttnError, plural, shown

if TYPE_CHECKING:
    from alignattn.evaluation.calibration.decisions import Calibration
    from alignattn.finetuning.decisions import Decisions

# Decisions need SciPy's statistics, whose import takes seconds: they are imported where a run has a calibration.

logger = logging.getLogger(__name__)

LABELS = ("label", "labels")
"""Columns of encoded rows that collators turn into `labels`."""

PADDING = -100
"""Fills outputs where a batch has fewer than another, as in the Trainer."""

Row = str | Sequence[str] | Mapping[str, Any]
"""A text; the texts of a row, such as a pair; or a row as a mapping of its columns."""


@dataclass(frozen=True)
class Batching:
    """How rows become batches.

    Attributes:
        size: the rows per batch; None = chosen for the device.
        by_length: whether to group rows of similar length. In the given order and in batches of the run's size, outputs
            equal those of the run's evaluation bit for bit, on the same machine.
    """

    size: int | None = None
    by_length: bool = True


@dataclass(frozen=True)
class Predictor:
    """A trained model with its preprocessor and options; `load_run` loads one from a run's folder.

    Attributes:
        run: the run that trained it.
        model: the model in evaluation mode, with the attention it was trained with.
        tokenizer: the model's tokenizer or image processor; None if the task needs none.
        options: how rows become tensors and outputs become predictions.
        temperature: the divisor of logits; None = leave them as they are.
        decisions: the decisions to make on each row, if any.
    """

    run: FinishedRun
    model: PreTrainedModel
    tokenizer: Any
    options: TaskOptions
    temperature: float | None = None
    decisions: "Decisions | None" = None

    @property
    def task(self) -> Task:
        """The task that the model was trained on, with its labels."""
        return self.run.task

    def predict(
        self,
        rows: Sequence[Row],
        *,
        top_k: int | None = None,
        batch_size: int | None = None,
        by_length: bool = True,
        coverage: float | None = None,
        max_error: float | None = None,
        sets: str = "lac",
    ) -> list[dict[str, Any]]:
        """Predict rows, and return the prediction of each, in their order.

        Args:
            rows: texts, pairs of texts, or rows as mappings, of which the task's columns are read.
            top_k: how many classes or answers to return, best first; None = all classes, one answer.
            batch_size: the rows per batch; None = chosen for the device.
            by_length: as in `Batching`.
            coverage: as for `with_decisions`.
            max_error: likewise.
            sets: likewise.

        Returns:
            For each row, `prediction` and more: with classes, `probability` and `probabilities`; with answers, `start`,
            `probability` and `no_answer_score`; with words, a tag each. With `coverage`, `set` has the classes,
            the likeliest first; with `max_error`, `decision` is a class or `abstain`.

        Raises:
            AlignAttnError: if a row lacks a column, or has no text where it needs one; or as `with_decisions`.
        """
        if coverage is not None or max_error is not None:
            deciding = self.with_decisions(coverage=coverage, max_error=max_error, sets=sets)
            return deciding.predict(rows, top_k=top_k, batch_size=batch_size, by_length=by_length)
        rows = _listed(rows)
        if not rows:
            return []
        split = self.encode(self.checked(rows))
        if unknown := self.count_unknown_rows(split):
            logger.warning(unknown_rows_warning(unknown))
        answers, inputs = self.answers(split, Batching(batch_size, by_length)), self.input_numbers(split)
        if inputs is not None:
            # A repeated row tells nothing new.
            distinct = dict(zip(inputs.tolist(), probabilities_of(answers), strict=True))
            if line := self.shift_warning(np.stack(list(distinct.values())), "the rows"):
                logger.warning(line)
        return self.readable(answers, inputs, top_k).to_pylist()

    def checked(self, rows: Sequence[Row]) -> datasets.Dataset:
        """Return rows, as for `predict`, as a data set; raises `AlignAttnError` for a row that cannot be used."""
        dataset = self.dataset(rows)
        for index, problem in sorted(self.problems(dataset).items()):
            raise AlignAttnError(f"row {index + 1}: {problem}")
        return dataset

    def dataset(self, rows: Sequence[Row]) -> datasets.Dataset:
        """Return rows as a data set of the task's input columns."""
        task, filled = self.task, []
        for number, row in enumerate(_listed(rows), start=1):
            if isinstance(row, Mapping):
                missing = [name for name in task.input_columns if name not in row]
                if missing:
                    raise AlignAttnError(f"row {number} has no {missing[0]!r} (it has {', '.join(map(str, row))})")
                filled.append(row)
                continue
            if not isinstance(row, Iterable):
                raise AlignAttnError(f"row {number} is {shown(row)}: give a text, several, or the columns of a row")
            texts = [row] if isinstance(row, str) else list(row)
            if len(texts) != task.texts_of_a_row:
                raise AlignAttnError(
                    f"row {number}, {shown(row)}, has {plural(len(texts), 'text')}, and task {task.name!r} needs "
                    f"{task.texts_of_a_row}: {', '.join(task.input_columns)}"
                )
            filled.append(task.row_of(texts))
        columns = {name: [row[name] for row in filled] for name in task.input_columns}
        if task.reads_images:
            columns = {name: _pictures(values) for name, values in columns.items()}
        read = file_rows(TextRows(columns), path="a row", is_decoded=True)
        for index, problem in sorted(read.problems_in(columns).items()):
            raise AlignAttnError(f"row {index + 1}: {problem}")
        return read.dataset

    def problems(self, dataset: datasets.Dataset) -> dict[int, str]:
        """Return the problem of each row that cannot be used, by its number from 0."""
        return self.task.input_problems(self.task.normalise_inputs(dataset), may_be_empty=False)

    def input_numbers(self, split: EncodedSplit) -> NDArray[np.uint64] | None:
        """Return numbers `[N]` that are equal for rows with the same input; None for a run without calibration.

        Decisions and the test for a shift need them, and they digest every row, so they are computed once.
        """
        if self.calibration is None:
            return None
        from alignattn.finetuning.examples import input_numbers

        return input_numbers(split.rows, self.task)

    def readable(self, answers: pa.Table, inputs: NDArray[np.uint64] | None, top_k: int | None = None) -> pa.Table:
        """Return predictions in readable form, with the decisions on each row.

        Args:
            answers: the predictions that `answers` returned.
            inputs: the numbers of the rows' inputs, as from `input_numbers`.
            top_k: as for `predict`.
        """
        table = self.task.readable_predictions(answers, top_k)
        if self.decisions is not None:
            from alignattn.finetuning.decisions import uniform_of

            assert inputs is not None
            for name, column in self.decisions.columns(probabilities_of(answers), uniform_of(inputs)).items():
                table = table.append_column(name, column)
        return table

    def answers(
        self, split: EncodedSplit, batching: Batching, advance: Callable[[int], object] | None = None
    ) -> pa.Table:
        """Return the predictions of rows in the form of a run's `predictions.parquet`, one line per row.

        Args:
            split: rows in which `problems` finds nothing, encoded by `encode`.
            batching: how rows become batches.
            advance: called with the number of rows that were just predicted.
        """
        outputs, labels = self.outputs(split, batching, advance)
        if self.temperature is not None:
            outputs = outputs.astype(np.float64) / self.temperature
        return self.task.predictions(split, outputs, labels)

    def encode(self, dataset: datasets.Dataset) -> EncodedSplit:
        """Return rows of the task's input columns, encoded for the model."""
        rows = self.task.add_dummy_labels(self.task.normalise_inputs(dataset))
        # Rows come in parts, and each part would show its own bar.
        with without_library_bars():
            encoded = self.task.encode(rows, self.tokenizer, self.options)
            return EncodedSplit(rows, encoded, self.options, self.tokenizer)

    def count_unknown_rows(self, split: EncodedSplit) -> int:
        """Return how many encoded rows have no word that the model knows; 0 for a pretrained model."""
        if capabilities_of(self.run.options.model.model).is_pretrained:
            return 0
        return count_unknown_rows(split, self.tokenizer)

    def with_beams(self, num_beams: int) -> Self:
        """Return a copy that generates with `num_beams` beams; raises as `check_generates` does."""
        check_generates(self.task)
        return replace(self, options=replace(self.options, num_beams=num_beams))

    def with_decisions(
        self, *, coverage: float | None = None, max_error: float | None = None, sets: str = "lac"
    ) -> Self:
        """Return a copy with decisions, at the temperature of the run's calibration.

        Args:
            coverage: probability that a row's `set` of classes holds its label, above 0 and below 1.
            max_error: maximum error rate of answered rows, above 0, below 1; the `decision` on others is `abstain`.
            sets: `lac`, the smallest sets on average if the probabilities are true, or `aps`, which are larger on
                harder rows.

        Raises:
            AlignAttnError: as `run_decisions` does.
        """
        from alignattn.finetuning.decisions import run_decisions

        decisions = run_decisions(self.run, self.temperature, coverage, max_error, sets)
        return replace(self, temperature=decisions.calibration.temperature, decisions=decisions)

    @cached_property
    def calibration(self) -> "Calibration | None":
        """The calibration that `alignattn calibrate --run` wrote to the run's folder; None if there is none."""
        if self.decisions is not None:
            return self.decisions.calibration
        if not (self.run.folder / CALIBRATION_FOLDER / CALIBRATION_ROWS_FILE).is_file():
            return None
        from alignattn.finetuning.decisions import read_run_calibration

        return read_run_calibration(self.run)

    def shift_warning(self, probabilities: NDArray[np.float64], origin: str) -> str | None:
        """Return a warning if rows are unlike the calibration rows, as `decisions.shift_warning`; None otherwise."""
        if self.calibration is None:
            return None
        from alignattn.finetuning.decisions import shift_warning

        return shift_warning(self.calibration, probabilities, self.temperature, origin)

    def outputs(
        self, split: EncodedSplit, batching: Batching, advance: Callable[[int], object] | None = None
    ) -> tuple[Any, NDArray[Any] | None]:
        """Return the outputs of all sequences of a split and their labels, as `TaskTrainer.predict` does.

        Args:
            split: as for `answers`.
            batching: likewise.
            advance: likewise.
        """
        encoded, task = split.encoded, self.task
        inputs = set(inspect.signature(self.model.forward).parameters).difference(find_labels(type(self.model)))
        # Images and long texts may be large, so each batch loads its own.
        is_large = task.reads_images or split.options.has_windows
        columns = {
            name: encoded[name] if is_large else encoded[name][:]
            for name in encoded.column_names
            if name in {*inputs, *LABELS}
        }
        ignored = {"loss", *ignored_outputs(self.model)}
        collate, device = task.collator(self.tokenizer, split), self.model.device
        # The outputs of each batch, and at last its labels.
        batches: list[tuple[list[int], list[NDArray[Any]]]] = []
        done, has_labels = 0, False
        # Rows without tokens are pictures, or nodes of one graph.
        size = picture_tokens(self.model.config) if task.reads_images else 1
        lengths = [_tokens(ids) for ids in columns["input_ids"]] if "input_ids" in columns else [size] * len(encoded)
        rows = range(len(encoded))
        for members in batches_of_rows(rows, lengths, device, batching.size, by_length=batching.by_length):
            batch = dict(collate([{name: values[index] for name, values in columns.items()} for index in members]))
            labels = batch.pop("labels", None)
            has_labels = labels is not None
            on_device = {name: values.to(device) for name, values in batch.items()}
            with torch.inference_mode():
                if task.is_generative:
                    tensors = list(task.generate(self.model, on_device, split.options))
                else:
                    tensors = [values for name, values in self.model(**on_device).items() if name not in ignored]
                # NumPy has no bfloat16.
                tensors = [values.float() if values.dtype == torch.bfloat16 else values for values in tensors]
                arrays = [np.asarray(values.cpu().numpy()) for values in tensors]
            batches.append((members, arrays if labels is None else [*arrays, labels.numpy()]))
            # A long context has several windows: count rows in proportion.
            before, done = done, done + len(members)
            if advance is not None:
                advance(len(split.rows) * done // len(encoded) - len(split.rows) * before // len(encoded))

        # Arrays of all rows, in their order. Where a batch has fewer outputs than another, they are filled.
        gathered = []
        for parts in zip(*(arrays for _, arrays in batches), strict=True):
            largest = tuple(max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True))
            whole = np.full((len(encoded), *largest), PADDING, dtype=parts[0].dtype)
            for (members, _), part in zip(batches, parts, strict=True):
                place: Any = (np.asarray(members), *(slice(size) for size in part.shape[1:]))
                whole[place] = part
            gathered.append(whole)
        label_ids = gathered.pop() if has_labels else None
        logits: Any = gathered[0] if len(gathered) == 1 else tuple(gathered)
        return pooled_outputs(encoded, logits, label_ids)


def _listed(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a list, an array or another collection; refuse a single row, and a table of columns."""
    if isinstance(rows, str | Mapping) or hasattr(rows, "columns"):
        raise AlignAttnError("give a list of rows, such as [row], or of a DataFrame df.to_dict('records')")
    return list(rows)


def _pictures(values: Sequence[Any]) -> list[Any]:
    """Return a column of pictures in a form that `datasets` keeps: paths, or only mappings."""
    held = []
    for number, value in enumerate(values, start=1):
        try:
            held.append(encode_picture(value))
        except AlignAttnError as error:
            raise AlignAttnError(f"row {number}: {error}") from error
    if any(isinstance(value, Mapping) for value in held):
        held = [value if isinstance(value, Mapping) else {"bytes": None, "path": value} for value in held]
        for number, value in enumerate(held, start=1):
            if not isinstance(value.get("path"), str | None):
                raise AlignAttnError(f"row {number}: no image is named ({shown(value['path'])})")
    return held


def probabilities_of(answers: pa.Table) -> NDArray[np.float64]:
    """Return the probabilities of classes `[N, C]` in predictions of `Predictor.answers`."""
    return np.stack(answers[PROBABILITIES].to_numpy())


def load_run(
    folder: str | Path, *, temperature: float | None = None, device: str | torch.device | None = None
) -> Predictor:
    """Load the trained model of a run for prediction.

        predictor = alignattn.load_run("runs/mrpc")
        predictor.predict([("He said so .", "So he said .")])

    Args:
        folder: the folder of a finished run of `alignattn finetune`.
        temperature: the divisor of the logits of classes, such as one that `alignattn calibrate` fitted.
        device: the device to compute on; None = a GPU if there is one.

    Raises:
        AlignAttnError: if the folder has no finished run that this version can read.
    """
    run = read_finished_run(Path(folder), "the folder")
    warn_plain(run.folder, run.options)
    return load_predictor(run, temperature=temperature, device=device)


def load_predictor(
    run: FinishedRun, *, temperature: float | None = None, device: str | torch.device | None = None
) -> Predictor:
    """Load the trained model of a run; arguments as for `load_run`."""
    if temperature is not None:
        run.check_has_classes()
    name, auto_class = str(run.folder), getattr(transformers, run.task.auto_class)
    model = load_checkpoint(name, auto_class, lacking="trained model: give the folder of a finished run")
    tokenizer = load_preprocessor(name, model, type(run.task))
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model.eval().to(target)
    # Loaded weights lie in memory as in their file, and where a matrix begins decides the last bits of its products.
    # Copies begin where the allocator places them, as in the run's own evaluation.
    for weights in model.parameters():
        weights.data = weights.data.clone()
    # Tokenizing in several processes is for large files; here rows come in parts.
    options = replace(run.options.data.task_options(run.task, tokenizer), num_proc=None)
    return Predictor(run, model, tokenizer, options, temperature)


def _tokens(ids: Sequence[Any]) -> int:
    """Return the number of tokens of an item of a batch; for several sequences, such as choices, their sum."""
    return sum(map(_tokens, ids)) if ids and isinstance(ids[0], list) else len(ids)

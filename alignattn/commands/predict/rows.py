"""Rows and what a run's model predicts of them, side by side."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa

from alignattn.commands.predict import PredictOptions
from alignattn.commands.predict.inputs import Part, Source
from alignattn.commands.predict.outputs import file_writer
from alignattn.commands.predict.seen import SeenRows
from alignattn.finetuning.predictor import Batching, Predictor, load_predictor
from alignattn.finetuning.run_folder import FinishedRun
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.tags.tagging import count_unspaced
from alignattn.tasks.task_types import TokenClassification, processor_class, processor_for
from alignattn.utils.bad_rows import list_bad_rows
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import replacing

PART_ROWS = 4096
"""Read, sorted by length and held at once."""

PART_NUMBERS = 2**22
"""Probabilities that are held at once: of many classes, parts have fewer rows."""


@dataclass(frozen=True)
class Prediction:
    """How rows are predicted.

    Attributes:
        predictor: the run's model.
        batching: how rows become batches.
        top_k: of what could be the answer so many are told.
        skip_bad_rows: whether bad rows get nothing, and do not end it.
        seen: what is to be known of the rows so far.
    """

    predictor: Predictor
    batching: Batching
    top_k: int | None
    skip_bad_rows: bool
    seen: SeenRows = field(default_factory=SeenRows)

    def write(self, source: Source, target: Path, advance: Callable[[int], object]) -> None:
        """Write all rows with what is predicted of them to a new file, in one step."""
        self.check(source)
        with replacing(target) as temporary, file_writer(temporary, target.suffix.lower()) as write:
            for table in self.tables(source, advance):
                write(table)

    @cached_property
    def nothing(self) -> pa.Table:
        """The columns of predictions, without a row."""
        task = self.predictor.task
        if not processor_class(task).reads_only_texts:
            return processor_for(task).empty_predictions(self.top_k)
        row = task.row_of(["a"] * task.texts_of_a_row)
        split = self.predictor.encode(self.predictor.dataset([row]))
        return self.predictor.readable(split, Batching(), self.top_k).slice(0, 0)

    def check(self, source: Source) -> None:
        """Refuse rows that have a column of the name of one of the predictions."""
        for name in self.nothing.column_names:
            if name in source.columns:
                raise AlignAttnError(f"{source.origin} has a column {name!r}, as the predictions do: rename it")

    def tables(self, source: Source, advance: Callable[[int], object]) -> Iterator[pa.Table]:
        """Yield all rows with what is predicted of them, in their order.

        Args:
            source: of the rows.
            advance: told how many rows more are done.
        """
        before = 0
        for part in source.parts(self._part_rows()):
            yield self._predicted(part, source.origin, before, advance)
            before += part.table.num_rows

    def _part_rows(self) -> int:
        labels = getattr(self.predictor.task, "num_labels", 1)
        rows, size = max(1, min(PART_ROWS, PART_NUMBERS // labels)), self.batching.size or 1
        # Batches in order are those of all rows.
        return -(-rows // size) * size

    def _seen(self, inputs: datasets.Dataset, split: EncodedSplit) -> SeenRows:
        predictor = self.predictor
        task = predictor.task
        return SeenRows(
            predictor.options.max_length,
            predictor.count_lengths(split),
            predictor.count_unknown_rows(split),
            count_unspaced(inputs[task.tokens_column][:]) if isinstance(task, TokenClassification) else 0,
        )

    def _predicted(self, part: Part, origin: str, before: int, advance: Callable[[int], object]) -> pa.Table:
        problems, count = self.predictor.problems(part.inputs) | dict(part.problems), part.table.num_rows
        if problems and not self.skip_bad_rows:
            list_bad_rows({before + row: text for row, text in problems.items()}, origin, before + count, skip=False)
        good = np.array([row for row in range(count) if row not in problems], dtype=np.int64)
        predictions = self.nothing
        if len(good):
            inputs = part.inputs.select(good) if problems else part.inputs
            split = self.predictor.encode(inputs)
            self.seen.add(self._seen(inputs, split))
            predictions = self.predictor.readable(split, self.batching, self.top_k, advance)
        if problems:
            places = np.full(count, -1)
            places[good] = np.arange(len(good))
            predictions = predictions.take(pa.array(places, mask=places < 0))
            advance(len(problems))
        table = part.table
        for name in predictions.column_names:
            table = table.append_column(name, predictions[name])
        return table


def load_prediction(run: FinishedRun, temperature: float, options: PredictOptions) -> Prediction:
    """Load a run's model to predict as options say.

    Args:
        run: that trained it.
        temperature: as for `load_predictor`.
        options: of the call.
    """
    size = options.batch_size
    if options.in_order and size is None:
        size = run.options.training.per_device_eval_batch_size
    predictor = load_predictor(run, temperature=temperature)
    if options.num_beams is not None:
        predictor = predictor.with_beams(options.num_beams)
    return Prediction(predictor, Batching(size, not options.in_order), options.top_k, options.skip_bad_rows)

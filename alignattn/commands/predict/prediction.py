"""Predict rows with the model of a run: in this process, or on a Ray cluster whose workers load the model."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from alignattn.commands.predict import PredictOptions
from alignattn.commands.predict.files import Part, Source, file_source, row_writer
from alignattn.finetuning.heads import Examples, batch_of_one, view_head
from alignattn.finetuning.predictor import Batching, Predictor, load_predictor
from alignattn.finetuning.run_folder import FinishedRun, read_finished_run
from alignattn.reports.plots.maps import draw_heat_maps
from alignattn.tasks.answers.windows import count_truncated_questions, truncated_questions_warning
from alignattn.tasks.tags.tagging import count_unsegmented
from alignattn.tasks.task_types import QuestionAnswering, TokenClassification, processor_class, processor_for
from alignattn.tasks.truncation import TruncatedRows, unknown_rows_warning
from alignattn.utils.bad_rows import list_bad_rows
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.options import values_of
from alignattn.utils.progress import counted
from alignattn.utils.ray_cluster import gpu_or_core, ray_cluster

PART_ROWS = 4096
"""Rows that are read and sorted by length at a time."""

PART_NUMBERS = 2**22
"""Maximum probabilities in memory; with many classes, fewer rows are read at a time."""

MAX_SHIFT_ROWS = 4096
"""Maximum rows of a file that are compared with the calibration rows."""

MAX_PANELS = 4
"""Maximum sequences of a row that are drawn: its choices, or windows of its context."""

RAYS_OWN_PROGRESS = ("ray.data._internal.execution.streaming_executor", "ray.data._internal.progress")
"""Loggers of Ray Data's progress; alignattn logs its own."""


@dataclass
class RowCounts:
    """Counts over the predicted rows, for remarks at the end.

    Attributes:
        max_length: the maximum number of tokens per row.
        lengths: the number of rows by their number of tokens before truncation.
        unknown: the number of rows without a word that the model knows.
        unspaced: the number of rows to tag that are a single word because they have no blanks.
        truncated_questions: the number of rows whose question is truncated.
        lines: remarks on decisions and on files that differ from the calibration rows, without duplicates.
    """

    max_length: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    unknown: int = 0
    unspaced: int = 0
    truncated_questions: int = 0
    lines: list[str] = field(default_factory=list)

    def add(
        self,
        max_length: int,
        lengths: Mapping[Any, int],
        unknown: int = 0,
        unspaced: int = 0,
        truncated_questions: int = 0,
        lines: Sequence[str] = (),
    ) -> None:
        """Add the counts of another part; its lengths may be strings, as in JSON."""
        self.max_length = max_length
        self.lengths.update({int(tokens): rows for tokens, rows in lengths.items()})
        self.unknown += unknown
        self.unspaced += unspaced
        self.truncated_questions += truncated_questions
        self.lines = list(dict.fromkeys([*self.lines, *lines]))

    def remarks(self) -> Iterator[str]:
        """Yield the remarks, a line each."""
        truncated = TruncatedRows.from_lengths(self.lengths, self.max_length)
        if truncated is not None:
            yield f"{truncated} (the run's --max_length)"
        if self.truncated_questions:
            yield truncated_questions_warning(self.truncated_questions)
        if self.unspaced:
            yield (
                f"{self.unspaced} row(s) are one word of several Chinese characters and get one tag: put blanks "
                "between the characters if the training rows have them"
            )
        if self.unknown:
            yield unknown_rows_warning(self.unknown)
        yield from self.lines


@dataclass
class Prediction:
    """A loaded model and how it predicts rows.

    Attributes:
        predictor: the run's model.
        batching: how rows become batches.
        top_k: how many classes or answers each row lists.
        skip_bad_rows: whether bad rows get empty predictions instead of raising an error.
        seen: counts over the rows so far.
    """

    predictor: Predictor
    batching: Batching
    top_k: int | None
    skip_bad_rows: bool
    seen: RowCounts = field(default_factory=RowCounts)

    def write(self, source: Source, target: Path | None, advance: Callable[[int], object]) -> None:
        """Write all rows, in their order, with their predictions.

        Args:
            source: the rows.
            target: a new file, which appears when all rows are written; None for standard output.
            advance: called with the number of rows that were just predicted.

        Raises:
            AlignAttnError: if a column has the name of a column of predictions.
        """
        for name in self.nothing.column_names:
            if name in source.columns:
                raise AlignAttnError(f"{source.origin} has a column {name!r}, which the predictions need: rename it")
        labels = getattr(self.predictor.task, "num_labels", 1)
        rows, size = max(1, min(PART_ROWS, PART_NUMBERS // labels)), self.batching.size or 1
        before = 0
        tested: dict[int, NDArray[np.float64]] = {}
        with row_writer(target, source.format, source.file, source.form) as write:
            # Parts are whole batches, so that with --in_order the batches are those of all rows together, unless rows
            # have several windows or are left out as bad.
            for part in source.parts(-(-rows // size) * size):
                write(self._predict(part, source, before, advance, tested))
                before += part.table.num_rows
        lines = [] if self.predictor.decisions is None else list(self.predictor.decisions.remarks())
        if tested and (line := self.predictor.shift_warning(np.stack(list(tested.values())), source.origin)):
            lines.append(line)
        self.seen.add(self.seen.max_length, {}, lines=lines)

    @cached_property
    def nothing(self) -> pa.Table:
        """An empty table with the columns of the predictions."""
        task = self.predictor.task
        if not processor_class(task).reads_only_texts:
            empty, decisions = processor_for(task).empty_predictions(self.top_k), self.predictor.decisions
            columns = {} if decisions is None else decisions.columns(np.empty((0, len(decisions.labels))), np.empty(0))
            return pa.table({**{name: empty[name] for name in empty.column_names}, **columns})
        row = task.row_of(["a"] * task.texts_of_a_row)
        split = self.predictor.encode(self.predictor.dataset([row]))
        return self.predictor.readable(split, self.predictor.answers(split, Batching()), self.top_k).slice(0, 0)

    def _predict(
        self,
        part: Part,
        source: Source,
        before: int,
        advance: Callable[[int], object],
        tested: dict[int, NDArray[np.float64]],
    ) -> pa.Table:
        """Return the rows of a part with their predictions.

        Args:
            part: the rows.
            source: the source of all rows.
            before: the number of rows in the parts before.
            advance: as for `write`.
            tested: collects the probabilities of every n-th row by its input, to compare them with the calibration.
        """
        predictor, task = self.predictor, self.predictor.task
        problems, count = predictor.problems(part.inputs) | dict(part.problems), part.table.num_rows
        if problems and not self.skip_bad_rows:
            numbered = {before + row: text for row, text in problems.items()}
            list_bad_rows(numbered, source.origin, before + count, skip=False)
        good = np.array([row for row in range(count) if row not in problems], dtype=np.int64)
        predictions = self.nothing
        if len(good):
            inputs = part.inputs.select(good) if problems else part.inputs
            split = predictor.encode(inputs)
            unspaced = count_unsegmented(inputs[task.tokens_column][:]) if isinstance(task, TokenClassification) else 0
            unknown = predictor.count_unknown_rows(split)
            questions = count_truncated_questions(split) if isinstance(task, QuestionAnswering) else 0
            self.seen.add(predictor.options.max_length, predictor.count_lengths(split), unknown, unspaced, questions)
            answers = predictor.answers(split, self.batching, advance)
            predictions = predictor.readable(split, answers, self.top_k)
            if predictor.calibration is not None:
                every = -(-source.num_rows // MAX_SHIFT_ROWS)
                tested |= predictor.distinct_probabilities(split, answers, every)
        if problems:
            places = np.full(count, -1)
            places[good] = np.arange(len(good))
            predictions = predictions.take(pa.array(places, mask=places < 0))
            advance(len(problems))
        table = part.table
        for name in predictions.column_names:
            table = table.append_column(name, predictions[name])
        return table


def load_prediction(run: FinishedRun, temperature: float | None, options: PredictOptions) -> Prediction:
    """Load a run's model for prediction.

    Args:
        run: the run.
        temperature: as for `load_predictor`.
        options: the options of the command.
    """
    size = options.batch_size
    if options.in_order and size is None:
        size = run.options.training.per_device_eval_batch_size
    predictor = load_predictor(run, temperature=temperature)
    if options.num_beams is not None:
        predictor = predictor.with_beams(options.num_beams)
    if options.decides:
        predictor = predictor.with_decisions(coverage=options.coverage, max_error=options.max_error, sets=options.sets)
    return Prediction(predictor, Batching(size, not options.in_order), options.top_k, options.skip_bad_rows)


def draw_explanation(predictor: Predictor, row: datasets.Dataset, options: PredictOptions) -> Any:
    """Return the `matplotlib` figure of a head's attention in a row, a panel per sequence.

    Args:
        predictor: the run's model.
        row: the one row, its input columns.
        options: the options, which select the head.
    """
    for problem in predictor.problems(row).values():
        raise AlignAttnError(f"--explain shows row 1, and {problem}")
    # Without overlap between the windows of a long context, each token is shown once.
    encoded = predictor.encode(row, doc_stride=0).encoded
    names = [name for name in predictor.tokenizer.model_input_names if name in encoded.column_names]
    sequences = list(encoded.select_columns(names))
    if isinstance(sequences[0][names[0]][0], list):
        (choices,) = sequences
        sequences = [dict(zip(names, values, strict=True)) for values in zip(*choices.values(), strict=True)]
    shown = sequences[:MAX_PANELS]
    more = f", {MAX_PANELS} of its {len(sequences)} sequences" if len(sequences) > MAX_PANELS else ""
    examples = Examples(
        "the first row", processor_class(predictor.task), lambda tokenizer: list(map(batch_of_one, shown))
    )
    view = view_head(predictor.run.folder, predictor.run.folder.name, examples, options.layer, options.head)
    title = f"attention, {examples.description}{more}"
    return draw_heat_maps(view.attention_panels(), x_label="key (attended to)", y_label="query (attends)", title=title)


class FileWorker:
    """Predicts files on a machine of a cluster.

    Args:
        values: the values of the command's options, with absolute paths.
        temperature: as for `load_predictor`.
    """

    def __init__(self, values: dict[str, Any], temperature: float | None) -> None:
        options = PredictOptions(**values)
        self.run = read_finished_run(Path(options.run), "--run")
        self.prediction = load_prediction(self.run, temperature, options)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Predict a batch of one file, and return the counts over its rows.

        An error is returned instead of raised, because Ray would retry.
        """
        (source,), (target,) = batch["source"], batch["target"]
        self.prediction.seen, problem = RowCounts(), ""
        try:
            rows = file_source(Path(source), self.run.task, may_be_empty=True)
            self.prediction.write(rows, Path(target), lambda rows: None)
        except (AlignAttnError, OSError) as error:
            problem = one_line(error)
        return {"problem": np.array([problem]), "seen": np.array([json.dumps(vars(self.prediction.seen))])}


def predict_on_ray(options: PredictOptions, temperature: float | None, jobs: Mapping[Path, Path]) -> RowCounts:
    """Predict files on a cluster whose machines share their storage, and return the counts over the rows.

    Args:
        options: the options of the command.
        temperature: as for `load_predictor`.
        jobs: the files of rows by the files of their predictions.
    """
    # Workers run in other working directories.
    paths = {name: str(Path(str(getattr(options, name))).resolve()) for name in ("run", "file")}
    seen = RowCounts()
    with ray_cluster(options.ray_address) as ray:
        # Imported here, because the import takes seconds.
        import ray.data

        for name in RAYS_OWN_PROGRESS:
            logging.getLogger(name).setLevel(logging.ERROR)
        wanted = gpu_or_core(ray)
        room = int(ray.cluster_resources().get("GPU" if "num_gpus" in wanted else "CPU", 1))
        ray.data.DataContext.get_current().enable_progress_bars = False
        files = [{"source": str(source.resolve()), "target": str(target.resolve())} for target, source in jobs.items()]
        done = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
            FileWorker,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(len(jobs), options.processes or room)),
            fn_constructor_args=(values_of(options) | paths, temperature),
            **wanted,
        )
        try:
            for row in counted(done.iter_rows(), "predict", len(jobs), "file"):
                if row["problem"]:
                    raise AlignAttnError(str(row["problem"]))
                seen.add(**json.loads(str(row["seen"])))
        except ray.exceptions.RayError as error:
            raise AlignAttnError(f"a worker of the Ray cluster died: {one_line(error)}") from error
    return seen

"""`alignattn predict`: predict new rows with a finished run, from a file, from texts, or from many files on Ray.

Rows are read, predicted and written in parts. Heavy libraries are imported inside functions, so that `--help` and
mistakes are answered at once.
"""

import codecs
import csv
import gzip
import json
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from alignattn.finetuning.run_folder import (
    FinishedRun,
    check_finished,
    read_finished_run,
    warn_plain,
)
from alignattn.tasks import LabelledTask, QuestionAnswering, Task
from alignattn.tasks.sequence_to_sequence import check_generates
from alignattn.utils.command import Command
from alignattn.utils.errors import (
    AlignAttnError,
    bad_rows,
    check_installed,
    list_bad_rows,
    listing,
    named_rows,
    one_line,
    plural,
)
from alignattn.utils.files import (
    BYTE_ORDER_MARK,
    check_encoding,
    plain_stem,
    plain_suffix,
    read_json,
    replacing,
    to_json,
)
from alignattn.utils.options import REQUIRED, Count, InputDir, Options, OutputDir, OutputFile, Processes, option
from alignattn.utils.paths import OWN_PREFIX, check_free, input_path, unfinished

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from alignattn.finetuning.predictor import Predictor
    from alignattn.tasks.formats import TableForm
    from alignattn.tasks.reading import FileRows

CSV, TSV, JSON_LINES, PARQUET = ".csv", ".tsv", ".jsonl", ".parquet"
FORMATS = (CSV, TSV, JSON_LINES, PARQUET, f"{CSV}.gz", f"{TSV}.gz", f"{JSON_LINES}.gz")
SEPARATORS = {CSV: ",", TSV: "\t"}

MANY_FILES = "many files"
"""Group in the help."""

PART_ROWS = 4096
"""Rows that are read and sorted by length at a time."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """The options of `alignattn predict`."""

    run: InputDir = option(REQUIRED, "Folder of a finished run.")
    file: str | None = option(
        None,
        "New rows in a format of finetune; or a folder of Parquet files.",
        metavar="FILE",
        place=input_path,
    )
    text: tuple[str, ...] | None = option(
        None, "Texts to predict; for pairs, both.", metavar="TEXT", excludes={"file": "each says what to predict"}
    )
    output_file: OutputFile | None = option(
        None,
        f"{', '.join(FORMATS[:4])}, or with .gz (default: next to the file; standard output for --text).",
        endings=FORMATS,
    )
    encoding: str | None = option(None, "Encoding of a text file (default: utf-8).", metavar="NAME")
    top_k: Count | None = option(None, "Classes or answers per row (default: all classes; one answer).")
    coverage: float | None = option(
        None, "Also give sets of classes that contain the label with this probability.", above=0, below=1
    )
    sets: str = option(
        "lac",
        "lac: the smallest sets if probabilities are true; aps: larger sets for harder rows.",
        choices=("lac", "aps"),
        requires=("coverage",),
    )
    max_error: float | None = option(
        None, "Also give decisions: a class or abstain, with at most this error rate.", above=0, below=1
    )
    temperature: str | None = option(None, "A number, or the calibration.json of `alignattn calibrate`.", metavar="T")
    num_beams: Count | None = option(
        None, "Beams of beam search; 1: greedy (default: the run's).", high=256, metavar="N"
    )
    skip_bad_rows: bool = option(False, "Leave predictions of bad rows empty.")
    batch_size: Count | None = option(None, "Batch size (default: by the device).")
    output_dir: OutputDir | None = option(
        None, "New folder for the predictions of a folder (default: next to it).", group=MANY_FILES
    )
    processes: Processes | None = option(
        None, "Files predicted in parallel by Ray (default: as many as fit).", group=MANY_FILES
    )
    ray_address: str | None = option(None, "Address of a Ray cluster (default: start one).", group=MANY_FILES)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_encoding(self.encoding)
        if self.file is None and self.text is None:
            raise AlignAttnError("nothing to predict: give --file FILE, or --text TEXT")
        if self.file is not None:
            input_path("--file", self.file)
        check_finished(Path(self.run), "--run")
        if self.is_folder:
            check_installed("ray", "ray", "--file with a folder of Parquet files")
        for name in ("output_file",) if self.is_folder else ("output_dir", "processes", "ray_address"):
            if getattr(self, name) is not None:
                other = "one file or texts" if self.is_folder else "a folder of Parquet files, as --file"
                raise AlignAttnError(f"--{name} is for {other}: leave it out")

    @cached_property
    def is_folder(self) -> bool:
        """Whether the rows are the Parquet files of a folder; a folder of texts or images counts as one file."""
        return self.file is not None and next(Path(self.file).rglob(f"*{PARQUET}"), None) is not None


COMMAND = Command(
    "predict",
    "predict new rows with a finished run: classes, scores, answers, tags, choices",
    PredictOptions,
    run="alignattn.commands.predict:predict",
    # It locks the file or the folder that it writes, whose default only it knows.
    shares_folder=True,
    examples=(
        "alignattn predict --run runs/mrpc --file new.csv --output_file predicted.csv",
        'alignattn predict --run runs/mrpc --text "He said so ." "So he said ."',
        "alignattn predict --run runs/mrpc --file new.csv --coverage 0.9 --max_error 0.05",
        "alignattn predict --run runs/mrpc --file parts --output_dir predicted",
    ),
)


def predict(options: PredictOptions) -> None:
    """Predict the rows, and write the predictions next to the columns of the rows."""
    from alignattn.utils.console import progress
    from alignattn.utils.paths import folder_lock

    run = read_finished_run(Path(options.run), "--run")
    temperature, task = _temperature(options, run), run.task
    if options.num_beams is not None:
        check_generates(task)
    if isinstance(task, LabelledTask) and task.num_labels > 100 and options.top_k is None:
        print(f"each row lists all {task.num_labels} classes: --top_k 5 lists the best", file=sys.stderr)
    if options.coverage is not None or options.max_error is not None:
        # Imports SciPy. Refuses a run that is not calibrated before the rows are read.
        from alignattn.finetuning.decisions import run_decisions

        run_decisions(run, temperature, options.coverage, options.max_error, options.sets)
    warn_plain(run.folder, run.options)
    target: Path | None
    if options.is_folder:
        folder = Path(str(options.file)).resolve()
        target = Path(options.output_dir or folder.with_name(f"{folder.name}-predicted"))
        if target.resolve().is_relative_to(folder):
            raise AlignAttnError(f"--output_dir {target} is inside {folder}, the folder of the rows: give another")
        with folder_lock(target):
            remarks = _predict_on_ray(options, run, temperature, folder, target)
    else:
        if options.text is not None:
            source, target = text_source(task, options.text), None
        else:
            path = Path(str(options.file))
            source = file_source(path, task, encoding=options.encoding)
            # `.` and `..` have no name of their own to build on.
            path = path if path.name not in ("", "..") else Path(os.path.abspath(path))
            target = path.with_name(f"{plain_stem(path)}-predicted{source.format}")
        target = target if options.output_file is None else Path(options.output_file)
        # The lock is for this file alone: other calls may write to its folder.
        with nullcontext() if target is None else folder_lock(target.parent / f"{OWN_PREFIX}-{target.name}"):
            if target is not None and target.exists():
                raise AlignAttnError(f"{target} already exists: give another --output_file")
            predictor = FilePredictor(options, run, temperature)
            with progress("predict", source.num_rows, "row") as bar:
                predictor.write(source, target, bar.update)
            remarks = predictor.remarks
    for line in remarks.listed(run.task):
        # Standard output may hold predictions.
        print(line, file=sys.stderr)
    if target is not None:
        print(f"written to {target}")


def _temperature(options: PredictOptions, run: FinishedRun) -> float | None:
    """Return the temperature that is given as a number or in a file of `alignattn calibrate`."""
    if options.temperature is None:
        return None
    run.check_has_classes()
    try:
        number = float(options.temperature)
    except ValueError:
        path = Path(options.temperature)
    else:
        if not (math.isfinite(number) and number > 0):
            raise AlignAttnError(f"--temperature {options.temperature} must be a finite number, above 0")
        return number
    if not path.is_file():
        raise AlignAttnError(f"--temperature {path} is neither a number nor a file: give one of them")
    content = read_json(path)
    try:
        values = {float(file["temperature"]["value"]) for file in content["files"] if file["temperature"] is not None}
    except (KeyError, TypeError, ValueError) as error:
        raise AlignAttnError(f"{path} is not a file of `alignattn calibrate`: give its calibration.json") from error
    if len(values) != 1:
        many = "several temperatures: give a file with one" if values else "no temperature: use `calibrate --fit_on`"
        raise AlignAttnError(f"{path} holds {many}, or pass the number as --temperature")
    (found,) = values
    print(f"temperature {found:.4g} of {path}", file=sys.stderr)
    return found


@dataclass(frozen=True)
class Part:
    """Neighbouring rows.

    Attributes:
        table: the rows, with all their columns.
        inputs: the columns that the task reads.
        problems: why a row cannot be read, by its index in the part.
    """

    table: "pa.Table"
    inputs: "datasets.Dataset"
    problems: Mapping[int, str]


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    Attributes:
        origin: a description for messages.
        columns: the names of the columns.
        num_rows: the number of rows.
        format: the ending of a file of predictions in the same format.
        parts: yields the rows in parts of the given size; the last one may be smaller.
        form: how a separated table is held, and its predictions are written; None for other rows.
        lines: the line of the file where each row begins; empty if it is unknown.
    """

    origin: str
    columns: Sequence[str]
    num_rows: int
    format: str
    parts: Callable[[int], Iterator[Part]]
    form: "TableForm | None" = None
    lines: Sequence[int] = ()


def text_source(task: Task, texts: Sequence[str]) -> Source:
    """Return the rows made of texts."""
    import datasets

    from alignattn.tasks.reading import FileRows

    count = task.texts_of_a_row
    if len(texts) % count:
        raise AlignAttnError(
            f"--text: task {task.name!r} reads {count} texts per row ({', '.join(task.input_columns)}), and there "
            f"are {len(texts)}"
        )
    rows = [task.row_of(texts[first : first + count]) for first in range(0, len(texts), count)]
    return _dataset_source(FileRows(datasets.Dataset.from_list(rows)), task, "--text", JSON_LINES, Path())


def file_source(path: Path, task: Task, *, encoding: str | None = None, may_be_empty: bool = False) -> Source:
    """Return the rows of a file; Parquet is read a part at a time, and may be larger than memory.

    Args:
        path: the file.
        task: the task whose columns the file must have.
        encoding: the encoding of a text file; None = UTF-8.
        may_be_empty: whether a Parquet file without rows is accepted.
    """
    if path.suffix.lower() == PARQUET:
        return _parquet_source(path, task, may_be_empty)
    rows, suffix = task.read_rows(path, encoding), plain_suffix(path)
    # Rows of JSON and CoNLL may hold lists.
    written_as = JSON_LINES if suffix in (".json", JSON_LINES, ".conll") else TSV if suffix == TSV else CSV
    return _dataset_source(rows, task, str(path), written_as, path.parent)


def _dataset_source(rows: "FileRows", task: Task, origin: str, written_as: str, folder: Path) -> Source:
    dataset = rows.dataset
    # All columns are written next to the predictions, so a problem in any of them counts.
    problems = rows.problems_in(dataset.column_names)
    _check_columns(dataset.column_names, task, origin)
    inputs = task.locate(dataset.select_columns(list(task.input_columns)), folder)
    whole = dataset.with_format("arrow")

    def parts(size: int) -> Iterator[Part]:
        for start in range(0, len(dataset), size):
            end = min(start + size, len(dataset))
            bad = {index - start: problems[index] for index in range(start, end) if index in problems}
            yield Part(whole[start:end], inputs.select(range(start, end)), bad)

    return Source(origin, dataset.column_names, len(dataset), written_as, parts, rows.form, rows.lines)


def _parquet_source(path: Path, task: Task, may_be_empty: bool) -> Source:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    from alignattn.utils.parquet import UNREADABLE, open_parquet, without_bad_texts

    @contextmanager
    def opened() -> Iterator[pq.ParquetFile]:
        try:
            with open_parquet(path) as file:
                yield file
        except UNREADABLE as error:
            raise AlignAttnError(f"cannot read {path} as PARQUET: {one_line(error)}; correct the file") from error

    def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
        # `datasets` has no categories of pandas and no string views.
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column

    def parts(size: int) -> Iterator[Part]:
        with opened() as file:
            empty = pa.RecordBatch.from_pylist([], file.schema_arrow)
            for batch in file.iter_batches(size) if num_rows else [empty]:
                table, bad = without_bad_texts(pa.Table.from_batches([batch], file.schema_arrow))
                problems = {index: problem for found in bad.values() for index, problem in found.items()}
                read = pa.table({name: plain(table[name]) for name in task.input_columns})
                inputs = datasets.Dataset(datasets.table.InMemoryTable(read))
                yield Part(table, task.locate(inputs, path.parent), problems)

    with opened() as file:
        columns, num_rows = file.schema_arrow.names, file.metadata.num_rows
    _check_columns(columns, task, str(path))
    if num_rows == 0 and not may_be_empty:
        raise AlignAttnError(f"{path} is empty: give a file that holds rows")
    return Source(str(path), columns, num_rows, PARQUET, parts)


def _check_columns(columns: Sequence[str], task: Task, origin: str) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise AlignAttnError(f"{origin} has two columns {twice!r}: rename one")
    for name in task.input_columns:
        if name not in columns:
            raise AlignAttnError(
                f"{origin} has no column {name!r}, which the run reads (it has {listing(list(columns))}): rename one"
            )


@dataclass
class Remarks:
    """What is told about the predicted rows at the end.

    Attributes:
        max_length: the maximum number of tokens per row, or per question about a context; 0 if none is truncated.
        rows: the number of rows.
        truncated: the number of truncated rows.
        unknown: the number of rows without a word that the model knows.
        empty_sets: the number of rows whose set holds no class.
        lines: remarks on decisions and on files that differ from the calibration rows.
    """

    max_length: int = 0
    rows: int = 0
    truncated: int = 0
    unknown: int = 0
    empty_sets: int = 0
    lines: list[str] = field(default_factory=list)

    def listed(self, task: Task) -> Iterator[str]:
        """Yield the remarks on rows of a task, a line each."""
        from alignattn.tasks.truncation import TruncatedRows, unknown_rows_warning

        if self.truncated:
            of_questions = isinstance(task, QuestionAnswering)
            cut = TruncatedRows(self.truncated, self.truncated / self.rows, self.max_length, of_questions)
            yield f"{cut} (as in the run)"
        if self.unknown:
            yield unknown_rows_warning(self.unknown)
        if self.empty_sets:
            yield (
                f"{plural(self.empty_sets, 'empty set')}: the calibration rows are predicted right with more "
                "certainty than the coverage asks for; a higher --coverage fills them"
            )
        yield from dict.fromkeys(self.lines)


class FilePredictor:
    """Writes the rows of files with the predictions of a run's model, which it loads.

    Args:
        options: the options of the command.
        run: the run.
        temperature: as for `load_predictor`.
    """

    def __init__(self, options: PredictOptions, run: FinishedRun, temperature: float | None) -> None:
        from alignattn.finetuning.predictor import load_predictor

        self.options, self.remarks = options, Remarks()
        self.predictor: Predictor = load_predictor(run, temperature=temperature)
        if options.num_beams is not None:
            self.predictor = self.predictor.with_beams(options.num_beams)
        if options.coverage is not None or options.max_error is not None:
            self.predictor = self.predictor.with_decisions(
                coverage=options.coverage, max_error=options.max_error, sets=options.sets
            )

    def write(self, source: Source, target: Path | None, advance: Callable[[int], object]) -> None:
        """Write all rows, in their order, with their predictions.

        Args:
            source: the rows.
            target: a new file, which appears when all rows are written; None for standard output.
            advance: called with the number of rows that were just predicted.

        Raises:
            AlignAttnError: if a column has the name of a column of predictions.
        """
        import numpy as np

        predictor = self.predictor
        for name in self._nothing.column_names:
            if name in source.columns:
                raise AlignAttnError(f"{source.origin} has a column {name!r}, which the predictions need: rename it")
        # With many classes, whose probabilities take memory, fewer rows are read at a time.
        part_rows = max(1, min(PART_ROWS, 2**22 // getattr(predictor.task, "num_labels", 1)))
        problems = self._check(source, part_rows)
        before = 0
        # Probabilities of some rows by their input, to compare with the calibration: a repeated row tells nothing new.
        tested: dict[int, NDArray[np.float64]] = {}
        with row_writer(target, source.format, source.form) as write:
            for part in source.parts(part_rows):
                count = part.table.num_rows
                bad = [row for row in range(count) if before + row in problems]
                write(self._predict(part, bad, source, advance, tested))
                before += count
        if predictor.decisions is not None:
            self.remarks.lines += predictor.decisions.remarks()
        if tested and (line := predictor.shift_warning(np.stack(list(tested.values())), source.origin)):
            self.remarks.lines.append(line)

    def _check(self, source: Source, part_rows: int) -> dict[int, str]:
        """Return the problem of each bad row, by its index; refuse them before a row is predicted, or remark them."""
        problems: dict[int, str] = {}
        before = 0
        for part in source.parts(part_rows):
            found = self.predictor.problems(part.inputs) | dict(part.problems)
            problems |= {before + row: text for row, text in found.items()}
            before += part.table.num_rows
        if problems:
            if not self.options.skip_bad_rows:
                list_bad_rows(problems, source.origin, before, skip=False, lines=source.lines)
            bad = bad_rows(problems, source.lines)
            self.remarks.lines.append(f"{source.origin}, {named_rows(bad)}: without a prediction")
        return problems

    @cached_property
    def _nothing(self) -> "pa.Table":
        """An empty table with the columns of the predictions."""
        import numpy as np
        import pyarrow as pa

        from alignattn.finetuning.predictor import Batching

        predictor, task, top_k = self.predictor, self.predictor.task, self.options.top_k
        # Without a forward, which takes longer than ten rows, where the task knows its columns.
        if isinstance(task, LabelledTask) or not task.reads_only_texts:
            empty, decisions = task.empty_predictions(top_k), predictor.decisions
            columns = {} if decisions is None else decisions.columns(np.empty((0, len(decisions.labels))), np.empty(0))
            return pa.table({**{name: empty[name] for name in empty.column_names}, **columns})
        split = predictor.encode(predictor.dataset([task.row_of(["a"] * task.texts_of_a_row)]))
        inputs = predictor.input_numbers(split)
        return predictor.readable(predictor.answers(split, Batching()), inputs, top_k).slice(0, 0)

    def _predict(
        self,
        part: Part,
        bad: Collection[int],
        source: Source,
        advance: Callable[[int], object],
        tested: "dict[int, NDArray[np.float64]]",
    ) -> "pa.Table":
        """Return the rows of a part with the predictions of all but the bad ones; add to `tested`."""
        import numpy as np
        import pyarrow as pa

        from alignattn.finetuning.decisions import SET
        from alignattn.finetuning.predictor import Batching, probabilities_of
        from alignattn.tasks.truncation import lengths_of, truncated_rows

        predictor, remarks, count = self.predictor, self.remarks, part.table.num_rows
        good = np.setdiff1d(np.arange(count), np.array(bad, dtype=np.int64))
        predictions = self._nothing
        if len(good):
            split = predictor.encode(part.inputs.select(good) if bad else part.inputs)
            remarks.rows += len(good)
            if (cut := truncated_rows(predictor.task, split)) is not None:
                remarks.max_length = cut.max_length
                remarks.truncated += cut.rows
            remarks.unknown += predictor.count_unknown_rows(split)
            answers = predictor.answers(split, Batching(self.options.batch_size), advance)
            inputs = predictor.input_numbers(split)
            predictions = predictor.readable(answers, inputs, self.options.top_k)
            if self.options.coverage is not None:
                remarks.empty_sets += int((lengths_of(predictions[SET]) == 0).sum())
            if inputs is not None:
                # At most 4,096 rows of a file are compared with the calibration rows.
                every = -(-source.num_rows // 4096)
                tested |= dict(zip(inputs[::every].tolist(), probabilities_of(answers)[::every], strict=True))
        if bad:
            rows = np.full(count, -1)
            rows[good] = np.arange(len(good))
            predictions = predictions.take(pa.array(rows, mask=rows < 0))
            advance(len(bad))
        table = part.table
        for name in predictions.column_names:
            table = table.append_column(name, predictions[name])
        return table

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Predict the one file of a batch of Ray Data, and return the remarks on its rows.

        An error is returned instead of raised, because Ray would retry.
        """
        import numpy as np

        (source,), (target,) = batch["source"], batch["target"]
        self.remarks, problem = Remarks(), ""
        try:
            rows = file_source(Path(source), self.predictor.task, may_be_empty=True)
            self.write(rows, Path(target), lambda rows: None)
        except (AlignAttnError, OSError) as error:
            problem = one_line(error)
        return {"problem": np.array([problem]), "remarks": np.array([json.dumps(vars(self.remarks))])}


@contextmanager
def row_writer(
    target: Path | None, written_as: str, form: "TableForm | None" = None
) -> Iterator[Callable[["pa.Table"], object]]:
    """Yield a function that writes rows to a new file, which appears when all are written, or to standard output.

    Args:
        target: the file, whose ending determines the format; None for standard output, which gets JSON lines.
        written_as: the format of the rows.
        form: how the rows were held, if they were a table. A table is written in its encoding, and with its separator
            unless the file's ending asks for another format.
    """
    import pyarrow.parquet as pq

    from alignattn.tasks.formats import TableForm

    if target is None:
        yield _text_writer(sys.stdout, TableForm())
        return
    suffix, is_compressed = plain_suffix(target), target.suffix.lower() == ".gz"
    with replacing(target) as temporary:
        if suffix == PARQUET:
            writers: list[pq.ParquetWriter] = []

            def write(table: "pa.Table") -> None:
                if not writers:
                    writers.append(pq.ParquetWriter(temporary, table.schema))
                writers[0].write_table(table)

            try:
                yield write
            finally:
                for writer in writers:
                    writer.close()
            return

        def opened(encoding: str) -> IO[str]:
            file: Any = gzip.open if is_compressed else open
            text: IO[str] = file(temporary, "wt", newline="", encoding=encoding)
            return text

        if suffix not in SEPARATORS or written_as not in SEPARATORS or form is None:
            # JSON is UTF-8, whatever the rows were.
            form = TableForm(SEPARATORS.get(suffix))
        elif form.separator is None or suffix != written_as:
            mark = BYTE_ORDER_MARK if form.before_header.startswith(BYTE_ORDER_MARK) else ""
            form = TableForm(SEPARATORS[suffix], mark, form.encoding)
        if codecs.lookup(form.encoding).name == "utf-8":
            with opened("utf-8") as file:
                yield _text_writer(file, form)
            return
        # Only the last row shows whether the encoding has every character.
        with tempfile.TemporaryFile("w+", newline="", encoding="utf-8", dir=target.parent) as text:
            yield _text_writer(text, form)
            text.seek(0)
            try:
                with opened(form.encoding) as file:
                    shutil.copyfileobj(text, file)
            except UnicodeEncodeError as error:
                lacking = error.object[error.start]
                print(f"{target} is written as UTF-8: {form.encoding} has no {lacking!r}", file=sys.stderr)
                text.seek(0)
                with opened("utf-8") as file:
                    file.write("" if form.before_header.startswith(BYTE_ORDER_MARK) else BYTE_ORDER_MARK)
                    shutil.copyfileobj(text, file)


def _text_writer(file: IO[str], form: "TableForm") -> Callable[["pa.Table"], object]:
    """Return a writer of JSON lines, or of CSV with unchanged texts, other values as JSON and None as empty cells."""
    if form.separator is None:
        return lambda table: file.writelines(
            f"{_json(dict(zip(table.column_names, row, strict=True)))}\n" for row in _rows_of(table)
        )
    style: Any = {"delimiter": form.separator, "lineterminator": "\n"}
    plain, quoting = csv.writer(file, **style), csv.writer(file, **style, quoting=csv.QUOTE_ALL)
    has_header = False

    def write_row(cells: Sequence[Any]) -> None:
        # Python 3.11 leaves a text with a carriage return unquoted, and readers take that for the end of a row.
        (quoting if any("\r" in str(cell) for cell in cells) else plain).writerow(cells)

    def cell(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        text = _json(value)
        return None if text == "null" else text.strip('"')

    def write(table: "pa.Table") -> None:
        nonlocal has_header
        if not has_header:
            file.write(form.before_header)
            write_row(table.column_names)
            has_header = True
        for row in _rows_of(table):
            write_row([cell(value) for value in row])

    return write


def _rows_of(table: "pa.Table") -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    def decoded(value: Any, kind: pa.DataType) -> Any:
        """Return a value in which parts of mixed types, which `datasets` stores as JSON, are decoded."""
        if value is None:
            return None
        if isinstance(kind, pa.JsonType):
            return json.loads(value)
        if isinstance(value, list):
            return [decoded(item, kind.value_type) for item in value]
        if isinstance(value, dict):
            return {name: decoded(item, kind.field(name).type) for name, item in value.items()}
        return value

    columns = []
    for column in table.columns:
        values = column.to_pylist()
        has_json = "arrow.json" in str(column.type)
        columns.append([decoded(value, column.type) for value in values] if has_json else values)
    return zip(*columns, strict=True)


def _json(value: Any) -> str:
    def as_text(value: Any) -> str:
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, Decimal):
            return str(value)
        raise AlignAttnError(f"a column holds {type(value).__name__}, not text: give --output_file NAME.parquet")

    return to_json(value, ensure_ascii=False, default=as_text)


def _predict_on_ray(
    options: PredictOptions, run: FinishedRun, temperature: float | None, folder: Path, output: Path
) -> Remarks:
    """Predict the Parquet files of a folder on a Ray cluster, whose machines share their storage.

    Args:
        options: the options of the command.
        run: the run.
        temperature: as for `load_predictor`.
        folder: the folder of the rows.
        output: the folder of the predictions, which get the names of their files.
    """
    from alignattn.utils.console import counted
    from alignattn.utils.ray_cluster import gpu_or_core, ray_cluster

    # Names that begin with a dot or an underscore are those of other programs' files, which hold no rows.
    names = [path.relative_to(folder) for path in sorted(folder.rglob(f"*{PARQUET}")) if path.is_file()]
    names = [name for name in names if not any(part.startswith((".", "_")) for part in name.parts)]
    if not names:
        raise AlignAttnError(f"{folder} contains no Parquet files (hidden ones do not count): give another --file")
    check_free(output, map(str, names))
    for name in names:
        file_source(folder / name, run.task, may_be_empty=True)
    # Workers run in other working directories.
    files = [{"source": str(folder / name), "target": str(output.resolve() / name)} for name in names]
    run, remarks = replace(run, folder=run.folder.resolve()), Remarks()
    with unfinished(output), ray_cluster(options.ray_address) as ray:
        # Imported here, because the import takes seconds.
        import ray.data

        # alignattn logs its own progress.
        for logger in ("ray.data._internal.execution.streaming_executor", "ray.data._internal.progress"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        wanted = gpu_or_core(ray)
        room = int(ray.cluster_resources().get("GPU" if "num_gpus" in wanted else "CPU", 1))
        done = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
            FilePredictor,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(len(files), options.processes or room)),
            fn_constructor_args=(options, run, temperature),
            **wanted,
        )
        try:
            for row in counted(done.iter_rows(), "predict", len(files), "file"):
                if row["problem"]:
                    raise AlignAttnError(str(row["problem"]))
                of_file = json.loads(str(row["remarks"]))
                remarks.max_length = of_file["max_length"] or remarks.max_length
                remarks.rows += of_file["rows"]
                remarks.truncated += of_file["truncated"]
                remarks.unknown += of_file["unknown"]
                remarks.empty_sets += of_file["empty_sets"]
                remarks.lines += of_file["lines"]
        except ray.exceptions.RayError as error:
            raise AlignAttnError(f"a worker of the Ray cluster died: {one_line(error)}") from error
    return remarks

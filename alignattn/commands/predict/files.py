"""Read rows to predict, a part at a time, from a file, standard input or the command line; write predicted rows."""

import codecs
import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.tasks import Task
from alignattn.tasks.formats.file_rows import FileRows, TableForm
from alignattn.tasks.formats.separated import SEPARATORS
from alignattn.tasks.reading import read_rows
from alignattn.tasks.task import CONLL
from alignattn.tasks.task_types import processor_for
from alignattn.utils.compression import BYTE_ORDER_MARK, plain_suffix
from alignattn.utils.digests import digest_of
from alignattn.utils.errors import AlignAttnError, listing, one_line
from alignattn.utils.files import replacing
from alignattn.utils.json_records import to_json
from alignattn.utils.parquet import UNREADABLE, open_parquet, without_bad_texts

CSV, TSV, JSON_LINES, PARQUET = ".csv", ".tsv", ".jsonl", ".parquet"
NESTED = (".json", JSON_LINES, CONLL)
"""Endings of files whose rows can contain lists; their predictions are written as JSON lines."""
PLAIN_FORM = TableForm()
PARQUET_MAGIC = b"PAR1"
ROWS_DIGEST = "alignattn.rows"
"""Key of the digest of the rows' file in the metadata of a Parquet file of predictions."""
STANDARD_INPUT = "standard input"
"""Its name in messages."""

Write = Callable[[pa.Table], object]
"""Writes the next rows."""


@dataclass(frozen=True)
class Part:
    """Neighbouring rows.

    Attributes:
        table: the rows, with all their columns.
        inputs: the columns that the task reads.
        problems: why a row cannot be read, by its index in the part.
    """

    table: pa.Table
    inputs: datasets.Dataset
    problems: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Where rows come from.

    Attributes:
        origin: a description for messages.
        columns: the names of the columns.
        num_rows: the number of rows.
        format: the ending of a file of predictions in the same format.
        parts: yields the rows in parts of the given size.
        file: the Parquet file of the rows; None for others.
        form: how a separated table is held, and its predictions are written.
    """

    origin: str
    columns: Sequence[str]
    num_rows: int
    format: str
    parts: Callable[[int], Iterator[Part]]
    file: Path | None = None
    form: TableForm = PLAIN_FORM


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
    rows = processor_for(task).read_rows(path, encoding)
    suffix = plain_suffix(path)
    written_as = JSON_LINES if suffix in NESTED else TSV if suffix == TSV else CSV
    return _dataset_source(rows, task, str(path), written_as, path.parent)


def stdin_source(task: Task, *, encoding: str | None = None) -> Source:
    """Return the rows of standard input: Parquet, JSON lines or CSV, detected by the first characters.

    Args:
        task: the task whose columns the rows must have.
        encoding: the encoding of text; None = UTF-8.
    """
    content = sys.stdin.buffer.read()
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise AlignAttnError("standard input is empty: give rows as CSV, JSON lines or Parquet")
    suffix = PARQUET if content.startswith(PARQUET_MAGIC) else JSON_LINES if start[:1] in (b"{", b"[") else CSV
    with TemporaryDirectory(prefix="alignattn-stdin-") as folder:
        path = Path(folder) / f"stdin{suffix}"
        path.write_bytes(content)
        try:
            rows = read_rows(path, encoding=encoding, name=STANDARD_INPUT)
            return _dataset_source(rows, task, STANDARD_INPUT, CSV if suffix == CSV else JSON_LINES)
        except AlignAttnError as error:
            # Messages on Parquet contain the path of the temporary file.
            raise AlignAttnError(str(error).replace(str(path), STANDARD_INPUT)) from error


def text_source(task: Task, texts: Sequence[str]) -> Source:
    """Return the rows made of texts."""
    count = task.texts_of_a_row
    if len(texts) % count:
        raise AlignAttnError(
            f"--text: task {task.name!r} reads {count} texts per row ({', '.join(task.input_columns)}), and there "
            f"are {len(texts)}"
        )
    rows = [task.row_of(texts[first : first + count]) for first in range(0, len(texts), count)]
    return _dataset_source(FileRows(datasets.Dataset.from_list(rows)), task, "--text", JSON_LINES)


def _dataset_source(
    rows: FileRows,
    task: Task,
    origin: str,
    written_as: str,
    folder: Path = Path(),
) -> Source:
    dataset = rows.dataset
    # All columns are written next to the predictions, so a problem in any of them counts.
    problems = rows.problems_in(dataset.column_names)
    _check_columns(dataset.column_names, task, origin)
    inputs = processor_for(task).locate(dataset.select_columns(list(task.input_columns)), folder)
    whole = dataset.with_format("arrow")

    def parts(size: int) -> Iterator[Part]:
        for start in range(0, len(dataset), size):
            end = min(start + size, len(dataset))
            bad = {index - start: problems[index] for index in range(start, end) if index in problems}
            yield Part(whole[start:end], inputs.select(range(start, end)), bad)

    # JSON is UTF-8, whatever the rows were.
    form = rows.form if written_as in SEPARATORS else PLAIN_FORM
    return Source(origin, dataset.column_names, len(dataset), written_as, parts, form=form)


def _parquet_source(path: Path, task: Task, may_be_empty: bool) -> Source:
    with _opened(path) as file:
        columns, num_rows = file.schema_arrow.names, file.metadata.num_rows
    _check_columns(columns, task, str(path))
    if num_rows == 0 and not may_be_empty:
        raise AlignAttnError(f"{path} is empty: give a file that holds rows")

    def parts(size: int) -> Iterator[Part]:
        with _opened(path) as file:
            for whole in _of_size(file.iter_batches(size), size, file.schema_arrow):
                table, bad = without_bad_texts(whole)
                problems = {index: problem for found in bad.values() for index, problem in found.items()}
                columns = pa.table({name: _plain(table[name]) for name in task.input_columns})
                inputs = datasets.Dataset(datasets.table.InMemoryTable(columns))
                yield Part(table, processor_for(task).locate(inputs, path.parent), problems)

    return Source(str(path), columns, num_rows, PARQUET, parts, path)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with open_parquet(path) as file:
            yield file
    except UNREADABLE as error:
        raise AlignAttnError(f"cannot read {path} as PARQUET: {one_line(error)}; correct the file") from error


def _of_size(batches: Iterator[pa.RecordBatch], size: int, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield tables of a fixed number of rows (the last may be smaller), because batches end with row groups."""
    held, is_first = schema.empty_table(), True
    for batch in batches:
        held = pa.concat_tables([held, pa.Table.from_batches([batch], schema)])
        while held.num_rows >= size:
            yield held.slice(0, size)
            held, is_first = held.slice(size), False
    if held.num_rows or is_first:
        yield held


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in a type that `datasets` supports: no categories of pandas, no string views."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def _check_columns(columns: Sequence[str], task: Task, origin: str) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise AlignAttnError(f"{origin} has two columns {twice!r}: rename one")
    for name in task.input_columns:
        if name not in columns:
            raise AlignAttnError(
                f"{origin} has no column {name!r}, which the run reads (it has {listing(list(columns))}): rename one"
            )


@contextmanager
def row_writer(
    target: Path | None, written_as: str, rows_file: Path | None = None, form: TableForm = PLAIN_FORM
) -> Iterator[Write]:
    """Yield a function that writes rows to a new file, which appears when all are written, or to standard output.

    Args:
        target: the file, whose ending determines the format; None for standard output.
        written_as: the format of the rows, and that of standard output; JSON lines instead of Parquet.
        rows_file: the file of the rows, whose digest a Parquet file records.
        form: how the rows were held, if they were a table. A table is written in its encoding, and with its separator
            unless the file's ending asks for another format.
    """
    suffix = target.suffix.lower() if target is not None else JSON_LINES if written_as == PARQUET else written_as
    form, writer = _written_form(form, suffix, written_as), None
    is_utf8 = codecs.lookup(form.encoding).name == "utf-8"
    if target is None:
        if is_utf8 or sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
            yield _text_writer(sys.stdout, form)
            return
        text = io.StringIO(newline="")
        yield _text_writer(text, form)
        sys.stdout.flush()
        sys.stdout.buffer.write(_encoded(text.getvalue(), form.encoding, "standard output"))
        return
    with replacing(target) as temporary:
        if suffix != PARQUET:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                yield _text_writer(file, form)
            if not is_utf8:
                with temporary.open(newline="", encoding="utf-8") as file:
                    content = file.read()
                temporary.write_bytes(_encoded(content, form.encoding, str(target)))
            return
        # The digest of the rows before they are read: a file that changes meanwhile has another one.
        metadata = {} if rows_file is None else {ROWS_DIGEST: digest_of(rows_file)}

        def write(table: pa.Table) -> None:
            nonlocal writer
            if writer is None:
                writer = pq.ParquetWriter(temporary, table.schema)
                writer.add_key_value_metadata(metadata)
            writer.write_table(table)

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


def holds_predictions(target: Path, source: Source) -> bool:
    """Return whether a Parquet file of `row_writer` holds predictions of a source's file as it is now."""
    recorded = (pq.read_metadata(target).metadata or {}).get(ROWS_DIGEST.encode())
    return source.file is not None and bool(recorded == digest_of(source.file).encode())


def _written_form(form: TableForm, suffix: str, written_as: str) -> TableForm:
    """Return how a file is written, given how its rows were held; without a separator, as JSON lines."""
    if suffix not in SEPARATORS:
        return PLAIN_FORM
    if form.separator is not None and suffix == written_as:
        return form
    mark = BYTE_ORDER_MARK if form.before_header.startswith(BYTE_ORDER_MARK) else ""
    return TableForm(SEPARATORS[suffix], mark, form.encoding)


def _encoded(text: str, encoding: str, target: str) -> bytes:
    """Return the encoded text; UTF-8 with a byte order mark if the encoding lacks a character."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        print(f"{target} is written as UTF-8: {encoding} has no {text[error.start]!r}", file=sys.stderr)
        return f"{BYTE_ORDER_MARK}{text.removeprefix(BYTE_ORDER_MARK)}".encode()


def _text_writer(file: IO[str], form: TableForm) -> Write:
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

    def write(table: pa.Table) -> None:
        nonlocal has_header
        if not has_header:
            file.write(form.before_header)
            write_row(table.column_names)
            has_header = True
        for row in _rows_of(table):
            write_row([_cell(value) for value in row])

    return write


def _rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = []
    for column in table.columns:
        values = column.to_pylist()
        columns.append([_decoded(value, column.type) for value in values] if _has_json(column.type) else values)
    return zip(*columns, strict=True)


def _has_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType) or any(_has_json(kind.field(n).type) for n in range(kind.num_fields))


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """Return a value in which parts of mixed types, which `datasets` stores as JSON, are decoded."""
    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if isinstance(value, list):
        return [_decoded(item, kind.value_type) for item in value]
    if isinstance(value, dict):
        return {name: _decoded(item, kind.field(name).type) for name, item in value.items()}
    return value


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    text = _json(value)
    return None if text == "null" else text.strip('"')


def _json(value: Any) -> str:
    return to_json(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise AlignAttnError(f"a column holds {type(value).__name__}, not text: give --output_file NAME.parquet")

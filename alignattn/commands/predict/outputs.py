"""Files of predicted rows: CSV, tab-separated, JSON lines and Parquet, written a part at a time."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.utils.errors import AlignAttnError

Write = Callable[[pa.Table], None]
"""Takes the next rows."""


@contextmanager
def csv_writer(file: IO[str], delimiter: str = ",") -> Iterator[Write]:
    """Yield what writes CSV; texts stand as they are, all else as JSON, and nothing for what is missing."""
    writer: Any = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    is_first = True

    def write(table: pa.Table) -> None:
        nonlocal is_first
        if is_first:
            writer.writerow(table.column_names)
            is_first = False
        columns = [_values(table, name) for name in table.column_names]
        writer.writerows([[_cell(value) for value in row] for row in zip(*columns, strict=True)])

    yield write


@contextmanager
def json_lines_writer(file: IO[str]) -> Iterator[Write]:
    """Yield what writes a JSON object a row."""

    def write(table: pa.Table) -> None:
        names = table.column_names
        columns = [_values(table, name) for name in names]
        file.writelines(f"{_json(dict(zip(names, row, strict=True)))}\n" for row in zip(*columns, strict=True))

    yield write


@contextmanager
def parquet_writer(path: Path) -> Iterator[Write]:
    """Yield what writes Parquet."""
    writer: Any = None

    def write(table: pa.Table) -> None:
        nonlocal writer
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


TEXT_WRITERS: Mapping[str, Callable[[IO[str]], AbstractContextManager[Write]]] = {
    ".csv": csv_writer,
    ".tsv": partial(csv_writer, delimiter="\t"),
    ".jsonl": json_lines_writer,
}
"""By the ending of the file's name."""


@contextmanager
def file_writer(path: Path, suffix: str) -> Iterator[Write]:
    """Yield what writes a new file in the format of a suffix."""
    if suffix not in TEXT_WRITERS:
        with parquet_writer(path) as write:
            yield write
        return
    with path.open("w", newline="", encoding="utf-8") as file, TEXT_WRITERS[suffix](file) as write:
        yield write


def _values(table: pa.Table, name: str) -> list[Any]:
    column = table[name]
    values: list[Any] = column.to_pylist()
    return [_decoded(value, column.type) for value in values] if _has_json(column.type) else values


def _has_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType) or any(_has_json(kind.field(n).type) for n in range(kind.num_fields))


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """A value whose parts of mixed types `datasets` holds as JSON."""
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
    return value if value is None or isinstance(value, str) else _json(value).strip('"')


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise AlignAttnError(f"a column holds {type(value).__name__}, which is no text: give --output_file NAME.parquet")

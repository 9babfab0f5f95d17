"""Read and validate Parquet files, with one-line errors."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.utils.errors import AlignAttnError, one_line

READ_BYTES = 2**16
"""Buffer size for reading a column."""

UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""Errors of pyarrow on a damaged file."""

INPUT_COLUMN = "input"
"""An optional column of predictions, equal for rows with the same input: a number or a text."""


def read_parquet(path: Path, advice: str = "correct the file", **options: Any) -> pa.Table:
    """Return the validated table of a file.

    Args:
        path: the file.
        advice: what the user can do if the file cannot be read.
        **options: as for `pyarrow.parquet.read_table`.
    """
    try:
        table = pq.read_table(path, **options)
        table.validate(full=True)
    except UNREADABLE as error:
        raise AlignAttnError(f"cannot read {path} as a Parquet file: {one_line(error)}; {advice}") from error
    return table


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file for reading in batches; raises one of `UNREADABLE`."""
    # By default pyarrow prefetches and keeps the whole file or row group.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)


def check_parquet(path: Path) -> tuple[int, dict[str, dict[int, str]]]:
    """Validate a file in batches, in bounded memory.

    Returns:
        The number of rows, and the problem of each text that is not valid UTF-8, by column and row index.
    """
    problems: dict[str, dict[int, str]] = {}
    rows = 0
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise AlignAttnError(f"{path} has duplicate columns: {', '.join(names)}; rename one")
            for batch in file.iter_batches():
                _, found = without_bad_texts(pa.Table.from_batches([batch]))
                for name, bad in found.items():
                    problems.setdefault(name, {}).update({rows + index: text for index, text in bad.items()})
                rows += batch.num_rows
    except AlignAttnError:
        raise
    except UNREADABLE as error:
        raise AlignAttnError(f"cannot read {path} as PARQUET: {one_line(error)}; correct the file") from error
    return rows, problems


def without_bad_texts(table: pa.Table) -> tuple[pa.Table, dict[str, dict[int, str]]]:
    """Return the table with every text that is not valid UTF-8 set to null, and the problems by column and row index.

    Raises one of `UNREADABLE` if values do not match their types in another way.
    """
    problems: dict[str, dict[int, str]] = {}
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
        else:
            continue
        column = pa.chunked_array([column.combine_chunks()]) if column.num_chunks != 1 else column
        problems[name] = {
            index: f"column {name!r} is not valid UTF-8"
            for index in range(len(column))
            if not _is_valid(column.chunk(0).slice(index, 1))
        }
        kept = pa.array([None if index in problems[name] else index for index in range(len(column))], pa.int64())
        table = table.set_column(place, table.schema.field(place), column.take(kept))
    return table, problems


def _is_valid(values: pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True

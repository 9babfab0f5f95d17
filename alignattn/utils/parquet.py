"""Parquet that is read back: whole, or refused in one line."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.utils.errors import AlignAttnError, one_line

READ_BYTES = 2**16
"""Of a column, read at once."""

UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""What pyarrow raises of a damaged file."""


def read_parquet(path: Path, advice: str = "correct the file", **options: Any) -> pa.Table:
    """Return the table in a file whose values are what its types say: damaged texts are found here, not where they go.

    Args:
        path: of the file.
        advice: what to do if it cannot be read.
        **options: as for `pyarrow.parquet.read_table`.
    """
    try:
        table = pq.read_table(path, **options)
        table.validate(full=True)
    except UNREADABLE as error:
        raise AlignAttnError(f"cannot read {path} as a Parquet file: {one_line(error)}; {advice}") from error
    return table


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a file to be read a part at a time; raises what is in `UNREADABLE`."""
    # By itself pyarrow fetches ahead, and keeps, all that is going to be read: the whole file, or a whole row group.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)


def check_parquet(path: Path) -> tuple[int, dict[str, dict[int, str]]]:
    """Check a file as `read_parquet` does, a part of it at a time.

    Returns:
        Its number of rows, and what is wrong with texts that are no UTF-8, by their column and their row's index.
    """
    problems: dict[str, dict[int, str]] = {}
    rows = 0
    try:
        with open_parquet(path) as file:
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise AlignAttnError(f"{path} names a column twice: {', '.join(names)}; rename one")
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
    """Return a table in which values with text that is no UTF-8 are null, and what is wrong with them.

    Raises what is in `UNREADABLE` if its values are otherwise not what their types say.

    Args:
        table: whose values are not checked.

    Returns:
        The table; the problems by column and row.
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
            index: f"column {name!r} is no valid UTF-8"
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

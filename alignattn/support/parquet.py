"""Parquet that is read back: whole, or refused in one line."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.support.errors import AlignAttnError, one_line

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


def check_parquet(path: Path) -> int:
    """Check a file as `read_parquet` does, a part of it at a time, and return its number of rows."""
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches():
                batch.validate(full=True)
            rows: int = file.metadata.num_rows
    except UNREADABLE as error:
        raise AlignAttnError(f"cannot read {path} as PARQUET: {one_line(error)}; correct the file") from error
    return rows

"""The files that attacks leave behind: one JSON line an example, and beside it a header that says what was attacked."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from alignattn.robustness.records import AttackHeader, AttackRecord, AttackRun
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import check_file, write_json
from alignattn.utils.json_records import parse_json

RECORDS_SUFFIX = ".jsonl"
AWAY = "move the file away to run again"
OTHER_FILE = "give the JSON lines that an attack wrote"


def header_path(records_path: Path) -> Path:
    """Return where the header of a file of records lies: beside it, ending in `.json`."""
    return records_path.with_suffix(".json")


def write_header(records_path: Path, header: AttackHeader) -> None:
    """Write the header of a file of records in one step."""
    write_json(header_path(records_path), asdict(header))


def read_header(records_path: Path) -> AttackHeader:
    """Read the header of a file of records."""
    path = header_path(records_path)
    if not path.is_file():
        raise AlignAttnError(f"{path}, the header of {records_path.name}, is missing: attacks are read with both files")
    try:
        return AttackHeader.from_dict(parse_json(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise AlignAttnError(
            f"{path} is damaged or of another version ({one_line(error)}): move both files away to run again"
        ) from error


def read_run(records_path: Path) -> AttackRun:
    """Read a file of records and its header; a last line that was being written at a kill is left out."""
    header = read_header(records_path)
    records, _ = read_records(records_path, AWAY)
    _check_turns(records_path, header, records)
    return AttackRun(records_path, header, tuple(records))


def cut_torn_line(records_path: Path) -> None:
    """Cut off a last line that was being written at a kill, so that the next record starts a line."""
    _, torn = read_records(records_path, AWAY)
    if torn:
        with records_path.open("r+b") as file:
            file.truncate(records_path.stat().st_size - torn)
            os.fsync(file.fileno())


def read_records(path: Path, advice: str) -> tuple[list[AttackRecord], int]:
    """Read the whole lines of a file of records, which need not be there.

    Args:
        path: the file.
        advice: what to do if it is no such file.

    Returns:
        The records, and the number of bytes behind them: of a last line without its end.
    """
    content = path.read_bytes() if path.is_file() else b""
    # A line end is written last: what lacks one was torn.
    length = content.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(content[:length].splitlines(), 1):
        try:
            records.append(AttackRecord.from_line(line.decode("utf-8")))
        except ValueError as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else one_line(error)
            raise AlignAttnError(f"{path}, line {number} is no attacked example ({reason}): {advice}") from error
    return records, len(content) - length


def read_shown(path: Path) -> list[AttackRecord]:
    """Return the examples of a file in its order.

    A last line without its end is what a run writes just now, or wrote when it was killed: it is left out, and standard
    error says so.
    """
    check_file(path, OTHER_FILE)
    records, torn = read_records(path, OTHER_FILE)
    if torn:
        print(f"the last line of {path} is not whole and left out", file=sys.stderr)
    if not records:
        raise AlignAttnError(f"{path} holds no example: let the attack run on")
    return records


def _check_turns(path: Path, header: AttackHeader, records: Sequence[AttackRecord]) -> None:
    settings, turns = header.settings, header.row_numbers
    for number, (record, row) in enumerate(zip(records, turns, strict=False), 1):
        if (record.index, record.recipe, record.seed) != (row, settings.recipe, settings.seed + row):
            raise AlignAttnError(
                f"{path}, line {number} is of {record.recipe} on row {record.index} with seed {record.seed}, and not "
                f"of {settings.recipe} on row {row} with seed {settings.seed + row}: move the file away to run again"
            )
    if len(records) > len(turns):
        raise AlignAttnError(f"{path} holds {len(records)} records of {len(turns)} rows: move it away to run again")

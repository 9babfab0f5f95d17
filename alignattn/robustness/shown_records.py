"""The JSON lines of an attack, checked and read to be looked at; the file is left as it is."""

import sys
from pathlib import Path

from alignattn.errors import AlignAttnError
from alignattn.files import check_file
from alignattn.robustness.records import AttackRecord, read_records

ADVICE = "give the JSON lines that an attack wrote"


def read_shown(path: Path) -> list[AttackRecord]:
    """Return the examples of a file in its order.

    A last line without its end is what a run writes just now, or wrote when it was killed: it is left out, and standard
    error says so.

    Raises:
        AlignAttnError: if there is no such file, no whole line, or a line is no attacked example.
    """
    check_file(path, ADVICE)
    records, length = read_records(path, ADVICE)
    if path.stat().st_size > length:
        print(f"the last line of {path} is not whole and left out", file=sys.stderr)
    if not records:
        raise AlignAttnError(f"{path} holds no example: let the attack run on")
    return records

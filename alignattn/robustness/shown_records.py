"""The JSON lines of an attack, checked and read to be looked at; the file is left as it is."""

import sys
from pathlib import Path

from alignattn.errors import AlignAttnError
from alignattn.files import check_file
from alignattn.robustness.records import AttackRecord

_OTHER_FILE = "give the JSON lines that an attack wrote"


def read_shown(path: Path) -> list[AttackRecord]:
    """Return the examples of a file in its order.

    A last line without its end is what a run writes just now, or wrote when it was killed: it is left out, and standard
    error says so.

    Raises:
        AlignAttnError: if there is no such file, no whole line, or a line is no attacked example.
    """
    check_file(path, "give the JSON lines that an attack wrote")
    # Not splitlines(), which also breaks at characters that a JSON string may hold.
    *lines, rest = path.read_bytes().split(b"\n")
    if rest.strip():
        print(f"the last line of {path} is not whole and left out", file=sys.stderr)
    records = [_record(line, number, path) for number, line in enumerate(lines, start=1) if line.strip()]
    if not records:
        raise AlignAttnError(f"{path} holds no example: let the attack run on")
    return records


def _record(line: bytes, number: int, path: Path) -> AttackRecord:
    try:
        return AttackRecord.from_line(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise AlignAttnError(f"line {number} of {path} is no UTF-8 text: {_OTHER_FILE}") from error
    except (ValueError, TypeError) as error:
        raise AlignAttnError(f"line {number} of {path} is no attacked example ({error}): {_OTHER_FILE}") from error

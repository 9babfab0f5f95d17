"""JSON that is read back: records, each validated against the dataclass that it was written from, and what has none."""

import json
from pathlib import Path
from typing import Any, TypeVar

from alignattn.utils.errors import AlignAttnError, one_line

RecordT = TypeVar("RecordT")


def parse_json(text: str | bytes) -> Any:
    """Return what JSON holds; a ValueError says what is wrong with it, too deep a nesting included."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the names and values of a JSON file that a library or this package wrote."""
    try:
        return dict(parse_json(path.read_bytes()).items())
    except (ValueError, AttributeError) as error:
        raise AlignAttnError(f"{path} is damaged ({one_line(error)}): move it away") from error


def read_record(path: Path, record: type[RecordT], verb: str) -> RecordT | None:
    """Return the record in a file, or None if there is no such file.

    Args:
        path: of the file.
        record: a dataclass; its fields and their types are what the file must hold, and what else it holds is left.
        verb: what a user does to get the file again, for the message.
    """
    # Where nothing is read back, nobody waits for its import.
    from pydantic import TypeAdapter, ValidationError

    if not path.is_file():
        return None
    try:
        return TypeAdapter(record).validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise AlignAttnError(
            f"{path} is damaged or of another version of alignattn: move it away to {verb} again"
        ) from error

"""Records that are read back from JSON files, each validated against the dataclass that it was written from."""

from pathlib import Path
from typing import TypeVar

from alignattn.support.errors import AlignAttnError

RecordT = TypeVar("RecordT")


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

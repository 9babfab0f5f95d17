"""Write JSON, and read the JSON files that this package wrote; records are validated against their dataclass."""

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from alignattn.utils.errors import AlignAttnError, one_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RecordT = TypeVar("RecordT")


def to_json(content: Any, **options: Any) -> str:
    """Return `json.dumps(content, **options)` with `null` for numbers that are not finite: JSON has no NaN."""
    try:
        return json.dumps(content, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_without_nan(content), allow_nan=False, **options)


def _without_nan(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_nan(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; nesting that is too deep also raises a ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        return dict(parse_json(path.read_bytes()).items())
    except (ValueError, AttributeError) as error:
        raise AlignAttnError(f"{path} is damaged ({one_line(error)}): move it away") from error


@cache
def _adapter_of(record: type[RecordT]) -> "TypeAdapter[RecordT]":
    """Return the validator of a dataclass; building it takes longer than reading a file, and tables read hundreds."""
    from pydantic import TypeAdapter

    return TypeAdapter(record)


def read_record(path: Path, record: type[RecordT], verb: str) -> RecordT | None:
    """Return the record in a file, or None if there is no such file.

    Args:
        path: the file.
        record: a dataclass; the file must contain its fields with their types, other keys are ignored.
        verb: what the user does to make the file again, for the message.
    """
    # The import is slow, and most commands read no record.
    from pydantic import ValidationError

    if not path.is_file():
        return None
    try:
        # mypy considers classes of dataclasses unhashable.
        adapter: TypeAdapter[RecordT] = _adapter_of(cast("Any", record))
        return adapter.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise AlignAttnError(
            f"{path} is damaged or of another version of alignattn: move it away to {verb} again"
        ) from error

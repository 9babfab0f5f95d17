"""Read text, YAML and JSON files, compressed or not, and write files atomically."""

import bz2
import codecs
import csv
import fcntl
import gzip
import json
import lzma
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml

from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.paths import OWN_PREFIX, check_file

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RecordT = TypeVar("RecordT")

BYTE_ORDER_MARK = "\ufeff"

SIGNATURES: Mapping[bytes, str] = {
    b"\x1f\x8b": "is compressed: its name must end in .gz",
    b"BZh": "is compressed: its name must end in .bz2",
    b"\xfd7zXZ\x00": "is compressed: its name must end in .xz",
    b"\x28\xb5\x2f\xfd": "is compressed: its name must end in .zst",
    b"PK\x03\x04": "is a ZIP archive or a spreadsheet: unpack it, or save it as CSV",
    b"\xd0\xcf\x11\xe0": "is a document of Microsoft Office: save it as CSV",
    b"PAR1": "is Parquet: its name must end in .parquet",
    b"\xff\xfe": "is text in UTF-16, as its first bytes say: give --encoding utf-16",
    b"\xfe\xff": "is text in UTF-16, as its first bytes say: give --encoding utf-16",
}
"""The format of a file that is not text, by its first bytes."""


def _open_zstandard(path: Path) -> Any:
    # pyarrow has the codec. Its import is slow, so it is imported only when needed.
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")


COMPRESSIONS: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstandard,
}
"""The opener of a compressed file, by suffix."""

BROKEN = (EOFError, zlib.error, lzma.LZMAError)
"""Errors of damaged compressed files, besides OSError and ValueError."""


def plain_suffix(path: str | Path) -> str:
    """Return the suffix that names the format, in lower case: `.csv` for `rows.CSV.gz`."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix.lower() in COMPRESSIONS else name).suffix.lower()


def plain_stem(path: str | Path) -> str:
    """Return the file name without suffixes, such as `rows` for `rows.csv.gz`; for `.` that of the current folder."""
    name = Path(os.path.abspath(path))
    return (name.with_suffix("") if name.suffix.lower() in COMPRESSIONS else name).stem


def check_encoding(encoding: str | None) -> None:
    """Refuse an `--encoding` that Python does not know; None means UTF-8."""
    try:
        codecs.lookup(encoding or "utf-8").decode(b"")
    except (LookupError, TypeError, ValueError) as error:
        raise AlignAttnError(f"--encoding {encoding!r} is not a text encoding that Python knows") from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, compressed or not; raises OSError or one of `BROKEN`."""
    compressed = COMPRESSIONS.get(path.suffix.lower())
    if compressed is None:
        return path.read_bytes()
    with compressed(path) as file:
        content: bytes = file.read()
    return content


def read_whole(path: Path, encoding: str | None = None) -> tuple[str, bool, bool]:
    """Return the text of a file, whether all bytes could be decoded, and whether it began with a byte order mark.

    Line ends are kept. If the encoding extends ASCII, invalid bytes become lone surrogates
    (`errors="surrogateescape"`), so that the rest of the file can be read.

    Args:
        path: the file, compressed or not.
        encoding: None means UTF-8.

    Raises:
        UnicodeDecodeError: if bytes are invalid and the encoding does not extend ASCII.
    """
    content = read_bytes(path)
    name, is_decoded = encoding or "utf-8", True
    try:
        text = content.decode(name)
    except UnicodeDecodeError:
        for start, reason in SIGNATURES.items():
            if content.startswith(start):
                raise AlignAttnError(f"{path} {reason}") from None
        if "a,\t\n".encode(name) != b"a,\t\n":
            raise
        text, is_decoded = content.decode(name, "surrogateescape"), False
    first_line = text.partition("\n")[0]
    # UTF-16 that is read byte by byte.
    if encoding is None and first_line.count("\0") > len(first_line) / 4:
        raise AlignAttnError(
            f"{path} has NUL at every other character, so it is UTF-16: give --encoding utf-16-le or utf-16-be"
        )
    # The codecs utf-16, utf-32 and utf-8-sig read and write the mark themselves.
    return text.removeprefix(BYTE_ORDER_MARK), is_decoded, text.startswith(BYTE_ORDER_MARK)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on success its file atomically replaces `path`.

    On an exception the temporary file is removed and `path` does not change. Temporary files of killed processes in the
    same folder are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"{OWN_PREFIX}-*"):
        # The system has released the locks of ended processes.
        with suppress(OSError), leftover.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()
    while True:
        # Keep the suffix: picture writers choose the format by it.
        hold, name = tempfile.mkstemp(dir=path.parent, prefix=f"{OWN_PREFIX}-", suffix=path.suffix)
        temporary = Path(name)
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(hold, fcntl.LOCK_EX)
        # Another process may have taken it for a leftover before it was locked.
        if os.fstat(hold).st_nlink:
            break
        os.close(hold)
    try:
        yield temporary
        with temporary.open("rb") as content:
            os.fsync(content.fileno())
        # mkstemp makes files private; results get the usual permissions.
        temporary.chmod(0o666 & ~umask())
        temporary.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        # Libraries omit the path or name the temporary file.
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
        os.close(hold)


def read_text(path: Path, advice: str = "give another") -> str:
    """Return the text of a UTF-8 file, compressed or not, without its byte order mark and with Python's line ends.

    `advice` is as for `check_file`.
    """
    check_file(path, advice)
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, *BROKEN) as error:
        raise AlignAttnError(f"cannot read {path} as text in UTF-8: {one_line(error)}; correct the file") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_yaml(path: Path, advice: str = "give another") -> dict[str, Any]:
    """Return the mapping in a YAML file; `advice` as for `check_file`."""
    return parse_yaml(read_text(path, advice), str(path))


class _UniqueKeys:
    """A part of a YAML loader that refuses repeated keys, which PyYAML drops although YAML forbids them."""

    # Checked before merge keys (<<) add the keys of other mappings, which a mapping may override.
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)  # type: ignore[misc]
        names = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in names:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1} has {key.value} a second time: keep one")
            if name is not None and key.value != "<<":
                names.add(name)
        return node


class _TypedLoader(_UniqueKeys, yaml.SafeLoader):
    pass


class _TextLoader(_UniqueKeys, yaml.BaseLoader):
    pass


def parse_yaml(text: str, origin: str, *, as_written: bool = False) -> dict[str, Any]:
    """Return the mapping in a YAML text.

    Args:
        text: YAML.
        origin: the source of the text, for messages.
        as_written: keep every value as text.
    """
    try:
        values = yaml.load(text, Loader=_TextLoader if as_written else _TypedLoader)  # noqa: S506
    except RecursionError as error:
        raise AlignAttnError(f"{origin} is nested too deeply: correct the file") from error
    # A date in month 13 or a number of 5,000 digits raises a ValueError of Python.
    except (yaml.YAMLError, ValueError) as error:
        raise AlignAttnError(f"{origin} is not valid YAML: {one_line(error)}") from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise AlignAttnError(f"{origin} must hold lines of NAME: VALUE")
    return values


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically, with `null` for numbers that are not finite."""
    write_text(path, to_json(content, indent=2) + "\n")


def write_csv(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write a CSV file of at least one row atomically; the first row names the columns."""
    rows = list(lines)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def umask() -> int:
    """Return the mask of the permissions of new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


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

"""Text files, compressed or not according to the suffix."""

import bz2
import codecs
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from alignattn.utils.errors import AlignAttnError

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

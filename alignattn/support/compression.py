"""Files as they lie: compressed or not, as the ending of their name says."""

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from alignattn.support.errors import AlignAttnError

UTF8 = "utf-8-sig"
"""With or without a byte order mark."""


def _open_zstandard(path: Path) -> Any:
    # pyarrow brings the codec; a file that needs none does not wait for its import.
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")


COMPRESSIONS: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _open_zstandard,
}
"""What opens a compressed file, by the ending of its name."""

BROKEN = (EOFError, zlib.error, lzma.LZMAError)
"""What broken compression raises beside OSError and ValueError."""


def plain_suffix(path: str | Path) -> str:
    """Return the ending of a file's name that says its format, in lower case: `.csv` of `rows.CSV.gz`."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix.lower() in COMPRESSIONS else name).suffix.lower()


def plain_stem(path: str | Path) -> str:
    """Return a file's name without the endings that say its format: `rows` of `rows.csv.gz`."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix.lower() in COMPRESSIONS else name).stem


def check_encoding(encoding: str | None) -> None:
    """Refuse what `--encoding` names if Python knows no such encoding of text; None is UTF-8."""
    try:
        codecs.lookup(encoding or "utf-8").decode(b"")
    except (LookupError, TypeError, ValueError) as error:
        raise AlignAttnError(f"--encoding {encoding!r} is no encoding of text that Python knows") from error


def read_whole(path: Path, encoding: str | None = None) -> str:
    """Return the text of a file, compressed or not, its line ends as they are.

    Args:
        path: of the file.
        encoding: of its text, UTF-8 where None.
    """
    compressed = COMPRESSIONS.get(path.suffix.lower())
    if compressed is None:
        content = path.read_bytes()
    else:
        with compressed(path) as file:
            content = file.read()
    return content.decode(encoding or UTF8)

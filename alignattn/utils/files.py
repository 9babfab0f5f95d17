"""Read text and YAML files, and write files atomically."""

import csv
import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from alignattn.utils.compression import BROKEN, read_bytes
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.json_records import to_json

OWN_PREFIX = ".alignattn"
"""Prefix of temporary files, locks and marks, which do not count as content of a folder."""

UNFINISHED_FILE = f"{OWN_PREFIX}.unfinished"


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


def entries(folder: Path) -> set[str]:
    """Return the names in a folder, without the locks and temporary files of this package."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(OWN_PREFIX)}


def cache_folder() -> Path:
    """Return this package's folder in the user's cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "alignattn"


def check_file(path: Path, advice: str = "give another") -> None:
    """Raise an error if a path is not a file; `advice` tells the user what to do."""
    if path.is_dir():
        raise AlignAttnError(f"{path} is a folder, not a file: {advice}")
    if not path.is_file():
        raise AlignAttnError(f"there is no file {path}: {advice}")


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


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Raise an error if a folder contains a file of these names, unless a killed call left it (`unfinished`)."""
    for name in () if (folder / UNFINISHED_FILE).exists() else names:
        if (folder / name).exists():
            raise AlignAttnError(f"{folder} already holds {name}: give another --output_dir")


@contextmanager
def unfinished(folder: Path) -> Iterator[None]:
    """Mark a folder as unfinished until the context ends without an error."""
    mark = folder / UNFINISHED_FILE
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    yield
    mark.unlink()


def umask() -> int:
    """Return the mask of the permissions of new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Files and folders by their paths: checks of what options name, locks, digests, and names that can be published."""

import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from alignattn.utils.errors import AlignAttnError

OWN_PREFIX = ".alignattn"
"""Prefix of temporary files, locks and marks, which do not count as content of a folder."""

UNFINISHED_FILE = f"{OWN_PREFIX}.unfinished"

LOCK_FILE = f"{OWN_PREFIX}.lock"

RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""Where torchrun and the launchers of MPI put the number of a process; accelerate reads the same."""

IDENTIFYING_FILES = (
    "config.json",
    "*.safetensors",
    "pytorch_model*.bin",
    "tokenizer*.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)
"""The files that identify a model: config, weights, tokenizer."""

Place = Callable[[str, str], None]
"""A function of an option's label and a value."""

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/+-])(?:/[\w.@+~-]+){2,}")
HUB_SNAPSHOT = re.compile(r"/(?:models|datasets)--([^/]+)/snapshots/")


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


def input_file(label: str, value: str) -> None:
    """Refuse an input file that does not exist."""
    check_file(Path(value), f"give another to {label}")


def no_folder(label: str, value: str) -> None:
    """Refuse a folder if a file is expected."""
    if Path(value).is_dir():
        input_file(label, value)


def input_file_like(pattern: str) -> Place:
    """Return a check of an input file that suggests a file if the value is a folder.

    Args:
        pattern: glob pattern of the names of suggested files.
    """

    def place(label: str, value: str) -> None:
        files = sorted(Path(value).glob(f"**/{pattern}")) if Path(value).is_dir() else []
        if files:
            raise AlignAttnError(f"{value} is a folder: give a file, such as {files[0]}, to {label}")
        input_file(label, value)

    return place


def input_path(label: str, value: str) -> None:
    """Refuse an input file or folder that does not exist."""
    if not Path(value).is_dir():
        input_file(label, value)


def input_folder(label: str, value: str) -> None:
    """Refuse an input folder that does not exist."""
    path = Path(value)
    if not path.is_dir():
        problem = f"{value} is a file, not a folder" if path.exists() else f"there is no folder {value}"
        raise AlignAttnError(f"{problem}: give another to {label}")


def output_folder(label: str, value: str) -> None:
    """Refuse an output folder that cannot be made because it, or a folder above it, is a file."""
    path = Path(value)
    file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        other = "is a file" if file == path else f"cannot be made: {file} is a file"
        raise AlignAttnError(f"{label} {value} {other}: give another folder")


def output_file(label: str, value: str) -> None:
    """Refuse an output file that exists, is a folder, or whose folder cannot be made."""
    path = Path(value)
    if path.exists():
        problem = "is a folder" if path.is_dir() else "already exists"
        raise AlignAttnError(f"{label} {value} {problem}: give another file")
    if path.parent != path:
        output_folder(label, str(path.parent))


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


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for writing; the system releases the lock when its process ends, in any way.

    In a group of processes, rank 0 holds the lock.

    Args:
        folder: created if missing, and removed again if nothing was written.

    Raises:
        AlignAttnError: if another process holds the lock.
    """
    if any(int(os.environ.get(name, "0")) > 0 for name in RANKS):
        yield
        return
    output_folder("--output_dir", str(folder))
    # Imported here: it takes a tenth of a second, which would slow down --help.
    from filelock import FileLock, Timeout

    path, is_new = folder / LOCK_FILE, not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except (Timeout, FileNotFoundError):  # the holder that ends may remove the folder
        holder = ""
        with suppress(OSError, UnicodeDecodeError):
            holder = path.read_text(encoding="utf-8")
        raise AlignAttnError(
            f"{holder or 'another process'} writes to {folder}: wait until it ends, or give another folder"
        ) from None
    try:
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        with suppress(OSError):  # a full disk
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since},", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            path.unlink()
            if is_new and not entries(folder):
                folder.rmdir()
        lock.release()


def file_state(path: Path) -> tuple[int, ...]:
    """Return a file's inode, size and modification time, with which what was read of it may be cached."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def digest_of(path: Path) -> str:
    """Return the digest of a file, or of the names and contents of all files below a folder."""
    if not path.is_dir():
        return _digest_of_file(path, file_state(path))
    return digest_of_files({file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()})


def model_digest(folder: Path) -> str:
    """Return the digest of the `IDENTIFYING_FILES` of a model's folder."""
    return digest_of_files({file.name: file for pattern in IDENTIFYING_FILES for file in folder.glob(pattern)})


def digest_of_files(files: Mapping[str, Path]) -> str:
    """Return the digest of the names (the keys) and contents of files."""
    lines = (f"{name} {digest_of(file)}\n" for name, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


@cache
def _digest_of_file(path: Path, _: tuple[int, ...]) -> str:
    """The digest of a file, cached for its `file_state`."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def publishable(value: Any) -> Any:
    """Return a value, nested lists and dicts included, without absolute paths.

    A path in the Hub's cache becomes its Hub id, any other absolute path its last part. Relative paths stay.
    """
    if isinstance(value, dict):
        return {name: publishable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [publishable(item) for item in value]
    if not isinstance(value, str | PurePath) or not Path(value).is_absolute():
        return value
    return short_path(str(value), 1)


def short_path(path: str, parts: int = 2) -> str:
    """Return the last parts of a path; for a path in the Hub's cache, its Hub id."""
    downloaded = HUB_SNAPSHOT.search(path)
    if downloaded:
        return downloaded.group(1).replace("--", "/")
    return "/".join(part for part in Path(path).parts[-parts:] if part != "/")


def publishable_text(text: str) -> str:
    """Return a text with absolute paths shortened to their last two parts (many end in `model` or `data`)."""
    return ABSOLUTE_PATH.sub(lambda path: short_path(path[0]), text)


def published_names(paths: Sequence[str]) -> list[str]:
    """Return distinct short names of paths or Hub ids; absolute paths keep as many last parts as needed to differ."""
    names = [publishable(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    ends = map("/".join, distinct_ends(list(map(Path, paths))))
    return [end if Path(path).is_absolute() else path for path, end in zip(paths, ends, strict=True)]


def distinct_ends(paths: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return the last n parts of each path, n the minimum at which all differ; one part if two paths are equal."""
    whole = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, whole)) + 1):
        ends = [parts[-count:] for parts in whole]
        if len(set(ends)) == len(ends):
            return ends
    return [parts[-1:] for parts in whole]

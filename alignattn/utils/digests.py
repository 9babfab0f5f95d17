"""SHA-256 of files and folders: equal content is known by it, wherever it lies and whatever it is called."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

MODEL_FILES = ("config.json", "*.safetensors", "tokenizer*.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")
"""What of a model's folder says which model it is: its config, its weights, its tokenizer."""


def digest_of(path: Path) -> str:
    """Return the digest of a file, or of the names and contents of all files below a folder."""
    if not path.is_dir():
        status = path.stat()
        return _digest_of_file(path, (status.st_ino, status.st_size, status.st_mtime_ns))
    return digest_of_files({file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()})


def model_digest(folder: Path) -> str:
    """Return the digest of the `MODEL_FILES` of a model's folder."""
    return digest_of_files({file.name: file for pattern in MODEL_FILES for file in folder.glob(pattern)})


def digest_of_files(files: Mapping[str, Path]) -> str:
    """Return the digest of files' names, the keys, and of their contents."""
    lines = (f"{name} {digest_of(file)}\n" for name, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


@cache
def _digest_of_file(path: Path, _: tuple[int, ...]) -> str:
    """The digest of a file, read once while what changes with its content stays the same."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

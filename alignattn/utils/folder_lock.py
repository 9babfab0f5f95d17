"""Who writes a folder: one process at a time, and the others wait."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from alignattn.utils.files import OWN_PREFIX, check_output_folder, entries

LOCK_FILE = f"{OWN_PREFIX}.lock"

LOCK_POLL_SECONDS = 0.5
"""Between two looks at a lock that another process holds."""

RANK_VARIABLE = "RANK"
"""Of a process in its group, as torchrun says it."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from writing a folder; one that is written by another is waited for, which is said.

    The system takes the lock from a process that ends, however it ends. Of the processes of one group, which write one
    folder together, the first holds it.

    Args:
        folder: made where it is missing, and removed again where nothing was written.
    """
    if int(os.environ.get(RANK_VARIABLE, "0")) > 0:
        yield
        return
    check_output_folder(folder)
    # It would be released if its object were collected.
    lock, is_new = _acquired(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            # Whoever waits for a file that is no more looks again.
            (folder / LOCK_FILE).unlink()
            if is_new and not entries(folder):
                folder.rmdir()
        lock.release()


def note_holder(lock_file: Path) -> None:
    """Write into a lock's file who holds it; a full disk takes no note of that."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    with suppress(OSError):
        lock_file.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}", encoding="utf-8")


def holder_of(lock_file: Path) -> str:
    """Return who holds a lock, in words."""
    with suppress(OSError, UnicodeDecodeError):
        return lock_file.read_text(encoding="utf-8") or "another process"
    return "another process"


def _acquired(folder: Path) -> tuple[FileLock, bool]:
    """Return the lock of a folder, taken, and whether the folder was made for it."""
    path, said = folder / LOCK_FILE, False
    lock = FileLock(path)
    while True:
        # Who held it before may have removed the folder with it.
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not said:
                print(f"waiting for {folder}, which is written by {holder_of(path)}", file=sys.stderr)
            said = True
            time.sleep(LOCK_POLL_SECONDS)
        except FileNotFoundError:
            time.sleep(LOCK_POLL_SECONDS)
        else:
            note_holder(path)
            return lock, is_new

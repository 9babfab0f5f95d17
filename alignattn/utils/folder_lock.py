"""A lock for a folder: one process writes to it, others wait."""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from alignattn.utils.files import OWN_PREFIX, entries
from alignattn.utils.places import output_folder

LOCK_FILE = f"{OWN_PREFIX}.lock"

LOCK_POLL_SECONDS = 0.5
"""Interval at which a waiting process tries the lock again."""

RANK_VARIABLE = "RANK"
"""Rank of a process in its group, set by torchrun."""


@contextmanager
def folder_lock(
    folder: Path, purpose: Mapping[str, Any] | None = None, check: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Lock a folder for writing; if another process holds the lock, print this and wait.

    The system releases the lock when its process ends, in any way. In a group of processes, rank 0 holds the lock.

    Args:
        folder: created if missing, and removed again if nothing was written.
        purpose: the options of the process, which `running` returns to others.
        check: called once while another process holds the lock: raises an error if waiting is useless.
    """
    if int(os.environ.get(RANK_VARIABLE, "0")) > 0:
        yield
        return
    output_folder("--output_dir", str(folder))
    # The lock is held as long as its object lives.
    lock, is_new = _acquired(folder, purpose, check)
    try:
        yield
    finally:
        with suppress(OSError):
            # A process that waits for the removed file looks again.
            (folder / LOCK_FILE).unlink()
            if is_new and not entries(folder):
                folder.rmdir()
        lock.release()


def running(folder: Path) -> dict[str, Any] | None:
    """Return the purpose of the process that holds the lock of a folder; None if none does, or it gave none."""
    path = folder / LOCK_FILE
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _purpose(path)
    except OSError:
        return None
    return None


def _purpose(lock_file: Path) -> dict[str, Any] | None:
    # The holder may be writing it.
    with suppress(OSError, ValueError, IndexError):
        purpose: dict[str, Any] = json.loads(lock_file.read_text(encoding="utf-8").splitlines()[1])
        return purpose
    return None


def note_holder(lock_file: Path, purpose: Mapping[str, Any] | None = None) -> None:
    """Write the holder, and its purpose if given, into the lock file; a full disk is ignored."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"process {os.getpid()} on {socket.gethostname()}, since {since}"]
    lines += [] if purpose is None else [json.dumps(purpose, default=str)]
    with suppress(OSError):
        lock_file.write_text("\n".join(lines), encoding="utf-8")


def holder_of(lock_file: Path) -> str:
    """Return who holds a lock, for a message."""
    with suppress(OSError, UnicodeDecodeError):
        return lock_file.read_text(encoding="utf-8").partition("\n")[0] or "another process"
    return "another process"


def _acquired(folder: Path, purpose: Mapping[str, Any] | None, check: Callable[[], None]) -> tuple[FileLock, bool]:
    """Acquire the lock of a folder; return it and whether the folder was created."""
    path, said, is_checked = folder / LOCK_FILE, False, False
    lock = FileLock(path)
    while True:
        # In each attempt, because the previous holder may have removed the folder.
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not is_checked and _purpose(path) is not None:
                check()
                is_checked = True
            if not said:
                print(f"waiting for {holder_of(path)}, which writes to {folder}", file=sys.stderr)
            said = True
            time.sleep(LOCK_POLL_SECONDS)
        except FileNotFoundError:
            time.sleep(LOCK_POLL_SECONDS)
        else:
            note_holder(path, purpose)
            return lock, is_new

"""The process of one run: `python -m alignattn.commands.reproduce.launchers.worker FOLDER [LAUNCHER]`.

The worker itself holds the folder's lock while it works: if a launcher dies, no other launcher can start the same run.
Given the launcher's process id, the worker ends with that process.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from filelock import Timeout

from alignattn.commands.reproduce.folder import FAILURE_FILE, LOG_FILE, RunFolder, record_failure
from alignattn.utils.errors import AlignAttnError, reason_of

DONE, FAILED, BUSY = 0, 1, 75
"""Exit codes: finished, now or before; failed; another process runs it (EX_TEMPFAIL of sysexits.h)."""

ORPHANED = 143
"""Exit code of a run whose launcher ended: 128 + the number of SIGTERM."""

PARENT_POLL_SECONDS = 0.5
"""Seconds between two checks that the launcher is alive."""


def run_in_process(folder: Path, environment: Mapping[str, str]) -> int:
    """Run the worker of a folder in its own process, and return its exit code.

    The run that it depends on is executed first, unless it has ended. The worker's output goes to the folder's log. The
    folder of a killed worker is marked as failed.

    Args:
        folder: the prepared folder.
        environment: variables in addition to those of this process.
    """
    try:
        needed = RunFolder.read(folder).needed
    except AlignAttnError:
        # The worker reports it, so that this run fails alone.
        needed = None
    if needed is not None and needed.status().state == "missing" and run_in_process(needed.path, environment) == BUSY:
        return BUSY
    with (folder / LOG_FILE).open("a", encoding="utf-8") as log:
        code = subprocess.run(  # noqa: S603  # no shell, and fixed words
            [sys.executable, "-m", "alignattn.commands.reproduce.launchers.worker", str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            check=False,
        ).returncode
    if code not in (DONE, BUSY) and not (folder / FAILURE_FILE).exists():
        end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        record_failure(folder, f"the run {end}; see {LOG_FILE}")
    return code


class RunningCost:
    """The cost of a run that this process executes.

    Args:
        folder: the folder of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.start, self.used = time.monotonic(), _processor_seconds()
        # A signal may interrupt this thread while it holds the lock.
        self.lock = threading.RLock()
        self.is_added = False

    def add(self) -> None:
        """Add the cost so far to the folder, unless another thread has."""
        with self.lock:
            if not self.is_added:
                self.is_added = True
                self.folder.add_cost(time.monotonic() - self.start, _processor_seconds() - self.used)


def _end_children() -> None:
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process().children(recursive=True)
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def end_with(launcher: int, cost: RunningCost) -> None:
    """End this process and the processes that it started as soon as its launcher has ended, as a kill would.

    Args:
        launcher: the process id of the launcher.
        cost: the cost of the run, which the end adds to its folder.
    """

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(PARENT_POLL_SECONDS)
        print("the launcher of this run has ended, so the run stops; the next call resumes it", flush=True)
        _end_children()
        try:
            cost.add()
        finally:
            os._exit(ORPHANED)

    threading.Thread(target=watch, daemon=True).start()


def end_by_signal(cost: RunningCost) -> None:
    """End this process and the processes that it started on SIGTERM, as the signal would, but keep the cost.

    Args:
        cost: the cost of the run, which the end adds to its folder.
    """
    worker = os.getpid()

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            # A forked process, such as one that tokenizes, inherits this function.
            if os.getpid() == worker:
                _end_children()
                cost.add()
        finally:
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


def work(folder: RunFolder, launcher: int | None = None) -> int:
    """Run a folder's run unless it has finished or is locked, and return an exit code.

    Args:
        folder: the prepared folder.
        launcher: the process id of the launcher, with which the run ends; None = it does not end with one.
    """
    try:
        lock = folder.lock()
    except Timeout:
        return BUSY
    with lock:
        status = folder.status()
        if status.state == "done":
            return DONE
        cost = RunningCost(folder)
        if launcher is not None:
            end_with(launcher, cost)
            end_by_signal(cost)
        try:
            if folder.needed is not None and (needed := folder.needed.status()).state != "done":
                raise AlignAttnError(
                    f"the run that it depends on is {needed.state}: {needed.reason or folder.needed.path}"
                )
            folder.command.execute(folder.options)
        except (AlignAttnError, OSError) as error:
            record_failure(folder.path, reason_of(error) if isinstance(error, OSError) else str(error))
            return FAILED
        except Exception as error:
            traceback.print_exc()
            record_failure(folder.path, f"{type(error).__name__}: {error} (see {LOG_FILE})")
            return FAILED
        finally:
            cost.add()
    return DONE


def _processor_seconds() -> float:
    """Return the processor seconds of this process and of the processes that it waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    try:
        sys.exit(work(RunFolder.read(Path(sys.argv[1])), *map(int, sys.argv[2:3])))
    except AlignAttnError as error:
        print(error, file=sys.stderr)
        sys.exit(FAILED)

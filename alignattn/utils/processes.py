"""Ending processes that a process started."""

from contextlib import suppress

import psutil


def end_children(process: psutil.Process) -> None:
    """Kill the processes that a process started, and those that these started, as far as they still run."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = process.children(recursive=True)
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def end_process(process: psutil.Process) -> None:
    """Kill a process and those that it started, as far as they still run."""
    end_children(process)
    with suppress(psutil.NoSuchProcess):
        process.kill()

"""Kill processes together with those that they started."""

from contextlib import suppress

import psutil


def end_children(process: psutil.Process) -> None:
    """Kill all running descendants of a process."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = process.children(recursive=True)
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()

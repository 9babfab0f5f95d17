"""Progress: a bar in a terminal, occasional lines in a log."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

from tqdm import tqdm  # type: ignore[import-untyped]

from alignattn.utils.errors import plural

LOG_SECONDS = 30.0
"""Seconds between two log lines; shorter work logs nothing."""

T = TypeVar("T")


def in_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


def progress(description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> "tqdm | LogLines":
    """Return a progress display on standard error: a bar in a terminal, otherwise lines.

    Args:
        description: one or two words about the work.
        total: number of units.
        unit: name of one unit.
        initial: number of units already done.
        scaled: print counts with SI prefixes, as for bytes.
    """
    if in_terminal():
        return terminal_bar(description, total, unit, initial=initial, scaled=scaled)
    return LogLines(description, total, unit, initial=initial, scaled=scaled)


def counted(items: Iterable[T], description: str, total: int, unit: str) -> Iterator[T]:
    """Yield items and show progress."""
    with progress(description, total, unit) as bar:
        for item in items:
            yield item
            bar.update()


def terminal_bar(description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> tqdm:
    """Return a bar for a terminal; arguments as for `progress`."""
    return tqdm(
        desc=description, total=total, unit=unit, initial=initial, unit_scale=scaled, disable=False, dynamic_ncols=True
    )


class LogLines:
    """Prints a line every `LOG_SECONDS` on standard error; has the interface of tqdm."""

    def __init__(self, description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> None:
        self.description, self.total, self.unit, self.scaled = description, total, unit, scaled
        self.done = initial
        self.beside = ""
        self._due = time.monotonic() + LOG_SECONDS

    def __enter__(self) -> "LogLines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __str__(self) -> str:
        done, total = map(tqdm.format_sizeof if self.scaled else str, (self.done, self.total))
        return ", ".join(filter(None, (f"{self.description}: {done} of {plural(total, self.unit)}", self.beside)))

    def update(self, n: int = 1) -> None:
        """Count finished units, and print a line if one is due."""
        self.done += n
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LOG_SECONDS
            self.write(str(self))

    def set_description(self, desc: str) -> None:
        """Rename the work."""
        self.description = desc

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Set a remark after the count."""
        self.beside = s

    def write(self, s: str, file: TextIO | None = None) -> None:
        """Print a line now, by default on standard error."""
        print(s, file=file or sys.stderr, flush=True)

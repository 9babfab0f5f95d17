"""How far a work is: one bar in a terminal, short lines now and then in a log."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

from tqdm import tqdm  # type: ignore[import-untyped]

LOG_SECONDS = 30.0
"""From one line of a log to the next; a work that takes less says nothing there."""

T = TypeVar("T")


def plural(noun: str) -> str:
    """Return the plural of a noun of a count."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def in_terminal() -> bool:
    """Return whether standard error is a terminal, where a bar can be drawn over itself."""
    return sys.stderr.isatty()


def progress(description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> "tqdm | LogLines":
    """Return what shows on standard error how far a work is: a bar in a terminal, else lines.

    Args:
        description: of the work, in a word or two.
        total: how many units there are.
        unit: one of them.
        initial: how many were done before.
        scaled: whether they are so many that thousands are told, as of bytes.
    """
    if in_terminal():
        return terminal_bar(description, total, unit, initial=initial, scaled=scaled)
    return LogLines(description, total, unit, initial=initial, scaled=scaled)


def counted(items: Iterable[T], description: str, total: int, unit: str) -> Iterator[T]:
    """Yield items, and show how far the work on them is."""
    with progress(description, total, unit) as bar:
        for item in items:
            yield item
            bar.update()


def terminal_bar(description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> tqdm:
    """Return the bar that `progress` has for a terminal."""
    return tqdm(
        desc=description, total=total, unit=unit, initial=initial, unit_scale=scaled, disable=False, dynamic_ncols=True
    )


class LogLines:
    """A line each `LOG_SECONDS` on standard error; it takes what `progress` does, and is used as a bar of tqdm is."""

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
        return ", ".join(filter(None, (f"{self.description}: {done} of {total} {plural(self.unit)}", self.beside)))

    def update(self, n: int = 1) -> None:
        """Count what was done since, and say so when it is time."""
        self.done += n
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LOG_SECONDS
            self.write(str(self))

    def set_description(self, desc: str) -> None:
        """Give the work another name."""
        self.description = desc

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Have something said of the work beside the count."""
        self.beside = s

    def write(self, s: str, file: TextIO | None = None) -> None:
        """Print a line now, on standard error unless it is said where."""
        print(s, file=file or sys.stderr, flush=True)

"""What the terminal shows: tables, progress, and every use of the network."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TextIO, TypeVar

from alignattn.utils.attributes import replaced
from alignattn.utils.errors import plural

LOG_SECONDS = 30.0
"""Seconds between two log lines; shorter work logs nothing."""

T = TypeVar("T")


def in_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


def progress(description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> Any:
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


def terminal_bar(description: str, total: int, unit: str, *, initial: int = 0, scaled: bool = False) -> Any:
    """Return a bar of tqdm for a terminal; arguments as for `progress`."""
    # Imported here, as in the other functions: a command's help would wait for it.
    from tqdm import tqdm  # type: ignore[import-untyped]

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
        from tqdm import tqdm

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


@contextmanager
def without_library_bars() -> Iterator[None]:
    """Silence the bars of transformers and datasets if they are imported; download bars stay.

    The command line sets `TQDM_DISABLE` for libraries that it imports later.
    """
    datasets, logging = sys.modules.get("datasets"), sys.modules.get("transformers.utils.logging")
    had_bars = datasets is not None and not datasets.are_progress_bars_disabled()
    if datasets is not None and had_bars:
        datasets.disable_progress_bars()
    hook = logging and logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        if logging is not None:
            logging.set_tqdm_hook(hook)
        if datasets is not None and had_bars:
            datasets.enable_progress_bars()


@cache
def is_known(address: str) -> bool:
    """Return whether the host of an address can be resolved, here or by a proxy."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    # Behind a proxy the host is not resolved here; with `NO_PROXY` alone there is no proxy.
    try:
        return bool(getproxies().keys() - {"no"} or socket.getaddrinfo(urlsplit(address).hostname, None))
    except OSError:
        return False


@cache
def announce(line: str) -> None:
    """Print a line about the use of the network on standard error, once."""
    print(line, file=sys.stderr)


@contextmanager
def hub_request(what: str) -> Iterator[None]:
    """Announce what is requested from the Hub within the context, unless `HF_HUB_OFFLINE` is set.

    If the Hub's host cannot be resolved, the Hub's client is offline within the context.

    Args:
        what: what is requested, for example a model or a split of a data set.
    """
    from huggingface_hub import constants, is_offline_mode

    if is_offline_mode():
        yield
    elif is_known(constants.ENDPOINT):
        announce(f"asking {constants.ENDPOINT} for {what}")
        yield
    else:
        announce(f"{constants.ENDPOINT} is out of reach: {what} must be on this machine already")
        # The client would retry each file six times, for half a minute.
        with replaced(constants, HF_HUB_OFFLINE=True):
            yield


GAP = "  "
"""Separates columns."""

READABLE_WIDTH = 99
"""Width that fits a terminal of 100 columns or a page."""

MARKDOWN_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " "} | {mark: f"\\{mark}" for mark in r"\`*_[]|~$#"}
)


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return lines of aligned columns under a header.

    Args:
        header: one cell per column.
        rows: one cell per column each.
        left: number of left-aligned columns; the others are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        GAP.join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in (header, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def split_tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keys: int = 1) -> list[str]:
    """Return a table split by columns into tables of at most `width`, with an empty line after each.

    Args:
        header: one cell per column.
        rows: one cell per column each.
        width: maximum width of a line.
        keys: number of first columns that every table repeats.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    own = list(range(keys))
    taken: list[list[int]] = [[]] if len(widths) > keys else []
    for column in range(keys, len(widths)):
        chosen = [*own, *taken[-1], column]
        if taken[-1] and sum(widths[index] + len(GAP) for index in chosen) - len(GAP) > width:
            taken.append([])
        taken[-1].append(column)
    parts = ([*own, *columns] for columns in taken)
    picked = [[[line[index] for index in part] for line in (header, *rows)] for part in parts]
    return [text for first, *others in picked for text in (render_table(first, others), "")]


def markdown_escaped(text: str) -> str:
    """Return plain text escaped for Markdown, in one line."""
    return text.translate(MARKDOWN_ESCAPES)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ("",)) -> str:
    """Return a table in Markdown.

    Args:
        header: one escaped cell per column.
        rows: one escaped cell per column each.
        words: header cells of the left-aligned columns.
    """
    alignment = ["---" if name in words else "---:" for name in header]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, alignment, *rows))

"""Tables for the terminal, and in Markdown."""

import shutil
import sys
import textwrap
from collections.abc import Sequence

GAP = "  "
"""Between two columns."""

READABLE_WIDTH = 99
"""Characters of a line that a terminal of 100 columns, or a page, shows whole."""

NARROWEST = 12
"""Characters of a column whose cells are broken into lines; a terminal that is narrower yet breaks them itself."""

MARKDOWN_ESCAPES = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " "} | {mark: f"\\{mark}" for mark in r"\`*_[]|~$#"}
)


def terminal_width() -> int | None:
    """Return how many characters a line of the terminal has; None where no terminal shows what is printed."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def render_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, width: int | None = None
) -> str:
    """Return lines of aligned columns under a header.

    Args:
        header: a cell a column.
        rows: as many cells each.
        left: how many columns stand to the left, the rest to the right.
        width: characters of a line, for which the cells of the widest columns to the left are broken; None for any.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    if width is not None:
        _narrow(widths, left, width)

    def lines(cells: Sequence[str]) -> str:
        broken = [textwrap.wrap(cell, limit) or [""] for cell, limit in zip(cells, widths, strict=True)]
        depth = max(map(len, broken))
        return "\n".join(line([part[row] if row < len(part) else "" for part in broken]) for row in range(depth))

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return GAP.join(aligned).rstrip()

    print_row = line if width is None else lines
    return "\n".join([line(header), line(["-" * width for width in widths]), *map(print_row, rows)])


def folded_tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keys: int = 1) -> list[str]:
    """Return a table, or as many with some of its columns each as lines of a width take, and an empty line after each.

    Args:
        header: a cell a column.
        rows: as many cells each.
        width: characters of a line.
        keys: how many columns stand first in every table.
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


def _narrow(widths: list[int], left: int, width: int) -> None:
    """Take characters from the widest columns to the left until a line fits, or none can give any."""
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widest = max(range(left), key=widths.__getitem__)
        if widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1


def markdown_escaped(text: str) -> str:
    """Return plain text as Markdown that shows it as it is, in one line."""
    return text.translate(MARKDOWN_ESCAPES)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] = ("",)) -> str:
    """Return a table in Markdown.

    Args:
        header: a cell a column, escaped.
        rows: as many cells each, escaped.
        words: those cells of the header whose columns are set to the left.
    """
    alignment = ["---" if name in words else "---:" for name in header]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, alignment, *rows))

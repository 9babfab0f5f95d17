"""Tables for the terminal and in Markdown."""

from collections.abc import Sequence

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

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return GAP.join(aligned).rstrip()

    return "\n".join(map(line, (header, ["-" * width for width in widths], *rows)))


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

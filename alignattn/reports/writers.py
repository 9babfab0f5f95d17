"""A table of runs as Markdown, CSV, LaTeX, a web page, a picture of the differences, and lines for the terminal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from alignattn.evaluation.statistics.comparison import Comparison
from alignattn.reports.cells import DIFFERENCE_HEADINGS, DIFFERENCE_WORDS, Cell, Run
from alignattn.reports.html import render_page
from alignattn.reports.plots.comparisons import DifferenceLine, DifferencePanel, draw_differences
from alignattn.reports.plots.drawing import can_draw, write_figure
from alignattn.reports.result_table import ResultTable
from alignattn.utils.errors import plural
from alignattn.utils.files import write_text
from alignattn.utils.text_tables import markdown_escaped, markdown_table, render_table

IN_BRACKETS = "In brackets"

LATEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        # LaTeX would read brackets at the start of a cell as an option of the preceding line break.
        "[": "{[}",
        "]": "{]}",
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "→": r"$\rightarrow$",
        "†": r"\textdagger{}",
        "°": r"$^\circ$",
        "–": r"\textendash{}",
        "—": r"\textemdash{}",
        "…": r"\ldots{}",
        "“": "``",
        "”": "''",
        "’": "'",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "ε": r"$\varepsilon$",
        "λ": r"$\lambda$",
    }
    | {mark: f"\\{mark}" for mark in "&%$#_{}"}
)


@dataclass(frozen=True)
class Notation:
    """How a format of the table writes text.

    Attributes:
        escape: escapes plain text.
        mark_better: marks an escaped number that is better than the baseline's.
        better: name of that mark in the legend.
    """

    escape: Callable[[str], str]
    mark_better: Callable[[str], str]
    better: str

    def rows(self, table: ResultTable) -> list[list[str]]:
        """Return the rows of a table; the first cell of each is its label."""
        return [[self.escape(row[0].row), *(self._cell(cell, table) for cell in row)] for row in table.rows]

    def differences(self, table: ResultTable) -> list[list[str]]:
        """Return the rows of the table of differences; none if nothing was compared."""
        return [[self.escape(text) for text in cell.difference_texts()] for cell in table.compared]

    def lines_below(self, table: ResultTable) -> list[str]:
        """Return the legend, the notes and the reasons of failures."""
        reasons = [f"[{number}] failed: {reason}" for reason, number in table.failures.items()]
        return [self.escape(line) for line in (*table.legend(self.better, IN_BRACKETS), *table.notes, *reasons)]

    def _cell(self, cell: Cell, table: ResultTable) -> str:
        text = self.escape(table.text_of(cell))
        measured = self.mark_better(text) if cell.verdict == "better" else text
        return measured if cell.published is None else f"{measured} ({self.escape(cell.published)})"


def _latex_escaped(text: str) -> str:
    # Two hyphens, such as those of an option, would be printed as a dash.
    return text.translate(LATEX_ESCAPES).replace("--", "-{}-")


MARKDOWN = Notation(markdown_escaped, lambda text: f"**{text}**", "Bold")
LATEX = Notation(_latex_escaped, lambda text: rf"\textbf{{{text}}}", "Bold")
TEXT = Notation(str, lambda text: f"{text} *", "*")


def to_markdown(table: ResultTable) -> str:
    """Return the table, its legend, and a second table of the differences to the baseline."""
    parts = [
        f"# {MARKDOWN.escape(table.title)}",
        *map(MARKDOWN.escape, _sources(table)),
        markdown_table([MARKDOWN.escape(text) for text in _header(table)], MARKDOWN.rows(table)),
        "\n".join(f"- {line}" for line in MARKDOWN.lines_below(table)),
    ]
    if differences := MARKDOWN.differences(table):
        parts.append(f"## Differences to {MARKDOWN.escape(table.baseline)}")
        parts.append(markdown_table(DIFFERENCE_HEADINGS, differences, DIFFERENCE_WORDS))
    return "\n\n".join(parts) + "\n"


def to_text(table: ResultTable) -> str:
    """Return the table for the terminal, its legend, and the table of the differences."""
    lines = [table.title, *_sources(table), "", render_table(_header(table), TEXT.rows(table)), ""]
    lines += TEXT.lines_below(table)
    if differences := TEXT.differences(table):
        lines += ["", f"Differences to {table.baseline}", render_table(DIFFERENCE_HEADINGS, differences)]
    return "\n".join(lines)


def to_frame(table: ResultTable) -> pd.DataFrame:
    """Return one row per cell.

    Numbers are not rounded, in the printed unit, which is in the column `unit`. `values` contains the values of the
    seeds, separated by blanks; `published` is text, as the paper prints it.
    """
    return pd.DataFrame([_frame_line(cell, table.named) for cell in table.cells]).astype({"seeds": "Int64"})


def to_csv(table: ResultTable) -> str:
    """Return the rows of `to_frame` as CSV."""
    text: str = to_frame(table).to_csv(index=False, lineterminator="\n")
    return text


def to_latex(table: ResultTable) -> str:
    """Return the table and the table of differences, each a `table` environment that needs the package booktabs."""
    headings = [("", ""), *((cell.column, cell.measure.heading) for cell in table.rows[0])]
    columns = pd.MultiIndex.from_tuples([tuple(map(LATEX.escape, heading)) for heading in headings])
    frame = pd.DataFrame(LATEX.rows(table), columns=columns)
    caption = " ".join(f"{LATEX.escape(line)}." for line in (table.title, *_sources(table)))
    parts = ["% Needs \\usepackage{booktabs}."]
    parts.append(_latex_float(frame, "l" + "r" * len(headings[1:]), table.name, caption, LATEX.lines_below(table)))
    if differences := LATEX.differences(table):
        frame = pd.DataFrame(differences, columns=[LATEX.escape(text) for text in DIFFERENCE_HEADINGS])
        caption = LATEX.escape(f"{table.title}: differences to {table.baseline}.")
        alignment = "".join("l" if name in DIFFERENCE_WORDS else "r" for name in DIFFERENCE_HEADINGS)
        parts.append(_latex_float(frame, alignment, f"{table.name}-differences", caption))
    return "\n\n".join(parts) + "\n"


def to_html(table: ResultTable) -> str:
    """Return one page that needs no network: the table, its differences, and a section for each run."""
    # Below each measure are the measured numbers and, if any row has them, the published ones.
    widths = [1 + any(cell.published is not None for cell in cells) for cells in zip(*table.rows, strict=True)]
    heads = zip(table.rows[0], widths, strict=True)
    return render_page(
        "reports/results.html",
        title=table.title,
        table=table,
        legend=table.legend("Bold on a tint", "In italics on a tint"),
        widths=widths,
        has_published=max(widths) > 1,
        columns=[
            (column, [(cell.measure, width) for cell, width in of_column])
            for column, of_column in groupby(heads, lambda head: head[0].column)
        ],
        headings=DIFFERENCE_HEADINGS,
        words=DIFFERENCE_WORDS,
        differing=_differing(table),
        groups=_grouped_runs(table),
        plural=plural,
    )


def write_table(folder: Path, table: ResultTable) -> list[Path]:
    """Write the table in all formats to `folder`, atomically, and return the paths.

    This includes a picture of the differences, if there are any and matplotlib is installed; otherwise an older picture
    is removed, because it shows other numbers.
    """
    paths = [folder / f"{table.name}{suffix}" for suffix in FORMS]
    for path, form in zip(paths, FORMS.values(), strict=True):
        write_text(path, form(table))
    picture = folder / f"{table.name}.png"
    if table.compared and can_draw():
        write_figure(differences_figure(table), picture)
        paths.append(picture)
    else:
        picture.unlink(missing_ok=True)
    return paths


FORMS: Mapping[str, Callable[[ResultTable], str]] = {
    ".md": to_markdown,
    ".csv": to_csv,
    ".tex": to_latex,
    ".html": to_html,
}
"""The functions that render each format, by suffix."""


def differences_figure(table: ResultTable) -> Any:
    """Return the `matplotlib` figure of the differences: a row per method, a panel per measure of a column."""
    compared = table.compared
    rows = list(dict.fromkeys(cell.compared_label for cell in compared))
    primary = {cell.compared_label for cell in table.primary}
    panels = []
    for heading in dict.fromkeys(cell.heading for cell in compared):
        cells = [cell for cell in compared if cell.heading == heading]
        lines = [_difference_line(rows.index(cell.compared_label), cell) for cell in cells]
        is_exploratory = bool(primary) and not any(cell.is_primary for cell in cells)
        title = f"{heading}, exploratory" if is_exploratory else heading
        panels.append(DifferencePanel(title, f"difference, {cells[0].unit.difference_symbol}", lines))
    return draw_differences(
        panels,
        rows=[f"{label} (primary)" if label in primary else label for label in rows],
        title=f"{table.title}\nDifferences to {table.baseline}, 95 % intervals; diamonds: survive correction",
    )


def _difference_line(row: int, cell: Cell) -> DifferenceLine:
    comparison, factor = cell.comparison, cell.unit.factor
    assert comparison is not None
    ends = comparison.interval
    interval = None if ends is None else (factor * ends.low, factor * ends.high)
    return DifferenceLine(row, factor * comparison.difference, interval, comparison.survives)


def _header(table: ResultTable) -> list[str]:
    return ["", *(cell.heading for cell in table.rows[0])]


def _sources(table: ResultTable) -> list[str]:
    published = [] if table.published_source is None else [f"{IN_BRACKETS}, published: {table.published_source}"]
    return [*([f"Measured: {table.measured_source}"] if table.measured_source else []), *published]


def _latex_float(frame: pd.DataFrame, alignment: str, name: str, caption: str, notes: Sequence[str] = ()) -> str:
    """Return a `table` environment; all texts are already escaped."""
    tabular = frame.to_latex(index=False, escape=False, column_format=alignment, multicolumn_format="c").rstrip()
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{name}}}",
            tabular,
            *(rf"\par{{\footnotesize {line}}}" for line in notes),
            r"\end{table}",
        ]
    )


def _differing(table: ResultTable) -> list[tuple[list[str], Comparison, float]]:
    """Return each comparison's texts, the comparison, and the largest extent of a comparison in its unit."""
    compared = [(cell, cell.comparison) for cell in table.compared if cell.comparison is not None]
    extents: dict[str, float] = {}
    for cell, comparison in compared:
        extents[cell.measure.unit] = max(extents.get(cell.measure.unit, 0), comparison.extent)
    return [(cell.difference_texts(), comparison, extents[cell.measure.unit]) for cell, comparison in compared]


def _grouped_runs(table: ResultTable) -> dict[str, list[Run]]:
    """Return the runs by the first column and row that they fill, without duplicates."""
    groups: dict[str, list[Run]] = {}
    left = dict(table.runs)
    for cell in table.cells:
        own = [left.pop(digest) for digest in cell.digests if digest in left]
        if own:
            groups.setdefault(f"{cell.column} · {cell.row}", []).extend(own)
    return groups


def _frame_line(cell: Cell, named: int) -> dict[str, Any]:
    factor, spread, comparison = cell.unit.factor, cell.spread or {}, cell.comparison
    interval = None if comparison is None else comparison.interval

    def scaled(number: float | None) -> float | None:
        return None if number is None else factor * number

    return {
        "row": cell.row,
        "column": cell.column,
        "measure": cell.measure.label,
        "unit": cell.measure.unit,
        "family": None if comparison is None or not named else "primary" if cell.is_primary else "exploratory",
        "state": cell.state,
        "reason": cell.reason,
        "published": cell.published,
        "mean": scaled(spread.get("mean")),
        "standard_deviation": scaled(spread.get("standard_deviation")),
        "seeds": len(cell.values),
        "values": " ".join(str(factor * value) for value in cell.numbers),
        "compared_with": comparison and cell.baseline,
        "difference": comparison and scaled(comparison.difference),
        "difference_low": interval and scaled(interval.low),
        "difference_high": interval and scaled(interval.high),
        "detectable_difference": comparison and scaled(comparison.detectable),
        "p_value": comparison and comparison.p_value,
        "corrected_p_value": comparison and comparison.corrected_p_value,
        "test": comparison and comparison.test,
        "verdict": cell.verdict,
        "runs": " ".join(cell.digests),
    }

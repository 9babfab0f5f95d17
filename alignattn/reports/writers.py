"""A table as Markdown, CSV, LaTeX, a web page, a picture of the differences, and lines for the terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from alignattn.reports.pages import TEMPLATES
from alignattn.reports.plots import COLOURS, can_draw, finished, new_figure, wrapped, write_figure
from alignattn.reports.table import ResultTable, Run
from alignattn.utils.console import markdown_escaped, markdown_table, render_table
from alignattn.utils.files import write_text

LEFT_ALIGNED = ("row", "column", "test")
"""Left-aligned columns of the table of differences."""

PANEL_INCHES = 3.4
"""Width of a panel of the picture."""
MAX_ABREAST = 6
"""Maximum number of panels per row of the picture."""

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


def _latex_escaped(text: str) -> str:
    # Two hyphens, such as those of an option, would be printed as a dash.
    return text.translate(LATEX_ESCAPES).replace("--", "-{}-")


def _rows(table: ResultTable, escape: Callable[[str], str], better: str) -> list[list[str]]:
    """Return the rows of a table as texts; the first of each is its label.

    Args:
        table: the table.
        escape: escapes plain text.
        better: format of an escaped number that is better than the baseline's.
    """
    rows = []
    for row in table.rows:
        texts = [escape(row[0].row)]
        for cell in row:
            text = escape(table.text_of(cell))
            text = better.format(text) if cell.verdict == "better" else text
            texts.append(text if cell.published is None else f"{text} ({escape(cell.published)})")
        rows.append(texts)
    return rows


def _differences(table: ResultTable, escape: Callable[[str], str] = str) -> tuple[list[str], list[list[str]]]:
    """Return the header of the table of differences, and its rows; none if nothing was compared."""
    texts = [cell.difference_texts() for cell in table.compared]
    return list(texts[0]) if texts else [], [list(map(escape, line.values())) for line in texts]


def _sources(table: ResultTable) -> list[str]:
    published = [] if table.published_source is None else [f"In brackets, published: {table.published_source}"]
    return [*([f"Measured: {table.measured_source}"] if table.measured_source else []), *published]


def _lines_below(table: ResultTable, better: str = "Bold") -> list[str]:
    """Return the legend, the notes and the reasons of failures."""
    reasons = [f"[{number}] failed: {reason}" for reason, number in table.failures.items()]
    return [*table.legend(better, "In brackets"), *table.notes, *reasons]


def to_text(table: ResultTable) -> str:
    """Return the table for the terminal, its legend, and the table of the differences."""
    header = ["", *(cell.heading for cell in table.rows[0])]
    lines = [table.title, *_sources(table), "", render_table(header, _rows(table, str, "{} *")), ""]
    lines += _lines_below(table, "*")
    header, differences = _differences(table)
    if differences:
        lines += ["", f"Differences to {table.baseline}", render_table(header, differences)]
    return "\n".join(lines)


def to_markdown(table: ResultTable) -> str:
    """Return the table, its legend, and a second table of the differences to the baseline."""
    header = ["", *(markdown_escaped(cell.heading) for cell in table.rows[0])]
    parts = [
        f"# {markdown_escaped(table.title)}",
        *map(markdown_escaped, _sources(table)),
        markdown_table(header, _rows(table, markdown_escaped, "**{}**")),
        "\n".join(f"- {markdown_escaped(line)}" for line in _lines_below(table)),
    ]
    header, differences = _differences(table, markdown_escaped)
    if differences:
        parts.append(f"## Differences to {markdown_escaped(table.baseline)}")
        parts.append(markdown_table(header, differences, LEFT_ALIGNED))
    return "\n\n".join(parts) + "\n"


def to_csv(table: ResultTable) -> str:
    """Return the table's frame as CSV."""
    text: str = table.frame().to_csv(index=False, lineterminator="\n")
    return text


def to_latex(table: ResultTable) -> str:
    """Return the table and the table of differences, each a `table` environment that needs the package booktabs."""
    headings = [("", ""), *((cell.column, cell.measure.heading) for cell in table.rows[0])]
    columns = pd.MultiIndex.from_tuples([tuple(map(_latex_escaped, heading)) for heading in headings])
    frame = pd.DataFrame(_rows(table, _latex_escaped, r"\textbf{{{}}}"), columns=columns)
    caption = " ".join(f"{_latex_escaped(line)}." for line in (table.title, *_sources(table)))
    notes = [_latex_escaped(line) for line in _lines_below(table)]
    floats = [_latex_float(frame, "l" + "r" * len(headings[1:]), table.name, caption, notes)]
    header, differences = _differences(table, _latex_escaped)
    if differences:
        frame = pd.DataFrame(differences, columns=list(map(_latex_escaped, header)))
        caption = _latex_escaped(f"{table.title}: differences to {table.baseline}.")
        alignment = "".join("l" if name in LEFT_ALIGNED else "r" for name in header)
        floats.append(_latex_float(frame, alignment, f"{table.name}-differences", caption))
    return "\n\n".join(["% Needs \\usepackage{booktabs}.", *floats]) + "\n"


def _latex_float(frame: pd.DataFrame, alignment: str, name: str, caption: str, notes: Sequence[str] = ()) -> str:
    """Return a `table` environment; all texts are already escaped."""
    tabular = frame.to_latex(index=False, escape=False, column_format=alignment, multicolumn_format="c").rstrip()
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{name}}}", tabular]
    return "\n".join([*lines, *(rf"\par{{\footnotesize {line}}}" for line in notes), r"\end{table}"])


def to_html(table: ResultTable) -> str:
    """Return one page that needs no network: the table, its differences, and a section for each run."""
    # Below each measure are the measured numbers and, if any row has them, the published ones.
    widths = [1 + any(cell.published is not None for cell in cells) for cells in zip(*table.rows, strict=True)]
    heads = zip(table.rows[0], widths, strict=True)
    # The picture of a difference is as wide as the largest difference of its unit.
    extents: dict[str, float] = {}
    for cell in table.compared:
        assert cell.comparison is not None
        interval = cell.comparison.interval
        ends = [cell.comparison.difference, *((interval.low, interval.high) if interval else ())]
        extents[cell.measure.unit] = max(extents.get(cell.measure.unit, 0), *map(abs, ends))
    # The runs stand below the first column and row that they fill.
    groups: dict[str, list[Run]] = {}
    scores: dict[str, dict[str, str]] = {}
    left = dict(table.runs)
    for cell in table.cells:
        if own := [left.pop(digest) for digest in cell.digests if digest in left]:
            groups.setdefault(f"{cell.column} · {cell.row}", []).extend(own)
        for seed, value in () if cell.is_ensemble else cell.values.items():
            if seed in cell.runs:
                text = f"{cell.unit.form.format(cell.unit.factor * value)} {cell.unit.symbol}".strip()
                scores.setdefault(cell.runs[seed].digest, {})[f"{cell.column} {cell.measure.label}".strip()] = text
    return TEMPLATES.get_template("reports/results.html").render(
        title=table.title,
        table=table,
        legend=table.legend("Bold on a tint", "In italics on a tint"),
        widths=widths,
        has_published=max(widths) > 1,
        columns=[
            (column, [(cell.measure, width) for cell, width in of_column])
            for column, of_column in groupby(heads, lambda head: head[0].column)
        ],
        headings=_differences(table)[0],
        words=LEFT_ALIGNED,
        differing=[
            (list(cell.difference_texts().values()), cell.comparison, extents[cell.measure.unit])
            for cell in table.compared
        ],
        groups=groups,
        scores=scores,
    )


FORMS: Mapping[str, Callable[[ResultTable], str]] = {
    ".md": to_markdown,
    ".csv": to_csv,
    ".tex": to_latex,
    ".html": to_html,
}
"""The functions that render each format, by suffix."""


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


def differences_figure(table: ResultTable) -> Any:
    """Return the `matplotlib` figure of the differences: a row per method, a panel per measure of a column."""
    compared = table.compared
    rows = list(dict.fromkeys(cell.compared_label for cell in compared))
    primary = {cell.compared_label for cell in compared if cell.is_primary}
    headings = list(dict.fromkeys(cell.heading for cell in compared))
    lines = math.ceil(len(headings) / MAX_ABREAST)
    abreast = math.ceil(len(headings) / lines)
    # The names of the rows need 2.2 inches, titles and axes 1.4.
    width, height = 2.2 + PANEL_INCHES * abreast, (1.4 + 0.3 * len(rows)) * lines
    title = f"{table.title}\nDifferences to {table.baseline}, 95 % intervals; diamonds: survive correction"
    figure, all_axes = new_figure(lines, abreast, width, height, title, sharey=True)
    for axes in all_axes[len(headings) :]:
        axes.set_axis_off()
    for axes, heading in zip(all_axes, headings, strict=False):
        cells = [cell for cell in compared if cell.heading == heading]
        axes.axvline(0, color="grey", linewidth=0.8)
        for cell in cells:
            assert cell.comparison is not None
            factor, place, ends = cell.unit.factor, rows.index(cell.compared_label), cell.comparison.interval
            colour, marker = (COLOURS[4], "D") if cell.comparison.survives else (COLOURS[6], "o")
            if ends is not None:
                axes.plot((factor * ends.low, factor * ends.high), [place] * 2, color=colour, linewidth=1.5)
            axes.plot([factor * cell.comparison.difference], [place], color=colour, marker=marker, markersize=5)
        is_exploratory = bool(primary) and not any(cell.is_primary for cell in cells)
        words = f"{heading}, exploratory" if is_exploratory else heading
        axes.set_title(wrapped(words, PANEL_INCHES), fontsize="medium")
        symbol = cells[0].unit.difference_symbol
        axes.set_xlabel(f"difference, {symbol}" if symbol else "difference")
        axes.grid(axis="x", alpha=0.3)
    all_axes[0].set_yticks(range(len(rows)), [f"{row} (primary)" if row in primary else row for row in rows])
    all_axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return finished(figure, all_axes)

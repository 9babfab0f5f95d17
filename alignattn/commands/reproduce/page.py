"""A table with its numbers as one web page, which needs no network: every number leads to the runs behind it."""

from base64 import b64encode
from itertools import groupby

from alignattn.commands.reproduce.legend import legend_of
from alignattn.commands.reproduce.result import TableResult, TableRun
from alignattn.evaluation.statistics.comparison import Comparison
from alignattn.evaluation.statistics.comparison_words import DIFFERENCE_HEADINGS, DIFFERENCE_WORDS, counted
from alignattn.reports.html import TABLES_STYLE, render_page

TEMPLATE = "commands/reproduce/page.html"


def to_html(table: TableResult) -> str:
    """Return the page: the table, what explains it, the differences to plain attention, and a section for each run."""
    # Below each measure stands what was measured and, where a row has it, what was published.
    widths = [
        1 + any(cell.published is not None for cell in of_measure) for of_measure in zip(*table.rows, strict=True)
    ]
    heads = zip(table.rows[0], widths, strict=True)
    return render_page(
        TEMPLATE,
        TABLES_STYLE,
        title=table.title,
        table=table,
        legend=legend_of(table, "Bold on a tint", "In italics on a tint"),
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
        counted=counted,
        base64=lambda svg: b64encode(svg.encode()).decode(),
    )


def _differing(table: TableResult) -> list[tuple[list[str], Comparison, float]]:
    """Of each comparison its words, itself, and the farthest that one in its unit goes."""
    compared = [(cell, cell.comparison) for cell in table.compared if cell.comparison is not None]
    return [
        (
            cell.difference_texts(),
            comparison,
            max(other.extent for of, other in compared if of.measure.unit == cell.measure.unit),
        )
        for cell, comparison in compared
    ]


def _grouped_runs(table: TableResult) -> dict[str, list[TableRun]]:
    """The runs below the first column and row that they fill, a run once."""
    groups: dict[str, list[TableRun]] = {}
    left = dict(table.runs)
    for cell in table.cells:
        own = [left.pop(digest) for digest in cell.digests if digest in left]
        if own:
            groups.setdefault(f"{cell.column.label} · {cell.row.label}", []).extend(own)
    return groups

"""Compared runs as lines for the terminal, Markdown, CSV and one web page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alignattn.commands.compare.comparison import Cell, ComparedRuns
from alignattn.commands.compare.entries import Entry
from alignattn.evaluation.statistics.comparison_words import DIFFERENCE_HEADINGS, DIFFERENCE_WORDS
from alignattn.finetuning.results import score_text
from alignattn.reports.html import TABLES_STYLE, render_page
from alignattn.utils.files import write_csv
from alignattn.utils.publishing import publishable_text
from alignattn.utils.text_tables import markdown_escaped, markdown_table, render_table, terminal_width

TEMPLATE = "commands/compare/page.html"
WORDS = ("run", "seeds")
"""The columns before the measures."""


def to_text(table: ComparedRuns) -> str:
    """Return the table and that of the differences for the terminal."""
    rows = [_row(row, " *") for row in table.cells]
    differences = [cell.difference_texts for cell in table.compared]
    parts = [
        table.title,
        render_table(_header(table), rows, left=len(WORDS), width=terminal_width()),
        render_table(DIFFERENCE_HEADINGS[:-1], [texts[:-1] for texts in differences], left=2, width=terminal_width()),
        "\n".join([*_settings(table), *table.notes("*"), *_tests(table)]),
    ]
    return "\n\n".join(parts)


def to_markdown(table: ComparedRuns) -> str:
    """Return the table, what explains it, and a second table of the differences to the baseline."""
    rows = [[markdown_escaped(text) for text in _row(row)] for row in table.cells]
    for shown, row in zip(rows, table.cells, strict=True):
        for index, cell in enumerate(row, start=len(WORDS)):
            shown[index] = f"**{shown[index]}**" if cell.verdict == "better" else shown[index]
    differences = [[markdown_escaped(text) for text in cell.difference_texts] for cell in table.compared]
    lines = map(markdown_escaped, [*table.notes("Bold"), *_settings(table)])
    parts = [
        f"# {markdown_escaped(table.title)}",
        markdown_table([markdown_escaped(text) for text in _header(table)], rows, WORDS),
        "\n".join(f"- {line}" for line in lines),
        f"## Differences to {markdown_escaped(table.entries[0].name)}",
        markdown_table(DIFFERENCE_HEADINGS, differences, DIFFERENCE_WORDS),
    ]
    return "\n\n".join(parts) + "\n"


def write_lines(path: Path, table: ComparedRuns) -> None:
    """Write one line a cell as CSV: numbers in the printed unit, which has a column, and not rounded."""
    write_csv(path, (_line(cell) for row in table.cells for cell in row))


def to_html(table: ComparedRuns) -> str:
    """Return the page: the table, the differences with their intervals, and what each run was made with."""
    baseline = table.entries[0].name
    compared = [(cell, cell.comparison) for cell in table.compared if cell.comparison is not None]
    differing = [
        (
            cell.difference_texts,
            comparison,
            max(other.extent for of, other in compared if of.measure.unit == cell.measure.unit),
        )
        for cell, comparison in compared
    ]
    return render_page(
        TEMPLATE,
        TABLES_STYLE,
        title=table.title,
        table=table,
        baseline=baseline,
        seeds=_seeds,
        headings=DIFFERENCE_HEADINGS,
        words=DIFFERENCE_WORDS,
        differing=differing,
        facts=_facts,
        published=publishable_text,
    )


def _header(table: ComparedRuns) -> list[str]:
    return [*WORDS, *(measure.heading for measure in table.measures)]


def _row(row: Any, better: str = "") -> list[str]:
    entry = row[0].entry
    return [entry.name, _seeds(entry), *(cell.text + (better if cell.verdict == "better" else "") for cell in row)]


def _seeds(entry: Entry) -> str:
    return " ".join(map(str, entry.seeds))


def _settings(table: ComparedRuns) -> list[str]:
    return [f"{name}: {text}" for name, text in table.settings.items()]


def _tests(table: ComparedRuns) -> Iterator[str]:
    tests = dict.fromkeys(cell.comparison.test for cell in table.compared if cell.comparison is not None)
    return (f"Tested by: {test}." for test in tests)


def _facts(entry: Entry) -> dict[str, str]:
    """What a reader may want to know of an entry's runs; what differs between its seeds is told of each."""
    results = [run.result for run in entry.runs.values()]
    first = results[0]
    scores = {
        f"seed {result.seed}": ", ".join(
            f"{split} {name} {score_text(name, value)}"
            for split, by in result.metrics.items()
            for name, value in by.items()
        )
        for result in results
    }
    return scores | {
        "model": first.model,
        "attention": first.attention,
        "trained on": f"{first.train_rows} rows",
        "evaluated on": ", ".join(f"{rows} rows of {split}" for split, rows in first.evaluation_rows.items()),
        "training took": ", ".join(f"{result.train_runtime:.0f} s" for result in results),
        "parameters": f"{first.parameters['total']:,}",
        "hardware": first.device,
        "versions": ", ".join(f"{name} {number}" for name, number in first.versions.items()),
    }


def _line(cell: Cell) -> dict[str, Any]:
    factor, comparison = cell.measure.unit.factor, cell.comparison
    interval = comparison.interval if comparison else None
    deviation = cell.spread["standard_deviation"]
    values = [factor * cell.measure.value(run) for run in cell.entry.runs.values()]
    return {
        "run": cell.entry.name,
        "seeds": _seeds(cell.entry),
        "split": cell.measure.split,
        "metric": cell.measure.metric,
        "unit": "percent" if cell.measure.unit.symbol else "",
        "mean": factor * (cell.spread["mean"] or 0),
        "standard_deviation": None if deviation is None else factor * deviation,
        "values": " ".join(map(str, values)),
        "difference": comparison and factor * comparison.difference,
        "difference_low": interval and factor * interval.low,
        "difference_high": interval and factor * interval.high,
        "p_value": comparison and comparison.p_value,
        "corrected_p_value": comparison and comparison.corrected_p_value,
        "paired_seeds": comparison and comparison.seeds,
        "test": comparison and comparison.test,
        "verdict": cell.verdict,
    }

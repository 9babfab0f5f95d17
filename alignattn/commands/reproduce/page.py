"""A filled table as one web page, which needs no network: published beside measured, and every run behind a number."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from alignattn.commands.reproduce.filled import FilledTable, MeasureHeading, RunDetails, State
from alignattn.commands.reproduce.page_style import SCRIPT, STYLE
from alignattn.commands.reproduce.wording import (
    DIFFERENCE_HEADINGS,
    DIFFERENCE_WORDS,
    Place,
    cell_text,
    compared_places,
    counted,
    difference_texts,
    legend,
    measure_heading,
    number_failures,
    places,
    summary,
)
from alignattn.statistics.comparison import Comparison
from alignattn.support.html import render_document

TABLE_ID = "table"
STATE_MARKS: Mapping[State, str] = {"done": "✓ done", "missing": "○ missing", "failed": "✕ failed"}
FOREST_WIDTH = 176
FOREST_HEIGHT = 18
FOREST_MARGIN = 6
"""Beside the longest interval; these three in the units of the picture."""
FOREST_INDEX = DIFFERENCE_HEADINGS.index("difference")
"""The picture of a difference stands before its number."""


def to_html(table: FilledTable) -> str:
    """Return the page: the table, what explains it, the differences to plain attention, and a section for each run."""
    failures = number_failures(table)
    body = [
        f"<header><h1>{escape(table.title)}</h1>",
        *_sources(table),
        "</header>",
        "<main>",
        *_results(table, failures),
        *_notes(table, failures),
        *_differences(table),
        *_runs(table),
        "</main>",
        "<footer>Made by alignattn. This file needs no network and can be passed on as it is.</footer>",
        f"<script>{SCRIPT}</script>",
    ]
    return render_document(table.title, STYLE, body)


def _sources(table: FilledTable) -> Iterator[str]:
    yield '<dl class="sources">'
    yield f"<div><dt>Measured</dt><dd>{escape(table.measured_source)}</dd></div>"
    if table.published_source is not None:
        yield f'<div class="published"><dt>Published</dt><dd>{escape(table.published_source)}</dd></div>'
    yield "</dl>"
    states = [run.state for run in table.runs.values()]
    if states:
        done, failed = states.count("done"), states.count("failed")
        rest = f", {failed} failed" if failed else ""
        yield f'<p class="progress">{done} of {counted(len(states), "run")} finished{rest}.</p>'


def _results(table: FilledTable, failures: Mapping[str, int]) -> Iterator[str]:
    rows = places(table)
    has_published = {
        (place.column.key, place.measure.key) for row in rows for place in row if place.entry.published is not None
    }
    yield f'<h2 id="{TABLE_ID}">Measured and published</h2>'
    yield f'<div class="scroll" role="region" aria-labelledby="{TABLE_ID}" tabindex="0"><table class="results">'
    yield f"<caption>{escape(table.title)}</caption>"
    yield from _head(table, has_published)
    yield "<tbody>"
    for row in rows:
        yield f'<tr><th scope="row">{escape(row[0].row.label)}</th>'
        for place in row:
            yield _measured_cell(place, table.runs, failures, place.measure is place.column.measures[0])
            if (place.column.key, place.measure.key) in has_published:
                yield f'<td class="published">{escape(place.entry.published or "")}</td>'
        yield "</tr>"
    yield "</tbody></table></div>"


def _head(table: FilledTable, has_published: set[tuple[str, str]]) -> Iterator[str]:
    """Three lines: the columns, their measures, and below each whether it is measured or published."""
    widths = {
        column.key: [2 if (column.key, measure.key) in has_published else 1 for measure in column.measures]
        for column in table.columns
    }
    columns = "".join(
        f'<th class="column first" scope="colgroup" colspan="{sum(widths[column.key])}">{escape(column.label)}</th>'
        for column in table.columns
    )
    measures = "".join(
        _measure_head(measure, width, index == 0)
        for column in table.columns
        for index, (measure, width) in enumerate(zip(column.measures, widths[column.key], strict=True))
    )
    sources = "".join(
        f'<th class="{"first" if index == 0 else ""}" scope="col">measured</th>'
        + ('<th class="published" scope="col">published</th>' if width > 1 else "")
        for column in table.columns
        for index, width in enumerate(widths[column.key])
    )
    yield f'<thead><tr><td rowspan="{3 if has_published else 2}" class="corner"></td>{columns}</tr>'
    yield f"<tr>{measures}</tr>"
    if has_published:
        yield f"<tr>{sources}</tr>"
    yield "</thead>"


def _measure_head(measure: MeasureHeading, width: int, is_first: bool) -> str:
    scope = "colgroup" if width > 1 else "col"
    first = "first" if is_first else ""
    return f'<th class="{first}" scope="{scope}" colspan="{width}">{escape(measure_heading(measure))}</th>'


def _measured_cell(place: Place, runs: Mapping[str, RunDetails], failures: Mapping[str, int], is_first: bool) -> str:
    entry = place.entry
    number, _, reference = cell_text(place, failures).partition(" [")
    mean, sign, deviation = number.partition(" ± ")
    shown = f'{escape(mean)}<span class="deviation">{sign}{escape(deviation)}</span>' if sign else escape(mean)
    digests = [digest for digest in entry.runs if digest in runs]
    if digests:
        shown = f'<a class="number" href="#{_run_id(digests[0])}">{shown}</a>'
    else:
        shown = f'<span class="number">{shown}</span>'
    if reference:
        shown += f'<sup><a href="#failure-{reference[:-1]}">{reference[:-1]}</a></sup>'
    seeds = _seed_links([runs[digest] for digest in digests]) if len(digests) > 1 else ""
    nothing = "" if entry.values or entry.state == "failed" else "nothing"
    classes = " ".join(filter(None, ["measured", "first" if is_first else "", entry.state, place.verdict, nothing]))
    return f'<td class="{classes}" title="{escape(summary(place))}">{shown}{seeds}</td>'


def _seed_links(runs: Sequence[RunDetails]) -> str:
    links = "".join(
        f'<a class="{run.state}" href="#{_run_id(run.digest)}" aria-label="{escape(run.title)}, {run.state}">'
        f"{escape(run.facts.get('seed', str(number)))}</a>"
        for number, run in enumerate(runs, start=1)
    )
    return f'<span class="seeds">runs {links}</span>'


def _notes(table: FilledTable, failures: Mapping[str, int]) -> Iterator[str]:
    yield '<ul class="notes">'
    yield from (f"<li>{escape(line)}</li>" for line in legend(table, "Bold on a tint", "In italics on a tint"))
    yield from (f"<li>{escape(note)}</li>" for note in table.notes)
    yield "</ul>"
    if failures:
        yield '<h3>Failed</h3><ol class="notes">'
        for reason, number in failures.items():
            yield f'<li id="failure-{number}">{escape(reason)}</li>'
        yield "</ol>"


def _differences(table: FilledTable) -> Iterator[str]:
    compared = list(compared_places(table))
    if not compared:
        return
    extents = _extents(compared)
    yield '<h2 id="differences">Differences to soft</h2>'
    yield '<div class="scroll" role="region" aria-labelledby="differences" tabindex="0"><table class="differences">'
    yield f"<caption>{escape(table.title)}: differences to soft</caption>"
    head = [f'<th scope="col"{_alignment(name)}>{name}</th>' for name in DIFFERENCE_HEADINGS]
    head.insert(FOREST_INDEX, '<td aria-hidden="true"></td>')
    yield f"<thead><tr>{''.join(head)}</tr></thead><tbody>"
    for place, comparison in compared:
        named = zip(DIFFERENCE_HEADINGS, difference_texts(place, comparison), strict=True)
        cells = [f"<td{_alignment(name)}>{escape(text)}</td>" for name, text in named]
        cells[0] = f'<th scope="row">{escape(place.row.label)}</th>'
        cells.insert(FOREST_INDEX, f'<td aria-hidden="true">{_forest(comparison, extents[place.measure.unit])}</td>')
        survives = ' class="survives"' if comparison.survives else ""
        yield f"<tr{survives}>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _alignment(heading: str) -> str:
    return ' class="words"' if heading in DIFFERENCE_WORDS else ""


def _extents(compared: Sequence[tuple[Place, Comparison]]) -> dict[str, float]:
    """The largest number that an interval of each unit reaches, on either side of 0."""
    extents: dict[str, float] = {}
    for place, comparison in compared:
        interval = comparison.interval
        ends = (interval.low, interval.high) if interval else ()
        unit = place.measure.unit
        extents[unit] = max(extents.get(unit, 0), abs(comparison.difference), *map(abs, ends))
    return extents


def _forest(comparison: Comparison, extent: float) -> str:
    """A difference as a dot and its interval as a line, 0 in the middle."""
    middle, height = FOREST_WIDTH / 2, FOREST_HEIGHT / 2

    def place(value: float) -> str:
        return f"{middle + (middle - FOREST_MARGIN) * value / (extent or 1):.1f}"

    line = ""
    if comparison.interval is not None:
        ends = f'x1="{place(comparison.interval.low)}" x2="{place(comparison.interval.high)}"'
        line = f'<line {ends} y1="{height}" y2="{height}" stroke="currentColor" stroke-width="2"/>'
    zero = f'<line x1="{middle}" x2="{middle}" y1="0" y2="{FOREST_HEIGHT}" stroke="currentColor" opacity=".4"/>'
    dot = f'<circle cx="{place(comparison.difference)}" cy="{height}" r="4" fill="currentColor"/>'
    return f'<svg class="forest" viewBox="0 0 {FOREST_WIDTH} {FOREST_HEIGHT}">{zero}{line}{dot}</svg>'


def _runs(table: FilledTable) -> Iterator[str]:
    if not table.runs:
        return
    yield '<h2 id="runs">Runs</h2>'
    for heading, digests in _grouped_runs(table).items():
        yield f"<section><h3>{escape(heading)}</h3>"
        for digest in digests:
            yield from _run(table.runs[digest])
        yield "</section>"


def _grouped_runs(table: FilledTable) -> dict[str, list[str]]:
    """The runs below the first column and row that they fill, a run once; those that fill none come last."""
    groups: dict[str, list[str]] = {}
    left = dict.fromkeys(table.runs)
    for row in places(table):
        for place in row:
            heading = f"{place.column.label} · {place.row.label}"
            for digest in place.entry.runs:
                if digest in left:
                    groups.setdefault(heading, []).append(digest)
                    del left[digest]
    return groups | ({"Others": list(left)} if left else {})


def _run(run: RunDetails) -> Iterator[str]:
    scores = " · ".join(f"{name} {value}" for name, value in run.scores.items())
    yield f'<details class="run" id="{_run_id(run.digest)}">'
    yield f'<summary><span class="title">{escape(run.title)}</span>'
    yield f'<span class="state {run.state}">{STATE_MARKS[run.state]}</span>'
    yield f'<span class="scores">{escape(scores)}</span></summary><div class="body">'
    if run.reason is not None:
        yield f'<p class="reason">{escape(run.reason)}</p>'
    yield f"<div><h4>Command</h4><pre><code>{escape(run.command)}</code></pre></div>"
    yield '<div class="columns">'
    yield from _list("Scores", run.scores)
    yield from _list("Facts", {**run.facts, "folder": run.folder, "digest": run.digest})
    yield "</div>"
    if run.pictures:
        yield '<div class="pictures">'
        yield from (_picture(f"{name}: {run.title}", name, svg) for name, svg in run.pictures.items())
        yield "</div>"
    if run.config:
        config = f'<pre class="config"><code>{escape(run.config)}</code></pre>'
        yield f"<details><summary>Options</summary>{config}</details>"
    yield f'<p class="back"><a href="#{TABLE_ID}">↑ to the table</a></p></div></details>'


def _list(title: str, pairs: Mapping[str, str]) -> Iterator[str]:
    if pairs:
        yield f"<div><h4>{title}</h4><dl>"
        yield from (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs.items())
        yield "</dl></div>"


def _picture(alternative: str, caption: str, svg: str) -> str:
    """An image of its own, so that the names inside it cannot meet those of another picture."""
    data = b64encode(svg.encode()).decode()
    image = f'<img alt="{escape(alternative)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{image}</figure>"


def _run_id(digest: str) -> str:
    return f"run-{escape(digest)}"

"""Show adversarial examples: the attacked texts, the outcomes and the changed words."""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from alignattn.commands.robustness.examples import (
    Change,
    Piece,
    changed_columns,
    heading,
    prediction_lines,
    summary_line,
    visible,
)
from alignattn.commands.robustness.options import DEFAULT_LIMIT, ShowOptions
from alignattn.reports.html import render_page
from alignattn.robustness.recipe_names import OUTCOMES
from alignattn.robustness.records import AttackRecord, read_examples, read_header
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_text

Marks = Mapping[Change, tuple[str, str]]

MARKS: Marks = {"same": ("", ""), "deleted": ("[-", "-]"), "inserted": ("{+", "+}")}
"""Marks around changed words without colour, as in `git diff --word-diff`."""

ANSI_COLOURS: Marks = {
    "same": ("", ""),
    "deleted": ("\x1b[1;31m", "\x1b[0m"),
    "inserted": ("\x1b[1;32m", "\x1b[0m"),
}
"""Marks around changed words in a terminal: ANSI sequences of bold red and bold green."""

ARROW = "→"


def show(arguments: ShowOptions) -> None:
    """Print the examples, or write a page of them."""
    path = Path(arguments.results)
    records = _selected(read_examples(path), arguments.outcome, path)
    labels = arguments.labels or _label_names(path)
    if arguments.html is None:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        _print(render_terminal(records, color=color, limit=arguments.limit or DEFAULT_LIMIT, labels=labels))
        return
    write_text(Path(arguments.html), examples_page(records[: arguments.limit], path.name, labels))
    _print(f"{summary_line(records)}\nwritten to {arguments.html}")


def render_terminal(
    records: Sequence[AttackRecord], *, color: bool, limit: int | None, labels: Sequence[str] = ()
) -> str:
    """Return examples as text, with marks around changed words and a summary line.

    Args:
        records: the examples.
        color: mark words with ANSI colours; otherwise as `[-word-]` and `{+word+}`.
        limit: the maximum number of examples shown; the summary counts all.
        labels: names of the classes.
    """
    marks = ANSI_COLOURS if color else MARKS
    shown = records[:limit]
    lines = [line for record in shown for line in (*_example_lines(record, marks, labels), "")]
    if len(shown) < len(records):
        lines += [f"{len(records) - len(shown)} more: see --limit and --html", ""]
    return "\n".join([*lines, summary_line(records)])


def examples_page(records: Sequence[AttackRecord], title: str, labels: Sequence[str] = ()) -> str:
    """Return one web page of examples, which needs no network and no script.

    Args:
        records: the examples.
        title: the title of the page.
        labels: names of the classes.
    """
    examples = [
        {
            "outcome": record.outcome,
            "heading": heading(record),
            "predictions": prediction_lines(record, labels),
            "columns": [(visible(column), *texts) for column, *texts in changed_columns(record)],
        }
        for record in records
    ]
    counts = Counter(record.outcome for record in records)
    return render_page(
        "commands/robustness/show.html",
        title=visible(title),
        summary=summary_line(records),
        outcomes=OUTCOMES,
        counts={"all": len(records)} | {outcome: counts[outcome] for outcome in OUTCOMES},
        examples=examples,
    )


def _label_names(path: Path) -> Sequence[str]:
    """Return the class names from the header of the records, or none: examples are also shown without it."""
    with suppress(AlignAttnError):
        return read_header(path).labels
    return ()


def _print(text: str) -> None:
    """Print a text, with the Python escapes of the characters that the terminal or the pipe cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _example_lines(record: AttackRecord, marks: Marks, labels: Sequence[str]) -> list[str]:
    lines = [heading(record), *(f"  {line}" for line in prediction_lines(record, labels))]
    for column, original, perturbed in changed_columns(record):
        lines.append(f"  {visible(column)}: {_marked(original, marks)}")
        if perturbed is not None:
            lines.append(f"  {' ' * len(visible(column))}{ARROW} {_marked(perturbed, marks)}")
    return lines


def _marked(pieces: Sequence[Piece], marks: Marks) -> str:
    return " ".join(f"{marks[kind][0]}{words}{marks[kind][1]}" for kind, words in pieces)


def _selected(records: Sequence[AttackRecord], outcome: str | None, path: Path) -> Sequence[AttackRecord]:
    wanted = [record for record in records if outcome in (None, record.outcome)]
    if not wanted:
        raise AlignAttnError(f"{path} has no example that is {outcome}: {summary_line(records)}")
    return wanted

"""One web page of attacked examples, which needs no network and no script."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from alignattn.robustness.examples import Kind, Piece, changed_columns, heading, predictions, summary_line, visible
from alignattn.robustness.records import OUTCOMES, AttackRecord
from alignattn.support.html import render_document

ALL = "all"

TAGS: Mapping[Kind, tuple[str, str]] = {
    "same": ("", ""),
    "deleted": ("<del>", "</del>"),
    "inserted": ("<ins>", "</ins>"),
}

STYLE = """
:root { color-scheme: light dark; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }
article { border-top: 1px solid #888; padding: .75rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0; }
p { margin: .25rem 0; }
dt { font-weight: 600; }
dd { margin: 0 0 .25rem 1rem; }
del { color: #8a1010; background: #ffe0e0; }
ins { color: #0b5416; background: #dcf7df; text-decoration: none; font-weight: 600; }
label { margin-right: 1rem; }
@media (prefers-color-scheme: dark) {
  del { color: #ffb3b3; background: #4d1616; }
  ins { color: #a8f0b4; background: #123d1a; }
}
"""


def render_page(records: Sequence[AttackRecord], title: str, labels: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        records: the examples.
        title: of the page.
        labels: names of the classes.
    """
    shown_title = visible(title)
    body = [
        f"<h1>{escape(shown_title)}</h1>",
        f"<p>{escape(summary_line(records))}</p>",
        *_filter(records),
        "<main>",
        *(_article(record, labels) for record in records),
        "</main>",
    ]
    return render_document(shown_title, f"{STYLE}{_filter_style()}", body)


def _filter_style() -> str:
    """What hides the articles of the other outcomes, so that a choice needs no script."""
    return "".join(
        f"#show-{outcome}:checked ~ main > article:not(.{outcome}) {{ display: none; }}\n" for outcome in OUTCOMES
    )


def _filter(records: Sequence[AttackRecord]) -> list[str]:
    counts: Counter[str] = Counter(record.outcome for record in records)
    counts[ALL] = len(records)
    return [
        f'<input type="radio" name="show" id="show-{choice}"{" checked" if choice == ALL else ""}>'
        f'<label for="show-{choice}">{choice} ({counts[choice]})</label>'
        for choice in (ALL, *OUTCOMES)
    ]


def _article(record: AttackRecord, labels: Sequence[str]) -> str:
    parts = [f'<article class="{escape(record.outcome)}">', f"<h2>{escape(heading(record))}</h2>"]
    parts += [f"<p>{escape(line)}</p>" for line in predictions(record, labels)]
    parts.append("<dl>")
    for column, original, perturbed in changed_columns(record):
        parts.append(f"<dt>{escape(visible(column))}</dt>")
        parts += [f'<dd dir="auto">{_marked(pieces)}</dd>' for pieces in (original, perturbed) if pieces is not None]
    return "\n".join([*parts, "</dl></article>"])


def _marked(pieces: Sequence[Piece]) -> str:
    return " ".join(f"{TAGS[kind][0]}{escape(words)}{TAGS[kind][1]}" for kind, words in pieces)

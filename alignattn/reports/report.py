"""The page of one finished command, such as a run: sections of tables and charts in one file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from alignattn.reports.html import render_page
from alignattn.utils.files import write_text

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Shaded:
    """A cell with a shade.

    Attributes:
        text: of the cell.
        share: from 0, no shade, to 1.
    """

    text: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; what is empty is not shown.

    Attributes:
        title: of the part.
        notes: lines below the title.
        header: of a table.
        rows: of the table, a cell per column: text, which is escaped, or markup.
        words: the number of first columns of the table that hold words.
        charts: by their captions.
    """

    title: str
    notes: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str | Shaded]] = ()
    words: int = 1
    charts: Mapping[str, Markup] = field(default_factory=dict)


def write_report(path: Path, title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> None:
    """Write a page that needs no other file and no network, atomically.

    Args:
        path: of the page.
        title: of the page.
        facts: what was made of what, by name.
        sections: in their order.
    """
    shown = [section for section in sections if section.rows or section.charts]
    write_text(path, render_page("reports/report.html", title=title, facts=facts, sections=shown))

"""Web pages that need no other file and no network, such as the report of a run: sections of tables and charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from alignattn.utils.errors import plural
from alignattn.utils.files import write_text

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent.parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
"""Templates by path within the package; pages extend `reports/page.html` and fill its block `body`."""
TEMPLATES.globals["plural"] = plural

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Shaded:
    """A cell with a shade.

    Attributes:
        text: text of the cell.
        share: strength of the shade, from 0 (none) to 1.
    """

    text: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; empty parts are not shown.

    Attributes:
        title: title of the part.
        notes: lines below the title.
        header: header of a table.
        rows: rows of the table, a cell per column: text, which is escaped, or markup.
        words: number of leading columns of the table that contain words.
        charts: charts by caption.
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
        path: path of the page.
        title: title of the page.
        facts: facts about the result, such as its model and data, by name.
        sections: sections in their order.
    """
    shown = [section for section in sections if section.rows or section.charts]
    write_text(path, TEMPLATES.get_template("reports/report.html").render(title=title, facts=facts, sections=shown))

"""Web pages that need no network: one file, its style inside, from templates that escape what they are given."""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent.parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
"""The templates of all rooms, by their paths within the package, such as `support/page.html`."""


def render_page(template: str, css: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: path of a template that extends `support/page.html` and fills its block `body`.
        css: path of the style, which must name nothing outside the page.
        **values: what the template names, `title` among it.
    """
    return TEMPLATES.get_template(template).render(css=css, **values)


def render_document(title: str, style: str, body: Iterable[str]) -> str:
    """Return a page.

    Args:
        title: plain text.
        style: CSS; it must name nothing outside the page.
        body: lines of HTML, escaped by who made them.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head>",
            "<body>",
            *body,
            "</body></html>",
            "",
        ]
    )

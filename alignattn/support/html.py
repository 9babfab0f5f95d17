"""The frame of a web page that needs no network: one file, its style inside."""

from collections.abc import Iterable
from html import escape


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

"""Pages from templates: nothing that a template is given can break out of its page."""

import pytest
from jinja2 import DictLoader, UndefinedError

from alignattn.reports import html

NASTY = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page and its style beside the frame of all."""
    page = '{% extends "reports/page.html" %}{% block body %}<p>{{ text }}</p>\n{% endblock %}'
    frame = html.TEMPLATES.get_template("reports/page.html")
    source = html.TEMPLATES.loader.get_source(html.TEMPLATES, frame.name)[0]
    loader = DictLoader({"page.html": page, "page.css": "p > b { margin: 0; }", "reports/page.html": source})
    monkeypatch.setattr(html, "TEMPLATES", html.TEMPLATES.overlay(loader=loader))


@pytest.mark.usefixtures("templates")
def test_a_page_holds_its_style_and_escapes_its_values() -> None:
    page = html.render_page("page.html", "page.css", title=NASTY, text=NASTY)
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert "p > b { margin: 0; }" in page
    assert page.count("&lt;script&gt;") == 2
    assert "<script>" not in page


@pytest.mark.usefixtures("templates")
def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="text"):
        html.render_page("page.html", "page.css", title="t")

"""Self-contained web pages from templates that escape their values."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from alignattn.utils.errors import plural

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent.parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
"""Templates by path within the package, such as `reports/page.html`."""
TEMPLATES.globals["plural"] = plural


def render_page(template: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: path of a template that extends `reports/page.html` and fills its block `body`.
        **values: the variables of the template, including `title`.
    """
    return TEMPLATES.get_template(template).render(**values)

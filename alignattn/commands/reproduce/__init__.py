"""The papers' tables as data: what fills each cell, what was published, and what was measured beside it."""

from importlib import resources

import yaml

TABLES = resources.files(__name__) / "tables"


def table_names() -> list[str]:
    """Return the names of the tables that there are."""
    return sorted(path.name.removesuffix(".yaml") for path in TABLES.iterdir())


def table_titles() -> dict[str, str]:
    """Return the titles of the tables that there are, by name."""
    contents = {name: (TABLES / f"{name}.yaml").read_text(encoding="utf-8") for name in table_names()}
    return {name: yaml.safe_load(content)["title"] for name, content in contents.items()}

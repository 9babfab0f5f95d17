"""The table of models is made with the pinned transformers and lists no fault."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_models_is_of_the_pinned_transformers():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    pinned = re.search(r"^transformers==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    made = re.search(r"every model type of transformers (\S+),", page)
    assert made[1] == pinned[1], "make models, and keep its page as docs/models.md"


def test_every_type_was_checked_and_nothing_is_wrong():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert "\n## Refused, and why\n" in page
    assert "\n## Wrong\n" not in page
    assert "not complete" not in page

"""The table of models is made with the pinned transformers and lists no fault."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_models_is_of_the_pinned_transformers():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    pinned = re.search(r"^transformers==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    made = re.search(r"every model type of transformers (\S+),", page)
    assert made[1] == pinned[1], "make models, and keep its page as docs/models.md"


def test_nothing_differs_and_no_reason_is_false():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    wrong = page.partition("\n## Wrong\n")[2].partition("\n## ")[0]
    assert wrong
    assert not re.search(r": (differs|traceback|contradicted|refused late):", wrong)

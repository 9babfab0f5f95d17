"""The table of models is made with the pinned transformers and lists no fault."""

import csv
import re

from documentation import ROOT


def test_the_table_of_models_is_of_the_pinned_transformers():
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    pinned = re.search(r"^transformers==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    made = re.search(r"every model type of transformers (\S+),", page)
    assert made[1] == pinned[1], "make models, and keep its table as docs/models.csv"


def test_nothing_is_wrong_and_a_refusal_has_a_reason():
    with (ROOT / "docs/models.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    attentions = rows[0].keys() - {"model", "reason"}
    assert {row[attention] for row in rows for attention in attentions} == {"yes", "no", ""}
    assert all(row["reason"] for row in rows if "yes" not in {row[attention] for attention in attentions})

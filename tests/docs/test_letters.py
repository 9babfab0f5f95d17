"""The letters of docs/decisions.md are as the page describes them."""

import runpy

import pandas as pd
from documentation import ROOT


def test_letters_are_uneven_and_long(tmp_path):
    script = runpy.run_path(str(ROOT / "docs" / "examples" / "tickets" / "letters.py"))
    script["main"](tmp_path)
    rows = {name: pd.read_csv(tmp_path / f"{name}.tsv", sep="\t") for name in script["ROWS"]}
    assert {name: len(found) for name, found in rows.items()} == script["ROWS"]
    assert rows["train"]["topic"].value_counts()["fraud"] == 32
    assert rows["validation"]["topic"].value_counts()["fraud"] == 7
    assert "topic" not in rows["new"]
    assert len((tmp_path / "new-topics.txt").read_text().splitlines()) == len(rows["new"])
    known = set(rows["train"]["text"])
    assert sum(text in known for text in rows["calibration"]["text"]) == 9

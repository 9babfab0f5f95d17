import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from alignattn.cli import main
from alignattn.commands.demo.data import GENRE, OTHER_GENRE
from alignattn.support.text_tables import render_table


def test_the_demo_ends_with_a_table_and_a_picture(minilm, tmp_path, capsys):
    words = ["demo", "--output_dir", str(tmp_path / "demo"), "--train_rows", "48", "--validation_rows", "24"]
    assert main([*words, "--num_train_epochs", "1"]) == 0
    printed = capsys.readouterr().out
    table = (tmp_path / "demo" / "table.txt").read_text()
    assert table.strip() in printed
    assert str(tmp_path / "demo" / "demo.png") in printed
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    for attention in ("soft", "aa-ct"):
        result = json.loads((tmp_path / "demo" / attention / "results.json").read_text())
        row = next(line.split() for line in table.splitlines() if line.startswith(attention))
        for column, genre in ((1, GENRE), (2, OTHER_GENRE)):
            accuracy = result["metrics"][f"validation_{genre}"]["accuracy"]
            assert float(row[column]) == pytest.approx(100 * accuracy, abs=0.05)
            predictions = pq.read_table(tmp_path / "demo" / attention / "predictions.parquet").to_pandas()
            predictions = predictions[predictions["split"] == f"validation_{genre}"]
            assert accuracy == pytest.approx(np.mean(predictions["prediction"] == predictions["label"]))
    assert main([*words, "--num_train_epochs", "2"]) == 2
    assert "already holds another run" in capsys.readouterr().err


def test_a_model_that_is_missing_is_one_line(tmp_path, capsys):
    assert main(["demo", "--model", "no/model", "--output_dir", str(tmp_path / "demo")]) == 2
    assert "no/model" in capsys.readouterr().err


def test_render_table():
    assert render_table(("a", "long"), [("row", "1"), ("b", "22")]).splitlines() == [
        "a    long",
        "---  ----",
        "row     1",
        "b      22",
    ]

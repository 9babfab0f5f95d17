"""`make demo`: three runs, their table and their picture."""

import json
import sys
from runpy import run_path

import pytest
from conftest import ROOT


def test_the_demo_ends_with_a_table_and_a_picture(shallow_minilm, tmp_path, monkeypatch, capsys):
    words = ["--output_dir", str(tmp_path / "demo"), "--model", str(shallow_minilm), "--num_train_epochs", "0.3"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *words])
    run_path(str(ROOT / "docs" / "examples" / "demo.py"), run_name="__main__")
    table = (tmp_path / "demo" / "table.txt").read_text()
    printed = capsys.readouterr().out
    assert table in printed
    assert str(tmp_path / "demo" / "demo.png") in printed
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    before = {}
    for name in ("plain", "aligned", "balanced"):
        result = json.loads((tmp_path / "demo" / name / "results.json").read_text())
        (row,) = [line.split(" | ") for line in table.splitlines() if line.startswith(name)]
        assert float(row[1]) == pytest.approx(100 * result["metrics"]["validation"]["accuracy"], abs=0.006)
        before[name] = float(row[3])
    assert before["plain"] == before["aligned"] > 2 * before["balanced"]

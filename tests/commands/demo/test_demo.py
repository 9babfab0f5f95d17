import json
import re
from itertools import combinations
from pathlib import Path

import networkx
import numpy as np
import pyarrow.parquet as pq
import pytest
from needs import SHARED, skip_without

from alignattn.cli import main
from alignattn.commands.demo import DemoOptions
from alignattn.commands.demo.data import NETWORKS, NUMERICS, demo_data, documentation_rows
from alignattn.tasks import get_task
from alignattn.tasks.rows import load_rows
from alignattn.utils.errors import AlignAttnError

FOLDER = Path(networkx.__file__).parent


RUNS = ("plain", "aligned", "balanced")


def test_the_demo_ends_with_a_table_and_a_picture(shallow_minilm, tmp_path, capsys):
    words = ["demo", "--output_dir", str(tmp_path / "demo"), "--train_rows", "48", "--validation_rows", "24"]
    words += ["--model", str(shallow_minilm)]
    assert main([*words, "--num_train_epochs", "1"]) == 0
    printed = capsys.readouterr().out
    table = (tmp_path / "demo" / "table.txt").read_text()
    assert table.strip() in printed
    assert "Sentences: pairs of sentences from the documentation of installed packages" in printed
    assert str(tmp_path / "demo" / "demo.png") in printed
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    distances = {}
    for name in RUNS:
        result = json.loads((tmp_path / "demo" / name / "results.json").read_text())
        row = next(line.split() for line in table.splitlines() if line.startswith(name))
        assert all(re.fullmatch(r"\d+\.\d", cell) for cell in row[1:]), "numbers have one digit"
        for column, domain in ((1, NUMERICS), (2, NETWORKS)):
            accuracy = result["metrics"][f"validation_{domain}"]["accuracy"]
            assert float(row[column]) == pytest.approx(100 * accuracy, abs=0.051)
            predictions = pq.read_table(tmp_path / "demo" / name / "predictions.parquet").to_pandas()
            predictions = predictions[predictions["split"] == f"validation_{domain}"]
            assert accuracy == pytest.approx(np.mean(predictions["prediction"] == predictions["label"]))
        distances[name] = float(row[6])
    assert distances["balanced"] < min(distances["plain"], distances["aligned"]) / 2
    assert main([*words, "--num_train_epochs", "2"]) == 2
    assert "already holds another run" in capsys.readouterr().err
    assert main([*words, "--num_train_epochs", "1", "--seed", "2"]) == 2
    assert "already holds a demo with other rows" in capsys.readouterr().err


def test_a_model_that_is_missing_is_one_line(tmp_path, capsys):
    assert main(["demo", "--model", "no/model", "--output_dir", str(tmp_path / "demo")]) == 2
    assert "no/model" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_more_rows_than_the_documentation_has_are_refused():
    with pytest.raises(AlignAttnError, match=r"has \d+ pairs of sentences of networks, and the demo needs 100000"):
        documentation_rows(NETWORKS, 100_000, seed=1)


def test_documentation_rows_are_whole_sentences_and_half_are_adjacent():
    rows = documentation_rows(NETWORKS, 60, seed=1)
    assert rows == documentation_rows(NETWORKS, 60, seed=1) != documentation_rows(NETWORKS, 60, seed=2)
    assert [row["label"] for row in rows] == [0, 1] * 30
    assert len({row["first"] for row in rows}) > 50
    text = " ".join("".join(path.read_text() for path in sorted(FOLDER.rglob("*.py"))).split())
    for row in rows:
        assert row["first"] != row["second"]
        assert row["first"] in text
        assert row["second"] in text
        assert (f"{row['first']} {row['second']}" in text) >= row["label"]


@pytest.mark.parametrize(("sentences", "labels"), [("questions", "duplicate"), ("documentation", "next")])
def test_real_sentences_are_a_task_like_any_other(sentences, labels, tmp_path):
    given = {}
    if sentences == "questions":
        skip_without(SHARED / "data")
        given = {"data_dir": str(SHARED / "data")}
    options = DemoOptions(train_rows=30, validation_rows=10, **given)
    source = demo_data(options)
    name = source.write_task(tmp_path)
    source.write(tmp_path, options)
    loaded = load_rows(get_task(name), data_dir=tmp_path)
    assert labels in loaded.task.labels
    assert [len(rows) for rows in (loaded.train, *loaded.evaluation.values())] == [30, 10, 10]
    assert set(loaded.train["label"]) == {0, 1}
    pairs = [{(row["first"], row["second"]) for row in rows} for rows in (loaded.train, *loaded.evaluation.values())]
    assert all(first.isdisjoint(other) for first, other in combinations(pairs, 2))

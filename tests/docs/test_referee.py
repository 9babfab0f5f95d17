"""The page on judging a custom recipe: its table, its results, and its null comparisons."""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from documentation import ROOT, blocks

from alignattn.cli import main
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.commands.reproduce.launchers.local import LocalLauncher
from alignattn.commands.reproduce.launchers.worker import work
from alignattn.evaluation.statistics.comparison import compare, correct

PAGE = ROOT / "docs" / "referee.md"
EXAMPLE = ROOT / "docs" / "examples" / "referee"
STUDY = ROOT / "docs" / "study"
LINES = {
    "kept runs": "ten kept runs with ten others",
    "simulated": "ten simulated accuracies with ten others",
    "simulated, the first 200": "the first 200 of these",
    "families of kept runs": "three sets of seven kept runs",
    "single runs, over test rows": "one kept run with another",
}


def line_of(start):
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {start}")]
    return line


@pytest.fixture(scope="module")
def null_comparisons():
    spec = importlib.util.spec_from_file_location("null_comparisons", STUDY / "null_comparisons.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept(null_comparisons):
    runs = null_comparisons.kept_runs(STUDY / "runs.tar.gz")
    soft = pd.read_csv(STUDY / "study-small.csv").set_index(["row", "column"]).loc[("soft", "MRPC")]
    assert 100 * sum(run.value for run in runs.values()) / 30 == pytest.approx(soft["mean"])
    return runs


@pytest.mark.parametrize("what", LINES)
def test_comparisons_of_a_recipe_with_itself_are_seldom_significant(what, null_comparisons, kept):
    rate = null_comparisons.MEASURED[what](kept)
    assert line_of(LINES[what]).endswith(f"| {100 * rate:.1f} % |")
    if what != "single runs, over test rows":
        assert rate <= null_comparisons.MAX_RATE


def test_the_rate_of_sets_from_one_pool_is_right_by_construction_as_the_page_says(null_comparisons):
    pool = np.random.default_rng(1).standard_cauchy(30)
    draws = (np.random.default_rng(seed).permutation(pool)[:20].reshape(2, 10) for seed in range(1000))
    assert null_comparisons.alone(draws) == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / 1000) ** 0.5)
    assert "give 5 %, too" in PAGE.read_text()


def test_every_measured_rate_is_on_the_page(null_comparisons):
    assert null_comparisons.MEASURED.keys() == LINES.keys()


def test_the_table_on_the_page_is_the_file():
    assert blocks("yaml", PAGE) == [(EXAMPLE / "averaging.yaml").read_text()]


def test_the_results_on_the_page_are_the_kept_ones():
    for _, row in pd.read_csv(EXAMPLE / "averaging.csv").iterrows():
        line = line_of(f"{row['row']} | {row['measure']}")
        assert f"{row['mean']:.2f} ± {row['standard_deviation']:.2f}" in line
        if pd.notna(row["difference"]):
            interval = f"{row['difference_low']:+.2f} to {row['difference_high']:+.2f}"
            assert f"{row['difference']:+.2f} ({interval})".replace("-", "−") in line
            assert f"| {row['detectable_difference']:.2f} |" in line


def test_the_kept_differences_are_those_that_a_table_computes_now():
    """The accuracies are on 60 rows: the detectable difference is that of the smallest significant mean."""
    kept = pd.read_csv(EXAMPLE / "averaging.csv").set_index(["row", "measure"])
    words, averaged = (
        [float(value) / 100 for value in kept.loc[(row, "accuracy"), "values"].split()] for row in ("words", "averaged")
    )
    (one,) = correct([compare(averaged, words, rows=60)])
    told = kept.loc[("averaged", "accuracy")]
    assert 100 * one.difference == pytest.approx(told["difference"])
    assert one.p_value == pytest.approx(told["p_value"])
    assert 100 * one.detectable == pytest.approx(told["detectable_difference"]) == pytest.approx(100 * 6 / (12 * 60))


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setattr(
        LocalLauncher, "launch", lambda self, paths: ((path, work(RunFolder.read(path))) for path in paths)
    )
    words = ["--num_seeds", "1", "--use_cpu", "true", "--output_dir", str(tmp_path)]
    assert main(["reproduce", str(EXAMPLE / "averaging.yaml"), *words]) == 0, capsys.readouterr().err
    assert set(pd.read_csv(tmp_path / "averaging" / "averaging.csv")["state"]) == {"done"}

"""The page on judging a custom recipe: its table, its results, and its null comparisons."""

import importlib.util
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from documentation import ROOT

from alignattn.cli import main

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


def test_the_results_on_the_page_are_those_of_its_scores(tmp_path):
    assert main(["compare", str(EXAMPLE / "scores.csv"), "--output_dir", str(tmp_path / "out")]) == 0
    table = pd.read_csv(tmp_path / "out" / "comparison.csv").set_index("row")
    for name, row in table.iterrows():
        assert f"{row['mean']:.2f} ± {row['standard_deviation']:.2f}" in line_of(name)
    row = table.loc["averaged"]
    interval = f"{row['difference_low']:+.2f} to {row['difference_high']:+.2f}"
    assert f"{row['difference']:+.2f} ({interval})".replace("-", "−") in line_of("averaged")
    assert f"| {row['detectable_difference']:.2f} | {row['corrected_p_value']:.2f} |" in line_of("averaged")
    # On 60 rows the detectable difference is that of the smallest significant mean.
    assert row["detectable_difference"] == pytest.approx(100 * 6 / (12 * 60))
    values = np.array([table.loc[name, "values"].split() for name in ("averaged", "words")], float)
    assert (values[0] == values[1]).sum() == 9
    assert f"one of {np.subtract(*values).std(ddof=1):.2f}" in PAGE.read_text()


def test_the_example_writes_the_scores():
    """Floating-point sums of other machines may change a prediction."""
    words = [sys.executable, str(EXAMPLE / "averaging.py")]
    written = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    kept = (EXAMPLE / "scores.csv").read_text().splitlines()
    assert len(written) == len(kept)
    assert sum(one != other for one, other in zip(written, kept, strict=True)) < 10

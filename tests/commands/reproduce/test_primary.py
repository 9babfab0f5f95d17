"""A table whose primary rows were named beforehand, filled from the small files of finished runs alone."""

import itertools
import shutil
from dataclasses import asdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT
from scipy.stats import permutation_test

from alignattn.cli import main
from alignattn.commands.reproduce.folder import folders_of
from alignattn.commands.reproduce.table import load_table
from alignattn.evaluation.statistics.comparison import holm
from alignattn.finetuning.results import CONFIG_FILE, PREDICTIONS_FILE, RESULTS_FILE, RunResult
from alignattn.utils.files import write_json, write_text

SEEDS, FEW = 9, 7
ROWS = 2000
PRIMARY = {"ct": 0.02, "moments": 0.005, "balanced": 0.001}
OTHERS = {"smoothed": 0.004, "random": 0.0005}
MEASURES = [
    {"label": "accuracy", "path": "metrics.validation.accuracy", "primary": True},
    {"label": "F1", "path": "metrics.validation.f1"},
]
TABLE = {
    "title": "t",
    "command": "finetune",
    "seeds": SEEDS,
    "options": {"model": "minilm"},
    "rows": [
        {"label": "soft", "primary": True, "options": {"attention": "soft"}},
        {"label": "smoothed", "seeds": FEW, "options": {"attention": "soft", "label_smoothing_factor": 0.1}},
        {"label": "ct", "primary": True, "options": {"attention": "aa-ct"}},
        {"label": "moments", "primary": True, "options": {"attention": "aa-moments"}},
        {"label": "balanced", "primary": True, "options": {"attention": "soft", "balance": "start"}},
        {
            "label": "centred",
            "seeds": FEW,
            "options": {"attention": "soft", "balance": "start", "balance_centre": True},
        },
        {"label": "ensemble", "seeds": FEW, "ensemble": True, "options": {"attention": "soft"}},
    ],
    "columns": [{"label": "MRPC", "options": {"task": "mrpc"}, "measures": MEASURES}],
}


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TABLE))
    return path


def result_of(task, seed, accuracy):
    scores = {"validation": {"accuracy": accuracy, "f1": accuracy / 2}}
    counts = {"validation": 408}
    return RunResult(
        task, "minilm", "soft", {}, seed, scores, {}, 2000, counts, counts, {}, {}, 1.0, 1.0, {}, {"total": 1}, None,
        {"alignattn": "0.1.0"}, "CPU", [], {}, None, None,
    )  # fmt: skip


def write_small_files(path, results):
    """Write the small files of finished runs: definition, options, results; return the accuracies by row and seed."""
    noise, values = np.random.default_rng(0), {}
    table = load_table(str(path))
    for cell in table.cells(range(1, SEEDS + 1)):
        gain = (PRIMARY | OTHERS).get(cell.row.label, 0.0)
        for folder in folders_of(results, [cell]).values():
            seed = folder.experiment.options["seed"]
            if folder.path.exists():
                continue
            value = 0.7 + 0.01 * seed + gain + 0.004 * noise.standard_normal()
            values[cell.row.label, seed] = value
            folder.prepare()
            write_text(folder.output / CONFIG_FILE, folder.options.to_yaml())
            write_json(folder.output / RESULTS_FILE, asdict(result_of("mrpc", seed, value)))
    return values


def write_predictions(path, results, values, row):
    """Write predictions of the runs of a row, with the accuracy of their results."""
    rng, labels = np.random.default_rng(1), np.arange(ROWS) % 2
    for cell in load_table(str(path)).cells(range(1, SEEDS + 1)):
        if cell.row.label != row:
            continue
        for folder in folders_of(results, [cell]).values():
            is_wrong = rng.permutation(ROWS) >= round(values[row, folder.experiment.options["seed"]] * ROWS)
            likely = np.where(is_wrong, 0.4, 0.9)
            shares = np.where(labels[:, None] == [0, 1], likely[:, None], 1 - likely[:, None])
            columns = {
                "split": ["validation"] * ROWS,
                "row": range(ROWS),
                "label": labels,
                "prediction": shares.argmax(axis=1),
                "probabilities": list(shares),
            }
            pq.write_table(pa.table(columns), folder.output / PREDICTIONS_FILE)


def test_small_files_of_finished_runs_fill_the_table_and_families_are_corrected_separately(mine, tmp_path, capsys):
    values = write_small_files(mine, tmp_path / "results")
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.*")}
    # The small files suffice for every row but the ensemble.
    assert main(["reproduce", str(mine), "--output_dir", str(tmp_path / "results")]) == 2
    captured = capsys.readouterr()
    assert f"{len(values)} of {len(values)} runs are done" in captured.out
    assert "2 of 14 cells failed, the first: ensemble, MRPC accuracy (%)" in captured.err
    assert {path: path.read_bytes() for path in before} == before
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    ensemble = table.loc[("ensemble", "accuracy")]
    assert (ensemble["state"], ensemble["seeds"]) == ("failed", 0)
    assert "predictions.parquet" in ensemble["reason"]

    def p_value(row):
        seeds = range(1, (SEEDS if row in PRIMARY else FEW) + 1)
        assert table.loc[(row, "accuracy"), "seeds"] == len(seeds)
        differences = [values[row, seed] - values["soft", seed] for seed in seeds]
        statistic = permutation_test([differences], np.mean, permutation_type="samples", n_resamples=np.inf)
        return statistic.pvalue

    primary = holm([p_value(row) for row in PRIMARY])
    found = [table.loc[(row, "accuracy"), "corrected_p_value"] for row in PRIMARY]
    assert found == pytest.approx(primary)
    # The rest is one family: the accuracy of the other rows, which seven seeds cannot make significant, and every F1.
    # The ensemble has no p-values yet.
    rest = [(row, measure) for row, measure in table.index if row != "soft" and (row, measure) not in
            set(itertools.product(PRIMARY, ["accuracy"]))]  # fmt: skip
    tested = table.loc[rest].dropna(subset="p_value")
    assert len(tested) < len(rest) == 9
    assert tested["corrected_p_value"].tolist() == pytest.approx(holm(tested["p_value"].tolist(), 9))
    families = table.dropna(subset="difference")["family"]
    assert families.eq("primary").sum() == 3
    assert set(families.index[families.eq("primary")]) == {(row, "accuracy") for row in PRIMARY}
    text = (tmp_path / "results/mine/mine.md").read_text()
    assert "Primary, named before the runs were made: ct on MRPC accuracy" in text
    assert "a family of 3 comparisons" in text
    assert "| ct (primary) | MRPC accuracy (%) |" in text
    assert "9 seeds" in text
    assert "7 seeds" in text


def test_finished_only_writes_the_table_of_the_finished_runs_and_runs_nothing(mine, tmp_path, capsys):
    write_small_files(mine, tmp_path / "results")
    cells = list(load_table(str(mine)).cells(range(1, SEEDS + 1)))
    missing = [
        folder for folder in folders_of(tmp_path / "results", cells).values() if folder.experiment.options["seed"] > 4
    ]
    for folder in missing:
        shutil.rmtree(folder.path)
    assert main(["reproduce", str(mine), "--finished_only", "true", "--output_dir", str(tmp_path / "results")]) == 2
    captured = capsys.readouterr()
    assert not any(folder.path.exists() for folder in missing)
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    assert table.loc[("ct", "accuracy"), "seeds"] == 4
    assert "4 of 9" in captured.out
    assert "seeds 1, 2, 3, 4 of 9" in captured.out
    page = (tmp_path / "results/mine/mine.html").read_text()
    assert all(f"run-{folder.experiment.digest}" in page for folder in missing)


def test_unfinished_rows_are_not_compared(mine, tmp_path, capsys):
    """The more often a growing sample is tested, the more often a difference of zero is significant."""
    values = write_small_files(mine, tmp_path / "results")
    cells = list(load_table(str(mine)).cells(range(1, SEEDS + 1)))
    gone = {("ct", 2), ("ct", 5), ("soft", 7), ("moments", 9)}
    for cell in cells:
        for folder in folders_of(tmp_path / "results", [cell]).values():
            if (cell.row.label, folder.experiment.options["seed"]) in gone and folder.path.exists():
                shutil.rmtree(folder.path)
    words = ["reproduce", str(mine), "--finished_only", "true", "--output_dir", str(tmp_path / "results")]
    # The ensemble has no predictions.
    assert main(words) == 2
    out = capsys.readouterr().out
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    ct = table.loc[("ct", "accuracy")]
    finished = [values["ct", seed] for seed in range(1, SEEDS + 1) if seed not in (2, 5)]
    assert ct["mean"] == pytest.approx(100 * np.mean(finished))
    # Without seed 7 of soft no comparison with it is complete.
    assert table.drop(index="centred", level=0)["difference"].isna().all()
    assert "8 comparisons will be made once all runs are finished: a test after each run" in out


def test_rows_with_fewer_seeds_than_planned_are_not_tested(mine, tmp_path, capsys):
    """Otherwise each added seed would be another test."""
    write_small_files(mine, tmp_path / "results")
    words = ["reproduce", str(mine), "--output_dir", str(tmp_path / "results"), "--num_seeds"]
    assert main([*words, str(FEW)]) == 2
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    for row in PRIMARY:
        assert table.loc[(row, "accuracy"), "seeds"] == FEW
        assert np.isnan(table.loc[(row, "accuracy"), "difference"])
    # Rows with no more planned seeds are complete.
    assert not np.isnan(table.loc[("smoothed", "accuracy"), "difference"])
    assert main([*words, str(SEEDS)]) == 2
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    assert not any(np.isnan(table.loc[(row, "accuracy"), "p_value"]) for row in PRIMARY)


def test_an_ensemble_is_compared_with_its_members_alone(mine, tmp_path):
    """Not with all seeds of the row: its members are the first ones."""
    values = write_small_files(mine, tmp_path / "results")
    write_predictions(mine, tmp_path / "results", values, "soft")
    main(["reproduce", str(mine), "--output_dir", str(tmp_path / "results")])
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    ensemble = table.loc[("ensemble", "accuracy")]
    members = 100 * np.mean([values["soft", seed] for seed in range(1, FEW + 1)])
    assert members != pytest.approx(table.loc[("soft", "accuracy"), "mean"], abs=0.5)
    assert ensemble["difference"] == pytest.approx(ensemble["mean"] - members)
    assert f"for these 1 and {FEW} runs" in ensemble["test"]


@pytest.mark.parametrize("drawn", [{}, {"max_train_samples": 100, "take": "seed"}], ids=["equal rows", "own rows"])
def test_few_models_are_tested_over_examples_only_if_they_share_training_rows(drawn, tmp_path):
    path, results = tmp_path / "few.yaml", tmp_path / "results"
    rows = [{"label": row["label"], "options": row["options"]} for row in TABLE["rows"][:2]]
    measures = [{"label": "accuracy", "path": "metrics.validation.accuracy"}]
    columns = [{"label": "MRPC", "options": {"task": "mrpc"}, "measures": measures}]
    options = TABLE["options"] | drawn
    path.write_text(yaml.safe_dump(TABLE | {"rows": rows, "columns": columns, "options": options, "seeds": 3}))
    values = write_small_files(path, results)
    for row in ("soft", "smoothed"):
        write_predictions(path, results, values, row)
    assert main(["reproduce", str(path), "--output_dir", str(results)]) == 0
    found = pd.read_csv(results / "few/few.csv").set_index("row").loc["smoothed"]
    if drawn:
        assert found["test"] == "no test; t-interval over 3 paired seeds"
        assert np.isnan(found["p_value"])
    else:
        assert f"over {ROWS} examples, for these 3 seeds" in found["test"]
        assert 0 < found["p_value"] <= 1


def test_a_primary_family_keeps_its_size_if_rows_are_left_out(mine, tmp_path, capsys):
    write_small_files(mine, tmp_path / "results")
    words = ["reproduce", str(mine), "--output_dir", str(tmp_path / "results"), "--attentions"]
    assert main([*words, "aa-ct", "aa-moments", "soft"]) == 2
    whole = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    capsys.readouterr()
    assert main([*words, "aa-ct", "soft"]) == 2
    narrow = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index(["row", "measure"])
    ct = ("ct", "accuracy")
    assert whole.loc[ct, "corrected_p_value"] == narrow.loc[ct, "corrected_p_value"] == 3 * narrow.loc[ct, "p_value"]
    assert "of a family of 3 comparisons" in capsys.readouterr().out


def test_primary_runs_come_first_and_each_seed_of_all_rows_before_the_next(mine, tmp_path):
    cells = list(load_table(str(mine)).cells(range(1, SEEDS + 1)))
    runs = [folder.experiment.options for folder in folders_of(tmp_path, cells).values()]
    rows = [(run["seed"], run["attention"], run.get("balance"), run.get("balance_centre")) for run in runs]
    named = [("soft", None), ("aa-ct", None), ("aa-moments", None), ("soft", "start")]
    first = [(seed, *row, None) for seed in range(1, SEEDS + 1) for row in named]
    assert rows[: len(first)] == first
    assert [row[0] for row in rows[len(first) :]] == sorted([*range(1, FEW + 1), *range(1, FEW + 1)])


def test_the_small_study_has_the_primary_rows_that_were_named_beforehand():
    table = load_table(str(ROOT / "docs/study/study-small.yaml"), kept=True)
    cells = list(table.cells(range(1, table.seeds + 1)))
    primary = {cell.row.label: len(cell.experiments) for cell in cells if cell.is_primary}
    assert primary == {"soft": 30, "aa-ct, λ 1": 30, "aa-moments": 30, "balance start": 30}
    assert {len(cell.experiments) for cell in cells if not cell.is_primary} == {10}
    assert {cell.column.label for cell in cells if cell.is_primary} == {"MRPC"}
    # So few that 10 seeds can make one of them significant.
    exploratory = [cell for cell in cells if not cell.is_primary and cell.baseline is not None]
    assert 2 / 2**10 * len(exploratory) < 0.05

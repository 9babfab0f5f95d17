"""The kept files of the study's runs, from which another session can continue."""

import importlib.util
import io
import itertools
import json
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT
from scipy import stats
from sklearn import metrics
from torchmetrics.functional.classification import multiclass_calibration_error

from alignattn.cli import main
from alignattn.commands.reproduce.experiment import distinctive
from alignattn.commands.reproduce.folder import EXPERIMENT_FILE, OUTPUT_FOLDER, RUNS_FOLDER, folders_of
from alignattn.commands.reproduce.table import load_table
from alignattn.evaluation.statistics.comparison import can_test_over_seeds
from alignattn.evaluation.statistics.intervals import Interval
from alignattn.evaluation.statistics.power import detectable_by_sign_flips
from alignattn.finetuning.results import CONFIG_FILE, PREDICTIONS_FILE, RESULTS_FILE

RESULTS = ROOT / "docs" / "results.md"
STUDY = ROOT / "docs" / "study"
KEPT, WHY_RUNS = STUDY / "runs.tar.gz", STUDY / "why-runs.tar.gz"
WHY_TABLES = ("why", "why-tasks", "why-rate", "why-long")
SEEDS = range(1, 31)
TEN = 10
"""Number of seeds of the exploratory rows."""

ATTACKS_FILE, ATTACK_RECORDS_FILE = "robustness.json", "records.parquet"
OUTCOMES = ["failed", "succeeded", "skipped"]

OF_THE_MACHINE = {"data_dir", "use_cpu"}


def files_in(archive):
    """The files of an archive, by their path."""
    with tarfile.open(archive) as opened:
        return {Path(one.name): opened.extractfile(one).read() for one in opened if one.isfile()}


@pytest.fixture(scope="module")
def kept():
    """The kept files, by their path relative to the results."""
    return files_in(KEPT)


def small_study():
    return load_table(str(STUDY / "study-small.yaml"), kept=True)


def of_the_table(options):
    named = {name: value for name, value in distinctive(options).items() if name not in OF_THE_MACHINE}
    return json.dumps(named, sort_keys=True)


def test_every_kept_run_is_in_the_table_and_complete(kept):
    """If the options of the table change, its cells no longer find the kept runs, without a message."""
    cells = list(small_study().cells(SEEDS))
    asked = {of_the_table(folder.experiment.options) for folder in folders_of(Path("results"), cells).values()}
    meant = {of_the_table(one.options) for cell in cells if cell.row.ensemble for one in cell.experiments}
    runs = {path.parents[1 if path.parent.name == OUTPUT_FOLDER else 0] for path in kept}
    assert runs
    for run in runs:
        assert run.parent == Path(RUNS_FOLDER)
        options = of_the_table(json.loads(kept[run / EXPERIMENT_FILE])["options"])
        assert options in asked
        # An ensemble averages the predictions of its members.
        assert options not in meant or run / OUTPUT_FOLDER / PREDICTIONS_FILE in kept
        assert run / OUTPUT_FOLDER / CONFIG_FILE in kept
        results = json.loads(kept[run / OUTPUT_FOLDER / RESULTS_FILE])
        assert all(0 < score < 1 for scores in results["metrics"].values() for score in scores.values())


def results_in(files):
    """The results of each run, by its options."""
    return {
        of_the_table(json.loads(files[path.parents[1] / EXPERIMENT_FILE])["options"]): json.loads(files[path])
        for path in files
        if path.name == RESULTS_FILE
    }


def shown_p_value(p_value):
    """A p-value as documented."""
    if p_value < 0.001:
        return "< 0.001"
    return f"{p_value:.{3 if p_value < 0.1 else 2}f}"


@pytest.fixture(scope="module")
def scores(kept):
    """The results of each kept run, by its options."""
    return results_in(kept)


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(STUDY / "study-small.csv").set_index(["row", "column"])


def page_of(path):
    """The text of a page, with plain minus signs."""
    return path.read_text(encoding="utf-8").replace("−", "-")


def lines_of(path):
    """The cells of the rows of a page's tables, by the first cell."""
    lines = [line for line in page_of(path).splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}


@pytest.mark.parametrize("page", [RESULTS, STUDY / "small.md"], ids=lambda page: page.stem)
def test_the_documented_primary_figures_are_those_of_the_kept_runs(page, scores, table):
    text = page_of(page)
    cells = {cell.row.label: cell for cell in small_study().cells(SEEDS) if cell.is_primary}
    found = {label: [scores[of_the_table(one.options)] for one in cell.experiments] for label, cell in cells.items()}
    measured = {
        label: np.array([100 * run["metrics"]["test"]["accuracy"] for run in runs]) for label, runs in found.items()
    }
    for label, own in measured.items():
        told = table.loc[(label, "MRPC")]
        assert told["mean"] == pytest.approx(own.mean())
        (line,) = [line for line in text.splitlines() if f"| {own.mean():.2f} ± {own.std(ddof=1):.2f} |" in line]
        assert line.endswith(f"| {np.median([run['train_runtime'] for run in found[label]]):.0f} |")
        if label != "soft":
            differences = own - measured["soft"]
            difference = differences.mean()
            assert f"| {(differences > 0).sum()}, {(differences < 0).sum()} |" in line
            assert told["difference"] == pytest.approx(difference)
            assert f"| {told['difference_low']:+.2f} to {told['difference_high']:+.2f} |" in line
            assert f"{difference:+.2f}" in line
            assert told["p_value"] == pytest.approx(p_value_of(differences), rel=1e-6)
            assert f"| {shown_p_value(told['corrected_p_value'])} |" in line
            assert f"| {told['detectable_difference']:.2f} |" in line


def test_the_exploratory_figures_of_the_table_are_those_of_the_kept_runs(scores, table):
    cells = {(cell.row.label, cell.column.label): cell for cell in small_study().cells(SEEDS)}

    def values(row, column):
        runs = [scores.get(of_the_table(one.options)) for one in cells[row, column].experiments[:TEN]]
        metrics = [score for run in runs if run is not None for score in run["metrics"].values()]
        return np.array([100 * score["accuracy"] for score in metrics])

    made = {place: values(*place) for place, cell in cells.items() if not cell.row.ensemble}
    assert {len(own) for own in made.values()} == {TEN}
    primary = {place for place, cell in cells.items() if cell.is_primary and place[0] != "soft"}
    assert len(made.keys() - primary) == 25
    for row, column in made.keys() - primary:
        if (baseline := cells[row, column].baseline) is not None:
            difference = (made[row, column] - made[baseline, column]).mean()
            assert table.loc[(row, column)]["difference"] == pytest.approx(difference)


WHY_BASELINES = {"soft, all 3,668 rows": "soft"}
"""The baselines of rows that name none in why.yaml: `reproduce` compares such a row with the one it extends."""


@pytest.fixture(scope="module")
def why_scores(scores):
    """The results of each run of the study "why", by its options, those that study-small kept included."""
    return {**scores, **results_in(files_in(WHY_RUNS))}


@pytest.fixture(scope="module")
def why_differences(why_scores):
    """The paired differences of the rows of why.yaml: {primary or not: {label: [seeds]}}."""
    table = yaml.safe_load((STUDY / "why.yaml").read_text())
    (column,) = table["columns"]
    named = {row["label"]: {**table["options"], **column["options"], **row["options"]} for row in table["rows"]}
    found = {True: {}, False: {}}
    for row in table["rows"]:
        label = row["label"]
        if against := row.get("against", WHY_BASELINES.get(label)):
            own, plain = (
                in_points(why_scores, named[one], range(1, row.get("seeds", table["seeds"]) + 1), "test", "accuracy")
                for one in (label, against)
            )
            found[row.get("primary", False)][label] = own - plain
    return found


@pytest.fixture(scope="module")
def why_table():
    """The table that `reproduce` writes of the study "why", by the row."""
    return pd.read_csv(STUDY / "why.csv").set_index("row")


def test_the_study_why_is_written_again_from_its_kept_runs_without_their_data_and_their_patch(tmp_path, why_table):
    """Its rows have options of docs/study/why.patch, and its runs had their data at a path of another machine."""
    for archive in (KEPT, WHY_RUNS):
        with tarfile.open(archive) as opened:
            opened.extractall(tmp_path, filter="data")
    assert main(["reproduce", str(STUDY / "why.yaml"), "--finished_only", "true", "--output_dir", str(tmp_path)]) == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "why" / "why.csv").set_index("row"), why_table, rtol=1e-9)


def in_points(runs, options, seeds, split, measure):
    """The score of each seed's run, times 100."""
    return np.array([100 * runs[of_the_table({**options, "seed": seed})]["metrics"][split][measure] for seed in seeds])


def constant_runs(runs, options, seeds, split):
    """The number of seeds whose model predicts one class for all rows."""
    return sum(split in runs[of_the_table({**options, "seed": seed})]["constant_prediction"] for seed in seeds)


def interval_of(differences):
    """The 95 % interval of the mean of paired differences, by Student's t."""
    return stats.ttest_1samp(differences, 0).confidence_interval(0.95)


def reading_of(differences):
    """What the interval of a row says by the preregistered rule of why.yaml: aa-moments gains 0.80."""
    low, high = interval_of(differences)
    if 0 < low <= 0.80 <= high:
        return "gains as much"
    return "does not gain" if high < 0.40 else "undecided"


def detectable_of(differences, family_size):
    """The minimum detectable difference of a sign-flip test, as documented."""
    return f"{detectable_by_sign_flips(Interval(*interval_of(differences)), len(differences), 0.05 / family_size):.2f}"


def preregistered(name):
    """What was fixed before the runs of a table, without line breaks."""
    return " ".join(yaml.safe_load((STUDY / f"{name}.yaml").read_text())["preregistered"]["text"].split())


def test_the_rules_stand_in_the_tables():
    rule = preregistered("why")
    assert "excludes 0 and includes 0.80. A row *does not gain* where the interval ends below 0.40." in rule
    assert rule.count("| **`") == 6
    assert "A run *breaks* where it ends more than 5 points below `soft` of its seed." in preregistered("why-long")
    assert preregistered("shift") == preregistered("attacks")
    assert "the corrected p-value is below 0.05 and the difference has the right sign" in preregistered("shift")


def test_the_primary_figures_of_the_study_why_are_those_of_the_kept_runs(why_differences, why_table):
    told = lines_of(STUDY / "why.md")
    corrected = holm(map(p_value_of, why_differences[True].values()))
    for (label, differences), p_value in zip(why_differences[True].items(), corrected, strict=True):
        seeds = f"{(differences > 0).sum()}, {(differences < 0).sum()}"
        detectable = detectable_of(differences, len(why_differences[True]))
        assert told[label] == [with_interval(differences), shown_p_value(p_value), seeds, detectable]
        assert len(differences) == len(SEEDS)
        assert why_table.loc[label, "p_value"] == pytest.approx(p_value_of(differences), rel=1e-6)
        assert why_table.loc[label, "corrected_p_value"] == pytest.approx(p_value, rel=1e-6)
    more = why_differences[False]["aa-moments"] - why_differences[True]["aa-moments, head h + 1"]
    low, high = interval_of(more)
    text = " ".join(page_of(STUDY / "why.md").split())
    assert f"`aa-moments` gains {more.mean():.2f} more ({low:+.2f} to {high:+.2f}, p {p_value_of(more):.3f};" in text


def test_the_exploratory_figures_of_the_study_why_are_those_of_the_kept_runs(why_differences):
    family, told = why_differences[False], lines_of(STUDY / "why.md")
    assert f"corrected for {len(family)}" in page_of(STUDY / "why.md")
    for (label, differences), p_value in zip(family.items(), holm(map(p_value_of, family.values())), strict=True):
        assert len(differences) == (30 if label == "aa-moments" else TEN)
        reading = "" if label in WHY_BASELINES else reading_of(differences)
        assert told[label] == [with_interval(differences), shown_p_value(p_value), reading]


def test_the_figures_of_the_other_tasks_are_those_of_the_kept_runs(why_scores):
    table = yaml.safe_load((STUDY / "why-tasks.yaml").read_text())
    seeds, told, differences, constant = range(1, table["seeds"] + 1), lines_of(STUDY / "why-tasks.md"), {}, {}
    for column in table["columns"]:
        label, ((_, split, measure),) = column["label"], (one["path"].split(".") for one in column["measures"])
        both = [{**table["options"], **column["options"], **row["options"]} for row in table["rows"]]
        soft, aligned = (in_points(why_scores, options, seeds, split, measure) for options in both)
        assert told[label][1:3] == [f"{one.mean():.2f} ± {one.std(ddof=1):.2f}" for one in (soft, aligned)]
        differences[label] = aligned - soft
        constant[label] = [constant_runs(why_scores, options, seeds, split) for options in both]
    for (label, own), p_value in zip(differences.items(), holm(map(p_value_of, differences.values())), strict=True):
        shown = [with_interval(own), shown_p_value(p_value), detectable_of(own, len(differences)), reading_of(own)]
        assert told[label][3:] == shown
    text = " ".join(page_of(STUDY / "why-tasks.md").split())
    assert "on RTE {} of 10 with `soft` and {} with `aa-moments`,".format(*constant["RTE"]) in text
    assert "on CoLA {} and {}.".format(*constant["CoLA"]) in text


def test_the_figures_of_the_learning_rates_are_those_of_the_kept_runs(why_scores):
    table = yaml.safe_load((STUDY / "why-rate.yaml").read_text())
    (column,) = table["columns"]
    options = [{**table["options"], **column["options"], **row["options"]} for row in table["rows"]]
    first, second, third = (
        in_points(why_scores, one, range(31, 41), "validation", "accuracy").mean() for one in options
    )
    assert f"1e-4, 1.25e-4 and 1.5e-4 have {first:.2f}, {second:.2f} and {third:.2f}" in page_of(STUDY / "why.md")


def test_the_strengths_of_the_baselines_are_those_of_the_kept_runs():
    kept = results_in(files_in(STUDY / "baselines-runs.tar.gz"))
    table = yaml.safe_load((STUDY / "baselines.yaml").read_text())
    page = (STUDY / "baselines.md").read_text(encoding="utf-8")
    for row in table["rows"]:
        options = {**table["options"], **row["options"]}
        accuracy = in_points(kept, options, (41, 42, 43), "validation", "accuracy")
        assert f"| {row['label']} | {accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f} |" in page


def test_the_figures_of_a_smaller_weight_are_those_of_the_kept_runs(why_scores):
    table = yaml.safe_load((STUDY / "why-long.yaml").read_text())
    (column,) = table["columns"]
    accuracy = {}
    for row in table["rows"]:
        options = {**table["options"], **column["options"], **row["options"]}
        accuracy[row["label"]] = in_points(why_scores, options, SEEDS, "test", "accuracy")
    told = lines_of(STUDY / "why-long.md")
    plain = accuracy.pop("soft, 5 epochs")
    for label, own in accuracy.items():
        differences = own - plain
        seeds = f"{(differences > 0).sum()}, {(differences < 0).sum()}"
        worst = [f"{differences.min():.1f}", str((differences < -5).sum())]
        assert told[label] == [with_interval(differences), seeds, *worst]


def test_the_figures_of_the_drawn_rows_are_those_of_the_kept_runs():
    kept = results_in(files_in(STUDY / "rows-runs.tar.gz"))
    table = yaml.safe_load((STUDY / "rows.yaml").read_text())
    (options,) = (column["options"] for column in table["columns"] if column["label"] == "MRPC")
    accuracy = {
        row["label"]: in_points(
            kept, {**table["options"], **options, **row["options"]}, range(111, 141), "test", "accuracy"
        )
        for row in table["rows"]
        if row.get("primary")
    }
    few, all_rows = accuracy["aa-ct, 8 rows"], accuracy["aa-ct, all rows"]
    means = {label: f"{scores.mean():.2f} ± {scores.std(ddof=1):.2f}" for label, scores in accuracy.items()}
    compared = [
        with_interval(few - all_rows),
        detectable_of(few - all_rows, 1),
        shown_p_value(p_value_of(few - all_rows)),
    ]
    told = lines_of(STUDY / "rows.md")
    assert told["aa-ct, all rows"] == [means["aa-ct, all rows"], "", "", ""]
    assert told["aa-ct, 8 rows"] == [means["aa-ct, 8 rows"], *compared]
    assert np.abs(few - all_rows).max() * MRPC_TEST_ROWS / 100 == pytest.approx(2)
    assert "No pair differs by more than two of 1,725 test rows" in page_of(STUDY / "rows.md")


def test_the_kept_runs_of_the_study_cheap_pass_its_look():
    """It ends after seed 70 if a mean difference is 0 or below. The runs of one row are compared with two others."""
    kept = results_in(files_in(STUDY / "cheap-runs.tar.gz"))
    table = yaml.safe_load((STUDY / "cheap.yaml").read_text())
    (column,) = table["columns"]
    fixed = {**table["options"], **column["options"]}
    accuracy = {
        row["label"]: in_points(kept, fixed | row["options"], range(51, 71), "test", "accuracy")
        for row in table["rows"]
        if not row["label"].endswith("5 epochs")
    }
    assert len(kept) == 89
    for against in ("soft", "soft, equal time"):
        assert (accuracy["aa-means"] - accuracy[against]).mean() > 0
    assert "it goes on after its look: of seeds 51 to 70, both mean differences are above 0" in page_of(
        STUDY / "README.md"
    )


RECOMPUTED = {
    "accuracy": lambda labels, predictions: (labels == predictions).mean(),
    "matthews_correlation": metrics.matthews_corrcoef,
    "spearmanr": lambda labels, predictions: stats.spearmanr(labels, predictions).statistic,
}


def test_every_run_of_the_study_why_was_named_and_its_predictions_give_its_score():
    named = set()
    for table in (yaml.safe_load((STUDY / f"{name}.yaml").read_text()) for name in WHY_TABLES):
        for row in table["rows"]:
            for column in table["columns"]:
                named.add(of_the_table({**table["options"], **column["options"], **row["options"]}))
    files = files_in(WHY_RUNS)
    runs = [path.parent for path in files if path.name == EXPERIMENT_FILE]
    assert runs
    for run in runs:
        options = json.loads(files[run / EXPERIMENT_FILE])["options"]
        assert of_the_table({name: value for name, value in options.items() if name != "seed"}) in named
        predicted = pd.read_parquet(io.BytesIO(files[run / OUTPUT_FOLDER / PREDICTIONS_FILE]))
        for split, scores in json.loads(files[run / OUTPUT_FOLDER / RESULTS_FILE])["metrics"].items():
            rows = predicted[predicted["split"] == split]
            (measure,) = RECOMPUTED.keys() & scores.keys()
            score = RECOMPUTED[measure](rows["label"], rows["prediction"])
            assert score == pytest.approx(scores[measure])


def test_the_documented_changes_of_the_function_are_those_of_the_runs():
    means = pd.read_csv(STUDY / "function.csv").dropna(subset="attention").groupby("row")["attention"].mean()
    text = " ".join(page_of(RESULTS).split())
    shown = "by {:.2f} (`aa-ot`), {:.2f} (`aa-moments`) and {:.2f} (`aa-ct`) in total variation"
    assert shown.format(*(means[f"{row}, λ 1"] for row in ("aa-ot", "aa-moments", "aa-ct"))) in text


@pytest.fixture
def temperature():
    spec = importlib.util.spec_from_file_location("temperature", STUDY / "temperature.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_alignment_is_compared_with_the_temperature_of_soft_seed_by_seed(temperature, tmp_path):
    rng, before, after = np.random.default_rng(0), temperature.BEFORE, temperature.AFTER
    measured = {(row, measure): rng.normal(10, 1, 12) for row in ("soft", "aa-ct") for measure in (before, after)}
    table = [
        {"row": row, "column": column, "measure": measure, "values": " ".join(map(str, values + shift))}
        for column, shift in (("near", 0), ("far", 1))
        for (row, measure), values in measured.items()
    ]
    pd.DataFrame(table).to_csv(tmp_path / "shift.csv", index=False)
    found = temperature.against_temperature(tmp_path / "shift.csv")
    differences = measured["aa-ct", before] - measured["soft", after]
    expected = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=2**12)
    assert set(found) == {("near", "aa-ct"), ("far", "aa-ct")}
    for one in found.values():
        assert one.difference == pytest.approx(differences.mean())
        assert one.p_value == pytest.approx(expected.pvalue)
        assert one.corrected_p_value == pytest.approx(min(1, 2 * expected.pvalue))


@pytest.mark.parametrize(("name", "seeds", "family"), [("shift", 12, 9), ("attacks", 10, 3)])
def test_the_other_claims_find_what_they_say(name, seeds, family):
    table = load_table(str(STUDY / f"{name}.yaml"))
    cells = list(table.cells(range(1, table.seeds + 1)))
    compared = [cell for cell in cells if cell.baseline is not None]
    assert table.seeds == seeds
    assert sum(cell.is_primary for cell in compared) == family
    # The exploratory comparisons can be tested over seeds, too.
    assert can_test_over_seeds(seeds, len(compared) - family)
    of_one = Interval(*stats.t.interval(0.95, seeds - 1, scale=seeds**-0.5))
    assert "The plan detects 1.3 standard deviations" in page_of(STUDY / f"{name}.md")
    assert detectable_by_sign_flips(of_one, seeds, 0.05 / family) == pytest.approx(1.3, abs=0.05)


@pytest.fixture(scope="module")
def claims():
    """The kept files of the runs of shift.md and attacks.md."""
    return files_in(STUDY / "claims-runs.tar.gz")


def test_the_kept_predictions_under_domain_shift_give_the_results_of_their_runs(claims):
    """Probabilities are kept with four decimals, so a row may change the bin of its confidence."""
    runs = [path.parent for path in claims if path.name == EXPERIMENT_FILE]
    shifts = [run for run in runs if "pair" in json.loads(claims[run / EXPERIMENT_FILE])["options"]]
    assert len(shifts) == 144
    for run in shifts:
        predicted = pd.read_parquet(io.BytesIO(claims[run / OUTPUT_FOLDER / PREDICTIONS_FILE]))
        rows = predicted[predicted["split"] == "out-of-domain-held-out"]
        probabilities, labels = np.stack(rows["probabilities"]), rows["label"].to_numpy()
        error = multiclass_calibration_error(
            torch.tensor(probabilities), torch.tensor(labels), num_classes=probabilities.shape[1], n_bins=10
        )
        sides = json.loads(claims[run / OUTPUT_FOLDER / RESULTS_FILE])["sides"]
        figures = sides["out-of-domain"]["figures"]["before"]
        assert (labels == rows["prediction"]).mean() == pytest.approx(figures["accuracy"]["value"])
        assert error.item() == pytest.approx(figures["expected_calibration_error"]["value"], abs=0.001)


def test_the_kept_records_of_the_attacks_give_their_summaries(claims):
    summaries = {path.parent: json.loads(text) for path, text in claims.items() if path.name == ATTACKS_FILE}
    assert len(summaries) == 40
    for folder, tables in summaries.items():
        (summary,) = tables["tables"][0]["summaries"]
        records = pd.read_parquet(io.BytesIO(claims[folder / ATTACK_RECORDS_FILE]))
        assert records["index"].is_unique
        counted = records["outcome"].value_counts()
        assert [counted[outcome] for outcome in OUTCOMES] == [summary[outcome] for outcome in OUTCOMES]


def test_the_figures_of_the_robustness_study_are_those_of_the_kept_runs(claims):
    """Failed attacks, differences, intervals and p-values, recomputed from the summaries of the attacks."""
    found = {}
    for path, text in claims.items():
        if path.name == ATTACKS_FILE:
            trained = json.loads(claims[path.parents[1] / EXPERIMENT_FILE])["needs"]["options"]
            (found[trained["attention"], trained["seed"]],) = json.loads(text)["tables"][0]["summaries"]
    assert len(found) == 40
    assert {one["failed"] + one["succeeded"] for one in found.values()} == {200}

    def values(row, name):
        return np.array([100 * found[row, seed][name] for seed in range(1, 11)])

    lines = iter([line for line in page_of(STUDY / "attacks.md").splitlines() if line.startswith("| ") and "±" in line])
    p_values, told = [], []
    for row in ("soft", "aa-gan", "aa-ct", "aa-moments"):
        cells = [cell.strip() for cell in next(lines).split("|")][1:-1]
        failed, accuracy = values(row, "failed_share"), values(row, "accuracy_before")
        assert cells[:2] == [row, f"{failed.mean():.2f} ± {failed.std(ddof=1):.2f}"]
        if row == "soft":
            assert cells[5] == f"{accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}"
            continue
        for cell, one in (
            (cells[2], failed - values("soft", "failed_share")),
            (cells[5], accuracy - values("soft", "accuracy_before")),
        ):
            assert cell == with_interval(one)
        p_values.append(sign_flip_p_value(failed - values("soft", "failed_share")))
        told.append(float(cells[4]))
    assert told == pytest.approx(holm(p_values), abs=0.006)


def with_interval(differences):
    """The mean of paired differences and its 95 % interval by Student's t, as documented."""
    low, high = interval_of(differences)
    return f"{differences.mean():+.2f} ({low:+.2f} to {high:+.2f})"


def sign_flip_p_value(differences):
    """The share of all changes of signs whose mean is at least as far from 0."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(differences))))
    means = np.abs((signs * differences).mean(axis=1))
    return (means >= abs(differences.mean()) * (1 - 1e-9)).mean()


MRPC_TEST_ROWS = 1725


def p_value_of(differences):
    """The exact sign-flip p-value: of counts of MRPC's test rows by their sums, of ten other numbers by all signs."""
    counts = np.rint(differences * MRPC_TEST_ROWS / 100).astype(int).tolist()
    if len(counts) == TEN:
        return sign_flip_p_value(differences)
    assert differences == pytest.approx(100 * np.array(counts) / MRPC_TEST_ROWS)
    sums = Counter({0: 1})
    for one in counts:
        sums = sum((Counter({value + sign * one: ways for value, ways in sums.items()}) for sign in (-1, 1)), Counter())
    return sum(ways for value, ways in sums.items() if abs(value) >= abs(sum(counts))) / 2 ** len(counts)


def holm(p_values):
    """Holm's corrected p-values."""
    p_values = list(p_values)
    order = np.argsort(p_values)
    steps = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return corrected


def test_the_figures_of_the_calibration_study_are_those_of_the_kept_runs(claims):
    """Errors, differences, intervals and p-values, recomputed from the results of the runs."""
    options = {
        path.parent.name: json.loads(text)["options"] for path, text in claims.items() if path.name == EXPERIMENT_FILE
    }
    found = {
        (one["pair"], one["attention"], one["seed"]): json.loads(claims[Path(RUNS_FOLDER, run, "run", RESULTS_FILE)])
        for run, one in options.items()
        if "pair" in one
    }
    assert len(found) == 144
    assert {run["device"] for run in found.values()} == {"NVIDIA H200"}

    def values(pair, row, measure, side="out-of-domain", when="before"):
        runs = [found[pair, row, seed] for seed in range(1, 13)]
        return np.array([100 * run["sides"][side]["figures"][when][measure]["value"] for run in runs])

    lines = iter([line for line in page_of(STUDY / "shift.md").splitlines() if line.startswith("| ") and "±" in line])
    error, p_values, told = "expected_calibration_error", [], []
    for pair in ("mrpc-twitterppdb", "qqp-twitterppdb", "snli-mnli"):
        plain, scaled = values(pair, "soft", error), values(pair, "soft", error, when="after")
        for row in ("soft", "aa-gan", "aa-ct", "aa-moments"):
            cells = [cell.strip() for cell in next(lines).split("|")][2:-1]
            own = values(pair, row, error)
            assert cells[:2] == [row, f"{own.mean():.2f} ± {own.std(ddof=1):.2f}"]
            accuracy = values(pair, row, "accuracy")
            if row == "soft":
                assert cells[5] == f"{accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}"
                continue
            for cell, one in ((cells[2], own - plain), (cells[5], accuracy - values(pair, "soft", "accuracy"))):
                assert cell == with_interval(one)
            p_values.append(sign_flip_p_value(own - plain))
            told.append(float(cells[4]))
        shown = f"{plain.mean():.2f} to {scaled.mean():.2f}"
        assert shown in " ".join(page_of(STUDY / "shift.md").split())
    assert told == pytest.approx(holm(p_values), abs=0.006)

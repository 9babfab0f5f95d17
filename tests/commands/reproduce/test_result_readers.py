"""Tables read finished runs: attacks and domain shifts."""

import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignattn.commands.domain_shift import (
    DomainShiftResult,
    SideResult,
    read_domain_shift,
    render_domain_shift,
    write_seed_table,
)
from alignattn.commands.reproduce.folder import RunFolder, folders_of, read_results
from alignattn.commands.reproduce.results import examples_of, read_table
from alignattn.commands.reproduce.table import load_table
from alignattn.evaluation.calibration import apply_temperature, expected_calibration_error, summarise
from alignattn.robustness.records import AttackHeader, AttackRecord, AttackRun, AttackSettings, header_path
from alignattn.robustness.summary import summarise_attacks, tabulate, write_attack_tables
from alignattn.utils.files import write_json

ROWS = 60


def write_attacks(folder, outcomes, labels=(0,)):
    """Write the files of a finished run of attacks with these outcomes, row by row."""
    settings = AttackSettings(
        "model",
        "12ab",
        "sst2",
        "validation",
        "soft",
        "textfooler",
        ("sentence",),
        512,
        42,
        ROWS,
        "float32",
        {"word_swaps": "none"},
    )
    path = folder / "run" / "textfooler.jsonl"
    header = AttackHeader(settings, ROWS, (), "12ab", {}, ())
    records = tuple(
        AttackRecord(
            index,
            "textfooler",
            outcome,
            labels[index % len(labels)],
            {"sentence": "a b"},
            None,
            [0.5, 0.5],
            None,
            3,
            2,
            0,
            42 + index,
        )
        for index, outcome in enumerate(outcomes)
    )
    path.parent.mkdir(parents=True)
    write_json(header_path(path), asdict(header))
    path.write_text("".join(f"{json.dumps(asdict(record))}\n" for record in records))
    write_attack_tables(folder, tabulate([summarise_attacks(AttackRun(path, header, records))]))


def test_attacks_fill_a_table_and_are_compared_row_by_row(tmp_path):
    table = load_table("table3").narrowed(tasks=["sst2"], attentions=["soft", "aa-ct"])
    rng = np.random.default_rng(0)
    shares = {}
    cells = list(table.cells([1]))
    for cell in cells[:2]:
        folder = RunFolder(tmp_path, cell.experiments[0])
        folder.prepare()
        chance = {"soft": [0.3, 0.5, 0.2], "aa-ct": [0.7, 0.1, 0.2]}[cell.row.options["attention"]]
        outcomes = rng.choice(["failed", "succeeded", "skipped"], ROWS, p=chance)
        write_attacks(folder.output, [str(outcome) for outcome in outcomes])
        shares[cell.row.options["attention"]] = (outcomes == "failed").sum() / (outcomes != "skipped").sum()
    result = read_table(table, cells, folders_of(tmp_path, cells))
    soft, aligned = result.cells[:2]
    assert [cell.values[0] for cell in (soft, aligned)] == pytest.approx(list(shares.values()))
    assert aligned.comparison.difference == pytest.approx(shares["aa-ct"] - shares["soft"])
    assert aligned.comparison.interval.low < aligned.comparison.difference < aligned.comparison.interval.high
    assert aligned.comparison.survives
    assert [cell.state for cell in result.cells[2:]] == ["missing"] * 4
    # The attacked runs are listed with the attacks.
    assert len(soft.digests) == 2
    assert result.runs[soft.digests[0]].number(["failed_share"]) == pytest.approx(shares["soft"])
    assert result.runs[soft.digests[1]].title.startswith("finetune sst2")


@pytest.mark.parametrize("labels", [(0,), (0, 1)])
def test_attacks_on_a_constant_model_are_marked(labels, tmp_path):
    table = load_table("table3").narrowed(tasks=["sst2"], attentions=["soft"])
    cells = list(table.cells([1]))
    folder = RunFolder(tmp_path, cells[0].experiments[0])
    folder.prepare()
    # All scores are equal, so the first class is predicted for every row.
    write_attacks(folder.output, ["failed", "skipped"] * (ROWS // 2), labels)
    result = read_table(table, cells, folders_of(tmp_path, cells))
    assert [cell.is_constant for cell in result.cells[:2]] == [len(labels) > 1, False]


TEMPERATURE = 1.5


def write_domain_shift(folder, seed=1):
    """Write the files of a finished domain shift with random probabilities; return the predictions of both sides."""
    rng = np.random.default_rng(seed)
    sides, tables = {}, []
    for side, task in (("in-domain", "snli"), ("out-of-domain", "mnli")):
        probabilities = rng.dirichlet(np.ones(3), size=ROWS)
        labels = rng.integers(0, 3, ROWS)
        states = {"before": probabilities, "after": apply_temperature(probabilities, TEMPERATURE)}
        figures = {state: summarise(scaled, labels) for state, scaled in states.items()}
        sides[side] = SideResult(task, "validation", ROWS, ROWS, ROWS, {}, {}, {}, figures, None)
        columns = {
            "split": [f"{side}-held-out"] * ROWS,
            "row": np.arange(ROWS),
            "label": labels,
            "prediction": probabilities.argmax(axis=1),
            "probabilities": list(probabilities),
        }
        tables.append(pa.table(columns))
    versions = {"alignattn": "0"}
    result = DomainShiftResult(
        "snli-mnli",
        "mini",
        "soft",
        {},
        1,
        False,
        42,
        10,
        TEMPERATURE,
        {"before": 1.0, "after": 0.9},
        sides,
        versions,
        "cpu",
        {},
        {},
    )
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(asdict(result)))
    (folder / "config.yaml").write_text("pair: snli-mnli\n")
    pq.write_table(pa.concat_tables(tables), folder / "predictions.parquet")
    return tables


def test_a_domain_shift_has_accuracy_and_calibration_error_of_both_sides(tmp_path):
    folder = tmp_path / "run"
    tables = write_domain_shift(folder)
    results = read_results(folder, "results.json")
    for measure in load_table("table2").columns[0].measures:
        path, found = measure.path.split("."), results
        for key in path:
            found = found[key]
        rows = tables[0 if "in-domain" in path else 1]
        labels = rows["label"].to_numpy()
        probabilities = np.stack(rows["probabilities"].to_numpy())
        if "after" in path:
            probabilities = apply_temperature(probabilities, results["temperature"])
        is_accuracy = "accuracy" in path
        right = (probabilities.argmax(axis=1) == labels).mean()
        expected = right if is_accuracy else expected_calibration_error(probabilities, labels)
        assert found == pytest.approx(expected)
        assert examples_of([folder], path).value == pytest.approx(expected)


@pytest.mark.parametrize(
    "path",
    [
        ["shift_auroc", "before", "value"],
        ["temperature"],
        ["sides", "in-domain", "figures", "before", "area_under_risk_coverage", "value"],
        ["train_runtime"],
        ["parameters", "total"],
    ],
)
def test_numbers_that_are_not_scores_of_rows_have_no_examples_and_no_ensemble(path, tmp_path):
    folders = [tmp_path / "run", tmp_path / "another"]
    write_domain_shift(folders[0])
    write_domain_shift(folders[1])
    assert examples_of(folders[:1], path) is None
    assert examples_of(folders, path) is None


@pytest.mark.parametrize(("model", "said"), [("minilm", "lists SNLI, MultiNLI"), ("bert", "")])
def test_a_domain_shift_names_the_training_data_that_its_model_has_seen(model, said, tmp_path):
    write_domain_shift(tmp_path / "run")
    result = replace(read_domain_shift(tmp_path / "run"), model=model)
    tables = [render_domain_shift(result), write_seed_table(tmp_path, [result])]
    for text in tables:
        assert said in text
        assert ("lists" in text) == bool(said)


def test_an_ensemble_of_domain_shifts_is_scored_by_its_mean(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    tables = [write_domain_shift(folder, seed) for seed, folder in enumerate(folders)]
    # Both runs get the same labels, because the runs of an ensemble have the same rows.
    labels = [rows["label"] for rows in tables[0]]
    second = [rows.set_column(2, "label", own) for rows, own in zip(tables[1], labels, strict=True)]
    pq.write_table(pa.concat_tables(second), folders[1] / "predictions.parquet")
    for side, name in enumerate(("in-domain", "out-of-domain")):
        path = ["sides", name, "figures", "before", "accuracy", "value"]
        probabilities = np.mean([np.stack(one[side]["probabilities"].to_numpy()) for one in tables], axis=0)
        expected = (probabilities.argmax(axis=1) == labels[side].to_numpy()).mean()
        assert examples_of(folders, path).value == pytest.approx(expected)
        alone = np.stack(tables[0][side]["probabilities"].to_numpy()).argmax(axis=1)
        assert expected != (alone == labels[side].to_numpy()).mean()
        path[4] = "expected_calibration_error"
        error = expected_calibration_error(probabilities, labels[side].to_numpy())
        assert examples_of(folders, path).value == pytest.approx(error)

"""`alignattn domain-shift`, from options to files, on small generated data and a small real model."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, WORDS
from graphs import graph_arrays, write_graph
from needs import SHARED, skip_without
from sklearn.metrics import accuracy_score, roc_auc_score

import alignattn
from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands.domain_shift import (
    COMMAND,
    PUBLISHED_TRAINING,
    halves,
    parse_pair,
    read_domain_shift,
    render_domain_shift,
)
from alignattn.evaluation.calibration import (
    apply_temperature,
    expected_calibration_error,
    fit_temperature,
    log_probabilities,
)

TRAIN_ROWS = 48
SNLI_ROWS, UNLABELLED = 31, 2
MNLI_ROWS = 24
SIDES = ("in-domain", "out-of-domain")
FILES = {"config.yaml", "results.json", "predictions.parquet", "run", "report.html", "out-of-domain.json"}

Options = dict[str, Any]


def write_rows(path: Path, num_rows: int, columns: tuple[str, str], num_classes: int, seed: int) -> None:
    """Write sentence pairs whose label is the number of shared words, at most that of the last class."""
    rng = np.random.default_rng(seed)
    texts = [[" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(num_rows)] for _ in columns]
    labels = [
        min(len(set(first.split()) & set(second.split())), num_classes - 1)
        for first, second in zip(*texts, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({**dict(zip(columns, texts, strict=True)), "label": labels}).to_parquet(path)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    nli, questions = ("premise", "hypothesis"), ("question1", "question2")
    write_rows(folder / "snli" / "train.parquet", TRAIN_ROWS, nli, 3, seed=0)
    validation = folder / "snli" / "validation.parquet"
    write_rows(validation, SNLI_ROWS + UNLABELLED, nli, 3, seed=1)
    table = pd.read_parquet(validation)
    table.loc[[3, 9], "label"] = -1
    table.to_parquet(validation)
    write_rows(folder / "glue" / "mnli" / "validation_matched.parquet", MNLI_ROWS, nli, 3, seed=2)
    write_rows(folder / "glue" / "qqp" / "train.parquet", TRAIN_ROWS, questions, 2, seed=3)
    write_rows(folder / "glue" / "qqp" / "validation.parquet", 20, questions, 2, seed=4)
    write_rows(folder / "twitter_ppdb" / "test.parquet", 20, ("sentence1", "sentence2"), 2, seed=5)
    return folder


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path, data_dir: Path) -> Options:
    """The words of a small call, by option."""
    return {
        "pair": "snli-mnli",
        "model": str(tiny_checkpoint),
        # This patch changes the function: evaluation with plain attention would give other figures.
        "attention": "aa-ct+entmax15",
        "data_dir": str(data_dir),
        "num_train_epochs": "3",
        "per_device_train_batch_size": "16",
        "learning_rate": "5e-3",
        "max_length": "24",
        "save_strategy": "no",
        "disable_tqdm": "true",
        "use_cpu": "true",
    }


def words_of(options: Options) -> list[str]:
    given = {name: value for name, value in options.items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name}", *str(value).split())]


def run(settings: Options, output_dir: Path, **changes: Any) -> int:
    return main(["domain-shift", *words_of(settings | {"output_dir": output_dir} | changes)])


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def modification_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def finished(settings: Options, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shift") / "out"
    assert run(settings, folder) == 0
    return folder


def rows_of(folder: Path, side: str, half: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, labels and predictions."""
    table = pd.read_parquet(folder / "predictions.parquet")
    chosen = table[(table["side"] == side) & (table["split"] == f"{side}-{half}")]
    return np.stack(chosen["probabilities"]), chosen["label"].to_numpy(), chosen["prediction"].to_numpy()


class TestHalves:
    @pytest.mark.parametrize("stratify", [False, True])
    @pytest.mark.parametrize("num_rows", [2, 3, 10, 101])
    def test_halves_are_disjoint_and_complete(self, num_rows: int, stratify: bool) -> None:
        labels = np.random.default_rng(0).integers(0, 3, num_rows)
        development, held_out = halves(labels, stratify=stratify)
        assert sorted([*development, *held_out]) == list(range(num_rows))
        assert len(held_out) - len(development) == num_rows % 2

    @pytest.mark.parametrize("stratify", [False, True])
    def test_drawn_by_the_seed(self, stratify: bool) -> None:
        labels = np.zeros(50, dtype=int)
        first, again, other = (halves(labels, seed, stratify)[0].tolist() for seed in (1, 1, 2))
        assert first == again != other
        assert first not in (list(range(25)), list(range(0, 50, 2)), list(range(1, 50, 2)))

    def test_each_class_is_halved_if_stratified(self) -> None:
        labels = np.repeat([0, 1, 2], [101, 30, 7])
        for seed in range(20):
            counts = [np.bincount(labels[half]) for half in halves(labels, seed, stratify=True)]
            assert np.abs(counts[0] - counts[1]).max() <= 1
        unbalanced = [np.bincount(labels[halves(labels, seed)[0]])[1] for seed in range(20)]
        assert set(unbalanced) - {15}


@pytest.mark.parametrize(
    ("pair", "names"),
    [
        ("snli-mnli", ("snli", "mnli")),
        ("qqp-twitter_ppdb", ("qqp", "twitterppdb")),
        ("qqp-twitter-ppdb", ("qqp", "twitterppdb")),
        ("mrpc-twitterppdb", ("mrpc", "twitterppdb")),
    ],
)
def test_pairs(pair: str, names: tuple[str, str]) -> None:
    assert tuple(task.name for task in parse_pair(pair)) == names


def test_the_folder_of_a_result(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == FILES
    for side in SIDES:
        assert f"({side}), " in (finished / "report.html").read_text()
    result = read(finished)
    assert (result["pair"], result["attention"], result["seed"]) == ("snli-mnli", "aa-ct+entmax15", 42)
    near, far = (result["sides"][side] for side in SIDES)
    assert (near["task"], near["split"], far["task"], far["split"]) == (
        "snli", "validation", "mnli", "validation_matched",
    )  # fmt: skip
    assert (near["train_rows"], near["development_rows"], near["held_out_rows"]) == (TRAIN_ROWS, 15, 16)
    assert (far["train_rows"], far["development_rows"], far["held_out_rows"]) == (0, 12, 12)
    assert near["dropped_rows"] == {"validation": UNLABELLED}
    assert {"alignattn", "torch", "transformers", "python"} <= set(result["versions"])


def test_figures_are_those_of_the_saved_predictions(finished: Path) -> None:
    result = read(finished)
    probabilities, labels, _ = rows_of(finished, "in-domain", "development")
    assert result["temperature"] == pytest.approx(fit_temperature(log_probabilities(probabilities), labels))
    for side in SIDES:
        figures = result["sides"][side]["figures"]
        probabilities, labels, predictions = rows_of(finished, side, "held-out")
        assert len(labels) == result["sides"][side]["held_out_rows"]
        scaled = apply_temperature(probabilities, result["temperature"])
        for state, rows in (("before", probabilities), ("after", scaled)):
            accuracy, error = (figures[state][name] for name in ("accuracy", "expected_calibration_error"))
            assert accuracy["value"] == pytest.approx(accuracy_score(labels, predictions))
            assert error["value"] == pytest.approx(expected_calibration_error(rows, labels))
            assert accuracy["interval"]["low"] < accuracy["value"] < accuracy["interval"]["high"]


def test_shift_auroc_is_that_of_the_confidence(finished: Path) -> None:
    told = read(finished)["shift_auroc"]
    confidence = [rows_of(finished, side, "held-out")[0].max(axis=1) for side in SIDES]
    is_near = np.repeat([True, False], [len(side) for side in confidence])
    assert told["before"]["value"] == pytest.approx(roc_auc_score(is_near, np.concatenate(confidence)))
    assert all(one["interval"]["low"] < one["value"] < one["interval"]["high"] for one in told.values())


def check_trained_model_is_judged(folder: Path) -> None:
    """Assert that the reloaded model predicts the same as the run did before it saved the model."""
    trained = pd.read_parquet(folder / "run" / "predictions.parquet")
    table = pd.read_parquet(folder / "predictions.parquet")
    reloaded = table[table["side"] == "in-domain"].sort_values("row")
    assert reloaded["row"].tolist() == trained["row"].tolist()
    assert reloaded["label"].tolist() == trained["label"].tolist()
    np.testing.assert_allclose(np.stack(reloaded["probabilities"]), np.stack(trained["probabilities"]), atol=1e-5)


def test_the_trained_model_is_what_is_judged(finished: Path) -> None:
    check_trained_model_is_judged(finished)


def test_calibrate_reads_the_predictions(finished: Path, tmp_path: Path) -> None:
    assert main(["calibrate", str(finished / "predictions.parquet"), "--output_dir", str(tmp_path)]) == 0
    (file,) = json.loads((tmp_path / "calibration.json").read_text())["files"]
    assert set(file["splits"]) == {f"{side}-{half}" for side in SIDES for half in ("development", "held-out")}
    for side in SIDES:
        expected = read(finished)["sides"][side]["figures"]["before"]
        assert file["splits"][f"{side}-held-out"]["before"] == expected


def test_a_finished_result_is_printed_and_not_computed_again(
    settings: Options, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = modification_times(finished)
    assert run(settings, finished) == 0
    output = capsys.readouterr().out
    assert before == modification_times(finished)
    assert "finished already" in output
    (cells,) = [line.split() for line in output.splitlines() if re.match("out-of-domain +mnli +12 +1.000 ", line)]
    accuracy = read(finished)["sides"]["out-of-domain"]["figures"]["before"]["accuracy"]["value"]
    assert cells[2:5] == ["12", "1.000", f"{100 * accuracy:.2f}"]
    assert f"trained on {TRAIN_ROWS} rows, split validation halved with seed 42 into 15 development and 16" in output
    assert f"{UNLABELLED} unlabelled rows left out" in output


def test_a_result_on_other_rows_of_the_second_task_is_refused(
    settings: Options, finished: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = data_dir / "glue" / "mnli" / "validation_matched.parquet"
    before = rows.read_bytes()
    try:
        pd.read_parquet(rows)[:-2].to_parquet(rows)
        assert run(settings, finished) == USER_ERROR_EXIT_CODE
    finally:
        rows.write_bytes(before)
    assert "the rows of mnli changed" in capsys.readouterr().err
    assert run(settings, finished) == 0


def test_a_temperature_at_the_end_of_the_search_is_said(finished: Path) -> None:
    result = read_domain_shift(finished)
    assert result is not None
    said = "these rows determine no temperature"
    assert said not in render_domain_shift(replace(result, temperature=1.3))
    assert said in render_domain_shift(replace(result, temperature=0.01))


def test_a_second_call_prints_the_same_table(
    settings: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def table() -> list[str]:
        assert run(settings, tmp_path / "out", pair="qqp-twitter_ppdb") == 0
        lines = capsys.readouterr().out.splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("side"))
        return [line for line in lines[start:] if not line.startswith("written to")]

    first = table()
    assert first == table()
    assert read(tmp_path / "out")["sides"]["out-of-domain"]["split"] == "test"


def test_a_trained_run_is_only_evaluated(settings: Options, finished: Path, tmp_path: Path) -> None:
    """As after a kill during the evaluation, and where `finetune` trained the run."""
    folder = tmp_path / "out"
    shutil.copytree(finished / "run", folder / "run")
    before = modification_times(folder / "run")
    assert run(settings, folder) == 0
    assert before == modification_times(folder / "run")
    assert read(folder) == read(finished)
    (folder / "results.json").unlink()
    assert run(settings, folder) == 0
    assert before == modification_times(folder / "run")
    assert read(folder) == read(finished)


def test_seeds_limits_and_stratified_halves(
    settings: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"seeds": "1 2", "stratify": "true", "max_train_samples": "16", "max_eval_samples": "20"}
    changes["max_length"] = "12"
    assert run(settings, tmp_path, **changes) == 0
    output = capsys.readouterr().out
    summary, results = read(tmp_path), [read(tmp_path / f"seed-{seed}") for seed in (1, 2)]
    assert summary["seeds"] == [1, 2] == [result["seed"] for result in results]
    assert [result["sides"]["in-domain"]["train_rows"] for result in results] == [16, 16]
    for side in SIDES:
        assert summary["sides"][side]["held_out_rows"] == 10
        for state in ("before", "after"):
            for name, spread in summary["sides"][side]["figures"][state].items():
                values = [result["sides"][side]["figures"][state][name]["value"] for result in results]
                assert spread["mean"] == pytest.approx(statistics.fmean(values))
                assert spread["standard_deviation"] == pytest.approx(statistics.stdev(values))
        labels = [rows_of(tmp_path / "seed-1", side, half)[1] for half in ("development", "held-out")]
        counts = [np.bincount(half, minlength=3) for half in labels]
        assert np.abs(counts[0] - counts[1]).max() <= 1
    error = summary["sides"]["in-domain"]["figures"]["before"]["expected_calibration_error"]
    assert f"{100 * error['mean']:.2f} ± {100 * error['standard_deviation']:.2f}" in output
    for state in ("before", "after"):
        spread, values = summary["shift_auroc"][state], [one["shift_auroc"][state]["value"] for one in results]
        assert spread["mean"] == pytest.approx(statistics.fmean(values))
        words = f"{state} temperature scaling: {100 * spread['mean']:.2f} ± {100 * statistics.stdev(values):.2f} %"
        assert words in output
    for side, task in zip(SIDES, ("snli validation", "mnli validation_matched"), strict=True):
        cut = results[0]["sides"][side]["truncated_rows"]
        assert cut["rows"] == round(20 * cut["share"]) > 0
        assert (f"{task}: {100 * cut['share']:.1f} % of the rows reach --max_length 12" in output) == (
            side == "out-of-domain"
        )
    # The seeds differ in the training, not in what is held out.
    rows = [pd.read_parquet(tmp_path / f"seed-{seed}" / "predictions.parquet") for seed in (1, 2)]
    assert rows[0][["split", "row"]].equals(rows[1][["split", "row"]])


def test_the_summary_has_the_seeds_of_earlier_calls(settings: Options, tmp_path: Path) -> None:
    for seed in ("2", "1"):
        assert run(settings, tmp_path, seeds=seed, num_train_epochs="1", max_eval_samples="8") == 0
    assert read(tmp_path)["seeds"] == [1, 2]


def test_a_pair_of_graphs_predicts_each_side_from_its_own_graph(tmp_path: Path) -> None:
    first, second = (write_graph(tmp_path / f"{name}.npz", **graph_arrays(seed)) for seed, name in enumerate("ab"))
    words = f"--pair {first}-{second} --model gat --model_config hidden_dim=4 num_attention_heads=2 --use_cpu true"
    assert main(["domain-shift", *words.split(), "--max_steps", "20", "--output_dir", str(tmp_path / "out")]) == 0
    predictor = alignattn.load_run(tmp_path / "out" / "run")
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    for side, graph in zip(SIDES, (first, second), strict=True):
        chosen = table[table["side"] == side]
        told = predictor.predict([{"graph": str(graph), "node": node} for node in chosen["node"]])
        largest = [one["probability"] for one in told]
        np.testing.assert_allclose(np.stack(chosen["probabilities"]).max(axis=1), largest, atol=1e-6)


def write_splits(folder: Path, columns: tuple[str, str], splits: tuple[str, ...]) -> None:
    for seed, split in enumerate(splits):
        write_rows(folder / f"{split}.parquet", TRAIN_ROWS, columns, 2, seed=seed)


@pytest.mark.parametrize("pair", ["mrpc-twitterppdb", "qqp-mrpc", "amazonshort-amazonlong"])
def test_pairs_that_the_papers_lack(pair: str, settings: Options, tmp_path: Path) -> None:
    sentences, questions = ("sentence1", "sentence2"), ("question1", "question2")
    write_splits(tmp_path / "glue" / "mrpc", sentences, ("train", "validation", "test"))
    write_splits(tmp_path / "glue" / "qqp", questions, ("train", "validation"))
    write_splits(tmp_path / "twitter_ppdb", sentences, ("test",))
    lengths = [1 + row % 30 for row in range(3 * TRAIN_ROWS)]
    # The shortest third has stars that the longest third lacks.
    stars = [n % 2 if n <= 10 else 2 if n < 20 else 3 + n % 2 for n in lengths]
    rows = pd.DataFrame({"text": [" ".join(["cat"] * length) for length in lengths], "label": stars})
    (tmp_path / "amazon_electronics").mkdir()
    for split in ("train", "validation", "test"):
        rows.to_parquet(tmp_path / "amazon_electronics" / f"{split}.parquet")
    folder = tmp_path / "out"
    assert run(settings, folder, pair=pair, data_dir=tmp_path, num_train_epochs=1) == 0
    sides = read(folder)["sides"]
    assert "-".join(sides[side]["task"] for side in SIDES) == pair
    assert set(read(folder)["shift_auroc"]) == {"before", "after"}
    if pair.startswith("amazon"):
        assert [sides[side]["development_rows"] + sides[side]["held_out_rows"] for side in SIDES] == [TRAIN_ROWS] * 2
        predicted = pd.read_parquet(folder / "predictions.parquet").groupby("side")["label"].unique()
        assert [set(predicted[side]) for side in SIDES] == [{0, 1}, {3, 4}]


class TestPublishedTraining:
    def test_table(self) -> None:
        published = SHARED / "paper_tables.yaml"
        skip_without(published)
        table = yaml.safe_load(published.read_text())["aa_table2"]["training"]
        names = {"batch_size": "per_device_train_batch_size", "epochs": "num_train_epochs"}
        expected = {
            model: {names.get(name, name): value for name, value in row.items()} for model, row in table.items()
        }
        assert expected == PUBLISHED_TRAINING

    @pytest.mark.parametrize("model", ["roberta-base", "FacebookAI/roberta-base", "models/roberta-base/"])
    def test_applies_to_options_that_are_not_given(self, model: str, tmp_path: Path) -> None:
        config = tmp_path / "config.yaml"
        config.write_text(f"model: {model}\nweight_decay: 0.02\nlearning_rate: 3e-5\n")
        words = ["--pair", "snli-mnli", "--config", str(config), "--output_dir", "x", "--learning_rate", "4e-5"]
        options = COMMAND.parse(words)
        training = options.training
        assert (training.learning_rate, training.weight_decay) == (4e-5, 0.02)
        assert (training.per_device_train_batch_size, training.num_train_epochs) == (32, 3)
        assert options.data.max_length == 256


class TestMistakes:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"pair": "snli"},
                "--pair 'snli' must be two tasks joined by a hyphen, such as snli-mnli: choose from agnews",
            ),
            (
                {"pair": "snli-qqp"},
                "(snli has entailment, neutral, contradiction and qqp has not_duplicate, duplicate)",
            ),
            ({"evaluation_splits": "test"}, "--evaluation_splits is an option of finetune"),
            ({"pair": "stsb-stsb"}, "stsb or stsb lacks"),
            ({"pair": "snli-snli"}, "--pair snli-snli"),
            ({"pair": "mnli-snli"}, "task 'mnli' has no 'train' split"),
            ({"max_eval_samples": "1"}, "split 'validation' of snli has one labelled row"),
        ],
    )
    def test_one_line_and_nothing_written(
        self, changes: Options, message: str, settings: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "out"
        assert run(settings, folder, **changes) == USER_ERROR_EXIT_CODE
        assert message in the_error(capsys)
        assert not folder.exists()

    def test_a_missing_split_of_the_other_task_is_said_before_the_training(
        self, settings: Options, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(data_dir / "snli", tmp_path / "data" / "snli")
        (tmp_path / "data" / "glue" / "mnli").mkdir(parents=True)
        assert run(settings, tmp_path / "out", data_dir=tmp_path / "data") == USER_ERROR_EXIT_CODE
        assert "task 'mnli' has no 'validation_matched' split" in the_error(capsys)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"learning_rate": "1e-3"}, "(different: learning_rate)"),
            ({"stratify": "true"}, "(different: stratify)"),
            ({"pair": "qqp-twitterppdb"}, "(different: pair)"),
            ({"seeds": "1 2"}, "holds a single run"),
        ],
    )
    def test_a_folder_of_another_run(
        self, changes: Options, message: str, settings: Options, finished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = modification_times(finished)
        assert run(settings, finished, **changes) == USER_ERROR_EXIT_CODE
        assert message in the_error(capsys)
        assert before == modification_times(finished)

    def test_a_run_of_other_options_is_not_evaluated(
        self, settings: Options, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        shutil.copytree(finished / "run", tmp_path / "run")
        assert run(settings, tmp_path, learning_rate="1e-3") == USER_ERROR_EXIT_CODE
        assert "run already holds another run (different: learning_rate)" in the_error(capsys)


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("alignattn: ")]
    assert not any("Traceback" in line for line in lines)
    return line


def test_the_script_is_the_command() -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "domain_shift.py"),
            "--pair",
            "snli-qqp",
            "--model",
            "m",
            "--output_dir",
            "o",
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == USER_ERROR_EXIT_CODE
    assert done.stderr.strip().splitlines()[-1].startswith("alignattn: --pair")

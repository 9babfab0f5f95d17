"""A calibrated run: what is kept, the decisions of `predict` and of a program, and what is refused."""

import csv
import json
import logging
import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import WORDS
from scipy.stats import binomtest
from task_rows import make_rows, write_rows

import alignattn
from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands import predict as predict_command
from alignattn.evaluation.calibration import apply_temperature
from alignattn.tasks.definitions import TASKS

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ("maybe", "no", "yes")
TRAINED, EVALUATED, NEW = 240, 240, 120
COVERAGE, MAX_ERROR = 0.8, 0.45
FAST = ["--max_length", "16", "--save_strategy", "no", "--disable_tqdm", "true", "--use_cpu", "true"]


def write(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("said", "meant"), *rows])
    return path


def rows_of(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="") as file:
        return [(row["said"], row["meant"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three classes; the first word of a text determines the most frequent one."""
    folder, draw = tmp_path_factory.mktemp("calibrated"), random.Random(1)
    texts = list(dict.fromkeys(" ".join(draw.choices(WORDS, k=5)) for _ in range(1000)))
    rows = [
        (text, LABELS[WORDS.index(text.split()[0]) % 3] if draw.random() < 0.8 else draw.choice(LABELS))
        for text in texts[: TRAINED + EVALUATED + NEW]
    ]
    train = write(folder / "train.csv", rows[:TRAINED])
    validation = write(folder / "validation.csv", rows[TRAINED : TRAINED + EVALUATED])
    write(folder / "new.csv", rows[TRAINED + EVALUATED :])
    words = f"--train_file {train} --validation_file {validation} --output_dir {folder / 'plain'} --text_columns said"
    words += f" --label_column meant --model {tiny_checkpoint} --learning_rate 5e-3 --num_train_epochs 10"
    words += " --eval_strategy no --attention aa-ct"
    assert main(["finetune", *words.split(), *FAST]) == 0
    shutil.copytree(folder / "plain", folder / "run")
    assert calibrate("--run", folder / "run", "--resamples", 20) == 0
    return folder


def calibrate(*words: object) -> int:
    return main(["calibrate", *map(str, words)])


def predict(*words: object) -> int:
    return main(["predict", *map(str, words)])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of the error."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn: ")]
    return line


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def held_out(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    table = pq.read_table(folder / "run" / "calibration" / "rows.parquet")
    kept = table.filter(table["held_out"])
    return np.stack(kept["probabilities"].to_numpy()), kept["label"].to_numpy()


def test_the_temperature_and_both_halves_are_kept(folder):
    kept = folder / "run" / "calibration"
    temperature = json.loads((kept / "calibration.json").read_text())["files"][0]["temperature"]
    table = pq.read_table(kept / "rows.parquet")
    assert float(table.schema.metadata[b"temperature"]) == temperature["value"]
    assert temperature["fitted_on"]["rows"] == EVALUATED // 2 == table["held_out"].to_pylist().count(True)
    saved = pq.read_table(folder / "run" / "predictions.parquet")
    scaled = apply_temperature(np.stack(saved["probabilities"].to_numpy()), temperature["value"])
    found = np.stack(table["probabilities"].to_numpy())
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(scaled, axis=0), atol=1e-4)
    assert (kept / "report.html").read_text().count("<svg") == 3 + 2


def test_sets_and_answers_follow_from_the_held_out_rows(folder, tmp_path, capsys):
    words = ("--run", folder / "run", "--file", folder / "new.csv", "--coverage", COVERAGE, "--max_error", MAX_ERROR)
    assert predict(*words, "--output_file", tmp_path / "new.jsonl") == 0
    told = capsys.readouterr().err
    probabilities, labels = held_out(folder)
    scores = np.sort(1 - probabilities[np.arange(len(labels)), labels])
    quantile = scores[math.ceil((len(scores) + 1) * COVERAGE) - 1]
    rows = lines_of(tmp_path / "new.jsonl")
    answered = [row["probability"] for row in rows if row["decision"] != "abstain"]
    for row in rows:
        assert row["set"] == [entry["label"] for entry in row["probabilities"] if 1 - entry["probability"] <= quantile]
        assert row["decision"] in (row["prediction"], "abstain")
    # The fewest classes that a coverage can have: on a certain model some sets are empty, and a line says so.
    num_empty = sum(not row["set"] for row in rows)
    assert (f"{num_empty} empty set" in told) == (num_empty > 0)
    assert 0 < len(answered) < NEW
    assert min(answered) > max(row["probability"] for row in rows if row["decision"] == "abstain")
    # The line states the counts behind the bound; the exact binomial test confirms it.
    count, wrong = (int(told.split(before)[1].split()[0]) for before in ("calibration rows ", " are, "))
    assert binomtest(wrong, count, MAX_ERROR, alternative="less").pvalue <= 0.05
    is_covered = [meant in row["set"] for row, (_, meant) in zip(rows, rows_of(folder / "new.csv"), strict=True)]
    assert np.mean(is_covered) == pytest.approx(COVERAGE, abs=0.12)


@pytest.mark.parametrize("sets", ["lac", "aps"])
def test_a_program_and_a_file_in_parts_get_the_same_decisions(folder, tmp_path, monkeypatch, sets):
    decides = {"coverage": COVERAGE, "max_error": MAX_ERROR, "sets": sets}
    predictor = alignattn.load_run(folder / "run")
    texts = [text for text, _ in rows_of(folder / "new.csv")]
    expected = predictor.predict(texts, **decides)
    words = [word for name, value in decides.items() for word in (f"--{name}", value)]
    monkeypatch.setattr(predict_command, "PART_ROWS", 50)
    words = ["--run", folder / "run", "--file", folder / "new.csv", *words]
    assert predict(*words, "--output_file", tmp_path / "new.jsonl") == 0
    found = lines_of(tmp_path / "new.jsonl")
    for name in ("set", "decision"):
        assert [row[name] for row in found] == [row[name] for row in expected]
    assert "set" not in predictor.predict(texts[:1])[0]
    with pytest.raises(alignattn.AlignAttnError, match="lac, aps"):
        predictor.predict(texts, coverage=0.5, sets="raps")
    assert predict(*words, "--output_file", tmp_path / "new.csv") == 0
    with (tmp_path / "new.csv").open(newline="") as file:
        assert [json.loads(row["set"]) for row in csv.DictReader(file)] == [row["set"] for row in expected]


def test_nothing_is_answered_if_no_threshold_reaches_the_error_rate(folder, tmp_path, capsys):
    words = ("--run", folder / "run", "--file", folder / "new.csv", "--output_file", tmp_path / "new.jsonl")
    assert predict(*words, "--max_error", 0.001) == 0
    assert (
        "error rate: it takes at least 2995 answered rows, all of them right, and there are 120"
        in capsys.readouterr().err
    )
    assert {row["decision"] for row in lines_of(tmp_path / "new.jsonl")} == {"abstain"}


def test_rows_unlike_the_calibration_rows_cause_a_warning(folder, tmp_path, capsys, caplog):
    warning = "unlike those of the calibration rows"
    words = ("--run", folder / "run", "--output_file", tmp_path / "new.jsonl", "--file")
    assert predict(*words, folder / "new.csv") == 0
    assert warning not in capsys.readouterr().err
    other = write(
        tmp_path / "other.csv", [(f"{WORDS[0]} {text}", meant) for text, meant in rows_of(folder / "new.csv")]
    )
    shutil.move(tmp_path / "new.jsonl", tmp_path / "first.jsonl")
    assert predict(*words, other) == 0
    assert f"{other}: the predictions are distributed {warning}" in capsys.readouterr().err
    predictor, texts = alignattn.load_run(folder / "run"), [text for text, _ in rows_of(other)]
    with caplog.at_level(logging.WARNING, "alignattn"):
        predictor.predict(texts[:19])
        assert warning not in caplog.text
        predictor.predict(texts)
    assert warning in caplog.text


@pytest.mark.parametrize(
    ("run", "words", "part"),
    [
        ("run", "--coverage 0.999", "needs at least 999 held-out calibration rows"),
        ("run", "--coverage 1", "must be above 0 and below 1"),
        ("run", "--coverage 0", "must be above 0 and below 1"),
        ("run", "--max_error 1", "must be above 0 and below 1"),
        ("run", "--sets aps", "--sets needs --coverage"),
        ("run", "--coverage 0.5 --temperature 1.5", "is calibrated with temperature"),
        ("plain", "--coverage 0.5", "is not calibrated"),
        ("plain", "--max_error 0.5", "is not calibrated"),
    ],
)
def test_what_cannot_be_decided_is_one_line(folder, capsys, run, words, part):
    capsys.readouterr()
    assert predict("--run", folder / run, "--text", "the cat", *words.split()) == USER_ERROR_EXIT_CODE
    assert part in said(capsys)


def test_a_damaged_calibration_is_one_line(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    (run / "calibration" / "rows.parquet").write_bytes(b"PAR1")
    assert predict("--run", run, "--text", "the cat", "--coverage", 0.5) == USER_ERROR_EXIT_CODE
    assert "run `alignattn calibrate --run" in said(capsys)


def test_new_rows_calibrate_and_training_rows_are_refused(folder, tmp_path, capsys):
    plain, new, trained = folder / "plain", rows_of(folder / "new.csv"), rows_of(folder / "train.csv")[:3]
    words = ("--run", plain, "--resamples", 20, "--rows")
    assert calibrate(*words, folder / "train.csv") == USER_ERROR_EXIT_CODE
    assert "; and 237 more (240 bad of 240 rows)" in said(capsys)
    mixed = write(tmp_path / "mixed.csv", [*new, *trained, ("the cat", "")])
    assert calibrate(*words, mixed) == USER_ERROR_EXIT_CODE
    assert "row 124" in said(capsys)
    run = shutil.copytree(plain, tmp_path / "run")
    words = ("--run", run, "--resamples", 20, "--rows")
    assert calibrate(*words, mixed, "--skip_bad_rows") == 0
    # log 0.05 / log 0.98 = 148.3 right answers show an error rate of 0.02.
    assert "none: needs 149 held-out rows" in capsys.readouterr().out
    content = json.loads((run / "calibration" / "calibration.json").read_text())["files"][0]
    assert content["temperature"]["fitted_on"] == {"file": "mixed.csv", "split": "mixed", "rows": NEW // 2}
    assert [bad["row"] for bad in content["bad_rows"]] == [121, 122, 123, 124]
    assert "trained on" in content["bad_rows"][0]["problem"]
    assert calibrate(*words, folder / "new.csv") == USER_ERROR_EXIT_CODE
    assert "is calibrated already" in said(capsys)


def test_repeated_rows_count_once(folder, tmp_path, capsys):
    """Both halves held the same rows, and 190 rows certified what 19 different ones show."""
    run, new = shutil.copytree(folder / "plain", tmp_path / "run"), rows_of(folder / "new.csv")
    # A text with another label is the same input, too.
    repeated = write(tmp_path / "repeated.csv", [*new * 10, *((text, LABELS[0]) for text, _ in new[:5])])
    assert calibrate("--run", run, "--resamples", 20, "--rows", repeated) == 0
    assert f"{9 * NEW + 5} of the {10 * NEW + 5} rows of {repeated} repeat another's input" in capsys.readouterr().out
    content = json.loads((run / "calibration" / "calibration.json").read_text())["files"][0]
    assert content["repeated_rows"] == 9 * NEW + 5
    table = pq.read_table(run / "calibration" / "rows.parquet")
    assert table["held_out"].to_pylist().count(True) == NEW // 2
    # The number that randomises APS is a hash of the input: no two rows share one.
    assert len(set(table["uniform"].to_pylist())) == table.num_rows == NEW
    assert predict("--run", run, "--file", repeated, "--output_file", tmp_path / "new.jsonl", "--max_error", 0.5) == 0
    told = capsys.readouterr().err
    assert f"Of {NEW // 2} calibration rows" in told
    # Ten copies of a row are no ten rows for the shift test either.
    assert "unlike those of the calibration rows" not in told


def test_repeated_rows_of_a_runs_kept_predictions_count_once(folder, tiny_checkpoint, tmp_path, capsys):
    validation = write(tmp_path / "validation.csv", rows_of(folder / "validation.csv")[:40] * 3)
    words = f"--train_file {folder / 'train.csv'} --validation_file {validation} --output_dir {tmp_path / 'run'}"
    words += f" --text_columns said --label_column meant --model {tiny_checkpoint} --max_steps 1"
    assert main(["finetune", *words.split(), *FAST]) == 0
    kept = tmp_path / "run" / "predictions.parquet"
    assert calibrate(kept, "--fit_on", "validation", "--resamples", 20, "--output_dir", tmp_path / "out") == 0
    assert "80 of the 120 rows of" in capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "calibration.json").read_text())["files"][0]
    assert (content["temperature"]["fitted_on"]["rows"], content["splits"]["validation"]["rows"]) == (20, 20)


def test_repeated_inputs_count_once_however_pandas_stores_texts(folder, tmp_path, capsys):
    table = pd.read_parquet(folder / "plain" / "predictions.parquet").drop(columns="input")
    for kind in ("str", "category", "string"):
        texts = pd.Series([f"row {row}" for row in range(len(table))], dtype=kind)
        path = tmp_path / f"{kind}.parquet"
        pd.concat([table.assign(input=texts)] * 2, ignore_index=True).assign(
            input=lambda both, kind=kind: both["input"].astype(kind)
        ).to_parquet(path)
        assert calibrate(path, "--fit_on", "validation", "--resamples", 20, "--output_dir", tmp_path / kind) == 0
        told = f"{EVALUATED} of the {2 * EVALUATED} rows of {path} repeat another's input"
        assert told in capsys.readouterr().out


def test_rows_that_selected_the_checkpoint_are_named_also_in_a_file(folder, tiny_checkpoint, tmp_path, capsys):
    train, validation = folder / "train.csv", folder / "validation.csv"
    words = f"--train_file {train} --validation_file {validation} --output_dir {tmp_path / 'run'} --text_columns said"
    words += f" --label_column meant --model {tiny_checkpoint} --max_steps 2 --load_best_model_at_end --eval_steps 1"
    assert main(["finetune", *words.split(), *FAST[:2], *FAST[4:]]) == 0
    told = "its checkpoint was selected on rows of"
    capsys.readouterr()
    for rows, is_told in (([], True), (["--rows", validation], True), (["--rows", folder / "new.csv"], False)):
        run = shutil.copytree(tmp_path / "run", tmp_path / f"run-{len(list(tmp_path.iterdir()))}")
        assert calibrate("--run", run, "--resamples", 20, *rows) == 0
        assert (told in capsys.readouterr().err) == is_told


def test_new_rows_are_read_in_the_encoding_that_is_given(folder, tmp_path, capsys):
    rows = [(f"{text} café", label) for text, label in rows_of(folder / "new.csv")]
    path = write(tmp_path / "new.csv", rows)
    path.write_bytes(path.read_text(encoding="utf-8").encode("cp1252"))
    run = shutil.copytree(folder / "plain", tmp_path / "run")
    words = ["--run", run, "--rows", path, "--resamples", 20]
    assert calibrate(*words) == 2
    assert "save it as UTF-8, or give its --encoding, such as cp1252" in said(capsys)
    assert calibrate(*words, "--encoding", "cp1252") == 0


WITHOUT_A_THIRD = [1.0, None, 2.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("trained", "given", "expected"),
    [
        pytest.param([1, 2, 3] * 4, WITHOUT_A_THIRD, [0, 1, 0, 1, 1], id="floats with a gap, as pandas writes"),
        pytest.param([1, 2, 3] * 4, [1, 2, 2, 1], [0, 1, 1, 0], id="integers that are also numbers of classes"),
        pytest.param([True, False] * 6, [True, False, False, True], [1, 0, 0, 1], id="booleans"),
        pytest.param(["b", "a"] * 6, [" a", "b "], [0, 1], id="names with blanks around them"),
        pytest.param(["b", "a"] * 6, [0, 1, 1], [0, 1, 1], id="class numbers"),
    ],
)
def test_labels_of_new_rows_are_those_of_a_validation_file(tiny_checkpoint, tmp_path, capsys, trained, given, expected):
    """A label 1.0 was class number 1, which is called 2."""
    files = {"train": (trained, "dog"), "rows": (given, "cat")}
    for name, (labels, word) in files.items():
        texts = [f"{word} {'the ' * (place + 1)}" for place in range(len(labels))]
        pq.write_table(pa.table({"said": texts, "meant": labels}), tmp_path / f"{name}.parquet")
    words = f"--train_file {tmp_path}/train.parquet --text_columns said --label_column meant --max_steps 1"
    words += f" --model {tiny_checkpoint} --output_dir {tmp_path}/run"
    assert main(["finetune", *words.split(), *FAST]) == 0
    words = ("--run", tmp_path / "run", "--rows", tmp_path / "rows.parquet", "--resamples", 20, "--skip_bad_rows")
    assert calibrate(*words) == 0
    kept = pq.read_table(tmp_path / "run" / "calibration" / "rows.parquet")
    assert sorted(kept["label"].to_pylist()) == sorted(expected)
    said_of_numbers = "its label numbers get the names of the run: 0 = a, 1 = b"
    assert (said_of_numbers in capsys.readouterr().err) == (given == [0, 1, 1])


def test_other_numbers_than_those_of_the_training_file_are_refused(tiny_checkpoint, tmp_path, capsys):
    """Labels 0, 1 and 2 were read as numbers of the classes 1, 2 and 3."""
    for name, word, labels in (("train", "dog", [1, 2, 3] * 4), ("rows", "cat", [0, 1, 2])):
        texts = [f"{word} {'the ' * (place + 1)}" for place in range(len(labels))]
        pq.write_table(pa.table({"said": texts, "meant": labels}), tmp_path / f"{name}.parquet")
    words = f"--train_file {tmp_path}/train.parquet --text_columns said --label_column meant --max_steps 1"
    words += f" --model {tiny_checkpoint} --output_dir {tmp_path}/run"
    assert main(["finetune", *words.split(), *FAST]) == 0
    assert calibrate("--run", tmp_path / "run", "--rows", tmp_path / "rows.parquet") == USER_ERROR_EXIT_CODE
    assert "row 1: label 0 is not a class of the training file (1, 2, 3)" in said(capsys)


def test_a_deleted_training_file_is_refused_by_its_digest(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "plain", tmp_path / "run")
    config = (run / "config.yaml").read_text().replace(str(folder / "train.csv"), str(tmp_path / "gone.csv"))
    (run / "config.yaml").write_text(config)
    assert calibrate("--run", run, "--rows", folder / "train.csv") == USER_ERROR_EXIT_CODE
    assert "was trained on" in said(capsys)
    assert calibrate("--run", run, "--rows", folder / "new.csv", "--resamples", 20) == 0
    assert "not checked whether the rows were trained on" in capsys.readouterr().err


def test_files_that_changed_since_the_training_guarantee_nothing(folder, tmp_path, capsys):
    """A user draws training and validation rows anew, under the same names."""
    run = shutil.copytree(folder / "plain", tmp_path / "run")
    config = (run / "config.yaml").read_text().replace(str(folder), str(tmp_path))
    (run / "config.yaml").write_text(config)
    trained, evaluated = rows_of(folder / "train.csv"), rows_of(folder / "validation.csv")
    write(tmp_path / "train.csv", evaluated)
    changed = write(tmp_path / "validation.csv", trained)
    assert calibrate("--run", run) == USER_ERROR_EXIT_CODE
    assert "train.csv has changed since" in said(capsys)
    assert calibrate("--run", run, "--rows", shutil.copy(changed, tmp_path / "mine.csv")) == USER_ERROR_EXIT_CODE
    assert "mine.csv was trained on" in said(capsys)
    assert calibrate("--run", run, "--rows", folder / "new.csv", "--resamples", 20) == 0
    assert "not checked whether the rows were trained on" in capsys.readouterr().err
    assert main(["uncertainty", "--run", str(run), "--passes", "2", "--output_dir", str(tmp_path / "drawn")]) == 0
    assert "the run may have trained on rows that it now evaluates" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--run {0}/plain --rows {0}/unseen.csv", "'perhaps'"),
        ("--run {0}/plain --fit_on test", "there is no split 'test'"),
        ("--run {0}/plain --output_dir {0}/other", "leave it out"),
        ("--run {0}/plain {0}/plain/predictions.parquet", "does not go with PREDICTIONS"),
        ("", "nothing to calibrate"),
        ("--run {0}", "is not a run folder"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(folder, capsys, words, part):
    write(folder / "unseen.csv", [("the cat", "perhaps"), ("the dog", "yes")])
    capsys.readouterr()
    assert calibrate(*words.format(folder).split()) == USER_ERROR_EXIT_CODE
    assert part in said(capsys)


def test_a_class_without_calibration_rows_is_reported(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "plain", tmp_path / "run")
    rows = write(tmp_path / "rows.csv", [row for row in rows_of(folder / "new.csv") if row[1] != "no"])
    assert calibrate("--run", run, "--rows", rows, "--resamples", 20) == 0
    assert "no calibration row has the label no" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["stsb", "msra", "squad", "multi-label"])
def test_tasks_without_one_class_per_row_are_refused(task, tiny_checkpoint, tmp_path, capsys):
    if task == "multi-label":
        rows = tmp_path / "rows.csv"
        rows.write_text("said,rude,kind\n" + "the cat,1,1\na dog,0,1\n" * 4)
        words = ["--train_file", rows, "--text_columns", "said", "--label_column", "rude", "kind"]
    else:
        words = ["--task", task, "--train_file", write_rows(tmp_path / "rows.jsonl", make_rows(TASKS[task], 8))]
    words += ["--model", tiny_checkpoint, "--max_steps", 1, "--output_dir", tmp_path / "run", *FAST[2:], "--attention"]
    assert main(["finetune", *map(str, words), "soft"]) == 0
    assert calibrate("--run", tmp_path / "run") == USER_ERROR_EXIT_CODE
    assert "is for probabilities of classes" in said(capsys)
    texts = ["the cat", "a dog"] if task in ("stsb", "squad") else ["the cat"]
    assert predict("--run", tmp_path / "run", "--coverage", 0.9, "--text", *texts) == USER_ERROR_EXIT_CODE
    assert "coverage is for probabilities of classes" in said(capsys)

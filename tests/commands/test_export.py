"""`alignattn export`: ONNX computes what the run's model computes, and what does not export is refused by name."""

import json
import random
import shutil

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from conftest import WORDS
from task_rows import make_rows, write_rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.cli import main
from alignattn.tasks.definitions import TASKS


@pytest.fixture
def train(tiny_checkpoint, tmp_path, monkeypatch):
    """A function that trains a run with an attention and options, on rows of one text."""

    def train(attention, *words):
        drawn = random.Random(0)
        rows = [(", ".join(drawn.choices(WORDS, k=1 + row % 30)), ("no", "yes")[row % 2]) for row in range(45)]
        pd.DataFrame(rows, columns=["text", "label"]).to_csv("rows.csv", index=False)
        given = f"finetune --model {tiny_checkpoint} --attention {attention} --train_file rows.csv --text_columns text"
        given += " --learning_rate 0.02 --output_dir run --max_length 64 --disable_tqdm true --use_cpu true"
        assert main([*given.split(), *words]) == 0

    monkeypatch.chdir(tmp_path)
    return train


def test_the_files_are_the_run_for_any_batch_and_length(train, tmp_path, capsys):
    train("aa-ct+local", "--num_train_epochs", "4", "--validation_file", "rows.csv")
    assert main(["export", "--run", "run", "--output_dir", "out", "--int8"]) == 0
    about = json.loads((tmp_path / "out/export.json").read_text())
    results = json.loads((tmp_path / "run/results.json").read_text())
    plain, exact, quantised = about["compared"]
    assert plain["metrics"] == results["metrics"]["validation"] == exact["metrics"]
    assert plain["difference"] == 0 < exact["difference"] < 1e-4
    assert 1e-4 < quantised["difference"] < 1
    assert f"outputs by at most {exact['difference']:.2g}" in capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained("out")
    assert (about["labels"], about["max_length"]) == (["no", "yes"], 64)
    session = onnxruntime.InferenceSession("out/model.onnx", providers=["CPUExecutionProvider"])
    model = alignattn.from_pretrained("run", AutoModelForSequenceClassification)
    for texts in (["a"], ["a cat " * 40], ["a cat", "some bird and the dog"] * 4 + ["the cat"]):
        batch = tokenizer(texts, truncation=True, max_length=about["max_length"], padding=True, return_tensors="np")
        (found,) = session.run(None, {name: batch[name] for name in about["inputs"]})
        with torch.inference_mode():
            expected = model(**{name: torch.as_tensor(values) for name, values in batch.items()}).logits
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_scores_that_are_not_of_the_plain_model_are_named(train, capsys):
    train("soft", "--max_steps", "1", "--validation_file", "rows.csv", "--mc_dropout_passes", "2")
    assert main(["export", "--run", "run", "--output_dir", "out"]) == 0
    assert "run: its results use MC dropout; here its plain model predicts" in capsys.readouterr().err


def test_windows_and_adapters_score_as_in_the_run(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write_rows(tmp_path / "rows.jsonl", make_rows(TASKS["squad"], 21))
    words = f"--task squad --train_file {file} --validation_file {file} --model {tiny_checkpoint} --attention aa-ct"
    words += " --max_length 32 --max_steps 4 --learning_rate 1e-2 --save_strategy no --use_cpu true --output_dir run"
    words += " --doc_stride 8 --lora_r 2"
    assert main(["finetune", *words.split()]) == 0
    assert main(["export", "--run", "run", "--output_dir", "out"]) == 0
    about = json.loads((tmp_path / "out/export.json").read_text())
    assert about["outputs"] == ["start_logits", "end_logits"]
    expected = json.loads((tmp_path / "run/results.json").read_text())["metrics"]["validation"]
    assert [one["metrics"] for one in about["compared"]] == [expected, expected]


@pytest.mark.parametrize(
    ("attention", "words", "reason"),
    [
        ("soft+sparsemax", [], "normalizer 'sparsemax' does not export"),
        ("additive", [], "score 'additive' does not export"),
        ("qvi", ["--int8"], "value 'qvi' does not export to int8"),
    ],
)
def test_a_slot_that_does_not_export_is_refused_by_name(attention, words, reason, train, capsys):
    train(attention, "--max_steps", "1")
    capsys.readouterr()
    assert main(["export", "--run", "run", "--output_dir", "out", *words]) == 2
    assert reason in capsys.readouterr().err


def test_the_folder_of_another_run_is_refused_and_stays_as_it_was(train, tmp_path, capsys):
    train("soft", "--max_steps", "1")
    shutil.copytree("run", "other")
    before = {path: path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file()}
    assert main(["export", "--run", "run", "--output_dir", "other"]) == 2
    assert "other is another run" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file()} == before


def test_a_model_from_scratch_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"a": ["x y", "z"] * 4, "b": ["x", "y z"] * 4, "label": ["p", "q"] * 4}).to_csv(
        "rows.csv", index=False
    )
    words = "finetune --model da --train_file rows.csv --text_columns a b --max_steps 1 --output_dir run --use_cpu true"
    assert main(words.split()) == 0
    assert main(["export", "--run", "run", "--output_dir", "out"]) == 2
    assert "only pretrained encoders of texts export" in capsys.readouterr().err

"""R-Drop, averaged weights and Monte Carlo dropout as options of a run."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import WORDS
from safetensors.torch import load_file

from alignattn.cli import main

ROWS = 24


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(ROWS)]
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    labels = ["yes" if "the" in text.split() else "no" for text in texts]
    scores = [len(text) / 10 for text in texts]
    pd.DataFrame({"text": texts, "label": labels, "score": scores}).to_csv(path)
    return path


def finetune(folder, checkpoint, rows_file, *words, code=0):
    options = "--per_device_train_batch_size 8 --learning_rate 1e-3 --num_train_epochs 2 --use_cpu true"
    options += " --max_length 32 --disable_tqdm true --text_columns text --attention aa-moments"
    files = ["--train_file", str(rows_file), "--validation_file", str(rows_file)]
    given = ["--model", str(checkpoint), "--output_dir", str(folder)]
    assert main(["finetune", *given, *files, *options.split(), *words]) == code
    return folder


def results(folder):
    return json.loads((folder / "results.json").read_text())


def probabilities(folder):
    return np.stack(pq.read_table(folder / "predictions.parquet")["probabilities"].to_numpy())


@pytest.mark.parametrize(
    "words",
    [
        "--r_drop_weight 1",
        "--r_drop_weight 1 --label_column score --weight_averaging swa",
    ],
)
def test_a_run_trains_and_its_card_shows_the_option(words, tmp_path, tiny_checkpoint, rows_file):
    run = finetune(tmp_path / "run", tiny_checkpoint, rows_file, *words.split())
    assert results(run)["training"]["task_loss"] > 0
    name, value = words.split()[:2]
    assert re.search(rf"\b{name.removeprefix('--')}\b.*\b{value}\b", (run / "README.md").read_text())


def test_the_saved_model_and_the_predictions_use_the_averaged_weights(tmp_path, tiny_checkpoint, rows_file):
    words = ("--weight_averaging", "ema", "--ema_decay", "0.5", "--keep_checkpoints", "true")
    run = finetune(tmp_path / "run", tiny_checkpoint, rows_file, *words)
    saved = load_file(run / "model.safetensors")
    average = load_file(run / "checkpoint-6" / "weight_average.safetensors")
    last = load_file(run / "checkpoint-6" / "model.safetensors")
    assert all(np.array_equal(saved[name.removeprefix("average/")], one) for name, one in average.items())
    assert any(not np.array_equal(saved[name], last[name]) for name in saved)
    again = tmp_path / "predicted.parquet"
    assert main(["predict", "--run", str(run), "--file", str(rows_file), "--output_file", str(again)]) == 0
    predicted = pq.read_table(again)["probability"].to_numpy()
    np.testing.assert_allclose(predicted, probabilities(run).max(axis=1), atol=1e-5)


def test_passes_without_dropout_equal_the_evaluation(tmp_path, tiny_checkpoint, rows_file, capsys):
    still = ("--model_config", "hidden_dropout_prob=0", "attention_probs_dropout_prob=0")
    plain = finetune(tmp_path / "plain", tiny_checkpoint, rows_file, *still)
    assert "has no dropout" not in capsys.readouterr().err
    dropped = finetune(tmp_path / "dropped", tiny_checkpoint, rows_file, *still, "--mc_dropout_passes", "3")
    assert "--mc_dropout_passes 3: the model has no dropout, so all passes are equal\n" in capsys.readouterr().err
    np.testing.assert_allclose(probabilities(dropped), probabilities(plain), rtol=1e-6)
    assert results(dropped)["metrics"] == results(plain)["metrics"]


def test_predictions_are_the_mean_of_passes_with_dropout(tmp_path, tiny_checkpoint, rows_file, capsys):
    config = ("--model_config", "hidden_dropout_prob=0.5")
    plain = load_file(finetune(tmp_path / "plain", tiny_checkpoint, rows_file, *config) / "model.safetensors")
    runs = {
        passes: finetune(tmp_path / passes, tiny_checkpoint, rows_file, *config, "--mc_dropout_passes", passes)
        for passes in ("1", "2")
    }
    assert "has no dropout" not in capsys.readouterr().err
    for run in runs.values():
        weights = load_file(run / "model.safetensors")
        assert all(np.array_equal(one, plain[name]) for name, one in weights.items())
    # The first passes share a mask, so the second pass of the second run is twice the mean minus the first.
    first, both = (probabilities(run) for run in runs.values())
    second = 2 * both - first
    assert np.all((second > 0) & (second < 1))
    np.testing.assert_allclose(second.sum(axis=1), 1)
    assert np.abs(second - first).max() > 1e-3


def test_label_smoothing_of_scores_is_refused_in_one_line(tmp_path, tiny_checkpoint, rows_file, capsys):
    words = "--label_smoothing_factor 0.1 --label_column score"
    finetune(tmp_path / "run", tiny_checkpoint, rows_file, *words.split(), code=2)
    assert "--label_smoothing_factor" in capsys.readouterr().err.strip().splitlines()[-1]

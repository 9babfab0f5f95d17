"""`--balance`: what it does to a run, and what it leaves alone."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import WORDS
from safetensors.torch import load_file

from alignattn.cli import main

EPOCHS, ROWS = 2, 40


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(ROWS)]
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    pd.DataFrame({"text": texts, "label": ["yes" if "the" in text.split() else "no" for text in texts]}).to_csv(path)
    return path


def finetune(folder, tiny_checkpoint, rows_file, *words, attention="aa-ot"):
    options = f"--per_device_train_batch_size 8 --learning_rate 1e-3 --num_train_epochs {EPOCHS} --use_cpu true"
    options += f" --max_length 32 --disable_tqdm true --save_total_limit 9 --attention {attention} --text_columns text"
    files = ["--train_file", str(rows_file), "--validation_file", str(rows_file)]
    given = ["--model", str(tiny_checkpoint), "--output_dir", str(folder)]
    assert main(["finetune", *given, *files, *options.split(), *words]) == 0
    return folder


@pytest.fixture(scope="module")
def run_of(tmp_path_factory, tiny_checkpoint, rows_file):
    """A finished run for each value of the option."""
    done = {}

    def run(time):
        if time not in done:
            words = [] if time is None else ["--balance", time]
            done[time] = finetune(tmp_path_factory.mktemp("run") / "run", tiny_checkpoint, rows_file, *words)
        return done[time]

    return run


def balances(folder):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "balance_after" in entry]


def test_weights_are_balanced_before_the_first_step(run_of):
    folder = run_of("start")
    (logged,) = balances(folder)
    assert logged["step"] == 0
    assert logged["balance_largest_change"] <= 1e-3 * logged["balance_spread"]
    assert logged["balance_after"] < logged["balance_before"]
    assert "balance" in (folder / "config.yaml").read_text()


def test_centring_changes_one_bias_per_layer(tmp_path, tiny_checkpoint, rows_file):
    still = ["--learning_rate", "0", "--alignment_weight", "0"]
    folders = [
        finetune(tmp_path / name, tiny_checkpoint, rows_file, *still, *words)
        for name, words in (("plain", []), ("centred", ["--balance", "start", "--balance_centre", "true"]))
    ]
    plain, centred = (load_file(folder / "model.safetensors") for folder in folders)
    differing = {name for name, values in plain.items() if not torch.equal(values, centred[name])}
    assert {name.partition("self.")[2] for name in differing} == {"key.bias"}


def test_the_task_loss_of_the_first_step_equals_that_of_the_plain_run(run_of):
    first = []
    for time in (None, "start"):
        history = json.loads((run_of(time) / "trainer_state.json").read_text())["log_history"]
        first.append(next(entry["task_loss"] for entry in history if "task_loss" in entry))
    assert first[0] == pytest.approx(first[1], rel=1e-4)


def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_weights(run_of, tmp_path, tiny_checkpoint, rows_file):
    whole = run_of("start")
    words = ["--balance", "start", "--resume_from_checkpoint", str(whole / "checkpoint-5")]
    resumed = finetune(tmp_path / "run", tiny_checkpoint, rows_file, *words)
    for name, values in load_file(whole / "model.safetensors").items():
        assert torch.equal(load_file(resumed / "model.safetensors")[name], values)
    assert len(balances(resumed)) == 1
    # A run that started again from the beginning would save this checkpoint too.
    assert not (resumed / "checkpoint-5").exists()


def test_half_precision_training_balances_the_weights_in_their_own_precision(
    tmp_path, tiny_checkpoint, rows_file, capsys
):
    folder = finetune(tmp_path / "run", tiny_checkpoint, rows_file, "--balance", "start", "--bf16", "true")
    (entry,) = balances(folder)
    assert entry["balance_largest_change"] < 1e-4 * entry["balance_spread"]
    assert "balanced after step 0 by 32 training rows" in capsys.readouterr().out


PAIRS = "word\tspoken\n" + "".join(f"{word}\t{' '.join(word.upper())}\n" for word in ("aa", "ab", "ba", "bb")) * 4
WRITTEN = """kind: text2text-generation
source_column: word
target_column: spoken
source_units: characters
sources: {files: {train: pairs.tsv, validation: pairs.tsv}}
"""


@pytest.mark.parametrize("words", ["", " --bf16 true"])
def test_a_generative_model_is_balanced(tmp_path, words):
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    (tmp_path / "own.yaml").write_text(WRITTEN)
    options = f"--model seq2seq-transformer --task {tmp_path / 'own.yaml'} --output_dir {tmp_path / 'run'}"
    options += f" --model_config hidden_dim=8 dropout=0 --num_train_epochs {EPOCHS} --per_device_train_batch_size 8"
    options += f" --use_cpu true --disable_tqdm true --balance start{words}"
    assert main(["finetune", *options.split()]) == 0
    (logged,) = balances(tmp_path / "run")
    assert logged["balance_largest_change"] <= 1e-3 * logged["balance_spread"]

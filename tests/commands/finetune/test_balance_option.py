"""`--balance`: what it does to a run, and what it leaves alone."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import WORDS
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.attention.basis import Moments, cloud
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


def mean_gaps(folder, rows_file):
    """The distance between the means of queries and keys over the spread, by layer, on the rows of the moments."""
    model = alignattn.patch(AutoModelForSequenceClassification.from_pretrained(folder), "soft")
    texts = list(pd.read_csv(rows_file)["text"])[: ROWS - ROWS // 5]
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**batch)
    gaps = []
    for layer in seen.layers:
        query, key = (Moments.of(cloud(points, layer.mask)) for points in (layer.query, layer.key))
        spread = query.covariance.diagonal(dim1=1, dim2=2).sum(dim=1).sqrt()
        gaps.append(float(((query.mean - key.mean).norm(dim=1) / spread).max()))
    return gaps


@pytest.mark.parametrize(("time", "steps"), [("start", [0]), ("epoch", [0, 5, 10]), ("end", [10])])
def test_weights_are_balanced_at_the_given_time(run_of, rows_file, time, steps):
    folder = run_of(time)
    logged = balances(folder)
    assert [entry["step"] for entry in logged] == steps
    assert all(entry["balance_largest_change"] <= 1e-3 * entry["balance_spread"] for entry in logged)
    assert "balance" in (folder / "config.yaml").read_text()
    if time != "start":
        assert max(mean_gaps(folder, rows_file)) < 1e-4 < max(mean_gaps(run_of(None), rows_file))


def test_balancing_at_the_end_leaves_the_training_unchanged(run_of):
    plain, balanced = (json.loads((run_of(time) / "results.json").read_text()) for time in (None, "end"))
    assert balanced["training"]["loss"] == plain["training"]["loss"]
    weights = [load_file(run_of(time) / "model.safetensors") for time in (None, "end")]
    differing = {name for name, values in weights[0].items() if not torch.equal(values, weights[1][name])}
    assert differing
    assert all(".query." in name or ".key." in name for name in differing)


def test_centring_changes_one_bias_per_layer(run_of, tmp_path, tiny_checkpoint, rows_file):
    centred = finetune(tmp_path / "run", tiny_checkpoint, rows_file, "--balance", "end", "--balance_centre", "true")
    plain, weights = (load_file(folder / "model.safetensors") for folder in (run_of(None), centred))
    differing = {name for name, values in plain.items() if not torch.equal(values, weights[name])}
    assert {name.partition("self.")[2] for name in differing} == {"key.bias"}
    assert max(mean_gaps(centred, rows_file)) < 1e-4


def test_the_task_loss_of_the_first_step_equals_that_of_the_plain_run(run_of):
    first = []
    for time in (None, "start"):
        history = json.loads((run_of(time) / "trainer_state.json").read_text())["log_history"]
        first.append(next(entry["task_loss"] for entry in history if "task_loss" in entry))
    assert first[0] == pytest.approx(first[1], rel=1e-4)


def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_weights(run_of, tmp_path, tiny_checkpoint, rows_file):
    whole = run_of("epoch")
    words = ["--balance", "epoch", "--resume_from_checkpoint", str(whole / "checkpoint-5")]
    resumed = finetune(tmp_path / "run", tiny_checkpoint, rows_file, *words)
    for name, values in load_file(whole / "model.safetensors").items():
        assert torch.equal(load_file(resumed / "model.safetensors")[name], values)
    # A run that started again from the beginning would save this checkpoint too.
    assert not (resumed / "checkpoint-5").exists()


@pytest.mark.parametrize("words", ["", "--max_steps 7"])
def test_a_checkpoint_before_the_balance_of_its_epoch_is_balanced_when_resumed(
    tmp_path, tiny_checkpoint, rows_file, words
):
    """With `--save_strategy steps`, the checkpoint of the last step of an epoch is written before the balance."""
    options = f"--balance epoch --save_strategy steps --save_steps 1 --keep_checkpoints true {words}".split()
    whole = finetune(tmp_path / "whole", tiny_checkpoint, rows_file, *options)
    last = 7 if words else 10
    for step in (5, last):
        resume = ["--resume_from_checkpoint", str(whole / f"checkpoint-{step}")]
        resumed = finetune(tmp_path / str(step), tiny_checkpoint, rows_file, *options, *resume)
        assert [entry["step"] for entry in balances(resumed)] == [0, 5, last]
        for name, values in load_file(whole / "model.safetensors").items():
            assert torch.equal(load_file(resumed / "model.safetensors")[name], values), (step, name)


def test_the_optimizer_state_of_balanced_weights_is_reset_after_an_epoch(run_of):
    folder = Path(run_of("epoch")) / "checkpoint-5"
    names = [name for name in load_file(folder / "model.safetensors") if "alignattn" not in name]
    state = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    balanced = [name for name in names if ".attention.self.query." in name or ".attention.self.key." in name]
    assert len(state) == len(names) - len(balanced)


def test_half_precision_training_balances_the_weights_in_their_own_precision(
    tmp_path, tiny_checkpoint, rows_file, capsys
):
    words = ["--balance", "epoch", "--bf16", "true"]
    folder = finetune(tmp_path / "run", tiny_checkpoint, rows_file, *words)
    for entry in balances(folder):
        assert entry["balance_largest_change"] < 1e-4 * entry["balance_spread"]
    assert "balanced after step 5 by 32 training rows" in capsys.readouterr().out


def test_the_control_begins_in_a_random_basis_drawn_by_the_seed(tmp_path, tiny_checkpoint, rows_file):
    # With so small a learning rate, only the random bases differ.
    words = ["--balance", "start", "--balance_basis", "random", "--learning_rate", "1e-9"]
    runs = [
        finetune(tmp_path / name, tiny_checkpoint, rows_file, *words, "--seed", seed)
        for name, seed in (("one", "1"), ("again", "1"), ("two", "2"))
    ]
    for folder in runs:
        (entry,) = balances(folder)
        assert entry["balance_largest_change"] <= 1e-3 * entry["balance_spread"]
    one, again, two = (load_file(folder / "model.safetensors") for folder in runs)
    assert all(torch.equal(one[name], values) for name, values in again.items())
    name = next(name for name in one if name.endswith("layer.0.attention.self.query.weight"))
    assert (one[name] - two[name]).abs().max() > 1e-3 * one[name].abs().max()


def test_a_run_with_a_learned_basis_computes_the_function_of_the_plain_run(tmp_path, tiny_checkpoint, rows_file):
    """The scope `basis` changes the basis of queries and keys, but not the function that the model computes."""
    words = ["--gradient_scope", "basis", "--alignment_weight", "1"]
    soft = finetune(tmp_path / "soft", tiny_checkpoint, rows_file, attention="soft")
    learned = finetune(tmp_path / "basis", tiny_checkpoint, rows_file, *words, attention="aa-ct")
    assert json.loads((learned / "results.json").read_text())["training"]["basis_condition"] > 1
    of_soft, of_learned = (load_file(folder / "model.safetensors") for folder in (soft, learned))
    moved = {name for name, values in of_soft.items() if not torch.equal(values, of_learned[name])}
    assert moved == {name for name in of_soft if "attention.self.query" in name or "attention.self.key" in name}
    batch = AutoTokenizer.from_pretrained(soft)(list(pd.read_csv(rows_file)["text"]), padding=True, return_tensors="pt")
    models = [AutoModelForSequenceClassification.from_pretrained(folder).eval() for folder in (soft, learned)]
    with torch.no_grad():
        expected, found = (model(**batch).logits for model in models)
    torch.testing.assert_close(found, expected)


PAIRS = "word\tspoken\n" + "".join(f"{word}\t{' '.join(word.upper())}\n" for word in ("aa", "ab", "ba", "bb")) * 4
WRITTEN = """kind: text2text-generation
source_column: word
target_column: spoken
source_units: characters
sources: {files: {train: pairs.tsv, validation: pairs.tsv}}
"""


@pytest.mark.parametrize(("words", "steps"), [("start", [0]), ("epoch --bf16 true", [0, 2, 4]), ("end", [4])])
def test_a_generative_model_is_balanced_at_the_given_time(tmp_path, words, steps):
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    (tmp_path / "own.yaml").write_text(WRITTEN)
    options = f"--model seq2seq-transformer --task {tmp_path / 'own.yaml'} --output_dir {tmp_path / 'run'}"
    options += f" --model_config hidden_dim=8 dropout=0 --num_train_epochs {EPOCHS} --per_device_train_batch_size 8"
    options += f" --use_cpu true --disable_tqdm true --balance {words}"
    assert main(["finetune", *options.split()]) == 0
    logged = balances(tmp_path / "run")
    assert [entry["step"] for entry in logged] == steps
    assert all(entry["balance_largest_change"] <= 1e-3 * entry["balance_spread"] for entry in logged)

"""A run on a graph, from file to predictions: folder, card, resuming and refusals."""

import json
import re
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from graphs import NODES, WIDTH, write_graph

import alignattn
from alignattn.cli import main
from alignattn.finetuning.training_arguments import check_steps
from alignattn.tasks.definitions import get_task
from alignattn.utils.errors import AlignAttnError

SMALL = "--disable_tqdm true --use_cpu true --model_config hidden_dim=4 num_attention_heads=2 dropout=0.1"
STOPPING = "--metric_for_best_model loss+accuracy --early_stopping_patience 3 --save_strategy best"


@pytest.fixture
def graph(tmp_path):
    return write_graph(tmp_path / "mine.npz")


@pytest.fixture
def finetune(graph, tmp_path):
    def run(words="", folder="run", model="gat"):
        place = ["--task", str(graph), "--output_dir", str(tmp_path / folder), "--model", model]
        return main(["finetune", *place, *SMALL.split(), *words.split()])

    return run


def test_a_run_its_card_and_its_predictions(graph, finetune, tmp_path, monkeypatch, capsys):
    sizes = "--num_train_epochs 20 --fan_out 3 3 --per_device_train_batch_size 4"
    assert finetune(f"--attention aa-ct {sizes} {STOPPING}") == 0
    run = tmp_path / "run"
    result = json.loads((run / "results.json").read_text())
    assert set(result["metrics"]) == {"validation", "test"}
    assert (result["train_rows"], result["labels"]) == (12, ["0", "1", "2"])
    assert result["training"]["align_loss"] > 0
    assert result["attention_config"]["alignment_options"] == {"points": 256}
    card = (run / "README.md").read_text()
    assert "| score S | `gat` |" in card
    assert "velickovic2018graph" in card
    monkeypatch.chdir(tmp_path)
    loaded = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], loaded)
    assert loaded["model"].alignattn.config.name == "aa-ct"

    assert main(["predict", "--run", str(run), "--file", str(graph), "--output_file", str(tmp_path / "out.csv")]) == 0
    told = pd.read_csv(tmp_path / "out.csv")
    assert told["node"].tolist() == list(range(NODES))
    kept = pd.read_parquet(run / "predictions.parquet")
    for line in kept.itertuples():
        assert told["prediction"][line.node] == line.prediction
    predicted = alignattn.load_run(run).predict([{"graph": str(graph), "node": 3}])
    assert str(told["prediction"][3]) == predicted[0]["prediction"]
    # A table names its graph from its own folder.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "nodes.csv").write_text("graph,node\nmine.npz,3\n")
    assert main(["predict", "--run", str(run), "--file", "../nodes.csv", "--output_file", "table.csv"]) == 0
    assert pd.read_csv("table.csv")["prediction"][0] == told["prediction"][3]
    assert main(["predict", "--run", str(run), "--file", "../mine.npz", "--output_file", "graph.csv"]) == 0
    pd.testing.assert_frame_equal(pd.read_csv("graph.csv"), told)

    narrow = write_graph(tmp_path / "narrow.npz", feat_shape=None, feat_row=None, features=torch.ones(NODES, 2).numpy())
    (tmp_path / "texts.jsonl").write_text('{"text": "the cat"}\n')
    texts = f"--validation_file {tmp_path / 'texts.jsonl'} --text_columns text"
    (tmp_path / "null.jsonl").write_text('{"graph": null, "node": 1}\n')
    refused = [
        (f"predict --run {run} --file {narrow} --output_file {tmp_path / 'no.csv'}", f"the model expects {WIDTH}"),
        (f"predict --run {run} --text {graph} 99", "node 99 is not in 0 to 29"),
        (f"serve --run {run}", "name files, which clients must not read"),
        (f"predict --run {run} --file {tmp_path / 'null.jsonl'}", "graph None is not the path of a file"),
        (f"inspect --model {run} {texts} --output_dir {tmp_path / 'no'}", "along the edges of a graph"),
    ]
    capsys.readouterr()
    for words, message in refused:
        assert main(words.split()) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


def test_rows_of_a_table_are_those_of_the_graph(graph, finetune, tmp_path):
    """A CSV file has the numbers of nodes and classes as text."""
    labels = np.load(graph)["labels"]
    for name, nodes in (("mine", range(NODES)), ("even", range(0, NODES, 2))):
        lines = ["graph,node,label", *(f"mine.npz,{node},{labels[node]}" for node in nodes)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    assert finetune("--attention soft --num_train_epochs 3") == 0
    calibrations, folder = [], tmp_path / "run" / "calibration"
    for rows in ("mine.npz", "mine.csv"):
        words = f"calibrate --run {folder.parent} --rows {tmp_path / rows} --skip_bad_rows --resamples 10"
        assert main(words.split()) == 0
        calibrations.append(json.loads((folder / "calibration.json").read_text())["files"][0]["splits"])
        shutil.rmtree(folder)
    assert calibrations[0] == calibrations[1]
    files = f"--train_file {tmp_path / 'even.csv'} --validation_file {tmp_path / 'mine.npz'}"
    assert finetune(f"--attention soft --num_train_epochs 3 {files}", folder="own") == 0
    own = json.loads((tmp_path / "own" / "results.json").read_text())
    is_labelled = labels >= 0
    assert own["train_rows"] == is_labelled[::2].sum()
    assert own["evaluation_rows"] == {"validation": is_labelled.sum()}


def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_weights(finetune, tmp_path):
    words = "--attention aa-ct --alignment_options points=6 --num_train_epochs 6 --save_total_limit 10"
    words += " --keep_checkpoints true"
    assert finetune(words, "whole") == 0
    assert finetune(f"{words} --resume_from_checkpoint {tmp_path / 'whole' / 'checkpoint-3'}", "resumed") == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]
    # A run that started again from the beginning would save this checkpoint too.
    assert not (tmp_path / "resumed" / "checkpoint-3").exists()


def test_a_run_killed_during_its_patience_ends_with_the_same_weights(finetune, tmp_path, capsys):
    words, run = f"--attention soft --num_train_epochs 12 --keep_checkpoints true {STOPPING}", tmp_path / "run"
    assert finetune(words) == 0
    whole = (run / "model.safetensors").read_bytes()
    for written_last in ("results.json", "model.safetensors"):
        (run / written_last).unlink()
    capsys.readouterr()
    assert finetune(words) == 0
    assert f"resuming from {run}/checkpoint-" in capsys.readouterr().out
    assert (run / "model.safetensors").read_bytes() == whole


def test_early_stopping_by_loss_and_accuracy_is_recorded(finetune, tmp_path):
    assert finetune(f"--attention soft --num_train_epochs 60 --learning_rate 0.1 {STOPPING}", model="gatv2") == 0
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert result["best"]["metric"] == "loss+accuracy"
    assert result["stopped_at"] is not None
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["l2_penalty"] == 5e-4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--normalizer hard", "--normalizer hard does not support the edges of a graph"),
        ("--attention soft --balance start", "score 'gat' is not a dot product of queries and keys"),
        ("--fan_out 0", "--fan_out 0 samples no neighbours"),
        ("--fan_out 3", "--fan_out needs a number for each of the 2 layers"),
        (f"{STOPPING} --greater_is_better true --attention soft", "names several"),
        ("--layers 2", "this model has layers 0 to 1"),
    ],
)
def test_mistakes_are_one_line(words, message, finetune, capsys):
    assert finetune(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_an_encoder_and_a_graph_do_not_go_together(graph, tmp_path, capsys):
    place = ["--output_dir", str(tmp_path / "run")]
    assert main(["finetune", "--model", "bert-base-uncased", "--task", str(graph), *place]) == 2
    assert "is node-classification" in capsys.readouterr().err
    assert main(["finetune", "--model", "gat", "--task", "sst2", *place]) == 2
    assert "--model gat is for node-classification" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processes", "batch", "fan_out", "is_refused"),
    [(2, 12, None, True), (2, 4, None, False), (2, 12, (3, 3), False), (1, 12, None, False)],
)
def test_the_same_step_in_two_processes_is_refused(processes, batch, fan_out, is_refused):
    args = SimpleNamespace(
        world_size=processes, per_device_train_batch_size=batch, train_batch_size=batch, dataloader_drop_last=False
    )
    with pytest.raises(AlignAttnError, match="compute the same") if is_refused else nullcontext():
        check_steps(get_task("cora"), args, 12, fan_out)

"""A damaged file in a run's folder is one line of whatever reads it back, and never a traceback."""

import json
import shutil
from pathlib import Path

import pytest
from made import CHECKPOINT, COMMANDS

from alignattn.cli import main
from alignattn.commands.robustness.result_reader import RobustnessReader
from alignattn.robustness.records import read_run
from alignattn.utils.errors import AlignAttnError

DEPTH = 50_000

CONFIGS = {
    "a word": b"foo\n",
    "nothing": b"",
    "a list": b"- model\n- task\n",
    "a number as name": b"1: 2\nmodel: tiny\n",
    "NUL": b"model: ti\0ny\n",
    "Latin-1": "model: modèle\n".encode("latin-1"),
    "deep YAML": b"[" * DEPTH,
    "a cut line": b'model: "ti',
}
RESULTS = {
    "a word": b"foo",
    "nothing": b"",
    "a list": b"[]",
    "NUL": b'{"task": "\0"}',
    "Latin-1": '{"task": "modèle"}'.encode("latin-1"),
    "deep JSON": b"[" * DEPTH,
    "deep JSON, closed": b'{"task": ' + b"[" * DEPTH + b"]" * DEPTH + b"}",
    "cut": b'{"task": "user", "mod',
}


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")


def finetune(*words, name="aa-ct"):
    return main([*COMMANDS[name].split(), *words])


def assert_one_line(code, file, capsys):
    assert code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert sum(line.startswith("alignattn: ") for line in said) == 1
    assert file in said[-1]


CALLS = {
    "finetune": finetune,
    "robustness": lambda: main(["robustness", "--run", "finished/aa-ct", "--output_dir", "out"]),
    "figure tsne": lambda: main(["figure", "tsne", "--run", "finished/aa-ct", "--output_file", "out.png"]),
}


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize("damage", CONFIGS)
def test_options_that_are_no_options(damage, command, here, capsys):
    Path("finished/aa-ct/config.yaml").write_bytes(CONFIGS[damage])
    assert_one_line(CALLS[command](), "finished/aa-ct/config.yaml", capsys)


@pytest.mark.parametrize("damage", [*RESULTS, "null metrics"])
def test_results_that_are_no_results(damage, here, capsys):
    path = Path("finished/aa-ct/results.json")
    null_metrics = json.dumps(json.loads(path.read_text()) | {"metrics": None}).encode()
    path.write_bytes(RESULTS.get(damage, null_metrics))
    assert_one_line(finetune(), "results.json", capsys)


@pytest.mark.parametrize("damage", [*RESULTS, "no tables", "no summaries", "a summary of nothing"])
def test_a_table_of_attacks_that_is_none(damage, here):
    path = Path("attacks/robustness.json")
    others = {
        "no tables": {"tables": []},
        "no summaries": {"tables": [{"summaries": []}]},
        "a summary of nothing": {"tables": [{"summaries": [{}]}]},
    }
    path.write_bytes(RESULTS[damage] if damage in RESULTS else json.dumps(others[damage]).encode())
    with pytest.raises(AlignAttnError, match=r"robustness\.json is damaged or of another version") as error:
        RobustnessReader().is_finished(path.parent)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", RESULTS)
@pytest.mark.parametrize("file", ["textbugger.json", "textbugger.jsonl"])
def test_attacks_that_are_none(file, damage, here):
    folder = Path("attacks/aa-ct")
    (folder / file).write_bytes(RESULTS[damage].rstrip() + b"\n")
    with pytest.raises(AlignAttnError, match=file) as error:
        read_run(folder / "textbugger.jsonl")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", RESULTS)
def test_rows_that_are_none(damage, here, capsys):
    Path("train.jsonl").write_bytes(RESULTS[damage] if damage != "a list" else b'["text"]')
    code = finetune("--train_file", "train.jsonl", "--output_dir", "out")
    assert_one_line(code, "train.jsonl", capsys)


@pytest.mark.parametrize("damage", ["nothing", "a list", "cut"])
@pytest.mark.parametrize("words", [(), ("--resume_from_checkpoint", CHECKPOINT)])
def test_a_checkpoint_with_a_config_that_is_none(words, damage, here, capsys):
    Path(CHECKPOINT, "config.json").write_bytes(RESULTS[damage])
    assert_one_line(finetune(*words, name="unfinished"), f"{CHECKPOINT}/config.json is damaged", capsys)


OTHERS = {
    "of another run": (("--learning_rate", "0.5"), "checkpoint-3 is of another run (it differs in learning_rate)"),
    "of another model": (
        ("--attention", "aa-ct"),
        "is a checkpoint of another model (its config differs in",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_by_its_config(kind, here, capsys):
    others, words = OTHERS[kind]
    if kind == "of another model":
        Path("unfinished/config.yaml").unlink()
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    assert_one_line(finetune(*resume, *others, name="unfinished"), words, capsys)


def test_a_checkpoint_of_the_same_run_is_gone_on_from_elsewhere(here):
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    assert finetune(*resume, name="unfinished") == 0
    logged = json.loads(Path("out/trainer_state.json").read_text())["log_history"]
    assert min(entry["step"] for entry in logged) <= 3  # of the run that is gone on with


def test_a_training_without_a_full_batch_is_refused(here, capsys):
    words = ("--dataloader_drop_last", "--per_device_train_batch_size", "1000", "--output_dir", "out")
    assert_one_line(finetune(*words), "none of 1000: leave it out, or give a smaller", capsys)


def test_rows_longer_than_the_model_takes_are_refused_whatever_its_tokenizer_says(here, capsys):
    path = Path("tiny/tokenizer_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 10**30}))
    assert_one_line(finetune("--max_length", "4000", "--output_dir", "out"), "the model takes at most", capsys)


STATES = {
    "of another step": {"global_step": 2},
    "a text": {"global_step": "3"},
    "no number": {"save_steps": 0},
    "of another checkpoint": {"best_model_checkpoint": "out", "best_global_step": 2},
    "of hundreds of digits": {"total_flos": 10**400},
    "a log of texts": {"log_history": [{"loss": "low", "step": 1}]},
    "no meter": {"stateful_callbacks": {}},
    "of more": {"another": 1},
}


@pytest.mark.parametrize("damage", STATES)
def test_a_checkpoint_whose_state_is_another(damage, here, capsys):
    file = Path(CHECKPOINT, "trainer_state.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | STATES[damage]))
    assert_one_line(finetune(name="unfinished"), str(file), capsys)


def test_a_checkpoint_that_is_named_and_torn(here, capsys):
    file = Path(CHECKPOINT, "optimizer.pt")
    file.write_bytes(file.read_bytes()[:-100])
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    assert_one_line(finetune(*resume, name="unfinished"), f"{file} is damaged", capsys)

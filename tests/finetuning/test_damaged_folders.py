"""A damaged file in the folder of a run gives a one-line message, never a traceback, in each command that reads it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import LOCAL_ATTACK
from made import CHECKPOINT, COMMANDS

from alignattn.cli import main


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


@pytest.mark.parametrize("command", ["finetune", "robustness", "figure"])
def test_a_config_that_is_not_yaml_is_named(command, here, capsys):
    Path("finished/aa-ct/config.yaml").write_bytes(b"model: ti\0ny\n")
    words = {
        "finetune": COMMANDS["aa-ct"],
        "robustness": f"robustness --run finished/aa-ct {LOCAL_ATTACK} --output_dir out",
        "figure": "figure tsne --run finished/aa-ct --output_file out.png",
    }
    assert_one_line(main(words[command].split()), "finished/aa-ct/config.yaml", capsys)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"task": "user", "mod'])
@pytest.mark.parametrize("words", [(), ("--resume_from_checkpoint", CHECKPOINT)])
def test_a_checkpoint_with_a_damaged_config_is_named(words, damage, here, capsys):
    Path(CHECKPOINT, "config.json").write_bytes(damage)
    assert_one_line(finetune(*words, name="unfinished"), f"{CHECKPOINT}/config.json", capsys)


OTHERS = {
    "of another run": (("--learning_rate", "0.5"), "checkpoint-3 is of another run (different: learning_rate)"),
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


def test_another_folder_resumes_from_a_checkpoint_of_the_same_run(here, capsys):
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    assert finetune(*resume, name="unfinished") == 0
    steps = re.findall(r"^step (\d+) of 4: ", capsys.readouterr().out, re.MULTILINE)
    assert set(steps) == {"4"}
    logged = json.loads(Path("out/trainer_state.json").read_text())["log_history"]
    assert min(entry["step"] for entry in logged) <= 3  # the log of the interrupted run is kept


def test_a_checkpoint_of_changed_rows_is_refused_in_another_folder(here, capsys):
    with Path("train.csv").open("a") as file:
        file.write("a cat,a dog,no\n")
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    words = "(--train_file: the content of train.csv differs): give another --resume_from_checkpoint"
    assert_one_line(finetune(*resume, name="unfinished"), words, capsys)


@pytest.mark.parametrize("words", [(), ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")])
@pytest.mark.parametrize("changed", ["num_processes", "train_batch_size"])
def test_a_checkpoint_of_another_number_of_processes_or_gpus_is_refused(words, changed, here, capsys):
    """A step would have another number of rows, and `--num_train_epochs` another number of steps."""
    file = Path(CHECKPOINT, "trainer_state.json")
    state = json.loads(file.read_text())
    part = state["stateful_callbacks"]["LossMeter"]["attributes"] if changed == "num_processes" else state
    part[changed] *= 2
    file.write_text(json.dumps(state))
    before = "2 process(es) with batches of 8" if changed == "num_processes" else "1 process(es) with batches of 16"
    assert_one_line(finetune(*words, name="unfinished"), f"{CHECKPOINT} was written by {before} rows", capsys)


def test_a_training_without_a_full_batch_is_refused(here, capsys):
    words = ("--dataloader_drop_last", "--per_device_train_batch_size", "1000", "--output_dir", "out")
    assert_one_line(finetune(*words), "fill no batch of 1000: leave it out, or give a smaller", capsys)


def test_a_max_length_above_the_models_is_refused_whatever_its_tokenizer_says(here, capsys):
    path = Path("tiny/tokenizer_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 10**30}))
    assert_one_line(finetune("--max_length", "4000", "--output_dir", "out"), "the model's maximum of", capsys)


STATES = {
    "of another step": {"global_step": 2},
    "a text": {"global_step": "3"},
    "of another checkpoint": {"best_model_checkpoint": "out", "best_global_step": 2},
}


@pytest.mark.parametrize("damage", STATES)
def test_a_checkpoint_with_a_changed_state_is_named(damage, here, capsys):
    file = Path(CHECKPOINT, "trainer_state.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | STATES[damage]))
    assert_one_line(finetune(name="unfinished"), str(file), capsys)


def test_a_checkpoint_without_the_state_of_the_optimizer_is_refused(here, capsys):
    """The schedule would begin again at its peak."""
    Path(CHECKPOINT, "optimizer.pt").unlink()
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    assert_one_line(finetune(*resume, name="unfinished"), f"{CHECKPOINT} has no state of the optimizer", capsys)


def test_a_damaged_file_of_a_given_checkpoint_is_named(here, capsys):
    file = Path(CHECKPOINT, "optimizer.pt")
    file.write_bytes(file.read_bytes()[:-100])
    resume = ("--resume_from_checkpoint", CHECKPOINT, "--output_dir", "out")
    assert_one_line(finetune(*resume, name="unfinished"), f"{file} is damaged", capsys)

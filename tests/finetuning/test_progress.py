"""The progress of a run: a bar with the current losses in a terminal, short lines in a log, and no bar of a library."""

import os
import pty
import re
import sys

import pytest
from transformers import TrainerControl, TrainerState

from alignattn.cli import main
from alignattn.finetuning.callbacks import Progress

LOGGED = {"loss": 0.61249, "task_loss": 0.6, "align_loss": 1.25, "grad_norm": 3.0, "learning_rate": 1e-3, "epoch": 0.5}
EVALUATED = {"eval_accuracy": 0.8125, "eval_loss": 0.5, "eval_runtime": 1.0, "eval_samples_per_second": 3.0}


@pytest.fixture
def state():
    return TrainerState(global_step=0, max_steps=10, is_world_process_zero=True)


def show(progress, state):
    control = TrainerControl()
    progress.on_train_begin(None, state, control)
    state.global_step = 4
    progress.on_step_end(None, state, control)
    progress.on_log(None, state, control, logs=LOGGED)
    progress.on_prediction_step(None, state, control)
    progress.on_log(None, state, control, logs=EVALUATED)
    progress.on_evaluate(None, state, control)
    progress.on_log(None, state, control, logs={"train_runtime": 3.0, "train_loss": 0.5})
    progress.on_train_end(None, state, control)


def test_a_log_has_short_lines(state, capsys):
    show(Progress(disable_tqdm=True), state)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "step 4 of 10: loss 0.6125, task_loss 0.6, align_loss 1.25 (00:00, 00:00 left)",
        "step 4 of 10: evaluation accuracy 81.25, loss 0.5 (00:00, 00:00 left)",
    ]
    assert captured.err == ""


def test_the_remaining_time_is_that_of_the_steps_of_this_process(state, capsys, monkeypatch):
    seconds = iter([0.0, 100.0, 220.0])
    monkeypatch.setattr("alignattn.finetuning.callbacks.time.perf_counter", lambda: next(seconds))
    progress = Progress(disable_tqdm=True)
    state.global_step = 2
    progress.on_train_begin(None, state, TrainerControl())
    state.global_step = 4
    progress.on_log(None, state, TrainerControl(), logs=LOGGED)
    assert capsys.readouterr().out.endswith("align_loss 1.25 (02:00, 06:00 left)\n")


def test_a_terminal_has_one_bar_with_the_losses(state, capsys):
    show(Progress(disable_tqdm=False), state)
    captured = capsys.readouterr()
    assert captured.out == ""
    last = re.split(r"[\r\n]+", captured.err.strip())[-1]
    assert "4/10" in last
    assert "loss 0.6125, task_loss 0.6, align_loss 1.25" in last
    assert "step 4 of 10: evaluation accuracy 81.25, loss 0.5" in captured.err


def test_other_processes_show_nothing(state, capsys):
    state.is_world_process_zero = False
    for in_a_bar in (True, False):
        show(Progress(disable_tqdm=not in_a_bar), state)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("disable", "expected"), [(None, True), (True, False), (False, True)])
def test_a_terminal_is_recognised(disable, expected, monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert Progress(disable).in_a_bar == expected
    os.close(ours)


def test_no_library_draws_a_bar(tiny_checkpoint, tmp_path, capfd):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "the cat sees,yes\na dog runs,no\n" * 4)
    words = ["--model", str(tiny_checkpoint), "--train_file", str(rows), "--validation_file", str(rows)]
    words += ["--text_columns", "text", "--eval_strategy", "epoch", "--num_train_epochs", "1", "--use_cpu", "true"]
    assert main(["finetune", *words, "--attention", "aa-ct", "--output_dir", str(tmp_path / "run")]) == 0
    captured = capfd.readouterr()
    assert "it/s" not in captured.err + captured.out
    assert "%|" not in captured.err
    assert re.search(r"^step 1 of 1: loss [\d.]+, task_loss [\d.]+, align_loss [\d.]+ \(", captured.out, re.MULTILINE)
    assert re.search(r"^step 1 of 1: evaluation .*accuracy [\d.]+", captured.out, re.MULTILINE)

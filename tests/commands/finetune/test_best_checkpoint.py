"""Early stopping, the best checkpoint, and what a finished run keeps of its checkpoints."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from test_finetune import one_line, options, read, rows_file, run, weights  # noqa: F401
from transformers import TrainerControl, TrainerState

from alignattn.commands.finetune import COMMAND
from alignattn.finetuning.options import TrainingOptions
from alignattn.finetuning.run_checkpoints import prepare_selection
from alignattn.tasks.definitions import get_task

STEPS_OF_AN_EPOCH = 3
PATIENT = {"early_stopping_patience": "2", "num_train_epochs": "6", "learning_rate": "0", "save_total_limit": "10"}
"""Nothing is ever better than the first evaluation."""


def checkpoints(folder):
    return sorted(path.name for path in Path(folder).glob("checkpoint-*"))


def evaluations(folder):
    logged = read(folder, "trainer_state.json")["log_history"]
    return {entry["step"]: entry for entry in logged if "eval_accuracy" in entry}


@pytest.mark.parametrize("gone", [[9], [], [6, 9]], ids=["waiting", "stopped", "at the first"])
def test_a_killed_run_stops_at_the_same_step(options, gone, capsys):  # noqa: F811
    assert run(options, **PATIENT, attention="aa-gan") == 0
    folder = Path(options["--output_dir"])
    assert "training was stopped early, after step 9" in capsys.readouterr().out
    whole, expected = read(folder), weights(folder)
    assert (whole["best"]["step"], whole["stopped_at"]) == (STEPS_OF_AN_EPOCH, 3 * STEPS_OF_AN_EPOCH)
    assert "stopped early, after step 9" in (folder / "README.md").read_text()
    for name in ("results.json", "model.safetensors", "trainer_state.json"):
        (folder / name).unlink()
    for step in gone:
        shutil.rmtree(folder / f"checkpoint-{step}")
    assert run(options, **PATIENT, attention="aa-gan") == 0
    newest = folder / f"checkpoint-{9 - 3 * len(gone)}"
    assert f"resuming from {newest}\n" in capsys.readouterr().out
    again = read(folder)
    assert {name: again[name] for name in ("metrics", "best", "stopped_at")} == {
        name: whole[name] for name in ("metrics", "best", "stopped_at")
    }
    assert list(evaluations(folder)) == [3, 6, 9]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())


@pytest.mark.parametrize("slots", [{"attention": "aa-gan"}, {"attention": "qvi"}, {"lora_r": "2"}], ids=str)
def test_the_best_checkpoint_is_evaluated_and_saved(options, slots, capsys):  # noqa: F811
    # The first evaluation has the largest loss, which no later step reaches again.
    chosen = {"load_best_model_at_end": "true", "metric_for_best_model": "loss", "greater_is_better": "true"}
    assert run(options, **chosen, **slots, keep_checkpoints="true", save_total_limit="10") == 0
    folder = Path(options["--output_dir"])
    result, seen = read(folder), evaluations(folder)
    best = max(seen, key=lambda step: seen[step]["eval_loss"])
    assert best != max(seen)
    assert result["best"] == {"step": best, "metric": "loss", "value": seen[best]["eval_loss"]}
    assert result["stopped_at"] is None
    assert result["metrics"]["validation"]["accuracy"] == seen[best]["eval_accuracy"]
    if "lora_r" not in slots:
        expected = load_file(folder / f"checkpoint-{best}" / "model.safetensors")
        assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())
    told = f"step {best}, the best by loss ({seen[best]['eval_loss']:.4g})"
    assert told in capsys.readouterr().out
    assert told in (folder / "README.md").read_text()


def test_a_moved_run_loads_its_best_checkpoint(options, tmp_path):  # noqa: F811
    # The loss at the first evaluation is never reached again.
    chosen = {"load_best_model_at_end": "true", "metric_for_best_model": "loss", "greater_is_better": "true"}
    assert run(options, **chosen, keep_checkpoints="true", save_total_limit="10") == 0
    folder = Path(options["--output_dir"])
    best, expected = read(folder)["best"], weights(folder)
    assert checkpoints(folder) == [f"checkpoint-{best['step']}", "checkpoint-6"]
    for name in ("results.json", "model.safetensors", "trainer_state.json"):
        (folder / name).unlink()
    moved = folder.rename(tmp_path / "moved")
    # Another run may be where this one was.
    (folder / f"checkpoint-{best['step']}").mkdir(parents=True)
    elsewhere = {"resume_from_checkpoint": str(moved / "checkpoint-6"), "output_dir": str(tmp_path / "elsewhere")}
    for changes in (elsewhere, {"output_dir": str(moved)}):
        assert run(options, **chosen, **changes, keep_checkpoints="true", save_total_limit="10") == 0
        assert read(changes["output_dir"])["best"] == best
        found = weights(changes["output_dir"])
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_finished_run_removes_its_checkpoints_and_keeps_other_files(options):  # noqa: F811
    folder = Path(options["--output_dir"])
    assert run(options, keep_checkpoints="true", attention="soft") == 0
    assert checkpoints(folder) == ["checkpoint-6"]
    assert (folder / "checkpoint-6" / "optimizer.pt").is_file()
    # As after a kill between the last checkpoint and the result, with a note by a user.
    (folder / "results.json").unlink()
    (folder / "checkpoint-6" / "note.txt").write_text("of a user")
    assert run(options, attention="soft") == 0
    assert [path.name for path in (folder / "checkpoint-6").iterdir()] == ["note.txt"]
    shutil.rmtree(folder)
    assert run(options, attention="soft") == 0
    assert checkpoints(folder) == []


def test_the_next_call_removes_checkpoints_left_by_a_kill(options, tmp_path):  # noqa: F811
    folder, result = Path(options["--output_dir"]), tmp_path / "result"
    assert run(options, keep_checkpoints="true", attention="soft") == 0
    left = shutil.copytree(folder / "checkpoint-6", tmp_path / "left")
    assert run(options, attention="soft") == 0
    assert checkpoints(folder) == ["checkpoint-6"]  # the run was asked to keep it
    (folder / "results.json").rename(result)
    assert run(options, attention="soft") == 0
    shutil.copytree(left, folder / "checkpoint-6")
    assert run(options, keep_checkpoints="true", attention="soft") == 0
    assert checkpoints(folder) == ["checkpoint-6"]
    assert run(options, attention="soft") == 0
    assert checkpoints(folder) == []


KEPT = {
    "--save_total_limit 3": True,
    "--save_total_limit 1": False,
    "--save_only_model": True,
    "--save_strategy best --eval_strategy epoch": True,
    "--save_strategy best --load_best_model_at_end": False,
    "--save_total_limit 3 --keep_checkpoints false": False,
}


@pytest.mark.parametrize("words", KEPT)
def test_options_that_ask_for_checkpoints_keep_them(words):
    given = ["--model", "any", "--task", "mrpc", "--output_dir", "runs/x", *words.split()]
    assert COMMAND.parse(given).training.keep_checkpoints == KEPT[words]


IMPLIED = {
    "--early_stopping_patience 2": (True, "epoch", "epoch", None),
    "--early_stopping_patience 2 --load_best_model_at_end false --save_strategy no": (False, "epoch", "no", None),
    "--load_best_model_at_end --save_strategy steps --save_steps 7": (True, "steps", "steps", 7),
    "--load_best_model_at_end --eval_strategy steps --eval_steps 5": (True, "steps", "steps", 5),
    "--load_best_model_at_end --save_strategy best": (True, "epoch", "best", None),
}


@pytest.mark.parametrize("words", IMPLIED)
def test_choosing_a_checkpoint_implies_evaluating_and_saving(words):
    training = COMMAND.parse(["--model", "any", "--task", "mrpc", "--output_dir", "runs/x", *words.split()]).training
    loads, evaluation, saving, steps = IMPLIED[words]
    assert (training.load_best_model_at_end, training.eval_strategy, training.save_strategy) == (
        loads,
        evaluation,
        saving,
    )
    if steps is not None:
        assert training.eval_steps == training.save_steps == steps


@pytest.mark.parametrize(
    ("task", "splits", "given", "expected"),
    [
        ("mrpc", ["validation"], None, ("accuracy", True)),
        ("mrpc", ["validation"], "loss", ("loss", False)),
        ("stsb", ["validation"], "spearmanr", ("spearmanr", True)),
        ("squad", ["validation"], None, ("f1", True)),
        ("mnli", ["matched", "mismatched"], None, ("matched_accuracy", True)),
    ],
)
def test_the_main_metric_of_a_task_chooses_the_checkpoint(task, splits, given, expected):
    task = get_task(task)
    chosen = SimpleNamespace(metric_for_best_model=given or "loss", greater_is_better=False)
    asked = TrainingOptions(output_dir="any", load_best_model_at_end=True, metric_for_best_model=given)
    prepare_selection(chosen, asked, task, splits)
    assert (chosen.metric_for_best_model, chosen.greater_is_better) == expected


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_by_evaluations_follows_the_direction_of_its_metric(options, schedule, capsys):  # noqa: F811
    task = get_task("mrpc")
    for metric, given, mode in (("accuracy", {}, "max"), ("loss", {}, "min"), ("accuracy", {"mode": "min"}, "min")):
        args = SimpleNamespace(metric_for_best_model=metric, greater_is_better=None, lr_scheduler_kwargs=given)
        asked = TrainingOptions(output_dir="any", lr_scheduler_type=schedule, metric_for_best_model=metric)
        prepare_selection(args, asked, task, ["validation"])
        assert args.lr_scheduler_kwargs == {"mode": mode}
    words = {"lr_scheduler_type": schedule, "eval_strategy": "epoch", "metric_for_best_model": "loss+accuracy"}
    assert run(options, **words) == 2
    assert "follows one metric" in one_line(capsys)


def test_metrics_of_two_splits_count_once_for_each_evaluation():
    task, names = get_task("mnli"), ("validation_matched_accuracy", "validation_mismatched_accuracy")
    args = SimpleNamespace(metric_for_best_model=None, greater_is_better=None)
    asked = TrainingOptions(output_dir="any", early_stopping_patience=2, metric_for_best_model="+".join(names))
    judge = prepare_selection(args, asked, task, task.evaluation_splits)
    control, seen = TrainerControl(), []
    for values in ((0.7, 0.6), (0.8, 0.7), (0.7, 0.7), (0.7, 0.6), (0.7, 0.6)):
        for name, value in zip(names, values, strict=True):
            # The Trainer evaluates one split after the other.
            judge.on_evaluate(args, TrainerState(), control, {f"eval_{name}": value, "epoch": 1.0})
        seen.append((judge.is_best, judge.early_stopping_patience_counter, control.should_training_stop))
    assert seen == [(True, 0, False), (True, 0, False), (False, 0, False), (False, 1, False), (False, 2, True)]


def test_a_checkpoint_records_the_evaluations_without_improvement(options):  # noqa: F811
    assert run(options, **PATIENT, attention="soft") == 0
    state = json.loads((Path(options["--output_dir"]) / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["EarlyStopping"]["attributes"] == {"early_stopping_patience_counter": 1}

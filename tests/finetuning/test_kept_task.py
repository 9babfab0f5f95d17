"""A run keeps the task that a user's own file defined: the file may change or go, and the run be moved."""

import json
import shutil
from pathlib import Path

import pytest
from task_rows import make_rows, write_rows

from alignattn.cli import main
from alignattn.commands.robustness.options import RobustnessOptions
from alignattn.commands.robustness.targets import target_loaders
from alignattn.finetuning.rows import load_run_evaluation
from alignattn.finetuning.run_folder import read_run_options
from alignattn.tasks import get_task

OWN = """
kind: text-classification
text_columns: [question, reply]
label_column: right
labels: ["no", "yes"]
metrics: [accuracy]
sources:
  files: {train: rows/train.jsonl, validation: rows/dev.jsonl}
"""


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    """The file of a user's own task, whose rows lie beside it."""
    path = tmp_path / "mine" / "own-task.yaml"
    path.parent.mkdir()
    path.write_text(OWN)
    (path.parent / "rows").mkdir()
    for name in ("train", "dev"):
        write_rows(path.parent / "rows" / f"{name}.jsonl", make_rows(get_task(str(path)), 8))
    return path


@pytest.fixture
def words(definition: Path, tiny_checkpoint: Path, tmp_path: Path) -> list[str]:
    return [
        "finetune", "--task", str(definition), "--model", str(tiny_checkpoint), "--max_length", "16",
        "--num_train_epochs", "1", "--disable_tqdm", "true", "--use_cpu", "true",
        "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip


def test_a_run_outlives_the_file_of_its_task(words: list[str], definition: Path, tmp_path: Path, capsys) -> None:
    words = [*words, "--keep_checkpoints", "true"]
    assert main(words) == 0
    run = tmp_path / "run"
    result, rows = json.loads((run / "results.json").read_text()), load_run_evaluation(read_run_options(run))
    definition.unlink()

    # Broken off before its end, it goes on; finished, it is known as such.
    (run / "results.json").unlink()
    capsys.readouterr()
    assert main(words) == 0
    assert "resuming from" in capsys.readouterr().out
    again = json.loads((run / "results.json").read_text())
    assert [again[name] for name in ("task", "evaluation_rows", "metrics")] == [
        result[name] for name in ("task", "evaluation_rows", "metrics")
    ]
    assert main(words) == 0
    assert "is finished already" in capsys.readouterr().out

    moved = shutil.move(run, tmp_path / "moved")
    read = load_run_evaluation(read_run_options(moved))
    assert read.task == rows.task
    assert read.evaluation["validation"].to_dict() == rows.evaluation["validation"].to_dict()
    (load,) = target_loaders(RobustnessOptions(run=(str(moved),)))
    target = load()
    assert (target.task.name, len(target.rows)) == ("own-task", 8)
    calibrated = ["calibrate", f"{moved}/predictions.parquet", "--resamples", "5", "--output_dir", f"{tmp_path}/bins"]
    assert main(calibrated) == 0
    rest = ["--max_length", "16", "--output_dir", f"{tmp_path}/heads"]
    texts = ["--validation_file", f"{definition.parent}/rows/dev.jsonl", "--text_columns", "question", "reply"]
    assert main(["inspect", "--model", str(moved), *texts, *rest]) == 0
    assert main(["figure", "attention", "--run", str(moved), "--output_file", f"{tmp_path}/head.svg"]) == 0


def test_a_task_that_has_changed_since_is_another_runs(words: list[str], definition: Path, capsys) -> None:
    assert main(words) == 0
    definition.write_text(OWN.replace('["no", "yes"]', '["yes", "no"]'))
    capsys.readouterr()
    assert main(words) == 2
    assert f"holds a run of {definition} as it was before: give another --output_dir" in capsys.readouterr().err
    definition.write_text(OWN)
    assert main(words) == 0

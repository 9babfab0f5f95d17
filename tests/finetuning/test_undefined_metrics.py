"""Undefined metrics are null in the files of a run; rows that cannot be scored are refused before training."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import WORDS

from alignattn.cli import USER_ERROR_EXIT_CODE, main


def write(path: Path, labels: list[Any]) -> Path:
    texts = [" ".join(WORDS[number % 9 :][:4]) for number in range(len(labels))]
    pd.DataFrame({"text": texts, "label": labels}).to_csv(path, index=False)
    return path


def words_of(model: Path, train: Path, validation: Path, folder: Path, *words: str) -> list[str]:
    line = (
        f"finetune --model {model} --train_file {train} --validation_file {validation} --text_columns text "
        f"--label_column label --output_dir {folder} --max_steps 2 --disable_tqdm true --use_cpu true"
    )
    return [*line.split(), *words]


@pytest.mark.parametrize(
    ("labels", "of_validation", "undefined"),
    [
        ([number / 7 for number in range(8)], [2.5] * 4, {"pearson", "spearmanr"}),
        ([0, 1] * 4, [1] * 4, {"matthews_correlation"}),
    ],
)
@pytest.mark.parametrize("chooses", [False, True])
def test_constant_labels_have_no_correlation(
    tiny_checkpoint: Path, tmp_path: Path, capsys, labels: Any, of_validation: Any, undefined: set[str], chooses: bool
) -> None:
    files = write(tmp_path / "train.csv", labels), write(tmp_path / "val.csv", of_validation)
    folder = tmp_path / "run"
    # The undefined metric evaluates each step, so no step is the best.
    metric = min(undefined)
    words = ["--load_best_model_at_end", "--metric_for_best_model", metric, "--eval_strategy", "steps"]
    words += ["--eval_steps", "1", "--save_steps", "1", "--early_stopping_patience", "3"]
    assert main(words_of(tiny_checkpoint, *files, folder, *(words if chooses else []))) == 0
    scores = json.loads((folder / "results.json").read_text())["metrics"]["validation"]
    assert {name for name, value in scores.items() if value is None} == undefined
    out, err = capsys.readouterr()
    assert f"{metric} undefined" in out
    assert f"{metric} 0.00" not in out
    assert (f"no checkpoint was selected by {metric}" in err) == chooses
    card = (folder / "README.md").read_text()
    assert "undefined" in card
    assert "nan" not in card
    capsys.readouterr()
    assert main(words_of(tiny_checkpoint, *files, folder, *(words if chooses else []))) == 0
    assert f"{metric} undefined" in capsys.readouterr().out


def test_seeds_of_constant_labels(tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    files = write(tmp_path / "train.csv", [0.5, 1, 2, 3]), write(tmp_path / "val.csv", [2.5] * 4)
    assert main(words_of(tiny_checkpoint, *files, tmp_path / "runs", "--seeds", "1", "2")) == 0
    summary = json.loads((tmp_path / "runs" / "results.json").read_text())["metrics"]["validation"]
    assert summary["pearson"] == {"mean": None, "standard_deviation": None, "seeds": 2}
    assert summary["mse"]["mean"] > 0
    assert "pearson undefined (2 seeds)" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["file", "option"])
def test_one_row_with_a_score_is_refused_before_training(
    tiny_checkpoint: Path, tmp_path: Path, capsys, by: str
) -> None:
    files = write(tmp_path / "train.csv", [0.5, 1, 2]), write(tmp_path / "val.csv", [1.5] * (1 if by == "file" else 3))
    words = ["--max_eval_samples", "1"] if by == "option" else []
    assert main(words_of(tiny_checkpoint, *files, tmp_path / "run", *words)) == USER_ERROR_EXIT_CODE
    out, err = capsys.readouterr()
    assert "'validation' has 1 labelled row" in err
    assert "pearson" in err
    assert "step" not in out
    assert not (tmp_path / "run" / "config.yaml").exists()

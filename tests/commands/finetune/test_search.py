"""`alignattn finetune --hyperparameter_search`: trials, resuming after a kill, repeating the best, and mistakes."""

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import WORDS

from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands.finetune import COMMAND, search
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import RunResult, read_result
from alignattn.utils.files import write_json
from alignattn.utils.folder_lock import folder_lock


@pytest.fixture
def words(tiny_checkpoint: Path, tmp_path: Path) -> list[str]:
    """A small run."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 4)) for _ in range(24)]
    labels = ["yes" if "cat" in text else "no" for text in texts]
    labels[:2] = ["yes", "no"]
    pd.DataFrame({"a": texts, "same": labels}).to_csv(tmp_path / "rows.csv", index=False)
    line = f"finetune --model {tiny_checkpoint} --train_file {tmp_path / 'rows.csv'} --validation_file"
    line += f" {tmp_path / 'rows.csv'} --text_columns a --label_column same --num_train_epochs 1 --max_length 16"
    return [*line.split(), "--disable_tqdm", "true", "--use_cpu", "true"]


@pytest.fixture
def made_quickly(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace runs by files of a finished run, with better metrics the nearer the learning rate is to 3e-5."""

    def make(options: RunOptions) -> RunResult:
        finished = read_result(made / "finished" / "aa-ct")
        assert finished is not None
        score = 1 - abs(np.log(options.training.learning_rate / 3e-5)) / 10
        result = dataclasses.replace(
            finished, metrics={"validation": {"accuracy": score, "mae": score, "f1": 1 - score}}
        )
        options.output_dir.mkdir(parents=True)
        write_json(options.output_dir / "results.json", result.to_dict())
        return result

    monkeypatch.setattr(search, "finetune_one", make)


def trials(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "trials.csv")


@pytest.mark.usefixtures("made_quickly")
@pytest.mark.parametrize(
    ("given", "metric", "best"),
    [("", "accuracy", max), ("f1", "f1", max), ("eval_mae", "mae", min), ("mae --greater_is_better true", "mae", max)],
)
def test_the_given_metric_chooses_the_best_trial(given, metric, best, words, tmp_path, capsys):
    asked = [*words, "--hyperparameter_search", "3", "--output_dir", str(tmp_path / "s")]
    assert main(asked + (f"--metric_for_best_model {given}".split() if given else [])) == 0
    told = trials(tmp_path / "s")
    (column,) = [name for name in told.columns if name.startswith("validation")]
    assert column == f"validation {metric}"
    number = told.loc[told[column] == best(told[column]), "trial"].iloc[0]
    assert f"trials is {tmp_path / 's'}/trial-{number}: validation {metric}" in capsys.readouterr().out


@pytest.mark.usefixtures("made_quickly")
def test_a_killed_search_resumes_with_the_same_trials(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = [*words, "--hyperparameter_search", "14", "--output_dir"]
    assert main([*asked, str(tmp_path / "whole")]) == 0
    make = search.finetune_one
    child = os.fork()
    if child == 0:

        def die(options: RunOptions) -> RunResult:
            if options.output_dir.name == "trial-12":
                os._exit(9)
            return make(options)

        monkeypatch.setattr(search, "finetune_one", die)
        main([*asked, str(tmp_path / "killed")])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "killed" / "trials.csv").exists()
    assert main([*asked, str(tmp_path / "killed")]) == 0
    pd.testing.assert_frame_equal(trials(tmp_path / "killed"), trials(tmp_path / "whole"))
    rates = trials(tmp_path / "whole")["learning_rate"]
    assert rates.nunique() == 14
    assert rates.between(1e-5, 1e-4).all()
    best = (np.log(rates / 3e-5)).abs().idxmin()
    assert f"the best of 14 trials is {tmp_path / 'whole' / f'trial-{best}'}:" in capfd.readouterr().out


@pytest.mark.usefixtures("made_quickly")
def test_more_trials_are_added_and_earlier_ones_are_kept(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*words, "--output_dir", str(tmp_path / "out"), "--search_space", "weight_decay=0:0.5", "warmup_steps=0:10"]
    assert main([*asked, "--hyperparameter_search", "2"]) == 0
    first = trials(tmp_path / "out")
    assert (first["warmup_steps"] % 1 == 0).all()
    assert main([*asked, "--hyperparameter_search", "4"]) == 0
    pd.testing.assert_frame_equal(trials(tmp_path / "out").head(2), first)
    assert list(trials(tmp_path / "out")["trial"]) == [0, 1, 2, 3]
    capsys.readouterr()
    assert main([*asked, "--hyperparameter_search", "4", "--max_length", "8"]) == USER_ERROR_EXIT_CODE
    assert "holds a search with other options (max_length)" in capsys.readouterr().err


@pytest.mark.usefixtures("made_quickly")
def test_the_best_remaining_trial_is_named_after_the_best_was_deleted(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*words, "--output_dir", str(tmp_path / "out"), "--hyperparameter_search", "3"]
    assert main(asked) == 0
    first = trials(tmp_path / "out").sort_values("validation accuracy", ascending=False)["trial"].tolist()
    shutil.rmtree(tmp_path / "out" / f"trial-{first[0]}")
    capsys.readouterr()
    assert main(asked) == 0
    assert f"the best of 2 trials is {tmp_path / 'out' / f'trial-{first[1]}'}:" in capsys.readouterr().out


def test_the_best_run_is_repeated_by_its_config(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([*words, "--hyperparameter_search", "2", "--output_dir", str(out)]) == 0
    printed = capsys.readouterr().out
    config = Path(printed.split("repeat it: alignattn finetune --config ")[1].split()[0])
    options = yaml.safe_load(config.read_text())
    tried = trials(out).set_index("trial").loc[int(config.parent.name.removeprefix("trial-"))]
    for name in ("learning_rate", "alignment_weight", "alignment_learning_rate"):
        assert options[name] == pytest.approx(tried[name])
    assert not {"hyperparameter_search", "search_space"} & options.keys()
    assert main(["finetune", "--config", str(config), "--output_dir", str(tmp_path / "again")]) == 0
    assert pq.read_table(tmp_path / "again" / "predictions.parquet") == pq.read_table(
        config.parent / "predictions.parquet"
    )


def test_another_search_in_the_folder_of_a_running_one_is_refused_at_once(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["--hyperparameter_search", "2", "--output_dir", str(tmp_path / "searched")]
    options = COMMAND.parse(words[1:])
    with folder_lock(options.output_dir, search._fixed_options(options)):
        assert main([*words, "--weight_decay", "0.1"]) == USER_ERROR_EXIT_CODE
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds a search with other options (weight_decay): give another --output_dir" in line


def test_given_options_stay_fixed_and_options_without_effect_are_not_searched() -> None:
    run = {"model": "x", "task": "mrpc", "output_dir": "o", "hyperparameter_search": 3}
    searched = {
        ("aa-ct", None): ["alignment_weight", "learning_rate", "alignment_learning_rate"],
        ("aa-ct", 1e-3): ["alignment_weight", "alignment_learning_rate"],
        ("aa-ot", None): ["alignment_weight", "learning_rate"],
        ("soft", None): ["learning_rate"],
    }
    for (attention, rate), names in searched.items():
        given = {} if rate is None else {"learning_rate": rate}
        assert list(COMMAND.resolve({**run, "attention": attention, **given}).space) == names


def test_a_search_ranks_by_one_metric(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*words, "--hyperparameter_search", "2", "--metric_for_best_model", "accuracy+f1"]
    assert main([*asked, "--output_dir", str(tmp_path / "out")]) == USER_ERROR_EXIT_CODE
    assert "accuracy+f1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

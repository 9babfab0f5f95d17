"""The task, rows and files of a run: they are recognised, and may move or be deleted."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from documentation import ROOT
from task_rows import make_rows, write_rows

from alignattn.cli import main
from alignattn.commands import get_command
from alignattn.commands.robustness import RobustnessOptions, target_loaders
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import DATA_FILE
from alignattn.finetuning.rows import load_run_evaluation, load_run_rows
from alignattn.finetuning.run_folder import (
    check_output_dir,
    check_same_data,
    data_digests,
    evaluation_digests,
    options_of_same_files,
    read_run_options,
)
from alignattn.tasks.definitions import get_task
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_json
from alignattn.utils.options import resolve

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
    """The definition of a custom task, with its rows next to it."""
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

    # An interrupted run resumes, and a finished run is recognised.
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


def test_a_run_may_evaluate_some_splits_of_a_task(words: list[str], definition: Path, tmp_path: Path, capsys) -> None:
    shutil.copy(definition.parent / "rows" / "dev.jsonl", definition.parent / "rows" / "held-out.jsonl")
    both = definition.read_text().replace("dev.jsonl}", "dev.jsonl, test: rows/held-out.jsonl}")
    assert "held-out" in both
    definition.write_text(f"{both}\nevaluation_splits: [validation, test]\n")
    some = [*words, "--evaluation_splits", "test"]
    assert main(some) == 0
    assert list(json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]) == ["test"]
    assert main(some) == 0
    assert "is finished already" in capsys.readouterr().out


def test_a_changed_definition_of_the_task_is_refused(
    words: list[str], definition: Path, tmp_path: Path, capsys
) -> None:
    assert main(words) == 0
    definition.write_text(OWN.replace('["no", "yes"]', '["yes", "no"]'))
    capsys.readouterr()
    assert main(words) == 2
    assert f"holds a run of an earlier definition of {definition}: give another --output_dir" in capsys.readouterr().err
    # In another folder, the definition is that of the resumed run, too.
    elsewhere = ["--resume_from_checkpoint", f"{tmp_path}/run/checkpoint-1", "--output_dir", f"{tmp_path}/elsewhere"]
    assert main([*words, *elsewhere]) == 2
    assert f"an earlier definition of {definition}: give another --resume_from_checkpoint" in capsys.readouterr().err
    definition.write_text(OWN)
    assert main(words) == 0


def test_a_definition_may_be_corrected_until_its_run_has_a_checkpoint(
    words: list[str], definition: Path, tmp_path: Path, capsys
) -> None:
    assert main(words) == 0
    for path in (tmp_path / "run").iterdir():
        if path.name not in ("config.yaml", "data.json", "task.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    definition.write_text(OWN.replace('["no", "yes"]', '["yes", "no"]'))
    assert main(words) == 0
    assert json.loads((tmp_path / "run" / "task.json").read_text())["labels"] == ["yes", "no"]


def test_other_class_names_in_the_file_of_a_run_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "rows.csv", tmp_path / "run"
    path.write_text("text,label\n" + "the cat,bad\na dog,good\n" * 4)
    words = f"finetune --model {tiny_checkpoint} --train_file {path} --validation_file {path} --text_columns text"
    assert main([*words.split(), "--max_steps", "1", "--use_cpu", "--output_dir", str(run)]) == 0
    assert load_run_evaluation(read_run_options(run)).task.labels == ("bad", "good")
    # In alphabetical order, the class numbers change.
    path.write_text(path.read_text().replace("bad", "poor"))
    with pytest.raises(AlignAttnError, match=r"classes bad, good, and .*rows.csv now has good, poor: restore"):
        load_run_evaluation(read_run_options(run))


ROWS = 40


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "validation", "test"):
        path = folder / "glue/mrpc" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [f"{split} {number}" for number in range(ROWS)]
        labels = [number % 2 for number in range(ROWS)]
        pd.DataFrame({"sentence1": texts, "sentence2": texts, "label": labels}).to_parquet(path)
    return folder


def rows_of(data_dir, *words):
    given = ["--model", "any", "--task", "mrpc", "--data_dir", str(data_dir), "--output_dir", "x"]
    return load_run_rows(get_command("finetune").parse([*given, *words]))


def test_each_seed_samples_its_own_training_rows_and_the_same_evaluation_rows(data_dir):
    limits = ("--max_train_samples", "10", "--max_eval_samples", "10")
    first, again, second = (rows_of(data_dir, *limits, "--take", "seed", "--seed", seed) for seed in ("1", "1", "2"))
    assert first.train["sentence1"][:] == again.train["sentence1"][:] != second.train["sentence1"][:]
    assert sorted(first.train["label"][:]) == [0] * 5 + [1] * 5
    drawn = rows_of(data_dir, *limits, "--seed", "2")
    for rows in (first, second):
        assert rows.evaluation["validation"][:] == drawn.evaluation["validation"][:]


def test_another_split_can_be_evaluated(data_dir):
    rows = rows_of(data_dir, "--evaluation_splits", "test")
    assert list(rows.evaluation) == ["test"]
    assert rows.evaluation["test"]["sentence1"][0] == "test 0"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--evaluation_splits train", "--evaluation_splits"),
    ],
)
def test_mistakes(words, reason, data_dir):
    with pytest.raises(AlignAttnError, match=reason):
        rows_of(data_dir, *words.split())


def test_files_of_a_custom_task_are_identified_by_their_content(tmp_path: Path) -> None:
    examples = shutil.copytree(ROOT / "docs" / "examples", tmp_path / "examples")
    given = {"model": "x", "task": str(examples / "messages.yaml"), "output_dir": str(tmp_path / "run")}
    options = resolve(RunOptions, given)
    digests = data_digests(options)
    assert digests.keys() == {"task train", "task validation"}
    assert str(tmp_path) not in str(digests)
    write_json(tmp_path / "run" / DATA_FILE, digests)
    check_same_data(options, tmp_path / "run")
    with (examples / "more-messages.tsv").open("a") as file:
        file.write("one more\tpraise\n")
    with pytest.raises(AlignAttnError, match=r"\(--task: the content of .*more-messages.tsv differs\)"):
        check_same_data(options, tmp_path / "run")


def test_a_path_counts_where_the_folders_hold_other_splits(tmp_path: Path) -> None:
    """The other folder has a development split, whose content the run never recorded."""
    for name, splits in (("data", ["train"]), ("moved", ["train"]), ("more", ["train", "validation"])):
        for split in splits:
            (tmp_path / name / "glue" / "rte").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "glue" / "rte" / f"{split}.parquet").write_bytes(b"rows")

    def options(name: str) -> RunOptions:
        values = {"model": "x", "task": "rte", "data_dir": str(tmp_path / name), "output_dir": str(tmp_path / "run")}
        return resolve(RunOptions, values)

    write_json(tmp_path / "run" / DATA_FILE, data_digests(options("data")))
    assert options_of_same_files(options("moved"), tmp_path / "run") == {"data_dir"}
    assert options_of_same_files(options("more"), tmp_path / "run") == frozenset()


@pytest.mark.parametrize(
    ("model", "task", "files"),
    [
        ("gat", "cora", ["planetoid/cora.npz"]),
        (
            "mcan",
            "vqa-v2",
            [
                *("vqav2/v2_OpenEnded_mscoco_train2014_questions.json", "vqav2/v2_mscoco_train2014_annotations.json"),
                *("vqav2/v2_OpenEnded_mscoco_val2014_questions.json", "vqav2/v2_mscoco_val2014_annotations.json"),
                "features/train2014/7.npz",
            ],
        ),
    ],
)
def test_each_file_of_a_task_is_recognised_by_its_content(
    model: str, task: str, files: list[str], tmp_path: Path
) -> None:
    folder, features = tmp_path / "run", tmp_path / "features"
    paths = [tmp_path / file for file in files]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"as it was")
    values = {"model": model, "task": task, "data_dir": str(tmp_path), "output_dir": str(folder)}
    options = resolve(RunOptions, values | ({"features": str(features)} if features.exists() else {}))
    write_json(folder / DATA_FILE, data_digests(options))
    check_same_data(options, folder)
    for path in paths:
        option, named = ("features", features) if features in path.parents else ("data_dir", path)
        path.write_bytes(b"as it is now")
        with pytest.raises(AlignAttnError, match=f"--{option}: the content of {named} differs"):
            check_same_data(options, folder)
        path.write_bytes(b"as it was")
    assert evaluation_digests(options, folder, "validation")


def test_a_changed_model_in_a_folder_is_another_model(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "run"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(b"as it was")
    given = {"model": str(model), "attention": "soft", "task": "rte", "output_dir": str(folder)}
    options = resolve(RunOptions, given)
    write_json(folder / DATA_FILE, data_digests(options))
    moved = resolve(RunOptions, given | {"model": str(shutil.copytree(model, tmp_path / "moved"))})
    assert options_of_same_files(moved, folder) == {"model"}
    check_same_data(moved, folder)
    weights.write_bytes(b"trained further")
    with pytest.raises(AlignAttnError, match=f"--model: the content of {model} differs"):
        check_same_data(options, folder)


def test_a_table_of_pictures_is_recognised_by_its_path(tmp_path: Path) -> None:
    """Its content names pictures, which another folder has under the same names."""

    def options(name: str, *, of_pictures: bool) -> RunOptions:
        (tmp_path / name).mkdir(exist_ok=True)
        table = tmp_path / name / "rows.csv"
        table.write_text("picture,label\n1.png,a\n2.png,b\n")
        columns = {"image_column": "picture"} if of_pictures else {"text_columns": ["picture"]}
        given = {"model": "x", "attention": "soft", "train_file": str(table), "output_dir": str(tmp_path / "run")}
        return resolve(RunOptions, given | columns)

    for of_pictures in (True, False):
        write_json(tmp_path / "run" / DATA_FILE, data_digests(options("here", of_pictures=of_pictures)))
        same = options_of_same_files(options("there", of_pictures=of_pictures), tmp_path / "run")
        assert same == (frozenset() if of_pictures else {"train_file"})


def test_files_are_checked_unless_all_runs_of_the_call_have_finished(tmp_path: Path) -> None:
    given = {"model": "minilm", "train_file": str(tmp_path / "gone.csv"), "text_columns": ["text"]}
    options = resolve(RunOptions, given | {"output_dir": str(tmp_path / "runs"), "seeds": [1, 2]})
    for seed in (1, 2):
        (tmp_path / "runs" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "runs" / f"seed-{seed}" / "config.yaml").touch()
        with pytest.raises(AlignAttnError, match=r"gone\.csv"):
            options.check_places()
        (tmp_path / "runs" / f"seed-{seed}" / "results.json").touch()
    options.check_places()


@pytest.mark.parametrize("value", ["false", False])
def test_a_run_is_not_begun_anew_in_its_folder(value: str | bool, tmp_path: Path) -> None:
    given = {"model": "minilm", "task": "mrpc", "resume_from_checkpoint": value, "output_dir": str(tmp_path / "run")}
    with pytest.raises(AlignAttnError, match="to begin anew, give another --output_dir"):
        check_output_dir(resolve(RunOptions, given))

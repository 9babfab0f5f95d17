"""Messages of a run about its rows: truncated rows, unknown words, a constant prediction."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from conftest import WORDS
from processes import TWO_PROCESSES, launched
from resumed import finetune
from task_rows import make_rows, write_rows
from transformers import AutoTokenizer

import alignattn
from alignattn.cli import main
from alignattn.finetuning.results import read_result, render_metrics
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.rows import load_task_files
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.tasks.truncation import TruncatedRows, truncated_rows

KNOWN, HALF, STRANGE = "the cat sees", "the zebra", "okapi zebra"
TOLD = "1 row without a word of the model's vocabulary"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Texts of 3 to 12 words, half of them longer than 8 tokens."""
    texts = [" ".join(WORDS[:1] * (3 if n % 2 else 12)) for n in range(40)]
    path = tmp_path / "reviews.tsv"
    pd.DataFrame({"text": texts, "stars": [4 + (n % 4 == 0) for n in range(40)]}).to_csv(path, index=False, sep="\t")
    return path


def words_of(model: Path, rows: Path, folder: Path, *words: str) -> list[str]:
    line = (
        f"finetune --model {model} --train_file {rows} --text_columns text --label_column stars --output_dir {folder} "
        "--max_length 8 --max_steps 1 --disable_tqdm true --save_strategy no"
    )
    return [*line.split(), *words]


def test_a_run_reports_what_is_unusual_in_its_rows(
    tiny_checkpoint: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["--attention", "aa-ct", "--validation_share", "0.5", "--learning_rate", "0", "--use_cpu"]
    assert main(words_of(tiny_checkpoint, rows, folder, *words)) == 0
    out, err = capsys.readouterr()
    result = json.loads((folder / "results.json").read_text())
    # The file has two texts.
    repeated = "of the rows of validation have the inputs of a training row: scores on them say little about new rows"
    assert result["trained_rows"] == {"validation": 20}
    assert "validation: 20 of 20 rows have the inputs of a training row" in err
    assert (result["task"], result["labels"]) == ("reviews", ["4", "5"])
    assert "reviews, 2 labels: 0 = 4, 1 = 5" in out
    assert "\nattention aa-ct, λ 0.01\n" in out
    assert json.loads((folder / "config.json").read_text())["id2label"] == {"0": "4", "1": "5"}
    assert (result["train_rows"], result["evaluation_rows"]) == (20, {"validation": 20})
    assert set(result["metrics"]["validation"]) == {"accuracy", "f1", "matthews_correlation", "macro_f1"}
    cut = result["truncated_rows"]
    assert cut["train"]["rows"] + cut["validation"]["rows"] == 20
    assert "of the rows reach --max_length 8; what is longer is truncated" in out
    # Only two different texts and an untrained model: it may distinguish them, and then there is no message.
    predicted = pd.read_parquet(folder / "predictions.parquet")["prediction"]
    assert (predicted.nunique() == 1) == ("validation" in result["constant_prediction"]) == ("learned nothing" in out)
    card = (folder / "README.md").read_text()
    result["constant_prediction"] = {"validation": "the class '4'"}
    (folder / "results.json").write_text(json.dumps(result))
    finished = read_result(folder)
    assert finished is not None
    told = render_metrics(finished).partition("learned nothing")[2].partition("\n")[0]
    # In the order in which to try them.
    assert re.search("--learning_rate.*steps.*--num_train_epochs.*labels", told)
    assert "of the rows reach " in card
    assert f"- 20 {repeated}" in card
    assert ("learned nothing" in card) == (predicted.nunique() == 1)


@pytest.mark.parametrize("name", ["mrpc", "swag", "hellaswag", "msra", "squad", "stsb"])
def test_truncated_rows_are_those_that_reach_the_limit(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_rows(TASKS[name], 24)))
    loaded = load_task_files(TASKS[name], path, None)
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_checkpoint)
    tokenizer.model_max_length = 512

    def split(length: int) -> EncodedSplit:
        options = TaskOptions(max_length=length, doc_stride=2)
        return EncodedSplit(loaded.train, loaded.task.encode(loaded.train, tokenizer, options), options)

    assert truncated_rows(loaded.task, split(512)) is None
    if name == "squad":
        assert truncated_rows(loaded.task, split(24)) is None
        return
    whole = [max(map(len, ids)) if name.endswith("swag") else len(ids) for ids in split(512).encoded["input_ids"]]
    for length in range(7, max(whole) + 1):
        count = sum(tokens >= length for tokens in whole)
        assert truncated_rows(loaded.task, split(length)) == TruncatedRows(count, count / 24, length)
    assert truncated_rows(loaded.task, split(max(whole) + 1)) is None


@pytest.mark.parametrize(
    ("name", "same", "different", "words"),
    [
        ("mrpc", [1, 1], [1, 0], "the class 'equivalent'"),
        ("stsb", [2.5, 2.5], [2.5, 2.6], "the score 2.5"),
        ("msra", [["O"], ["O", "O"]], [["O"], ["O", "B-PER"]], "the tag 'O'"),
        ("squadv2", ["", ""], ["", "a cat"], "no answer"),
    ],
)
def test_a_constant_prediction_is_named(name: str, same: Any, different: Any, words: str) -> None:
    assert TASKS[name].constant_prediction(pa.table({"prediction": same})) == words
    for others in (different, same[:1]):
        assert TASKS[name].constant_prediction(pa.table({"prediction": others})) is None


def test_truncated_questions_are_counted(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_rows(TASKS["squad"], 24)
    # Windows of 32 tokens that share 8 leave 10 of them for a question.
    for row, count in zip(rows, (11, 10, 30), strict=False):
        row["question"] = " ".join(WORDS[:1] * count)
    file = write_rows(tmp_path / "questions.jsonl", rows)
    line = (
        f"finetune --model {tiny_checkpoint} --task squad --train_file {file} --validation_file {file} --max_length 32 "
        f"--doc_stride 8 --max_steps 1 --disable_tqdm true --save_strategy no --use_cpu --output_dir {tmp_path}/run"
    )
    assert main(line.split()) == 0
    remark = "8.3 % of the rows have a question of more than 10 tokens, which is truncated"
    out = capsys.readouterr().out
    assert f"train: {remark}\n" in out
    assert f"validation: {remark}\n" in out
    assert main(f"predict --run {tmp_path}/run --file {file} --output_file {tmp_path}/predicted.jsonl".split()) == 0
    assert f"{remark} (as in the run)\n" in capsys.readouterr().err


def test_processes_on_a_cpu_make_one_run(tiny_checkpoint: Path, rows: Path, tmp_path: Path) -> None:
    words = words_of(tiny_checkpoint, rows, tmp_path / "run", "--per_device_train_batch_size", "4")
    done = launched(TWO_PROCESSES, words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 labels") == 1
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    # A step of two processes trains on eight rows, a fifth of all.
    assert state["epoch"] == pytest.approx(1 / 5)


def test_accelerate_that_starts_one_process_of_two_is_reported(
    tiny_checkpoint: Path, rows: Path, tmp_path: Path
) -> None:
    words = words_of(tiny_checkpoint, rows, tmp_path / "run")
    done = launched(["accelerate.commands.launch", "--cpu", "--num_processes", "2"], words)
    assert done.returncode == 0, done.stderr
    assert "accelerate launch started one process" in done.stderr


def test_predictions_of_unknown_words_alone_are_reported(tmp_path, capsys, caplog):
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\n{KNOWN},a\n{KNOWN},b\n")
    words = "--model cnn --text_columns text --model_config embedding_dim=4 hidden_dim=4 --num_train_epochs 1 "
    words += f"--train_file {path} --validation_file {path}"
    finetune(words.split(), tmp_path / "run")
    capsys.readouterr()
    for text in (HALF, STRANGE):
        assert main(["predict", "--run", str(tmp_path / "run"), "--text", text]) == 0
        assert (TOLD in capsys.readouterr().err) == (text == STRANGE)
    predictor = alignattn.load_run(tmp_path / "run")
    assert predictor.predict([KNOWN])
    assert TOLD not in caplog.text
    assert predictor.predict([KNOWN, STRANGE])
    assert TOLD in caplog.text

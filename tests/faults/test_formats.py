"""Each kind of input file, broken in each way: it is read, or refused in one line."""

import shutil
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from damage import (
    broken_json,
    broken_json_lines,
    broken_lines,
    broken_parquet,
    broken_safetensors,
    broken_table,
    broken_yaml,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from made import CHECKPOINT, COMMANDS, TRAINING
from transformers import AutoModelForSequenceClassification

from alignattn.cli import main
from alignattn.commands import get_command
from alignattn.commands.inspect import InspectOptions, load_texts
from alignattn.commands.reproduce.experiment import Experiment
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.commands.reproduce.folder import read_results as read_run_results
from alignattn.commands.reproduce.results import examples_of
from alignattn.commands.reproduce.table import load_table
from alignattn.evaluation.calibration.predictions import read_predictions
from alignattn.finetuning.examples import read_probabilities
from alignattn.finetuning.logs import read_log_history
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import read_result, render_metrics
from alignattn.finetuning.run_checkpoints import check_checkpoint
from alignattn.finetuning.run_folder import read_run_options
from alignattn.finetuning.tables import TABLES
from alignattn.models.words import read_embeddings
from alignattn.patching.checkpoints import load_pretrained
from alignattn.reports.table import UNREADABLE
from alignattn.robustness.records import read_header, read_run
from alignattn.robustness.resources import Resources, read_neighbors
from alignattn.tasks import TokenClassification
from alignattn.tasks.definitions import TASKS, get_task
from alignattn.tasks.rows import load_task_files, load_user_rows
from alignattn.training.checkpoints import last_whole_checkpoint
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import read_words

EXAMPLES = 40
"""Examples per format."""
EXAMPLES_OF_MODELS = 20
"""Fewer, because each example builds a model."""


@dataclass(frozen=True)
class Format:
    """A file of a format, in a copy of the folder that `made.py` fills.

    Attributes:
        file: its path.
        broken: returns a strategy of broken files, from the bytes of a whole file.
        read: reads it, given its path.
        whole: the bytes of a whole file, if the folder has none.
    """

    file: str
    broken: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[Path], Any]
    whole: bytes | None = None


def load_tiny(path: Path) -> None:
    load_pretrained(str(path.parent), AutoModelForSequenceClassification)


def read_neighbors_file(path: Path) -> None:
    Resources(neighbors=path, sentence_encoder=str(path.parents[1] / "tiny")).check()
    read_neighbors(path)


def read_status(path: Path) -> None:
    folder = RunFolder.read(path.parent)
    folder.status()
    folder.add_cost(1.0, 2.0)


def read_table(path: Path) -> None:
    list(load_table(str(path)).cells([1]))


def read_texts(path: Path) -> None:
    columns = None if path.suffix == ".txt" else ("a",)
    load_texts(InspectOptions(model="none", validation_file=str(path), text_columns=columns))


def read_texts_and_labels(path: Path) -> None:
    load_user_rows(path, None, ["a", "b"], "same")


def of_task(name: str) -> Callable[[Path], Any]:
    return lambda path: load_task_files(get_task(name), path, None, skip_bad_rows=True)


def read_calibrated(path: Path) -> None:
    read_predictions(path, label_column="label", probabilities_column="probabilities", skip_bad_rows=True)


def read_report(path: Path) -> None:
    read_probabilities(path.parent, "validation")
    for metric in ("accuracy", "f1"):
        examples_of([path.parent], ("metrics", "validation", metric))


def refused_by_tables(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Return a reader that ignores the errors for which a table counts a run as failed."""

    def read_or_failed(path: Path) -> None:
        with suppress(*UNREADABLE):
            read(path)

    return read_or_failed


def read_results(path: Path) -> None:
    result = read_result(path.parent)
    assert result is not None
    render_metrics(result)


RUN, SHIFT, ATTACKS = "finished/aa-ct", "shift", "attacks/aa-ct"
GIVEN = read_words(RunOptions, COMMANDS["aa-ct"].split()[1:], get_command("finetune").parser())
OF_A_TABLE = RunFolder(Path("table"), Experiment("finetune", {k: v for k, v in GIVEN.items() if k != "output_dir"}))
EXPERIMENT = str(OF_A_TABLE.path)
SHIFT_COMMAND = (
    f"domain-shift --pair snli-mnli --model tiny --attention aa-ct+entmax15 --data_dir data {TRAINING} "
    f"--save_strategy no --output_dir {SHIFT}"
)


def of_tags(path):
    return load_task_files(TokenClassification(name="own"), path, None)


JSON_ROWS = b'{"a": "a cat", "b": "the dog", "same": "no", "id": 1}\n{"a": "a", "b": "the", "same": "yes", "id": 2}\n'
TAG_ROWS = b'{"tokens": ["a", "cat"], "ner_tags": ["O", "B-X"]}\n{"tokens": ["the"], "ner_tags": ["O"]}\n'
SQUAD_ROW = b'{"id": "1", "question": "who?", "context": "a cat", "answers": {"text": ["cat"], "answer_start": [2]}}\n'
CHOICE_ROW = b'{"ctx": "a", "endings": ["b", "c", "d", "e"], "label": "1", "extra": {"a": [1]}}\n'
TASK = b"kind: text-classification\ntext_columns: [a, b]\nlabels: [maybe, other]\nmetrics: [accuracy]\n"

FORMATS = {
    "options of a run (YAML)": Format(f"{RUN}/config.yaml", broken_yaml, lambda path: read_run_options(path.parent)),
    "options (YAML)": Format(
        f"{RUN}/config.yaml", broken_yaml, lambda path: get_command("finetune").parse(["--config", str(path)])
    ),
    "results (JSON)": Format(f"{RUN}/results.json", broken_json, read_results),
    "results of two tasks (JSON)": Format(
        f"{SHIFT}/results.json", broken_json, lambda path: read_run_results(path.parent, path.name)
    ),
    "what was logged (JSON)": Format(
        f"{RUN}/trainer_state.json", broken_json, lambda path: read_log_history(path.parent)
    ),
    "state of a checkpoint (JSON)": Format(
        f"{CHECKPOINT}/trainer_state.json",
        broken_json,
        lambda path: (last_whole_checkpoint(path.parents[1]), check_checkpoint(path.parent)),
    ),
    "weights of a checkpoint": Format(
        f"{CHECKPOINT}/model.safetensors", broken_safetensors, lambda path: last_whole_checkpoint(path.parents[1])
    ),
    "a task (YAML)": Format("own.yaml", broken_yaml, lambda path: get_task(str(path)), TASK),
    "a table (YAML)": Format("own.yaml", broken_yaml, read_table, TABLES["table1"].read_bytes()),
    "texts and labels (CSV)": Format("train.csv", broken_table, read_texts_and_labels),
    "texts and labels (JSON lines)": Format("rows.jsonl", broken_json_lines, read_texts_and_labels, JSON_ROWS),
    "texts and labels (Parquet)": Format("data/snli/train.parquet", broken_parquet, of_task("snli")),
    "words and tags (JSON lines)": Format(
        "tags.jsonl",
        broken_json_lines,
        of_tags,
        TAG_ROWS,
    ),
    "words and tags (CoNLL)": Format("tags.conll", broken_table, of_task("msra"), b"a O\ncat B-X\n\nthe O\n"),
    "questions (JSON lines)": Format("squad.jsonl", broken_json_lines, of_task("squad"), SQUAD_ROW),
    "choices (JSON lines)": Format("choices.jsonl", broken_json_lines, of_task("hellaswag"), CHOICE_ROW),
    "texts of a table": Format("rows.jsonl", broken_json_lines, read_texts, JSON_ROWS),
    "texts": Format("texts.txt", broken_lines, read_texts, b"a cat\nthe dog\n"),
    "predictions (Parquet)": Format(f"{RUN}/predictions.parquet", broken_parquet, read_calibrated),
    "neighbours (Parquet)": Format("resources/neighbors.parquet", broken_parquet, read_neighbors_file),
    "word vectors": Format("vectors.txt", broken_lines, lambda path: read_embeddings(path, None)),
    "header of attacks (JSON)": Format(
        f"{ATTACKS}/textbugger.json", broken_json, lambda path: read_header(path.with_suffix(".jsonl"))
    ),
    "attacks (JSON lines)": Format(f"{ATTACKS}/textbugger.jsonl", broken_json_lines, read_run),
    "a table of attacks (JSON)": Format(
        "attacks/robustness.json", broken_json, lambda path: read_run_results(path.parent, path.name)
    ),
    "what a run of a table is (JSON)": Format(f"{EXPERIMENT}/experiment.json", broken_json, read_status),
    "why a run failed": Format(f"{EXPERIMENT}/failure.txt", broken_lines, lambda path: read_status(path), b"no disk\n"),
    "how long a run took": Format(f"{EXPERIMENT}/seconds.txt", broken_lines, lambda path: read_status(path), b"2.5\n"),
    "predictions of a run of a table (Parquet)": Format(
        f"{RUN}/predictions.parquet", broken_parquet, refused_by_tables(read_report)
    ),
}
MODELS = {
    "config of a model (JSON)": Format("tiny/config.json", broken_json, load_tiny),
    "tokenizer (JSON)": Format("tiny/tokenizer.json", broken_json, load_tiny),
    "config of a tokenizer (JSON)": Format("tiny/tokenizer_config.json", broken_json, load_tiny),
    "weights (safetensors)": Format("tiny/model.safetensors", broken_safetensors, load_tiny),
}


@pytest.fixture(scope="module")
def made_of_all(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that `made.py` fills, and in it a pair of tasks and a run of a table."""
    folder = tmp_path_factory.mktemp("formats") / "made"
    shutil.copytree(made, folder)
    with chdir(folder):
        assert main(SHIFT_COMMAND.split()) == 0
        OF_A_TABLE.prepare()
        shutil.copytree(RUN, OF_A_TABLE.output)
        OF_A_TABLE.add_cost(1.0, 2.0)
        assert OF_A_TABLE.status().state == "done"
    return folder


@pytest.fixture
def here(made_of_all: Path, tmp_path: Path) -> Path:
    shutil.copytree(made_of_all, tmp_path / "made")
    return tmp_path / "made"


def place_of(form: Format, here: Path) -> Path:
    path = here / form.file
    path.parent.mkdir(exist_ok=True, parents=True)
    return path


@pytest.mark.parametrize("name", FORMATS | MODELS)
def test_a_broken_file_is_read_or_refused_in_one_line(name: str, here: Path, trying: Any):
    form = (FORMATS | MODELS)[name]
    path = place_of(form, here)
    if form.whole is not None:
        path.write_bytes(form.whole)
    form.read(path)  # a whole file is read

    @settings(max_examples=EXAMPLES_OF_MODELS if name in MODELS else EXAMPLES)
    @given(form.broken(path.read_bytes()))
    def give(content: bytes) -> None:
        path.write_bytes(content)
        with trying(f"a broken file: {name}"), suppress(AlignAttnError):
            form.read(path)

    give()


def test_the_tasks_of_the_formats_are_shipped():
    assert {"squad", "hellaswag", "msra", "snli"} <= set(TASKS)

"""Task files: every shipped one, a custom one, and every mistake in one."""

import json

import pytest
from task_rows import make_rows, write_rows

from alignattn.cli import main
from alignattn.commands.inspect import InspectOptions, load_texts
from alignattn.finetuning.rows import load_run_evaluation
from alignattn.finetuning.run_folder import read_run_options
from alignattn.tasks.definitions import CATALOG, TASKS, get_task, read_definition
from alignattn.tasks.rows import load_rows
from alignattn.utils.errors import AlignAttnError

OWN = """
kind: text-classification
text_columns: [question, reply]
label_column: right
labels: ["no", "yes"]
metrics: [accuracy, f1]
sources:
  files: {train: rows/train.jsonl, validation: rows/dev.jsonl}
"""


@pytest.fixture
def own_task(tmp_path):
    """The file of a custom task, with its rows next to it."""
    path = tmp_path / "own-task.yaml"
    path.write_text(OWN)
    task = get_task(str(path))
    (tmp_path / "rows").mkdir()
    for name in ("train", "dev"):
        write_rows(tmp_path / "rows" / f"{name}.jsonl", make_rows(task, 12))
    return path


@pytest.mark.parametrize("path", sorted(CATALOG.iterdir()), ids=lambda path: path.name)
def test_every_shipped_file_is_complete(path):
    task = read_definition(path)
    assert (task.name, task) == (path.stem, TASKS[path.stem])
    assert get_task(task.name.upper()) is TASKS[task.name]
    assert all((task.description, task.licence, task.citation, task.sources.folder))
    assert not task.sources.files
    assert "\n" not in task.description + task.citation


def test_a_suggestion_stands_before_the_names():
    with pytest.raises(AlignAttnError, match=r"^unknown task 'MRCP': did you mean 'mrpc'\? Choose one of agnews, "):
        get_task("MRCP")


METRICS = {"accuracy", "f1", "macro_f1"}
SHARES = ("length_third", "planetoid")
"""Fields of tasks that share a folder with others."""


def test_no_two_tasks_share_a_folder():
    # Except for tasks that are a part of another, and graphs, which are one file each.
    whole = [task for task in TASKS.values() if not any(hasattr(task, name) and getattr(task, name) for name in SHARES)]
    assert len({task.sources.folder for task in whole}) == len(whole)


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("text-classification", "texts", "unknown task type 'texts': choose one of text-classification, multi"),
        ("metrics:", "metric:", "metric is not a field of this task type (did you mean 'metrics'?)"),
        ("  files:", "  file:", "sources.file is not a field of this task type"),
        ("accuracy, f1", "accuracy, bleu", "metrics.1 should be 'accuracy', 'f1', 'macro_f1', 'matthews_correlation'"),
        ("[question, reply]", "question", "text_columns should be a valid list"),
        ("reply]", "right]", "duplicate column among question, right, right"),
        (
            '["no", "yes"]',
            "[no, yes]",
            "labels.0 should be a valid string, in quotes where YAML would read another type",
        ),
        (
            '["no", "yes"]',
            "{no: 0, yes: 1}",
            'labels should be a valid list, as a list in the order of their numbers: ["no", "yes"]',
        ),
        ('["no", "yes"]', "[a, b, a]", "labels must be two or more different names, or none for scores: a, b, a"),
        ('["no", "yes"]', str([f"c{n}" for n in range(10_001)]), "10,001 labels, and a task has at most 10,000"),
        ('["no", "yes"]', "[a, b, c]", "metrics f1 do not fit 3 labels"),
        ("sources:", "label_range: [0, 5]\nsources:", "label_range needs a task without labels"),
        ("sources:", "label_range: [0, .inf]\nsources:", "label_range.1 should be a finite number"),
        ("sources:", "max_length: 0\nsources:", "max_length 0 must be at least 1"),
        ("sources:", "evaluation_splits: []\nsources:", "metrics and evaluation_splits need at least one entry"),
        ("sources:", "evaluation_splits: [train]\nsources:", "without train"),
        ("validation: rows", "dev: rows", "sources.files has an unknown split 'dev': choose from train, validation"),
        (OWN, "[" * 5000, "is nested too deeply"),
        (OWN, "a: [b", "is not valid YAML: while parsing a flow sequence"),
        (OWN, "- a", "must hold lines of NAME: VALUE"),
    ],
)
def test_a_mistake_in_a_file_is_refused_in_one_line(tmp_path, old, new, mistake):
    path = tmp_path / "own.yaml"
    assert old in OWN
    path.write_text(OWN.replace(old, new))
    with pytest.raises(AlignAttnError) as caught:
        get_task(str(path))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert mistake in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("kind: multiple-choice\ncontext_column: c\nending_columns: [a, b]\nlabels: [A, B, C]", "2 for 3 labels"),
        ("kind: multiple-choice\ncontext_column: c\nending_columns: [a]", "1 for 0 labels"),
        ("kind: token-classification\ntokens_column: a\ntags_column: a", "must differ"),
        ("kind: token-classification\nlabels: [O, O]", "must not repeat"),
        ("kind: question-answering\nmetrics: [best_f1]", "need has_unanswerable: true"),
        ("kind: question-answering\ncolumns: [a]", "columns is not a field of this task type"),
    ],
)
def test_every_task_type_reports_wrong_fields(tmp_path, content, mistake):
    path = tmp_path / "own.yaml"
    path.write_text(content)
    with pytest.raises(AlignAttnError, match=mistake):
        read_definition(path)


def test_all_mistakes_are_reported_at_once(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("kind: text-classification\nlabel: y\nmetrics: accuracy")
    with pytest.raises(AlignAttnError, match=r"metrics should be .*; text_columns is missing; label is not a field"):
        read_definition(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AlignAttnError, match=r"there is no file .*own.yaml"):
        get_task(str(tmp_path / "own.yaml"))


def test_paths_in_a_task_file_are_relative_to_it(own_task, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rows = load_rows(get_task(f"../{own_task.name}"))
    assert (len(rows.train), len(rows.evaluation["validation"])) == (12, 12)


def test_a_split_without_a_file_is_named(own_task):
    own_task.write_text(OWN.replace(", validation: rows/dev.jsonl", ""))
    with pytest.raises(AlignAttnError, match=r"has no 'validation' split \(there: train\): add its file to sources"):
        load_rows(get_task(str(own_task)))


def test_a_task_without_sources_asks_for_them(own_task):
    own_task.write_text(OWN[: OWN.index("sources")])
    with pytest.raises(AlignAttnError, match=r"give --data_dir DIR with train.parquet$"):
        load_rows(get_task(str(own_task)))


def test_domain_shift_accepts_custom_tasks(own_task, tiny_checkpoint, tmp_path):
    (tmp_path / "other.yml").write_text(OWN)
    words = f"domain-shift --pair {own_task}-{tmp_path}/other.yml --model {tiny_checkpoint} --attention soft"
    words += f" --output_dir {tmp_path}/out --max_length 32 --num_train_epochs 1 --disable_tqdm true --use_cpu true"
    assert main(words.split()) == 0
    run = json.loads((tmp_path / "out" / "run" / "results.json").read_text())
    assert (run["task"], run["train_rows"], set(run["metrics"]["validation"])) == ("own-task", 12, METRICS)
    shifted = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [side["task"] for side in shifted["sides"].values()] == ["own-task", "other"]
    read_back = load_run_evaluation(read_run_options(tmp_path / "out" / "run"))
    assert len(read_back.evaluation["validation"]) == 12


def test_inspect_accepts_a_custom_task(own_task):
    task, rows = load_texts(InspectOptions(model="any", task=str(own_task), max_eval_samples=5))
    assert (task.name, len(rows)) == ("own-task", 5)


def test_a_model_of_mnli_is_evaluated_on_the_diagnostics(tiny_checkpoint, tmp_path):
    made = make_rows(TASKS["ax"], 12)
    named = [row | {"label": TASKS["ax"].labels[row["label"]]} for row in made]
    train, diagnostics = write_rows(tmp_path / "mnli.jsonl", made), write_rows(tmp_path / "ax.jsonl", named)
    words = f"finetune --task ax --train_file {train} --validation_file {diagnostics} --model {tiny_checkpoint}"
    words += f" --output_dir {tmp_path}/run --max_length 32 --num_train_epochs 1 --disable_tqdm true --use_cpu true"
    assert main(words.split()) == 0
    metrics = json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]
    assert list(metrics["validation"]) == ["matthews_correlation", "macro_f1"]


def test_the_diagnostics_are_not_trained_on(tmp_path):
    with pytest.raises(
        AlignAttnError, match="task 'ax' has no training rows: give the training rows of mnli as --train_file"
    ):
        load_rows(TASKS["ax"])


@pytest.mark.parametrize(
    ("option", "end"), [("validation_file", "defines one, or --validation_file"), (None, "defines one")]
)
def test_an_unknown_task_names_the_commands_own_option_for_a_file(option, end):
    with pytest.raises(AlignAttnError) as error:
        get_task("my rows", option)
    assert str(error.value).endswith(end)

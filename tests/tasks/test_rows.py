"""Rows and their sources: real data, a user's files, and every mistake."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
from needs import SHARED, needs_files

from alignattn.tasks import Sources, TextClassification
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.rows import load_rows, load_task_files, load_user_rows
from alignattn.utils.errors import AlignAttnError

SHARED_DATA = SHARED / "data"
needs_shared_data = needs_files(SHARED_DATA)

# Numbers of training and evaluation rows, from shared/data/README.md.
COUNTS = {
    "mrpc": (3668, {"validation": 408}),
    "cola": (8551, {"validation": 1043}),
    "rte": (2490, {"validation": 277}),
    "mnli": (None, {"validation_matched": 9815, "validation_mismatched": 1000}),
    "qnli": (4463, {"validation": 1000}),
    "qqp": (16212, {"validation": 4000}),
    "sst2": (67349, {"validation": 872}),
    "stsb": (5749, {"validation": 1500}),
    "snli": (9824, {"validation": 9842}),
    "twitterppdb": (None, {"test": 9324}),
    "agnews": (26218, {"validation": 2913, "test": 7600}),
    "amazonelectronics": (6385, {"validation": 800, "test": 800}),
    "amazonshort": (2128, {"validation": 266, "test": 266}),
    "amazonlong": (2128, {"validation": 266, "test": 266}),
}
TOY = TextClassification(
    name="toy",
    text_columns=("a", "b"),
    labels=("no", "yes"),
    metrics=("accuracy",),
    sources=Sources(config="default", folder="toy"),
)
GOOD = {"a": ["x y", "z", "w"], "b": ["p", "q", "r"], "label": [0, 1, 1]}


def test_a_task_may_be_the_third_with_the_fewest_or_the_most_words(toy_dir, cache_dir):
    lengths = [3, 1, 2, 5, 2, 9, 4]
    rows = {"a": [" ".join("w" * length) for length in lengths], "b": ["x"] * 7, "label": [0, 1, 0, 1, 0, 1, 0]}
    data_dir = toy_dir(train=rows, validation={name: values[:4] for name, values in rows.items()})
    found = {}
    for third in ("shortest", "longest"):
        loaded = load_rows(replace(TOY, length_third=third), data_dir=data_dir, cache_dir=cache_dir)
        found[third] = [len(text.split()) for text in loaded.train["a"]]
        assert loaded.derived["train"] == f"the 2 rows of 7 with the {third} texts"
        assert [number for number, _ in loaded.numbered("validation")] == [{"shortest": 1, "longest": 3}[third]]
        assert loaded.dropped == {"train": 0, "validation": 0}
    assert found == {"shortest": [1, 2], "longest": [5, 9]}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def toy_dir(tmp_path):
    """A function that writes splits of the toy task and returns the data folder."""

    def write(**splits):
        (tmp_path / "toy").mkdir(exist_ok=True)
        for name, columns in splits.items():
            pd.DataFrame(columns).to_parquet(tmp_path / "toy" / f"{name}.parquet")
        return tmp_path

    return write


def write_csv(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refusal(call):
    """The message of the error that a call must raise: one line."""
    with pytest.raises(AlignAttnError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_mentions(message, *parts):
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} missing in: {message}"


@needs_shared_data
@pytest.mark.parametrize("name", COUNTS)
def test_real_splits_load_whole(name, cache_dir):
    train, evaluation = COUNTS[name]
    rows = load_rows(TASKS[name], need_train=train is not None, data_dir=SHARED_DATA, cache_dir=cache_dir)
    assert len(rows.train) == (train or 0)
    assert {split: len(dataset) for split, dataset in rows.evaluation.items()} == evaluation
    assert set(rows.dropped.values()) == {0}


@needs_shared_data
def test_real_rows_are_those_of_the_file(cache_dir):
    rows = load_rows(TASKS["stsb"], data_dir=SHARED_DATA, cache_dir=cache_dir)
    frame = pd.read_parquet(SHARED_DATA / "glue/stsb/validation.parquet")[["sentence1", "sentence2", "label"]]
    pd.testing.assert_frame_equal(rows.evaluation["validation"].to_pandas()[frame.columns], frame)


@needs_shared_data
def test_mnli_without_a_train_split_says_what_to_do(cache_dir):
    message = refusal(lambda: load_rows(TASKS["mnli"], data_dir=SHARED_DATA, cache_dir=cache_dir))
    assert_mentions(
        message,
        "'mnli' has no 'train' split",
        str(SHARED_DATA / "glue" / "mnli"),
        "validation_matched, validation_mismatched",
        "leave out --data_dir",
        "--train_file",
    )


def test_a_derived_validation_split_is_a_fixed_tenth_of_the_training_rows(toy_dir, cache_dir):
    columns = {"a": [f"a{index}" for index in range(40)], "b": [f"b{index}" for index in range(40)]}
    labels = [index % 2 for index in range(40)]
    data_dir = toy_dir(train=columns | {"label": labels}, test=GOOD)
    task = replace(TOY, derives_validation=True, evaluation_splits=("validation", "test"))
    rows = load_rows(task, data_dir=data_dir, cache_dir=cache_dir)
    kept, drawn = rows.train["a"][:], rows.evaluation["validation"]["a"][:]
    assert len(drawn) == 4
    assert sorted(kept + drawn) == sorted(columns["a"])
    assert list(rows.evaluation) == ["validation", "test"]
    assert [number for number, _ in rows.numbered("validation")] == [0, 1, 2, 3]
    assert rows.derived == {"validation": "4 of the 40 training rows, drawn with seed 42"}
    again = load_rows(task, need_train=False, data_dir=data_dir, cache_dir=cache_dir)
    assert len(again.train) == 0
    assert again.evaluation["validation"]["a"][:] == drawn
    alone = load_rows(replace(task, evaluation_splits=("test",)), data_dir=data_dir, cache_dir=cache_dir)
    assert list(alone.evaluation) == ["test"]
    assert alone.train["a"][:] == kept


def test_missing_rows_are_reported_with_their_place(tmp_path, cache_dir):
    message = refusal(lambda: load_rows(TASKS["amazonelectronics"], cache_dir=cache_dir))
    assert_mentions(message, "is not on the Hub", "amazon_electronics/train.parquet")
    message = refusal(lambda: load_rows(TOY, data_dir=tmp_path))
    assert_mentions(message, str(tmp_path / "toy"), "leave out --data_dir")


def test_rows_without_a_label_are_dropped_and_counted(toy_dir, cache_dir):
    data_dir = toy_dir(train=GOOD, validation=GOOD | {"label": [-1, 1, -1]})
    rows = load_rows(TOY, data_dir=data_dir, cache_dir=cache_dir)
    assert rows.dropped == {"train": 0, "validation": 2}
    assert rows.evaluation["validation"][:] == {"a": ["z"], "b": ["q"], "label": [1]}


def test_rows_keep_their_numbers_if_others_are_left_out(toy_dir, cache_dir):
    texts = [f"text {number}" for number in range(7)]
    columns = {"a": texts, "b": [text if text != "text 3" else "" for text in texts], "label": [0, -1, 1, 1, -1, 9, 0]}
    data_dir = toy_dir(train=GOOD, validation=columns)
    rows = load_rows(TOY, data_dir=data_dir, cache_dir=cache_dir, skip_bad_rows=True)
    numbered = list(rows.numbered("validation"))
    assert [number for number, _ in numbered] == [0, 2, 6]
    assert all(row["a"] == texts[number] for number, row in numbered)
    assert [row for _, row in numbered] == list(rows.evaluation["validation"])
    assert rows.left_out == {"train": frozenset(), "validation": frozenset({1, 3, 4, 5})}


def test_scores_of_minus_one_are_dropped_if_out_of_range(toy_dir, cache_dir):
    task = replace(TOY, labels=(), label_range=(0.0, 5.0))
    data_dir = toy_dir(validation=GOOD | {"label": [5.0, -1.0, 0.0]})
    rows = load_rows(task, need_train=False, data_dir=data_dir, cache_dir=cache_dir)
    assert rows.dropped == {"validation": 1}
    assert rows.evaluation["validation"]["label"][:] == [5.0, 0.0]


@pytest.mark.parametrize(
    ("task", "labels", "parts"),
    [
        (TOY, [0, 2, 1], ["row 2: label 2", "0 to 1"]),
        (TOY, [0, 1, -2], ["row 3: label -2"]),
        (TOY, [0, 0.5, 1], ["row 2: label 0.5"]),
        (TOY, [0, None, 1], ["row 2: label None is not a class number from 0 to 1 (no, yes)"]),
        (TOY, ["no", "maybe", "yes"], ["row 2: label 'maybe'", "0 to 1 (no, yes)"]),
        (TOY, [-1, -1, -1], ["no labelled row"]),
        (
            replace(TOY, labels=(), label_range=(0.0, 5.0)),
            [0.0, 5.0, 5.1],
            ["row 3: label 5.1", "0 to 5"],
        ),
    ],
)
def test_wrong_labels_name_file_row_and_value(toy_dir, cache_dir, task, labels, parts):
    data_dir = toy_dir(validation=GOOD | {"label": labels})
    message = refusal(lambda: load_rows(task, need_train=False, data_dir=data_dir, cache_dir=cache_dir))
    assert_mentions(message, *parts, str(data_dir / "toy" / "validation.parquet"))


@pytest.mark.parametrize("text", ["", " \t", None])
def test_empty_text_names_the_row(toy_dir, cache_dir, text):
    data_dir = toy_dir(validation=GOOD | {"b": ["p", "q", text]})
    for skip, advises in ((False, True), (None, False)):
        message = refusal(
            lambda: load_rows(TOY, need_train=False, data_dir=data_dir, cache_dir=cache_dir, skip_bad_rows=skip)  # noqa: B023
        )
        assert_mentions(message, "validation.parquet, row 3: column 'b' is empty (1 bad of 3 rows)")
        assert ("--skip_bad_rows" in message) == advises


def test_missing_column_lists_those_there(toy_dir, cache_dir):
    data_dir = toy_dir(validation={"a": ["x"], "text": ["y"], "label": [1]})
    message = refusal(lambda: load_rows(TOY, need_train=False, data_dir=data_dir, cache_dir=cache_dir))
    assert_mentions(message, "no column 'b'", "a, text, label", "rename the columns")


def test_hub_rows_load_and_keep_empty_texts(toy_dir, cache_dir):
    data_dir = toy_dir(train=GOOD | {"b": ["p", "", "r"]}, validation=GOOD | {"label": [-1, 0, 1]})
    # `datasets` reads a folder as it reads a Hub repository.
    task = replace(TOY, sources=Sources(hub=str(data_dir / "toy"), config="default"))
    rows = load_rows(task, cache_dir=cache_dir)
    assert rows.train["b"][:] == ["p", "", "r"]
    assert rows.dropped == {"train": 0, "validation": 1}


def test_a_missing_hub_split_is_reported(toy_dir, cache_dir):
    sources = Sources(hub=str(toy_dir(train=GOOD) / "toy"), config="default")
    task = replace(TOY, sources=sources, evaluation_splits=("validation_matched",))
    message = refusal(lambda: load_rows(task, cache_dir=cache_dir))
    assert_mentions(message, "split 'validation_matched' of", "Should be one of ['train']", "--train_file")


def test_hub_out_of_reach_names_the_other_sources():
    """`conftest.py` sets HF_HUB_OFFLINE and an empty home."""
    message = refusal(lambda: load_rows(TASKS["mrpc"]))
    assert_mentions(message, "split 'train' of nyu-mll/glue (mrpc)", "--data_dir", "--train_file")


def test_files_of_rows_leave_nothing_in_the_user_s_cache(tmp_path):
    file = tmp_path / "rows.parquet"
    pd.DataFrame({"text": ["one", "two"], "y": ["a", "b"]}).to_parquet(file)
    code = (
        "import sys\nfrom alignattn.tasks.rows import load_user_rows\n"
        "rows = load_user_rows(sys.argv[1], None, ('text',), 'y')\n"
        "print(rows.train.map(lambda row: row)['text'][:])"
    )
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    environment = kept | {"HF_HUB_OFFLINE": "1", "HOME": str(home)}
    command = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['one', 'two']\n"
    assert list(home.rglob("*.arrow")) == []
    assert not (home / ".cache" / "huggingface" / "datasets").exists()


def load_one(path, text_columns=("text",), label="y"):
    return load_user_rows(path, None, text_columns, label)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet", ".CSV"])
def test_every_format_reads_the_same(tmp_path, cache_dir, suffix):
    records = [{"s": 'a, "b"', "t": "naïve\nline", "y": "pos"}, {"s": "c", "t": "d", "y": "neg"}]
    frame, path = pd.DataFrame(records), tmp_path / f"train{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(records), encoding="utf-8")
    elif suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    rows = load_user_rows(path, path, ("t", "s"), "y", cache_dir=cache_dir)
    task = rows.task
    assert (task.text_columns, task.label_column, task.labels) == (("t", "s"), "y", ("neg", "pos"))
    assert rows.train[:] == {"t": ["naïve\nline", "d"], "s": ['a, "b"', "c"], "y": [1, 0]}
    assert rows.evaluation["validation"][:] == rows.train[:]


def test_training_classes_number_the_validation_labels(tmp_path):
    train = write_csv(tmp_path / "train.csv", "text,y", "u,b", "v,c", "w,a")
    validation = write_csv(tmp_path / "val.csv", "text,y", "u,c", "v,c")
    rows = load_user_rows(train, validation, ["text"], "y")
    task = rows.task
    assert task.labels == ("a", "b", "c")
    assert rows.train.features["y"].dtype == "int64"
    assert rows.train["y"][:] == [1, 2, 0]
    assert rows.evaluation["validation"]["y"][:] == [2, 2]
    assert task.metrics == ("accuracy", "macro_f1", "matthews_correlation")


def test_integers_are_classes_and_minus_one_is_dropped(tmp_path):
    train = write_csv(tmp_path / "train.csv", "text,y", "u,1", "v,-1", "w,0", "x,2")
    validation = write_csv(tmp_path / "val.csv", "text,y", "u,-1", "v,2")
    rows = load_user_rows(train, validation, ["text"], "y")
    task = rows.task
    assert (task.labels, rows.dropped) == (("0", "1", "2"), {"train": 1, "validation": 1})
    assert rows.train[:] == {"text": ["u", "w", "x"], "y": [1, 0, 2]}
    assert rows.evaluation["validation"][:] == {"text": ["v"], "y": [2]}


def test_real_numbers_are_a_regression_in_which_minus_one_is_a_score(tmp_path):
    train = write_csv(tmp_path / "train.csv", "text,y", "u,0.5", "v,-1", "w,2e3")
    validation = write_csv(tmp_path / "val.csv", "text,y", "u,3")
    rows = load_user_rows(train, validation, ["text"], "y")
    task = rows.task
    assert task.is_regression
    assert task.metrics == ("pearson", "spearmanr", "mse", "mae")
    assert rows.train["y"][:] == [0.5, -1.0, 2000.0]
    assert rows.evaluation["validation"]["y"][:] == [3.0]


def test_a_changed_file_is_read_again(tmp_path, cache_dir):
    path = tmp_path / "train.parquet"
    for texts in (["old", "older"], ["brand-new", "newer"]):
        pd.DataFrame({"text": texts, "y": [0, 1]}).to_parquet(path)
        rows = load_user_rows(path, None, ["text"], "y", cache_dir=cache_dir)
        assert rows.train["text"][:] == texts


def test_reading_is_quiet_and_leaves_the_settings_of_datasets(tmp_path, cache_dir, capfd):
    before = (datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled())
    path = tmp_path / "t.parquet"
    pd.DataFrame({"text": ["u", "v"], "y": [0, 1]}).to_parquet(path)
    load_user_rows(path, None, ["text"], "y", cache_dir=cache_dir)
    assert capfd.readouterr() == ("", "")
    assert (datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()) == before


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.jsonl", b'{"text": "u", "y": 0}\n{"text": "v", "y": "b"}\n', ["mix numbers and names"]),
        ("t.csv", b"text,label\nu,0\n", ["no column 'y'", "text, label", "give one of them to --label_column"]),
        ("t.csv", b"text,y\nu,0\n,1\n", ["row 2: column 'text' is empty"]),
        ("t.csv", b"text,y\nu,0\nv,\n", ["row 2: it has no label"]),
        ("t.csv", b"text,y\nu,a\nv,a\n", ["every label", "'a'", "two classes"]),
        ("t.csv", b"text,y\nu,-1\nv,-1\n", ["no labelled row"]),
        ("t.csv", b"text,y\nu,0\nv,1\nw,two\n", ["mix numbers and names", "'two' in row 3"]),
        ("t.csv", b"text,y\nu,0.5\nv,nan\n", ["mix numbers and names", "'nan' in row 2"]),
        ("t.jsonl", b'{"text": "u", "y": 0}\n{"text": "v"}\n', ["row 2: it has no label"]),
        ("t.jsonl", b'{"text": 5, "y": 0}\n', ["row 1: column 'text' is not text (5)"]),
    ],
)
def test_bad_files_are_refused(tmp_path, cache_dir, name, content, parts):
    path = tmp_path / name
    path.write_bytes(content)
    assert_mentions(refusal(lambda: load_user_rows(path, None, ["text"], "y", cache_dir=cache_dir)), *parts)


def test_parquet_without_rows_or_with_an_infinite_score_is_refused(tmp_path, cache_dir):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"text": pd.Series([], dtype="str"), "y": pd.Series([], dtype="int64")}).to_parquet(path)
    assert_mentions(refusal(lambda: load_one(path)), "t.parquet is empty")
    pd.DataFrame({"text": ["u", "v"], "y": [0.5, np.inf]}).to_parquet(path)
    message = refusal(lambda: load_user_rows(path, None, ["text"], "y", cache_dir=cache_dir))
    assert_mentions(message, "row 2: label inf", "finite number")


@pytest.mark.parametrize("missing", ["train", "validation"])
def test_missing_file_is_named(tmp_path, missing):
    files = {n: write_csv(tmp_path / f"{n}.csv", "text,y", "u,0", "v,1") for n in ("train", "validation")}
    files[missing].unlink()
    message = refusal(lambda: load_user_rows(files["train"], files["validation"], ["text"], "y"))
    assert_mentions(message, "no file", str(files[missing]))


@pytest.mark.parametrize(
    ("train_labels", "label", "parts"),
    [
        (("a", "b"), "c", ["row 1: label 'c'", "val.csv", "training file (a, b"]),
        (("a", "b"), "0", ["row 1: label 0", "training file (a, b"]),
        (("0", "1"), "2", ["row 1: label 2", "training file (0, 1"]),
        (("0", "1"), "0.5", ["row 1: label 0.5"]),
        (("0.5", "1.5"), "high", ["row 1: label 'high'", "not a number"]),
        (tuple(f"class{n:02}" for n in range(12)), "x", ["class00", "class09 and 2 more"]),
    ],
)
def test_unseen_validation_labels_are_named(tmp_path, train_labels, label, parts):
    train = write_csv(tmp_path / "train.csv", "text,y", *(f"u,{name}" for name in train_labels))
    validation = write_csv(tmp_path / "val.csv", "text,y", f"v,{label}")
    assert_mentions(refusal(lambda: load_user_rows(train, validation, ["text"], "y")), *parts)


@pytest.mark.parametrize(
    ("text_columns", "part"),
    [((), "not 0"), (("a", "b", "c"), "not 3"), (("a", "a"), "duplicate column"), (("a", "y"), "duplicate column")],
)
def test_impossible_columns_are_refused(tmp_path, text_columns, part):
    path = write_csv(tmp_path / "t.csv", "a,b,c,y", "u,v,w,0")
    assert_mentions(refusal(lambda: load_one(path, text_columns)), part)


@pytest.mark.parametrize("labels", [["0", "1.0", " 1"], ["no", "yes", "yes"], [0, "yes", 1.0]])
def test_labels_of_a_task_may_be_text(tmp_path, cache_dir, labels):
    path = tmp_path / "own.csv"
    pd.DataFrame(GOOD | {"label": labels}).to_csv(path, index=False)
    rows = load_task_files(TOY, path, None, cache_dir=cache_dir)
    assert rows.train["label"][:] == [0, 1, 1]


def test_real_scores_of_a_csv_file_are_numbers(tmp_path, cache_dir):
    path = write_csv(tmp_path / "own.csv", "a,b,label", "x,y,4.5", "x,z,5")
    task = replace(TOY, labels=(), label_range=(0.0, 5.0))
    rows = load_task_files(task, path, path, cache_dir=cache_dir)
    assert rows.evaluation["validation"]["label"][:] == [4.5, 5.0]


def test_an_integer_of_any_size_is_a_class(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": "cat", "label": label}) for label in (0, 1, 2**70)))
    assert load_user_rows(path, None, ["text"], "label").task.labels == ("0", "1", str(2**70))

"""Labels of files: names before numbers, codes as written, and hints at labels that may mean something else."""

import datetime
import json
from decimal import Decimal
from typing import Any

import datasets
import pandas as pd
import pytest

from alignattn.tasks import MultiLabelClassification, MultipleChoice, TextClassification, TokenClassification
from alignattn.tasks.definitions import TASKS, get_task
from alignattn.tasks.rows import (
    load_rows,
    load_task_files,
    load_user_rows,
)
from alignattn.utils.errors import AlignAttnError

CLASSES = ["neg", "pos"]
TRUE = ["neg", "pos", "pos", "neg"]
"""The classes of four rows."""


def named_file(path, names, labels, *, in_list=False):
    """Write texts whose class numbers have names, as `datasets` stores them; an integer label is written unchanged."""
    numbers: list[Any] = [names.index(label) if isinstance(label, str) else label for label in labels]
    feature: Any = datasets.ClassLabel(names=list(names))
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.List(feature) if in_list else feature}
    )
    columns = {"text": texts(labels), "label": [[number] for number in numbers] if in_list else numbers}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(path)
    return path


def csv_file(path, labels):
    pd.DataFrame({"text": texts(labels), "label": labels}).to_csv(path, index=False)
    return path


def json_file(path, labels):
    path.write_text("\n".join(json.dumps({"text": "a", "label": label}) for label in labels))
    return path


def texts(labels):
    return [f"text {number}" for number in range(len(labels))]


def load(train, validation=None, *, skip=False):
    return load_user_rows(train, validation, ["text"], "label", skip_bad_rows=skip)


def names_of(rows, split):
    """The classes of the rows of a split, by name."""
    dataset = rows.train if split == "train" else rows.evaluation[split]
    assert dataset is not None
    return [rows.task.labels[number] for number in dataset[rows.task.label_column]]


def refusal(train, validation=None, *, skip=False):
    with pytest.raises(AlignAttnError) as caught:
        load(train, validation, skip=skip)
    return str(caught.value)


@pytest.mark.parametrize("in_list", [False, True])
def test_numbers_mean_their_names_in_any_order(tmp_path, in_list):
    train = named_file(tmp_path / "train.parquet", CLASSES, TRUE, in_list=in_list)
    validation = named_file(tmp_path / "val.parquet", CLASSES[::-1], TRUE, in_list=in_list)
    rows = load(train, validation)
    assert rows.task.labels == ("neg", "pos")
    assert (names_of(rows, "train"), names_of(rows, "validation")) == (TRUE, TRUE)


def test_class_names_of_a_file_give_their_order_and_the_classes_without_rows(tmp_path):
    rows = load(named_file(tmp_path / "train.parquet", ["pos", "other", "neg"], TRUE))
    assert rows.task.labels == ("pos", "other", "neg")
    assert names_of(rows, "train") == TRUE


@pytest.mark.parametrize("is_named", ["train", "validation"])
def test_a_file_of_names_fits_a_file_of_named_numbers(tmp_path, is_named):
    files = {
        split: named_file(tmp_path / f"{split}.parquet", CLASSES[::-1], TRUE)
        if split == is_named
        else csv_file(tmp_path / f"{split}.csv", TRUE)
        for split in ("train", "validation")
    }
    rows = load(files["train"], files["validation"])
    assert (names_of(rows, "train"), names_of(rows, "validation")) == (TRUE, TRUE)


@pytest.mark.parametrize("named", ["train", "validation"])
def test_numbers_next_to_named_numbers_get_their_names_with_a_message(tmp_path, capsys, named):
    has_names = named_file(tmp_path / "names.parquet", CLASSES[::-1], TRUE)
    # In the order of the other file, 0 is pos.
    numbers = csv_file(tmp_path / "numbers.csv", [1, 0, 0, 1])
    rows = load(*((has_names, numbers) if named == "train" else (numbers, has_names)))
    assert (names_of(rows, "train"), names_of(rows, "validation")) == (TRUE, TRUE)
    said = capsys.readouterr().err
    assert str(numbers) in said
    assert "0 = pos, 1 = neg" in said


@pytest.mark.parametrize("named", ["train", "validation"])
@pytest.mark.parametrize("skip", [False, True])
def test_numbers_out_of_range_next_to_named_numbers_are_refused(tmp_path, named, skip):
    has_names = named_file(tmp_path / "names.parquet", CLASSES, TRUE)
    numbers = csv_file(tmp_path / "numbers.csv", [1, 2, 2, 1])
    message = refusal(*((has_names, numbers) if named == "train" else (numbers, has_names)), skip=skip)
    assert all(part in message for part in (str(has_names), str(numbers), "0 = neg, 1 = pos", "1, 2"))


def test_names_that_are_integers_are_names_unless_ambiguous(tmp_path):
    stars = ["1", "2", "3"]
    true = ["1", "3", "2", "1"]
    train = named_file(tmp_path / "train.parquet", stars, true)
    assert names_of(load(train, csv_file(tmp_path / "named.csv", true)), "validation") == true
    assert names_of(load(train, csv_file(tmp_path / "numbered.csv", [0, 2, 1, 0])), "validation") == true
    message = refusal(train, csv_file(tmp_path / "either.csv", [1, 2, 2, 1]))
    assert "either.csv" in message


def test_rows_labelled_minus_one_stay_unlabelled(tmp_path):
    train = named_file(tmp_path / "train.parquet", CLASSES, [-1, *TRUE])
    validation = named_file(tmp_path / "val.parquet", CLASSES[::-1], [*TRUE, -1])
    rows = load(train, validation)
    assert rows.dropped == {"train": 1, "validation": 1}
    assert (names_of(rows, "train"), names_of(rows, "validation")) == (TRUE, TRUE)
    numbers = csv_file(tmp_path / "numbers.csv", [0, 1, -1])
    assert load(train, numbers).dropped == {"train": 1, "validation": 1}


def test_labels_of_minus_one_beside_others_are_counted_before_the_training(tmp_path, capsys):
    assert load(csv_file(tmp_path / "signs.csv", [-1, 0, 1, -1])).dropped == {"train": 2}
    assert "label -1 (2 of 4 rows) marks rows without a label" in capsys.readouterr().err
    assert load(csv_file(tmp_path / "words.csv", ["minus", "zero", "plus"])).dropped == {"train": 0}
    assert capsys.readouterr().err == ""


def test_a_missing_class_is_a_row_without_a_label(tmp_path):
    path = named_file(tmp_path / "train.parquet", CLASSES, [*TRUE, None])
    assert "row 5: it has no label" in refusal(path)
    assert names_of(load(path, skip=True), "train") == TRUE


@pytest.mark.parametrize("name", ["rte", "mnli", "agnews"])
def test_a_shipped_task_reads_numbers_by_name(tmp_path, name):
    task: Any = TASKS[name]
    true = [*task.labels, task.labels[0]]
    path = tmp_path / "rows.parquet"
    names = [*task.labels[1:], task.labels[0]]
    features = {column: datasets.Value("string") for column in task.text_columns}
    dataset = datasets.Dataset.from_dict(
        {column: texts(true) for column in task.text_columns} | {"label": [names.index(label) for label in true]},
        features=datasets.Features(features | {"label": datasets.ClassLabel(names=names)}),
    )
    dataset.to_parquet(path)
    rows = load_task_files(task, path, path)
    assert (names_of(rows, "train"), names_of(rows, "validation")) == (true, true)
    dataset.cast_column("label", datasets.ClassLabel(names=["x", "y", "z", "w"][: len(names)])).to_parquet(path)
    with pytest.raises(AlignAttnError, match=r"row 1.*'[xyzw]'"):
        load_task_files(task, path, None)


def test_a_task_file_reads_all_its_splits_by_name(tmp_path, capsys):
    named_file(tmp_path / "train.parquet", CLASSES, TRUE)
    named_file(tmp_path / "val.parquet", CLASSES[::-1], [-1, *TRUE])
    csv_file(tmp_path / "names.csv", TRUE)
    csv_file(tmp_path / "numbers.csv", [1, 0, 0, 1])
    (tmp_path / "own.yaml").write_text(
        "kind: text-classification\ntext_columns: [text]\nlabels: [pos, neg]\nmetrics: [accuracy]\n"
        "evaluation_splits: [validation, test, more]\n"
        "sources: {files: {train: train.parquet, validation: val.parquet, test: names.csv, more: numbers.csv}}\n"
    )
    rows = load_rows(get_task(str(tmp_path / "own.yaml")))
    assert {split: names_of(rows, split) for split in ("train", *rows.evaluation)} == dict.fromkeys(
        ("train", "validation", "test", "more"), TRUE
    )
    said = capsys.readouterr().err
    assert "numbers.csv" in said
    assert "0 = pos, 1 = neg" in said
    assert "names.csv" not in said


OWN = TextClassification(name="own", text_columns=("text",), labels=("pos", "neg"), metrics=("accuracy",))
STARS = TextClassification(name="stars", text_columns=("text",), labels=("1", "2", "3"), metrics=("accuracy",))


@pytest.mark.parametrize("write", [csv_file, json_file])
def test_a_task_with_integer_names_reads_names_and_numbers(tmp_path, write):
    for name, labels in {"named": [1, 2, 3], "numbered": [0, 1, 2]}.items():
        path = write(tmp_path / name, labels).rename(tmp_path / f"{name}.{'csv' if write is csv_file else 'jsonl'}")
        assert names_of(load_task_files(STARS, path, None), "train") == ["1", "2", "3"]


@pytest.mark.parametrize("write", [csv_file, json_file])
def test_numbers_with_a_point_mean_the_names_of_integers(tmp_path, write):
    """As pandas writes integers beside a missing label: 1.0 was class number 1, which is called 2."""
    suffix = "csv" if write is csv_file else "jsonl"
    path = write(tmp_path / "rows", [3.0, 1.0, None, 2.0]).rename(tmp_path / f"rows.{suffix}")
    assert names_of(load_task_files(STARS, path, None, skip_bad_rows=True), "train") == ["3", "1", "2"]


def test_booleans_are_read_by_name(tmp_path):
    task = TextClassification(name="own", text_columns=("text",), labels=("False", "True"), metrics=("accuracy",))
    path = json_file(tmp_path / "rows.jsonl", [True, False])
    assert names_of(load_task_files(task, path, None), "train") == ["True", "False"]


def test_numbers_that_may_be_names_are_refused(tmp_path):
    with pytest.raises(AlignAttnError, match=r"1, 2.*'stars'"):
        load_task_files(STARS, json_file(tmp_path / "rows.jsonl", [1, 2]), None)
    assert names_of(load_task_files(STARS, csv_file(tmp_path / "rows.csv", [1, 2]), None), "train") == ["1", "2"]


def test_class_numbers_of_endings_may_be_named_1_and_2(tmp_path):
    task = MultipleChoice(name="own", context_column="c", ending_columns=("e", "f"), labels=("A", "B"))
    features = dict.fromkeys("cef", datasets.Value("string")) | {"label": datasets.ClassLabel(names=["1", "2"])}
    columns = {column: ["x", "y"] for column in "cef"} | {"label": [1, 0]}
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(tmp_path / "rows.parquet")
    assert names_of(load_task_files(task, tmp_path / "rows.parquet", None), "train") == ["B", "A"]


def test_multi_label_columns_are_read_by_their_names_for_yes_and_no(tmp_path):
    for name, words in {"train": ["no", "yes"], "val": ["yes", "no"]}.items():
        feature = datasets.ClassLabel(names=words)
        columns = {"text": ["u", "v"], "a": [words.index("yes"), words.index("no")], "b": [words.index("no")] * 2}
        features = datasets.Features({"text": datasets.Value("string"), "a": feature, "b": feature})
        datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / f"{name}.parquet")
    files = tmp_path / "train.parquet", tmp_path / "val.parquet"
    task = MultiLabelClassification(name="own", text_columns=("text",), label_columns=("a", "b"))
    rows = load_task_files(task, *files)
    assert rows.train[:] == rows.evaluation["validation"][:] == {"text": ["u", "v"], "a": [1, 0], "b": [0, 0]}


def test_tags_are_read_by_name(tmp_path):
    tags = [["B-PER", "O"], ["O", "O"]]
    for name, names in {"train": ["O", "B-PER"], "val": ["B-PER", "O"]}.items():
        feature = datasets.List(datasets.ClassLabel(names=names))
        features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": feature})
        columns = {"tokens": [["Ann", "sees"]] * 2, "tags": [[names.index(tag) for tag in row] for row in tags]}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / f"{name}.parquet")
    rows = load_task_files(
        TokenClassification(name="own", tags_column="tags"), tmp_path / "train.parquet", tmp_path / "val.parquet"
    )
    assert rows.evaluation["validation"]["tags"][:] == tags


def test_a_list_of_one_label_is_that_label(tmp_path):
    path = json_file(tmp_path / "rows.jsonl", [[label] for label in TRUE])
    assert names_of(load(path), "train") == TRUE
    assert names_of(load_task_files(OWN, path, None), "train") == TRUE


def test_a_bad_label_beside_integers_leaves_them_names(tmp_path):
    path = json_file(tmp_path / "rows.jsonl", [1, 2, 3, 2.5])
    rows = load_task_files(STARS, path, None, skip_bad_rows=True)
    assert names_of(rows, "train") == ["1", "2", "3"]
    assert [bad.row for bad in rows.bad_rows["train"]] == [4]


def test_integers_are_names_or_numbers_in_all_files(tmp_path):
    numbers = csv_file(tmp_path / "train.csv", [0, 1, 2])
    assert names_of(load_task_files(STARS, numbers, None), "train") == ["1", "2", "3"]
    # By themselves, these would be names.
    with pytest.raises(AlignAttnError, match=r"train\.csv and .*val\.csv differ in whether integers are names"):
        load_task_files(STARS, numbers, csv_file(tmp_path / "val.csv", [1, 2]))


def test_a_marker_of_a_missing_label_in_json_is_no_class(tmp_path):
    message = refusal(json_file(tmp_path / "rows.jsonl", [0, 1, "-", 1]))
    assert "mix numbers and names (0 in row 1, '-' in row 3)" in message
    assert names_of(load(json_file(tmp_path / "codes.jsonl", ["01", 1, "02", 2])), "train") == ["01", "1", "02", "2"]


@pytest.mark.parametrize("label", [["pos", "neg"], {"name": "pos"}, b"pos", datetime.date(2020, 1, 1)])
@pytest.mark.parametrize("is_declared", [False, True])
def test_labels_of_a_wrong_type_are_refused_with_their_row(tmp_path, label, is_declared):
    path = tmp_path / "rows.parquet"
    skip = not isinstance(label, list)
    pd.DataFrame({"text": ["u", "v"], "label": [None if skip else ["pos"], label]}).to_parquet(path)
    with pytest.raises(AlignAttnError) as caught:
        load_task_files(OWN, path, None, skip_bad_rows=skip) if is_declared else load(path, skip=skip)
    message = str(caught.value)
    # A file without any good row names the first bad one.
    assert "no usable row" in message if skip else ("row 2" in message and "--label_column" in message)


def test_only_rows_with_bad_labels_are_skipped(tmp_path):
    rows = load(json_file(tmp_path / "rows.jsonl", [["pos"], ["pos", "neg"], {"a": 1}, "neg", []]), skip=True)
    assert names_of(rows, "train") == ["pos", "neg"]
    assert [bad.row for bad in rows.bad_rows["train"]] == [2, 3, 5]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["0101", "101", "0202"], ("0101", "0202", "101")),
        (["01", "02"], ("01", "02")),
        (["007", "A12", "12"], ("007", "12", "A12")),
        (["+1", "-1", "1"], ("+1", "-1", "1")),
        (["nan", "inf", "1e3", "1_000", "0x1", "True"], ("0x1", "1_000", "1e3", "True", "inf", "nan")),
        (["1e3", "2e3"], ("1e3", "2e3")),
        (["10", "9", "-3"], ("-3", "9", "10")),
        (["1.5", "2", "1e-05", "+3.0"], ()),
    ],
)
@pytest.mark.parametrize("write", [csv_file, json_file])
def test_codes_and_names_stay_as_written(tmp_path, labels, classes, write):
    path = tmp_path / ("rows.csv" if write is csv_file else "rows.jsonl")
    rows = load(write(path, labels), path)
    assert rows.task.labels == classes
    if classes:
        assert names_of(rows, "train") == names_of(rows, "validation") == labels
    else:
        assert rows.train["label"][:] == list(map(float, labels))


def test_decimals_of_parquet_are_numbers(tmp_path):
    pd.DataFrame({"text": ["u", "v"], "label": [Decimal("1"), Decimal("0")]}).to_parquet(tmp_path / "rows.parquet")
    assert load(tmp_path / "rows.parquet").task.labels == ("0", "1")


@pytest.mark.parametrize(("train", "label"), [(["1", "2"], "01"), (["01", "02"], "1")])
def test_codes_of_another_length_are_other_classes(tmp_path, train, label):
    message = refusal(csv_file(tmp_path / "train.csv", train), csv_file(tmp_path / "val.csv", [label]))
    assert "val.csv, line 2, row 1" in message


@pytest.mark.parametrize("label", ["01", "1_0", "0x1", "1e0", "True"])
def test_labels_that_only_a_number_parser_accepts_are_refused(tmp_path, label):
    with pytest.raises(AlignAttnError, match=f"row 2: label '{label}'"):
        load_task_files(OWN, csv_file(tmp_path / "rows.csv", ["0", label]), None)


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_integers_with_a_missing_label_are_classes(tmp_path, capsys, form):
    path = tmp_path / f"rows.{form}"
    frame = pd.DataFrame({"text": texts(range(5)), "label": [1.0, 0.0, None, 1.0, 0.0]})
    if form == "jsonl":
        rows = frame.to_dict("records")
        path.write_text("\n".join(json.dumps(row) for row in rows))
        assert "NaN" in path.read_text()
    else:
        frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
    assert "row 3: it has no label" in refusal(path)
    loaded = load(path, path, skip=True)
    assert loaded.task.labels == ("0", "1")
    assert names_of(loaded, "train") == names_of(loaded, "validation") == ["1", "0", "1", "0"]
    assert str(path) in capsys.readouterr().err


def test_a_missing_label_in_the_validation_file_alone_changes_no_class(tmp_path):
    train, validation = csv_file(tmp_path / "train.csv", [0, 1]), csv_file(tmp_path / "val.csv", [1.0, None, 0.0])
    assert names_of(load(train, validation, skip=True), "validation") == ["1", "0"]


def test_whole_scores_are_scores_with_a_hint(tmp_path, capsys):
    path = csv_file(tmp_path / "rows.csv", [1.0, 2.0, 4.0])
    assert load(path).task.is_regression
    assert str(path) in capsys.readouterr().err
    many = csv_file(tmp_path / "many.csv", [*map(float, range(30)), None])
    assert load(many, skip=True).task.is_regression
    assert load(csv_file(tmp_path / "real.csv", [0.5, 1.0, None]), skip=True).task.is_regression
    assert capsys.readouterr().err == ""


def test_a_decimal_comma_gives_a_hint(tmp_path, capsys):
    rows = load(csv_file(tmp_path / "rows.csv", ["1,5", "2,0", "1,000"]))
    assert rows.task.labels == ("1,000", "1,5", "2,0")
    said = capsys.readouterr().err
    assert "rows.csv" in said
    assert "1.5" in said
    load(csv_file(tmp_path / "thousands.csv", ["1.234,5", "2.000,5"]))
    assert "1234.5" in capsys.readouterr().err
    assert "2,5" in refusal(csv_file(tmp_path / "mixed.csv", ["2", "2,5"]))
    assert "decimal point" in refusal(csv_file(tmp_path / "many.csv", [f"{number},5" for number in range(50)]))
    task = TextClassification(name="own", text_columns=("text",), metrics=("mse",))
    with pytest.raises(AlignAttnError, match=r"'1,5'.*decimal point"):
        load_task_files(task, csv_file(tmp_path / "score.csv", ["1.5", "1,5"]), None)


@pytest.mark.parametrize("marker", ["-", "NA", "unsup", "None", "?", "_"])
def test_a_class_that_may_mark_no_label_is_named_and_counted(tmp_path, capsys, marker):
    path = csv_file(tmp_path / "rows.csv", ["pos", marker, "neg", marker])
    assert marker in load(path).task.labels
    said = capsys.readouterr().err
    assert f"{marker!r} is read as a class (2 of 4 rows)" in said


@pytest.mark.parametrize("labels", [["pos", "neg"], ["+", "-"], [1, -1], ["a-b", "c"]])
def test_usual_classes_give_no_hint(tmp_path, capsys, labels):
    load(csv_file(tmp_path / "rows.csv", labels))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "twin", ["cafe\u0301", "caf\u00e9\u200b", "\ufeffcaf\u00e9", '"caf\u00e9"', "Caf\u00e9", "\u2018caf\u00e9\u2019"]
)
def test_classes_that_look_alike_are_named_and_counted(tmp_path, capsys, twin):
    name = "caf\u00e9"
    path = json_file(tmp_path / "rows.jsonl", [name, twin, twin, "tea"])
    assert set(load(path).task.labels) == {name, twin, "tea"}
    said = capsys.readouterr().err
    assert ascii(name)[1:-1] in said
    assert ascii(twin)[1:-1] in said
    assert "(1 of 4 rows)" in said
    assert "(2 of 4 rows)" in said
    message = refusal(json_file(tmp_path / "train.jsonl", [name, "tea"]), path)
    assert ascii(name)[1:-1] in message


def test_a_rare_class_that_resembles_a_frequent_one_is_named_with_its_row(tmp_path, capsys):
    def hints(*labels):
        load(csv_file(tmp_path / "rows.csv", labels))
        return capsys.readouterr().err

    hint = "label 'repiar' (row 41) may be a typing error for 'repair' (60 of 111 rows)"
    assert hint in hints(*["repair"] * 40, "repiar", *["repair"] * 20, *["return"] * 50)
    # Names that differ in numbers or more letters, and classes with more rows, are meant.
    assert hints(*["level 1"] * 60, "level 2", "refund") == ""
    assert hints(*["repair"] * 60, *["repiar"] * 4) == ""
    assert hints(*["repair"] * 20, "repiar") == ""

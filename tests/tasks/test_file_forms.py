"""Rows of files with repeated headers, folders, and labels of any kind."""

import json

import pytest

from alignattn.cli import main
from alignattn.commands import get_command
from alignattn.tasks.rows import load_user_rows
from alignattn.utils.errors import AlignAttnError


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("rows.csv", "text,y", "text,y"),
        ("rows.csv", "text,y", "\ufefftext,y\r"),
        ("rows.csv", "text,y", '\ufeff"text","y"'),
        ("rows.csv", "text,y", " Text ,Y"),
        ("rows.csv", '"text";"y"', "TEXT;Y"),
        ("rows.csv", ",text,y", ",text,y"),
        ("rows.tsv", "text\ty", '"text"\t"Y"'),
    ],
)
def test_a_header_in_the_middle_is_a_bad_row(tmp_path, name, first, again, capsys):
    separator = next(one for one in ";\t," if one in first)
    rows = [["so so", "no"], ["the text", "y"], ["text", "yes"], ["fine", "no"]]
    lines = [separator.join(([str(number)] if first[0] == "," else []) + row) for number, row in enumerate(rows)]
    (tmp_path / name).write_text("\n".join([first, *lines[:3], again, *lines[3:]]), encoding="utf-8")
    with pytest.raises(AlignAttnError, match=r"row 4: it repeats the header.*1 bad of 5 rows"):
        load_user_rows(tmp_path / name, None, ["text"], "y", skip_bad_rows=False)
    read = load_user_rows(tmp_path / name, tmp_path / name, ["text"], "y", skip_bad_rows=True)
    assert read.task.labels == ("no", "y", "yes")
    for split in (read.train, read.evaluation["validation"]):
        assert split["text"][:] == [text for text, _ in rows]
    assert {name: [bad.row for bad in bad] for name, bad in read.bad_rows.items()} == {"train": [4], "validation": [4]}


def test_a_header_among_numbers_is_one_bad_row(tmp_path):
    (tmp_path / "rows.csv").write_text("text,score\na,0.5\nb,1\ntext,score\nc,2.5\n")
    read = load_user_rows(tmp_path / "rows.csv", None, ["text"], "score", skip_bad_rows=True)
    assert read.task.is_regression
    assert read.train["score"][:] == [0.5, 1, 2.5]


def test_class_folders_of_texts_are_read(tmp_path):
    texts = {"pos/1.txt": "good\nfilm", "pos/2.txt": "fine", "neg/b.txt": "bad", "neg/more/c.txt": "?"}
    for name, text in texts.items():
        (tmp_path / "reviews" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "reviews" / name).write_text(text)
    rows = load_user_rows(tmp_path / "reviews", None, ["text"], "label")
    assert (rows.task.name, rows.task.labels) == ("reviews", ("neg", "pos"))
    assert rows.train[:] == {"text": ["bad", "good\nfilm", "fine"], "label": [0, 1, 1]}


def test_a_run_remembers_that_its_rows_were_a_folder(tmp_path):
    (tmp_path / "reviews").mkdir()
    options = get_command("finetune").parse(
        ["--model", "x", "--output_dir", "o", "--train_file", str(tmp_path / "reviews")]
    )
    (tmp_path / "reviews").rmdir()
    (tmp_path / "config.yaml").write_text(options.to_yaml())
    assert get_command("finetune").parse(["--config", str(tmp_path / "config.yaml")]) == options


def labels_of(tmp_path, values):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"row {n}", "y": value}) for n, value in enumerate(values)))
    return load_user_rows(path, path, ["text"], "y")


@pytest.mark.parametrize(
    ("values", "classes", "numbers"),
    [
        ([1, 2, 2, 5], ("1", "2", "5"), [0, 1, 1, 2]),
        ([1, -1, 1, -1], ("-1", "1"), [1, 0, 1, 0]),
        (["10", "9", " 9"], ("9", "10"), [1, 0, 0]),
        ([True, False], ("False", "True"), [1, 0]),
        (["b", "a", "b "], ("a", "b"), [1, 0, 1]),
        ([0, -1, 1], ("0", "1"), [0, 1]),  # without a gap from 0, -1 marks a row without a label
    ],
)
def test_labels_of_any_kind_are_mapped(tmp_path, values, classes, numbers):
    rows = labels_of(tmp_path, values)
    assert rows.task.labels == classes
    assert rows.train["y"] == rows.evaluation["validation"]["y"] == numbers


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ([f"a text of its own {n}" for n in range(50)], "50 distinct labels in 50 rows"),
        ([f"{n}" for n in range(50)], "write 1.0 for 1 to learn a score"),
        ([f"class {n % 10_001}" for n in range(40_000)], "10,001 distinct labels"),
    ],
)
def test_too_many_distinct_labels_are_refused(tmp_path, values, part):
    with pytest.raises(AlignAttnError, match=part):
        labels_of(tmp_path, values)


def test_an_unknown_encoding_is_refused(capsys):
    words = "finetune --model x --train_file rows.csv --text_columns a --output_dir o --encoding utf-9"
    assert main(words.split()) == 2
    assert "--encoding 'utf-9'" in capsys.readouterr().err

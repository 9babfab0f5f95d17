"""Irregular files: they are read correctly, or the bad row is named and can be skipped."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignattn.commands.predict import file_source
from alignattn.tasks import TextClassification, TokenClassification
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.reading import read_rows
from alignattn.tasks.rows import load_task_files, load_user_rows
from alignattn.utils.errors import AlignAttnError

TEXTS, LABELS = ["good", "bad", "fine", "poor"], ["pos", "neg", "pos", "neg"]
RECORDS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
TASK = TextClassification(name="toy", text_columns=("text",), labels=("neg", "pos"), metrics=("accuracy",))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def bad_parquet():
    texts = pa.array([b"good", b"bad", b"fine", b"poor", b"\xff"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())
    return pa.table({"text": broken, "label": [*LABELS, "pos"]})


def of_parquet(path):
    pq.write_table(bad_parquet(), path)
    return path


CSV = "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True))
JSON_LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
BAD_ROWS: dict[str, tuple[str, str | bytes]] = {
    "half of a character": ("rows.jsonl", JSON_LINES + '{"text": "a \\ud83d b", "label": "pos"}\n'),
    "half, in a label": ("rows.jsonl", JSON_LINES + '{"text": "a", "label": "\\udc00"}\n'),
    "NUL alone": ("rows.jsonl", JSON_LINES + '{"text": "\\u0000", "label": "pos"}\n'),
    "no width": ("rows.csv", CSV + "\u200b\ufeff,pos\n"),
    "no JSON": ("rows.jsonl", JSON_LINES + '{"text": "a", "label": \n'),
    "a list": ("rows.jsonl", JSON_LINES + '["a", "pos"]\n'),
    "too many values": ("rows.csv", CSV + "a, b,pos\n"),
    "between semicolons": ("rows.csv", CSV.replace(",", ";") + "a;b;pos\n"),
    "an open quote": ("rows.csv", CSV + '"a,pos\n'),
    "quoted, between tabs": ("rows.tsv", CSV.replace("good", '"good"').replace(",", "\t") + "a\tb\tpos\n"),
    "Latin-1": ("rows.csv", CSV.encode() + "ä,pos\n".encode("latin-1")),
    "Latin-1 in Parquet": ("rows.parquet", ""),
}


def bad_file(folder, case):
    name, content = BAD_ROWS[case]
    return write(folder / name, content) if content else of_parquet(folder / name)


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_row_that_cannot_be_read_is_named_and_can_be_left_out(tmp_path, case):
    path = bad_file(tmp_path, case)
    with pytest.raises(AlignAttnError, match=rf"{path.name}, (line [56], )?row 5: .*--skip_bad_rows"):
        load_user_rows(path, None, ["text"], "label", skip_bad_rows=False)
    rows = load_user_rows(path, None, ["text"], "label", skip_bad_rows=True)
    assert [bad.row for bad in rows.bad_rows["train"]] == [5]
    of_task = load_task_files(TASK, path, path, skip_bad_rows=True).evaluation["validation"]
    assert rows.train[:] == of_task[:] == {"text": TEXTS, "label": [1, 0, 1, 0]}
    if case not in ("NUL alone", "no width", "a list"):
        (part,) = file_source(path, TASK).parts(99)
        assert set(part.problems) == {4}
        assert part.inputs["text"][:4] == TEXTS


def test_a_bad_value_in_an_unused_column_is_ignored(tmp_path):
    records = [record | {"note": "\ud83d" if record["text"] == "bad" else "x"} for record in RECORDS]
    path = write(tmp_path / "rows.json", json.dumps(records))
    rows = load_user_rows(path, None, ["text"], "label")
    assert rows.train["text"][:] == TEXTS


# JSON


def article(*, with_impossible):
    impossible = {"id": "4", "question": "Who meows?", "answers": [], "is_impossible": True}
    cat = {"id": "1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]}
    cat["answers"].append({"text": "The cat", "answer_start": 0})
    mat = {"id": "2", "question": "Where?", "answers": [{"text": "mat", "answer_start": 15}]}
    dogs = {"id": "3", "question": "Who barks?", "answers": [{"text": "Dogs", "answer_start": 0}]}
    return {
        "title": "Pets",
        "paragraphs": [
            {"context": "The cat on the mat", "qas": [cat, mat]},
            {"context": "Dogs bark.", "qas": [dogs, *([impossible] if with_impossible else [])]},
        ],
    }


ANSWERS = [
    {"text": ["cat", "The cat"], "answer_start": [4, 0]},
    {"text": ["mat"], "answer_start": [15]},
    {"text": ["Dogs"], "answer_start": [0]},
    {"text": [], "answer_start": []},
]


@pytest.mark.parametrize(
    "form",
    [
        lambda article: json.dumps({"version": "1.1", "data": [article]}),
        lambda article: json.dumps({"data": [article], "version": "v2.0"}, indent=4),
        lambda article: json.dumps([article]),
        lambda article: json.dumps(article) + "\n",
        lambda article: "\n".join(map(json.dumps, article["paragraphs"])),
    ],
    ids=["line", "pretty", "list", "articles", "paragraphs"],
)
@pytest.mark.parametrize("task", ["squad", "squadv2"])
def test_original_squad_files_are_read(tmp_path, form, task):
    path = write(tmp_path / "train.json", form(article(with_impossible=task == "squadv2")))
    rows = load_task_files(TASKS[task], path, path)
    count = 4 if task == "squadv2" else 3
    assert rows.train["id"][:] == ["1", "2", "3", "4"][:count]
    assert rows.train["answers"][:] == ANSWERS[:count]
    assert rows.train["context"][:] == [*2 * ["The cat on the mat"], *2 * ["Dogs bark."]][:count]
    (part,) = file_source(path, TASKS[task]).parts(99)
    assert (len(part.inputs), dict(part.problems)) == (count, {})


@pytest.mark.parametrize("cache", [None, "cache"])
def test_parquet_that_another_file_of_the_same_time_replaced_is_read_again(tmp_path, cache):
    path = tmp_path / "rows.parquet"
    for text in ("first", "second"):
        pq.write_table(pa.table({"text": [text]}), tmp_path / "new.parquet")
        os.utime(tmp_path / "new.parquet", (0, 0))
        (tmp_path / "new.parquet").replace(path)
        assert read_rows(path, cache and str(tmp_path / cache)).dataset["text"][:] == [text]


def test_rows_whose_answers_are_pairs_are_read_from_parquet_too(tmp_path):
    row = {"id": "1", "question": "Who?", "context": "A cat.", "answers": [{"answer_start": 2, "text": "cat"}]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    rows = load_task_files(TASKS["squad"], tmp_path / "rows.parquet", None)
    assert rows.train["answers"][:] == [{"text": ["cat"], "answer_start": [2]}]


def test_an_error_within_an_article_is_a_bad_row(tmp_path):
    whole = article(with_impossible=True)
    whole["paragraphs"][0]["qas"].insert(1, "no question")
    whole["paragraphs"].insert(1, {"context": "Alone."})
    whole["paragraphs"][2]["qas"][-1]["answers"] = [{"text": "Dogs", "answer_start": 0}]
    path = write(tmp_path / "train.json", json.dumps({"data": [whole]}))
    with pytest.raises(AlignAttnError, match=r"row 2: .*Pets.*no question.*3 bad of 6 rows"):
        load_task_files(TASKS["squadv2"], path, None)
    rows = load_task_files(TASKS["squadv2"], path, None, skip_bad_rows=True)
    assert rows.train["id"][:] == ["1", "2", "3"]
    assert [bad.row for bad in rows.bad_rows["train"]] == [2, 4, 6]


# Folders


def test_files_of_a_folder_that_are_not_read_are_counted(tmp_path, capsys):
    names = ["pos/1.txt", "neg/1.txt", "pos/2.md", "neg/3", "neu/1.html", "README", "neg/more/1.txt", "pos/.hidden"]
    for name in names:
        write(tmp_path / "reviews" / name, name)
    rows = load_user_rows(tmp_path / "reviews", None, ["text"], "label")
    assert rows.task.labels == ("neg", "pos")
    err = capsys.readouterr().err
    assert "5 files not read" in err
    assert "neu" in err
    assert ".hidden" not in err


@pytest.mark.parametrize("content", ["ä".encode("latin-1"), b" \n"], ids=["encoding", "empty"])
def test_a_bad_text_of_a_folder_is_named_by_its_file(tmp_path, content):
    for name in ("neg/1.txt", "pos/2.txt"):
        write(tmp_path / "reviews" / name, name)
    write(tmp_path / "reviews" / "neg" / "2.txt", content)
    with pytest.raises(AlignAttnError, match=r"row 2: neg/2\.txt.*--skip_bad_rows"):
        load_user_rows(tmp_path / "reviews", None, ["text"], "label", skip_bad_rows=False)
    rows = load_user_rows(tmp_path / "reviews", None, ["text"], "label", skip_bad_rows=True)
    assert rows.train["text"][:] == ["neg/1.txt", "pos/2.txt"]


def test_a_bad_sentence_is_named_and_can_be_left_out(tmp_path):
    path = write(tmp_path / "x.conll", "EU B-ORG\nsays O\n\nIt O\nworks\n\nin O\nRome B-LOC\n")
    with pytest.raises(AlignAttnError, match=r"x\.conll, row 2: line 5 .*works.*--skip_bad_rows"):
        load_task_files(TokenClassification(name="own"), path, None, skip_bad_rows=False)
    rows = load_task_files(TokenClassification(name="own"), path, None, skip_bad_rows=True)
    assert rows.train["tokens"][:] == [["EU", "says"], ["in", "Rome"]]
    assert [bad.row for bad in rows.bad_rows["train"]] == [2]


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": ["in", "Rome"], "tags": ["B-MISC"]},
        {"tokens": ["in", ""], "tags": ["O", "B-MISC"]},
        {"tokens": ["in", "Rome"], "tags": ["B-MISC", None]},
    ],
)
def test_a_sentence_that_is_left_out_defines_no_tag(tmp_path, bad):
    good = {"tokens": ["EU", "says"], "tags": ["B-ORG", "O"]}
    path = write(tmp_path / "x.jsonl", "".join(f"{json.dumps(row)}\n" for row in (good, bad, good)))
    rows = load_task_files(TokenClassification(name="own", tags_column="tags"), path, None, skip_bad_rows=True)
    assert rows.task.labels == ("O", "B-ORG")
    assert [bad.row for bad in rows.bad_rows["train"]] == [2]


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("rows.csv", 'text,label\n"two\nlines",a\n\nb,\n', "line 5, row 2"),
        ("rows.csv", "sep=;\r\ntext;label\r\na;x\r\nb;\r\n", "line 4, row 2"),
        ("rows.csv", 'text,label\n"one\rline",a\nb,\n', "row 2"),
        ("rows.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "b", "label": null}\n', "line 3, row 2"),
        ("rows.jsonl", '[{"text": "a", "label": "x"},\n{"text": "b", "label": null}]\n', "row 2"),
        ("rows.jsonl", '{"text": "a",\n"label": "x"}\n{"text": "b", "label": null}\n', "row 2"),
    ],
    ids=["quoted line end", "CRLF", "carriage return", "JSON lines", "JSON list", "JSON objects"],
)
def test_a_bad_row_has_its_line_where_it_is_sure(tmp_path, name, content, place):
    path = write(tmp_path / name, content)
    with pytest.raises(AlignAttnError, match=f"{name}, {place}: it has no label"):
        load_user_rows(path, None, ["text"], "label", skip_bad_rows=False)


def test_a_refusal_names_the_first_bad_rows_and_counts_the_others(tmp_path):
    path = write(tmp_path / "rows.csv", "text,label\n" + "a,\n" * 5 + "b,x\n")
    rows = "; ".join(f"line {row + 1}, row {row}: it has no label" for row in (1, 2, 3))
    with pytest.raises(AlignAttnError) as error:
        load_user_rows(path, None, ["text"], "label", skip_bad_rows=False)
    assert f"rows.csv, {rows}; and 2 more (5 bad of 6 rows); correct them" in str(error.value)

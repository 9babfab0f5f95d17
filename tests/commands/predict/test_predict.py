"""`alignattn predict`: every kind of task against the run's own predictions, every file format, and every error."""

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers
from datasets import Dataset
from task_rows import make_rows, write_rows

import alignattn
from alignattn.cli import main
from alignattn.commands.predict import file_source, row_writer
from alignattn.evaluation.calibration import apply_temperature
from alignattn.finetuning.predictor import Batching, Predictor
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.formats import TableForm
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import plain_stem

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[3]
ROWS = 21
TASK_OF = {
    "pair": "mrpc",
    "score": "stsb",
    "choice": "hellaswag",
    "choice-columns": "swag",
    "tags": "msra",
    "answers": "squadv2",
    "sure-answers": "squad",
}
ATTENTION_OF = {"pair": "aa-ct+sparsemax+qvi", "score": "soft", "choice": "bilinear", "tags": "entmax15"}
TIE = 1e-4
LABELS = {"label", "ner_tags", "answers", "id"}

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            task = TASKS[TASK_OF[kind]]
            file = write_rows(folder / "rows.jsonl", make_rows(task, ROWS))
            words = f"--task {task.name} --train_file {file} --validation_file {file} --output_dir {folder / 'run'}"
            words += f" --model {tiny_checkpoint} --attention {ATTENTION_OF.get(kind, 'aa-ct')} --max_length 32"
            words += " --max_steps 4 --per_device_eval_batch_size 4 --learning_rate 1e-2 --save_strategy no"
            words += " --doc_stride 8" if "answers" in kind else ""
            assert main(f"finetune {words} --disable_tqdm true --use_cpu true".split()) == 0
            made[kind] = folder
        return made[kind]

    return make


@pytest.fixture(scope="module")
def own(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on custom texts with three named classes."""
    folder = tmp_path_factory.mktemp("own")
    rows = [
        {"said": row["sentence1"], "meant": ("no", "yes", "maybe, or not")[number % 3]}
        for number, row in enumerate(make_rows(TASKS["mrpc"], ROWS))
    ]
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    words = f"--train_file {folder / 'rows.csv'} --validation_file {folder / 'rows.csv'} --output_dir {folder / 'run'}"
    words += f" --text_columns said --label_column meant --model {tiny_checkpoint} --max_steps 4 --learning_rate 1e-2"
    assert main(f"finetune {words} --max_length 32 --save_strategy no --disable_tqdm true --use_cpu true".split()) == 0
    return folder


def predictions(folder: Path) -> pa.Table:
    return pq.read_table(folder / "run" / "predictions.parquet")


def unlabelled(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rows.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in LABELS} for line in lines]


def answers_of(predictor: Predictor, rows: list[dict[str, Any]], **batching: Any) -> list[dict[str, Any]]:
    return predictor.answers(predictor.encode(predictor.dataset(rows)), Batching(**batching)).to_pylist()


def close(one: Any, other: Any) -> bool:
    """Return whether answers are equal up to the last bits of floats."""
    if isinstance(one, float):
        return one == pytest.approx(other, abs=1e-5)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


@pytest.mark.parametrize("kind", TASK_OF)
def test_rows_without_labels_are_predicted_as_in_the_runs_own_evaluation(kind: str, train: Train):
    folder = train(kind)
    written = predictions(folder)
    own = [
        {name: row[name] for name in row if name not in ("split", "row", "id", "input", "label")}
        for row in written.to_pylist()
    ]
    predictor, rows = alignattn.load_run(folder / "run"), unlabelled(folder)
    assert answers_of(predictor, rows, size=4, by_length=False) == own
    for found, row in zip(answers_of(predictor, rows), own, strict=True):
        # The order of tied spans depends on the last bits.
        names = {"prediction", "probabilities", "no_answer_score"} & row.keys()
        assert all(close(found[name], row[name]) for name in names if name != "prediction" or not is_tied(row))


def is_tied(row: dict[str, Any]) -> bool:
    """Return whether the best class of a row depends on the last bits of its probabilities."""
    *_, second, best = sorted(row.get("probabilities") or (0.0, 1.0))
    return best - second < TIE


def predict(*words: object) -> int:
    return main(["predict", *map(str, words)])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of an error."""
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("alignattn: ")]
    return line


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    opened = gzip.open if path.suffix == ".gz" else open
    if ".jsonl" in path.suffixes:
        with opened(path, "rt", encoding="utf-8") as file:
            return list(map(json.loads, file))
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        return [
            row | {name: json.loads(row[name]) for name in ("probability", "probabilities")}
            for row in csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        ]


FORMS = ("csv", "tsv", "jsonl", "parquet", "csv.gz", "jsonl.gz")
NEW = [
    {"meant": "free text, as it comes", "said": "the cat sees a dog", "n": "1"},
    {"meant": "", "said": 'a "red"\ncat, old; not small', "n": "22"},
    {"meant": "no", "said": "der Bär – schläft", "n": "333"},
]


@pytest.fixture
def new(tmp_path: Path) -> dict[str, Path]:
    """The same rows in every format."""
    paths = {name: tmp_path / f"new.{name}" for name in FORMS}
    pd.DataFrame(NEW).to_csv(paths["csv"], index=False)
    pd.DataFrame(NEW).to_csv(paths["tsv"], index=False, sep="\t")
    write_rows(paths["jsonl"], NEW)
    pq.write_table(pa.Table.from_pylist(NEW), paths["parquet"])
    for name in ("csv", "jsonl"):
        paths[f"{name}.gz"].write_bytes(gzip.compress(paths[name].read_bytes()))
    return paths


@pytest.mark.parametrize(("given", "written"), [*zip(FORMS, FORMS, strict=True), *zip(FORMS, FORMS[::-1], strict=True)])
def test_every_format_is_read_and_written_with_the_columns_of_the_rows(given, written, new, own, tmp_path):
    target = tmp_path / f"out.{written}"
    assert predict("--run", own / "run", "--file", new[given], "--output_file", target) == 0
    rows = read(target)
    expected = alignattn.load_run(own / "run").predict([row["said"] for row in NEW])
    assert [list(row) for row in rows] == [[*NEW[0], "prediction", "probability", "probabilities"]] * len(NEW)
    assert [{name: row[name] or "" for name in NEW[0]} for row in rows] == NEW
    assert [{name: row[name] for name in expected[0]} for row in rows] == expected


WORDS = ["naïve Bär, alt", "a; b", "c\td", 'she said "no"']
TABLES = {
    "semicolons": (".csv", ";", "utf-8", "", ()),
    "a byte order mark": (".csv", ",", "utf-8-sig", "", ()),
    "semicolons and a byte order mark": (".csv", ";", "utf-8-sig", "", ()),
    "a line that names the separator": (".csv", ";", "utf-8-sig", "sep=;\n", ()),
    "cp1252": (".csv", ";", "cp1252", "", ("--encoding", "cp1252")),
    "UTF-16": (".csv", "\t", "utf-16", "", ("--encoding", "utf-16")),
    "vertical bars": (".csv", "|", "utf-8", "", ()),
    "tabs": (".tsv", "\t", "utf-8-sig", "", ()),
    "commas in a .tsv": (".tsv", ",", "cp1252", "", ("--encoding", "cp1252")),
}


def write_table(path: Path, separator: str, encoding: str, first: str, columns: dict[str, list[str]]) -> Path:
    text = io.StringIO(newline="")
    text.write(first)
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
    path.write_bytes(text.getvalue().encode(encoding))
    return path


@pytest.mark.parametrize("name", TABLES)
def test_predictions_are_written_in_the_form_of_the_rows(name, own, tmp_path):
    suffix, separator, encoding, first, words = TABLES[name]
    given = write_table(tmp_path / f"new{suffix}", separator, encoding, first, {"said": WORDS, "n": list("1234")})
    assert predict("--run", own / "run", "--file", given, *words) == 0
    content = (tmp_path / f"new-predicted{suffix}").read_bytes()
    assert content.startswith(given.read_bytes()[:4])
    text = content.decode(encoding)
    assert text.startswith(first)
    header, *rows = csv.reader(io.StringIO(text.removeprefix(first), newline=""), delimiter=separator)
    assert header == ["said", "n", "prediction", "probability", "probabilities"]
    expected = alignattn.load_run(own / "run").predict(WORDS)
    assert [row[:3] for row in rows] == [
        [said, n, row["prediction"]] for said, n, row in zip(WORDS, "1234", expected, strict=True)
    ]
    assert [json.loads(row[4]) for row in rows] == [row["probabilities"] for row in expected]


def test_another_format_is_written_in_its_own_form(own, tmp_path):
    given = write_table(tmp_path / "new.csv", ";", "utf-8-sig", "sep=;\n", {"said": WORDS})
    for ending in ("tsv", "jsonl", "parquet"):
        assert predict("--run", own / "run", "--file", given, "--output_file", tmp_path / f"out.{ending}") == 0
    assert (tmp_path / "out.tsv").read_bytes().startswith(b"\xef\xbb\xbfsaid\tprediction")
    assert (tmp_path / "out.jsonl").read_bytes().startswith(b'{"said": ')
    assert pq.read_table(tmp_path / "out.parquet")["said"].to_pylist() == WORDS
    lines = tmp_path / "rows.jsonl"
    lines.write_bytes("".join(f"{json.dumps({'said': text}, ensure_ascii=False)}\n" for text in WORDS).encode("cp1252"))
    encoding = ("--encoding", "cp1252")
    for ending in ("csv", "jsonl"):
        assert predict("--run", own / "run", "--file", lines, "--output_file", tmp_path / f"b.{ending}", *encoding) == 0
        assert "naïve Bär" in (tmp_path / f"b.{ending}").read_text(encoding="utf-8")


def test_characters_that_an_encoding_lacks_are_written_as_utf_8(tmp_path, capsys):
    form = TableForm(";", encoding="cp1252")
    with row_writer(tmp_path / "rows.csv", ".csv", form=form) as write:
        write(pa.table({"text": ["ä\r\nb"], "prediction": ["猫"]}))
    assert (tmp_path / "rows.csv").read_bytes().decode("utf-8-sig") == 'text;prediction\n"ä\r\nb";"猫"\n'
    assert "written as UTF-8: cp1252 has no '猫'" in capsys.readouterr().err


def test_a_header_in_the_middle_keeps_its_place_without_a_prediction(own, tmp_path, capsys):
    (tmp_path / "new.csv").write_text('said;n\na;1\n\ufeff"said";"n"\nb;2\n', encoding="utf-8")
    assert predict("--run", own / "run", "--file", tmp_path / "new.csv") == 2
    assert "row 2: it repeats the header" in said(capsys)
    assert predict("--run", own / "run", "--file", tmp_path / "new.csv", "--skip_bad_rows") == 0
    found = pd.read_csv(tmp_path / "new-predicted.csv", sep=";")
    assert found["prediction"].isna().tolist() == [False, True, False]


def test_a_carriage_return_stays_within_its_cell(tmp_path):
    texts, numbers = ["a\rb", "c\nd", "e\r\nf", "g"], [1, 2, 3, None]
    with row_writer(tmp_path / "rows.csv", ".csv") as write:
        write(pa.table({"text": texts, "n": numbers}))
    found = pd.read_csv(tmp_path / "rows.csv")
    assert found["text"].tolist() == texts
    assert found["n"].fillna(0).tolist() == [1, 2, 3, 0]
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [row[0] for row in csv.reader(file)] == ["text", *texts]


@pytest.mark.parametrize("given", ["jsonl", "parquet"])
def test_numbers_that_are_not_finite_are_null_in_json_and_empty_in_csv(given, own, tmp_path):
    columns = {"said": ["a", "b", "c"], "n": [np.nan, np.inf, 1.5], "many": [[np.nan, 1.0], [-np.inf], [2.0]]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if given == "jsonl":
        (tmp_path / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "new.parquet")
    run = ("--run", own / "run", "--file", tmp_path / f"new.{given}")
    assert predict(*run, "--output_file", tmp_path / "out.jsonl") == 0
    assert predict(*run, "--output_file", tmp_path / "out.csv") == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    # DuckDB, jq and browsers refuse NaN; Python calls `parse_constant` for it.
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row["n"] for row in found] == [None, None, 1.5]
    assert [row["many"] for row in found] == [[None, 1.0], [None], [2.0]]
    table = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    assert table["n"].tolist() == ["", "", "1.5"]
    assert table["many"].tolist() == ["[null, 1.0]", "[null]", "[2.0]"]


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([["a"], ["b"]], names=["sentence", "sentence"]), tmp_path / "rows.parquet")
    with pytest.raises(AlignAttnError, match="has two columns 'sentence'"):
        file_source(tmp_path / "rows.parquet", TASKS["sst2"])


@pytest.mark.parametrize(("given", "name"), [(".", "here"), ("..", "above"), ("rows.csv.gz", "rows"), ("a.b/", "a")])
def test_the_name_of_a_file_or_folder_has_no_endings(given, name, tmp_path, monkeypatch):
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    assert plain_stem(given) == name


def test_classes_and_probabilities_equal_those_of_the_runs_evaluation(own):
    predictor, rows = alignattn.load_run(own / "run"), pd.read_csv(own / "rows.csv")
    written = predictions(own).to_pylist()
    names = ["maybe, or not", "no", "yes"]
    for found, row in zip(predictor.predict(list(rows["said"])), written, strict=True):
        told = {entry["label"]: entry["probability"] for entry in found["probabilities"]}
        assert [told[name] for name in names] == pytest.approx(row["probabilities"], abs=1e-5)
        assert list(told.values()) == sorted(told.values(), reverse=True)
        assert found["prediction"] == next(iter(told))
        assert found["probability"] == told[found["prediction"]]
    top = predictor.predict(list(rows["said"]), top_k=1)
    assert [len(row["probabilities"]) for row in top] == [1] * ROWS


def test_predictions_are_written_next_to_the_rows_and_overwrite_nothing(new, own, capsys):
    target = new["csv"].with_name("new-predicted.csv")
    assert predict("--run", own / "run", "--file", new["csv"]) == 0
    assert f"written to {target}" in capsys.readouterr().out
    before = target.read_bytes()
    assert predict("--run", own / "run", "--file", new["csv"]) == 2
    assert f"{target} already exists" in said(capsys)
    assert target.read_bytes() == before
    assert {path.name for path in target.parent.iterdir()} == {*(path.name for path in new.values()), target.name}


def test_texts_are_answered_on_standard_output(own, capsys):
    expected = alignattn.load_run(own / "run").predict([row["said"] for row in NEW])
    capsys.readouterr()
    assert predict("--run", own / "run", "--text", *(row["said"] for row in NEW)) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"said": row["said"], **answer} for row, answer in zip(NEW, expected, strict=True)]


def test_text_accepts_pairs_questions_choices_and_words(train, capsys):
    for kind, texts in (
        ("pair", ["the cat", "a dog"]),
        ("sure-answers", ["who sees the cat", "the man sees the cat"]),
        ("choice", ["the man", "a", "the", "cat", "dog"]),
        ("tags", ["the cat sees"]),
    ):
        run = train(kind) / "run"
        capsys.readouterr()
        assert predict("--run", run, "--text", *texts, *texts) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(rows) == 2
        expected = alignattn.load_run(run).predict([texts, texts])
        assert [{name: row[name] for name in expected[0]} for row in rows] == expected
        capsys.readouterr()
        if len(texts) > 1:
            assert predict("--run", run, "--text", *texts[1:]) == 2
            assert f"reads {len(texts)} texts per row" in said(capsys)


def test_tags_belong_to_words_and_answers_are_spans_of_the_context(train):
    (tagged,) = alignattn.load_run(train("tags") / "run").predict([{"tokens": ["the", "cat", "sees"]}])
    assert len(tagged["prediction"]) == 3
    assert set(tagged["prediction"]) <= {"O", "B-ANIMAL"}
    context = "the man sees the cat and a bird"
    (found,) = alignattn.load_run(train("sure-answers") / "run").predict([("who", context)], top_k=3)
    assert context[found["start"] :].startswith(found["prediction"])
    assert len(found["best_answers"]) == 3
    assert found["best_answers"][0] == {"answer": found["prediction"]} | {n: found[n] for n in ("start", "probability")}


def test_labelled_questions_get_several_answers(train, tmp_path):
    folder, output = train("sure-answers"), tmp_path / "out.jsonl"
    words = ("--run", folder / "run", "--file", folder / "rows.jsonl", "--output_file", output)
    assert predict(*words, "--top_k", 2) == 0
    assert all({"answers", "best_answers"} <= row.keys() for row in read(output))


def test_blanks_separate_the_words_of_a_csv_file(train, tmp_path):
    (tmp_path / "new.csv").write_text("tokens,n\nthe cat sees,1\na,2\n")
    assert (
        predict("--run", train("tags") / "run", "--file", tmp_path / "new.csv", "--output_file", tmp_path / "o.jsonl")
        == 0
    )
    rows = read(tmp_path / "o.jsonl")
    assert [(row["tokens"], len(row["prediction"])) for row in rows] == [("the cat sees", 3), ("a", 1)]


def test_a_list_of_words_in_a_cell_is_read_as_json_and_refused_as_python_prints_it(train, tmp_path, capsys):
    path = tmp_path / "new.csv"
    words = ["predict", "--run", str(train("tags") / "run"), "--file", str(path), "--output_file"]
    path.write_text('tokens\n"[""the"", ""cat""]"\n')
    assert main([*words, str(tmp_path / "o.jsonl")]) == 0
    assert [len(row["prediction"]) for row in read(tmp_path / "o.jsonl")] == [2]
    path.write_text("tokens\n\"['the', 'cat']\"\n")
    assert main([*words, str(tmp_path / "p.jsonl")]) == 2
    assert "row 1: its tokens are \"['the', 'cat']\", not a list" in said(capsys)


def test_a_temperature_scales_as_in_calibrate(own, new, tmp_path, capsys):
    words = (
        own / "run" / "predictions.parquet",
        "--fit_on",
        "validation",
        "--output_dir",
        tmp_path / "c",
        "--resamples",
        1,
    )
    assert main(["calibrate", *map(str, words)]) == 0
    file = tmp_path / "c" / "calibration.json"
    value = json.loads(file.read_text())["files"][0]["temperature"]["value"]
    plain = alignattn.load_run(own / "run").predict([row["said"] for row in NEW])
    for temperature in (value, 2.5):
        given = file if temperature == value else temperature
        target = tmp_path / f"{temperature}.parquet"
        words = ("--file", new["csv"], "--output_file", target, "--temperature", given)
        assert predict("--run", own / "run", *words) == 0
        rows = read(target)
        for row, before in zip(rows, plain, strict=True):
            probabilities = np.array([[entry["probability"] for entry in before["probabilities"]]])
            scaled = apply_temperature(probabilities, temperature)[0]
            assert [entry["probability"] for entry in row["probabilities"]] == pytest.approx(list(scaled), abs=1e-9)
            assert row["prediction"] == before["prediction"]


def test_bad_rows_are_named_or_keep_their_place_without_a_prediction(own, tmp_path, capsys):
    rows = [{"said": text, "n": number} for number, text in enumerate(["the cat", " ", "a dog", None])]
    path = write_rows(tmp_path / "new.jsonl", rows)
    assert predict("--run", own / "run", "--file", path) == 2
    assert (
        "new.jsonl, line 2, row 2: column 'said' is empty; line 4, row 4: column 'said' is empty (2 bad of 4 rows)"
        in said(capsys)
    )
    assert list(tmp_path.iterdir()) == [path]
    assert predict("--run", own / "run", "--file", path, "--skip_bad_rows") == 0
    assert "line 2, row 2: column 'said' is empty; line 4, row 4: column 'said' is empty: without a prediction" in (
        capsys.readouterr().err
    )
    found = read(tmp_path / "new-predicted.jsonl")
    expected = alignattn.load_run(own / "run").predict(["the cat", "a dog"])
    nothing = dict.fromkeys(expected[0])
    for row, answer in zip(found, [expected[0], nothing, expected[1], nothing], strict=True):
        assert {name: row[name] for name in answer} == answer
    only_bad = write_rows(tmp_path / "bad.jsonl", [{"said": " "}, {"said": ""}])
    assert predict("--run", own / "run", "--file", only_bad, "--skip_bad_rows") == 0
    assert [row["prediction"] for row in read(tmp_path / "bad-predicted.jsonl")] == [None, None]


def test_a_bad_row_at_the_end_is_refused_before_a_row_is_predicted(own, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("alignattn.commands.predict.PART_ROWS", 2)
    path = write_rows(tmp_path / "new.jsonl", [{"said": text} for text in ["the cat", "a dog", "a cat", " "]])
    monkeypatch.setattr("alignattn.finetuning.predictor.Predictor.answers", None)
    assert predict("--run", own / "run", "--file", path) == 2
    assert "row 4: column 'said' is empty (1 bad of 4 rows)" in said(capsys)


def test_texts_that_are_not_valid_unicode_are_bad_rows(own, tmp_path, capsys):
    path = tmp_path / "new.jsonl"
    path.write_text('{"said": "the cat"}\n{"said": "a \\ud83d dog"}\n{"said": \n')
    assert predict("--run", own / "run", "--file", path) == 2
    assert "new.jsonl, line 2, row 2: column 'said' holds \\ud83d" in said(capsys)
    assert predict("--run", own / "run", "--file", path, "--skip_bad_rows") == 0
    assert [row["prediction"] is None for row in read(tmp_path / "new-predicted.jsonl")] == [False, True, True]
    with pytest.raises(AlignAttnError, match="row 2: column 'said' holds"):
        alignattn.load_run(own / "run").predict(["the cat", "a \ud83d dog"])


def test_rows_from_python_are_texts_pairs_or_columns(own, train):
    predictor = alignattn.load_run(own / "run")
    texts = ["the cat", "a dog sees a bird", "not"]
    by_text = predictor.predict(texts)
    assert by_text == predictor.predict([{"said": text, "other": 1} for text in texts])
    assert predictor.predict([]) == []
    assert [row["prediction"] for row in by_text] == [
        row["prediction"] for row in predictor.predict(texts, batch_size=1)
    ]
    for rows, problem in (
        ("the cat", "give a list of rows"),
        ([{"other": "x"}], "row 1 has no 'said'"),
        ([("a", "b")], "has 2 text"),
        (["a", ""], "row 2: column 'said' is empty"),
        ([{"said": 5}], "is not text"),
    ):
        with pytest.raises(alignattn.AlignAttnError, match=problem):
            predictor.predict(rows)
    pairs = alignattn.load_run(train("pair") / "run")
    assert pairs.predict([("the cat", "a dog")]) == pairs.predict([{"sentence1": "the cat", "sentence2": "a dog"}])


def test_rows_from_python_may_be_of_other_libraries(own):
    predictor = alignattn.load_run(own / "run")
    texts = ["the cat sees", "a dog"]
    expected = predictor.predict(texts)
    for rows in (pd.Series(texts, index=[7, 9]), np.array(texts), Dataset.from_dict({"said": texts}), iter(texts)):
        assert predictor.predict(rows) == expected
    assert predictor.predict(pd.Series([], dtype=str)) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["a", float("nan")], "row 2 is nan: give a text, several, or the columns of a row"),
        ([None], "row 1 is None: give a text"),
        ([5], "row 1 is 5: give a text"),
        (pd.Series(["a", None]), "row 2 is (nan|None): give a text"),
        ([["a"], [float("nan")]], "row 2: column 'said' is empty"),
        ([[None]], "row 1: column 'said' is empty"),
        (pd.DataFrame({"said": ["a"]}), r"give a list of rows, .*to_dict\('records'\)"),
        ("a", "give a list of rows"),
    ],
)
def test_rows_from_python_without_a_text_are_named(rows, problem, own):
    with pytest.raises(AlignAttnError, match=problem):
        alignattn.load_run(own / "run").predict(rows)


def test_a_transformers_pipeline_accepts_a_patched_model(train):
    predictor = alignattn.load_run(train("pair") / "run")
    assert alignattn.is_patched(predictor.model)
    pipe = transformers.pipeline(
        "text-classification", model=predictor.model, tokenizer=predictor.tokenizer, top_k=None
    )
    rows = unlabelled(train("pair"))
    found = pipe([{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in rows])
    for scores, row in zip(found, predictor.predict(rows), strict=True):
        told = {entry["label"]: entry["probability"] for entry in row["probabilities"]}
        assert {entry["label"]: entry["score"] for entry in scores} == pytest.approx(told, abs=1e-5)


MISTAKES = [
    ("", "--file"),
    ("--file {new} --text a", "--text"),
    ("--file {missing}", "missing.csv"),
    ("--file {new} --output_file x.txt", "x.txt"),
    ("--file {new} --output_file {new}", "new.csv"),
    ("--file {new} --processes 2", "--processes is for a folder of Parquet files"),
    ("--file {new} --num_beams 2", "--num_beams"),
    ("--file {new} --temperature 0", "--temperature 0"),
    ("--file {new} --temperature {missing}", "missing.csv"),
    ("--file {new} --temperature {config}", "config.json"),
    ("--file {other}", "'said'"),
    ("--file {taken}", "'prediction'"),
    ("--file {empty}", "empty.csv"),
    ("--file {none}", "none.parquet"),
    ("--file {damaged}", "damaged.parquet"),
]


@pytest.mark.parametrize(("words", "culprit"), MISTAKES)
def test_a_mistake_is_one_line(words, culprit, own, new, tmp_path, capsys):
    paths = {"new": new["csv"], "missing": tmp_path / "missing.csv", "config": own / "run" / "config.json"}
    texts = {"other": "text,label\na,b\n", "taken": "said,prediction\na,b\n", "empty": "said\n"}
    for name, text in texts.items():
        paths[name] = tmp_path / f"{name}.csv"
        paths[name].write_text(text)
    paths["none"], paths["damaged"] = tmp_path / "none.parquet", tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"said": pa.array([], pa.string())}), paths["none"])
    paths["damaged"].write_bytes(new["parquet"].read_bytes()[:-30])
    before = set(tmp_path.iterdir())
    assert predict("--run", own / "run", *words.format(**paths).split()) == 2
    assert culprit in said(capsys)
    assert set(tmp_path.iterdir()) == before


def test_a_folder_without_a_finished_run_of_this_version_is_refused_in_one_line(own, new, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(own / "run", copy)
    (copy / "results.json").rename(copy / "other.json")
    assert predict("--run", copy, "--file", new["csv"]) == 2
    assert "has no results.json" in said(capsys)
    (copy / "results.json").write_text("{}")
    assert predict("--run", copy, "--file", new["csv"]) == 2
    assert "damaged or of another version" in said(capsys)
    (copy / "other.json").replace(copy / "results.json")
    with (copy / "config.yaml").open("a") as file:
        file.write("of_a_later_version: 1\n")
    assert predict("--run", copy, "--file", new["csv"]) == 2
    assert "of_a_later_version" in said(capsys)
    for number in (1, 2):
        shutil.copytree(own / "run", tmp_path / "seeds" / f"seed-{number}")
    assert predict("--run", tmp_path / "seeds", "--file", new["csv"]) == 2
    assert "(its seeds: seed-1, seed-2)" in said(capsys)
    assert predict("--run", tmp_path, "--file", new["csv"]) == 2
    assert "is not a run folder" in said(capsys)
    with pytest.raises(alignattn.AlignAttnError, match="is not a run folder"):
        alignattn.load_run(tmp_path)


@pytest.mark.parametrize("kind", ["score", "tags", "answers"])
def test_a_temperature_is_for_classes(kind, train, capsys):
    run = train(kind) / "run"
    assert predict("--run", run, "--text", "a", "b", "--temperature", "2") == 2
    assert "has none" in said(capsys)
    with pytest.raises(alignattn.AlignAttnError, match="a temperature is for probabilities"):
        alignattn.load_run(run, temperature=2.0)


def test_top_k_lists_the_best_of_a_thousand_classes(tiny_checkpoint, tmp_path, capsys):
    task = {"kind": "text-classification", "text_columns": ["said"], "label_column": "meant", "metrics": ["accuracy"]}
    task["labels"] = [f"class {number}" for number in range(1000)]
    (tmp_path / "many.yaml").write_text(json.dumps(task))
    file = write_rows(tmp_path / "rows.jsonl", [{"said": "the cat", "meant": number} for number in range(8)])
    words = f"--train_file {file} --task {tmp_path / 'many.yaml'} --output_dir {tmp_path / 'run'}"
    words += f" --model {tiny_checkpoint} --max_steps 1 --max_length 16 --save_strategy no --disable_tqdm true"
    assert main(["finetune", *words.split(), "--use_cpu", "true", "--attention", "soft"]) == 0
    capsys.readouterr()
    assert predict("--run", tmp_path / "run", "--text", "a dog") == 0
    out, err = capsys.readouterr()
    assert "all 1000 classes" in err
    (row,) = map(json.loads, out.splitlines())
    assert len({entry["label"] for entry in row["probabilities"]}) == 1000
    assert sum(entry["probability"] for entry in row["probabilities"]) == pytest.approx(1)
    assert predict("--run", tmp_path / "run", "--text", "a dog", "--top_k", 5) == 0
    out, err = capsys.readouterr()
    assert "1000" not in err
    assert json.loads(out)["probabilities"] == row["probabilities"][:5]


def test_truncation_is_reported_over_all_parts(own, tmp_path, capsys, monkeypatch):
    texts = ["the cat"] * 6 + ["the cat " * 20] * 2
    pd.DataFrame({"said": texts}).to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.setattr("alignattn.commands.predict.PART_ROWS", 3)
    assert predict("--run", own / "run", "--file", tmp_path / "rows.csv") == 0
    assert "25.0 % of the rows reach --max_length 32; what is longer is truncated" in capsys.readouterr().err
    assert predict("--run", own / "run", "--text", "the cat") == 0
    assert "truncated" not in capsys.readouterr().err


def test_a_model_without_attention_heads_predicts(tmp_path):
    task = TASKS["mrpc"]
    file = write_rows(tmp_path / "rows.jsonl", make_rows(task, ROWS))
    words = f"--task mrpc --train_file {file} --validation_file {file} --output_dir {tmp_path / 'run'} --model da"
    words += " --max_steps 2 --per_device_eval_batch_size 4 --save_strategy no --disable_tqdm true --use_cpu true"
    assert main(["finetune", *words.split()]) == 0
    own = [{name: row[name] for name in ("prediction", "probabilities")} for row in predictions(tmp_path).to_pylist()]
    predictor = alignattn.load_run(tmp_path / "run")
    assert answers_of(predictor, unlabelled(tmp_path), size=4, by_length=False) == own


def test_several_labels_of_a_row_are_predicted_by_name(tiny_checkpoint, tmp_path):
    rows = [
        {"said": row["sentence1"], "red": number % 2, "old": int(number % 3 == 0)}
        for number, row in enumerate(make_rows(TASKS["mrpc"], ROWS))
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    words = f"--train_file {tmp_path / 'rows.csv'} --validation_file {tmp_path / 'rows.csv'} --model {tiny_checkpoint}"
    words += (
        f" --text_columns said --label_column red old --output_dir {tmp_path / 'run'} --max_steps 4 --max_length 32"
    )
    words += " --per_device_eval_batch_size 4 --save_strategy no --disable_tqdm true --use_cpu true"
    assert main(["finetune", *words.split()]) == 0
    written = predictions(tmp_path).to_pylist()
    own = [{name: row[name] for name in row if name not in ("split", "row", "label")} for row in written]
    predictor, texts = alignattn.load_run(tmp_path / "run"), [{"said": row["said"]} for row in rows]
    assert answers_of(predictor, texts, size=4, by_length=False) == own
    names = [[name for name, has in zip(("red", "old"), row["prediction"], strict=True) if has] for row in own]
    assert [row["prediction"] for row in predictor.predict(texts, batch_size=4, by_length=False)] == names

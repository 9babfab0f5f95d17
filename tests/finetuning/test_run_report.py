"""The report of a run: slices against pandas, the parts for each task type, and its bounded size."""

import json
import math
import re
import sys
from io import BytesIO

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import WORDS
from PIL import Image
from sklearn.metrics import f1_score, matthews_corrcoef

from alignattn.cli import main
from alignattn.evaluation.statistics.example_scores import example_scores
from alignattn.finetuning.examples import (
    MAX_SLICES,
    MISSING,
    measured_slices,
    metric_examples,
    slice_examples,
    slices_of,
)
from alignattn.finetuning.report import write_run_report
from alignattn.finetuning.results import RunResult, class_cells
from alignattn.tasks import ImageClassification, TextClassification
from alignattn.tasks.metrics import class_scores
from alignattn.tasks.task import EncodedSplit, Evaluation, TaskOptions
from alignattn.tasks.text_classification import multi_label_scores

ROWS = 40


def rows(**more):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(ROWS)]
    texts[3] += " <script>alert(1)</script>"
    return pd.DataFrame({"text": texts, "shop": rng.choice(["<i>north</i>", "south"], ROWS), **more})


def finetune(model, folder, path, *more):
    common = ["--num_train_epochs", "1", "--max_length", "16", "--disable_tqdm", "true", "--use_cpu"]
    files = ["--train_file", str(path), "--validation_file", str(path), "--output_dir", str(folder)]
    return main(["finetune", "--model", str(model), *files, *common, *more])


@pytest.fixture(scope="module")
def classes(tiny_checkpoint, tmp_path_factory):
    """The folder of a run with three classes and its file of rows."""
    folder = tmp_path_factory.mktemp("classes")
    labels = np.random.default_rng(1).choice(["x", "<b>y</b>", "z"], ROWS)
    rows(label=labels, age=np.arange(ROWS), some=[None, *range(3)] * 10).to_csv(
        folder / "rows.tsv", sep="\t", index=False
    )
    words = ("--text_columns", "text", "--slice_by", "shop")
    assert finetune(tiny_checkpoint, folder / "run", folder / "rows.tsv", *words) == 0
    return folder


def test_scores_of_slices_are_those_of_their_rows(classes):
    result = json.loads((classes / "run" / "results.json").read_text())
    predicted = pd.read_parquet(classes / "run" / "predictions.parquet")
    shops = pd.read_csv(classes / "rows.tsv", sep="\t")["shop"]
    assert result["slices"]["validation"].keys() == {"<i>north</i>", "south"}
    for name, scores in result["slices"]["validation"].items():
        part = predicted[(shops == name).to_numpy()]
        assert scores["rows"] == len(part)
        assert scores["accuracy"] == pytest.approx((part["label"] == part["prediction"]).mean())
        expected = f1_score(part["label"], part["prediction"], average="macro")
        assert scores["macro_f1"] == pytest.approx(expected)


def test_the_page_of_a_run_has_its_parts_and_escapes_texts(classes):
    page = (classes / "run" / "report.html").read_text()
    for title in (
        "Scores",
        "Slices",
        "By class",
        "Confusion matrix",
        "Reliability",
        "Most confident mistakes",
        "Training",
    ):
        assert f">{title}</h2>" in page
    assert re.search(r"<h1>label from text, by \w+</h1>", page)
    assert ">rows by confidence</" in page
    assert "validation: 2.5 % of the rows reach --max_length 16" in page
    assert "--long_texts windows" in page
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert page.count("<svg") >= 2
    assert "http" not in page


@pytest.mark.parametrize(("column", "named"), [("absent", "absent"), ("label", "label")])
def test_slice_by_refuses_a_missing_column_and_the_label(column, named, classes, tiny_checkpoint, tmp_path, capsys):
    words = ("--text_columns", "text", "--slice_by", column)
    assert finetune(tiny_checkpoint, tmp_path / "run", classes / "rows.tsv", *words) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("column", ["age", "some"])
def test_training_rows_need_no_column_of_slices(column, classes, tiny_checkpoint, tmp_path):
    table = pd.read_csv(classes / "rows.tsv", sep="\t")
    train = tmp_path / "train.csv"
    table[["text", "label"]].to_csv(train, index=False)
    words = ("--text_columns", "text", "--slice_by", column, "--train_file", str(train))
    assert finetune(tiny_checkpoint, tmp_path / "run", classes / "rows.tsv", *words) == 0
    slices = json.loads((tmp_path / "run" / "results.json").read_text())["slices"]["validation"]
    expected = {"age": {"0 to 9", "10 to 19", "20 to 29", "30 to 39"}, "some": {"0.0", "1.0", "2.0", MISSING}}
    assert slices.keys() == expected[column]
    assert {one["rows"] for one in slices.values()} == {10}


def test_a_share_of_the_training_rows_keeps_the_column(classes, tiny_checkpoint, tmp_path):
    words = ["finetune", "--model", str(tiny_checkpoint), "--train_file", str(classes / "rows.tsv"), "--text_columns"]
    words += [
        "text",
        "--validation_share",
        "0.5",
        "--slice_by",
        "shop",
        "--num_train_epochs",
        "1",
        "--max_length",
        "16",
    ]
    assert main([*words, "--disable_tqdm", "true", "--use_cpu", "--output_dir", str(tmp_path / "run")]) == 0
    slices = json.loads((tmp_path / "run" / "results.json").read_text())["slices"]["validation"]
    assert sum(one["rows"] for one in slices.values()) == ROWS / 2


RNG = np.random.default_rng(2)
KINDS = {
    "scores": ({"label": RNG.normal(size=ROWS).round(3)}, [], {"Scores", "Slices", "Largest errors", "Training"}),
    "labels": (
        {"one": RNG.integers(0, 2, ROWS), "two": RNG.integers(0, 2, ROWS)},
        ["--label_column", "one", "two"],
        {
            *("Scores", "Slices", "By class", "Right and wrong by label", "Reliability", "Most confident mistakes"),
            "Training",
        },
    ),
}


def titles_of(page):
    return {part.split("<")[0].rpartition(">")[2] for part in page.read_text().split("<h2")[1:]}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task_has_the_parts_that_make_sense(kind, tiny_checkpoint, tmp_path):
    columns, words, titles = KINDS[kind]
    rows(**columns).to_csv(tmp_path / "rows.csv", index=False)
    words = ["--text_columns", "text", "--slice_by", "shop", *words]
    assert finetune(tiny_checkpoint, tmp_path / "run", tmp_path / "rows.csv", *words) == 0
    assert titles_of(tmp_path / "run" / "report.html") == titles


@pytest.mark.parametrize("crf", [False, True])
def test_a_rare_tag_is_one_of_few_words_and_weights_are_advised_where_allowed(crf, tiny_checkpoint, tmp_path, capsys):
    lines = [{"tokens": ["the", "cat", "the"] * 4, "tags": ["O", "B-PER", "O"] * 4} for _ in range(10)]
    lines[0]["tags"][-1] = "B-LOC"
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["--tokens_column", "tokens", "--label_column", "tags", *["--crf"] * crf]
    assert finetune(tiny_checkpoint, tmp_path / "run", tmp_path / "rows.jsonl", *words) == 0
    told = capsys.readouterr().err
    assert "under 1.0% of the 120 training words have the tag B-LOC (1)" in told
    # A CRF refuses them.
    assert ("--class_weights" in told) is not crf


def test_a_tagger_has_confusions_of_words_and_scores_by_type(tiny_checkpoint, tmp_path):
    lines = [{"tokens": ["the", "cat", "sees"], "tags": ["O", "B-PER", "B-LOC"], "shop": name} for name in "ab" * 10]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["--tokens_column", "tokens", "--label_column", "tags", "--slice_by", "shop", "--class_weights", "balanced"]
    assert finetune(tiny_checkpoint, tmp_path / "run", tmp_path / "rows.jsonl", *words) == 0
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert result["classes"]["validation"].keys() == {"LOC", "PER"}
    assert result["class_weights"] == pytest.approx({"B-LOC": 1, "B-PER": 1, "O": 1})
    assert titles_of(tmp_path / "run" / "report.html") == {
        "Scores",
        "Slices",
        "By class",
        "Confusion matrix",
        "Training",
    }


def test_slices_of_many_values_are_those_with_most_rows():
    values = [f"v{number}" for number in range(200)] + ["v7"] * 5 + [" ", None, math.nan]
    slices = slices_of(values)
    assert len(slices) == MAX_SLICES
    assert len(slices["v7"]) == 6
    assert slices[MISSING].tolist() == [205, 206, 207]


def test_only_empty_values_are_missing():
    slices = slices_of(["None", "nan", "", None, math.nan, "a"])
    assert {name: rows.tolist() for name, rows in slices.items()} == {
        "None": [0],
        "a": [5],
        "nan": [1],
        MISSING: [2, 3, 4],
    }


def test_integers_that_are_no_floats_are_split_into_quarters():
    slices = slices_of([1_600_000_000_124_456_791 + 1000 * number for number in range(40)])
    assert [len(rows) for rows in slices.values()] == [10] * 4


def test_a_metric_that_is_undefined_for_a_slice_is_left_out():
    table = pa.table({"label": [0, 0, 0, 1, 0], "prediction": [0, 0, 1, 1, 0]})
    slices = {"right": np.array([0, 1]), "wrong": np.array([0, 2]), "mixed": np.array([2, 3, 4])}
    metrics = ("accuracy", "f1", "matthews_correlation")
    found = measured_slices(slice_examples(table, slices, metrics))
    assert {name: sorted(of_slice) for name, of_slice in found.items()} == {
        "right": ["accuracy", "rows"],
        "wrong": ["accuracy", "f1", "rows"],
        "mixed": ["accuracy", "f1", "matthews_correlation", "rows"],
    }
    labels, predicted = ([*table[name].take(slices["mixed"]).to_pylist()] for name in ("label", "prediction"))
    assert found["mixed"]["f1"] == pytest.approx(f1_score(labels, predicted))
    assert found["mixed"]["matthews_correlation"] == pytest.approx(matthews_corrcoef(labels, predicted))


def test_numbers_are_split_into_quarters_despite_repeated_values():
    values = [0] * 90 + list(range(1, 31))
    slices = slices_of(values)
    assert sum(map(len, slices.values())) == len(values)
    assert len(slices["0 to 0"]) == 90
    assert slices_of([str(one) for one in values]).keys() == slices.keys()


def test_quarters_of_large_close_numbers_have_a_name_each():
    values = [1_764_000_000 + number for number in range(40)]
    slices = slices_of(values)
    assert [len(rows) for rows in slices.values()] == [10] * 4
    assert next(iter(slices)) == "1764000000 to 1764000009"
    close = slices_of([1 + number / 1e9 for number in range(40)])
    assert [len(rows) for rows in close.values()] == [10] * 4


def test_wilsons_interval_of_a_share():
    ends = example_scores("accuracy", [1] * 4, [1] * 4).interval()
    z = 1.959963984540054
    assert (ends.low, ends.high) == pytest.approx((4 / (4 + z**2), 1))
    assert example_scores("mae", [1.0], [2.5]).interval() is None


def test_scores_of_several_labels_are_statistics_of_rows():
    labels, found = RNG.integers(0, 2, (2, 30, 3))
    table = pa.table({"row": np.arange(30), "label": list(labels), "prediction": list(found)})
    for name, value in multi_label_scores(labels, found).items():
        assert metric_examples(name, table).value == pytest.approx(value)


def result_of(task, **fields):
    empty = {name: {} for name in RunResult.__dataclass_fields__} | {"model": "m", "device": "CPU", "attention": "soft"}
    known = {"task": task.name, "labels": list(task.labels), "seed": 1, "train_rows": 1}
    return RunResult(**empty | known | fields)


def test_the_page_embeds_small_images_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file = BytesIO()
    Image.new("RGB", (2000, 1000), "red").save(file, "PNG")
    rows = datasets.Dataset.from_dict({"image": [file.getvalue()] * 2, "label": [0, 1]})
    columns = {"row": [0, 1], "label": [0, 1], "prediction": [1, 0], "probabilities": [[0.1, 0.9], [0.8, 0.2]]}
    task = ImageClassification(name="photos", labels=("cat", "dog"), metrics=("accuracy",))
    split = EncodedSplit(rows, rows, TaskOptions(max_length=8))
    evaluation = Evaluation({"accuracy": 0.0}, pa.table(columns))
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    write_run_report(tmp_path, task, result_of(task), {"validation": split}, {"validation": evaluation}, {}, history)
    page = (tmp_path / "report.html").read_text()
    assert page.count('<img alt="" src="data:image/png;base64,') == 2
    assert len(page) < 40_000
    assert "<title>2, 0.25</title>" in page


def test_an_undefined_score_has_no_interval(tmp_path):
    """Matthews' correlation of rows of one class was undefined, and its interval 0.00 to 0.00."""
    labels, predicted = [1, 1, 1, 1], [1, 0, 1, 1]
    columns = {"row": [0, 1, 2, 3], "label": labels, "prediction": predicted, "probabilities": [[0.4, 0.6]] * 4}
    rows = datasets.Dataset.from_dict({"text": WORDS[:4]})
    task = TextClassification(name="own", text_columns=("text",), labels=("no", "yes"), metrics=("accuracy",))
    evaluation = Evaluation({"accuracy": 0.75, "matthews_correlation": math.nan}, pa.table(columns))
    split = EncodedSplit(rows, rows, TaskOptions(max_length=8))
    write_run_report(tmp_path, task, result_of(task), {"validation": split}, {"validation": evaluation}, {}, [])
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", (tmp_path / "report.html").read_text())
    assert cells[:4] == ["75.00", "30.06 to 95.44", "undefined", "–"]


def test_a_page_of_many_rows_and_classes_is_bounded_and_says_so(tmp_path):
    num_rows, num_classes = 20_000, 300
    names = tuple(f"class {number}" for number in range(num_classes))
    labels, logits = RNG.integers(0, num_classes, num_rows), RNG.random((num_rows, num_classes))
    probabilities = logits / logits.sum(axis=1, keepdims=True)
    predicted = probabilities.argmax(axis=1)
    columns = {"row": np.arange(num_rows), "label": labels, "prediction": predicted}
    table = pa.table(columns | {"probabilities": pa.array(list(probabilities))})
    dataset = datasets.Dataset.from_dict({"text": ["word " * 1000] * num_rows})
    evaluation = Evaluation({"accuracy": 0.1, "macro_f1": 0.1}, table, classes=class_scores(labels, predicted, names))
    task = TextClassification(name="many", text_columns=("text",), labels=names, metrics=("accuracy",))
    split = EncodedSplit(dataset, dataset, TaskOptions(max_length=8))
    write_run_report(tmp_path, task, result_of(task), {"validation": split}, {"validation": evaluation}, {}, [])
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 200_000
    for said in ("The 50 classes of 300", "classes of 300 that are confused most", "of 20,000 rows"):
        assert said in page


def test_a_class_without_evaluation_rows_has_no_scores():
    scores = {"precision": 0.5, "recall": 0.25, "f1": 1 / 3}
    classes = {"none": dict.fromkeys(scores, 0.0) | {"support": 0}, "some": scores | {"support": 1200}}
    absent, present = ["none", "–", "–", "–", "0"], ["some", "50.00", "25.00", "33.33", "1,200"]
    assert class_cells(classes, 2) == [absent, present]
    # Of many classes, those with the lowest F1 are shown, which it has not.
    assert class_cells(classes, 1) == [present]


def test_a_mistyped_class_is_no_reason_to_weight_classes(tiny_checkpoint, tmp_path, capsys):
    labels = [*["repair"] * 90, "repiar", *["return"] * 70, "other"]
    rows = "".join(f"the {WORDS[row % len(WORDS)]},{label}\n" for row, label in enumerate(labels))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}")
    words = ["--text_columns", "text", "--label_column", "label"]
    assert finetune(tiny_checkpoint, tmp_path / "run", tmp_path / "rows.csv", *words) == 0
    told = capsys.readouterr().err
    assert "label 'repiar' (row 91) may be a typing error for 'repair' (90 of 162 rows)" in told
    assert "of the 162 training rows have the label other (1): --class_weights" in told

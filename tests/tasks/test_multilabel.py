"""Several labels per row: a column for each, a logistic loss, and F1 as in scikit-learn."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from conftest import WORDS
from scipy.special import expit
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.cli import main
from alignattn.finetuning.options import DataOptions
from alignattn.tasks import MultiLabelClassification
from alignattn.tasks.definitions import get_task
from alignattn.tasks.rows import load_task_files
from alignattn.tasks.text_classification import multi_label_scores
from alignattn.utils.errors import AlignAttnError

LABELS = ("toxic", "rude", "threat")
OWN = MultiLabelClassification(name="own", text_columns=("comment",), label_columns=LABELS)


@pytest.mark.parametrize("num_rows", [1, 7, 300])
@pytest.mark.filterwarnings("error")
def test_scores_against_scikit_learn(num_rows):
    generator = np.random.default_rng(num_rows)
    for share in (0.0, 0.1, 0.5, 1.0):
        labels, predictions = (generator.random((2, num_rows, 4)) < share).astype(np.int64)
        scores = multi_label_scores(labels, predictions)
        for average in ("micro", "macro"):
            expected = f1_score(labels, predictions, average=average, zero_division=0.0)
            assert scores[f"{average}_f1"] == pytest.approx(expected, abs=1e-12)
        assert scores["accuracy"] == pytest.approx(accuracy_score(labels, predictions), abs=1e-12)


@pytest.fixture
def rows(tmp_path):
    """A file of texts; each label says whether the text contains a word, in several spellings of yes and no."""
    generator = np.random.default_rng(0)
    lines = ["comment," + ",".join(LABELS)]
    for number in range(40):
        words = generator.choice(WORDS[:6], 4)
        has = [word in words for word in WORDS[:3]]
        written = [str(int(has[0])), str(has[1]).lower(), f"{has[2]:.1f}"]
        lines.append(",".join([" ".join(words), *written] if number else [" ".join(words), "0", "yes", "1"]))
    path = tmp_path / "comments.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_multi_label_run_trains_and_predicts_as_plain_transformers(tiny_checkpoint, rows, tmp_path):
    folder = tmp_path / "run"
    words = (
        f"finetune --model {tiny_checkpoint} --train_file {rows} --validation_share 0.25 --text_columns comment "
        f"--label_column {' '.join(LABELS)} --num_train_epochs 2 --learning_rate 1e-2 --per_device_train_batch_size 8 "
        f"--max_length 16 --disable_tqdm true --use_cpu --output_dir {folder}"
    ).split()
    assert main(words) == 0
    result = json.loads((folder / "results.json").read_text())
    assert (result["task"], result["labels"]) == ("comments", list(LABELS))
    assert (result["train_rows"], result["evaluation_rows"]) == (30, {"validation": 10})
    assert yaml.safe_load((folder / "config.yaml").read_text())["label_column"] == list(LABELS)
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["id2label"].values()) == list(LABELS)

    table = pq.read_table(folder / "predictions.parquet")
    labels, predictions = (np.array(table[name].to_pylist()) for name in ("label", "prediction"))
    probabilities = np.array(table["label_probabilities"].to_pylist())
    assert ((probabilities > 0.5) == predictions).all()
    metrics = result["metrics"]["validation"]
    assert metrics["micro_f1"] == pytest.approx(f1_score(labels, predictions, average="micro", zero_division=0.0))
    assert metrics["macro_f1"] == pytest.approx(f1_score(labels, predictions, average="macro", zero_division=0.0))
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels, predictions))

    evaluated = load_task_files(OWN, rows, None).train
    assert evaluated is not None
    # Plain transformers computes the same, with the logistic loss.
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = dict(zip(evaluated["comment"][:], zip(*(evaluated[name][:] for name in LABELS), strict=True), strict=True))
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    targets = torch.tensor(list(texts.values()), dtype=torch.float32)
    with torch.no_grad():
        output = model(**batch, labels=targets)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(output.logits, targets)
    torch.testing.assert_close(output.loss, expected)
    computed = expit(output.logits.numpy().astype(np.float64))
    nearest = np.abs(probabilities[:, None] - computed[None]).max(axis=2).min(axis=1)
    assert nearest.max() < 1e-5

    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "micro_f1" in card
    assert main(words) == 0  # finished already

    predicted = alignattn.load_run(folder).predict(list(texts))
    assert [[name in row["prediction"] for name in LABELS] for row in predicted] == (computed > 0.5).tolist()
    told = [{entry["label"]: entry["probability"] for entry in row["label_probabilities"]} for row in predicted]
    np.testing.assert_allclose([[row[name] for name in LABELS] for row in told], computed, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("a cat,2,0,0", "row 1: label '2' in column 'toxic' is not 0 or 1"),
        ("a cat,1,,0", "row 1: label '' in column 'rude'"),
        ("a cat,1,0,maybe", "row 1: label 'maybe' in column 'threat'"),
        (",1,0,0", "row 1: column 'comment' is empty"),
    ],
)
def test_rows_with_a_bad_label_or_text_are_refused(tmp_path, line, part):
    path = tmp_path / "comments.csv"
    path.write_text(f"comment,{','.join(LABELS)}\n{line}\n")
    with pytest.raises(AlignAttnError, match=part):
        load_task_files(OWN, path, None)


@pytest.mark.parametrize(
    ("columns", "part"),
    [(("comment", "rude"), "duplicate column"), (("rude", "rude"), "duplicate column"), (("a", "b"), "no column")],
)
def test_impossible_label_columns_are_refused(rows, columns, part):
    options = DataOptions(train_file=str(rows), text_columns=("comment",), label_column=columns)
    with pytest.raises(AlignAttnError, match=part):
        load_task_files(options.own_task(), rows, None)


@pytest.mark.parametrize("words", ["--tokens_column t", "--text_columns a --task mrpc"], ids=["tags", "a task"])
def test_several_label_columns_are_refused_for_tags_and_tasks(words, capsys):
    given = "finetune --model x --output_dir o --train_file rows.jsonl --label_column a b"
    assert main([*given.split(), *words.split()]) == 2
    assert "_column" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "part"),
    [({}, None), ({"label_columns": ["a"]}, "two or more"), ({"metrics": ["f1"]}, "metrics f1 are not among")],
)
def test_a_multi_label_task_may_be_a_file(tmp_path, change, part):
    path = tmp_path / "comments.yaml"
    content = {"kind": "multi-label-classification", "text_columns": ["comment"], "label_columns": list(LABELS)}
    path.write_text(yaml.safe_dump(content | change))
    if part is None:
        assert get_task(str(path)) == MultiLabelClassification(
            name="comments", text_columns=("comment",), label_columns=LABELS
        )
        return
    with pytest.raises(AlignAttnError, match=part):
        get_task(str(path))

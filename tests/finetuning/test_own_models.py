"""A model is added by a file and one line: runs, cards, `inspect` and tables then support it."""

import json
import re
from dataclasses import replace

import pytest
import torch
import yaml
from toy_task import VectorClassification
from transformers import AutoModel, AutoModelForSequenceClassification

import alignattn
from alignattn.attention.choices import SLOTS
from alignattn.cli import main
from alignattn.commands.reproduce.table import parse_table
from alignattn.models import MODELS, ModelCapabilities, ModelEntry
from alignattn.tasks import TextClassification
from alignattn.tasks.definitions import TASK_TYPES

WORDS = ("cat", "dog", "man", "sees", "likes", "old")
TOY = ModelEntry(
    "toy_model:ToyClassifier",
    "a toy of the tests",
    tasks=(TextClassification,),
    slots=tuple(SLOTS),
    training_defaults={"learning_rate": 0.003, "num_train_epochs": 2},
)
VECTORS = ModelEntry(
    "toy_task:VectorModel",
    "a line between vectors",
    tasks=(VectorClassification,),
    training_defaults={"learning_rate": 0.5},
)
LINES = (
    (MODELS, "toy", TOY),
    (MODELS, "vectors", VECTORS),
    (TASK_TYPES, "vector-classification", VectorClassification),
)


@pytest.fixture(autouse=True)
def lines_in_the_registries(monkeypatch):
    for entries, name, entry in LINES:
        monkeypatch.setitem(entries, name, entry)


@pytest.fixture
def finetune(tmp_path):
    rows = tmp_path / "rows.jsonl"
    examples = [{"text": f"the {a} and the {b}", "label": a == b} for a in WORDS for b in WORDS]
    rows.write_text("".join(json.dumps(example) + "\n" for example in examples))

    def call(*words):
        words = ("--output_dir", str(tmp_path / "run"), "--disable_tqdm", "true", "--use_cpu", "true", *words)
        files = ("--train_file", str(rows), "--validation_file", str(rows), "--text_columns", "text")
        return main(["finetune", "--model", "toy", *files, *words])

    return call


@pytest.mark.parametrize("attention", ["soft", "aa-gan", "qvi", None])
def test_finetune_and_the_card(attention, finetune, tmp_path, monkeypatch):
    assert finetune(*(() if attention is None else ("--attention", attention))) == 0
    attention = attention or "soft"
    folder = tmp_path / "run"
    result = json.loads((folder / "results.json").read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (result["model"], result["attention"]) == ("toy", attention)
    assert (config["learning_rate"], config["num_train_epochs"]) == (0.003, 2)
    assert ("align_loss" in result["training"]) == attention.startswith("aa-")

    card = (folder / "README.md").read_text()
    assert "`toy`, a toy of the tests, not pretrained, trained on rows" in card
    assert f"| attention | `{attention}` |" in card
    assert "base_model" not in card
    assert "base model" not in card
    assert "word vectors" not in card
    assert "needs the package `alignattn`:" in card
    monkeypatch.chdir(tmp_path)
    loaded = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], loaded)
    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    batch = loaded["tokenizer"]("the old man", return_tensors="pt")
    torch.testing.assert_close(loaded["model"](**batch).logits, model(**batch).logits)
    assert loaded["model"].alignattn.config.name == attention


@pytest.mark.parametrize("has_attention", [True, False])
def test_inspect(has_attention, finetune, tmp_path, monkeypatch, capsys):
    assert finetune("--max_steps", "1", "--attention", "aa-ct") == 0
    toy = replace(TOY, slots=tuple(SLOTS) if has_attention else ())
    monkeypatch.setitem(MODELS, "toy", toy)
    words = [
        "inspect",
        "--validation_file",
        str(tmp_path / "rows.jsonl"),
        "--text_columns",
        "text",
        "--max_eval_samples",
        "4",
    ]
    code = main([*words, "--model", str(tmp_path / "run"), "--output_dir", str(tmp_path / "heads")])
    assert code == (0 if has_attention else 2)
    told = capsys.readouterr()
    assert ("has no attention heads: it is a trained model of type alignattn-toy" in told.err) != has_attention
    assert (tmp_path / "heads").is_dir() == has_attention


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--embeddings", "vectors.txt"], ", not for toy: leave it out"),
        (["--attention", "aa-ct", "--layers", "2"], "this model has layers 0 to 1"),
    ],
)
def test_mistakes_are_one_line(words, message, finetune, capsys):
    assert finetune(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


TABLE = """
title: attentions
command: finetune
rows:
  - options: {model: toy, attention: soft}
  - options: {model: toy, attention: aa-ct}
  - options: {model: da}
  - options: {model: bert-base-uncased, attention: soft}
columns:
  - {label: mrpc, options: {task: mrpc}, measures: [{label: accuracy, path: metrics.validation.accuracy}]}
"""


def test_a_table_compares_the_attentions_of_a_model_and_passes_only_options_that_apply():
    table = parse_table("attentions", TABLE).with_options({"model": "albert-base-v2", "embeddings": "words.npz"})
    soft, aligned, da, pretrained = table.rows
    assert table.baseline(aligned) is soft
    assert [table.baseline(row) for row in (soft, da, pretrained)] == [None] * 3
    runs = [cell.experiments[0].options for cell in table.cells([1])]
    assert [run["model"] for run in runs] == ["toy", "toy", "da", "albert-base-v2"]
    assert ["embeddings" in run for run in runs] == [False, False, True, False]


def test_rows_that_need_no_tokenizer(tmp_path, monkeypatch):
    rows = [{"point": [x / 3, y / 3], "side": int(x > y)} for x in range(-4, 5) for y in range(-4, 5) if x != y]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"kind": "vector-classification", "vector_column": "point", "label_column": "side"}
    task |= {"labels": ["below", "above"], "metrics": ["accuracy"]}
    task |= {"sources": {"files": {"train": "rows.jsonl", "validation": "rows.jsonl"}}}
    (tmp_path / "sides.yaml").write_text(yaml.safe_dump(task))
    words = ["finetune", "--task", str(tmp_path / "sides.yaml"), "--disable_tqdm", "true", "--use_cpu", "true"]
    assert main([*words, "--model", "vectors", "--output_dir", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert result["metrics"]["validation"]["accuracy"] > 0.95
    card = (tmp_path / "run" / "README.md").read_text()
    assert "`vectors`, a line between vectors, not pretrained, trained on sides." in card
    assert "okenizer" not in card
    assert "max_length" not in card
    monkeypatch.chdir(tmp_path)
    loaded = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], loaded)
    model = alignattn.from_pretrained(tmp_path / "run", AutoModel)
    assert torch.equal(loaded["model"].classifier.weight, model.classifier.weight)
    assert model(torch.tensor([[1.0, -1.0]])).logits.argmax() == 1


@pytest.mark.parametrize("model", ["toy", "da", "vectors"])
def test_a_task_that_a_model_does_not_support_is_refused(model, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"tokens": ["a"], "ner_tags": ["O"]}\n')
    words = ["--model", model, "--train_file", str(rows), "--tokens_column", "tokens", "--label_column", "ner_tags"]
    assert main(["finetune", *words, "--output_dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"alignattn: --model {model} ")


def test_capabilities_without_a_slot_need_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        ModelCapabilities(slots=("score", "normalizer"), reasons_unsupported={"alignment": "has one query"})
    assert ModelCapabilities(
        slots=("score", "normalizer", "value"), reasons_unsupported={"alignment": "has one query"}
    ).has_attention

"""The head of a finished run that is trained further: each output keeps the name of its class."""

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from conftest import WORDS
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from alignattn.cli import main
from alignattn.finetuning.model import keep_classes, named_classes

TRUE = ["neg", "pos", "other"] * 4


def write(path: Path, names: list[str]) -> Path:
    """Write the same rows and classes, with the classes numbered in the order of `names`; return the path."""
    texts = [" ".join(WORDS[number:][:4]) for number in range(len(TRUE))]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    columns = {"text": texts, "label": [names.index(label) for label in TRUE]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(path)
    return path


def finetune(model: Path, file: Path, folder: Path, *words: str) -> None:
    line = (
        f"finetune --model {model} --train_file {file} --validation_file {file} --output_dir {folder} "
        "--disable_tqdm true --use_cpu true"
    )
    assert main([*line.split(), *words]) == 0


TEXTS = ["--text_columns", "text", "--label_column", "label"]
STAYS = ["--max_steps", "1", "--learning_rate", "0"]


def test_outputs_follow_the_names_of_their_classes(tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    order = ["pos", "other", "neg"]
    finetune(tiny_checkpoint, write(tmp_path / "a.parquet", ["neg", "pos", "other"]), first, *TEXTS, "--max_steps", "9")
    finetune(first, write(tmp_path / "b.parquet", order), second, *TEXTS, *STAYS)
    assert "neg, pos, other" in capsys.readouterr().err
    tables = [pd.read_parquet(folder / "predictions.parquet") for folder in (first, second)]
    columns = [0, 1, 2], [2, 0, 1]  # of neg, pos and other in each run
    by_name = [
        [[row[at] for at in where] for row in table["probabilities"]]
        for table, where in zip(tables, columns, strict=True)
    ]
    torch.testing.assert_close(torch.tensor(by_name[1]), torch.tensor(by_name[0]))
    metrics = [json.loads((folder / "results.json").read_text())["metrics"] for folder in (first, second)]
    assert metrics[0] == metrics[1]


def test_tags_of_a_crf_follow_their_names(tiny_checkpoint: Path, tmp_path: Path) -> None:
    names = {"a": ["O", "B-X", "I-X"], "b": ["I-X", "O", "B-X"]}
    for name, order in names.items():
        feature = datasets.List(datasets.ClassLabel(names=order))
        features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": feature})
        tags = [[order.index(tag) for tag in ("O", "B-X", "I-X", "O")]] * 6
        rows = {"tokens": [WORDS[at:][:4] for at in range(6)], "tags": tags}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{name}.parquet")
    words = ["--tokens_column", "tokens", "--label_column", "tags", "--crf"]
    first, second = tmp_path / "first", tmp_path / "second"
    finetune(tiny_checkpoint, tmp_path / "a.parquet", first, *words, "--max_steps", "5", "--learning_rate", "1e-2")
    finetune(first, tmp_path / "b.parquet", second, *words, *STAYS)
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    place = torch.tensor([names["a"].index(tag) for tag in names["b"]])
    for name in ("classifier.weight", "classifier.bias", "crf.chain.start_transitions", "crf.chain.end_transitions"):
        torch.testing.assert_close(after[name], before[name][place])
    torch.testing.assert_close(after["crf.chain.transitions"], before["crf.chain.transitions"][place][:, place])
    tables = [pd.read_parquet(folder / "predictions.parquet") for folder in (first, second)]
    assert [list(row) for row in tables[0]["prediction"]] == [list(row) for row in tables[1]["prediction"]]


def model_of(checkpoint: Path, classes: list[str]) -> Any:
    config = AutoConfig.from_pretrained(checkpoint, id2label=dict(enumerate(classes)))
    return AutoModelForSequenceClassification.from_config(config)


@pytest.mark.parametrize(
    ("saved", "classes", "is_said"),
    [
        (["a", "b"], ["a", "b"], False),
        (["ENTAILMENT", "NOT_ENTAILMENT"], ["entailment", "not_entailment"], False),
        (["LABEL_0", "LABEL_1"], ["a", "b"], False),
        (["a", "b", "c"], ["b", "a"], False),
        (["ham", "spam"], ["a", "b"], True),
        (["a", "b"], ["b", "c"], True),
    ],
)
def test_other_heads_stay_as_they_are(
    tiny_checkpoint: Path, saved: list[str], classes: list[str], is_said: bool
) -> None:
    model = model_of(tiny_checkpoint, classes)
    before = model.classifier.weight.clone()
    config = AutoConfig.from_pretrained(tiny_checkpoint, id2label=dict(enumerate(saved)))
    said = keep_classes(model, "start", named_classes(config))
    assert (said is not None) == is_said
    assert not is_said or all(name in str(said) for name in (*saved, *classes))
    assert torch.equal(model.classifier.weight, before)


def test_names_in_other_letters_are_the_same_classes(tiny_checkpoint: Path) -> None:
    model = model_of(tiny_checkpoint, ["entailment", "not_entailment"])
    before = model.classifier.weight.clone()
    assert keep_classes(model, "start", ("NOT_ENTAILMENT", "ENTAILMENT")) is not None
    assert torch.equal(model.classifier.weight, before.flip(0))

"""A stopped run of each model from scratch ends with the weights of a run that was not stopped."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT
from graphs import write_graph
from PIL import Image
from resumed import assert_goes_on, finetune

from alignattn.models import MODELS, capabilities_of

RESUMED_ELSEWHERE = {
    "gat": "tests/commands/finetune/test_graph_runs.py",
    "mcan": "tests/commands/finetune/test_vqa_runs.py",
    "lstm-att": "tests/finetuning/test_word_model_runs.py",
    "memn2n": "tests/models/test_memn2n.py",
    "seq2seq-transformer": "tests/tasks/sequences/test_sequences.py",
    "transformer-crf": "tests/finetuning/test_crf_runs.py",
}
SIZES = "embedding_dim=8 hidden_dim=8"
LAYERED = f"{SIZES} num_attention_heads=2 num_hidden_layers=1"
FIELDS = {
    "gatv2": "hidden_dim=4 num_attention_heads=2",
    "transformer": LAYERED,
    "cnn-transformer-crf": LAYERED,
    "captioner": f"{SIZES} conv_channels=[8]",
}
CASES = [(name, "") for name in MODELS if name not in RESUMED_ELSEWHERE] + [("seq2seq-lstm", "hard_attention=true")]
ANIMALS = ["cat", "dog", "bird"]


def texts(folder: Path) -> list[str]:
    rows = "".join(f"the {animal} sees,a {animal} sleeps,{animal == 'cat'}\n" for animal in ANIMALS)
    return _files(folder / "rows.csv", "a,b,label\n" + rows)


def tags(folder: Path) -> list[str]:
    return _files(folder / "rows.conll", "\n".join(f"the O\n{animal} B-ANIMAL\n" for animal in ANIMALS))


def sequences(folder: Path) -> list[str]:
    rows = "".join(f"{animal}\t{' '.join(animal.upper())}\n" for animal in ANIMALS)
    (folder / "rows.tsv").write_text(f"word\tspoken\n{rows}")
    return _task(folder, "kind: text2text-generation\nsource_column: word\ntarget_column: spoken\n", "rows.tsv")


def captions(folder: Path) -> list[str]:
    rows = []
    for number, animal in enumerate(ANIMALS):
        path = folder / f"{animal}.png"
        Image.linear_gradient("L").rotate(90 * number).resize((8, 8)).convert("RGB").save(path)
        rows.append(json.dumps({"image": str(path), "caption": f"a {animal}"}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    return _task(folder, "kind: image-to-text\nimage_size: 8\n", "rows.jsonl")


def nodes(folder: Path) -> list[str]:
    return ["--task", str(write_graph(folder / "mine.npz"))]


def _files(path: Path, content: str) -> list[str]:
    path.write_text(content)
    return ["--train_file", str(path), "--validation_file", str(path)]


def _task(folder: Path, content: str, rows: str) -> list[str]:
    path = folder / "own.yaml"
    path.write_text(f"{content}sources: {{files: {{train: {rows}, validation: {rows}}}}}\n")
    return ["--task", str(path)]


WRITERS: dict[str, Callable[[Path], list[str]]] = {
    "text-classification": texts,
    "token-classification": tags,
    "text2text-generation": sequences,
    "image-to-text": captions,
    "node-classification": nodes,
}


def test_every_other_model_is_resumed_in_the_file_that_is_named():
    assert RESUMED_ELSEWHERE.keys() <= set(MODELS)
    for name, file in RESUMED_ELSEWHERE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert name in text
        assert "resum" in text


@pytest.mark.parametrize(("model", "field"), CASES)
def test_a_resumed_run_ends_with_the_same_weights(model, field, tmp_path, capsys):
    capabilities = capabilities_of(model)
    kind = capabilities.tasks[0].kind
    fields = [*FIELDS.get(model, SIZES).split(), *([field] if field else [])]
    words = ["--model", model, *WRITERS[kind](tmp_path), "--num_train_epochs", "2", "--model_config", *fields]
    if capabilities.has_heads:
        words += ["--attention", "aa-ct"]
    if kind == "text-classification":
        words += ["--text_columns", *"ab"[: capabilities.texts_per_row[0]]]
    finetune(words, tmp_path / "run")
    assert_goes_on(words, tmp_path / "run", capsys)

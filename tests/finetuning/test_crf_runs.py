"""Runs that tag words with a CRF: a model from scratch, and a pretrained encoder with `--crf`."""

import json
import random
from pathlib import Path

import pandas as pd
import pytest
from conftest import WORDS
from resumed import assert_goes_on, finetune
from safetensors.torch import load_file

import alignattn
from alignattn.commands.finetune import COMMAND
from alignattn.utils.errors import AlignAttnError

ANIMALS = ("cat", "dog", "bird")
FROM_SCRATCH = ["transformer-crf", "--value", "qvi", "--model_config", "hidden_dim=8", "num_attention_heads=2"]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """40 sentences; an animal and the word before it are an entity. The first entity begins with I-, against BIO."""
    draw = random.Random(0)
    blocks = ["the I-ANIMAL\ncat I-ANIMAL"]
    for _ in range(39):
        words = draw.choices([word for word in WORDS if word not in ANIMALS], k=draw.randint(1, 5))
        lines = [f"{word} O" for word in words] + [f"the B-ANIMAL\n{draw.choice(ANIMALS)} I-ANIMAL"]
        blocks.append("\n".join(lines))
    path = tmp_path / "rows.conll"
    path.write_text("\n\n".join(blocks) + "\n")
    return path


@pytest.mark.parametrize("has_own_model", [True, False])
def test_a_run_repeats_its_saved_predictions_and_resumes_bitwise(
    has_own_model: bool, sentences: Path, tiny_checkpoint: Path, tmp_path: Path, capsys
) -> None:
    folder = tmp_path / "run"
    model = FROM_SCRATCH if has_own_model else [str(tiny_checkpoint), "--crf", "--attention", "aa-ct"]
    words = ["--train_file", str(sentences), "--validation_file", str(sentences), "--model", *model]
    words += ["--num_train_epochs", "2", "--per_device_train_batch_size", "20"]
    finetune(words, folder)
    assert "in 1 training row an I- tag does not continue an entity, against BIO" in capsys.readouterr().out
    config = json.loads((folder / "config.json").read_text())
    assert config["crf_tags"] == "bio"
    written = pd.read_parquet(folder / "predictions.parquet")
    rows = [list(tokens) for tokens in blocks_of(sentences)]
    predictor = alignattn.load_run(folder)
    told = predictor.predict([{"tokens": row} for row in rows])
    assert [one["prediction"] for one in told] == [list(tags) for tags in written["prediction"]]
    assert all(tags[0] != "I-ANIMAL" for tags in written["prediction"])
    assert "crf.chain.transitions" in load_file(folder / "model.safetensors")
    assert_goes_on(words, folder, capsys)


def blocks_of(path: Path) -> list[list[str]]:
    return [[line.split()[0] for line in block.splitlines()] for block in path.read_text().strip().split("\n\n")]


def test_a_run_from_one_with_a_crf_has_a_crf_only_if_asked(
    sentences: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    words = ["--train_file", str(sentences), "--max_steps", "1"]
    finetune([*words, "--model", str(tiny_checkpoint), "--crf"], tmp_path / "first")
    for is_asked in (True, False):
        folder = tmp_path / f"second-{is_asked}"
        finetune([*words, "--model", str(tmp_path / "first"), *["--crf"] * is_asked], folder)
        assert ("crf_tags" in json.loads((folder / "config.json").read_text())) == is_asked
        # Plain transformers would load it without its CRF.
        card = (folder / "README.md").read_text()
        assert ("which plain transformers does not load" in card) == is_asked
        assert ("alignattn.from_pretrained" in card) == is_asked
        assert ("AutoModelForTokenClassification.from_pretrained(path)" in card) != is_asked
        assert ("crf.chain.transitions" in load_file(folder / "model.safetensors")) == is_asked
        assert alignattn.load_run(folder).predict([{"tokens": ["the", "cat"]}])


def test_a_missing_pytorch_crf_is_named(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("alignattn.utils.errors.find_spec", lambda module: None)
    options = COMMAND.parse(["--model", "transformer-crf", "--task", "msra", "--output_dir", str(tmp_path / "run")])
    with pytest.raises(AlignAttnError, match=r"a CRF needs torchcrf.*alignattn\[crf\]"):
        options.check_places()

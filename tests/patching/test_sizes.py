"""A config of a model that is too large to build is refused in one line, before anything is built."""

import json
import shutil

import pytest
from transformers import AutoModelForSequenceClassification

from alignattn.cli import main
from alignattn.patching.checkpoints import load_pretrained
from alignattn.utils.errors import AlignAttnError

HUGE = {
    "num_hidden_layers": 10**7,
    "num_labels": 10**10,
    "vocab_size": 10**10,
    "intermediate_size": 10**11,
    "max_position_embeddings": 10**11,
    "hidden_size": 24 * 10**6,
}


@pytest.fixture
def folder(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "model")


@pytest.mark.parametrize("field", HUGE)
def test_a_config_far_larger_than_its_weights_is_refused(field, folder):
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | {field: HUGE[field]}))
    with pytest.raises(AlignAttnError, match=r"config of "):
        load_pretrained(str(folder), AutoModelForSequenceClassification)


def test_too_many_layers_by_an_option_are_refused(folder, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text("a,label\nthe cat,0\nthe dog,1\n")
    words = ["finetune", "--model", str(folder), "--train_file", str(rows), "--text_columns", "a"]
    words += ["--model_config", "num_hidden_layers=10000000", "--output_dir", str(tmp_path / "out")]
    assert main(words) == 2
    assert "num_hidden_layers 10000000" in capsys.readouterr().err.splitlines()[-1]

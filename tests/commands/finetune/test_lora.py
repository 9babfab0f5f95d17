"""Runs that train adapters: their folder is that of an ordinary run, plus the adapter."""

import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import transformers
from test_finetune import assert_goes_on_after, one_line, options, read, rows_file, run, weights  # noqa: F401 - two are fixtures
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForMaskedLM

import alignattn
from alignattn.cli import main
from alignattn.finetuning.hub import stage
from alignattn.finetuning.lora import adapt
from alignattn.finetuning.options import ModelOptions
from alignattn.patching import patch_of


def probabilities(model, folder, rows):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = [line.split(",") for line in Path(rows).read_text().splitlines()[1:]]
    batch = tokenizer([row[0] for row in table], [row[1] for row in table], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**batch).logits.softmax(dim=-1)


@pytest.mark.parametrize("name", ["CLIP", "Siglip", "ViT"])
def test_adapters_of_an_image_classifier_train_its_head_alone(name):
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 16}
    config = getattr(transformers, f"{name}Config")(**(vision if name == "ViT" else {"vision_config": vision}))
    model = getattr(transformers, f"{name}ForImageClassification")(config)
    adapted = adapt(alignattn.patch(model, "aa-moments"), ModelOptions(model=name, lora_r=2))
    trained = [path for path, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert any("lora_" in path for path in trained)
    heads = [path for path in trained if "lora_" not in path]
    assert heads
    assert all(".classifier." in path for path in heads)


@pytest.mark.parametrize("attention", ["aa-gan", "aa-ct+qvi"])
def test_a_run_trains_adapters_and_keeps_them_merged(attention, options, rows_file):  # noqa: F811
    assert run(options, attention=attention, lora_r="2") == 0
    folder = Path(options["--output_dir"])
    written = torch.tensor(pq.read_table(folder / "predictions.parquet")["probabilities"].to_pylist())
    for path in (folder, folder / "adapter"):
        model = alignattn.from_pretrained(path, AutoModelForSequenceClassification)
        assert patch_of(model).config.name == attention
        found = probabilities(model, folder, rows_file)
        torch.testing.assert_close(found.double(), written.double(), atol=1e-5, rtol=0)
        assert model.config.id2label == {0: "no", 1: "yes"}
    before = AutoModelForSequenceClassification.from_pretrained(options["--model"]).state_dict()
    after = weights(folder)
    name = "bert.encoder.layer.0.attention.self.query"
    assert not torch.equal(after[f"{name}.weight"], before[f"{name}.weight"])
    assert torch.linalg.matrix_rank(after[f"{name}.weight"] - before[f"{name}.weight"], rtol=1e-3) == 2
    assert torch.equal(after[f"{name}.bias"], before[f"{name}.bias"])
    # Weights are as readable as the other files.
    modes = {path.stat().st_mode for path in (folder / "results.json", *folder.rglob("*.safetensors"))}
    assert len(modes) == 1
    parameters = read(folder)["parameters"]
    assert parameters["trainable"] < parameters["total"] / 2
    card = (folder / "README.md").read_text()
    assert "rank 2, α 4, in every linear layer" in card
    staged = stage(folder, folder.parent / "staged")
    texts = [path for path in (staged / "adapter").iterdir() if path.suffix != ".safetensors"]
    assert [path.name for path in texts] == ["adapter_config.json"]
    assert str(Path(options["--model"]).parent) not in texts[0].read_text()


@pytest.mark.parametrize("labels", [("no", "yes"), ("no", "yes", "perhaps")])
def test_the_adapter_of_a_plain_run_loads_with_its_labels(labels, options, tmp_path):  # noqa: F811
    rows = tmp_path / "labelled.csv"
    rows.write_text("a,b,same\n" + "".join(f"the cat,a dog,{labels[row % len(labels)]}\n" for row in range(18)))
    files = {"train_file": str(rows), "validation_file": str(rows)}
    assert run(options, lora_r="2", **files) == 0
    folder = Path(options["--output_dir"])
    written = torch.tensor(pq.read_table(folder / "predictions.parquet")["probabilities"].to_pylist())
    model = alignattn.from_pretrained(folder / "adapter", AutoModelForSequenceClassification)
    assert sorted(model.config.id2label.values()) == sorted(labels)
    torch.testing.assert_close(probabilities(model, folder, rows).double(), written.double(), atol=1e-5, rtol=0)


def test_the_adapter_holds_the_pooler_that_its_checkpoint_lacks(options, rows_file, tmp_path):  # noqa: F811
    """A masked language model has none: it is drawn with the head, and its base model draws another."""
    BertForMaskedLM.from_pretrained(options["--model"]).save_pretrained(tmp_path / "masked")
    AutoTokenizer.from_pretrained(options["--model"]).save_pretrained(tmp_path / "masked")
    assert run(options, model=str(tmp_path / "masked"), lora_r="2") == 0
    folder = Path(options["--output_dir"])
    found = [
        probabilities(alignattn.from_pretrained(path, AutoModelForSequenceClassification), folder, rows_file)
        for path in (folder, folder / "adapter")
    ]
    torch.testing.assert_close(*found, atol=1e-5, rtol=0)


def test_targets_and_scale_are_options(options):  # noqa: F811
    assert run(options, attention="aa-ot", lora_r="2", lora_alpha="3", lora_target_modules=["query", "key"]) == 0
    folder = Path(options["--output_dir"])
    fields = read(folder / "adapter", "adapter_config.json")
    assert (fields["r"], fields["lora_alpha"], sorted(fields["target_modules"])) == (2, 3, ["key", "query"])
    inspection = folder.parent / "heads"
    words = ["inspect", "--model", str(folder), "--validation_file", options["--validation_file"]]
    assert main([*words, "--text_columns", "a", "b", "--max_length", "32", "--output_dir", str(inspection)]) == 0
    assert (inspection / "heads.csv").is_file()


@pytest.mark.parametrize("attention", ["aa-gan", "sparsemax"])
def test_a_killed_run_resumes_to_the_same_weights(attention, options, tmp_path, capsys):  # noqa: F811
    assert_goes_on_after(3, options, tmp_path / "killed", capsys, attention=attention, lora_r="2")


@pytest.fixture
def checkpoint(options, tmp_path):  # noqa: F811
    """A checkpoint of a run that trains adapters, without the config.yaml of the run."""
    saving = {"save_strategy": "steps", "save_steps": "3", "save_total_limit": "10"}
    assert run(options, attention="aa-gan", lora_r="2", output_dir=str(tmp_path / "first"), **saving) == 0
    return shutil.move(tmp_path / "first" / "checkpoint-3", tmp_path / "checkpoint-3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"lora_r": "3"}, "its adapter differs in lora_alpha, r"),
        ({"lora_target_modules": ["query", "key"]}, "its adapter differs in target_modules"),
        ({"attention": "aa-ct"}, "its adapter differs in alignattn"),
        ({"lora_r": None}, "it has an adapter .*and this run trains a whole model"),
    ],
)
def test_a_run_does_not_resume_from_the_adapter_of_another_run(options, checkpoint, changes, message, capsys):  # noqa: F811
    resumed = {"attention": "aa-gan", "lora_r": "2", "resume_from_checkpoint": str(checkpoint)}
    resumed["train_sampling_strategy"] = "group_by_length"
    resumed = {name: value for name, value in (resumed | changes).items() if value is not None}
    assert run(options, **resumed) == (2 if message else 0)
    if message:
        assert re.search(message, one_line(capsys))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lora_r": "2", "lora_target_modules": ["nothing"]},
            "--lora_target_modules 'nothing': .*key, query",
        ),
        ({"lora_r": "2", "lora_target_modules": ["qeury"]}, r"did you mean 'query'\?"),
        ({"attention": "aa-ct", "lora_r": "2", "lora_target_modules": ["value"]}, "alignment"),
    ],
)
def test_impossible_adapter_options_are_one_line(options, capsys, changes, message):  # noqa: F811
    assert run(options, **changes) == 2
    assert re.search(message, one_line(capsys))

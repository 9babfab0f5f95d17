"""Plain libraries refuse a folder whose patch changes the function, and load that of an alignment."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import datasets
import peft
import pytest
import torch
import transformers
from conftest import FAMILIES, crossed, logits_of, tiny_batch, tiny_model
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

import alignattn
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.patching.checkpoints import load_config, load_pretrained
from alignattn.patching.saving import LOADING_HINT

FUNCTIONS = ("sparsemax", "qvi", "bilinear", "aa-ct+entmax15")
CONFIG = "config.json"


@pytest.fixture(scope="module")
def saved(tiny_checkpoint, tmp_path_factory):
    """Return the folder of a classifier and its tokenizer, by preset."""
    folders = {}
    for preset in ("sparsemax", "aa-ct"):
        folders[preset] = tmp_path_factory.mktemp(preset)
        alignattn.patch(tiny_model("bert"), preset).save_pretrained(folders[preset])
        AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(folders[preset])
    return folders


def test_every_plain_library_refuses_another_function_and_loads_an_alignment(saved):
    script = Path(__file__).with_name("plain_process.py")
    words = [sys.executable, script, saved["sparsemax"], saved["aa-ct"]]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    said, of_alignment = map(json.loads, done.stdout.splitlines()[-2:])
    assert set(of_alignment.values()) == {None}
    assert said.pop("tokenizer") is None
    for way, error in said.items():
        assert error is not None, way
        assert LOADING_HINT in error, way


@pytest.mark.parametrize(("family", "preset"), crossed(FAMILIES, FUNCTIONS))
def test_each_family_is_refused_and_loaded_again(family, preset, tmp_path):
    model = alignattn.patch(tiny_model(family), preset)
    for parameter in [*alignment_parameters(model), *function_parameters(model)]:
        parameter.data.add_(0.1)
    expected, kind = logits_of(model), model.config.model_type
    model.save_pretrained(tmp_path)
    for auto_class in (AutoModelForSequenceClassification, AutoModel):
        with pytest.raises(ValueError, match=LOADING_HINT):
            auto_class.from_pretrained(tmp_path, attn_implementation="eager")
    for own in (type(model), type(model.base_model)):
        with pytest.raises(Exception, match=LOADING_HINT):
            own.from_pretrained(tmp_path, attn_implementation="eager")
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert torch.equal(logits_of(loaded), expected)
    assert torch.equal(logits_of(alignattn.from_pretrained(tmp_path, type(model))), expected)
    assert type(loaded.config) is type(model.config)
    assert loaded.config.model_type == model.config.model_type == kind
    written = (tmp_path / CONFIG).read_text()
    loaded.save_pretrained(tmp_path)
    assert (tmp_path / CONFIG).read_text() == written


def test_keyword_arguments_override_the_config(saved):
    model = alignattn.from_pretrained(
        saved["sparsemax"],
        AutoModelForSequenceClassification,
        num_labels=2,
        hidden_dropout_prob=0.3,
        ignore_mismatched_sizes=True,
        dtype=torch.bfloat16,
        attn_implementation="eager",
    )
    assert model.config.num_labels == 2
    assert model.config.hidden_dropout_prob == 0.3
    assert model.config.name_or_path == str(saved["sparsemax"])
    assert model.dtype == torch.bfloat16
    assert load_config(str(saved["sparsemax"]), num_labels=5).num_labels == 5


def test_a_pipeline_accepts_a_loaded_model(saved):
    model, tokenizer = load_pretrained(str(saved["sparsemax"]), AutoModelForSequenceClassification)
    (answer,) = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)("the cat sees")
    batch = tokenizer("the cat sees", return_tensors="pt")
    with torch.no_grad():
        assert answer["score"] == pytest.approx(model(**batch).logits.softmax(-1).max().item())


def test_copies_are_saved_as_patched_and_unpatched_models_as_plain(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "sparsemax")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.compile(model)):
        twin.save_pretrained(tmp_path)
        assert LOADING_HINT in json.loads((tmp_path / CONFIG).read_text())["model_type"]
    alignattn.unpatch(model).save_pretrained(tmp_path)
    assert LOADING_HINT not in (tmp_path / CONFIG).read_text()
    assert torch.equal(
        logits_of(AutoModelForSequenceClassification.from_pretrained(tmp_path)), logits_of(tiny_model("bert"))
    )


@pytest.mark.parametrize("preset", ["sparsemax", "qvi"])
def test_a_training_saves_resumes_and_loads_its_best_checkpoint(preset, tmp_path):
    batch = tiny_batch(8)
    rows = datasets.Dataset.from_dict({name: values.tolist() for name, values in batch.items()})

    def train(resume=None):
        trainer = alignattn.AlignmentTrainer(
            model=alignattn.patch(tiny_model("bert"), preset),
            args=TrainingArguments(
                str(tmp_path),
                max_steps=4,
                per_device_train_batch_size=4,
                save_steps=2,
                eval_steps=2,
                eval_strategy="steps",
                load_best_model_at_end=True,
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=rows,
            eval_dataset=rows,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = train()
    best = alignattn.from_pretrained(whole.state.best_model_checkpoint, AutoModelForSequenceClassification)
    assert torch.equal(logits_of(best), logits_of(whole.model))
    resumed = train(resume=str(tmp_path / "checkpoint-2"))
    torch.testing.assert_close(logits_of(resumed.model), logits_of(whole.model))


def test_saving_draws_no_random_numbers(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "sparsemax")
    before = torch.random.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_adapter_of_a_model_with_another_function_is_loaded(saved, tmp_path):
    model = alignattn.from_pretrained(saved["sparsemax"], AutoModelForSequenceClassification)
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert torch.equal(logits_of(loaded), logits_of(model))


@pytest.mark.parametrize("preset", ["aa-ct", "sparsemax", "aa-gan+bilinear"])
@pytest.mark.parametrize("family", ["bert", "deberta-v3"])
def test_a_config_with_output_attentions_is_saved_and_loaded(family, preset, tmp_path):
    tiny_model(family).save_pretrained(tmp_path / "plain")
    options = {"output_attentions": True, "attn_implementation": "eager"}
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain", **options)
    model = alignattn.patch(plain, preset)
    for folder in ("first", "second"):
        model.save_pretrained(tmp_path / folder)
        loaded = alignattn.from_pretrained(tmp_path / folder, AutoModelForSequenceClassification)
        assert loaded.config.output_attentions
        assert torch.equal(logits_of(loaded), logits_of(model))
        model = loaded

"""peft with patched models: the given config, the status of a model, and which parameters train."""

import copy
import itertools
import json

import peft
import pytest
import torch
from conftest import logits_of, tiny_batch, tiny_model
from packaging.version import Version
from peft.peft_model import get_model_status
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification
from transformers.integrations.peft import MIN_PEFT_VERSION

import alignattn
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.patching.checkpoints import load_checkpoint
from alignattn.patching.saving import LOADING_HINT
from alignattn.utils.errors import AlignAttnError

PRESETS = ("aa-ct", "sparsemax", "aa-ct+qvi")
ORDERS = ("patched first", "adapted first")
ORDERED = tuple(zip(("adapted first", "patched first", "adapted first"), PRESETS, strict=True))
ADAPTERS = {
    "lora": lambda: peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False, task_type="SEQ_CLS"),
    "ia3": lambda: peft.IA3Config(target_modules=["key", "query"], feedforward_modules=["query"]),
    "osf": lambda: peft.OSFConfig(target_modules=["query", "key"], effective_rank=4),
}
PROMPTS = {
    "prompts": lambda: peft.PromptTuningConfig(num_virtual_tokens=2, task_type="SEQ_CLS"),
    "p-tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=2, encoder_hidden_size=8, task_type="SEQ_CLS"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny_model("bert").save_pretrained(folder)
    return folder


def adapted(base, preset, config, order=ORDERS[0]):
    model = AutoModelForSequenceClassification.from_pretrained(base)
    if order == ORDERS[0]:
        alignattn.patch(model, preset)
    model = peft.get_peft_model(model, config)
    if order == ORDERS[1]:
        alignattn.patch(model, preset)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.parametrize(("order", "preset"), ORDERED)
def test_a_model_keeps_the_config_given_to_peft(base, tmp_path, order, preset):
    # peft's own tests check the identity of the object, which a user may change later.
    config = ADAPTERS["lora"]()
    model = adapted(base, preset, config, order)
    assert model.peft_config["default"] is config
    model.save_pretrained(tmp_path / "adapter")
    config.save_pretrained(tmp_path / "own")
    assert task_in(tmp_path / "own") == "SEQ_CLS"
    fresh = alignattn.patch(AutoModelForSequenceClassification.from_pretrained(base), preset)
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter", config=config)
    assert loaded.peft_config["default"] is config
    assert config.inference_mode


@pytest.mark.parametrize("order", ORDERS)
def test_adapters_of_a_patched_model_can_be_deleted(base, order):
    """Checked as in peft's own tests: each wrapper of a module lists the active adapters."""
    model = adapted(base, "aa-ct+qvi", ADAPTERS["lora"](), order)
    model.add_adapter("second", ADAPTERS["lora"]())
    model.set_adapter("second")
    model.delete_adapter("second")
    for active in (["default"], []):
        wrappers = [module for module in model.modules() if isinstance(module, AuxiliaryTrainingWrapper)]
        assert all(module.active_adapters == active for module in wrappers)
        if active:
            assert wrappers
            model.delete_adapter("default")
    assert model.base_model(**tiny_batch()).logits.isfinite().all()


def task_in(folder):
    return json.loads((folder / "adapter_config.json").read_text())["task_type"]


@pytest.mark.parametrize(
    ("kind", "preset", "order"),
    [
        (kind, preset, ORDERS[number % 2])
        for number, (kind, preset) in enumerate(itertools.product([*ADAPTERS, *PROMPTS], PRESETS))
    ],
)
def test_any_adapter_trains_the_slots_and_is_saved_with_them(kind, order, preset, base, tmp_path):
    model = adapted(base, preset, (ADAPTERS | PROMPTS)[kind](), order)
    assert all(own.requires_grad for own in [*alignment_parameters(model), *function_parameters(model)])
    model.save_pretrained(tmp_path / "adapter")
    loaded = alignattn.from_pretrained(tmp_path / "adapter", AutoModelForSequenceClassification)
    torch.testing.assert_close(logits_of(loaded), logits_of(model))
    plain = AutoModelForSequenceClassification.from_pretrained(base)
    if preset == "aa-ct":
        torch.testing.assert_close(
            logits_of(peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")), logits_of(model)
        )
    else:
        with pytest.raises(ValueError, match=LOADING_HINT):
            peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("copied", "is_peft_model", "preset"),
    [*(("self", True, preset) for preset in PRESETS), ("attention", True, "aa-ct+qvi"), ("self", False, "aa-ct+qvi")],
)
def test_attention_that_an_adapter_copies_is_saved_with_its_slots(copied, is_peft_model, preset, base, tmp_path):
    config = peft.LoraConfig(target_modules=["intermediate.dense"], modules_to_save=[copied, "classifier"])
    if is_peft_model:
        model = adapted(base, preset, config)
    else:
        model = alignattn.patch(AutoModelForSequenceClassification.from_pretrained(base), preset)
        if Version(peft.__version__) < Version(MIN_PEFT_VERSION):
            # transformers 5.24 requires peft 0.22, which was released later.
            with pytest.raises(ValueError, match=f"PEFT.*{MIN_PEFT_VERSION}"):
                model.add_adapter(config)
            return
        model.add_adapter(config)
    model.save_pretrained(tmp_path / "adapter")
    loaded = alignattn.from_pretrained(tmp_path / "adapter", AutoModelForSequenceClassification)
    assert torch.equal(logits_of(loaded), logits_of(model))
    merged = loaded.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    whole = alignattn.from_pretrained(tmp_path / "merged", AutoModelForSequenceClassification)
    torch.testing.assert_close(logits_of(whole), logits_of(model))
    # After merging, the copy belongs to the model, and further adapters save its slots.
    peft.get_peft_model(merged, ADAPTERS["lora"]()).save_pretrained(tmp_path / "again")
    held = load_file(tmp_path / "again" / "adapter_model.safetensors").keys()
    assert {f"base_model.model.{name}" for name in whole.state_dict() if "alignattn" in name} <= held


def test_the_head_of_a_prompt_adapter_is_not_new(base, tmp_path):
    adapted(base, "aa-ct", PROMPTS["prompts"]()).save_pretrained(tmp_path / "adapter")
    load_checkpoint(str(tmp_path / "adapter"), AutoModelForSequenceClassification, lacking="classifier: train one")


@pytest.mark.parametrize(("order", "preset"), ORDERED)
def test_the_given_config_is_not_changed(order, preset, base, tmp_path):
    config = ADAPTERS["lora"]()
    model = adapted(base, preset, config, order)
    model.add_adapter("second", config)
    model.save_pretrained(tmp_path / "adapter")
    assert config.task_type == "SEQ_CLS"
    told = "SEQ_CLS" if preset == "aa-ct" else LOADING_HINT
    assert task_in(tmp_path / "adapter") == task_in(tmp_path / "adapter" / "second") == told
    copy.deepcopy(model).save_pretrained(tmp_path / "copy")
    assert task_in(tmp_path / "copy") == told
    another = adapted(base, preset, config, order)
    assert type(another) is type(model)
    another.save_pretrained(tmp_path / "another")
    loaded = alignattn.from_pretrained(tmp_path / "another", AutoModelForSequenceClassification)
    assert torch.equal(logits_of(loaded), logits_of(another))
    plain = peft.get_peft_model(AutoModelForSequenceClassification.from_pretrained(base), config)
    plain.save_pretrained(tmp_path / "plain")
    assert task_in(tmp_path / "plain") == "SEQ_CLS"


def test_an_unpatched_model_has_plain_adapters(base, tmp_path):
    model = adapted(base, "sparsemax", ADAPTERS["lora"]())
    alignattn.unpatch(model)
    model.save_pretrained(tmp_path / "adapter")
    assert task_in(tmp_path / "adapter") == "SEQ_CLS"
    alignattn.patch(model, "qvi")
    model.save_pretrained(tmp_path / "adapter")
    assert task_in(tmp_path / "adapter") == LOADING_HINT


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("order", ORDERS)
def test_peft_reports_the_same_status_for_patched_and_plain_models(order, kind, base):
    plain = peft.get_peft_model(AutoModelForSequenceClassification.from_pretrained(base), ADAPTERS[kind]())
    model = adapted(base, "aa-ct+qvi", ADAPTERS[kind](), order)
    for state in ("enabled", "disabled"):
        found, expected = vars(get_model_status(model)), vars(get_model_status(plain))
        of_parameters = ("trainable_params", "total_params")
        assert {name: value for name, value in found.items() if name not in of_parameters} == {
            name: value for name, value in expected.items() if name not in of_parameters
        }, state
        for each in (model, plain):
            each.base_model.disable_adapter_layers()


def test_frozen_parameters_stay_frozen(base):
    model = alignattn.patch(AutoModelForSequenceClassification.from_pretrained(base), "aa-ct+qvi")
    for own in function_parameters(model):
        own.requires_grad_(False)
    for config in (ADAPTERS["osf"](), ADAPTERS["lora"]()):
        twin = peft.get_peft_model(copy.deepcopy(model), config)
        assert not any(own.requires_grad for own in function_parameters(twin))
        assert all(own.requires_grad for own in alignment_parameters(twin))


def test_adapters_around_a_patched_part_are_refused(base, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(base)
    alignattn.patch(model.bert, "aa-ct")
    with pytest.raises(AlignAttnError, match="BertModel is a part of"):
        peft.get_peft_model(model, PROMPTS["prompts"]()).save_pretrained(tmp_path / "adapter")

"""Layers removed, moved, copied or replaced after a patch: the folder holds the current layers, or is not saved."""

import copy

import peft
import pytest
import torch
from conftest import tiny_batch, tiny_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.models.bert.modeling_bert import BertLayer

import alignattn
from alignattn.patching import alignment_parameters, function_parameters, patch_of
from alignattn.utils.errors import AlignAttnError

LAYERS = 6
VARIANTS = ("aa-gan", "aa-ct", "aa-ot", "aa-means", "sparsemax", "aa-ct+qvi", "aa-gan+bilinear")


def patched(family="bert", preset="aa-ct", **options):
    """Return a patched model of six layers whose slots all differ."""
    field = "n_layers" if family == "distilbert" else "num_hidden_layers"
    model = alignattn.patch(tiny_model(family, **{field: LAYERS}), preset, **options)
    with torch.no_grad():
        for parameter in [*alignment_parameters(model), *function_parameters(model)]:
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def stack_of(model):
    """Return the module that holds the layers of a model, and the name of its attribute."""
    base = model.base_model
    return getattr(base, "encoder", getattr(base, "transformer", None)), "layer"


def keep(model, *places):
    owner, name = stack_of(model)
    setattr(owner, name, nn.ModuleList([getattr(owner, name)[place] for place in places]))
    model.config.num_hidden_layers = len(places)


def seen_of(model):
    """Return the logits, and the distance of each aligned layer."""
    with torch.no_grad(), alignattn.collect(model) as seen:
        logits = model.eval()(**tiny_batch()).logits
    return logits, [layer.loss for layer in seen.layers if layer.loss is not None]


def assert_same(found, expected):
    assert torch.equal(found[0], expected[0])
    assert len(found[1]) == len(expected[1])
    assert all(map(torch.equal, found[1], expected[1]))


def saved_and_loaded(model, folder):
    expected = seen_of(model)
    model.save_pretrained(folder)
    assert_same(seen_of(model), expected)
    loaded = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    assert_same(seen_of(loaded), expected)
    # The saved model loads the file again, as a training loads its best checkpoint.
    with torch.no_grad():
        for parameter in alignment_parameters(model):
            parameter.zero_()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert_same(seen_of(model), expected)
    return loaded


@pytest.mark.parametrize(
    ("preset", "places"),
    [*((preset, (4, 0, 2)) for preset in VARIANTS), ("aa-ct+qvi", (0, 1, 2)), ("aa-ct+qvi", (5, 4, 3, 2, 1, 0))],
    ids=str,
)
def test_the_current_layers_are_saved(preset, places, tmp_path):
    model = patched(preset=preset)
    keep(model, *places)
    loaded = saved_and_loaded(model, tmp_path)
    assert loaded.config.num_hidden_layers == len(places)
    assert patch_of(loaded).config == patch_of(model).config


@pytest.mark.parametrize("family", ["distilbert", "mpnet", "deberta-v3"])
def test_layers_of_other_families_can_be_removed(family, tmp_path):
    model = patched(family, "aa-gan+qvi")
    keep(model, 1, 3)
    saved_and_loaded(model, tmp_path)


@pytest.mark.parametrize(("places", "layers"), [((0, 1, 2), (1, 2)), ((4, 0, 2), (0, 2)), ((3, 4), (1,))])
def test_chosen_layers_are_renumbered(places, layers, tmp_path):
    model = patched(layers=(1, 2, 4))
    keep(model, *places)
    assert patch_of(saved_and_loaded(model, tmp_path)).config.layers == layers


def test_a_layer_may_be_copied(tmp_path):
    model = patched(preset="aa-ct+qvi")
    layers = model.bert.encoder.layer
    layers.append(copy.deepcopy(layers[0]))
    model.config.num_hidden_layers = LAYERS + 1
    saved_and_loaded(model, tmp_path)


def test_a_new_layer_has_no_slots_in_the_folder_either(tmp_path):
    model = patched(preset="aa-ct")
    model.bert.encoder.layer[1] = BertLayer(model.config).eval()
    assert patch_of(saved_and_loaded(model, tmp_path)).config.layers == (0, 2, 3, 4, 5)


def test_plain_transformers_loads_the_layers_of_an_alignment(tmp_path):
    model = patched()
    keep(model, 0, 1, 2)
    model.save_pretrained(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(plain.eval()(**tiny_batch()).logits, model.eval()(**tiny_batch()).logits)


def remove_layers_without_the_config(model):
    model.bert.encoder.layer = model.bert.encoder.layer[:3]


def take_from_another_model(model):
    model.bert.encoder.layer[1] = patched().bert.encoder.layer[1]


def take_all_slots_away(model):
    model.bert.encoder.layer = tiny_model("bert", num_hidden_layers=LAYERS).bert.encoder.layer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove_layers_without_the_config, r"bert\.encoder\.layer\.3.*num_hidden_layers"),
        (take_from_another_model, "another model's patch"),
        (take_all_slots_away, "alignattn.unpatch"),
    ],
)
def test_saving_refuses_a_model_that_could_not_be_loaded(change, said, tmp_path):
    model = patched()
    change(model)
    with pytest.raises(AlignAttnError, match=said):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_adapter_of_a_model_with_changed_layers_is_refused(tmp_path):
    model = patched()
    keep(model, 0, 1)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(AlignAttnError, match="changed after its patch"):
        adapted.save_pretrained(tmp_path)


def test_an_alignment_trainer_resumes_with_fewer_layers(tmp_path):
    import datasets
    from transformers import TrainingArguments

    batch = tiny_batch(8)
    rows = datasets.Dataset.from_dict({name: values.tolist() for name, values in batch.items()})

    def train(resume=None):
        torch.manual_seed(0)
        model = patched(preset="aa-gan")
        keep(model, 0, 3, 4)
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=4,
            save_steps=2,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = alignattn.AlignmentTrainer(model=model, args=arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return model

    whole = train()
    resumed = train(resume=str(tmp_path / "checkpoint-2"))
    for mine, theirs in zip(seen_of(resumed)[1], seen_of(whole)[1], strict=True):
        torch.testing.assert_close(mine, theirs)

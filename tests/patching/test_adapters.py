"""Adapters of peft, added before or after a patch: attention's inputs are aligned, and adapter and patch are saved."""

import copy
import gc
import weakref

import accelerate
import peft
import pytest
import torch
from checkpointing import enable_checkpointing
from conftest import ALIGNED, FAMILIES, WITHOUT_NETWORKS, crossed, logits_of, tiny_batch, tiny_model
from documentation import python_block
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

import alignattn
from alignattn.patching import alignment_parameters, function_parameters, patch_of
from alignattn.patching.checkpoints import load_checkpoint, load_tokenizer
from alignattn.utils.errors import AlignAttnError

ORDERS = ("patched first", "adapted first")
TARGETS = {
    "distilbert": ["q_lin", "k_lin", "v_lin"],
    "modernbert": ["Wqkv"],
    "deberta-v3": ["query_proj", "key_proj", "value_proj"],
    "mpnet": ["q", "k", "v"],
}
FUNCTIONS = ("qvi", "sparsemax", "aa-gan+bilinear")
SEED = 5


def lora(family="bert", **options):
    fields = {"r": 2, "init_lora_weights": False, "target_modules": TARGETS.get(family, ["query", "key", "value"])}
    return peft.LoraConfig(**fields | options)


def without_model_dropout(family):
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")
    return tiny_model(family, **dict.fromkeys(names, 0.0)).double()


def adapted(family="bert", order=ORDERS[0], preset="aa-ct", config=None, **options):
    """Return a tiny model in float64, patched and adapted; it is the same in both orders."""
    model = without_model_dropout(family)

    def patch():
        torch.manual_seed(1)
        alignattn.patch(model, preset, **options)
        for parameter in [*alignment_parameters(model), *function_parameters(model)]:
            parameter.data = parameter.data.double()

    if order == ORDERS[0]:
        patch()
    torch.manual_seed(2)
    wrapped = peft.get_peft_model(model, lora(family) if config is None else config)
    if order == ORDERS[1]:
        patch()
    return wrapped.train()


def gradients(model):
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad(set_to_none=True)
    return {name: gradient for name, gradient in found.items() if gradient.any()}


def aligned_gradients(model, batch=None):
    torch.manual_seed(SEED)
    model(**(batch or tiny_batch()))
    alignattn.alignment_loss(model).backward()
    return gradients(model)


class Dense:
    """A reference for the alignment of a model: adapted projections of detached inputs, with the same dropout."""

    def __init__(self, model, scope):
        self.model, self.scope, self.calls = model, scope, []

    def watch(self, layer, index):
        names = {name: role for role, name in layer.alignattn.heads.names.roles.items()}
        dropped = {}

        def after_dropout(name):
            def keep(_module, args, output):
                dropped.setdefault(name, (args[0], output))

            return keep

        def after_attention(*_):
            outputs = {}
            for name, role in names.items():
                input, through = dropped.pop(name)
                projection = getattr(layer, name)
                if self.scope == "projections":
                    input, through = input.detach(), through.detach()
                change = projection.lora_B["default"].weight @ projection.lora_A["default"].weight
                base = projection.base_layer
                plain = nn.functional.linear(input, base.weight, base.bias)
                outputs[role] = plain + through @ change.T * projection.scaling["default"]
            self.calls.append((index, outputs))

        for name in names:
            getattr(layer, name).lora_dropout["default"].register_forward_hook(after_dropout(name))
        layer.register_forward_hook(after_attention)

    def gradients(self, batch):
        state = patch_of(self.model)
        layers = [
            module
            for module in self.model.modules()
            if hasattr(module, "alignattn") and hasattr(module.alignattn, "heads")
        ]
        for layer in layers:
            self.watch(layer, layer.alignattn.layer)
        torch.manual_seed(SEED)
        self.model(**batch)
        state.collector.take()
        ((_, alignment),) = state.alignments.items()
        losses = []
        for index, outputs in self.calls:
            pair = outputs["fused"].chunk(3, dim=-1)[:2] if "fused" in outputs else (outputs["query"], outputs["key"])
            query, key = (part.unflatten(-1, (3, -1)).transpose(1, 2) for part in pair)
            losses.append(alignment(query, key, batch["attention_mask"].bool(), layer=index))
        (state.config.alignment_weight * torch.stack(losses).mean()).backward()
        return gradients(self.model)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("family", "preset", "order"),
    [
        pytest.param(*pair.values, order, marks=pair.marks or ([pytest.mark.matrix] if (i + j) % 2 else []))
        for i, pair in enumerate(crossed(FAMILIES, ALIGNED))
        for j, order in enumerate(ORDERS)
    ],
)
def test_gradients_are_those_of_the_adapted_projections(family, order, preset):
    def model():
        return adapted(family, order, preset, lora(family, lora_dropout=0.3))

    expected = Dense(model(), "projections").gradients(tiny_batch())
    assert any("lora_A" in name for name in expected)
    if preset not in WITHOUT_NETWORKS:
        assert any("alignattn" in name for name in expected)
    assert_same(aligned_gradients(model()), expected)


@pytest.mark.parametrize("order", ORDERS)
def test_scope_all_reaches_the_layers_below(order):
    def model():
        return adapted(order=order, config=lora(lora_dropout=0.3), gradient_scope="all")

    expected = Dense(model(), "all").gradients(tiny_batch())
    assert any("layer.0.attention.self.value" in name for name in expected)
    assert_same(aligned_gradients(model()), expected)


def test_repeating_a_projection_does_not_change_the_dropout():
    plain = peft.get_peft_model(without_model_dropout("bert"), lora(lora_dropout=0.5, init_lora_weights=True)).train()
    patched = adapted(config=lora(lora_dropout=0.5))
    patched.load_state_dict(plain.state_dict(), strict=False)
    plain.load_state_dict({name: value for name, value in patched.state_dict().items() if "alignattn" not in name})
    drawn = []
    for model in (plain, patched):
        torch.manual_seed(SEED)
        drawn.append((model(**tiny_batch()).logits, torch.rand(3)))
    torch.testing.assert_close(drawn[1], drawn[0])


@pytest.mark.parametrize(
    "config",
    [
        lambda: peft.IA3Config(target_modules=["key", "query"], feedforward_modules=["query"]),
        lambda: peft.OFTConfig(target_modules=["query", "key"], oft_block_size=4),
        lambda: peft.LoHaConfig(target_modules=["query", "key"], r=2, init_weights=False),
        lambda: lora(use_dora=True),
        lambda: lora(target_modules="all-linear"),
        lambda: lora(target_modules=["value"], modules_to_save=["query", "key"]),
        lambda: lora(target_modules=["dense"], modules_to_save=["attention.self"]),
    ],
    ids=["ia3", "oft", "loha", "dora", "all-linear", "projections copied", "attention copied"],
)
def test_the_alignment_follows_any_adapter(config):
    """The last layer's projections have equal gradients in both scopes: no other layer's alignment reaches them."""
    of_scope = {}
    for scope in ("projections", "all"):
        model = adapted(config=config(), gradient_scope=scope)
        torch.manual_seed(3)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and "alignattn" not in name:
                    parameter += 0.05 * torch.randn_like(parameter)
        of_scope[scope] = aligned_gradients(model)
    last = {
        name: gradient
        for name, gradient in of_scope["all"].items()
        if "layer.2.attention.self" in name and any(part in name for part in ("query", "key"))
    }
    assert last
    for name, gradient in last.items():
        torch.testing.assert_close(of_scope["projections"][name], gradient, rtol=1e-7, atol=1e-12, msg=name)
    assert not any(part in name for name in of_scope["projections"] for part in ("embeddings", ".value.", "dense"))


class Stored(nn.Module):
    """A projection that stores its weight in another form, as quantised layers do."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.stored, self.bias = nn.Parameter(layer.weight.detach() / 2), layer.bias

    def forward(self, states):
        return nn.functional.linear(states, 2 * self.stored, self.bias)


@pytest.mark.parametrize("scope", ["projections", "all"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_alignment_follows_any_module_that_replaces_a_projection(order, scope):
    found = []
    for replaces in (False, True):
        model = without_model_dropout("bert").train()
        attention = model.bert.encoder.layer[1].attention.self
        for patches in (order == ORDERS[0], order == ORDERS[1]):
            if patches:
                torch.manual_seed(1)
                alignattn.patch(model, "aa-gan", gradient_scope=scope)
            elif replaces:
                attention.query = Stored(attention.query)
        found.append(aligned_gradients(model))
    plain, stored = found
    name = "bert.encoder.layer.1.attention.self.query"
    stored[f"{name}.weight"] = stored.pop(f"{name}.stored") / 2
    assert_same(stored, plain)


def test_accelerate_hooks_around_projections_change_nothing():
    """`device_map` over several devices adds such hooks, before or after a patch."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module

    expected = aligned_gradients(alignattn.patch(without_model_dropout("bert").train(), "aa-ot"))
    for order in ORDERS:
        model = without_model_dropout("bert").train()
        for patches in (order == ORDERS[0], order == ORDERS[1]):
            if patches:
                alignattn.patch(model, "aa-ot")
            else:
                for module in model.modules():
                    if isinstance(module, nn.Linear):
                        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))
        assert_same(aligned_gradients(model), expected)
        logits = logits_of(model)
        alignattn.unpatch(model)
        assert torch.equal(logits_of(model), logits)
        remove_hook_from_module(model, recurse=True)
        assert torch.equal(logits_of(model), logits)


@pytest.mark.parametrize("preset", ["aa-ct", "qvi"])
def test_offloading_is_refused_before_a_patch_and_keeps_the_outputs_after_it(preset):
    model = accelerate.cpu_offload(tiny_model("bert"), execution_device="cpu")
    keys = list(model.state_dict())
    with pytest.raises(AlignAttnError, match="patch it before it is offloaded"):
        alignattn.patch(model, preset)
    assert list(model.state_dict()) == keys
    model = alignattn.patch(tiny_model("bert"), preset)
    expected = logits_of(model)
    accelerate.cpu_offload(model, execution_device="cpu")
    assert torch.equal(logits_of(model), expected)
    if preset in ALIGNED:
        model.train()(**tiny_batch())
        with pytest.raises(AlignAttnError, match="offloaded"):
            alignattn.alignment_loss(model)


def test_target_modules_match_no_module_of_a_patch():
    for targets in (["query", "key", "value"], "all-linear"):
        plain = peft.get_peft_model(tiny_model("bert"), lora(target_modules=targets, task_type="SEQ_CLS"))
        patched = tiny_model("bert")
        alignattn.patch(patched, "aa-ct+qvi+bilinear+entmax15")
        patched = peft.get_peft_model(patched, lora(target_modules=targets, task_type="SEQ_CLS"))
        own = {name for name in patched.state_dict() if "alignattn" in name}
        assert set(patched.state_dict()) - own == set(plain.state_dict())
        assert not any("lora" in name or "modules_to_save" in name for name in own)


@pytest.mark.parametrize("preset", ["aa-ct", *FUNCTIONS])
@pytest.mark.parametrize("order", ORDERS)
def test_parameters_of_the_patch_stay_trainable(order, preset):
    model = adapted(order=order, preset=preset)
    own = [*alignment_parameters(model), *function_parameters(model)]
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(parameter.requires_grad for parameter in own)
    assert len(trained) == len(own) + sum("lora" in name for name in trained)
    model.add_adapter("second", lora())
    model.set_adapter("second")
    with model.disable_adapter():
        pass
    assert all(parameter.requires_grad for parameter in own)


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    tiny_model("bert").bert.save_pretrained(folder)
    return folder


def trained(base, preset, **options):
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    alignattn.patch(model, preset)
    model = peft.get_peft_model(model, lora(**{"task_type": "SEQ_CLS"} | options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.parametrize(
    ("preset", "task_type"),
    [*((preset, "SEQ_CLS") for preset in [*ALIGNED, *FUNCTIONS]), ("aa-ct", None), ("qvi", None)],
)
def test_an_adapter_is_saved_and_loaded_with_its_patch(preset, task_type, base, tmp_path):
    model = trained(base, preset, task_type=task_type, modules_to_save=["classifier"])
    expected = logits_of(model)
    for _ in range(2):
        model.save_pretrained(tmp_path / "adapter")
    loaded = alignattn.from_pretrained(tmp_path / "adapter", AutoModelForSequenceClassification)
    assert torch.equal(logits_of(loaded), expected)
    assert patch_of(loaded).config == patch_of(model).config
    for mine, theirs in zip(alignment_parameters(loaded), alignment_parameters(model), strict=True):
        assert torch.equal(mine, theirs)
    assert not any(parameter.requires_grad for name, parameter in loaded.named_parameters() if "lora" in name)
    again = alignattn.from_pretrained(tmp_path / "adapter", AutoModelForSequenceClassification, is_trainable=True)
    assert {name for name, parameter in again.named_parameters() if parameter.requires_grad} == {
        name for name, parameter in model.named_parameters() if parameter.requires_grad
    }


def test_the_saved_head_of_an_adapter_is_not_new(tiny_checkpoint, tmp_path, caplog):
    lacking = {"lacking": "classifier: train one"}
    for name, heads in (("with", ["classifier"]), ("without", None)):
        trained(tiny_checkpoint, "aa-ct", task_type=None, modules_to_save=heads).save_pretrained(tmp_path / name)
    caplog.clear()
    load_checkpoint(str(tmp_path / "with"), AutoModelForSequenceClassification, **lacking)
    assert "new weights" not in caplog.text
    with pytest.raises(AlignAttnError, match="holds no classifier: train one"):
        load_checkpoint(str(tmp_path / "without"), AutoModelForSequenceClassification, **lacking)


@pytest.mark.parametrize("preset", [None, "aa-ct", "qvi"])
def test_an_adapter_of_another_class_of_model_is_refused(preset, base, tmp_path):
    """peft only warns about the missing weights, and continues with an adapter that changes nothing."""
    model = AutoModelForSequenceClassification.from_pretrained(base)
    if preset is not None:
        alignattn.patch(model, preset)
    peft.get_peft_model(model, lora()).save_pretrained(tmp_path)
    with pytest.raises(AlignAttnError, match=r"does not fit a BertModel.*bert\.encoder.*the class of model that was"):
        alignattn.from_pretrained(tmp_path, AutoModel)


def test_an_adapter_without_a_tokenizer_uses_that_of_its_base_model(tiny_checkpoint, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_checkpoint)
    peft.get_peft_model(model, lora()).save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert load_tokenizer(str(tmp_path), loaded)("the cat sleeps").input_ids == [2, 5, 7, 24, 3]


@pytest.mark.parametrize("preset", [*ALIGNED, *FUNCTIONS])
def test_plain_peft_loads_adapters_of_alignments_and_refuses_other_slots(preset, base, tmp_path):
    model = trained(base, preset)
    model.save_pretrained(tmp_path / "adapter")
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    if preset in FUNCTIONS:
        with pytest.raises(ValueError, match="load_with_alignattn_from_pretrained"):
            peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
        with pytest.raises(ValueError, match="load_with_alignattn_from_pretrained"):
            AutoModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=3)
    else:
        plain = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
        assert torch.equal(logits_of(plain), logits_of(model))


def perturb(model, words):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and any(word in name for word in words):
                parameter += 0.3 * torch.randn_like(parameter)


def patched_base(base, preset):
    torch.manual_seed(7)  # the head and the slots start alike
    return alignattn.patch(AutoModelForSequenceClassification.from_pretrained(base, num_labels=3), preset)


LOADERS = {
    "alignattn": lambda folder, _model: alignattn.from_pretrained(folder, AutoModelForSequenceClassification),
    "PeftModel": lambda folder, model: peft.PeftModel.from_pretrained(model, folder),
    "PeftMixedModel": lambda folder, model: peft.PeftMixedModel.from_pretrained(model, folder),
    "transformers": lambda folder, model: model.load_adapter(folder) and model,
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("preset", ["aa-ct", "aa-gan+bilinear"])
def test_a_patched_model_takes_a_second_adapter(preset, loader, base, tmp_path):
    model = peft.get_peft_model(patched_base(base, preset), lora(task_type="SEQ_CLS"))
    model.add_adapter("second", lora(task_type="SEQ_CLS"))
    perturb(model, ["_slot"])
    expected = {}
    for name in ("default", "second"):
        model.set_adapter(name)
        perturb(model, [name])
        expected[name] = logits_of(model)
    model.save_pretrained(tmp_path)
    loaded = LOADERS[loader](tmp_path, patched_base(base, preset))
    loaded.load_adapter(tmp_path / "second", adapter_name="second")
    assert {config.task_type for config in loaded.peft_config.values()} == {"SEQ_CLS"}
    for name, logits in expected.items():
        loaded.set_adapter(name)
        assert torch.equal(logits_of(loaded), logits)
    if loader == "alignattn":
        # The same adapter may be loaded again, as a trainer that resumes does.
        perturb(loaded, ["_slot"])
        loaded.load_adapter(tmp_path / "second", adapter_name="second", is_trainable=True)
        assert torch.equal(logits_of(loaded), expected["second"])


@pytest.mark.parametrize("preset", FUNCTIONS)
def test_a_second_adapter_that_would_change_the_first_is_refused(preset, base, tmp_path):
    for seed, name in enumerate(("first", "other")):
        model = peft.get_peft_model(patched_base(base, preset), lora(task_type="SEQ_CLS"))
        torch.manual_seed(seed)
        perturb(model, ["_slot"])
        model.save_pretrained(tmp_path / name)
    loaded = alignattn.from_pretrained(tmp_path / "first", AutoModelForSequenceClassification)
    expected = logits_of(loaded)
    if function_parameters(loaded):
        with pytest.raises(AlignAttnError, match="all adapters of a model share them, so default would change"):
            loaded.load_adapter(tmp_path / "other", "other")
    else:
        loaded.load_adapter(tmp_path / "other", "other")
    assert loaded.active_adapter == "default"
    assert torch.equal(logits_of(loaded), expected)
    plain = peft.get_peft_model(AutoModelForSequenceClassification.from_pretrained(base), lora(task_type="SEQ_CLS"))
    with pytest.raises(ValueError, match="load_with_alignattn_from_pretrained"):
        plain.load_adapter(tmp_path / "other", "other")


def test_an_adapter_of_another_function_is_refused(base, tmp_path):
    trained(base, "aa-ct+sparsemax").save_pretrained(tmp_path / "adapter")
    config = lora(task_type="SEQ_CLS")
    for other in ("aa-gan", "entmax15"):
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
        alignattn.patch(model, other)
        with pytest.raises(AlignAttnError, match="trained with the attention 'aa-ct\\+sparsemax'"):
            peft.PeftModel.from_pretrained(model, tmp_path / "adapter", config=config)


@pytest.mark.parametrize("preset", ["aa-ct", "aa-gan+qvi"])
def test_merged_and_unloaded_models_stay_patched(preset, base, tmp_path):
    model = trained(base, preset)
    expected = logits_of(model)
    model.merge_adapter()
    torch.testing.assert_close(logits_of(model), expected)
    model.unmerge_adapter()
    other = copy.deepcopy(model)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits_of(merged), expected)
    merged.save_pretrained(tmp_path / "merged")
    loaded = alignattn.from_pretrained(tmp_path / "merged", AutoModelForSequenceClassification)
    assert torch.equal(logits_of(loaded), logits_of(merged))
    for plain in (merged, other.unload()):
        plain.requires_grad_(True).train()(**tiny_batch())
        alignattn.alignment_loss(plain).backward()
        assert any("query.weight" in name for name in gradients(plain))
        alignattn.unpatch(plain)
        assert [type(module) for module in plain.modules()] == [type(module) for module in tiny_model("bert").modules()]


@pytest.mark.parametrize("order", ORDERS)
def test_unpatch_leaves_the_adapter(order):
    model = adapted(order=order)
    plain = peft.get_peft_model(without_model_dropout("bert"), lora())
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "alignattn" not in name})
    assert alignattn.unpatch(model) is model
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(logits_of(model), logits_of(plain))
    hooks = [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert not hooks


def test_a_peft_model_is_patched_and_collected():
    model = peft.get_peft_model(tiny_model("bert"), lora())
    assert alignattn.patch(model, "aa-ct") is model
    with alignattn.collect(model) as seen:
        model(**tiny_batch())
    assert len(seen.losses()) == 3


def test_an_alignment_that_no_parameter_can_follow_is_refused():
    frozen = alignattn.patch(tiny_model("bert"), "aa-ct").train()
    for name, parameter in frozen.named_parameters():
        if any(part in name for part in (".query.", ".key.")):
            parameter.requires_grad_(False)
    elsewhere = adapted(config=lora(target_modules=["value"]))
    for model in (frozen, elsewhere):
        model(**tiny_batch())
        with pytest.raises(AlignAttnError, match="no parameter can follow the alignment"):
            alignattn.alignment_loss(model)
    # One trained projection is enough, and with scope `all` the layers below can follow.
    for fine in (
        adapted(config=lora(target_modules=["query"])),
        adapted(config=lora(target_modules=["value"]), gradient_scope="all"),
    ):
        assert aligned_gradients(fine)


def test_an_alignment_in_modules_to_save_is_refused():
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    with pytest.raises(AlignAttnError, match="modules_to_save"):
        peft.get_peft_model(model, lora(modules_to_save=["alignattn"]))


def test_a_patch_of_copied_attention_is_refused():
    model = peft.get_peft_model(tiny_model("bert"), lora(target_modules=["dense"], modules_to_save=["attention.self"]))
    with pytest.raises(AlignAttnError, match="patch the model before it is adapted"):
        alignattn.patch(model, "aa-ct")


def test_custom_models_can_be_adapted(tmp_path):
    from own_encoder import own_encoder

    model = alignattn.attach(own_encoder(), "aa-gan+qvi")
    adapted_model = peft.get_peft_model(model, lora(target_modules=["query_projection"])).train()
    adapted_model(**tiny_batch())
    alignattn.alignment_loss(adapted_model).backward()
    found = gradients(adapted_model)
    assert any("query_projection.lora_A" in name for name in found)
    assert any("alignattn.alignments" in name for name in found)
    adapted_model.save_pretrained(tmp_path)
    twin = alignattn.attach(own_encoder(), "aa-gan+qvi")
    held = load_file(tmp_path / "adapter_model.safetensors")
    own = {f"base_model.model.{name}" for name in twin.state_dict() if "alignattn" in name}
    assert own <= held.keys()


def test_a_copied_model_records_for_itself():
    model = adapted()
    twin = copy.deepcopy(model)
    assert_same(aligned_gradients(twin), aligned_gradients(model))
    twin(**tiny_batch())
    with pytest.raises(AlignAttnError, match="no attention layer"):
        alignattn.alignment_loss(model)


def test_a_step_keeps_no_queries():
    model = adapted(config=lora(target_modules=["dense"], modules_to_save=["query"]))
    model(**tiny_batch())
    query = weakref.ref(patch_of(model).collector.newest.query)
    alignattn.alignment_loss(model).backward()
    gc.collect()
    assert query() is None


def test_checkpointing_changes_no_gradient():
    model = adapted(config=lora(lora_dropout=0.3))
    whole = aligned_gradients(model)
    enable_checkpointing(model.get_base_model())
    assert_same(aligned_gradients(model), whole)


def test_the_documented_code_runs(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)}
    exec(python_block("get_peft_model"), names)
    assert patch_of(names["model"]).config.name == "aa-ct"


def test_adapters_around_a_patched_part_are_not_saved(tmp_path):
    model = without_model_dropout("bert")
    alignattn.patch(model.bert, "aa-ct")
    with pytest.raises(AlignAttnError, match=r"BertModel is a part of.*patch the whole model instead"):
        peft.get_peft_model(model, lora()).save_pretrained(tmp_path)

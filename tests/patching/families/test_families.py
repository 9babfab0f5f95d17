"""Models without the attention interface: DeBERTa-v2 and v3, whose scores include positions, and MPNet."""

import copy
import warnings

import pytest
import torch
import transformers
from checkpointing import enable_checkpointing
from conftest import ALIGNED, TINY, tiny_batch, without_dropout
from own_encoder import own_encoder
from packaging.version import Version
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

import alignattn
from alignattn.patching import alignment_parameters, function_parameters, patch_of
from alignattn.patching.families import FAMILIES, family_of
from alignattn.utils.errors import AlignAttnError

MPNET_TAKES_SCORES = Version(transformers.__version__) >= Version("5.10")
"""Earlier versions of MPNet refuse every mask with four dimensions."""
POSITIONS = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
V3 = POSITIONS | {"share_att_key": True, "position_buckets": 6, "norm_rel_ebd": "layer_norm"}


def deberta(**fields):
    return transformers.DebertaV2Config(**TINY, **fields)


CONFIGS = {
    "deberta-v3": lambda: deberta(**V3, pos_att_type=["p2c", "c2p"]),
    "deberta-v2-xlarge": lambda: deberta(**V3, pos_att_type=["p2c", "c2p"], conv_kernel_size=3, conv_act="gelu"),
    "projections of positions": lambda: deberta(**POSITIONS, share_att_key=False, pos_att_type=["p2c", "c2p"]),
    "content to position": lambda: deberta(**V3, pos_att_type=["c2p"]),
    "no kind of positions": lambda: deberta(**V3, pos_att_type=[]),
    "no positions": deberta,
    "mpnet": lambda: transformers.MPNetConfig(**TINY),
}
SHARING = ("deberta-v3", "projections of positions", "mpnet")
"""A DeBERTa whose projections also project positions, one with other projections of positions, and MPNet."""

EQUAL_FUNCTIONS = {
    "bilinear": {},
    "csoftmax": {"normalizer_options": {"bound": 1.0}},
    "aa-ct+bilinear": {},
}
"""Attentions that start at the model's own function."""

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
"""DeBERTa rounds the scale of its scores to float32, whatever the type of its weights."""


def model_of(name, seed=0, **fields):
    """Return a model in float64 and training mode, without dropout."""
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    config.num_labels = 3
    for field, value in fields.items():
        setattr(config, field, value)
    model = AutoModelForSequenceClassification.from_config(config).double().train()
    # The initial weights are so small that positions would have no effect.
    with torch.no_grad():
        for part, values in model.named_parameters():
            if "LayerNorm" not in part:
                values.normal_(std=0.3)
    without_dropout(model)
    return model


def gradients(model):
    found = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def hidden_states(model, batch):
    return model.base_model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).last_hidden_state


def real_part(hidden, batch):
    return hidden[batch["attention_mask"].bool()]


@pytest.mark.parametrize("attention", ["collected", *EQUAL_FUNCTIONS])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_slots_of_a_softmax_compute_the_models_own_function_and_gradients(name, attention):
    model, batch = model_of(name), tiny_batch()
    expected = real_part(hidden_states(model, batch), batch)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    of_plain = gradients(model)
    if attention == "collected":
        alignattn.patch(model, "soft")
        with alignattn.collect(model) as seen:
            found = real_part(hidden_states(model, batch), batch)
        assert len(seen.layers) == 3
    else:
        alignattn.patch(model, attention, **EQUAL_FUNCTIONS[attention])
        found = real_part(hidden_states(model, batch), batch)
    torch.testing.assert_close(found, expected, **CLOSE)
    (found * weight).sum().backward()
    of_slots = gradients(model)
    assert of_plain.keys() <= of_slots.keys()
    for part, gradient in of_plain.items():
        torch.testing.assert_close(of_slots[part], gradient, **CLOSE, msg=part)


@pytest.mark.parametrize("name", CONFIGS)
def test_collected_weights_are_the_models_own(name):
    model, batch = model_of(name).eval(), tiny_batch(padded=False)
    with torch.no_grad():
        expected = model(**batch, output_attentions=True).attentions
        alignattn.patch(model, "aa-ct")
        returned = model(**batch, output_attentions=True).attentions
        with alignattn.collect(model) as seen:
            model(**batch)
    assert all(map(torch.equal, returned, expected))
    for record, weights in zip(seen.layers, expected, strict=True):
        torch.testing.assert_close(record.weights, weights, **CLOSE)
        assert record.mask is None or record.mask.all()


class Dense:
    """A reference for the alignment of a plain model, from its projections of tokens alone."""

    def __init__(self, model, scope):
        self.scope, self.pairs = scope, []
        for module in model.modules():
            family = family_of(module)
            if family is not None:
                module.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module, args, kwargs):
        states = (args[0] if args else kwargs["hidden_states"]).clone()
        states = states.detach() if self.scope == "projections" else states
        roles = family_of(module).roles
        linears = (getattr(module, roles[role]) for role in ("query", "key"))
        self.pairs.append([F.linear(states, linear.weight, linear.bias) for linear in linears])

    def loss(self, state, batch):
        ((_, alignment),) = state.alignments.items()
        losses = []
        for layer, pair in enumerate(self.pairs):
            query, key = (projected.unflatten(-1, (3, -1)).transpose(1, 2) for projected in pair)
            losses.append(alignment(query, key, batch["attention_mask"].bool(), layer=layer))
        return state.config.alignment_weight * torch.stack(losses).mean()


@pytest.mark.parametrize(
    ("variant", "scope"), [*((name, "projections") for name in [*ALIGNED, "aa-ct+bilinear"]), ("aa-ct", "all")]
)
@pytest.mark.parametrize("name", SHARING)
def test_alignment_and_its_gradients_are_those_of_a_dense_oracle(name, variant, scope):
    batch = tiny_batch()
    plain, model = model_of(name), model_of(name)
    alignattn.patch(model, variant, alignment_weight=0.7, gradient_scope=scope)
    for parameter in [*alignment_parameters(model), *function_parameters(model)]:
        parameter.data = parameter.data.double()
    found = model(**batch).loss + alignattn.alignment_loss(model)
    found.backward()
    own = [parameter.grad for parameter in alignment_parameters(model)]
    for parameter in alignment_parameters(model):
        parameter.grad = None
    of_slots = gradients(model)

    dense = Dense(plain, scope)
    expected = plain(**batch).loss + dense.loss(patch_of(model), batch)
    expected.backward()
    torch.testing.assert_close(found, expected, **CLOSE)
    for part, gradient in gradients(plain).items():
        torch.testing.assert_close(of_slots[part], gradient, **CLOSE, msg=part)
    for parameter, gradient in zip(alignment_parameters(model), own, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **CLOSE)


@pytest.mark.parametrize("attention", ["aa-ct", "aa-ct+sparsemax", "aa-gan+qvi"])
@pytest.mark.parametrize("name", ["deberta-v3", "projections of positions"])
def test_checkpointing_records_nothing_twice(name, attention):
    batch, found = tiny_batch(), []
    for checkpoints in (False, True):
        model = model_of(name)
        alignattn.patch(model, attention, alignment_weight=0.7)
        if checkpoints:
            enable_checkpointing(model)
        loss = model(**batch).loss + alignattn.alignment_loss(model)
        loss.backward()
        with pytest.raises(AlignAttnError, match="no attention layer"):
            alignattn.alignment_loss(model)
        found.append((loss.detach(), gradients(model)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", SHARING)
def test_evaluation_under_an_alignment_runs_the_models_own_forward_and_records_nothing(name):
    model, batch = model_of(name).eval(), tiny_batch()
    alignattn.patch(model, "aa-ct")
    twin = model_of(name).eval()
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, twin(**batch).logits)
    assert patch_of(model).collector.projected == {}
    with pytest.raises(AlignAttnError, match="no attention layer"):
        alignattn.alignment_loss(model)


@pytest.mark.parametrize("name", SHARING)
def test_a_copy_records_and_unpatches_independently(name):
    model, batch = alignattn.patch(model_of(name), "aa-ct"), tiny_batch()
    twin = copy.deepcopy(model)
    alignattn.unpatch(model)
    assert not any("alignattn" in type(module).__module__ for module in model.modules())
    twin(**batch)
    assert alignattn.alignment_loss(twin).isfinite()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch).loss.backward()
    alignattn.unpatch(twin)
    with torch.no_grad():
        assert torch.equal(twin(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("attention", ["aa-ct", "aa-ct+sparsemax", "qvi"])
@pytest.mark.parametrize("name", SHARING)
def test_bfloat16_and_autocast_run(name, attention):
    half = alignattn.patch(model_of(name).bfloat16(), attention)
    half(**tiny_batch()).loss.backward()
    model = alignattn.patch(model_of(name).float(), attention)
    expected = model(**tiny_batch()).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(**tiny_batch()).loss
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
    found.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


@pytest.mark.parametrize(("name", "attention"), [("deberta-v3", "aa-moments"), ("mpnet", "aa-moments+csoftmax")])
def test_the_encoder_compiles_to_one_graph(name, attention):
    """The loss of DeBERTa's classifier breaks the graph, with and without a patch."""
    batch, found = tiny_batch(), []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = alignattn.patch(model_of(name, num_hidden_layers=1), attention)
    for forward in (hidden_states, torch.compile(hidden_states, backend="aot_eager", fullgraph=True)):
        loss = real_part(forward(model, batch), batch).square().sum() + alignattn.alignment_loss(model)
        loss.backward()
        found.append((loss.detach(), gradients(model)))
    torch.testing.assert_close(*found)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class TestMasks:
    @pytest.mark.parametrize("attention", ["soft", "bilinear"])
    @pytest.mark.parametrize("shape", [(4, 1, 9, 9), (4, 1, 1, 9), (1, 1, 9, 9)])
    def test_mpnet_applies_an_additive_mask(self, attention, shape):
        model, batch = model_of("mpnet"), tiny_batch()
        torch.manual_seed(3)
        batch["attention_mask"] = torch.randn(shape, dtype=torch.float64)
        batch["attention_mask"][..., -2:] = torch.finfo(torch.float64).min
        if not MPNET_TAKES_SCORES:
            with pytest.raises(ValueError, match="Wrong shape"):
                model(**batch)
            return
        expected = model(**batch).logits
        alignattn.patch(model, attention)
        with alignattn.collect(model):
            torch.testing.assert_close(model(**batch).logits, expected)
        torch.testing.assert_close(model(**batch).logits, expected)

    @pytest.mark.parametrize("attention", ["soft", "aa-ct", "bilinear"])
    def test_deberta_applies_a_mask_of_pairs(self, attention):
        model, batch = model_of("deberta-v3"), tiny_batch(padded=False)
        pairs = torch.ones(4, 9, 9, dtype=torch.long)
        pairs[:, 2, 5] = 0
        batch["attention_mask"] = pairs
        states = torch.randn(4, 9, 24, dtype=torch.float64)
        encoder = model.base_model.encoder
        expected = encoder(states, pairs).last_hidden_state
        alignattn.patch(model, attention)
        with alignattn.collect(model) as seen:
            torch.testing.assert_close(encoder(states, pairs).last_hidden_state, expected, **CLOSE)
        assert seen.layers[0].weights[:, :, 2, 5].abs().max() == 0

    def test_a_mask_of_each_head_is_refused(self):
        model, batch = alignattn.patch(model_of("mpnet"), "bilinear"), tiny_batch()
        batch["attention_mask"] = torch.zeros(4, 3, 9, 9, dtype=torch.float64)
        told = r"MPNetSelfAttention is given a mask \[4, 3, 9, 9\]" if MPNET_TAKES_SCORES else "Wrong shape"
        with pytest.raises(ValueError, match=told):
            model(**batch)


class TestRefusals:
    @pytest.mark.parametrize("name", SHARING)
    def test_a_wrapped_forward_is_refused(self, name):
        model = model_of(name)
        attention = next(module for module in model.modules() if family_of(module))
        attention.forward = attention.forward
        with pytest.raises(AlignAttnError, match=r"forward .* is wrapped.*patch the model before"):
            alignattn.patch(model, "sparsemax")
        assert not alignattn.is_patched(model)

    def test_unpatch_supports_a_forward_wrapped_after_the_patch(self):
        model = alignattn.patch(model_of("mpnet"), "sparsemax")
        attention = next(module for module in model.modules() if hasattr(module, "plain_class"))
        attention.forward = attention.forward
        alignattn.unpatch(model)
        with torch.no_grad():
            assert torch.equal(model(**tiny_batch()).logits, model_of("mpnet")(**tiny_batch()).logits)

    def test_attach_refuses_a_model_with_such_attention(self):
        model = own_encoder()
        model.other = model_of("mpnet")
        with pytest.raises(AlignAttnError, match=r"MPNetSelfAttention.*slots cannot reach"):
            alignattn.attach(model, "aa-ct")

    def test_a_subclass_of_the_attention_is_refused(self):
        model = model_of("mpnet")
        for module in list(model.modules()):
            if family_of(module):
                module.__class__ = type("Own", (type(module),), {})
        with pytest.raises(AlignAttnError, match="Own"):
            alignattn.patch(model, "sparsemax")

    @pytest.mark.parametrize("model_type", FAMILIES)
    def test_the_families_name_classes_of_transformers(self, model_type):
        module, _, name = FAMILIES[model_type].attention.partition(":")
        assert hasattr(__import__(module, fromlist=[name]), name)
        assert model_type in transformers.CONFIG_MAPPING

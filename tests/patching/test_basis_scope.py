"""The gradient scope `basis`, which cannot change the function: what it trains, folding, and refusals."""

import copy

import peft
import pytest
import torch
import transformers
from conftest import tiny_batch, tiny_model
from own_encoder import own_encoder
from test_balance import BALANCED, NormedQueries, logits_of, quantised, tied

import alignattn
from alignattn.patching import alignment_parameters
from alignattn.utils.errors import AlignAttnError

BATCH = tiny_batch(batch=8, length=12)


def patched(family="bert", alignment="aa-moments", steps=1, **changes):
    """Return a model in training mode after some steps, which move its basis from the identity."""
    model = alignattn.patch(tiny_model(family).train(), alignment, gradient_scope="basis", **changes)
    groups = alignattn.parameter_groups(model, learning_rate=1e-3, alignment_learning_rate=0.3)
    optimizer = torch.optim.AdamW(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(**BATCH).loss + alignattn.alignment_loss(model)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("family", BALANCED)
def test_folding_keeps_the_function(family):
    model = patched(family).double().eval()
    expected, before = logits_of(model, BATCH), copy.deepcopy(model.state_dict())
    conditions = alignattn.fold_basis(model)
    assert (logits_of(model, BATCH) - expected).abs().max() <= 1e-10 * expected.std()
    assert len(conditions) == (1 if family == "albert" else 3)
    assert 1.05 < min(map(min, conditions.values())) <= max(map(max, conditions.values())) <= 10 * (1 + 1e-9)
    changed = {name for name, values in model.state_dict().items() if not torch.equal(values, before[name])}
    of_model = {name for name in changed if "alignattn" not in name}
    assert len(of_model) == 4 * len(conditions)
    assert not any(model.state_dict()[name].any() for name in changed - of_model)
    again = copy.deepcopy(model.state_dict())
    assert max(map(max, alignattn.fold_basis(model).values())) == 1
    assert all(torch.equal(values, again[name]) for name, values in model.state_dict().items())


def test_plain_transformers_loads_a_folded_model(tmp_path):
    model = patched(alignment="aa-ct").eval()
    alignattn.fold_basis(model)
    expected = logits_of(model, BATCH)
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits_of(plain, BATCH), expected)
    loaded = alignattn.from_pretrained(tmp_path, transformers.AutoModelForSequenceClassification)
    for name, values in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], values)


def test_a_model_saved_before_folding_keeps_its_basis(tmp_path):
    model = patched(alignment="aa-sliced").eval()
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, transformers.AutoModelForSequenceClassification)
    for part in (model, loaded):
        alignattn.fold_basis(part)
    for name, values in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], values)


@pytest.mark.parametrize("alignment", ["aa-gan", "aa-ot", "aa-ct", "aa-moments", "aa-means", "aa-mmd", "aa-sliced"])
def test_only_the_basis_gets_a_gradient(alignment):
    model = patched(alignment=alignment, steps=0)
    own = {id(parameter) for parameter in alignment_parameters(model)}
    generator = torch.get_rng_state()
    model.eval()(**BATCH)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model(**BATCH)
    alignattn.alignment_loss(model).backward()
    assert torch.equal(torch.get_rng_state(), generator)
    for name, parameter in model.named_parameters():
        if id(parameter) not in own:
            assert parameter.grad is None, name
    assert model.alignattn.alignments["8"].generator.grad.abs().max() > 0


def test_a_basis_of_some_layers_learns_from_two_forwards():
    model = patched(steps=0, layers=(0, 2))
    model(**BATCH)
    model(**tiny_batch(batch=3, length=5, seed=1))
    alignattn.alignment_loss(model).backward()
    assert model.alignattn.alignments["8"].steps.tolist() == [1, 1]
    assert len(alignattn.fold_basis(model)) == 2


def test_unpatch_returns_the_trained_model():
    model = patched()
    weights = {name: values.clone() for name, values in model.state_dict().items() if "alignattn" not in name}
    state = alignattn.unpatch(model).state_dict()
    assert list(state) == list(weights)
    assert all(torch.equal(state[name], values) for name, values in weights.items())


def test_a_frozen_custom_model_learns_a_basis():
    model = alignattn.attach(own_encoder().train(), "aa-ot", gradient_scope="basis").requires_grad_(False)
    model.alignattn.requires_grad_(True)
    model(**BATCH)
    alignattn.alignment_loss(model).backward()
    torch.nn.init.normal_(model.alignattn.alignments["8"].generator)
    model.eval().double()
    expected = logits_of(model, BATCH)
    alignattn.fold_basis(model)
    assert (logits_of(model, BATCH) - expected).abs().max() <= 1e-10 * expected.std()


def test_balancing_resets_a_learned_basis():
    model = patched()
    alignattn.balance(model, [BATCH])
    assert not model.alignattn.alignments["8"].generator.any()
    assert not model.alignattn.alignments["8"].steps.any()


def without_key_bias():
    model = own_encoder()
    for layer in model.layers:
        layer.attention.key_projection.bias = None
    return model


def adapted():
    return peft.get_peft_model(tiny_model("bert"), peft.LoraConfig(target_modules=["query"], r=2))


REFUSED = {
    "rotary": (lambda: tiny_model("modernbert"), {}, "rotates queries and keys by position"),
    "disentangled": (lambda: tiny_model("deberta-v3"), {}, "scores positions by its queries and keys"),
    "additive": (lambda: tiny_model("bert"), {"score": "additive"}, "'additive' is not a dot product"),
    "qvi": (lambda: tiny_model("bert"), {"value": "qvi"}, "'qvi' reads the queries"),
    "predictive": (
        lambda: tiny_model("bert"),
        {"normalizer": "local", "normalizer_options": {"kind": "predictive"}},
        "predicts its window from the query",
    ),
    "tied": (tied, {}, "share their weights"),
    "quantised": (quantised, {}, "Quantised, not a plain linear layer"),
    "without a bias": (without_key_bias, {}, "adds no bias to its keys"),
    "adapters": (adapted, {}, "has an adapter: merge it first"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_without_a_free_basis_is_refused_and_left_unchanged(name):
    build, changes, message = REFUSED[name]
    model = build()
    keys, give = list(model.state_dict()), alignattn.patch if name != "tied" else alignattn.attach
    if name == "without a bias":
        give = alignattn.attach
    with pytest.raises(AlignAttnError, match=message):
        give(model, "aa-ct", gradient_scope="basis", **changes)
    assert list(model.state_dict()) == keys
    assert not any("alignattn" in path for path, _ in model.named_modules())


def test_queries_that_are_normed_after_their_projection_are_refused_at_the_first_step():
    model = alignattn.attach(NormedQueries().train(), "aa-ot", gradient_scope="basis")
    with pytest.raises(AlignAttnError, match="does not attend with the query that its projection gives"):
        model(**BATCH)


def test_an_adapter_after_the_patch_is_refused():
    model = patched(steps=0)
    with pytest.raises(AlignAttnError, match="leave adapters out"):
        peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], r=2))


def test_folding_without_a_learned_basis_is_refused():
    with pytest.raises(AlignAttnError, match="does not learn a basis"):
        alignattn.fold_basis(alignattn.patch(tiny_model("bert"), "aa-ct"))

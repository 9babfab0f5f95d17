"""Balancing a model: its function stays, moments of queries and keys become equal, and other models are refused."""

import copy
import logging
from pathlib import Path

import peft
import pytest
import torch
import transformers
from balance_in_processes import balanced
from conftest import FAMILIES, tiny_batch, tiny_model
from own_encoder import HEADS, SIZE, OwnEncoder, own_encoder
from processes import Python
from torch import nn

import alignattn
from alignattn.attention.basis import cloud
from alignattn.patching.balance import _slots_of, balanced_heads
from alignattn.utils.errors import AlignAttnError

BALANCED = [family for family in FAMILIES if family not in ("modernbert", "deberta-v3")]
SHIFT_INVARIANT = ["sparsemax", "entmax15", "entmax", "fusedmax", "csoftmax", "local", "hard"]
TOKENS_OF = {"batch": 16, "length": 12}


def batches(count=4, **changes):
    return [tiny_batch(seed=seed, **(TOKENS_OF | changes)) for seed in range(count)]


HELD_BACK = tiny_batch(batch=8, length=12, seed=9)


def balanced_parameters(model):
    """The weights and biases of the query and key projections."""
    with _slots_of(model):
        return [parameter for part in balanced_heads(model) for parameter in part.parameters()]


def sharp(model, dtype=torch.float64):
    """Scale queries and keys so that attention is uneven, and draw biases that shift them."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in balanced_parameters(model):
            if parameter.dim() == 2:
                parameter.mul_(8 * parameter.new_ones(()) / parameter.std() / parameter.shape[1] ** 0.5 / 4)
            else:
                parameter.normal_()
    return model.to(dtype)


def logits_of(model, batch):
    with torch.no_grad():
        outputs = model(**{name: values for name, values in batch.items() if name != "labels"})
    return outputs["logits"]


def recorded(model, given):
    """Queries and keys of all real tokens, `[H, N, d]`, by attention call."""
    alignattn.patch(model, "soft")
    parts = []
    for batch in given:
        with torch.no_grad(), alignattn.collect(model) as seen:
            model(**batch)
        parts.append([(cloud(layer.query, layer.mask), cloud(layer.key, layer.mask)) for layer in seen.layers])
    alignattn.unpatch(model)
    return [tuple(torch.cat(clouds, dim=1) for clouds in zip(*call, strict=True)) for call in zip(*parts, strict=True)]


def assert_equal_moments(query, key):
    torch.testing.assert_close(query.mean(dim=1), key.mean(dim=1), rtol=1e-7, atol=1e-7)
    for of_query, of_key in zip(query, key, strict=True):
        torch.testing.assert_close(torch.cov(of_query.T), torch.cov(of_key.T), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("family", BALANCED)
def test_the_function_stays_and_the_moments_agree(family, padded):
    model = sharp(tiny_model(family))
    given = batches(padded=padded)
    expected = logits_of(model, HELD_BACK)
    keys = list(model.state_dict())
    report = alignattn.balance(model, given, held_back=[HELD_BACK])
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()
    assert list(model.state_dict()) == keys
    assert not alignattn.is_patched(model)
    calls = recorded(model, given)
    if family == "albert":  # one A per head for all calls
        calls = [tuple(torch.cat(clouds, dim=1) for clouds in zip(*calls, strict=True))]
    assert len(report.condition) == len(calls)
    assert len(report.before) == 3
    for query, key in calls:
        assert_equal_moments(query, key)
    calls_of_a_module = 3 if family == "albert" else 1
    assert report.tokens == calls_of_a_module * sum(int(batch["attention_mask"].sum()) for batch in given)


@pytest.mark.parametrize("family", BALANCED)
def test_in_float32_the_function_stays_within_rounding(family):
    model = sharp(tiny_model(family), torch.float32)
    expected = logits_of(model, HELD_BACK)
    report = alignattn.balance(model, batches())
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-4 * expected.std()
    assert report.largest_change <= 1e-4 * report.spread
    assert report.rounding is None
    assert report.notes == ()


@pytest.mark.parametrize("normalizer", SHIFT_INVARIANT)
def test_every_normalizer_that_ignores_a_constant_computes_as_before(normalizer):
    model = sharp(alignattn.patch(tiny_model("bert"), normalizer))
    expected = logits_of(model, HELD_BACK)
    report = alignattn.balance(model, batches())
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()
    assert report.means()["after"] < report.means()["before"]


def test_balancing_twice_changes_nothing_more():
    model = sharp(tiny_model("bert"))
    alignattn.balance(model, batches(), held_back=[HELD_BACK])
    state = copy.deepcopy(model.state_dict())
    report = alignattn.balance(model, batches(), held_back=[HELD_BACK])
    for name, values in model.state_dict().items():
        torch.testing.assert_close(values, state[name], rtol=1e-6, atol=1e-6)
    assert max(map(max, report.condition)) < 1 + 1e-6


def test_centre_makes_only_the_means_equal():
    model = sharp(tiny_model("bert"))
    given, expected = batches(), logits_of(model, HELD_BACK)
    before = copy.deepcopy(model.state_dict())
    report = alignattn.balance(model, given, held_back=[HELD_BACK], centre=True)
    assert report.form == "centre"
    changed = {name for name, values in model.state_dict().items() if not torch.equal(values, before[name])}
    assert changed == {f"bert.encoder.layer.{layer}.attention.self.key.bias" for layer in range(3)}
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()
    for query, key in recorded(model, given):
        torch.testing.assert_close(query.mean(dim=1), key.mean(dim=1), rtol=1e-9, atol=1e-9)


def test_nothing_else_of_the_model_changes(tmp_path):
    model = sharp(tiny_model("bert"), torch.float32).train()
    model.bert.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    config = model.config.to_dict()
    alignattn.balance(model, iter(batches()))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.config.to_dict() == config
    changed = {name for name, values in model.state_dict().items() if not torch.equal(values, before[name])}
    own = {id(parameter) for parameter in balanced_parameters(model)}
    assert changed == {name for name, parameter in model.named_parameters() if id(parameter) in own}
    assert len(changed) == 12
    model.eval().save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded, HELD_BACK), logits_of(model, HELD_BACK))


def test_a_patched_model_is_balanced_as_a_plain_one():
    patched = sharp(alignattn.patch(tiny_model("bert"), "aa-ct"))
    plain = sharp(tiny_model("bert"))
    slots = {name: values.clone() for name, values in patched.state_dict().items() if "alignattn" in name}
    expected = logits_of(plain, HELD_BACK)
    for model in (patched, plain):
        alignattn.balance(model, batches())
    for name, values in slots.items():
        assert torch.equal(patched.state_dict()[name], values)
    torch.testing.assert_close(logits_of(patched, HELD_BACK), expected, rtol=0, atol=1e-10)
    alignattn.unpatch(patched)
    for name, values in plain.state_dict().items():
        torch.testing.assert_close(patched.state_dict()[name], values, rtol=1e-9, atol=1e-9)
    alignattn.patch(plain.float().train(), "aa-ot")
    loss = plain(**HELD_BACK).loss + alignattn.alignment_loss(plain)
    loss.backward()
    assert plain.bert.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0


def test_only_patched_layers_are_balanced():
    model = sharp(alignattn.patch(tiny_model("bert"), "aa-ot", layers=(1,)))
    report = alignattn.balance(model, batches())
    assert report.layers == ("bert.encoder.layer.1.attention.self",)


def test_a_custom_model_is_balanced():
    model = sharp(own_encoder())
    expected = logits_of(model, HELD_BACK)
    report = alignattn.balance(model, batches())
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()
    assert report.means()["after"] < report.means()["before"] / 2
    assert not any("alignattn" in name for name, _ in model.named_modules())


def test_without_a_bias_of_the_keys_second_moments_agree(caplog):
    model = own_encoder()
    for layer in model.layers:
        layer.attention.key_projection.bias = None
    sharp(model)
    expected, given = logits_of(model, HELD_BACK), batches()
    with caplog.at_level(logging.WARNING, logger="alignattn"):
        report = alignattn.balance(model, given, held_back=[HELD_BACK])
    assert report.form == "uncentred"
    assert "without a bias" in caplog.text
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()
    alignattn.attach(model, "soft")
    sums = torch.zeros(2, HEADS, SIZE // HEADS, SIZE // HEADS, dtype=torch.float64)
    for batch in given:
        with torch.no_grad(), alignattn.collect(model) as seen:
            model(**batch)
        for index, role in enumerate(("query", "key")):
            points = cloud(getattr(seen.layers[0], role), seen.layers[0].mask)
            sums[index] += points.mT @ points
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-7, atol=1e-5)
    with pytest.raises(AlignAttnError, match="no bias to its keys"):
        alignattn.balance(model, given, centre=True)


def test_the_first_batch_is_held_back_unless_it_is_the_only_one():
    given = batches()
    tokens = [int(batch["attention_mask"].sum()) for batch in given]
    several = alignattn.balance(sharp(tiny_model("bert")), given)
    assert (several.tokens, several.held_back_tokens) == (sum(tokens[1:]), tokens[0])
    single = alignattn.balance(sharp(tiny_model("bert")), given[:1])
    assert (single.tokens, single.held_back_tokens) == (tokens[0], tokens[0])


def test_the_report_covers_each_head():
    report = alignattn.balance(sharp(tiny_model("bert")), batches())
    assert all(len(heads) == 3 for heads in (*report.before, *report.after, *report.floor, *report.condition))
    assert report.means()["after"] < report.means()["before"] / 2
    text = report.describe()
    assert "bert.encoder.layer.2.attention.self" in text
    assert "against float64" not in text
    fields = report.to_dict()
    assert fields["before"] == [list(heads) for heads in report.before]
    assert fields["rounding"] is None


def test_fewer_tokens_than_features_of_a_head_are_noted(caplog):
    model = sharp(tiny_model("bert"))
    expected = logits_of(model, HELD_BACK)
    with caplog.at_level(logging.WARNING, logger="alignattn"):
        report = alignattn.balance(model, [tiny_batch(batch=1, length=5, padded=False)])
    assert "fewer real tokens (5) than the size of a head (8)" in caplog.text
    assert min(map(min, report.shrinkage)) > 0
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_judged_by_its_own_error(dtype):
    model = sharp(tiny_model("bert"), dtype)
    report = alignattn.balance(model, batches())
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    before, after = report.rounding
    assert 0 < after <= 1.5 * before
    assert f"against float64: {before:.2g} before, {after:.2g} after" in report.describe()


class Leaking(nn.Module):
    """A model whose outputs read the queries of a layer outside its attention, too."""

    def __init__(self):
        super().__init__()
        self.encoder = own_encoder()

    def forward(self, **batch):
        seen = []
        handle = self.encoder.layers[0].attention.query_projection.register_forward_hook(lambda *a: seen.append(a[2]))
        outputs = self.encoder(**batch)
        handle.remove()
        return {"logits": outputs["logits"] + seen[0].mean(dim=1)[:, :3]}


def test_balancing_that_would_change_the_function_is_refused():
    model = sharp(Leaking())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(AlignAttnError, match="its weights are left as they were"):
        alignattn.balance(model, batches())
    for name, values in model.state_dict().items():
        assert torch.equal(values, before[name])
    assert not any("alignattn" in name for name, _ in model.named_modules())


class NormedQueries(OwnEncoder):
    """Attention that norms its queries after their projection."""

    def __init__(self):
        super().__init__()
        projection = self.layers[0].attention.query_projection
        self.norm = nn.LayerNorm(SIZE)
        self.layers[0].attention.forward = self._attend
        self.projection = [projection]

    def _attend(self, states, mask):
        attention = self.layers[0].attention
        query = self.norm(attention.query_projection(states))
        rest = attention.key_projection(states), attention.value_projection(states)
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (query, *rest)]
        return attention.output(alignattn.attend(attention, *heads, mask).transpose(1, 2).flatten(2))


def tied():
    model = own_encoder()
    model.layers[1].attention.key_projection.weight = model.layers[0].attention.key_projection.weight
    return model


def with_weight(value):
    model = tiny_model("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.key.weight[0, 0] = value
    return model


def hooked():
    """Return a model with a replaced forward, as accelerate's hooks replace it."""
    model = tiny_model("bert")
    layer = model.bert.encoder.layer[0].attention.self.key
    layer.forward = layer.forward
    return model


class Quantised(nn.Linear):
    """A linear layer of another class."""


def quantised():
    model = tiny_model("bert")
    attention = model.bert.encoder.layer[0].attention.self
    attention.query = Quantised(24, 24)
    return model


def adapted(merge=False):
    config = peft.LoraConfig(target_modules=["query"], r=2)
    model = peft.get_peft_model(tiny_model("bert"), config)
    return model.merge_and_unload() if merge else model


REFUSED = {
    "not in memory": (lambda: tiny_model("bert").to("meta"), "are not in memory"),
    "disentangled": (lambda: tiny_model("deberta-v3"), "scores positions by its queries and keys"),
    "rotated": (lambda: tiny_model("modernbert"), "rotates queries and keys by position"),
    "normed": (NormedQueries, "does not attend with the query that its projection gives"),
    "additive": (lambda: alignattn.patch(tiny_model("bert"), "additive"), "'additive' is not a dot product"),
    "bilinear": (lambda: alignattn.patch(tiny_model("bert"), "bilinear"), "'bilinear' is not a dot product"),
    "qvi": (lambda: alignattn.patch(tiny_model("bert"), "qvi"), "'qvi' reads the queries"),
    "sum": (lambda: alignattn.patch(tiny_model("bert"), "sum"), "'sum' reads the queries"),
    "predictive": (
        lambda: alignattn.patch(tiny_model("bert"), "local", normalizer_options={"kind": "predictive"}),
        "predicts its window from the query",
    ),
    "tied": (tied, "share their weights"),
    "nan": (lambda: with_weight(float("nan")), "not finite"),
    "quantised": (quantised, "Quantised, not a plain linear layer"),
    "hooked": (hooked, "with a forward that is not its own"),
    "adapters": (adapted, "merge them first"),
    "adapters within": (lambda: adapted().get_base_model(), "has an adapter: merge it first"),
    "no attention": (lambda: nn.Linear(2, 2), "Linear is not a PreTrainedModel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_balanced_is_refused_with_the_reason(name):
    build, message = REFUSED[name]
    model = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(AlignAttnError, match=message):
        alignattn.balance(model, batches())
    for parameter, values in model.state_dict().items():
        torch.testing.assert_close(values, before[parameter], rtol=0, atol=0, equal_nan=True)


def test_merged_adapters_are_balanced():
    assert alignattn.balance(adapted(merge=True), batches()).tokens


def test_batches_without_tokens_are_refused():
    model = tiny_model("bert")
    with pytest.raises(AlignAttnError, match="at least one batch"):
        alignattn.balance(model, [])
    with pytest.raises(AlignAttnError, match="no real tokens"):
        alignattn.balance(model, [], held_back=[HELD_BACK])
    with pytest.raises(AlignAttnError, match="held_back needs"):
        alignattn.balance(model, batches(), held_back=[])


def test_collapsed_heads_and_constant_keys_keep_the_function(caplog):
    model = sharp(tiny_model("bert"))
    with torch.no_grad():
        first, second, _ = (layer.attention.self for layer in model.bert.encoder.layer)
        first.query.weight[1:8] = first.query.weight[0]
        second.key.weight[:8] = 0
    expected = logits_of(model, HELD_BACK)
    with caplog.at_level(logging.WARNING, logger="alignattn"):
        report = alignattn.balance(model, batches())
    assert "balanced in part" in caplog.text
    assert max(map(max, report.condition)) <= 100 * (1 + 1e-9)
    assert (logits_of(model, HELD_BACK) - expected).abs().max() <= 1e-10 * expected.std()


def test_two_processes_make_the_model_of_one(tmp_path):
    script = Path(__file__).with_name("balance_in_processes.py")
    started = [
        Python([script, tmp_path / "store", tmp_path / "out", rank, 2], environment={"GLOO_SOCKET_IFNAME": "lo"})
        for rank in range(2)
    ]
    for process in started:
        done = process.finish()
        assert done.returncode == 0, done.stderr
    model, report = balanced(0, 1)
    parts = [torch.load(tmp_path / f"out-{rank}.pt", weights_only=True) for rank in range(2)]
    for name, values in model.state_dict().items():
        assert torch.equal(parts[0]["state"][name], parts[1]["state"][name])
        torch.testing.assert_close(parts[0]["state"][name], values, rtol=1e-9, atol=1e-9)
    assert [part["tokens"] for part in parts] == [report.tokens, report.tokens]
    # A process without batches does not leave the others waiting.
    assert [part["refusal"].split(":")[0] for part in parts] == [
        "another process could not balance its model",
        "balance needs at least one batch",
    ]

"""Hooks of a patch with an alignment alone come with training, `collect` and a check, and go with evaluation."""

import copy
import io
import pickle
import sys
from pathlib import Path

import peft
import pytest
import torch
from conftest import FAMILIES, tiny_batch, tiny_model
from own_encoder import own_encoder
from torch import nn

import alignattn
from alignattn.patching import patch_of

PACKAGE = str(Path(alignattn.__file__).parent)
MAPS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks(model):
    """Return the hooks of all modules."""
    return [hook for module in model.modules() for name in MAPS for hook in vars(module)[name].values()]


def calls(work):
    """Return the file, the name and the first argument of each Python call while `work` runs."""
    found = []

    def see(frame, event, _):
        if event == "call":
            code = frame.f_code
            first = code.co_varnames[0] if code.co_argcount else None
            found.append((code.co_filename, code.co_name, frame.f_locals.get(first)))

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def with_lora(model, **options):
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query", "key"], r=2, **options))


BUILDS = {
    **{family: lambda family=family: alignattn.patch(tiny_model(family), "aa-ct") for family in FAMILIES},
    "attached": lambda: alignattn.attach(own_encoder(), "aa-ct"),
    "lora after": lambda: with_lora(alignattn.patch(tiny_model("bert"), "aa-ct")),
    "lora after, in training": lambda: with_lora(alignattn.patch(tiny_model("bert").train(), "aa-ct")),
    "lora before": lambda: alignattn.patch(with_lora(tiny_model("bert")), "aa-ct"),
    "copied projections": lambda: peft.get_peft_model(
        alignattn.patch(tiny_model("bert").train(), "aa-ct"),
        peft.LoraConfig(target_modules=["value"], modules_to_save=["query", "key"]),
    ),
    "copied attention": lambda: peft.get_peft_model(
        alignattn.patch(tiny_model("bert").train(), "aa-ct"),
        peft.LoraConfig(target_modules=["dense"], modules_to_save=["attention.self"]),
    ),
    "copied encoder": lambda: peft.get_peft_model(
        alignattn.patch(tiny_model("bert").train(), "aa-ct"),
        peft.LoraConfig(target_modules=["pooler.dense"], modules_to_save=["encoder"]),
    ),
    "copied": lambda: copy.deepcopy(alignattn.patch(tiny_model("bert").train(), "aa-ct")),
    "pickled": lambda: pickle.loads(pickle.dumps(alignattn.patch(tiny_model("bert").train(), "aa-ct"))),
}


@pytest.mark.parametrize("build", BUILDS)
def test_evaluation_runs_nothing_of_the_patch(build):
    model = BUILDS[build]()
    for _ in range(2):
        model.train()(**tiny_batch())
        assert hooks(model)
        assert alignattn.alignment_loss(model).isfinite()
        model.eval()
        with torch.no_grad(), alignattn.collect(model) as seen:
            model(**tiny_batch())
        assert len(seen.losses()) == len(seen.layers) > 0
        assert not hooks(model)
        if build != "attached":
            # `attend` belongs to an attached model itself.
            assert not [path for path, *_ in calls(lambda: model(**tiny_batch())) if path.startswith(PACKAGE)]


def test_hooks_follow_the_mode_of_each_layer():
    model = alignattn.patch(tiny_model("bert"), "aa-moments")
    layers = model.bert.encoder.layer

    def recorded():
        model(**tiny_batch())
        return [call.slots.layer for call in patch_of(model).collector.take()]

    layers[1].train()
    assert recorded() == [1]
    model.bert.encoder.train()
    assert recorded() == [0, 1, 2]
    layers[2].eval()
    assert recorded() == [0, 1]
    model.eval()
    assert not hooks(model)
    for module in model.modules():
        module.training = True
    assert recorded() == [0, 1, 2]
    for module in model.modules():
        module.training = False
    assert not hooks(model)


def test_a_failed_forward_of_a_part_in_training_is_forgotten():
    model = alignattn.patch(tiny_model("bert"), "aa-moments")
    model.bert.encoder.train()

    def fail(*_):
        raise RuntimeError("out of memory")

    handle = model.classifier.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model(**tiny_batch())
    handle.remove()
    assert not patch_of(model).collector.take()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_hook_of_the_user_changes_neither_the_record_nor_its_own_gradient(is_first):
    plain, model = tiny_model("bert").train(), tiny_model("bert").train()
    for module in (*plain.modules(), *model.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    factors = [nn.Parameter(torch.tensor(3.0)) for _ in range(2)]
    if not is_first:
        alignattn.patch(model, "aa-moments")
    for factor, each in zip(factors, (plain, model), strict=True):
        query = each.bert.encoder.layer[0].attention.self.query
        query.register_forward_hook(lambda _module, _args, output, factor=factor: factor * output)
    if is_first:
        alignattn.patch(model, "aa-moments")
    with torch.no_grad():
        expected = model.bert.encoder.layer[0].attention.self.query.forward(
            model.bert.embeddings(tiny_batch()["input_ids"])
        )
    plain(**tiny_batch()).loss.backward()
    loss = model(**tiny_batch()).loss
    torch.testing.assert_close(patch_of(model).collector.take()[0].query, expected)
    loss.backward()
    assert factors[0].grad != 0
    torch.testing.assert_close(factors[1].grad, factors[0].grad)
    gradients = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad, msg=name)


class Doubled(nn.Module):
    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer

    def forward(self, states):
        return 2 * self.base_layer(states)


def test_a_module_that_replaces_a_projection_in_training_is_read():
    model = alignattn.patch(tiny_model("bert", hidden_dropout_prob=0.0), "aa-moments").train()
    attention = model.bert.encoder.layer[0].attention.self
    attention.query = Doubled(attention.query)
    with torch.no_grad():
        expected = attention.query.forward(model.bert.embeddings(tiny_batch()["input_ids"]))
    model(**tiny_batch())
    torch.testing.assert_close(patch_of(model).collector.take()[0].query, expected)
    attention.query = attention.query.base_layer
    model(**tiny_batch())
    torch.testing.assert_close(patch_of(model).collector.take()[0].query, expected / 2)


def test_a_compiled_model_sees_hooks_come_and_go():
    torch._dynamo.reset()
    model = alignattn.patch(tiny_model("bert", num_hidden_layers=1, hidden_dropout_prob=0.0), "aa-moments")
    forward = torch.compile(model, backend="eager")
    losses = []
    for _ in range(2):
        forward(**tiny_batch())
        assert not patch_of(model).collector.take()
        with torch.no_grad(), alignattn.collect(model) as seen:
            forward(**tiny_batch())
        losses.append(seen.mean_loss())
        model.train()
        forward(**tiny_batch())
        losses.append(alignattn.alignment_loss(model) / patch_of(model).config.alignment_weight)
        model.eval()
    torch.testing.assert_close(losses, losses[:1] * 4)


def test_a_copy_of_a_model_in_training_records_on_its_own():
    model = alignattn.patch(tiny_model("bert").train(), "aa-moments")
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        twin(**tiny_batch())
        assert patch_of(twin).collector.owner is twin
        assert alignattn.alignment_loss(twin).isfinite()
        assert not patch_of(model).collector.take()
        twin.bert.encoder.layer[0].eval()
        twin(**tiny_batch())
        assert len(patch_of(twin).collector.take()) == 2
        twin.eval()
        assert not hooks(twin)
        assert hooks(model)


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: nn.Sequential(model, nn.Linear(2, 2))])
def test_a_step_walks_over_no_modules(wrap):
    model = alignattn.patch(tiny_model("bert").train(), "aa-gan")
    wrapped = wrap(model)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)]

    def step():
        for optimizer in optimizers[::-1]:
            loss = model(**tiny_batch()).loss + alignattn.alignment_loss(wrapped)
            loss.backward()
            optimizer.step()

    step()
    assert not [name for _, name, first in calls(step) if name == "named_modules" and first is model]

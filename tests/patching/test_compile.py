"""`torch.compile` of patched models and of their alignment: one graph each, with the gradients of eager mode.

On the CPU, the compiled path is the generic one, which a GPU runs, too.
"""

import gc

import peft
import pytest
import torch
from checkpointing import enable_checkpointing
from conftest import ALIGNED, chosen, tiny_batch, tiny_model

import alignattn
from alignattn.attention.choices import NORMALIZERS, SCORES, VALUES
from alignattn.patching import patch_of
from alignattn.patching.slots import has_alignment

GRAPH_BREAKING = ("sparsemax", "entmax15", "entmax", "fusedmax")
"""Normalizers whose steps depend on the data: a compiler leaves its graph there."""

SOLVER = "aa-ct+entmax"
"""A slot whose solver has custom gradients, which the compiler does not know."""

PARAMETERS = "aa-ct+bilinear+qvi"
"""Slots with parameters."""

VARIANTS = [
    *alignattn.PRESETS,
    *(f"aa-ct+{choice}" for slot in (NORMALIZERS, SCORES, VALUES) for choice in slot),
]


def patched(variant, layers=2):
    model = tiny_model(
        "bert", num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, use_cache=False
    )
    alignattn.patch(model, variant, alignment_weight=0.3).train()
    # transformers stores something in a model's first forward, and the compiler guards on it.
    model(**tiny_batch())
    patch_of(model).collector.take()
    return model


def step(model, forward, alignment_loss, forwards=1):
    """Return the loss and the gradients of a step of some forwards."""
    losses = [forward(**tiny_batch(seed=seed)).loss for seed in range(forwards)]
    if has_alignment(model):
        losses.append(alignment_loss(model))
    loss = sum(losses)
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.detach(), found


def compiled(function, *, fullgraph=True, backend="aot_eager"):
    return torch.compile(function, backend=backend, fullgraph=fullgraph)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("variant", [*chosen(VARIANTS, "soft", SOLVER), PARAMETERS])
def test_one_graph_of_the_model_serves_any_number_of_forwards_a_step(variant):
    model = patched(variant, layers=1)
    breaks = variant.endswith(GRAPH_BREAKING)
    forward = compiled(model, fullgraph=not breaks)
    for forwards in (1, 3):
        found = step(model, forward, alignattn.alignment_loss, forwards)
        torch.testing.assert_close(found, step(model, model, alignattn.alignment_loss, forwards), rtol=1e-4, atol=1e-6)
    assert breaks or graphs() == 1


@pytest.mark.parametrize(("variant", "checkpoints"), [(name, name in ("aa-gan", "aa-ct")) for name in ALIGNED])
def test_one_graph_of_the_model_and_one_of_the_alignment(variant, checkpoints):
    model = patched(variant)
    expected = step(model, model, alignattn.alignment_loss)
    if checkpoints:
        enable_checkpointing(model)
    forward, alignment_loss = compiled(model), compiled(alignattn.alignment_loss)
    for _ in range(2):
        torch.testing.assert_close(step(model, forward, alignment_loss), expected, rtol=1e-4, atol=1e-6)
    assert graphs() == 2


# Each alignment is compiled above; this one has networks.
def test_one_graph_of_a_whole_step():
    model = patched("aa-ct")

    @compiled
    def loss(batch):
        return model(**batch).loss + alignattn.alignment_loss(model)

    expected = model(**tiny_batch()).loss + alignattn.alignment_loss(model)
    for _ in range(2):
        torch.testing.assert_close(loss(tiny_batch()), expected)
    assert graphs() == 1


@pytest.mark.parametrize(
    ("gradient_scope", "is_frozen"), [("projections", False), ("all", False), ("projections", True)]
)
def test_backward_passes_without_a_step_keep_the_records_of_one_compiled_forward(gradient_scope, is_frozen):
    model = alignattn.patch(tiny_model("bert", num_hidden_layers=1), "aa-ct", gradient_scope=gradient_scope).train()
    for layer in model.bert.encoder.layer if is_frozen else ():
        layer.attention.self.query.requires_grad_(False)
        layer.attention.self.key.requires_grad_(False)
    forward, collector = compiled(model), patch_of(model).collector
    records = []
    for seed in range(12):
        forward(**tiny_batch(seed=seed)).logits.sum().backward()
        records.append(len(collector.calls()))
    assert records == records[:1] * 12
    for _ in range(2):
        forward(**tiny_batch())
    assert len(collector.calls()) == 2 * records[0]


def test_changing_sizes_compile_no_more_graphs_of_the_alignment_than_of_the_model():
    model = patched("aa-ct", layers=1)
    # The graphs are counted, and the tests above compile their backward passes.
    forward, alignment_loss = (compiled(each, backend="eager") for each in (model, alignattn.alignment_loss))
    of_model = of_alignment = 0
    for length in (8, 11, 13):
        start = graphs()
        loss = forward(**tiny_batch(length=length)).loss
        middle = graphs()
        (loss + alignment_loss(model)).backward()
        of_model, of_alignment = of_model + middle - start, of_alignment + graphs() - middle
    assert of_alignment <= of_model < 5


def adapted(order, **options):
    """A model of one layer with LoRA of every projection."""
    sizes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = tiny_model("bert", **sizes, use_cache=False)
    config = peft.LoraConfig(r=2, init_lora_weights=False, target_modules=["query", "key", "value"], **options)
    steps = [lambda: alignattn.patch(model, "aa-ct", alignment_weight=0.3), lambda: peft.get_peft_model(model, config)]
    found = [take() for take in (steps if order == "patched first" else reversed(steps))]
    wrapped = next(result for result in found if result is not model).train()
    wrapped(**tiny_batch())
    patch_of(model).collector.take()
    return wrapped


def adapted_step(model, forward):
    torch.manual_seed(0)
    (forward(**tiny_batch()).loss + alignattn.alignment_loss(model)).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(("order", "checkpoints"), [("patched first", True), ("adapted first", False)])
def test_one_graph_of_a_model_with_lora(order, checkpoints):
    model = adapted(order)
    expected = adapted_step(model, model)
    if checkpoints:
        encoder = model.get_base_model()
        enable_checkpointing(encoder)
        # What transformers adds for reentrant checkpointing breaks the graph of a plain model with adapters, too.
        encoder.disable_input_require_grads()
    forward = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(adapted_step(model, forward), expected, rtol=1e-4, atol=1e-6)
    assert graphs() == 1


def test_lora_dropout_breaks_the_graph_and_is_repeated():
    model = adapted("patched first", lora_dropout=0.3)
    forward = compiled(model, fullgraph=False, backend="eager")
    torch.testing.assert_close(adapted_step(model, forward), adapted_step(model, model), rtol=1e-4, atol=1e-6)
    assert graphs() > 1


@pytest.mark.parametrize("is_patched_first", [True, False])
def test_hooks_of_a_patched_model_run_after_a_plain_twin_is_compiled(is_patched_first):
    torch.compiler.reset()
    gc.collect()
    # Models of other tests are gone, so the patch below is the first of the process.
    assert torch._dynamo.config.skip_nnmodule_hook_guards
    model = patched("aa-moments") if is_patched_first else None
    torch.compile(tiny_model("bert", num_hidden_layers=2).train(), backend="eager")(**tiny_batch())
    model = model or patched("aa-moments")
    torch.compile(model, backend="eager")(**tiny_batch())
    assert alignattn.alignment_loss(model) > 0


@pytest.mark.parametrize("variant", ["aa-ct", "aa-ct+dot+qvi"])
def test_an_exported_graph_accepts_any_number_of_rows_and_tokens(variant):
    model = patched(variant).eval()
    names = ("input_ids", "attention_mask")
    sizes = {name: {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", max=64)} for name in names}
    given, other = ({name: tiny_batch(*size)[name] for name in names} for size in ((3, 9), (5, 20)))
    graph = torch.export.export(model, (), given, dynamic_shapes=sizes).module()
    torch.testing.assert_close(graph(**other).logits, model(**other).logits)

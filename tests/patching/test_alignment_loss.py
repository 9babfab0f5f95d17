"""`alignattn.alignment_loss` in custom training loops."""

import pytest
import torch
from checkpointing import enable_checkpointing
from conftest import ALIGNED, tiny_batch, tiny_model
from torch import nn
from torch.utils.checkpoint import checkpoint

import alignattn
from alignattn.attention.alignment import one_pass
from alignattn.patching import patch_of
from alignattn.utils.errors import AlignAttnError

WEIGHT = 0.3


@pytest.fixture(params=["blocks", "groups"])
def path(request, monkeypatch):
    """The blocks of a CPU, and the groups of layers of a GPU, run on the CPU."""
    if request.param == "groups":
        monkeypatch.setattr(one_pass, "is_in_blocks", lambda _: False)


def patched(variant="aa-ct", family="bert"):
    model = tiny_model(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return alignattn.patch(model, variant, alignment_weight=WEIGHT).train()


def gradients(model):
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def half_batches():
    first, second = tiny_batch(batch=3, seed=1), tiny_batch(batch=1, length=6, seed=2)
    return first, second


@pytest.mark.parametrize("variant", ALIGNED)
@pytest.mark.parametrize("family", ["albert", "bert"])
def test_the_loss_is_the_weighted_mean_over_calls(family, variant, path):
    model = patched(variant, family)
    with alignattn.collect(model) as seen:
        task_loss = model(**tiny_batch()).loss
    expected = WEIGHT * seen.mean_loss()
    found = alignattn.alignment_loss(model)
    torch.testing.assert_close(found, expected)
    (task_loss + expected).backward(retain_graph=True)
    of_collected = gradients(model)
    (task_loss + found).backward()
    torch.testing.assert_close(gradients(model), of_collected)


@pytest.mark.parametrize("variant", ALIGNED)
def test_forwards_of_a_step_are_averaged_by_samples(variant, path):
    model = patched(variant)
    losses = []
    for batch in half_batches():
        model(**batch)
        losses.append(alignattn.alignment_loss(model))
    expected = (3 * losses[0] + losses[1]) / 4
    for batch in half_batches():
        model(**batch)
    found = alignattn.alignment_loss(model)
    torch.testing.assert_close(found, expected)
    expected.backward()
    of_each = gradients(model)
    found.backward()
    torch.testing.assert_close(gradients(model), of_each)


def test_the_loss_consumes_the_records_and_raises_without_any():
    model = patched()
    with pytest.raises(AlignAttnError, match="no attention layer of this Bert"):
        alignattn.alignment_loss(model)
    model(**tiny_batch())
    alignattn.alignment_loss(model)
    with torch.no_grad():
        model(**tiny_batch())
    with pytest.raises(AlignAttnError, match="gradients were off"):
        alignattn.alignment_loss(model)
    model.eval()(**tiny_batch())
    with pytest.raises(AlignAttnError, match="no attention layer of this Bert"):
        alignattn.alignment_loss(model)
    for plain in (tiny_model("bert"), alignattn.patch(tiny_model("bert"), "soft")):
        with pytest.raises(AlignAttnError, match="not patched with an alignment"):
            alignattn.alignment_loss(plain)


class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch).loss


def test_the_model_may_be_wrapped():
    model = patched()
    expected = model(**tiny_batch()).loss + alignattn.alignment_loss(model)
    around = Around(model)
    torch.testing.assert_close(around(**tiny_batch()) + alignattn.alignment_loss(around), expected)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(**tiny_batch()).loss + alignattn.alignment_loss(compiled), expected)


@pytest.mark.parametrize("other", [nn.Linear(2, 2), None], ids=["plain", "aligned"])
def test_an_optimizer_step_of_another_model_keeps_the_records(other, recwarn):
    model = patched()
    other = patched() if other is None else other
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    of_other = torch.optim.SGD(other.parameters(), lr=0.0)
    model(**tiny_batch())
    expected = alignattn.alignment_loss(model)
    model(**tiny_batch())
    of_other.step()
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)
    assert not recwarn.list
    model(**tiny_batch())
    with pytest.warns(UserWarning, match=r"alignattn\.alignment_loss"):
        optimizer.step()


def test_training_only_a_separate_head_keeps_no_records():
    model = patched()
    head = nn.Linear(model.config.num_labels, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(2):
        head(model(**tiny_batch()).logits.detach()).sum().backward()
        optimizer.step()
    assert not patch_of(model).collector.take()


@pytest.mark.parametrize("consumes_first", [True, False])
def test_recomputed_forwards_record_nothing(consumes_first):
    model = patched()
    expected = model(**tiny_batch()).loss + alignattn.alignment_loss(model)
    expected.backward()
    whole = gradients(model)
    enable_checkpointing(model)
    loss = model(**tiny_batch()).loss
    if consumes_first:
        (loss + alignattn.alignment_loss(model)).backward()
        torch.testing.assert_close(gradients(model), whole)
    else:
        loss.backward()
        alignattn.alignment_loss(model)
    with pytest.raises(AlignAttnError, match="no attention layer"):
        alignattn.alignment_loss(model)


def test_a_forward_within_a_backward_pass_is_refused():
    """Losses that cache embeddings and reentrant checkpointing run such forwards."""
    model = patched()
    inputs = model.get_input_embeddings()(tiny_batch()["input_ids"])

    def logits(embeddings):
        return model(inputs_embeds=embeddings).logits

    loss = checkpoint(logits, inputs, use_reentrant=True).sum()
    with pytest.raises(AlignAttnError, match="within a backward pass"):
        loss.backward()


def test_layers_with_other_head_sizes_have_their_own_alignment():
    from own_encoder import own_encoder

    model = own_encoder()
    attention = model.layers[1].attention
    attention.num_heads = 2
    alignattn.attach(model, "aa-gan", alignment_weight=1.0).train()
    with alignattn.collect(model) as seen:
        model(**tiny_batch())
    torch.testing.assert_close(alignattn.alignment_loss(model), seen.mean_loss())
    assert len(patch_of(model).alignments) == 2

"""`alignment_rows`: a loss from a drawn part of a forward's samples."""

import copy
import itertools

import pytest
import torch
import transformers
from conftest import tiny_batch, tiny_model

import alignattn
from alignattn.attention.choices import choices_with
from alignattn.patching import patch_of
from alignattn.utils.errors import AlignAttnError

ROWS, BATCH = 2, 5
NAMES = choices_with("alignment", "averages_samples")


def patched(alignment, rows=ROWS, family="bert"):
    model = tiny_model(family, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return alignattn.patch(model, f"aa-{alignment}", alignment_rows=rows, alignment_weight=1.0).train()


def gradients(loss, model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros(()) if gradient is None else gradient for gradient in found]


def loss_of_rows(model, batch, rows):
    """Return the loss of some samples alone, from all of them."""
    state = patch_of(model)
    model(**{name: tensor[list(rows)] for name, tensor in batch.items()})
    drawn, state.config = state.config, alignattn.AttentionConfig.resolve(state.config, alignment_rows=0)
    try:
        return alignattn.alignment_loss(model)
    finally:
        state.config = drawn


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_loss_of_some_samples_the_same_in_all_layers(name):
    """Layers that drew different samples would give none of these losses."""
    model, batch = patched(name), tiny_batch(batch=BATCH)
    model(**batch)
    loss = alignattn.alignment_loss(model)
    found = gradients(loss, model)
    subsets = list(itertools.combinations(range(BATCH), ROWS))
    losses = [loss_of_rows(model, batch, rows) for rows in subsets]
    nearest = min(range(len(subsets)), key=lambda index: abs(losses[index] - loss).item())
    torch.testing.assert_close(loss, losses[nearest])
    torch.testing.assert_close(found, gradients(losses[nearest], model))


@pytest.mark.parametrize("name", NAMES)
def test_it_is_that_of_some_samples_if_only_the_keys_have_padding(name):
    """The decoder's queries have no mask, unlike the encoder's keys."""
    sizes = {f"{side}_{size}": 2 for side in ("encoder", "decoder") for size in ("layers", "attention_heads")}
    config = transformers.BartConfig(
        vocab_size=99, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, dropout=0.0, **sizes
    )
    torch.manual_seed(0)
    model = alignattn.patch(transformers.BartModel(config), f"aa-{name}", alignment_rows=ROWS, cross_attention=True)
    batch = {key: value for key, value in tiny_batch(batch=BATCH).items() if key != "labels"}
    batch["decoder_input_ids"] = batch["input_ids"][:, :4]
    model.train()(**batch)
    loss = alignattn.alignment_loss(model)
    losses = [loss_of_rows(model, batch, rows) for rows in itertools.combinations(range(BATCH), ROWS)]
    torch.testing.assert_close(loss, min(losses, key=lambda one: abs(one - loss).item()))


def test_every_sample_is_drawn_as_often():
    model, batch = patched("gan"), tiny_batch(batch=BATCH)
    subsets = list(itertools.combinations(range(BATCH), ROWS))
    of_subset = [loss_of_rows(model, batch, rows).item() for rows in subsets]
    draws = 200
    counts = torch.zeros(BATCH)
    for _ in range(draws):
        model(**batch)
        loss = alignattn.alignment_loss(model).item()
        counts[list(subsets[min(range(len(subsets)), key=lambda index: abs(of_subset[index] - loss))])] += 1
    # Four standard deviations of a binomial share.
    share = ROWS / BATCH
    assert ((counts / draws - share).abs() < 4 * (share * (1 - share) / draws) ** 0.5).all(), counts


@pytest.mark.parametrize("rows", [BATCH, BATCH + 1])
def test_with_enough_rows_the_loss_is_that_of_all(rows):
    model, batch = patched("ct", rows), tiny_batch(batch=BATCH)
    model(**batch)
    found = alignattn.alignment_loss(model)
    torch.testing.assert_close(found, loss_of_rows(model, batch, range(BATCH)))


def test_a_wholly_padded_sample_is_drawn_last():
    model, batch = patched("ct"), tiny_batch(batch=3)
    batch["attention_mask"][0] = 0
    model(**batch)
    loss = alignattn.alignment_loss(model)
    torch.testing.assert_close(loss, loss_of_rows(model, batch, [1, 2]))


def test_a_forward_counts_with_all_its_samples():
    """Two forwards of a step: 5 samples, of which 2 are drawn, and 2."""
    model, batches = patched("ct"), (tiny_batch(batch=BATCH, seed=1), tiny_batch(batch=2, seed=2))
    losses = []
    for batch in batches:
        model(**batch)
        losses.append(alignattn.alignment_loss(model))
        patch_of(model).step.zero_()
    for batch in batches:
        model(**batch)
    torch.testing.assert_close(alignattn.alignment_loss(model), (BATCH * losses[0] + 2 * losses[1]) / (BATCH + 2))


def test_a_resumed_model_draws_the_same_samples():
    model, batch = patched("gan"), tiny_batch(batch=BATCH)
    for _ in range(3):
        model(**batch)
        alignattn.alignment_loss(model)
    resumed = patched("gan")
    resumed.load_state_dict(copy.deepcopy(model.state_dict()))
    for _ in range(3):
        losses = []
        for each in (model, resumed):
            each(**batch)
            losses.append(alignattn.alignment_loss(each))
        torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_evaluation_and_collect_use_all_samples_and_draw_none():
    model, batch = patched("ct"), tiny_batch(batch=BATCH)
    with alignattn.collect(model) as seen:
        model(**batch)
    alignattn.discard(model)
    assert patch_of(model).step == 0
    torch.testing.assert_close(seen.mean_loss(), loss_of_rows(model, batch, range(BATCH)))


def test_each_loss_draws_anew_though_only_parts_of_the_model_train():
    model, batch = patched("ct").eval(), tiny_batch(batch=BATCH)
    model.bert.encoder.train()
    for losses in range(3):
        assert patch_of(model).step == losses
        model(**batch)
        alignattn.alignment_loss(model)


@pytest.mark.parametrize("attention", ["aa-moments", "aa-means"])
def test_a_loss_of_the_whole_batch_refuses_it(attention):
    with pytest.raises(AlignAttnError, match="alignment_rows is for a mean over samples"):
        alignattn.AttentionConfig.resolve(attention, alignment_rows=2)


@pytest.mark.parametrize("rows", [-1, 1.5, True, "8"])
def test_other_numbers_are_refused(rows):
    with pytest.raises(AlignAttnError, match="must be a number of samples, or 0 for all"):
        alignattn.AttentionConfig.resolve("aa-ct", alignment_rows=rows)


def test_the_default_draws_eight_samples_of_a_mean_over_samples():
    rows = {name: alignattn.AttentionConfig(alignment=name).alignment_rows for name in (*NAMES, "moments", "means")}
    assert rows == dict.fromkeys(NAMES, 8) | {"moments": 0, "means": 0}
    assert alignattn.AttentionConfig().alignment_rows == 0
    assert alignattn.AttentionConfig(alignment="ct", alignment_options={"points": 4}).alignment_rows == 0


def test_another_alignment_takes_its_own_default_and_keeps_a_given_number():
    resolve = alignattn.AttentionConfig.resolve
    assert resolve(resolve("aa-ct"), alignment="moments").alignment_rows == 0
    assert resolve(resolve("aa-moments"), alignment="ot").alignment_rows == 8
    assert resolve(resolve("aa-ct", alignment_rows=3), alignment="ot").alignment_rows == 3


@pytest.mark.parametrize("rows", [{}, {"alignment_rows": None}])
def test_a_saved_attention_without_the_number_uses_all_samples(rows):
    saved = alignattn.AttentionConfig(alignment="ct").to_dict()
    assert alignattn.AttentionConfig.from_dict(saved).alignment_rows == saved.pop("alignment_rows") == 8
    assert alignattn.AttentionConfig.from_dict(saved | rows).alignment_rows == 0


def test_drawn_nodes_refuse_it():
    with pytest.raises(AlignAttnError, match="alignment_rows"):
        alignattn.AttentionConfig.resolve("aa-ct", alignment_rows=2, alignment_options={"points": 4})


def test_points_of_a_text_are_refused():
    with pytest.raises(AlignAttnError, match="limits the nodes of a graph"):
        alignattn.patch(tiny_model("bert"), "aa-ct", alignment_options={"points": 4})

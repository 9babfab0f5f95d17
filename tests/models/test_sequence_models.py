"""The models that generate sequences: against loops, and their output."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from autocast import assert_near_under_autocast
from datasets import Dataset
from scipy.optimize import minimize
from slots_taken import FILLINGS, assert_takes, fill, with_fillings
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM

import alignattn
from alignattn import AlignAttnError
from alignattn.commands.figure import attention_to_source
from alignattn.finetuning.options import ModelOptions
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext
from alignattn.models.sequence.model import Limits, beam_search, greedy, log_likelihood
from alignattn.tasks import SequenceToSequence
from alignattn.tasks.definitions import get_task
from alignattn.tasks.task import EncodedSplit, TaskOptions

TASK = SequenceToSequence(name="own", source_units="characters", target_units="words")
WRITING = [name for name in MODELS if SequenceToSequence in capabilities_of(name).tasks]
SMALL = {"embedding_dim": 8, "hidden_dim": 8, "dropout": 0.0}
PAIRS = [("cat", "K AE T"), ("at", "AE T"), ("tact", "T AE K T"), ("a", "AE")]
REFUSED = r"one query at a time|leak later words"
ORDERS = [{}, {"attends_first": True}, {"input_feeding": False}]


@pytest.fixture(params=WRITING)
def name(request):
    return request.param


def rows_of(pairs):
    return {"source": [read for read, _ in pairs], "target": [[written] for _, written in pairs]}


def built_of(name, pairs=PAIRS, **fields):
    return MODELS.load(name).build(BuildContext(TASK, rows_of(pairs), seed=0, config_fields=SMALL | fields))


def small_model(name, filling=None, **fields):
    built = built_of(name, **fields)
    return fill(built.model.double(), filling), batch_of(built.tokenizer)


def batch_of(tokenizer, pairs=PAIRS):
    options, rows = TaskOptions(max_length=32), Dataset.from_dict(rows_of(pairs))
    split = EncodedSplit(rows, TASK.encode(rows, tokenizer, options), options, tokenizer)
    return dict(TASK.collator(tokenizer, split)(list(split.encoded)))


def without_labels(batch):
    return {name: values for name, values in batch.items() if name != "labels"}


@pytest.mark.parametrize(("model_name", "filling"), with_fillings(WRITING))
def test_autocast_trains_near_full_precision(model_name, filling):
    assert_near_under_autocast(*small_model(model_name, filling))


@pytest.mark.parametrize(("model_name", "filling"), with_fillings(WRITING))
def test_padding_on_either_side_changes_nothing(model_name, filling):
    model, batch = small_model(model_name, filling)
    output, (written, probable) = model(**batch), model.generate(**without_labels(batch))
    log_probability = log_likelihood(output.logits, batch["labels"])
    torch.testing.assert_close(output.loss, -log_probability.mean())
    for row in range(len(PAIRS)):
        real, right = batch["attention_mask"][row].bool(), batch["labels"][row] >= 0
        alone = {"input_ids": batch["input_ids"][row, real][None], "labels": batch["labels"][row, right][None]}
        torch.testing.assert_close(-model(**alone).loss, log_probability[row])
        tokens, probability = model.generate(alone["input_ids"])
        assert tokens[0].tolist() == written[row, : tokens.shape[1]].tolist()
        torch.testing.assert_close(probability[0], probable[row])
    shifted = {key: F.pad(values, (3, 0)) for key, values in without_labels(batch).items()}
    torch.testing.assert_close(model(**shifted, labels=batch["labels"]).logits, output.logits)


@pytest.mark.parametrize("cross_attention", [False, True])
def test_padding_of_the_labels_does_not_enter_the_alignment(cross_attention):
    built = built_of("seq2seq-transformer")
    batch, model = batch_of(built.tokenizer), built.model.double()
    alignattn.patch(model, "aa-ct", cross_attention=cross_attention).train()
    losses = []
    for more in (0, 1, 3):
        model(**batch | {"labels": F.pad(batch["labels"], (0, more), value=-100)})
        losses.append(alignattn.alignment_loss(model).detach())
    torch.testing.assert_close(torch.stack(losses[1:]), losses[0].expand(2))


def test_probabilities_of_generated_sequences_are_those_of_a_forward(name):
    model, batch = small_model(name)
    model.config.longest_output = 6
    for beams in (1, 3):
        written, probability = model.generate(**without_labels(batch), num_beams=beams)
        labels = written.masked_fill(written == model.config.pad_token_id, -100)
        # The forward also gives tokens a probability that are never generated.
        logits = model(**batch | {"labels": labels}).logits
        logits[..., :3] = torch.finfo(logits.dtype).min
        torch.testing.assert_close(log_likelihood(logits, labels), probability)


@pytest.mark.parametrize("fields", ORDERS, ids=str)
def test_every_parameter_gets_a_gradient(name, fields):
    if name != "seq2seq-lstm" and fields:
        return
    model, batch = small_model(name, **fields)
    model(**batch).loss.backward()
    for path, parameter in model.named_parameters():
        # A bias of the keys shifts all scores of a query equally, which softmax ignores.
        if not path.endswith("key_projection.bias"):
            assert parameter.grad.abs().max() > 0, path


def test_learns_32_rows_by_heart_and_writes_them(name):
    generator = torch.Generator().manual_seed(0)
    texts = ["".join("abcdefgh"[i] for i in torch.randint(8, (4,), generator=generator)) for _ in range(32)]
    pairs = [(text, " ".join(reversed(text.upper()))) for text in texts]
    built = built_of(name, pairs, hidden_dim=16, embedding_dim=16)
    model, batch = built.model.train(), batch_of(built.tokenizer, pairs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    written, _ = model.eval().generate(**without_labels(batch))
    right = batch["labels"].masked_fill(batch["labels"] < 0, 0)
    assert (written[:, : right.shape[1]] == right).all(dim=1).float().mean() > 0.9


@pytest.mark.parametrize("filling", FILLINGS, ids=str)
def test_supports_its_declared_slots_and_no_others(name, filling, tmp_path):
    built, slot = built_of(name), filling.slot
    if slot not in capabilities_of(name).slots:
        with pytest.raises(AlignAttnError, match=REFUSED):
            ModelOptions(model=name, **{slot: filling.choice}).check(TASK)
        with pytest.raises(AlignAttnError, match=REFUSED):
            fill(built.model, filling)
        return
    batch = batch_of(built.tokenizer)
    model, loaded = assert_takes(filling, built.model, batch, AutoModelForSeq2SeqLM, tmp_path)
    assert torch.equal(loaded.generate(**without_labels(batch))[0], model.generate(**without_labels(batch))[0])


def test_a_task_without_generated_answers_is_refused_by_name(name):
    with pytest.raises(
        AlignAttnError, match=f"--model {name} is for text2text-generation, and task 'mrpc' is text-cla"
    ):
        ModelOptions(model=name).check(get_task("mrpc"))


@pytest.mark.parametrize("fields", ORDERS, ids=str)
def test_a_step_of_the_lstm_follows_its_equations(fields):
    model, batch = small_model("seq2seq-lstm", **fields)
    row, right = batch["input_ids"][2], batch["labels"][2]
    states, _ = model.encoder.network(model.embedding(row)[None])
    states = states[0]

    def attended(state):
        query = model.attention.query_projection(state)
        scores = torch.stack([query @ model.attention.key_projection(one) / 8**0.5 for one in states])
        return sum(weight * one for weight, one in zip(scores.softmax(0), states, strict=True))

    hidden = torch.tanh(model.bridge(states[0, 4:]))
    cell, attentional, word = torch.zeros_like(hidden), torch.zeros_like(hidden), model.config.bos_token_id
    logits = []
    for label in right:
        read = [model.target_embedding.weight[word]]
        if fields.get("attends_first"):
            context = attended(hidden)
            read.append(context)
        elif fields.get("input_feeding", True):
            read.append(attentional)
        hidden, cell = (part[0] for part in model.decoder(torch.cat(read)[None], (hidden[None], cell[None])))
        context = context if fields.get("attends_first") else attended(hidden)
        attentional = torch.tanh(model.combination(torch.cat((context, hidden))))
        logits.append(model.classifier(attentional))
        word = label
    torch.testing.assert_close(model(**batch).logits[2], torch.stack(logits))


def test_no_word_of_the_transformer_attends_to_a_later_one():
    model, batch = small_model("seq2seq-transformer", num_attention_heads=2)
    memory = model.read_ids(batch["input_ids"], batch["attention_mask"])
    tokens = model.shifted(batch["labels"])
    state, logits = model.begin(memory), model.logits(tokens, memory)
    for place, column in enumerate(tokens.unbind(dim=1)):
        of_step, state = model.step(column, state, memory)
        real = batch["labels"][:, place] >= 0
        torch.testing.assert_close(of_step[real], logits[real, place])


def test_local_attention_of_a_step_is_around_its_own_place():
    model, batch = small_model("seq2seq-lstm")
    alignattn.patch(model, "soft", normalizer="local", normalizer_options={"window": 1})
    with alignattn.collect(model) as seen:
        model(**batch)
    for step, record in enumerate(seen.layers[:4]):
        (places,) = torch.nonzero(record.weights[2, 0, 0], as_tuple=True)
        assert places.tolist() == [place for place in (step - 1, step, step + 1) if 0 <= place < 5]


@pytest.mark.parametrize("fertility", [0.4, 1.1])
def test_a_budget_bounds_each_step_by_what_those_before_it_left(fertility):
    """The weights of each step are the nearest to softmax within the bounds, by definition (Malaviya et al. 2018)."""
    model, batch = small_model("seq2seq-lstm")
    plain = alignattn.patch(model, "soft", normalizer="csoftmax", normalizer_options={"fertility": fertility})
    with alignattn.collect(plain) as seen:
        plain(**batch)
    row, length = 2, 5
    bounds = np.full(length, fertility)
    bounds[-1] = np.inf  # the end
    for record in seen.layers[:5]:
        scores = (record.query[row, 0, 0] @ record.key[row, 0].T / 8**0.5)[:length].detach().numpy()
        upper = np.clip(bounds, 0, 1)

        def distance(weights, scores=scores):
            return np.sum(weights * np.log(np.maximum(weights, 1e-12)) - weights * scores)

        total = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
        start = upper / upper.sum()
        found = minimize(distance, start, bounds=[(0, one) for one in upper], constraints=total, tol=1e-12).x
        weights = record.weights[row, 0, 0, :length].detach().numpy()
        np.testing.assert_allclose(weights, found, atol=2e-4)
        bounds -= weights
    assert (bounds[:-1] > -1e-9).all()


@pytest.mark.parametrize("kind", [None, "predictive"])
def test_the_mean_gradient_of_reinforce_is_that_of_the_expectation(kind):
    """Sum over all draws of two steps from three places, weighted by their probabilities, with any baseline.

    The weights of a predictive window sum to less than 1.
    """
    model, _ = small_model("seq2seq-lstm", hard_attention=True, entropy_weight=0.0)
    if kind is not None:
        alignattn.patch(model, "soft", normalizer="local", normalizer_options={"kind": kind})
    ids, labels = torch.tensor([[5, 6, 3]]), torch.tensor([[4, 3]])
    parameters = list(model.parameters())
    expected = exact = 0.0
    gradients = [torch.zeros_like(part) for part in parameters]
    model.baseline.fill_(-1.7)
    for choice in product(range(3), repeat=2):
        places = torch.tensor([choice])
        state, memory = model.begin(model.read_ids(ids, None))._replace(choices=places), model.read_ids(ids, None)
        probability = 1.0
        for column in model.shifted(labels).unbind(dim=1):
            _, state = model.step(column, state, memory)
            probability = probability * state.log_choice[0].exp()
        loss = model(ids, labels, choices=places).loss
        exact = exact + probability * loss.detach() + probability.detach() * (loss_of(model, ids, labels, places))
        expected += probability.item()
        for total, one in zip(gradients, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            total += 0 if one is None else probability.detach() * one
    assert expected == pytest.approx(1)
    for total, one in zip(gradients, torch.autograd.grad(exact, parameters, allow_unused=True), strict=True):
        torch.testing.assert_close(total, torch.zeros_like(total) if one is None else one)


def loss_of(model, ids, labels, places):
    """Return -log p(y) for given places, without the term of REINFORCE."""
    memory = model.read_ids(ids, None)
    state, logits = model.begin(memory)._replace(choices=places), []
    for column in model.shifted(labels).unbind(dim=1):
        of_step, state = model.step(column, state, memory)
        logits.append(of_step)
    return -log_likelihood(torch.stack(logits, dim=1), labels).mean()


def test_hard_attention_draws_in_training_and_keeps_a_baseline():
    model, batch = small_model("seq2seq-lstm", hard_attention=True)
    torch.testing.assert_close(model(**batch).loss, model(**batch).loss)
    torch.manual_seed(0)
    losses = {model.train()(**batch).loss.item() for _ in range(3)}
    assert len(losses) == 3
    assert model.baseline < 0
    model(**batch).loss.backward()
    assert model.attention.query_projection.weight.grad.abs().max() > 0
    alignattn.patch(model, "soft", value="qvi")
    with pytest.raises(AlignAttnError, match="leave --value out"):
        model(**batch)
    alignattn.patch(alignattn.unpatch(model), "soft", normalizer="local")
    with pytest.raises(AlignAttnError, match="needs a word to attend to at each step"):
        model(**batch)


def test_hard_attention_records_the_places_it_chooses_and_they_spend_a_budget():
    model, batch = small_model("seq2seq-lstm", hard_attention=True)
    alignattn.patch(model, "soft", normalizer="csoftmax", normalizer_options={"fertility": 1.0})
    steps = batch["labels"].shape[1]
    with alignattn.collect(model) as seen, torch.inference_mode():
        model(**batch)
    weights = model.weights_of_words([layer.weights for layer in seen.layers])
    assert weights.shape[1] == steps
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert (weights.sum(dim=-1) == 1).all()
    # Each place has a budget of one, except the end, which has no limit: no place is chosen twice.
    for taken, mask in zip(weights, batch["attention_mask"], strict=True):
        assert taken[:, : int(mask.sum()) - 1].sum(dim=0).max() == 1


@pytest.mark.parametrize(("layers", "shown"), [((0, 1, 2, 3, 4), 3), ((2, 3), 3), (None, 5)])
def test_a_figure_of_written_words_shows_their_attention_to_the_input(layers, shown):
    """Calls: two layers of the encoder, then each decoder layer attends to the words so far and to the input."""
    model, batch = small_model("seq2seq-transformer")
    alignattn.attach(model, alignattn.AttentionConfig(normalizer="sparsemax", layers=layers))
    with alignattn.collect(model) as seen, torch.inference_mode():
        model(**batch)
    numbers = layers or range(6)
    weights = attention_to_source(Path("run"), model, seen.layers)
    assert weights.shape[1:] == (batch["labels"].shape[1], batch["input_ids"].shape[1])
    torch.testing.assert_close(weights, seen.layers[list(numbers).index(shown)].weights.mean(dim=1))


def test_a_figure_of_written_words_needs_a_patched_layer_that_attends_to_the_input():
    model, batch = small_model("seq2seq-transformer")
    alignattn.attach(model, alignattn.AttentionConfig(normalizer="sparsemax", layers=(0, 2)))
    with alignattn.collect(model) as seen, torch.inference_mode():
        model(**batch)
    with pytest.raises(AlignAttnError, match="none of its patched layers, 0, 2, attends to the source"):
        attention_to_source(Path("run"), model, seen.layers)


def test_default_vocabularies_hold_the_special_tokens(name):
    config = MODELS.load(name).config_class()
    assert max(config.bos_token_id, config.eos_token_id) < config.vocab_size


def made_step(table):
    """Return a step with the logits of the next token given the last two, for two rows."""

    def step(tokens, state):
        (before, rows) = state
        return table[rows, before, tokens], (tokens, rows)

    return step


def test_beam_search_finds_the_likeliest_of_all_and_greedy_is_a_beam_of_one():
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(2, 5, 5, 5, generator=generator, dtype=torch.float64)
    table[..., :2] = torch.finfo(table.dtype).min  # padding and the beginning
    limits = Limits(begin=1, end=2, padding=0, longest=3)
    state = (torch.tensor([1, 1]), torch.arange(2))
    start = (made_step(table), state, 2, limits, torch.device("cpu"))
    for one, other in zip(greedy(*start), beam_search(*start, 1), strict=True):
        torch.testing.assert_close(one, other)

    def log_probability(row, words):
        before, last, total = 1, 1, 0.0
        for word in words:
            total += table[row, before, last].log_softmax(0)[word]
            before, last = last, word
            if word == 2:
                break
        return float(total)

    written, probability = beam_search(*start, 27)
    for row in range(2):
        every = {words[: words.index(2) + 1] if 2 in words else words for words in product((2, 3, 4), repeat=3)}
        best = max(every, key=lambda words: log_probability(row, words))
        assert tuple(word for word in written[row].tolist() if word) == best
        assert probability[row].item() == pytest.approx(log_probability(row, best))


def test_a_budget_is_refused_where_all_words_are_attended_at_once():
    model, batch = small_model("seq2seq-transformer")
    with pytest.raises(AlignAttnError, match=r"fertility is a budget .* Seq2SeqTransformer attends in one step"):
        alignattn.patch(model, "soft", normalizer="csoftmax", normalizer_options={"fertility": 1.5})
    assert not alignattn.is_patched(model)
    model(**batch)


def test_balance_does_not_change_generated_sequences():
    model, batch = small_model("seq2seq-transformer")
    before, written = model(**batch).logits, model.generate(**without_labels(batch))
    report = alignattn.balance(model, [batch] * 2)
    # One per layer of the encoder, and two per layer of the decoder.
    assert len(report.layers) == 6
    assert report.means()["after"] < report.means()["before"]
    torch.testing.assert_close(model(**batch).logits, before)
    torch.testing.assert_close(model.generate(**without_labels(batch)), written)

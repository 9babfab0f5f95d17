"""The wrapper that TextAttack queries: no batch, padding or cache changes the scores of any kind of model."""

import math

import pytest
import torch
from conftest import WORDS, tiny_model
from needs import needs_gpu
from robustness_helpers import enlarge_weights, random_texts, watch_inputs
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext, build_word_model
from alignattn.robustness.models import wrap_model
from alignattn.utils.errors import AlignAttnError

MAX_LENGTH = 32
BATCHES = 5


def _model(folder, **fields):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(folder, **fields).eval()
    enlarge_weights(model, 10)
    return model


def _reference(model, tokenizer, texts, max_length=MAX_LENGTH):
    """Return the scores of one batch that is padded to the maximum length."""
    columns = [list(column) for column in zip(*texts, strict=True)] if isinstance(texts[0], tuple) else [texts]
    batch = tokenizer(*columns, padding="max_length", truncation=True, max_length=max_length, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits.softmax(dim=-1)


@pytest.fixture
def wrapped(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    return wrap_model(_model(tiny_checkpoint), tokenizer, max_length=MAX_LENGTH, batch_size=BATCHES, device="cpu")


def test_dynamic_padding_changes_no_score(wrapped):
    texts = random_texts(23)
    expected = _reference(wrapped.model, wrapped.tokenizer, texts)
    assert expected[:, 0].std() > 0.01
    torch.testing.assert_close(wrapped(texts).float(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_half_precision_is_for_a_gpu_and_near_single_precision(tiny_checkpoint, device):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    texts = random_texts(23)
    expected = _reference(_model(tiny_checkpoint), tokenizer, texts)
    wrapper = wrap_model(_model(tiny_checkpoint), tokenizer, max_length=MAX_LENGTH, device=device, half_precision=True)
    assert wrapper.model.dtype == (torch.float16 if device == "cuda" else torch.float32)
    torch.testing.assert_close(wrapper(texts).float(), expected, rtol=0, atol=0.02 if device == "cuda" else 1e-6)


def test_pairs_are_scored_as_pairs_and_truncated_as_in_training(wrapped):
    pairs = list(zip(random_texts(11), random_texts(11, seed=1), strict=True))
    pairs.append((" ".join(WORDS * 3), "the cat sees the dog"))
    torch.testing.assert_close(
        wrapped(pairs).float(), _reference(wrapped.model, wrapped.tokenizer, pairs), rtol=0, atol=1e-6
    )
    # Only the longer text is truncated: words after its limit change nothing, and words of the short text do.
    longer, short = pairs[-1]
    same = wrapped([(longer + " cat cat", short), (longer, short + " runs")])
    torch.testing.assert_close(same[0], wrapped([pairs[-1]])[0])
    assert (same[1] - same[0]).abs().max() > 1e-4


def test_a_text_has_the_same_scores_alone_and_among_others(wrapped):
    texts = random_texts(17)
    together = wrapped(texts)
    wrapped.clear_cache()
    alone = torch.cat([wrapped([text]) for text in texts])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)


def test_rows_are_probabilities_that_textattack_accepts_unchanged(wrapped):
    scores = wrapped(random_texts(9))
    assert scores.dtype == torch.float64
    assert not scores.is_inference()
    assert ((scores.sum(dim=1) - 1).abs() < 1e-12).all()
    assert wrapped([]).shape == (0, 2)


@pytest.mark.parametrize("text", ["", "1234 !!! ...", " ".join(["cat"] * 600)], ids=["empty", "digits", "600 words"])
def test_strange_texts_have_scores(wrapped, text):
    expected = _reference(wrapped.model, wrapped.tokenizer, [text])
    torch.testing.assert_close(wrapped([text]).float(), expected, rtol=0, atol=1e-6)


def test_a_text_is_computed_once_and_batches_are_full(wrapped):
    rows = watch_inputs(wrapped.model, len)
    texts = list(dict.fromkeys(random_texts(13)))
    first = wrapped(texts * 2)
    assert rows == [BATCHES, BATCHES, len(texts) - 2 * BATCHES]
    assert torch.equal(wrapped(texts[::-1]), first[: len(texts)].flip(0))
    assert sum(rows) == len(texts)


def test_texts_with_the_same_input_have_the_same_score_in_every_batch(wrapped):
    rows = watch_inputs(wrapped.model, len)
    scores = wrapped(["a zebra", *random_texts(9), "a quokka"])
    assert torch.equal(scores[0], scores[-1])
    rows.clear()
    assert torch.equal(wrapped(["A  gnu", "the cat"])[0], scores[0])
    assert rows == [1]


def test_the_cache_keeps_the_last_used_and_no_more(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    wrapped = wrap_model(_model(tiny_checkpoint), tokenizer, max_length=MAX_LENGTH, cache_size=2, device="cpu")
    rows = watch_inputs(wrapped.model, len)
    many = wrapped(["a cat", "a dog", "a bird"])  # more than the cache keeps
    torch.testing.assert_close(many.float(), _reference(wrapped.model, tokenizer, ["a cat", "a dog", "a bird"]))
    rows.clear()
    wrapped(["a dog"])  # still cached; now used more recently than "a bird"
    assert sum(rows) == 0
    wrapped(["a man"])
    wrapped(["a dog"])
    assert sum(rows) == 1
    wrapped(["a bird"])
    assert sum(rows) == 2


@pytest.mark.parametrize("attention", ["soft", "aa-ct", "qvi", "aa-gan+entmax15"])
def test_a_reloaded_patched_model_has_the_same_scores(tiny_checkpoint, tmp_path, attention):
    model = alignattn.patch(_model(tiny_checkpoint), attention)
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    expected = _reference(model.eval(), tokenizer, random_texts(8))
    wrapped = wrap_model(loaded.train(), tokenizer, max_length=MAX_LENGTH, batch_size=3, device="cpu")
    torch.testing.assert_close(wrapped(random_texts(8)).float(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if capabilities_of(name).texts_per_row == (2,)])
def test_a_baseline_is_wrapped_too(name):
    context = BuildContext(task=None, rows=None, seed=0)
    built = build_word_model(MODELS.load(name), random_texts(40), context, num_labels=3)
    model, tokenizer = built.model, built.tokenizer
    wrapped = wrap_model(model, tokenizer, max_length=MAX_LENGTH, batch_size=3, device="cpu")
    pairs = [*zip(random_texts(7), random_texts(7, seed=1), strict=True), ("", ""), ("12 !!", "a cat")]
    together = wrapped(pairs)
    wrapped.clear_cache()
    torch.testing.assert_close(torch.cat([wrapped([pair]) for pair in pairs]), together, rtol=0, atol=1e-6)


def test_token_types_that_the_model_does_not_accept_are_dropped(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    assert "token_type_ids" in tokenizer("a cat")
    wrapped = wrap_model(tiny_model("distilbert"), tokenizer, max_length=MAX_LENGTH, device="cpu")
    assert wrapped(["a cat"]).shape == (1, 3)


def test_scores_that_are_not_finite_are_an_error(wrapped):
    torch.nn.init.constant_(wrapped.model.classifier.weight, math.nan)
    with pytest.raises(AlignAttnError, match="not finite"):
        wrapped(["a cat"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4}, "--max_length 4 must be at least"),
        ({"max_length": 65}, "maximum of 64"),
        ({"max_length": 32, "batch_size": 0}, "batch size 0"),
        ({"max_length": 32, "cache_size": -1}, "cache size -1"),
    ],
)
def test_options_out_of_range_are_refused(tiny_checkpoint, options, message):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    with pytest.raises(AlignAttnError, match=message):
        wrap_model(_model(tiny_checkpoint), tokenizer, **options)


def test_a_regression_is_refused(tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    with pytest.raises(AlignAttnError, match="choose a task with classes"):
        wrap_model(_model(tiny_checkpoint, num_labels=1), tokenizer, max_length=MAX_LENGTH)

"""The classifiers of pairs: against their equations, and with transformers."""

import subprocess
import sys

import pytest
import torch
import transformers
from conftest import ROOT
from slots_taken import fill
from transformers import AutoModelForSequenceClassification

from alignattn import AlignAttnError
from alignattn.models import MODEL_TYPE_PREFIX, MODELS, capabilities_of
from alignattn.models.build import BuildContext, build_word_model, saved_class
from alignattn.models.layers import masked_softmax
from alignattn.models.sentence_pairs import split_pair

PAIRS = [
    ("a man sees the red bird", "a bird"),
    ("the dog sleeps", "the small dog does not sleep"),
    ("every woman likes some cat", "a woman likes a cat and a dog"),
    ("a", "a"),
]
TEXTS = [text for pair in PAIRS for text in pair]
SMALL = {"embedding_dim": 6, "hidden_dim": 5}


WORD_MODELS = [
    name for name in MODELS if capabilities_of(name).texts_per_row == (2,) and capabilities_of(name).reads_embeddings
]


@pytest.fixture(params=WORD_MODELS)
def name(request):
    return request.param


def built_of(name, num_labels=3, embeddings=None, config_fields=None):
    context = BuildContext(task=None, rows=None, seed=0, embeddings=embeddings, config_fields=config_fields or {})
    return build_word_model(MODELS.load(name), TEXTS, context, num_labels=num_labels)


def small_model(name, num_labels=3, dtype=torch.float64, filling=None, **fields):
    """Return a small model in evaluation mode, and its tokenizer."""
    built = built_of(name, num_labels=num_labels, config_fields=SMALL | fields)
    return fill(built.model.to(dtype), filling), built.tokenizer


def batch_of(tokenizer, pairs, **options):
    return tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt", **options)


def assert_all_close(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


# Splitting and masking


def test_split_pair_returns_each_sentence_padded_to_its_own_longest():
    ids = torch.tensor([[5, 6, 7, 8, 0], [9, 4, 3, 2, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    types = torch.tensor([[0, 0, 0, 1, 0], [0, 1, 1, 1, 1]])
    a, b = split_pair(ids, mask, types, pad=0)
    assert a.tokens.tolist() == [[5, 6, 7], [9, 0, 0]]
    assert b.tokens.tolist() == [[8, 0, 0, 0], [4, 3, 2, 1]]
    assert torch.equal(a.mask, a.tokens != 0)
    assert torch.equal(b.mask, b.tokens != 0)


def test_split_pair_accepts_padding_on_the_left():
    a, b = split_pair(
        torch.tensor([[7, 7, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[0, 0, 0, 1, 1]]), pad=0
    )
    assert (a.tokens.tolist(), b.tokens.tolist()) == ([[3]], [[4, 5]])


def test_masked_softmax_gives_padding_a_weight_of_zero():
    scores = torch.tensor([[1.0, 2.0, 50.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, False], [False, False, False]])
    weights = masked_softmax(scores, mask)
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(weights[0, :2], torch.softmax(scores[0, :2], 0))
    assert weights.sum(dim=1).tolist() == pytest.approx([1.0, 1.0, 0.0])


# The equations


def softmax(scores):
    exponentials = [torch.exp(score - max(scores)) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def weighted(weights, vectors):
    return sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))


def linear(layer, vector):
    return layer.weight @ vector + layer.bias


def relu_layers(network, vector):
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            vector = linear(layer, vector).clamp(min=0)
    return vector


def words_of(model, tokenizer, text):
    return [model.embedding.weight[index] for index in tokenizer(text)["input_ids"]]


@pytest.mark.parametrize("pair", PAIRS)
def test_decomposable_attention_follows_its_equations(pair):
    model, tokenizer = small_model("da")
    a, b = ([linear(model.projection, word) for word in words_of(model, tokenizer, text)] for text in pair)
    e = [[relu_layers(model.attend, x) @ relu_layers(model.attend, y) for y in b] for x in a]
    beta = [weighted(softmax(row), b) for row in e]
    alpha = [weighted(softmax([row[j] for row in e]), a) for j in range(len(b))]
    v1 = sum(relu_layers(model.compare, torch.cat(both)) for both in zip(a, beta, strict=True))
    v2 = sum(relu_layers(model.compare, torch.cat(both)) for both in zip(b, alpha, strict=True))
    first, last = (layer for layer in model.aggregate if isinstance(layer, torch.nn.Linear))
    expected = linear(last, linear(first, torch.cat([v1, v2])).clamp(min=0))
    assert_all_close([model(**batch_of(tokenizer, [pair, *PAIRS])).logits[0]], [expected])


def lstm_states(lstm, vectors):
    """Return the states of both directions of an LSTM, step by step (gates in PyTorch: input, forget, cell, output)."""

    def run(inputs, suffix):
        weights = [getattr(lstm, f"{kind}_l0{suffix}") for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
        input_weight, input_bias, hidden_weight, hidden_bias = weights
        hidden = cell = torch.zeros(lstm.hidden_size, dtype=torch.float64)
        states = []
        for vector in inputs:
            gates = (input_weight @ vector + input_bias + hidden_weight @ hidden + hidden_bias).chunk(4)
            cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh()
            hidden = gates[3].sigmoid() * cell.tanh()
            states.append(hidden)
        return states

    forward, backward = run(vectors, ""), run(vectors[::-1], "_reverse")[::-1]
    return [torch.cat(both) for both in zip(forward, backward, strict=True)]


@pytest.mark.parametrize("pair", PAIRS)
def test_esim_follows_its_equations(pair):
    model, tokenizer = small_model("esim")
    a, b = (lstm_states(model.encoder, words_of(model, tokenizer, text)) for text in pair)
    e = [[x @ y for y in b] for x in a]
    aligned_a = [weighted(softmax(row), b) for row in e]
    aligned_b = [weighted(softmax([row[j] for row in e]), a) for j in range(len(b))]
    pooled = []
    for states, aligned in ((a, aligned_a), (b, aligned_b)):
        enhanced = [torch.cat([x, y, x - y, x * y]) for x, y in zip(states, aligned, strict=True)]
        composed = lstm_states(model.composition, [relu_layers(model.projection, vector) for vector in enhanced])
        pooled += [sum(composed) / len(composed), torch.stack(composed).max(dim=0).values]
    first, last = (layer for layer in model.classifier if isinstance(layer, torch.nn.Linear))
    expected = linear(last, linear(first, torch.cat(pooled)).clamp(min=0))
    assert_all_close([model(**batch_of(tokenizer, [pair, *PAIRS])).logits[0]], [expected])


@pytest.mark.parametrize("pair", PAIRS)
def test_parallel_co_attention_follows_its_equations(pair):
    model, tokenizer = small_model("co-attention")
    a, b = (lstm_states(model.encoder.network, words_of(model, tokenizer, text)) for text in pair)
    affinity = [[torch.tanh(x @ model.co_attention.affinity.weight.T @ y) for y in b] for x in a]

    def pooled(pooling, other, words, others, affinities):
        from_others = [linear(other.key_projection, word) for word in others]
        keys = [
            torch.tanh(linear(pooling.key_projection, word) + weighted(row, from_others))
            for word, row in zip(words, affinities, strict=True)
        ]
        return weighted(softmax([pooling.pooling_query @ key for key in keys]), words)

    of_a, of_b = model.co_attention.pooling_a, model.co_attention.pooling_b
    x, y = pooled(of_a, of_b, a, b, affinity), pooled(of_b, of_a, b, a, list(zip(*affinity, strict=True)))
    first, last = (layer for layer in model.classifier if isinstance(layer, torch.nn.Linear))
    expected = linear(last, linear(first, torch.cat([x, y, x - y, x * y])).clamp(min=0))
    assert_all_close([model(**batch_of(tokenizer, [pair, *PAIRS])).logits[0]], [expected])


def test_each_sentence_may_change_the_logits(name):
    model, tokenizer = small_model(name)
    rows = [("a man", "a bird"), ("a dog", "a bird"), ("a man", "a cat")]
    logits = model(**batch_of(tokenizer, rows)).logits
    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


# Training


def test_fixed_word_vectors_get_no_gradient(name):
    model, tokenizer = small_model(name, train_embeddings=False)
    model(**batch_of(tokenizer, PAIRS), labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    assert model.embedding.weight.grad is None


def test_published_training_options_are_options_of_transformers(name, tmp_path):
    args = transformers.TrainingArguments(str(tmp_path), **capabilities_of(name).training_defaults, use_cpu=True)
    assert args.learning_rate == capabilities_of(name).training_defaults["learning_rate"]


# Saving and loading


def test_loading_with_its_report_fixes_the_word_vectors_too(tmp_path):
    model, _ = small_model("da", train_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not loaded.embedding.weight.requires_grad
    assert not report["missing_keys"]


def test_the_package_does_not_import_the_models():
    code = "import alignattn, sys; sys.exit('alignattn.models' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_names_and_capabilities_of_models_need_no_torch():
    code = (
        "import sys; from alignattn.models import MODELS, capabilities_of as of; "
        "from alignattn.models.packaged import PACKAGED; "
        "list(PACKAGED), of('albert-base-v2'), of('minilm'), [of(name) for name in MODELS]; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_fresh_process_loads_a_saved_model_and_its_tokenizer(tmp_path):
    model, tokenizer = small_model("esim", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code = (
        "import sys, alignattn, transformers as t; t.AutoTokenizer.from_pretrained(sys.argv[1]); "
        "model = alignattn.from_pretrained(sys.argv[1], t.AutoModelForSequenceClassification); "
        "print(type(model).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == type(model).__name__


@pytest.mark.parametrize("model_name", MODELS)
def test_the_model_type_of_a_saved_folder_identifies_its_class(model_name):
    model_class = MODELS.load(model_name)
    assert model_class.config_class.model_type == MODEL_TYPE_PREFIX + model_name
    assert saved_class({"model_type": MODEL_TYPE_PREFIX + model_name}) is model_class
    assert MODELS[model_name].description
    assert MODELS[model_name].reference.bibtex.startswith("@")
    assert not capabilities_of(model_name).is_pretrained


@pytest.mark.parametrize("model_type", ["bert", "da", MODEL_TYPE_PREFIX + "gru", None])
def test_other_saved_models_are_not_ours(model_type):
    assert saved_class({"model_type": model_type}) is None


# Building


def test_random_word_vectors_are_trained_and_given_ones_as_published(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("man 1 2\nbird 3 4\n")
    for name, trained in (("da", False), ("esim", True)):
        built = built_of(name, embeddings=file)
        model, tokenizer, report = built.model, built.tokenizer, built.embeddings
        assert model.embedding.weight[tokenizer.get_vocab()["bird"]].tolist() == [3, 4]
        assert model.embedding.weight.requires_grad is trained
        assert (report.file, report.words, report.found) == (str(file), len(tokenizer) - 2, 2)
        built = built_of(name)
        model, report = built.model, built.embeddings
        assert model.embedding.weight.requires_grad
        assert (report.file, report.found) == (None, 0)


def test_default_sizes_are_the_published_ones():
    da, esim = built_of("da").model, built_of("esim").model
    assert (da.projection.weight.shape, da.config.dropout) == ((200, 300), 0.2)
    assert (esim.encoder.hidden_size, esim.encoder.input_size, esim.config.dropout) == (300, 300, 0.5)
    bias = esim.encoder.bias_hh_l0_reverse.view(4, -1)
    assert (bias[1] == 1).all()
    assert (bias[[0, 2, 3]] == 0).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hiden_dim": 3}, "no field 'hiden_dim'"),
        ({"hidden_dim": "many"}, "hidden_dim"),
        ({"dropout": 1.5}, "dropout"),
        ({"hidden_dim": -1}, "hidden_dim is -1 and must be a whole number from 1"),
        ({"vocab_size": 3}, "the data determine vocab_size"),
    ],
)
def test_a_wrong_config_field_is_named(name, fields, message):
    with pytest.raises(AlignAttnError, match=message) as caught:
        built_of(name, config_fields=fields)
    assert "\n" not in str(caught.value)


def test_wrong_names_and_sizes_are_refused(tmp_path):
    with pytest.raises(AlignAttnError, match="unknown model 'gru': choose one of da, esim"):
        MODELS.load("gru")
    file = tmp_path / "vectors.txt"
    file.write_text("man 1 2\n")
    with pytest.raises(AlignAttnError, match=r"embedding_dim is 6, but the vectors in .*vectors\.txt have 2"):
        built_of("da", embeddings=file, config_fields=SMALL)


def test_a_batch_without_token_types_is_refused(name):
    model, tokenizer = small_model(name)
    with pytest.raises(AlignAttnError, match="needs token_type_ids"):
        model(tokenizer("a man", return_tensors="pt")["input_ids"])

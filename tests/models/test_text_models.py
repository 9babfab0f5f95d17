"""The classifiers of single texts, against their equations, over the registry."""

import pytest
import torch
from slots_taken import fill, with_fillings

import alignattn
from alignattn import AlignAttnError
from alignattn.finetuning.options import ModelOptions
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext
from alignattn.models.layers import sinusoids
from alignattn.models.text_classifiers import sentence_of_words
from alignattn.tasks import TextClassification
from alignattn.tasks.definitions import get_task

TEXT_MODELS = [
    name
    for name in MODELS
    if capabilities_of(name).texts_per_row == (1,) and TextClassification in capabilities_of(name).tasks
]
POOLING = [name for name in TEXT_MODELS if capabilities_of(name).has_attention and not capabilities_of(name).has_heads]
TEXTS = ["a man sees the red bird . it sings !", "the dog sleeps", "no . no . no", "bird"]
SMALL = {"embedding_dim": 6, "hidden_dim": 8, "dropout": 0.0}
TASK = TextClassification(
    name="own", text_columns=("text",), label_column="label", labels=("a", "b", "c"), metrics=("accuracy",)
)


@pytest.fixture(params=TEXT_MODELS)
def name(request):
    return request.param


def built_of(name, texts=TEXTS, **fields):
    rows = {"text": texts}
    return MODELS.load(name).build(BuildContext(TASK, rows, seed=0, config_fields=SMALL | fields))


def small_model(name, filling=None, **fields):
    """Return a small model in float64 and evaluation mode, and its tokenizer."""
    built = built_of(name, **fields)
    return fill(built.model.double(), filling), built.tokenizer


def batch_of(tokenizer, texts=TEXTS, **options):
    return tokenizer(texts, padding=True, return_tensors="pt", **options)


@pytest.mark.parametrize(("model_name", "filling"), with_fillings(TEXT_MODELS))
def test_a_vocabulary_of_one_word_is_read(model_name, filling):
    built = built_of(model_name, ["a"] * 4)
    model, texts = fill(built.model.double(), filling), ["a", "a a", "b", ""]
    logits = model(**batch_of(built.tokenizer, texts)).logits
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[2])


def test_han_follows_its_equations_sentence_by_sentence():
    model, tokenizer = small_model("han")
    model.config.sentence_ends = [tokenizer.get_vocab()[end] for end in (".", "!")]

    def encoded(network, vectors):
        return network(torch.stack(vectors)[None])[0][0]

    def pooled(pooling, states):
        scores = torch.stack([pooling.pooling_query @ torch.tanh(pooling.key_projection(state)) for state in states])
        return sum(weight * state for weight, state in zip(scores.softmax(0), states, strict=True))

    for text, logits in zip(TEXTS, model(**batch_of(tokenizer)).logits, strict=True):
        sentences, sentence = [], []
        for index in tokenizer(text)["input_ids"]:
            sentence.append(model.embedding.weight[index])
            if index in model.config.sentence_ends:
                sentences, sentence = [*sentences, sentence], []
        sentences += [sentence] if sentence else []
        vectors = [pooled(model.word_pooling, encoded(model.word_encoder.network, words)) for words in sentences]
        expected = model.classifier(pooled(model.sentence_pooling, encoded(model.sentence_encoder.network, vectors)))
        torch.testing.assert_close(logits, expected)


def by_features(pooling, states):
    """Return the pooled states by Shen et al. 2018, feature by feature."""
    scores = []
    for state in states:
        hidden = [pooling.hidden.weight[j] @ state + pooling.hidden.bias[j] for j in range(len(state))]
        hidden = torch.stack([value if value > 0 else value.exp() - 1 for value in hidden])
        scores.append(pooling.pooling_query * (pooling.key_projection.weight @ hidden))
    pooled = []
    for k in range(len(states[0])):
        weights = torch.stack([score[k] for score in scores]).softmax(0)
        pooled.append(sum(weight * state[k] for weight, state in zip(weights, states, strict=True)))
    return torch.stack(pooled)


def test_multi_dimensional_attention_has_a_weight_per_feature():
    model, tokenizer = small_model("lstm-multidim")
    torch.nn.init.normal_(model.pooling.pooling_query)
    alignattn.patch(model, "soft")
    with alignattn.collect(model) as seen:
        logits = model(**batch_of(tokenizer)).logits
    assert seen.layers[0].weights.shape[1:3] == (16, 1)
    for text, of_batch in zip(TEXTS, logits, strict=True):
        states, _ = model.encoder.network(model.embedding.weight[tokenizer(text)["input_ids"]])
        torch.testing.assert_close(of_batch, model.classifier(by_features(model.pooling, states)))


SPELLED = {"byte_dim": 4, "spelling_filters": 5, "longest_spelling": 5}


def test_dynamic_meta_embeddings_weigh_a_words_vector_and_its_spelling():
    texts = ["der Vogel überfliegt", "Vogel Vogel sees"]
    built = built_of("lstm-dme", texts, **SPELLED)
    model, tokenizer = built.model.double(), built.tokenizer
    meta, spelling = model.meta_embedding, model.spelling
    from_vector, from_spelling = meta.key_projection.projections

    def embedded(word):
        # A longer word is truncated, an unknown word has no bytes; filters are padded at the ends of a word.
        index = tokenizer.get_vocab().get(word, tokenizer.unk_token_id)
        spelled = [spelling.bytes.weight[byte] for byte in word.encode()[:5]] if index != tokenizer.unk_token_id else []
        around, filters = [torch.zeros(4), *spelled, torch.zeros(4)], spelling.filters.filters
        states = [
            (sum(filters.weight[:, :, k] @ around[i + k].double() for k in range(3)) + filters.bias).clamp(min=0)
            for i in range(len(spelled))
        ]
        largest = torch.stack(states).max(0).values if states else torch.zeros(5, dtype=torch.float64)
        both = [from_vector(model.embedding.weight[index]), from_spelling(largest)]
        weights = torch.stack([meta.pooling_query @ projected for projected in both]).softmax(0)
        return weights[0] * both[0] + weights[1] * both[1]

    rows = [*texts, "an unknown vogel"]
    for text, logits in zip(rows, model(**batch_of(tokenizer, rows)).logits, strict=True):
        states, _ = model.encoder.network(torch.stack([embedded(word) for word in text.lower().split()]))
        torch.testing.assert_close(logits, model.classifier(states.max(0).values))


def test_sentences_end_at_the_last_of_several_marks_and_after_the_longest():
    ends = torch.tensor([[0, 1, 1, 0, 0, 0, 0, 1, 0]], dtype=torch.bool)
    number, place = sentence_of_words(ends, 4)
    assert number.tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 3]]
    assert place.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 0]]


def test_han_recognises_ends_of_sentences_and_reads_a_text_of_10000_words():
    built = built_of("han", ["one . two !", "three ?"])
    words = built.tokenizer.get_vocab()
    assert set(built.model.config.sentence_ends) == {words["."], words["!"], words["?"]}
    assert built.model(**batch_of(built.tokenizer, ["one " * 10_000, "two ."])).logits.isfinite().all()


def test_a_convolution_is_its_filters_word_by_word():
    model, tokenizer = small_model("cnn")
    filters = model.encoder.filters
    for text, logits in zip(TEXTS, model(**batch_of(tokenizer)).logits, strict=True):
        vectors = [model.embedding.weight[index] for index in tokenizer(text)["input_ids"]]
        around = [torch.zeros_like(vectors[0]), *vectors, torch.zeros_like(vectors[0])]
        states = [
            (sum(filters.weight[:, :, k] @ around[i + k] for k in range(3)) + filters.bias).clamp(min=0)
            for i in range(len(vectors))
        ]
        torch.testing.assert_close(logits, model.classifier(torch.stack(states).max(0).values))


def test_an_lstm_classifies_what_both_directions_end_with():
    model, tokenizer = small_model("lstm")
    for text, logits in zip(TEXTS, model(**batch_of(tokenizer)).logits, strict=True):
        vectors = model.embedding.weight[tokenizer(text)["input_ids"]][None]
        _, (hidden, _) = model.encoder.network(vectors)
        torch.testing.assert_close(logits, model.classifier(torch.cat((hidden[0, 0], hidden[1, 0]))))


def test_a_transformer_is_that_of_pytorch():
    model, tokenizer = small_model("transformer", num_attention_heads=2)
    ids = batch_of(tokenizer, TEXTS[:1])["input_ids"]
    projection = model.encoder.projection
    vectors = model.embedding(ids) * SMALL["embedding_dim"] ** 0.5
    states = vectors @ projection.weight.mT + projection.bias
    states = states + sinusoids(*states.shape[1:]).double()
    for layer in model.encoder.layers:
        attention = layer.attention
        reference = torch.nn.TransformerEncoderLayer(8, 2, 32, 0.0, batch_first=True).double()
        parts = [attention.query_projection, attention.key_projection, attention.value_projection]
        with torch.no_grad():
            reference.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            reference.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        reference.self_attn.out_proj.load_state_dict(attention.output_projection.state_dict())
        reference.linear1.load_state_dict(layer.feed_forward.inner.state_dict())
        reference.linear2.load_state_dict(layer.feed_forward.outer.state_dict())
        reference.norm1.load_state_dict(layer.after_attention.norm.state_dict())
        reference.norm2.load_state_dict(layer.after_feed_forward.norm.state_dict())
        states = reference(states)
    torch.testing.assert_close(model(ids).logits, model.classifier(states.mean(1)))


def test_a_transformer_sees_words_and_not_only_positions():
    model = built_of("transformer", embedding_dim=300, hidden_dim=512).model.eval()
    words = torch.arange(2, model.config.vocab_size)[:, None]
    states = model.encoder.projection(model.embedding(words))
    positions = sinusoids(64, 512)
    of_words, of_positions = (part - part.mean(dim=0) for part in (states[:, 0], positions))
    # With words ten times smaller, 130 steps of training learned only positions: all rows got one class.
    assert of_words.norm(dim=-1).mean() > of_positions.norm(dim=-1).mean() / 2


def test_a_pair_is_refused_by_name(name):
    said = f"--model {name} reads one text, and task 'mrpc' has 2 per row: give da, esim, co-attention, memn2n or an"
    with pytest.raises(AlignAttnError, match=said):
        ModelOptions(model=name).check(get_task("mrpc"))

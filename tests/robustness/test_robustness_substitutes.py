"""The replacements of parts of TextAttack, with those parts as oracles."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from needs import skip_without
from robustness_helpers import NEIGHBORS, NLTK_DATA, watch_inputs

from alignattn.utils.errors import AlignAttnError

skip_without(NEIGHBORS, NLTK_DATA)
pytest_plugins = ["robustness_fixtures"]

GAP = 0.2
"""Between the logits of two tokens of a masked-language model."""


def test_neighbours_of_vectors_are_those_of_a_full_table(resources):
    from textattack.shared import WordEmbedding

    from alignattn.robustness.substitutes import VectorEmbedding

    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    words = [f"w{index}" for index in range(40)]
    embedding = VectorEmbedding(words, vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    for index in range(40):
        expected = [other for other in np.argsort(-cosines[index]) if other != index][:7]
        assert embedding.nearest_neighbours(index, 7) == expected
    stock = WordEmbedding(vectors, {word: index for index, word in enumerate(words)}, words)
    assert embedding.get_cos_sim(3, 8) == pytest.approx(stock.get_cos_sim(3, 8), abs=1e-6)
    with pytest.raises(AttributeError):  # the bug: a tuple of values and indices is used as indices
        stock.nearest_neighbours(3, 7)


def test_wordnet_synonyms_share_a_sense(resources):
    from nltk.corpus import wordnet

    from alignattn.robustness.substitutes import wordnet_synonyms

    synonyms = wordnet_synonyms("movie")
    assert {"film", "picture", "flick"} <= set(synonyms)
    for word in synonyms:
        assert set(wordnet.synsets(word)) & set(wordnet.synsets("movie"))
        assert "_" not in word
    assert wordnet_synonyms("qwxyz") == []


def test_the_homoglyph_swap_works_without_the_file_that_the_wheel_lacks(resources):
    import textattack

    from alignattn.robustness.substitutes import HomoglyphSwap

    assert HomoglyphSwap()._get_replacement_words("ab?") == ["ɑb?", "aЬ?"]
    shared = Path(textattack.__file__).parent / "shared" / "intentional_homoglyphs.txt"
    if not shared.exists():
        with pytest.raises(FileNotFoundError):
            textattack.transformations.WordSwapHomoglyphSwap()


def test_the_tagger_that_is_loaded_once_returns_nltks_tags(resources):
    import nltk
    from textattack.constraints.grammaticality import PartOfSpeech

    from alignattn.robustness.substitutes import LoadedPartOfSpeech

    words = ["The", "gorgeous", "film", "never", "ends", "well"]
    expected = dict(nltk.pos_tag(words, tagset="universal"))
    constraint = LoadedPartOfSpeech(allow_verb_noun_swap=True)
    for index, word in enumerate(words):
        assert constraint._get_pos(words[:index], word, words[index + 1 :]) == expected[word]
    assert PartOfSpeech()._get_pos(words[:1], words[1], words[2:]) == expected["gorgeous"]


def test_masked_words_equal_those_of_textattack_padded_to_512(mlm, resources):
    from textattack.shared import AttackedText
    from textattack.transformations import WordSwapMaskedLM

    from alignattn.robustness.substitutes import PaddedToLongest

    model = transformers.AutoModelForMaskedLM.from_pretrained(mlm).double()
    # The gaps between logits exceed rounding errors, and some 40 tokens are above the minimum confidence.
    order = torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(1))
    model.cls.predictions.bias.data.copy_(-GAP * order)
    parts = {
        "masked_language_model": model,
        "tokenizer": transformers.AutoTokenizer.from_pretrained(mlm),
    }
    for options in ({"max_candidates": 50, "min_confidence": 0.0}, {"max_candidates": 50, "min_confidence": 4e-5}):
        text = AttackedText("A gorgeous , witty movie !")
        stock = WordSwapMaskedLM(method="bae", **parts, **options)._bae_replacement_words(text, [0, 1, 3])
        ours = PaddedToLongest(method="bae", **parts, **options)._bae_replacement_words(text, [0, 1, 3])
        assert ours == stock
    long_text = AttackedText("good " * 600)
    words = PaddedToLongest(method="bae", **parts, **options)._bae_replacement_words(long_text, [0, 599])
    assert words[0]
    assert words[1] == []
    assert PaddedToLongest(method="bae", **parts, **options)._bae_replacement_words(AttackedText(""), []) == []


def test_a_tokenizer_without_a_mask_or_with_unknown_subword_marks_is_refused(mlm, resources):
    from alignattn.models.words import build_tokenizer
    from alignattn.robustness.substitutes import _token_rule

    with pytest.raises(AlignAttnError, match="no mask token"):
        _token_rule(build_tokenizer(["a movie"]))
    tokenizer = build_tokenizer(["a movie"])
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    with pytest.raises(AlignAttnError, match="BERT-like or RoBERTa-like"):
        _token_rule(tokenizer)


def test_sentence_vectors_are_means_over_real_tokens_computed_once_per_input(minilm, resources):
    from alignattn.robustness.models import MeanPooling

    model = transformers.AutoModel.from_pretrained(minilm).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    texts = ["a movie", "", "a much longer sentence about a movie that nobody saw", "a movie", "A  movie"]
    with torch.no_grad():
        expected = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    encoder, rows = MeanPooling(model, tokenizer), watch_inputs(model, len)
    vectors = encoder.encode(texts)
    torch.testing.assert_close(vectors, torch.stack(expected), atol=1e-5, rtol=0)
    assert torch.equal(encoder.encode(texts[::-1]), vectors.flip(0))
    assert torch.equal(vectors[0], vectors[-1])
    assert sum(rows) == 3


def test_an_encoder_encodes_each_text_once():
    from alignattn.robustness.models import CachedEncoder

    asked: list[str] = []
    encoder = CachedEncoder(lambda texts: asked.extend(texts) or [[float(len(text))] for text in texts])
    assert encoder.encode(["abc", "a", "abc"]).tolist() == [[3], [1], [3]]
    assert encoder.encode(["a", "ab"]).tolist() == [[1], [2]]
    assert asked == ["abc", "a", "ab"]


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0.84, "metric": "angular", "window_size": 4, "skip_text_shorter_than_window": True},
        {"threshold": 0.9, "metric": "cosine", "window_size": 9, "skip_text_shorter_than_window": True},
        {"threshold": 0.8},
    ],
)
def test_the_similarity_keeps_what_textattacks_own_keeps(options, resources):
    from textattack.constraints.semantics.sentence_encoders import SentenceEncoder
    from textattack.shared import AttackedText

    from alignattn.robustness.models import load_sentence_encoder
    from alignattn.robustness.substitutes import SentenceSimilarity

    encoder = load_sentence_encoder(Path(resources.sentence_encoder), "cpu", torch.float32)

    class Stock(SentenceEncoder):
        def encode(self, sentences):
            return torch.cat([encoder.encode([sentence]) for sentence in sentences])

    text = AttackedText("a gorgeous and witty movie that ends well")
    candidates = [text.replace_word_at_index(i, new) for i, new in ((1, "pretty"), (4, "disaster"), (7, "badly"))]
    stock = Stock(**{"metric": "angular", **options})
    ours = SentenceSimilarity(encoder, **options)
    kept = ours._check_constraint_many(candidates, text)
    scores = [candidate.attack_attrs["similarity_score"] for candidate in candidates]
    assert list(kept) == list(stock._check_constraint_many(candidates, text))
    assert scores == pytest.approx([candidate.attack_attrs["similarity_score"] for candidate in candidates], abs=1e-5)

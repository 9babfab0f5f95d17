"""The Universal Sentence Encoder in an attack, replaced by a tiny model.

In `make test` a stub of tensorflow_hub loads the model; in `make use` the package itself does, from its cache.
"""

import hashlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from needs import skip_without
from robustness_helpers import NLTK_DATA

from alignattn.robustness.library import load_textattack
from alignattn.robustness.recipes import build_attack
from alignattn.robustness.resources import Resources

skip_without(NLTK_DATA)

URL = "https://tfhub.dev/google/universal-sentence-encoder/3"
DIMENSION = 512
BUCKETS = 100

Encoder = Callable[[list[str]], torch.Tensor]
"""The mean of fixed random vectors of a text's words, for several texts."""


@pytest.fixture(params=["stand-in", pytest.param("tensorflow", marks=pytest.mark.use)])
def encoder(request, tmp_path, monkeypatch):
    """What tensorflow_hub loads from the encoder's address."""
    if request.param == "tensorflow":
        return saved_by_tensorflow(tmp_path, monkeypatch)
    vectors = torch.randn(BUCKETS, DIMENSION)

    def encode(texts):
        return torch.stack(
            [vectors[[crc32(word.encode()) % BUCKETS for word in text.split()]].mean(0) for text in texts]
        )

    # PyTorch tensors have a method `numpy`, as TensorFlow's do.
    monkeypatch.setitem(sys.modules, "tensorflow_hub", SimpleNamespace(load={URL: encode}.__getitem__))
    return encode


def saved_by_tensorflow(cache, monkeypatch):
    import tensorflow as tf

    class HashedWords(tf.Module):
        def __init__(self):
            self.vectors = tf.Variable(tf.random.stateless_normal([BUCKETS, DIMENSION], seed=[0, 0]))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            words = tf.strings.to_hash_bucket_fast(tf.strings.split(texts), BUCKETS)
            return tf.reduce_mean(tf.gather(self.vectors, words), axis=1)

    model = HashedWords()
    tf.saved_model.save(model, str(cache / hashlib.sha1(URL.encode()).hexdigest()))
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(cache))
    return lambda texts: torch.from_numpy(model(texts).numpy())


class NeverMoved:
    model = None

    def __call__(self, texts):
        return torch.tensor([[0.2, 0.8]]).double().repeat(len(texts), 1)


def test_the_encoder_of_tensorflow_hub_judges_the_sentences_of_an_attack(encoder, tmp_path):
    neighbors = tmp_path / "neighbors.parquet"
    pq.write_table(pa.table({"word": ["movie", "great"], "neighbors": [["film"], ["grand"]]}), neighbors)
    load_textattack()
    attack = build_attack(
        "textbugger", NeverMoved(), Resources(neighbors=neighbors, sentence_encoder="use", nltk_data=NLTK_DATA)
    )
    (similarity,) = attack.constraints
    texts = ["a great movie", "a great film", "a great movie"]
    assert torch.equal(similarity.encode(texts), encoder(texts))
    assert similarity.encode(texts).shape == (3, DIMENSION)
    result = attack.attack("a great movie ever", 1)
    assert type(result).__name__ == "FailedAttackResult"
    assert result.num_queries > 4  # the text, the text without each word, and what the encoder accepted

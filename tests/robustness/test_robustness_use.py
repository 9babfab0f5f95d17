"""The Universal Sentence Encoder's way into an attack, with a tiny model in its place in tensorflow_hub's cache."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from robustness_helpers import NLTK_DATA, skip_module_without

from alignattn.robustness.library import load_textattack
from alignattn.robustness.recipes import build_attack
from alignattn.robustness.resources import Resources

skip_module_without(NLTK_DATA)
pytest.importorskip("tensorflow_hub", reason="needs the extra 'use'", exc_type=ImportError)
tf = pytest.importorskip("tensorflow", reason="needs the extra 'use'")

URL = "https://tfhub.dev/google/universal-sentence-encoder/3"
DIMENSION = 512
BUCKETS = 100


class HashedWords(tf.Module):
    """The mean of fixed random vectors of a text's words."""

    def __init__(self) -> None:
        self.vectors = tf.Variable(tf.random.stateless_normal([BUCKETS, DIMENSION], seed=[0, 0]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts: Any) -> Any:
        words = tf.strings.to_hash_bucket_fast(tf.strings.split(texts), BUCKETS)
        return tf.reduce_mean(tf.gather(self.vectors, words), axis=1)


class NeverMoved:
    model = None

    def __call__(self, texts: list[Any]) -> torch.Tensor:
        return torch.tensor([[0.2, 0.8]]).double().repeat(len(texts), 1)


def test_what_tensorflow_hub_holds_judges_the_sentences_of_an_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HashedWords()
    tf.saved_model.save(model, str(tmp_path / hashlib.sha1(URL.encode()).hexdigest()))
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path))
    neighbors = tmp_path / "neighbors.parquet"
    pq.write_table(pa.table({"word": ["movie", "great"], "neighbors": [["film"], ["grand"]]}), neighbors)
    load_textattack(NLTK_DATA)
    attack = build_attack(
        "textbugger", NeverMoved(), Resources(neighbors=neighbors, sentence_encoder="use", nltk_data=NLTK_DATA)
    )
    (similarity,) = attack.constraints
    texts = ["a great movie", "a great film", "a great movie"]
    assert torch.equal(similarity.encode(texts), torch.from_numpy(model(texts).numpy()))
    assert similarity.encode(texts).shape == (3, DIMENSION)
    result = attack.attack("a great movie ever", 1)
    assert type(result).__name__ == "FailedAttackResult"
    assert result.num_queries > 4  # the text, each of its words left out, and what the encoder let pass

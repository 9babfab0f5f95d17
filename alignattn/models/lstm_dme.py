"""A classifier of texts over dynamic meta-embeddings: several vectors of each word, weighed (Kiela et al. 2018)."""

from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.attention.pooling import QueryPooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuiltModel, Material
from alignattn.models.encoders import Convolution, Recurrent
from alignattn.models.pooling import maximum
from alignattn.models.text_classifier import TextClassifier, TextClassifierConfig
from alignattn.models.word_model import Sentences

BYTES = 256
NO_BYTE = 0
"""What stands behind a word that is shorter than others: no text has it."""


@strict
class LstmDmeConfig(TextClassifierConfig):
    """The sizes of a text, and those of a word's spelling, which are ours; both are projected to `embedding_dim`.

    Args:
        byte_dim: size of a byte's vector.
        spelling_filters: filters over a word's bytes.
        filter_width: bytes that a filter sees, an odd number.
        longest_spelling: bytes of a word that are read.
    """

    model_type = MODEL_TYPE_PREFIX + "lstm-dme"

    byte_dim: int = 16
    spelling_filters: int = 100
    filter_width: int = 3
    longest_spelling: int = 24


class Spelling(nn.Module):
    """Vectors of words by their UTF-8 bytes: filters, and the maximum of each (Kim 2014, of bytes for words).

    Args:
        config: the sizes.
    """

    spellings: Tensor

    def __init__(self, config: LstmDmeConfig) -> None:
        super().__init__()
        spellings = torch.full((config.vocab_size, config.longest_spelling), NO_BYTE, dtype=torch.uint8)
        self.register_buffer("spellings", spellings)
        self.bytes = nn.Embedding(BYTES, config.byte_dim, padding_idx=NO_BYTE)
        self.filters = Convolution(config.byte_dim, config.spelling_filters, config.filter_width)

    def learn(self, words: Mapping[str, int]) -> None:
        """Note how words are spelled, given their ids; those that are not among them have no bytes."""
        longest = self.spellings.shape[1]
        spelled = bytearray().join(word.encode()[:longest].ljust(longest, bytes([NO_BYTE])) for word in words)
        self.spellings[list(words.values())] = torch.frombuffer(spelled, dtype=torch.uint8).view(-1, longest)

    def forward(self, ids: Tensor) -> Tensor:
        """Return `[N, spelling_filters]` of the ids of words, `[N]`; 0 of one that has no bytes."""
        # Each word is read once, however often it stands in the batch.
        words, place = ids.unique(return_inverse=True)
        spelled = self.spellings[words].long()
        vectors: Tensor = maximum(self.filters(Sentences(self.bytes(spelled), spelled != NO_BYTE)))[place]
        return vectors


class Projections(nn.Module):
    """Each of several embeddings of a word projected to one size, w'_i = P_i w_i + b_i.

    Args:
        sizes: of the embeddings.
        size: of all that comes out.
    """

    def __init__(self, *sizes: int, size: int) -> None:
        super().__init__()
        self.out_features = size
        self.projections = nn.ModuleList(nn.Linear(each, size) for each in sizes)

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return `[N, embeddings, size]` of an embedding `[N, d_i]` each."""
        pairs = zip(self.projections, embeddings, strict=True)
        return torch.stack([project(embedding) for project, embedding in pairs], dim=1)


class MetaEmbedding(QueryPooling):
    """A word's vector of several: w = Σ_i α_i w'_i, α = softmax_i(a · w'_i), not contextualised (Kiela et al. 2018).

    Their bias of the scores, which moves all of a word alike, is left out.

    Args:
        sizes: of the embeddings.
        size: of the vector.
    """

    def __init__(self, *sizes: int, size: int) -> None:
        super().__init__(size**-0.5 * torch.randn(size), Projections(*sizes, size=size))

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return `[N, size]` of an embedding `[N, d_i]` each."""
        projected = self.key_projection(*embeddings)
        return self.pool(projected, projected)


class LstmDmeForSequenceClassification(TextClassifier):
    """A word's vector and its spelling weighed by a learned query, and the maximum over the states of an LSTM.

    Kiela et al. 2018 weigh vectors of several files; here one is of a file, or random, and the other of the spelling.
    """

    config_class = LstmDmeConfig
    config: LstmDmeConfig

    def __init__(self, config: LstmDmeConfig) -> None:
        super().__init__(config, 2 * config.hidden_dim)
        self.spelling = Spelling(config)
        size = config.embedding_dim
        self.meta_embedding = MetaEmbedding(size, config.spelling_filters, size=size)
        self.encoder = Recurrent(size, config.hidden_dim)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, material: Material) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, that knows how its words are spelled."""
        built = super().build(material)
        special = set(built.processor.all_special_tokens)
        words = {word: index for word, index in built.processor.get_vocab().items() if word not in special}
        model: Any = built.model
        model.spelling.learn(words)
        return built

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        words = self.meta_embedding(self.embedded(input_ids)[mask], self.dropout(self.spelling(input_ids[mask])))
        texts = words.new_zeros(*mask.shape, words.shape[-1]).index_put((mask,), words)
        return maximum(self.encoder(Sentences(texts, mask)))

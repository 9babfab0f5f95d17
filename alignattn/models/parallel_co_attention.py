"""Parallel co-attention between two texts, each of which tells which words of the other count (Lu et al. 2016)."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.attention.pooling import AttentionPooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import Recurrent
from alignattn.models.sentence_pair import SentencePairClassifier, side_by_side
from alignattn.models.word_model import Sentences, WordModelConfig


@strict
class CoAttentionConfig(WordModelConfig):
    """`hidden_dim` units a direction; the sizes are ours, for Lu et al. 2016 pair a question with an image."""

    model_type = MODEL_TYPE_PREFIX + "co-attention"

    hidden_dim: int = 256
    dropout: float = 0.2


class ParallelCoAttention(nn.Module):
    """Pools two texts at once, each by weights that hang on the other (Lu et al. 2016, eqs. 3 to 5).

        C = tanh(A W_c Bᵀ)
        H_a = tanh(W_a A + C (W_b B)),    a = softmax(w_a · H_a)
        â = Σ a_i A_i, and the same of b with Cᵀ.

    Each side's is a pooling with keys H, which takes slots. W_a and W_b have biases, as all keys of `AttentionPooling`.

    Args:
        dim: size of a word's vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.affinity = nn.Linear(dim, dim, bias=False)
        self.pooling_a = AttentionPooling(dim)
        self.pooling_b = AttentionPooling(dim)

    def forward(self, a: Sentences, b: Sentences) -> tuple[Tensor, Tensor]:
        """Return a vector a text, `[B, d]` each, of texts `[B, n_a, d]` and `[B, n_b, d]` that have a word each."""
        affinity = torch.tanh(self.affinity(a.tokens) @ b.tokens.mT) * (a.mask[:, :, None] & b.mask[:, None])
        from_a, from_b = self.pooling_a.key_projection(a.tokens), self.pooling_b.key_projection(b.tokens)
        pooled_a = self.pooling_a.pool(torch.tanh(from_a + affinity @ from_b), *a)
        return pooled_a, self.pooling_b.pool(torch.tanh(from_b + affinity.mT @ from_a), *b)


class CoAttentionForSequenceClassification(SentencePairClassifier):
    """Both directions of an LSTM over each text, co-attention, and the classes of the two vectors side by side.

    Of the paper's model this is the level of its LSTM, without the levels of words and phrases. Its sum of both
    vectors, which tells no text from the other, is `side_by_side` here.
    """

    config_class = CoAttentionConfig
    config: CoAttentionConfig

    def __init__(self, config: CoAttentionConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        size = 2 * config.hidden_dim
        self.encoder = Recurrent(config.embedding_dim, config.hidden_dim)
        self.co_attention = ParallelCoAttention(size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Sequential(
            nn.Linear(4 * size, size), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(size, config.num_labels)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Logits `[B, num_labels]`; an empty text is read as one word of padding, whose vector is 0."""
        for side in (a, b):
            side.mask[:, 0] = True
        read = [self.encoder(Sentences(self.dropout(vectors), mask)) for vectors, mask in (a, b)]
        return self.classifier(self.dropout(side_by_side(*self.co_attention(*read))))

"""Decomposable Attention (Parikh et al. 2016): aligned words compared one by one, without word order."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.models.sentence_pair import SentencePairClassifier, attend_both_ways
from alignattn.models.word_model import Sentences, WordModelConfig


@strict
class DecomposableAttentionConfig(WordModelConfig):
    """Sizes of AllenNLP's `decomposable_attention.jsonnet`: fixed 300-d GloVe vectors projected to 200."""

    model_type = "alignattn-da"

    hidden_dim: int = 200
    dropout: float = 0.2
    train_embeddings: bool = False


class DecomposableAttentionForSequenceClassification(SentencePairClassifier):
    """Attend, compare, aggregate (Parikh et al. 2016, §3).

    Of the paper's model this leaves out the NULL token, for the encoding has no special tokens, and the scaling of
    the word vectors to length 1, as AllenNLP does.
    """

    config_class = DecomposableAttentionConfig

    def __init__(self, config: DecomposableAttentionConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        hidden = config.hidden_dim
        self.projection = nn.Linear(config.embedding_dim, hidden)
        self.attend = _feed_forward(hidden, hidden, config.dropout)
        self.compare = _feed_forward(2 * hidden, hidden, config.dropout)
        self.aggregate = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(hidden, config.num_labels)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Logits `[B, num_labels]`, eqs. 1 to 5."""
        a, b = (Sentences(self.projection(vectors), mask) for vectors, mask in (a, b))
        scores = self.attend(a.tokens) @ self.attend(b.tokens).mT  # eq. 1
        beta, alpha = attend_both_ways(scores, a, b)  # eq. 2
        return self.aggregate(torch.cat([self._compared(a, beta), self._compared(b, alpha)], dim=-1))  # eq. 5

    def _compared(self, sentences: Sentences, aligned: Tensor) -> Tensor:
        """Σ_i G([x_i, aligned_i]) over the real tokens, eqs. 3 and 4: `[B, hidden_dim]`."""
        compared = self.compare(torch.cat([sentences.tokens, aligned], dim=-1))
        return (compared * sentences.mask[..., None]).sum(dim=1)


def _feed_forward(size: int, hidden: int, dropout: float) -> nn.Sequential:
    """The networks F and G: two ReLU layers."""
    return nn.Sequential(
        nn.Linear(size, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
    )

"""ESIM, the enhanced sequential inference model (Chen et al. 2017): alignment between two BiLSTM encodings."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.models.encoders import run_recurrent
from alignattn.models.pooling import average, maximum
from alignattn.models.sentence_pair import SentencePairClassifier, attend_both_ways, side_by_side
from alignattn.models.word_model import Sentences, WordModelConfig


@strict
class EsimConfig(WordModelConfig):
    """Sizes of AllenNLP's `esim.jsonnet`, which are the paper's: trained 300-d GloVe vectors, 300 hidden units."""

    model_type = "alignattn-esim"

    hidden_dim: int = 300
    dropout: float = 0.5
    train_embeddings: bool = True


class EsimForSequenceClassification(SentencePairClassifier):
    """The sequential model of Chen et al. 2017, §3, without the tree LSTM.

    As in AllenNLP the last hidden layer is a ReLU, where the paper has a tanh. The dropout before the LSTMs is plain,
    where AllenNLP's drops the same units at every position.
    """

    config_class = EsimConfig

    def __init__(self, config: EsimConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        hidden = config.hidden_dim
        self.encoder = nn.LSTM(config.embedding_dim, hidden, batch_first=True, bidirectional=True)
        self.projection = nn.Sequential(nn.Linear(8 * hidden, hidden), nn.ReLU())
        self.composition = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Sequential(
            nn.Linear(8 * hidden, hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(hidden, config.num_labels)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Logits `[B, num_labels]`, eqs. 1, 2 and 11 to 20."""
        a, b = self._run(self.encoder, a), self._run(self.encoder, b)  # eqs. 1, 2
        scores = a.tokens @ b.tokens.mT  # eq. 11
        aligned_a, aligned_b = attend_both_ways(scores, a, b)  # eqs. 12, 13
        pooled = [*self._compose(a, aligned_a), *self._compose(b, aligned_b)]
        return self.classifier(self.dropout(torch.cat(pooled, dim=-1)))  # eq. 20

    def _run(self, lstm: nn.LSTM, sentences: Sentences) -> Sentences:
        """The hidden states of both directions, `[B, n, 2 · hidden_dim]`."""
        return run_recurrent(lstm, Sentences(self.dropout(sentences.tokens), sentences.mask))

    def _compose(self, sentences: Sentences, aligned: Tensor) -> tuple[Tensor, Tensor]:
        """Enhance, compose and pool, eqs. 14 to 19: two tensors `[B, 2 · hidden_dim]`."""
        states, mask = sentences
        composed = self._run(self.composition, Sentences(self.projection(side_by_side(states, aligned)), mask))
        return average(composed), maximum(composed)

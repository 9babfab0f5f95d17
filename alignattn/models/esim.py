"""ESIM, the enhanced sequential inference model (Chen et al. 2017): alignment between two BiLSTM encodings."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init

from alignattn.models.sentence_pair import (
    SentencePairClassifier,
    SentencePairConfig,
    Sentences,
    attend_both_ways,
)


@strict
class EsimConfig(SentencePairConfig):
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
        vectors, mask = sentences
        # Packing refuses an empty sentence: it gets one token of padding, which the mask still hides.
        lengths = mask.sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(self.dropout(vectors), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=vectors.shape[1])
        return Sentences(states, mask)

    def _compose(self, sentences: Sentences, aligned: Tensor) -> tuple[Tensor, Tensor]:
        """Enhance, compose and pool, eqs. 14 to 19: two tensors `[B, 2 · hidden_dim]`."""
        states, mask = sentences
        enhanced = torch.cat([states, aligned, states - aligned, states * aligned], dim=-1)
        return average_and_max(self._run(self.composition, Sentences(self.projection(enhanced), mask)))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As AllenNLP's config: Glorot-uniform input, orthogonal recurrent weights, a forget gate open at first."""
        if not isinstance(module, nn.LSTM):
            super()._init_weights(module)
            return
        for name, parameter in module.named_parameters():
            if name.startswith("weight_ih"):
                init.xavier_uniform_(parameter)
            elif name.startswith("weight_hh"):
                init.orthogonal_(parameter)
            else:
                bias = torch.zeros_like(parameter)
                if name.startswith("bias_hh"):
                    bias.view(4, -1)[1] = 1.0  # PyTorch's gates: input, forget, cell, output
                init.copy_(parameter, bias)


def average_and_max(sentences: Sentences) -> tuple[Tensor, Tensor]:
    """Mean and maximum over the real tokens (Chen et al. 2017, eqs. 18 and 19).

    Returns:
        Two tensors `[B, d]`; both 0 for an empty sentence.
    """
    states, mask = sentences
    real = mask[..., None]
    lengths = real.sum(dim=1)
    average = (states * real).sum(dim=1) / lengths.clamp(min=1)
    maximum = states.masked_fill(~real, torch.finfo(states.dtype).min).amax(dim=1)
    return average, maximum.masked_fill(lengths == 0, 0.0)

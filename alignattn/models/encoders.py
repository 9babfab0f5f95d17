"""Words in their context: what the text models encode by."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from alignattn.models.transformer_units import SelfAttentionUnit
from alignattn.models.word_model import Sentences

LONGEST_WAVE = 10_000
"""Of the sinusoids, over 2 π (Vaswani et al. 2017, §3.5)."""


def run_recurrent(network: nn.RNNBase, sentences: Sentences) -> Sentences:
    """Return the hidden states of both directions, `[B, n, 2 · hidden_size]`, of right-padded `[B, n, d]`."""
    vectors, mask = sentences
    # Packing refuses an empty sentence: it gets one word of padding, which the mask still hides.
    lengths = mask.sum(dim=1).clamp(min=1).cpu()
    packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(network(packed)[0], batch_first=True, total_length=vectors.shape[1])
    return Sentences(states, mask)


class Convolution(nn.Module):
    """ReLU of filters over each word and its neighbours (Kim 2014, §2).

    Args:
        in_features: of a word.
        filters: number of them.
        width: words that a filter sees, an odd number.
    """

    def __init__(self, in_features: int, filters: int, width: int) -> None:
        super().__init__()
        self.filters = nn.Conv1d(in_features, filters, width, padding="same")

    def forward(self, sentences: Sentences) -> Sentences:
        """Return `[B, n, filters]` of `[B, n, in_features]`."""
        vectors, mask = sentences
        # What padding holds would be seen by the filters of the words beside it.
        states = self.filters((vectors * mask[..., None]).mT).mT
        return Sentences(F.relu(states), mask)


class Recurrent(nn.Module):
    """Both directions of a recurrent network.

    Args:
        in_features: of a word.
        hidden: units of a direction.
        kind: of the network.
    """

    def __init__(self, in_features: int, hidden: int, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.network = kind(in_features, hidden, batch_first=True, bidirectional=True)

    def forward(self, sentences: Sentences) -> Sentences:
        """Return `[B, n, 2 · hidden]` of `[B, n, in_features]`."""
        return run_recurrent(self.network, sentences)


class WordProjection(nn.Linear):
    """Words and their sinusoidal positions as a Transformer's first states (Vaswani et al. 2017, §3.4 and §3.5).

    Args:
        in_features: d of a word.
        out_features: size of a state.
    """

    def forward(self, vectors: Tensor) -> Tensor:
        """Return `[B, n, out_features]` of vectors `[B, n, in_features]`, which are taken √d times."""
        # Beside positions, whose numbers are up to 1, vectors of length 1 would hardly be seen.
        states = super().forward(vectors * self.in_features**0.5)
        return states + sinusoids(states.shape[1], states.shape[2]).to(states)


class TransformerEncoder(nn.Module):
    """Layers of a Transformer over words and their sinusoidal positions (Vaswani et al. 2017, §3).

    Args:
        in_features: of a word.
        size: of a word's vector in the layers.
        num_heads: heads H of each.
        num_layers: how many.
        dropout: of the layers and of their input.
    """

    def __init__(self, in_features: int, size: int, num_heads: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.projection = WordProjection(in_features, size)
        self.layers = nn.ModuleList(SelfAttentionUnit(size, num_heads, dropout) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, sentences: Sentences) -> Sentences:
        """Return `[B, n, size]` of `[B, n, in_features]`; each row needs a real word."""
        vectors, mask = sentences
        states = self.dropout(self.projection(vectors))
        for layer in self.layers:
            states = layer(states, mask)
        return Sentences(states, mask)


def sinusoids(length: int, size: int) -> Tensor:
    """Return sines and cosines of positions from 0, `[length, size]` in float32 (Vaswani et al. 2017, §3.5)."""
    positions = torch.arange(length, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * (-math.log(LONGEST_WAVE) / size))
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size]

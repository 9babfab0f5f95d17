"""Words in their context: what the text models encode by."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from alignattn.attention.attend import attend
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


class SelfAttention(nn.Module):
    """Multi-head self-attention, an `AttentionLayer` (Vaswani et al. 2017, §3.2.2).

    Args:
        size: of a word's vector and of the result.
        num_heads: heads H.
        dropout: probability with which a weight is dropped.
    """

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query_projection, self.key_projection = nn.Linear(size, size), nn.Linear(size, size)
        self.value_projection, self.output_projection = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, n, size]` of `[B, n, size]` and `[B, n]` bool, True = a real word; each row needs one."""
        projections = (self.query_projection, self.key_projection, self.value_projection)
        query, key, value = (
            project(states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for project in projections
        )
        attended = attend(self, query, key, value, mask, dropout=self.dropout)
        projected: Tensor = self.output_projection(attended.transpose(1, 2).flatten(2))
        return projected


class TransformerLayer(nn.Module):
    """Self-attention and a network a word, each with a residual and a norm after it (Vaswani et al. 2017, §3.1).

    Args:
        size: of a word's vector.
        num_heads: heads H.
        inner_size: of the network's hidden layer.
        dropout: of its results and of attention weights.
    """

    def __init__(self, size: int, num_heads: int, inner_size: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(size, num_heads, dropout)
        self.network = nn.Sequential(nn.Linear(size, inner_size), nn.ReLU(), nn.Linear(inner_size, size))
        self.attention_norm, self.network_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return and take what `SelfAttention.forward` does."""
        states = self.attention_norm(states + self.dropout(self.attention(states, mask)))
        normed: Tensor = self.network_norm(states + self.dropout(self.network(states)))
        return normed


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
        self.projection = nn.Linear(in_features, size)
        layers = [TransformerLayer(size, num_heads, INNER_FACTOR * size, dropout) for _ in range(num_layers)]
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sentences: Sentences) -> Sentences:
        """Return `[B, n, size]` of `[B, n, in_features]`; each row needs a real word."""
        vectors, mask = sentences
        states = self.projection(vectors)
        states = self.dropout(states + sinusoids(states.shape[1], states.shape[2]).to(states))
        for layer in self.layers:
            states = layer(states, mask)
        return Sentences(states, mask)


INNER_FACTOR = 4
"""Size of a layer's network over that of a word's vector (Vaswani et al. 2017, §3.3)."""


def sinusoids(length: int, size: int) -> Tensor:
    """Return sines and cosines of positions from 0, `[length, size]` in float32 (Vaswani et al. 2017, §3.5)."""
    positions = torch.arange(length, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * (-math.log(LONGEST_WAVE) / size))
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size]

"""Layers of the models that are trained from scratch."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from alignattn.attention.attend import attend
from alignattn.attention.masks import CrossMask
from alignattn.models.word_model import Sentences

MAX_WAVE = 10_000
"""The longest wavelength over 2 π (Vaswani et al. 2017, §3.5)."""

FEED_FORWARD = 4
"""Size of the inner layer relative to the states (Vaswani et al. 2017, §3.3)."""


def run_recurrent(network: nn.RNNBase, sentences: Sentences) -> Sentences:
    """Return the hidden states of both directions, `[B, n, 2 · hidden_size]`, for right-padded `[B, n, d]`."""
    vectors, mask = sentences
    # Packing refuses an empty sentence, so it gets one word of padding, which the mask still hides.
    lengths = mask.sum(dim=1).clamp(min=1).cpu()
    packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(network(packed)[0], batch_first=True, total_length=vectors.shape[1])
    return Sentences(states, mask)


class Convolution(nn.Module):
    """ReLU of filters over each word and its neighbours (Kim 2014, §2).

    Args:
        in_features: size of a word's vector.
        filters: number of filters.
        width: number of words that a filter covers, odd.
    """

    def __init__(self, in_features: int, filters: int, width: int) -> None:
        super().__init__()
        self.filters = nn.Conv1d(in_features, filters, width, padding="same")

    def forward(self, sentences: Sentences) -> Sentences:
        """Return `[B, n, filters]` of `[B, n, in_features]`."""
        vectors, mask = sentences
        # Zero the padding: filters at neighbouring words see it.
        states = self.filters((vectors * mask[..., None]).mT).mT
        return Sentences(F.relu(states), mask)


class Recurrent(nn.Module):
    """A bidirectional recurrent network.

    Args:
        in_features: size of a word's vector.
        hidden: units per direction.
        network_class: LSTM or GRU.
    """

    def __init__(self, in_features: int, hidden: int, network_class: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.network = network_class(in_features, hidden, batch_first=True, bidirectional=True)

    def forward(self, sentences: Sentences) -> Sentences:
        """Return `[B, n, 2 · hidden]` of `[B, n, in_features]`."""
        return run_recurrent(self.network, sentences)


class MultiHeadAttention(nn.Module):
    """Self-attention or cross-attention with slots (Vaswani et al. 2017, §3.2.2).

    Args:
        size: size of the states.
        num_heads: number of heads H.
        dropout: probability of dropping a weight.

    Raises:
        ValueError: if the size is not divisible by the number of heads.
    """

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if size % num_heads:
            raise ValueError(f"hidden_dim {size} is not divisible by num_heads {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_projection = nn.Linear(size, size)
        self.key_projection = nn.Linear(size, size)
        self.value_projection = nn.Linear(size, size)
        self.output_projection = nn.Linear(size, size)

    def forward(self, states: Tensor, attended: Tensor, mask: Tensor | CrossMask | None) -> Tensor:
        """Return `[B, n, size]` of states `[B, n, size]` that attend to `[B, m, size]`; `mask` as in `attend`."""
        projected = (self.query_projection(states), self.key_projection(attended), self.value_projection(attended))
        heads = [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected]
        gathered = attend(self, heads[0], heads[1], heads[2], mask, dropout=self.dropout)
        return self.output_projection(gathered.transpose(1, 2).flatten(2))


class AddAndNorm(nn.Module):
    """The residual connection around each part of a unit: LayerNorm(x + dropout(part(x)))."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(size)

    def forward(self, states: Tensor, change: Tensor) -> Tensor:
        """Return `[B, n, size]` for states and a part's output, both `[B, n, size]`."""
        return self.norm(states + self.dropout(change))


class FeedForward(nn.Module):
    """Two linear layers at each token, with a ReLU and dropout between them."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(size, FEED_FORWARD * size)
        self.outer = nn.Linear(FEED_FORWARD * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Return `[B, n, size]` of `[B, n, size]`."""
        return self.outer(self.dropout(self.inner(states).relu()))


class SelfAttentionUnit(nn.Module):
    """Self-attention and a feed-forward layer (Vaswani et al. 2017, figure 1, left)."""

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size, num_heads, dropout)
        self.after_attention = AddAndNorm(size, dropout)
        self.feed_forward = FeedForward(size, dropout)
        self.after_feed_forward = AddAndNorm(size, dropout)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return `[B, n, size]`; `mask` as in `attend`."""
        states = self.after_attention(states, self.attention(states, states, mask))
        return self.after_feed_forward(states, self.feed_forward(states))


class GuidedAttentionUnit(nn.Module):
    """SGA of Yu et al. 2019, figure 2: self-attention, and attention to the tokens of another modality."""

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size, num_heads, dropout)
        self.after_attention = AddAndNorm(size, dropout)
        self.guided_attention = MultiHeadAttention(size, num_heads, dropout)
        self.after_guided_attention = AddAndNorm(size, dropout)
        self.feed_forward = FeedForward(size, dropout)
        self.after_feed_forward = AddAndNorm(size, dropout)

    def forward(self, states: Tensor, pairs: Tensor | None, guide: Tensor, across: CrossMask) -> Tensor:
        """Return `[B, n, size]` of states `[B, n, size]` that attend to themselves and to a guide `[B, m, size]`.

        Args:
            states: the attending tokens.
            pairs: the mask of self-attention, as in `attend`.
            guide: the tokens of the other modality.
            across: the real tokens of both sides.
        """
        states = self.after_attention(states, self.attention(states, states, pairs))
        states = self.after_guided_attention(states, self.guided_attention(states, guide, across))
        return self.after_feed_forward(states, self.feed_forward(states))


class WordProjection(nn.Linear):
    """Words and their sinusoidal positions as a Transformer's first states (Vaswani et al. 2017, §3.4 and §3.5).

    Args:
        in_features: size d of a word's vector.
        out_features: size of a state.
    """

    def forward(self, vectors: Tensor) -> Tensor:
        """Return `[B, n, out_features]` of vectors `[B, n, in_features]`, which are scaled by √d."""
        # Vectors of length 1 would be small compared with positions, whose entries are up to 1.
        states = super().forward(vectors * self.in_features**0.5)
        return states + sinusoids(states.shape[1], states.shape[2]).to(states)


class TransformerEncoder(nn.Module):
    """Layers of a Transformer over words and their sinusoidal positions (Vaswani et al. 2017, §3).

    Args:
        in_features: size of a word's vector.
        size: size of a word's state in the layers.
        num_heads: heads H of each layer.
        num_layers: number of layers.
        dropout: dropout of the layers and of their input.
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
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * (-math.log(MAX_WAVE) / size))
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the last dimension where `mask` is True.

    Args:
        scores: `[..., n]`.
        mask: bool, broadcasts to `scores`, True = kept.

    Returns:
        Weights like `scores`, exactly 0 where not kept; all 0 where nothing is kept.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) * mask


def average(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the real words, `[B, d]` of `[B, n, d]`; 0 for an empty text (Chen et al. 2017, eq. 18)."""
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def maximum(states: Tensor, mask: Tensor) -> Tensor:
    """Return each feature's maximum over the real words, `[B, d]`; 0 for an empty text (Kim 2014, §2)."""
    largest = states.masked_fill(~mask[..., None], torch.finfo(states.dtype).min).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def last_states(states: Tensor, mask: Tensor) -> Tensor:
    """Return the last state of each direction of a recurrent network, `[B, d]`, from the states `[B, n, d]`."""
    forward, backward = states.chunk(2, dim=-1)
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    ends = forward.gather(1, last[:, None, None].expand(-1, 1, forward.shape[-1]))[:, 0]
    return torch.cat((ends, backward[:, 0]), dim=-1)

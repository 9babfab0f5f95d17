"""Deep modular co-attention: units of self-attention, and of attention guided by another modality (Yu et al. 2019)."""

from dataclasses import dataclass

from torch import Tensor, nn

from alignattn.attention.cross_mask import CrossMask
from alignattn.models.sentence_pair import masked_softmax
from alignattn.models.transformer_units import Around, FeedForward, MultiHeadAttention, SelfAttentionUnit

Sides = tuple[str, str]
"""What the queries and what the keys of an attention call are of."""
WORDS, REGIONS = "words", "regions"


@dataclass(frozen=True)
class Tokens:
    """Words or regions, and which of them are real.

    Attributes:
        states: `[B, n, size]`.
        mask: `[B, n]` bool, True = a real one; None = all are.
    """

    states: Tensor
    mask: Tensor | None

    @property
    def pairs(self) -> Tensor | None:
        """`[B, 1, n, n]` bool, which may attend which among themselves; None = all."""
        if self.mask is None:
            return None
        # Written out, for its diagonal tells which are real.
        return self.mask[:, None, None, :].expand(-1, 1, self.mask.shape[1], -1)


class GuidedAttentionUnit(nn.Module):
    """SA and GA: tokens attend one another, then those of another modality, which guide them (figure 2, SGA)."""

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size, num_heads, dropout)
        self.after_attention = Around(size, dropout)
        self.guided_attention = MultiHeadAttention(size, num_heads, dropout)
        self.after_guided_attention = Around(size, dropout)
        self.feed_forward = FeedForward(size, dropout)
        self.after_feed_forward = Around(size, dropout)

    def forward(self, states: Tensor, pairs: Tensor | None, guide: Tensor, across: CrossMask) -> Tensor:
        """Return `[B, n, size]` of states `[B, n, size]` that a guide `[B, m, size]` is attended by.

        Args:
            states: whose tokens attend.
            pairs: as of `Tokens`.
            guide: what they attend beside themselves.
            across: which of the tokens and of the guide's are real.
        """
        states = self.after_attention(states, self.attention(states, states, pairs))
        states = self.after_guided_attention(states, self.guided_attention(states, guide, across))
        return self.after_feed_forward(states, self.feed_forward(states))


class CoAttention(nn.Module):
    """The encoder-decoder of co-attention: L units of SA on words, then L of SA and GA on regions (§3.2, figure 5b).

    Args:
        size: of the states.
        num_heads: heads H.
        num_layers: units L of each.
        dropout: probability with which a weight or a number is dropped.
    """

    def __init__(self, size: int, num_heads: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        units = (size, num_heads, dropout)
        self.encoder = nn.ModuleList(SelfAttentionUnit(*units) for _ in range(num_layers))
        self.decoder = nn.ModuleList(GuidedAttentionUnit(*units) for _ in range(num_layers))

    @property
    def attention_sides(self) -> tuple[Sides, ...]:
        """What attends what in each attention call of a forward, in order."""
        of_words, of_regions = (WORDS, WORDS), ((REGIONS, REGIONS), (REGIONS, WORDS))
        return (*(of_words for _ in self.encoder), *(sides for _ in self.decoder for sides in of_regions))

    def forward(self, words: Tokens, regions: Tokens) -> tuple[Tensor, Tensor]:
        """Return the states of words and of regions, as they came in."""
        question, image = words.states, regions.states
        # Made once: by what they are the alignment knows that all layers have the same.
        of_words, of_regions, across = words.pairs, regions.pairs, CrossMask(regions.mask, words.mask)
        for unit in self.encoder:
            question = unit(question, of_words)
        for unit in self.decoder:
            image = unit(image, of_regions, question, across)
        return question, image


class AttentionReduction(nn.Module):
    """The tokens' mean by weights of a small network, softmax(MLP(x)), in one vector (§3.3, eqs. 9 and 10).

    It is a pooling, whose slots are none: it has neither queries nor keys.

    Args:
        size: of the states.
        inner: size of the network's hidden layer.
        out: size of the vector.
        dropout: probability with which a number of the hidden layer is dropped.
    """

    def __init__(self, size: int, inner: int, out: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(size, inner)
        self.weigh = nn.Linear(inner, 1)
        self.dropout = nn.Dropout(dropout)
        self.merge = nn.Linear(size, out)

    def forward(self, tokens: Tokens) -> Tensor:
        """Return `[B, out]`."""
        return self.merge((self.weights(tokens)[:, None] @ tokens.states)[:, 0])

    def weights(self, tokens: Tokens) -> Tensor:
        """Return what each token weighs, `[B, n]`; padding nothing."""
        scores = self.weigh(self.dropout(self.inner(tokens.states).relu()))[..., 0]
        return scores.softmax(dim=-1) if tokens.mask is None else masked_softmax(scores, tokens.mask)

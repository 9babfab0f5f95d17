"""What every alignment loss shares: the signature, the padding rule, the precision rule and the reductions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from alignattn.attention.alignment.blocks import Block, BlockLoss, by_autograd, loss_in_blocks
from alignattn.attention.choices import HeadReduction
from alignattn.support.errors import AlignAttnError

NORM_EPSILON = 1e-6
"""Added in quadrature to a norm, so that the gradient at a zero vector stays finite."""


@dataclass(frozen=True)
class TokenMeasure:
    """The uniform distribution over the real tokens of each sample, and the weight of a sample in the mean.

    Attributes:
        probability: `[B, n]`, one over the number of real tokens of the sample at real tokens, 0 at padding.
        sample_weight: `[B]`, one over the number of samples with a real token; 0 for a wholly padded sample.
        mask: `[B, n]` bool, True at real tokens; None where every token is real.
    """

    probability: Tensor
    sample_weight: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, query: Tensor, mask: Tensor | None) -> "TokenMeasure":
        """Build the measure for queries `[B, H, n, d]` and a mask `[B, n]` (True = a real token)."""
        batch, _, length, _ = query.shape
        if mask is None:
            return cls(query.new_full((batch, length), 1 / length), query.new_full((batch,), 1 / batch), None)
        real = mask.to(query.dtype)
        count = real.sum(dim=1)
        has_tokens = (count > 0).to(query.dtype)
        return cls(real / count.clamp(min=1)[:, None], has_tokens / has_tokens.sum().clamp(min=1), mask)

    @property
    def token_weight(self) -> Tensor:
        """`[B, n]`: the weight of a token in the mean over samples of the mean over real tokens; sums to 1."""
        return self.probability * self.sample_weight[:, None]


class Alignment(nn.Module, ABC):
    """The distance A(Q, K) between the queries and the keys of one attention layer.

    Zhang et al. 2021, "Alignment Attention by Matching Key and Query Distributions", eq. 1. The loss is a mean
    over the real tokens of a sample and head, a sum (the paper's text) or mean (the paper's code) over heads,
    and a mean over samples. Padding never enters: the loss of a padded batch is that of its samples alone, and
    a sample without a single real token contributes nothing. It is computed in float32 (float64 for float64
    input) whatever the autocast type.

    Args:
        head_dim: size d of a head's query and key.
        head_reduction: `sum` or `mean` over the heads.

    Attributes:
        diagnostic: name of the scalar that tells whether the loss works.

    Raises:
        AlignAttnError: if `head_reduction` is neither.
    """

    diagnostic: ClassVar[str]

    def __init__(self, head_dim: int, *, head_reduction: HeadReduction = "sum") -> None:
        super().__init__()
        if head_reduction not in get_args(HeadReduction):
            raise AlignAttnError(
                f"head_reduction={head_reduction!r} is unknown: choose one of {', '.join(get_args(HeadReduction))}"
            )
        self.head_dim = head_dim
        self.head_reduction = head_reduction

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss.

        Args:
            query: `[B, H, n, d]`.
            key: `[B, H, n, d]`.
            mask: `[B, n]` bool, True = a real token; None = all are real.

        Returns:
            The loss, a scalar.

        Raises:
            AlignAttnError: if the shapes do not fit.
        """
        return self.with_diagnostics(query, key, mask)[0]

    def with_diagnostics(
        self, query: Tensor, key: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss as `forward` does, and detached scalars that tell whether it works, by name."""
        self._check_shapes(query, key, mask)
        with torch.autocast(query.device.type, enabled=False):
            if query.device.type == "cpu" and not torch.compiler.is_compiling():
                loss, diagnostic = loss_in_blocks(self._loss_of_block, query, key, mask, list(self.parameters()))
            else:
                both = torch.stack((query, key))
                loss, diagnostic = self._loss(both.to(torch.promote_types(both.dtype, torch.float32)), mask)
        return loss, {self.diagnostic: diagnostic}

    def _loss(self, features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        loss, diagnostic = self._compute(features, TokenMeasure.of(features[0], mask))
        return loss * self._head_weight(features.shape[2]), diagnostic.detach()

    def _head_weight(self, heads: int) -> float:
        return 1 / heads if self.head_reduction == "mean" else 1.0

    @abstractmethod
    def _compute(self, features: Tensor, tokens: TokenMeasure) -> tuple[Tensor, Tensor]:
        """Return the loss summed over heads, and the diagnostic, of queries and keys `[2, B, H, n, d]`."""

    def _loss_of_block(self, features: Tensor, block: Block, keeps_gradient: bool) -> BlockLoss:
        """Return what a block of samples adds to the loss, on the CPU, with its gradient; see `LossOfBlock`."""
        return by_autograd(self._loss, list(self.parameters()), features, block, keeps_gradient)

    def _check_shapes(self, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
        if query.dim() != 4 or query.shape != key.shape or query.shape[-1] != self.head_dim:
            raise AlignAttnError(
                f"queries {list(query.shape)} and keys {list(key.shape)} must both be "
                f"[batch, heads, tokens, {self.head_dim}]"
            )
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (query.shape[0], query.shape[2])):
            raise AlignAttnError(
                f"the mask is {mask.dtype} {list(mask.shape)}: it must be bool "
                f"[{query.shape[0]}, {query.shape[2]}], True = a real token"
            )

    def extra_repr(self) -> str:
        """Return what the module's printed form shows."""
        return f"head_dim={self.head_dim}, head_reduction={self.head_reduction!r}"


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return vectors `[..., f]` scaled to length 1; a zero vector stays zero, with a finite gradient."""
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + NORM_EPSILON**2).rsqrt()

"""Alignment by optimal transport (Zhang et al. 2021, eq. 3; Cuturi 2013)."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.calls import Call, TokenMeasure
from alignattn.attention.alignment.networks import unit_vectors
from alignattn.attention.alignment.one_pass import Piece, PieceLoss
from alignattn.attention.alignment.passes import normalize_, normalize_gradient_
from alignattn.attention.alignment.sinkhorn import ANNEAL_FROM, ITERATIONS, TransportPlan, sinkhorn
from alignattn.attention.choices import HeadReduction
from alignattn.utils.errors import AlignAttnError

Cost = Literal["cosine", "squared_euclidean"]


class OTAlignment(Alignment):
    """The cost <C, π> of the plan π from queries to keys that minimises <C, π> + ε Σ π log π.

    Eq. 3 with the plan of section 2.3.2, with the sign of the entropy corrected. Both marginals are uniform over the
    real tokens. The gradient goes through C with the plan fixed; by the envelope theorem it is the gradient of
    <C, π> + ε Σ π log π at its minimum. Each cost is a dot product up to terms of one token, so forward needs only
    π k and πᵀ q of the plan, and no n × n tensor is kept for backward.

    Diagnostic: `marginal_error`, the L1 distance of the plan's row sums from the uniform distribution plus that of its
    column sums, mean over samples and heads; 0 at convergence, at most 4.

    The other arguments are those of `Alignment`.

    Args:
        cost: `cosine`, C = 1 - cos(q, k), or `squared_euclidean`, C = |q - k|².
        epsilon: strength ε of the entropy, in units of the cost. 0.01 suits the cosine; the squared distance
            grows with the features, and an ε far below it needs more iterations.
        iterations: Sinkhorn iterations, at least 1; `marginal_error` shows whether they suffice.
        anneal_from: ε starts at this share of the largest cost of a head and falls to `epsilon`.

    Raises:
        AlignAttnError: if `cost` is neither, `iterations` is below 1, or `epsilon` or `anneal_from` is not
            positive.
    """

    diagnostic = "marginal_error"

    def __init__(
        self,
        head_dim: int,
        *,
        num_layers: int = 1,
        cost: Cost = "cosine",
        epsilon: float = 0.01,
        iterations: int = ITERATIONS,
        anneal_from: float = ANNEAL_FROM,
        head_reduction: HeadReduction = "sum",
        points: int | None = None,
    ) -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction, points=points)
        if cost not in get_args(Cost):
            raise AlignAttnError(f"cost={cost!r} is unknown: choose one of {', '.join(get_args(Cost))}")
        for name, value in (("epsilon", epsilon), ("anneal_from", anneal_from)):
            if not value > 0:
                raise AlignAttnError(f"{name}={value!r} must be a positive number")
        if iterations < 1:
            raise AlignAttnError(f"iterations={iterations!r} must be at least 1")
        self.cost = cost
        self.epsilon = epsilon
        self.iterations = iterations
        self.anneal_from = anneal_from

    def elements(self, call: Call) -> int:
        """Return the size of its features or of its plans, whichever is larger."""
        return max(super().elements(call), call.heads * call.samples * call.length**2)

    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return <C, π> and the plan's marginal error."""
        calls, batch = features.shape[0], features.shape[2]
        if tokens.mask is not None:
            features = features.masked_fill(~tokens.mask[..., None, None], 0)
        both, marginals = _by_head(features, tokens)
        if self.cost == "cosine":  # C_ij = 1 - q_i · k_j
            query, key = unit_vectors(both)
            product, row_sum, column_sum = self._transported(query, key, query, marginals)
            costs = row_sum.sum(dim=-1) - product
        else:  # C_ij = |q_i|² + |k_j|² - 2 q_i · k_j
            query, key = _centred(both, marginals)
            product, row_sum, column_sum = self._transported(query, key, 2 * query, marginals)
            squares = query.square().sum(dim=-1) * row_sum + key.square().sum(dim=-1) * column_sum
            costs = squares.sum(dim=-1) - 2 * product
        with torch.no_grad():
            of_rows, of_columns = (share[:, None] for share in marginals)
            errors = ((row_sum - of_rows).abs() + (column_sum - of_columns).abs()).sum(dim=-1)
            error = (errors.mean(dim=1).view(calls, batch) * tokens.sample_weight).sum(dim=1)
        return (costs.sum(dim=1).view(calls, batch) * tokens.sample_weight).sum(dim=1), error

    def _transported(
        self, query: Tensor, key: Tensor, left: Tensor, marginals: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ_ij π_ij q_i · k_j `[B, H]`, with the gradients π k and πᵀ q, and the row and column sums of π.

        π is the plan of the cost -left_i · k_j, which differs from C by terms of one token.
        """
        plan = self._plan(left, key, marginals)
        with torch.no_grad():
            # A feature of ones gives the marginals in the same product.
            transported_key = plan.apply(F.pad(key, (0, 1), value=1.0))
            transported_query = plan.apply_transposed(F.pad(query, (0, 1), value=1.0))
        by_query = (query * transported_key[..., :-1]).sum(dim=(-2, -1))
        by_key = (key * transported_query[..., :-1]).sum(dim=(-2, -1))
        # Both are the same number; the second contributes to the gradient only.
        return by_query + (by_key - by_key.detach()), transported_key[..., -1], transported_query[..., -1]

    def _plan(self, left: Tensor, key: Tensor, marginals: tuple[Tensor, Tensor]) -> TransportPlan:
        """Return the plan of the cost -left_i · key_j."""
        return sinkhorn(
            left, key, *marginals, epsilon=self.epsilon, anneal_from=self.anneal_from, iterations=self.iterations
        )

    def differentiate(self, piece: Piece, keeps_gradient: bool) -> PieceLoss:
        """Return `compute` with its gradient, -π k and -πᵀ q of the unit vectors, or of the squared distance."""
        tokens, (calls, _, batch, _, heads, _) = piece.tokens, piece.features.shape
        features = piece.features
        if tokens.mask is not None and piece.counts is None:
            features = features.masked_fill_(~tokens.mask[..., None, None], 0)
        both, marginals = _by_head(features, tokens)
        is_cosine = self.cost == "cosine"
        if is_cosine:
            both, reciprocal = normalize_(both)
        else:
            both = _centred(both, marginals)
        query, key = both
        plan = self._plan(query if is_cosine else 2 * query, key, marginals)
        # A feature of ones gives the marginals in the same product.
        padded = F.pad(both, (0, 1), value=1.0)
        transported = torch.stack((plan.apply(padded[1]), plan.apply_transposed(padded[0])))
        transported, sums = transported[..., :-1], transported[..., -1]
        errors = sum((total - share[:, None]).abs() for total, share in zip(sums, marginals, strict=True)).sum(dim=-1)
        weight = tokens.sample_weight.expand(calls, batch).reshape(-1, 1)
        error = (errors.mean(dim=1, keepdim=True) * weight).sum()
        weight = weight * self.head_weight(heads)
        products = (query * transported[0]).sum(dim=(-2, -1))
        if is_cosine:
            costs = sums[0].sum(dim=-1) - products
        else:
            costs = (both.square().sum(dim=-1) * sums).sum(dim=(0, -1)) - 2 * products
        loss = (costs * weight).sum()
        if not keeps_gradient:
            return PieceLoss(loss, error)
        of_sample = weight[:, :, None, None]
        if is_cosine:
            to_both = normalize_gradient_(transported * -of_sample, both, reciprocal)
        else:
            to_both = (both * sums[..., None] - transported) * (2 * of_sample)
        return PieceLoss(loss, error, to_both.unflatten(1, (calls, batch)).permute(1, 0, 2, 4, 3, 5))

    def extra_repr(self) -> str:
        """Return the module's printed form."""
        return (
            f"{super().extra_repr()}, cost={self.cost!r}, epsilon={self.epsilon}, "
            f"iterations={self.iterations}, anneal_from={self.anneal_from}"
        )


def _by_head(features: Tensor, tokens: TokenMeasure) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return features `[C, 2, B, n, H, d]` as a matrix for each head, `[2, C * B, H, n, d]`, and their marginals.

    The marginals, `[C * B, n]` of queries and of keys, are one tensor if both belong to the same tokens.
    """
    calls, _, batch, length, _, _ = features.shape
    both = features.permute(1, 0, 2, 4, 3, 5).contiguous().flatten(1, 2)
    shares = [share.expand(calls, batch, length).flatten(0, 1) for share in tokens.probability.unbind(1)]
    return both, (shares[0], shares[-1])


def _centred(both: Tensor, probability: tuple[Tensor, Tensor]) -> Tensor:
    """Move the origin to the mean of both, which changes no distance and preserves the precision of products."""
    with torch.no_grad():
        of_query, of_key = (share[:, None, :, None] for share in probability)
        centre = (both[0] * of_query + both[1] * of_key).sum(dim=2, keepdim=True) / 2
    return both - centre

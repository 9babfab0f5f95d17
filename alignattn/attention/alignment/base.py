"""The base of all alignment losses: the signature, the padding rule, the precision rule and the reductions."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.attention.alignment.calls import Call, drawn, groups_of, masks_of
from alignattn.attention.choices import HeadReduction
from alignattn.utils.errors import AlignAttnError

NORM_EPSILON = 1e-6
"""Added in quadrature to a norm, so that the gradient at a zero vector stays finite."""

GROUP_ELEMENTS = 20 * 2**20
"""Elements of the queries and keys of one group of calls: 80 MiB in float32, BERT-base at 8 × 128 tokens."""


@dataclass(frozen=True)
class TokenMeasure:
    """The uniform distribution over the real tokens of each sample, and the weight of a sample in the mean.

    The first dimension is the C calls, or 1 if all calls share a mask. The second is the two sides, queries and keys,
    or 1 if both belong to the same tokens.

    Attributes:
        probability: `[1 or C, 1 or 2, B, n]`, 1 over the number of the sample's real tokens at real tokens, 0 at
            padding.
        sample_weight: `[1 or C, B]`, 1 over the number of samples with real tokens on both sides; 0 for other samples.
        mask: `[1 or C, 1 or 2, B, n]` bool, True at real tokens; None where every token is real.
    """

    probability: Tensor
    sample_weight: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, query: Tensor, mask: Tensor | None) -> "TokenMeasure":
        """Build it for queries `[..., B, H, n, d]` and a mask `[1 or C, 1 or 2, B, n]` (True = a real token)."""
        batch, _, length, _ = query.shape[-4:]
        dtype = computed_in(query)
        if mask is None:
            probability = query.new_full((1, 1, batch, length), 1 / max(length, 1), dtype=dtype)
            return cls(probability, query.new_full((1, batch), 1 / batch, dtype=dtype), None)
        real = mask.to(dtype)
        count = real.sum(dim=-1)
        has_tokens = (count > 0).all(dim=1).to(dtype)
        samples = has_tokens.sum(dim=-1, keepdim=True).clamp(min=1)
        return cls(real / count.clamp(min=1)[..., None], has_tokens / samples, mask)

    @property
    def token_weight(self) -> Tensor:
        """The weight of each token in the mean, `[1 or C, 1 or 2, B, n]`; the weights of a side sum to 1."""
        return self.probability * self.sample_weight[:, None, :, None]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of `[C, 2, B, n, H]` over real tokens and samples, summed over sides and heads, `[C]`."""
        return (values * self.token_weight[..., None]).sum(dim=(1, 2, 3, 4))


class Alignment(nn.Module, ABC):
    """The distance A(Q, K) between the queries and keys of a model's attention layers (Zhang et al. 2021, eq. 1).

    The loss is a mean over attention calls. The loss of a call is a mean over the real tokens of a sample and head, a
    sum (the paper's text) or a mean (the paper's code) over heads, and a mean over samples. Padding never enters, and a
    sample without a real token contributes nothing. The loss is computed in float32 (float64 for float64 input)
    whatever the autocast type.

    A subclass implements `compute`, its equation.

    Args:
        head_dim: size d of a head's query and key.
        num_layers: layers L, each with its own networks, whose parameters are stacked, `[L, …]`.
        head_reduction: `sum` or `mean` over the heads.
        points: the maximum number of real tokens used of a sample, or of a batch if `by_sample` is false; they are
            drawn anew at every training step. None = all.

    Attributes:
        step: an int64 scalar that determines the draws; it is saved, so that a resumed run draws the same tokens. It
            exists only with `points`.
        by_sample: whether the loss of a batch is the mean of the losses of its samples.
        diagnostic: name of the scalar that shows whether the loss works.

    Raises:
        AlignAttnError: if `head_reduction` is neither, or `points` is below `min_points`.
    """

    step: Tensor
    by_sample: ClassVar[bool] = True
    min_points: ClassVar[int] = 1
    diagnostic: ClassVar[str]

    def __init__(
        self,
        head_dim: int,
        *,
        num_layers: int = 1,
        head_reduction: HeadReduction = "sum",
        points: int | None = None,
    ) -> None:
        super().__init__()
        if head_reduction not in get_args(HeadReduction):
            raise AlignAttnError(
                f"head_reduction={head_reduction!r} is unknown: choose one of {', '.join(get_args(HeadReduction))}"
            )
        self.head_dim = head_dim
        self.num_layers = num_layers
        self.head_reduction = head_reduction
        self.points = points
        if points is not None:
            if points < self.min_points:
                raise AlignAttnError(f"points={points!r} must be at least {self.min_points}")
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Return the loss of one call.

        Args:
            query: `[B, H, n, d]`.
            key: `[B, H, n, d]`, or `[B, H, m, d]` of other tokens.
            mask: `[B, n]` bool, True = a real token; None = all are real.
            key_mask: `[B, m]` bool, if the keys belong to other tokens; None = `mask`, or all real if m is not n.
            layer: the index of the layer that called.

        Returns:
            The loss, a scalar.

        Raises:
            AlignAttnError: if the shapes do not fit.
        """
        return self.with_diagnostics(query, key, mask, key_mask=key_mask, layer=layer)[0]

    def with_diagnostics(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None = None,
        *,
        key_mask: Tensor | None = None,
        layer: int = 0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss as `forward` does, and the detached diagnostic by its name."""
        if key_mask is None and query.shape == key.shape:
            key_mask = mask
        self._check_shapes(query, key, mask, key_mask)
        # Projections are stored as [B, n, H, d], so this does not copy their heads.
        rows_of_query, rows_of_key = (features.transpose(1, 2).flatten(2) for features in (query, key))
        return self.of_calls([Call(rows_of_query, rows_of_key, query.shape[1], mask, key_mask, layer)])

    def of_calls(self, calls: Sequence[Call], samples: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss and diagnostics of attention calls, each weighted by its number of samples.

        Calls of one shape are computed together, as many as `GROUP_ELEMENTS` allows. On a CPU the backend `cpu`
        computes the same result.

        Args:
            calls: at least one.
            samples: the number of samples in the mean; None = the number of samples in `calls`.
        """
        samples = samples or sum(call.weight for call in calls)
        if self.by_sample and self.points is not None:
            calls = [drawn(call, self.points, self.step) for call in calls]
        with torch.autocast(calls[0].query.device.type, enabled=False):
            on_cpu = [call for call in calls if self.by_sample and uses_cpu_backend(call)]
            in_groups = [call for call in calls if not (self.by_sample and uses_cpu_backend(call))]
            parts = [
                tuple(part.sum() * (group[0].weight / samples) for part in self._of_group(group, layers))
                for layers, group in groups_of(in_groups, self._elements, GROUP_ELEMENTS)
            ]
            if on_cpu:
                # Imported here, because the backend imports the losses, which are subclasses of this class.
                from alignattn.attention.alignment.cpu.losses import loss_on_cpu

                parts.append(loss_on_cpu(self, on_cpu, samples))
            device = calls[0].query.device
            loss, diagnostic = (sum_of(part.to(device) for part in side) for side in zip(*parts, strict=True))
        if self.points is not None and self.training:
            self.step += 1
        return loss, {self.diagnostic: diagnostic}

    def _elements(self, call: Call) -> int:
        """Return the size of the largest tensor that one call needs."""
        return 2 * call.query.shape[0] * call.length * call.query.shape[2]

    def _of_group(self, calls: list[Call], layers: slice) -> tuple[Tensor, Tensor]:
        sides = [features for call in calls for features in (call.query, call.key)]
        if not calls[0].is_of_same_tokens:
            sides = [F.pad(side, (0, 0, 0, calls[0].length - side.shape[1])) for side in sides]
        both = torch.stack(sides)
        both = both.to(computed_in(both)).unflatten(-1, (calls[0].heads, -1)).unflatten(0, (-1, 2))
        return self.losses(both, masks_of(calls), layers)

    def losses(self, features: Tensor, mask: Tensor | None, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the losses and diagnostics `[C]` of C calls.

        Args:
            features: queries and keys, `[C, 2, B, n, H, d]`, in the type in which the loss is computed; the calls are
                ordered by layer, equally many per layer.
            mask: `[1 or C, 1 or 2, B, n]` bool, True = a real token (`TokenMeasure`); None = all are real.
            layers: the layers of the calls, whose networks are used.
        """
        losses, diagnostics = self.compute(features, TokenMeasure.of(features.transpose(3, 4), mask), layers)
        return losses * self.head_weight(features.shape[4]), diagnostics.detach()

    def head_weight(self, heads: int) -> float:
        """Return the factor of the sum over heads."""
        return 1 / heads if self.head_reduction == "mean" else 1.0

    @abstractmethod
    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the losses `[C]`, summed over heads, and the diagnostics `[C]`; arguments as for `losses`."""

    def _check_shapes(self, query: Tensor, key: Tensor, mask: Tensor | None, key_mask: Tensor | None) -> None:
        sizes = [(*side.shape[:2], *side.shape[3:]) for side in (query, key)]
        if sizes[0] != sizes[1] or sizes[0][2:] != (self.head_dim,):
            raise AlignAttnError(
                f"queries {list(query.shape)} and keys {list(key.shape)} must both be "
                f"[batch, heads, tokens, {self.head_dim}]"
            )
        for features, given in ((query, mask), (key, key_mask)):
            if given is not None and (given.dtype != torch.bool or given.shape != features.shape[::2]):
                raise AlignAttnError(
                    f"the mask is {given.dtype} {list(given.shape)}: it must be bool "
                    f"[{features.shape[0]}, {features.shape[2]}], True = a real token"
                )

    def extra_repr(self) -> str:
        """Return the module's printed form."""
        shown = f"head_dim={self.head_dim}, num_layers={self.num_layers}, head_reduction={self.head_reduction!r}"
        return shown if self.points is None else f"{shown}, points={self.points}"


def uses_cpu_backend(call: Call) -> bool:
    """Return whether the CPU backend computes the loss of a call."""
    return call.query.device.type == "cpu" and call.is_of_same_tokens and not torch.compiler.is_compiling()


def computed_in(features: Tensor) -> torch.dtype:
    """Return the type in which a loss of features is computed: float32 or better."""
    return torch.promote_types(features.dtype, torch.float32)


def sum_of(scalars: Iterable[Tensor]) -> Tensor:
    """Return the sum of at least one scalar, without an addition to 0 first."""
    return functools.reduce(torch.add, scalars)


def rows_in_blocks(features: Tensor) -> Tensor:
    """Return features `[C, 2, B, n, H, d]` as rows in blocks, `[C * 2 * B, n * H, d]`."""
    return features.flatten(0, 2).flatten(1, 2)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return vectors `[..., f]` scaled to length 1; a zero vector stays zero, with a finite gradient."""
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + NORM_EPSILON**2).rsqrt()

"""The base of all alignment losses: the signature, the padding rule, the precision rule and the reductions."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from alignattn.attention.alignment.calls import Call, TokenMeasure, drawn, masks_of, stacked
from alignattn.attention.alignment.one_pass import OnePass, Piece, PieceLoss, groups_of
from alignattn.attention.alignment.passes import has_passes
from alignattn.attention.choices import HeadReduction
from alignattn.utils.errors import AlignAttnError

GROUP_ELEMENTS = 40 * 2**20
"""Elements of the queries and keys of one group of calls: 160 MiB in float32, BERT-base at 16 × 128 tokens. More save
launches and take more memory while the loss is computed."""


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
        points: the maximum number of real tokens used of a sample; they are drawn anew at every training step. None =
            all.

    Attributes:
        step: an int64 scalar that determines the draws; it is saved, so that a resumed run draws the same tokens. It
            exists only with `points`.
        diagnostic: name of the scalar that shows whether the loss works.

    Raises:
        AlignAttnError: if `head_reduction` is neither, or `points` is below 1.
    """

    step: Tensor
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
            if points < 1:
                raise AlignAttnError(f"points={points!r} must be at least 1")
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
        sizes = [(*side.shape[:2], *side.shape[3:]) for side in (query, key)]
        if sizes[0] != sizes[1] or sizes[0][2:] != (self.head_dim,):
            raise AlignAttnError(
                f"queries {list(query.shape)} and keys {list(key.shape)} must both be "
                f"[batch, heads, tokens, {self.head_dim}]"
            )
        for features, is_real in ((query, mask), (key, key_mask)):
            if is_real is not None and (is_real.dtype != torch.bool or is_real.shape != features.shape[::2]):
                raise AlignAttnError(
                    f"the mask is {is_real.dtype} {list(is_real.shape)}: it must be bool "
                    f"[{features.shape[0]}, {features.shape[2]}], True = a real token"
                )
        # Projections are stored as [B, n, H, d], so this does not copy their heads.
        rows_of_query, rows_of_key = (features.transpose(1, 2).flatten(2) for features in (query, key))
        return self.of_calls([Call(rows_of_query, rows_of_key, query.shape[1], mask, key_mask, layer)])

    def of_calls(self, calls: Sequence[Call], samples: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss and diagnostics of attention calls, each weighted by its number of samples.

        Calls of one shape are computed together, as many as `GROUP_ELEMENTS` allows; on a CPU one by one.

        Args:
            calls: at least one.
            samples: the number of samples in the mean; None = the number of samples in `calls`.
        """
        samples = samples or sum(len(call.query) for call in calls)
        if self.points is not None:
            calls = [drawn(call, self.points, self.step) for call in calls]
        device = calls[0].query.device
        with tf32_under_autocast(device), torch.autocast(device.type, enabled=False):
            groups = list(groups_of(calls, self.elements, GROUP_ELEMENTS))
            # A subclass may replace only the equation; `differentiate` is then that of another loss.
            equation, gradient = (
                next(owner for owner in type(self).__mro__ if name in vars(owner))
                for name in ("compute", "differentiate")
            )
            is_written_out = gradient is not Alignment and issubclass(gradient, equation)
            if is_written_out and has_passes(*self.children()):
                sides = [side for _, group in groups for call in group for side in (call.query, call.key)]
                loss, diagnostic = OnePass.apply(  # type: ignore[no-untyped-call]
                    self.differentiate, groups, samples, torch.is_grad_enabled(), *sides, *self.parameters()
                )
            else:
                parts = []
                for layers, group in groups:
                    share = len(group[0].query) / samples
                    of_group = self.losses(stacked(group), masks_of(group), layers)
                    parts.append([(values.sum() * share).to(device) for values in of_group])
                loss, diagnostic = map(sum_of, zip(*parts, strict=True))
        if self.points is not None and self.training:
            self.step += 1
        return loss, {self.diagnostic: diagnostic}

    def elements(self, call: Call) -> int:
        """Return the size of the largest tensor that the loss of a call needs."""
        return 2 * call.samples * call.length * call.query.shape[2]

    def losses(self, features: Tensor, mask: Tensor | None, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the losses and diagnostics `[C]` of C calls.

        Args:
            features: queries and keys, `[C, 2, B, n, H, d]`, in the type in which the loss is computed; the calls are
                ordered by layer, equally many per layer.
            mask: `[1 or C, 1 or 2, B, n]` bool, True = a real token (`TokenMeasure`); None = all are real.
            layers: the layers of the calls, whose networks are used.
        """
        losses, diagnostics = self.compute(features, TokenMeasure.of(features, mask), layers)
        return losses * self.head_weight(features.shape[4]), diagnostics.detach()

    def head_weight(self, heads: int) -> float:
        """Return the factor of the sum over heads."""
        return 1 / heads if self.head_reduction == "mean" else 1.0

    @abstractmethod
    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the losses `[C]`, summed over heads, and the diagnostics `[C]`; arguments as for `losses`."""

    def differentiate(self, piece: Piece, keeps_gradient: bool) -> PieceLoss:
        """Return the loss of a piece as `compute` does, and its gradient, written out.

        A subclass without it, or with another `compute`, is differentiated by autograd.

        Args:
            piece: the piece.
            keeps_gradient: whether the gradient is needed.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the module's printed form."""
        shown = f"head_dim={self.head_dim}, num_layers={self.num_layers}, head_reduction={self.head_reduction!r}"
        return shown if self.points is None else f"{shown}, points={self.points}"


def sum_of(scalars: Iterable[Tensor]) -> Tensor:
    """Return the sum of at least one scalar, without an addition to 0 first."""
    return functools.reduce(torch.add, scalars)


@contextmanager
def tf32_under_autocast(device: torch.device) -> Iterator[None]:
    """Let a GPU compute products of float32 in TF32 if autocast is on: their inputs were rounded to fewer bits."""
    if device.type != "cuda" or torch.compiler.is_compiling() or not torch.is_autocast_enabled(device.type):
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

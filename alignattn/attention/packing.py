"""Packed batches: samples one after another in one row, without padding, of which attention sees each alone."""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a packed row, T in all, stand in a padded batch of its B samples, and the reverse.

    Outside attention a row costs what its tokens cost; in attention, and in an alignment, its samples are what they are
    in a padded batch: none meets another.

    Attributes:
        tokens: `[B, n]` int64 with n the longest sample, the place in the row; at padding that of some token.
        is_real: `[B, n]` bool.
        places: `[T]` int64, the place in the flattened batch, of each token of the row.
    """

    tokens: Tensor
    is_real: Tensor
    places: Tensor

    @classmethod
    def of(cls, bounds: Tensor) -> "Packing":
        """Build it of the sums of the lengths so far, `[B + 1]`, from 0 to T; each sample has a token."""
        bounds = bounds.long()
        lengths = bounds.diff()
        offsets = torch.arange(int(lengths.max()), device=bounds.device)
        is_real = offsets < lengths[:, None]
        tokens = (bounds[:-1, None] + offsets).where(is_real, 0)
        return cls(tokens, is_real, is_real.flatten().nonzero()[:, 0])

    def padded(self, row: Tensor) -> Tensor:
        """Return what belongs to the tokens of a row, `[1, T, …]`, as a batch, `[B, n, …]`."""
        return row[0].index_select(0, self.tokens.flatten()).unflatten(0, self.tokens.shape)

    def packed(self, batch: Tensor) -> Tensor:
        """Return what belongs to the tokens of a batch, `[B, n, …]`, as a row, `[1, T, …]`."""
        return batch.flatten(0, 1).index_select(0, self.places)[None]

    def pairs(self, mask: Tensor | None) -> Tensor:
        """Return which query may attend which key, `[B, 1, n, n]` bool, as a padded batch has it.

        Args:
            mask: of the row, `[1, 1, T, T]` bool, such as that of a sliding window; None = within a sample all may.
        """
        may = self.is_real[:, None, None, :].expand(-1, 1, self.is_real.shape[1], -1)
        if mask is None:
            return may
        return may & mask[0, 0][self.tokens[:, :, None], self.tokens[:, None, :]][:, None]


@dataclass(frozen=True)
class _Known:
    """What a row was given by, and how it is packed."""

    bounds: weakref.ref[Tensor]
    of_keys: weakref.ref[Tensor]
    versions: tuple[int, int]
    length: int
    packing: Packing

    def is_of(self, bounds: Tensor, of_keys: Tensor, length: int) -> bool:
        """Whether it was given by these very tensors, and they have not been written to since."""
        is_same = self.bounds() is bounds and self.of_keys() is of_keys and self.length == length
        return is_same and self.versions == (bounds._version, of_keys._version)


_newest: _Known | None = None
"""Of the last row: the layers of a model share it, and its numbers are read once."""


# What a row looks like is read from its numbers, which a compiler does not know.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def packing_of(bounds: Tensor, of_keys: Tensor | None, length: int) -> Packing:
    """Return how a row is packed.

    Args:
        bounds: the sums of its samples' lengths so far, `[B + 1]`.
        of_keys: likewise, as the keys' are given; None = the same.
        length: tokens T of the row.

    Raises:
        AlignAttnError: if they do not rise from 0 to T, or those of the keys are others.
    """
    global _newest
    of_keys, known = bounds if of_keys is None else of_keys, _newest
    if known is not None and known.is_of(bounds, of_keys, length):
        return known.packing
    if of_keys is not bounds and not torch.equal(of_keys, bounds):
        raise AlignAttnError(
            f"cu_seq_lens_k is {of_keys.tolist()} and cu_seq_lens_q {bounds.tolist()}: slots are for self-attention"
        )
    rises = bounds.dim() == 1 and len(bounds) > 1 and bool((bounds.diff() > 0).all())
    if not rises or int(bounds[0]) != 0 or int(bounds[-1]) != length:
        raise AlignAttnError(
            f"cu_seq_lens_q of a packed batch must rise from 0 to the {length} tokens of its row, and it is "
            f"{bounds.tolist()}"
        )
    packing = Packing.of(bounds)
    # Whether they are written to is not told of tensors of inference mode, which nothing is kept for.
    if not (bounds.is_inference() or of_keys.is_inference()):
        versions = bounds._version, of_keys._version
        _newest = _Known(weakref.ref(bounds), weakref.ref(of_keys), versions, length, packing)
    return packing

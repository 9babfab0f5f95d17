"""What computes an alignment or an attention: PyTorch's operations, or a kernel where one is asked for and fits."""

import functools
import os
import sys
from importlib.util import find_spec
from typing import ClassVar, get_args

import torch
from torch import Tensor

from alignattn.attention.choices import Kernels
from alignattn.support.errors import AlignAttnError, install_extra

INTERPRETER_VARIABLE = "TRITON_INTERPRET"
"""Triton's own: with 1 kernels run on the CPU, slowly, for tests. It is read when Triton is imported."""

SMALLEST_WIDTH = 16
"""Of a matrix that Triton multiplies."""
WIDEST_INTERPRETED = 128
WIDEST_DISCRIMINATED = 64
"""Features of a head on a GPU: compiled for an H100, the discriminator's kernel takes 164 KB of its 227 KB of shared
memory at 64, and would take 590 at 128."""
WIDEST_TRANSPORTED = 16
"""Likewise of conditional transport's vectors: what was compiled and kept its registers."""
WIDEST_MOVED = 128
"""Likewise of the vectors that optimal transport moves: tiles of half as many keep to the registers at 128."""
WIDEST_SPARSE = 64
"""Likewise of heads that attend by entmax."""
WIDEST_HIDDEN = 16
"""Likewise of the discriminator's hidden layer."""

PRECISIONS = {"highest": "tf32x3", "high": "tf32", "medium": "tf32"}
"""How a kernel multiplies float32, by `torch.set_float32_matmul_precision`: the first is three products of tensor
cores, as exact as float32 but for its last bits; without tensor cores (`ieee`) a kernel does not fit its registers."""
INTERPRETED_PRECISION = "ieee"


class _Chosen:
    """What a compiler reads as constants: it can look for no package and no variable of the environment."""

    kernels: ClassVar[str] = "eager"
    has_triton: ClassVar[bool] = False
    is_interpreted: ClassVar[bool] = False
    obstacles: ClassVar[dict[str, str]] = {}


def use_kernels(kernels: str) -> None:
    """Choose the implementation of the alignment losses and of sparse attention of this process.

    Where a kernel does not fit (no Triton, no GPU, float64, wider features) PyTorch's operations compute, and one line
    on standard error says why, once.

    Args:
        kernels: `eager` or `triton`.

    Raises:
        AlignAttnError: if it is neither.
    """
    if kernels not in get_args(Kernels):
        raise AlignAttnError(f"kernels={kernels!r} is unknown: choose one of {', '.join(get_args(Kernels))}")
    _Chosen.kernels = kernels
    _Chosen.has_triton = find_spec("triton") is not None
    _Chosen.is_interpreted = os.environ.get(INTERPRETER_VARIABLE) == "1"
    _Chosen.obstacles = {}


def obstacles() -> dict[str, str]:
    """Return why no kernel computed what it was asked for, by what that is, since `use_kernels` was called last."""
    return dict(_Chosen.obstacles)


def asks_for_kernels() -> bool:
    """Tell whether kernels are to compute where they fit."""
    return _Chosen.kernels != "eager"


def takes_kernels(
    features: Tensor,
    width: int = SMALLEST_WIDTH,
    widest: int = WIDEST_INTERPRETED,
    *,
    lacks: str | None = None,
    what: str = "alignment",
) -> bool:
    """Tell whether a kernel computes a loss of these features, or an attention.

    Args:
        features: of any shape, in the type that the loss is computed in or a narrower one.
        width: of the features that the kernel would hold.
        widest: that it takes on a GPU.
        lacks: of what there is no kernel; None where there is one.
        what: would be computed.
    """
    if not asks_for_kernels():
        return False
    obstacle = _obstacle(features, width, widest) if lacks is None else f"there is none of {lacks}"
    if obstacle is not None and not torch.compiler.is_compiling():
        _Chosen.obstacles[what] = obstacle
        _say_once(what, obstacle)
    return obstacle is None


def width_of_tile(width: int) -> int:
    """Return the power of 2 that holds features of a width: what is beyond them is masked."""
    return max(SMALLEST_WIDTH, 1 << (width - 1).bit_length())


def precision() -> str:
    """Return how products of float32 matrices are to be computed, by PyTorch's setting."""
    return INTERPRETED_PRECISION if _Chosen.is_interpreted else PRECISIONS[torch.get_float32_matmul_precision()]


def _obstacle(features: Tensor, width: int, widest: int) -> str | None:
    if not _Chosen.has_triton:
        return f"Triton is not installed: {install_extra('kernels')}"
    if features.device.type != "cuda" and not _Chosen.is_interpreted:
        return f"the features are on {features.device.type}, and kernels are for a GPU"
    if features.dtype == torch.float64:
        return "the features are in float64"
    widest = WIDEST_INTERPRETED if _Chosen.is_interpreted else widest
    if width > widest:
        return f"features of {width} are wider than {widest}"
    return None


@functools.cache
def _say_once(what: str, obstacle: str) -> None:
    print(f"alignattn: no kernel computes the {what}, PyTorch's operations do: {obstacle}", file=sys.stderr)

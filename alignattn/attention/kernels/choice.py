"""What computes an alignment or an attention: PyTorch's operations, or a kernel where one is asked for and fits."""

import functools
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, get_args

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
"""Features of a head on a GPU: at 128 the discriminator's kernel would take 590 KB of an H100's 227 KB of shared
memory."""
WIDEST_TRANSPORTED = 16
"""Likewise of conditional transport's vectors: what was compiled and kept its registers."""
WIDEST_MOVED = 128
"""Likewise of the vectors that optimal transport moves: tiles of half as many keep to the registers at 128."""
WIDEST_SPARSE = 64
"""Likewise of heads that attend by entmax."""
WIDEST_HIDDEN = 16
"""Likewise of the discriminator's hidden layer."""

FAST_PRECISION, EXACT_PRECISION = "tf32", "tf32x3"
"""How a kernel multiplies float32: the second is three products of tensor cores, as exact as float32 but for its last
bits; without tensor cores (`ieee`) a kernel does not fit its registers."""
INTERPRETED_PRECISION = "ieee"
OLDEST_CAPABILITY = (8, 0)
"""Compute capability whose tensor cores multiply TF32 and bfloat16."""
SHARED_BY_NETWORKS = {FAST_PRECISION: 91_264, EXACT_PRECISION: 169_984}
"""Bytes of shared memory that a program of an alignment's networks takes, compiled for an H100. An A100, with 166,912,
would take fewer of the exact one's, and spill 26 to 35 KB of a thread's registers."""


class _Chosen:
    """What a compiler reads as constants: it can look for no package and no variable of the environment."""

    kernels: ClassVar[str] = "eager"
    has_triton: ClassVar[bool] = False
    is_interpreted: ClassVar[bool] = False
    gpu: ClassVar["_Gpu | None"] = None
    failure: ClassVar[str | None] = None
    obstacles: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class _Gpu:
    """What every visible GPU has, at least.

    Attributes:
        capability: compute capability.
        shared: bytes of shared memory that a program may ask for.
    """

    capability: tuple[int, int]
    shared: int

    @staticmethod
    def weakest() -> "_Gpu | None":
        """Return it; None without a GPU of NVIDIA's."""
        if torch.version.cuda is None or not torch.cuda.is_available():
            return None
        # What mypy's description of the properties lacks.
        every: list[Any] = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return _Gpu(
            min((one.major, one.minor) for one in every), min(one.shared_memory_per_block_optin for one in every)
        )


def use_kernels(kernels: str) -> None:
    """Choose the implementation of the alignment losses and of sparse attention of this process.

    Where a kernel does not fit (no Triton, no GPU, none that can be launched, float64, wider features) PyTorch's
    operations compute, and one line on standard error says why, once.

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
    _Chosen.gpu = _Gpu.weakest() if asks_for_kernels() else None
    is_launched = _Chosen.has_triton and _Chosen.gpu is not None and not _Chosen.is_interpreted
    _Chosen.failure = _failure_of_one() if is_launched else None
    _Chosen.obstacles = {}


def obstacles() -> dict[str, str]:
    """Return why no kernel computed what it was asked for, by what that is, since `use_kernels` was called last."""
    return dict(_Chosen.obstacles)


def asks_for_kernels() -> bool:
    """Tell whether kernels are to compute where they fit."""
    return _Chosen.kernels != "eager"


def takes_kernels(
    features: Tensor,
    *widths: tuple[int, int],
    shared: int = 0,
    lacks: str | None = None,
    what: str = "alignment",
) -> bool:
    """Tell whether a kernel computes a loss of these features, or an attention.

    Args:
        features: of any shape, in the type that the loss is computed in or a narrower one.
        widths: of what the kernel would hold of a token, each with the widest that it takes on a GPU.
        shared: bytes of shared memory that a program takes, where it is more than any GPU has.
        lacks: of what there is no kernel; None where there is one.
        what: would be computed.
    """
    if not asks_for_kernels():
        return False
    obstacle = _obstacle(features, widths, shared) if lacks is None else f"there is none of {lacks}"
    if obstacle is not None:
        _note(what, obstacle)
    return obstacle is None


def takes_network_kernels(
    features: Tensor, *widths: tuple[int, int], are_known: bool, what: str = "alignment's networks"
) -> bool:
    """Tell whether a kernel computes an alignment's networks, forward and backward.

    Args:
        features: as for `takes_kernels`, with what follows.
        widths: beside that of the features.
        are_known: whether every layer is one that the kernel knows.
        what: as for `takes_kernels`.
    """
    return takes_kernels(
        features,
        *widths,
        shared=SHARED_BY_NETWORKS.get(precision(), 0) if asks_for_kernels() else 0,
        lacks=None if are_known else "layers that are parametrized or wrapped",
        what=what,
    )


def width_of_tile(width: int) -> int:
    """Return the power of 2 that holds features of a width: what is beyond them is masked."""
    return max(SMALLEST_WIDTH, 1 << (width - 1).bit_length())


@torch.compiler.assume_constant_result
def precision() -> str:
    """Return how products of float32 matrices are to be computed, by PyTorch's setting for those of a GPU.

    Whichever way it was set: by `torch.set_float32_matmul_precision` or by `torch.backends`' `fp32_precision`, after
    which the getter of the first raises an error.
    """
    if _Chosen.is_interpreted:
        return INTERPRETED_PRECISION
    of_backend = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    is_fast = torch.get_float32_matmul_precision() != "highest" if of_backend is None else of_backend == "tf32"
    return FAST_PRECISION if is_fast else EXACT_PRECISION


def _obstacle(features: Tensor, widths: tuple[tuple[int, int], ...], shared: int) -> str | None:
    if not _Chosen.has_triton:
        return f"Triton is not installed: {install_extra('kernels')}"
    if not _Chosen.is_interpreted:
        if features.device.type != "cuda":
            return f"the features are on {features.device.type}, and kernels are for a GPU"
        if _Chosen.gpu is None:
            return "kernels are for a GPU of NVIDIA's"
        if _Chosen.gpu.capability < OLDEST_CAPABILITY:
            return (
                f"a GPU's compute capability is {_dotted(_Chosen.gpu.capability)}, below {_dotted(OLDEST_CAPABILITY)}"
            )
        if _Chosen.failure is not None:
            return f"Triton launches none here: {_Chosen.failure}"
        if _Chosen.gpu.shared < shared:
            return (
                f"a program takes {shared:,} bytes of shared memory, and a GPU has {_Chosen.gpu.shared:,}"
                f" ({SHARED_BY_NETWORKS[FAST_PRECISION]:,} are taken with --tf32)"
            )
    if features.dtype == torch.float64:
        return "the features are in float64"
    for width, widest in widths:
        most = WIDEST_INTERPRETED if _Chosen.is_interpreted else widest
        if width > most:
            return f"features of {width} are wider than {most}"
    return None


def _failure_of_one() -> str | None:
    """Launch a small kernel, and return why that failed: it takes a C compiler, and a driver that Triton knows."""
    try:
        from alignattn.attention.kernels.trial import launch

        launch()
    except Exception as error:  # whatever fails in a library that is not ours: nothing is lost by it but speed
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0] if lines else ''}"
    return None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


@torch.compiler.assume_constant_result
def _note(what: str, obstacle: str) -> None:
    _Chosen.obstacles[what] = obstacle
    _say_once(what, obstacle)


@functools.cache
def _say_once(what: str, obstacle: str) -> None:
    print(f"alignattn: no kernel computes the {what}, PyTorch's operations do: {obstacle}", file=sys.stderr)

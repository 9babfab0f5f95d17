"""Memory for intermediate results that is kept between calls: a page's first touch costs more than the work on it."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

KEPT_BYTES = 2**25
"""Kept at most; what a call needs beyond it is allocated for that call."""
CACHE_LINE = 64
"""Bytes of a cache line: every tensor starts on one."""


class Scratch(threading.local):
    """A stack of uninitialised tensors on the CPU; each thread has its own."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._peak = 0

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Give back at the end what was taken inside."""
        start = self._used
        try:
            yield
        finally:
            self._used = start
            if start == 0:
                self._grow()

    def take(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of any content, valid until the frame around the call ends."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // CACHE_LINE) * CACHE_LINE
        self._peak = max(self._peak, self._used)
        if self._used > len(self._memory):
            return torch.empty(shape, dtype=dtype)
        return self._memory[start : start + size].view(dtype).view(shape)

    def _grow(self) -> None:
        wanted = min(self._peak, KEPT_BYTES)
        if wanted > len(self._memory):
            # Memory of an inference-mode block could not be written to outside of one.
            with torch.inference_mode(False):
                self._memory = torch.empty(wanted, dtype=torch.uint8)


SCRATCH = Scratch()

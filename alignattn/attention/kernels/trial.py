"""The smallest kernel, to see whether any can be launched."""

import torch
import triton
import triton.language as tl


@triton.jit
def _write(to):
    tl.store(to, 1.0)


def launch() -> None:
    """Launch it on the current GPU and wait for it; what Triton or CUDA raises comes out of it."""
    found = torch.zeros(1, device="cuda")
    _write[(1,)](found)
    torch.cuda.synchronize()

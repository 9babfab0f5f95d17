"""Kernels compiled for an H100 where there is none: what the interpreter runs, the compiler might refuse."""

import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT
from triton_apart import environment_of_triton

from alignattn.attention.kernels.choice import EXACT_PRECISION, SHARED_BY_NETWORKS

CALLS = {
    "aa-gan, 64 features, float32": {"discriminator.losses"},
    "aa-ct, 64 features, float32": {
        "networks.forward",
        "networks.backward",
        "transport.statistics",
        "transport.gradients",
    },
    "aa-ot, 64 features, float32": {"sinkhorn.scale", "sinkhorn.move"},
    "entmax, 64 features, bfloat16": {"entmax.attend", "entmax.to_queries", "entmax.to_keys"},
    "entmax15, one key": {"entmax.attend", "entmax.to_queries", "entmax.to_keys"},
}
MOST_SPILLED = 128
"""Bytes of a thread; what docs/performance.md says is of one version of Triton, and others may need some more."""
SPILLED_MORE = {"networks.forward": 384}
"""The critic's weights, which the compiler keeps in registers where each is used once."""
OF_NETWORKS = {"discriminator.losses", "networks.forward", "networks.backward"}
LEAST_SHARED = 99 * 1024
"""Bytes that a program has on any GPU of compute capability 8.0 and more (CUDA C++ Programming Guide)."""


def compiled(cache: Path, *calls: str) -> subprocess.CompletedProcess[str]:
    environment = environment_of_triton(TRITON_CACHE_DIR=str(cache), TRITON_INTERPRET="0")
    command = [sys.executable, str(ROOT / "benchmarks" / "registers.py"), *calls]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_kernels_are_compiled_for_a_gpu_and_keep_to_its_registers(tmp_path: Path) -> None:
    done = compiled(tmp_path, *CALLS)
    assert done.returncode == 0, done.stderr
    *lines, limits = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()[2:]]
    found: dict[str, set[str]] = {}
    most_registers, most_shared = map(int, limits[1:])
    for call, kernel, registers, spilled, shared in lines:
        found.setdefault(call, set()).add(kernel)
        assert 0 < int(registers) <= most_registers
        assert int(spilled) <= SPILLED_MORE.get(kernel, MOST_SPILLED)
        assert 0 < int(shared) <= most_shared
        # What is looked at before a launch, at the precision that the calls are compiled at.
        assert int(shared) <= (SHARED_BY_NETWORKS[EXACT_PRECISION] if kernel in OF_NETWORKS else LEAST_SHARED), kernel
    assert found == CALLS


def test_an_unknown_call_is_one_line(tmp_path: Path) -> None:
    done = compiled(tmp_path, "aa-gan")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no such call: aa-gan: choose of aa-gan, 32 features, float32; ")

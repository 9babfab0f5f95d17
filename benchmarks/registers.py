"""What the kernels take of a GPU, compiled for one where there is none.

    python benchmarks/registers.py [--gpu A100] [--precision high] ["aa-gan, 64 features, float32" ...]

It calls each loss and each attention that has kernels, forwards and backwards, on the CPU. Triton is told of a GPU that
is not there, and what would be launched is compiled for it and left at that: what comes out of a call is worth nothing.
A kernel that the interpreter runs and the compiler refuses is found here. For each kernel it prints the registers of a
thread, the bytes that did not fit into them, the shared memory of a program, and the limits of the GPU.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from alignattn.attention.choices import ALIGNMENTS
from alignattn.attention.config import AttentionConfig
from alignattn.attention.kernels import choice
from alignattn.attention.variant import AttentionVariant
from alignattn.support.text_tables import render_table

WARP_SIZE = 32
MOST_REGISTERS = 255
"""Of a thread, on all of them."""


@dataclass(frozen=True)
class Gpu:
    """What a kernel is compiled for.

    Attributes:
        capability: the compute capability, times ten.
        architecture: NVIDIA's assembler's name of it.
        most_shared: bytes of shared memory of a program (CUDA C++ Programming Guide, its technical specifications).
    """

    capability: int
    architecture: str
    most_shared: int


GPUS = {
    "A100": Gpu(80, "sm_80", 163 * 1024),
    "L40S": Gpu(89, "sm_89", 99 * 1024),
    "H100": Gpu(90, "sm_90a", 227 * 1024),
}

BATCH, HEADS, LENGTH = 4, 2, 128
REAL_TOKENS = (128, 60, 3, 1)
DROPOUT = 0.1
COLUMNS = ("call", "kernel", "registers", "spilled bytes", "shared bytes")


@dataclass(frozen=True)
class AbsentGpu:
    """What Triton asks of a driver before it compiles."""

    gpu: Gpu

    def get_current_target(self) -> GPUTarget:
        """Return the GPU."""
        return GPUTarget("cuda", self.gpu.capability, WARP_SIZE)

    def get_current_device(self) -> int:
        """Return the first."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the first."""
        return 0


@dataclass(frozen=True)
class Compiled:
    """A kernel as it was compiled.

    Attributes:
        kernel: its file and name.
        registers: of a thread.
        spilled: bytes that a thread stores for lack of them.
        shared: bytes of memory of a program.
    """

    kernel: str
    registers: int
    spilled: int
    shared: int


class Recorder:
    """Compiles what is launched, in place of launching it, and keeps in `found` what that takes."""

    def __init__(self, architecture: str) -> None:
        self.launch = JITFunction.run
        self.architecture = architecture
        self.found: list[Compiled] = []

    def __call__(self, function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        """Compile, as `JITFunction.run` does before it launches."""
        compiled = self.launch(function, *args, grid=grid, warmup=True, **options)
        told = _assembled(compiled.asm["ptx"], self.architecture)
        name = f"{function.fn.__module__.rpartition('.')[2]}.{function.fn.__name__.lstrip('_')}"
        registers, spilled = (int(pattern.search(told)[1]) for pattern in (REGISTERS, SPILLED))  # type: ignore[index]
        self.found.append(Compiled(name, registers, spilled, compiled.metadata.shared))
        return compiled


REGISTERS, SPILLED = re.compile(r"Used (\d+) registers"), re.compile(r"(\d+) bytes spill stores")


def _assembled(assembly: str, architecture: str) -> str:
    """What NVIDIA's assembler, which Triton brings, tells of a kernel."""
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(assembly)
        file.flush()
        command = [str(assembler), f"-arch={architecture}", "-v", file.name, "-o", "/dev/null"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr  # noqa: S603  # Triton's own


def align(name: str, features: int, dtype: torch.dtype) -> None:
    """Call an alignment of padded samples, forwards and backwards."""
    module = ALIGNMENTS.load(name)(features)
    sides = [torch.randn(BATCH, HEADS, LENGTH, features, dtype=dtype, requires_grad=True) for _ in range(2)]
    mask = torch.arange(LENGTH) < torch.tensor(REAL_TOKENS)[:, None]
    module(*sides, mask).backward()


def attend(normalizer: str, features: int, dtype: torch.dtype, *, keys: int = LENGTH, **options: Any) -> None:
    """Call an attention of padded samples, with dropout, forwards and backwards."""
    config = AttentionConfig(normalizer=normalizer, normalizer_options=options)
    variant = AttentionVariant(config, features, HEADS)
    query, key, value = (
        torch.randn(BATCH, HEADS, n, features, dtype=dtype, requires_grad=True) for n in (LENGTH, keys, keys)
    )
    pairs = (torch.arange(keys) < torch.tensor(REAL_TOKENS)[:, None])[:, None, None].expand(-1, 1, LENGTH, -1)
    attended, _ = variant.attend(query, key, value, pairs, dropout=DROPOUT)
    attended.sum().backward()


def calls() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what is called, by its name."""
    for name, features in (("gan", 32), ("gan", 64), ("ct", 64), ("ot", 64), ("ot", 128)):
        for dtype in (torch.float32, torch.bfloat16):
            yield f"aa-{name}, {features} features, {_short(dtype)}", partial(align, name, features, dtype)
    choices: dict[str, dict[str, Any]] = {"sparsemax": {}, "entmax15": {}, "entmax": {"learned": True}}
    for (name, options), features in product(choices.items(), (32, 64)):
        for dtype in (torch.float32, torch.bfloat16):
            yield f"{name}, {features} features, {_short(dtype)}", partial(attend, name, features, dtype, **options)
    # Triton takes a number that is 1 for a constant.
    yield "entmax15, one key", partial(attend, "entmax15", 64, torch.float32, keys=1)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    """Compile what is named, or all, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("calls", nargs="*", metavar="CALL", help="all if none is named")
    parser.add_argument("--gpu", choices=GPUS, default="H100")
    parser.add_argument(
        "--precision",
        choices=("highest", "high", "medium"),
        default="highest",
        help="of products of float32, as PyTorch names it",
    )
    arguments = parser.parse_args()
    gpu = GPUS[arguments.gpu]
    named = arguments.calls or [name for name, _ in calls()]
    chosen = {name: call for name, call in calls() if name in named}
    if strange := sorted(set(named) - chosen.keys()):
        sys.exit(f"no such call: {'; '.join(strange)}: choose of {'; '.join(name for name, _ in calls())}")
    recorder = Recorder(gpu.architecture)
    driver.set_active(AbsentGpu(gpu))
    JITFunction.run = lambda *args, **options: recorder(*args, **options)
    # The features are on the CPU, where nothing would be launched.
    choice._obstacle = lambda *asked: None
    choice.use_kernels("triton")
    torch.set_float32_matmul_precision(arguments.precision)
    rows = []
    for name, call in chosen.items():
        recorder.found.clear()
        call()
        # The first call of a kernel compiles; others are of what is there already.
        rows += [
            [name, one.kernel, *map(str, (one.registers, one.spilled, one.shared))]
            for one in dict.fromkeys(recorder.found)
        ]
        print(f"compiled: {name}", file=sys.stderr)
    rows.append([f"{arguments.gpu} has", "", str(MOST_REGISTERS), "", str(gpu.most_shared)])
    print(render_table(list(COLUMNS), rows))


if __name__ == "__main__":
    main()

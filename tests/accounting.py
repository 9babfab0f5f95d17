"""What a loss costs on a GPU, accounted without one: operations, bytes moved, bytes kept, from shapes and types alone.

Meta tensors compute nothing, so an account is exact and the same on every machine. It says no times. The rules:

- An operation is an ATen call that is neither a view nor an allocation. A GPU runs at least one kernel for each.
- It moves the bytes of its inputs and outputs. A tensor counts without the dimensions along which it is expanded, and
  a tensor that is only overwritten, or gives only its type, is not read.
- `baddbmm` is two operations: ATen copies the bias to the result, and the product reads and writes it again.
- Attention is the kernel that a GPU takes; meta tensors would get the decomposition, which forms the weights. A GPU
  gets it, too, if the last dimension of a mask has another stride than 1.
- Bytes kept are those of the storages that the forward made and that are alive after it, so those that autograd and
  custom functions keep for the backward pass.
"""

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from alignattn.attention.alignment import Alignment
from alignattn.attention.alignment.calls import Call
from alignattn.attention.values import Value
from alignattn.attention.variant import values_mask

GIGABYTE, MIB = 1e9, 2**20
NOT_READ = {"copy_", "fill_", "zero_", "full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros"}
"""Operations that do not read their first tensor."""
BIAS_COPY = "copy of the bias"


class Accounting(TorchDispatchMode):
    """Counts the operations of a block.

    Attributes:
        operations: number of operations, by name.
        moved: their bytes, by name.
        peak: largest number of bytes alive that the block made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        given, made = _tensors((args, kwargs)), _tensors(result)
        is_view = bool(made) and not function._schema.is_mutable and all(_is_of(tensor, given) for tensor in made)
        name = function.overloadpacket.__name__
        if given + made and not is_view and "empty" not in name.split("_"):
            self._count(name, args, kwargs, made)
        for tensor in made:
            if not _is_of(tensor, given):
                storage = tensor.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.alive)
        return result

    def _count(self, name: str, args: Any, kwargs: dict[str, Any], made: list[Tensor]) -> None:
        read = _tensors((args, {key: value for key, value in kwargs.items() if key != "out"}))
        self.operations[name] += 1
        self.moved[name] += sum(map(_bytes, [*(read[1:] if name in NOT_READ else read), *made]))
        if name == "baddbmm" and kwargs.get("beta", 1) != 0:
            self.operations[BIAS_COPY] += 1
            self.moved[BIAS_COPY] += 2 * sum(map(_bytes, made))

    @property
    def alive(self) -> int:
        """The bytes that the block made and that are alive."""
        self._made = {key: found for key, found in self._made.items() if not found[0].expired()}
        return sum(size for _, size in self._made.values())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_of(tensor: Tensor, others: list[Tensor]) -> bool:
    return any(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata for other in others)


def _bytes(tensor: Tensor) -> int:
    return tensor.element_size() * math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size
    )


class _AttentionOfGPU(TorchFunctionMode):
    """Attention by the memory-efficient kernel, unless it refuses the mask."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return (_attention if function is F.scaled_dot_product_attention else function)(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *,
    scale: float | None = None,
) -> Tensor:
    if attn_mask is not None and attn_mask.stride(-1) != 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, scale=scale)
    bias = attn_mask
    if bias is not None:
        # As in ATen: the kernel adds a bias, expanded to all heads and queries.
        bias = torch.where(bias, 0.0, -torch.inf).to(query.dtype) if bias.dtype == torch.bool else bias
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
    is_trained = torch.is_grad_enabled() and any(side.requires_grad for side in (query, key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    result: Tensor = efficient(query, key, value, bias, is_trained, dropout_p, False, scale=scale)[0]
    return result


@contextmanager
def meta_as_gpu() -> Iterator[None]:
    """Let meta tensors take a GPU's way within this context."""
    # torch knows no autocast for meta tensors. The losses switch it off, and may ask whether it was on.
    autocast = {"autocast": lambda *_, **__: nullcontext(), "is_autocast_enabled": lambda *_: True}
    with mock.patch.multiple(torch, **autocast), _AttentionOfGPU():
        yield


class _Free(torch.autograd.Function):
    """A loss of no operation, whose gradients have the types and shapes of its inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.inputs = inputs
        return inputs[0].new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(given) for given in ctx.inputs)


@contextmanager
def free_losses() -> Iterator[None]:
    """Let alignment losses cost nothing within this context; what remains is the cost of reading queries and keys."""

    def of_calls(self: Alignment, calls: list[Call], _samples: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        loss: Tensor = _Free.apply(*(rows for call in calls for rows in (call.query, call.key)))  # type: ignore[no-untyped-call]
        return loss, {self.diagnostic: loss.detach()}

    with mock.patch.object(Alignment, "of_calls", of_calls):
        yield


@dataclass(frozen=True)
class Account:
    """What a forward and its backward pass cost.

    Attributes:
        forward: the account of the forward.
        backward: that of the backward pass.
        kept: bytes that the forward keeps for the backward pass, with its results.
    """

    forward: Accounting
    backward: Accounting
    kept: int

    @property
    def operations(self) -> Counter[str]:
        """Number of operations of both, by name."""
        return self.forward.operations + self.backward.operations

    @property
    def moved(self) -> Counter[str]:
        """Bytes moved of both, by name."""
        return self.forward.moved + self.backward.moved

    def __str__(self) -> str:
        """Return the sums."""
        return (
            f"{self.operations.total()} operations, {self.moved.total() / GIGABYTE:.1f} GB, "
            f"{self.kept / MIB:.0f} MiB kept, peak {self.forward.peak / MIB:.0f} MiB"
        )


def bert_base_calls(batch: int, length: int, layers: int = 12, heads: int = 12, dim: int = 64) -> list[Call]:
    """Return the calls of a forward of bert-base under bfloat16 autocast, whose batch has padding, as meta tensors."""

    def rows() -> Tensor:
        return torch.empty(batch, length, heads * dim, dtype=torch.bfloat16, device="meta", requires_grad=True)

    mask = torch.ones(batch, length, dtype=torch.bool, device="meta")
    return [Call(rows(), rows(), heads, mask, mask, layer) for layer in range(layers)]


def account_of(alignment: Alignment, calls: list[Call]) -> Account:
    """Return the account of the loss of calls, and of its backward pass."""
    return _account(lambda: [alignment.of_calls(calls)[0]])


def account_of_values(values: Sequence[Value], batch: int, length: int) -> Account:
    """Return the account of the value slots of layers, from queries and values under bfloat16 autocast."""
    slot = values[0]

    def heads() -> Tensor:
        rows = batch, length, slot.num_heads, slot.head_dim
        return torch.empty(rows, dtype=torch.bfloat16, device="meta", requires_grad=True).transpose(1, 2)

    sides = [(heads(), heads()) for _ in values]
    pairs = torch.ones(batch, 1, length, length, dtype=torch.bool, device="meta")
    return _account(lambda: [value(*side, values_mask(pairs)) for value, side in zip(values, sides, strict=True)])


def _account(forward: Callable[[], list[Tensor]]) -> Account:
    with meta_as_gpu():
        with Accounting() as of_forward:
            results = forward()
        gc.collect()
        kept = of_forward.alive
        # As dense gradients, which autograd would make of a scalar itself.
        gradients = [None if result.dim() == 0 else torch.empty_like(result) for result in results]
        with Accounting() as of_backward:
            torch.autograd.backward(results, gradients)
    return Account(of_forward, of_backward, kept)

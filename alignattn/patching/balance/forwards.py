"""Forwards of a model that is balanced: record the queries and keys that its attention receives, and its outputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import Parameter, signature
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from alignattn.attention.basis import Moments, cloud
from alignattn.attention.distance import equal_counts
from alignattn.patching.heads import BalancedHeads
from alignattn.patching.masks import real_tokens
from alignattn.patching.projections import FUSED, check_direct
from alignattn.utils.errors import AlignAttnError

Batch = Mapping[str, Any]
"""Keyword arguments of a model."""

LABELS = ("label", "labels", "start_positions", "end_positions", "next_sentence_label")
"""Labels, which are left out because no loss is wanted, unless the model needs them, as a generative one does."""
LOGITS = "logits"
DISTANCE_TOKENS = 4096
"""Maximum number of tokens of each attention call for the distances."""

Moment = tuple[Moments, Moments]
"""Moments of queries and of keys."""


CallPoints = tuple[str, Tensor, Tensor]
"""The path of an attention call's module, and equally many queries and keys, `[H, N, d]` each."""


def moments_of(model: nn.Module, heads: Sequence[BalancedHeads], batches: Iterable[Batch]) -> list[Moment]:
    """Return the moments of the queries and keys of each module over batches, which are not kept.

    Raises:
        AlignAttnError: if a module does not attend with the outputs of its projections.
    """
    moments = [(Moments.none(part.slots.heads.key_count, part.slots.heads.size),) * 2 for part in heads]

    def add(index: int, query: Tensor, key: Tensor) -> None:
        known = moments[index]
        moments[index] = known[0] + Moments.of(query).cpu(), known[1] + Moments.of(key).cpu()

    for number, batch in enumerate(batches):
        with _watching(heads, add), _checking_projections(heads) if number == 0 else nullcontext():
            outputs_of(model, batch)
    return moments


def moments_of_all_processes(heads: Sequence[BalancedHeads], moments: list[Moment]) -> list[Moment]:
    """Return the moments over the batches of all processes, given those of this process.

    Raises:
        AlignAttnError: if there are no real tokens in them, or queries or keys are not finite.
    """
    moments = _of_all_processes(moments, next(iter(heads[0].parameters())).device)
    for part, (query, key) in zip(heads, moments, strict=True):
        if query.count == 0:
            raise AlignAttnError(
                f"the batches for moments contain no real tokens for {part.path}: pass batches with some"
            )
        if not (query.outer.isfinite().all() and key.outer.isfinite().all()):
            raise AlignAttnError(f"queries or keys of {part.path} are not finite: there is nothing to balance")
    return moments


def points_and_outputs(
    model: nn.Module, heads: Sequence[BalancedHeads], batches: Iterable[Batch]
) -> tuple[list[CallPoints], list[dict[str, Tensor]]]:
    """Return the first queries and keys of each attention call, and the outputs of the model by batch."""
    paths: list[str] = []
    queries: list[list[Tensor]] = []
    keys: list[list[Tensor]] = []
    outputs = []
    for batch in batches:
        calls = count()

        def add(index: int, query: Tensor, key: Tensor, calls: Iterator[int] = calls) -> None:
            call = next(calls)
            if call == len(paths):
                paths.append(heads[index].path)
                queries.append([])
                keys.append([])
            room = DISTANCE_TOKENS - sum(points.shape[1] for points in queries[call])
            if room > 0:
                queries[call].append(query[:, :room].cpu())
                keys[call].append(key[:, :room].cpu())

        with _watching(heads, add):
            outputs.append(outputs_of(model, batch))
    points = [
        (path, *equal_counts(torch.cat(query, dim=1), torch.cat(key, dim=1)))
        for path, query, key in zip(paths, queries, keys, strict=True)
    ]
    return points, outputs


def outputs_of(model: nn.Module, batch: Batch, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return a model's outputs for a batch, in float64: its logits, or else all floating-point tensors.

    Args:
        model: a model in evaluation mode that accepts the batch as keyword arguments.
        batch: keyword arguments; labels are left out if the model does not need them.
        dtype: type to which the batch's floating-point tensors are cast; None: no cast.
    """
    device = next(model.parameters()).device
    read = signature(model.forward).parameters
    left_out = {name for name in LABELS if name not in read or read[name].default is not Parameter.empty}
    given = {name: _moved(value, device, dtype) for name, value in batch.items() if name not in left_out}
    # A compiled model would not see the hooks that watch it.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), _in_own_precision(model, device):
        result = model(**given)
    several = result if isinstance(result, Sequence) else (result,)
    named = result.items() if isinstance(result, Mapping) else enumerate(several)
    outputs = {
        str(name): value.detach().to("cpu").double()
        for name, value in named
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0
    }
    if not outputs:
        raise AlignAttnError(
            f"{type(model).__name__} returns no floating-point tensors, so a change cannot be measured"
        )
    logits = {name: values for name, values in outputs.items() if LOGITS in name}
    return logits or outputs


@contextmanager
def _in_own_precision(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Compute in the type of the weights, also during mixed-precision training."""
    attributes = vars(model)
    mixed, own = attributes.get("forward"), attributes.get("_original_forward")  # accelerate's
    if own is not None:
        attributes["forward"] = own
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if own is not None:
            attributes["forward"] = mixed


@contextmanager
def _watching(heads: Sequence[BalancedHeads], see: Callable[[int, Tensor, Tensor], None]) -> Iterator[None]:
    """Call `see` with a module's index and the real tokens' queries `[G, N, d]` and keys `[G, M, d]` at each call."""

    def hook_of(index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
            query, key, _value, mask = args[:4]
            real_queries, real_keys = real_tokens(mask)
            queries, keys = cloud(query, real_queries), cloud(key, real_keys)
            # The queries that share a key head are one cloud.
            see(index, queries.unflatten(0, (len(keys), -1)).flatten(1, 2), keys)

        return hook

    handles = [part.slots.register_forward_pre_hook(hook_of(index)) for index, part in enumerate(heads)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _checking_projections(heads: Sequence[BalancedHeads]) -> Iterator[None]:
    """Refuse attention whose queries or keys are not a multiple of its projections' outputs (`check_direct`)."""
    handles = []
    for part in heads:
        projected: dict[str, Tensor] = {}

        def check(_: nn.Module, args: Any, part: Any = part, projected: dict[str, Tensor] = projected) -> None:
            if FUSED in projected:
                projected["query"], projected["key"] = part.slots.heads.split(projected.pop(FUSED))
            for role, received in (("query", args[0]), ("key", args[1])):
                check_direct(part.path, role, projected.get(role, received.new_zeros(0)), received, part.pairs)

        for role, module in part.modules.items():
            handles.append(
                module.register_forward_hook(
                    lambda _m, _a, output, role=role, projected=projected: projected.update({role: output})
                )
            )
        handles.append(part.slots.register_forward_pre_hook(check))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_all_processes(moments: list[Moment], device: torch.device) -> list[Moment]:
    if not _is_group():
        return moments
    packed = torch.cat([part.packed() for both in moments for part in both]).to(device)
    dist.all_reduce(packed)
    # All processes must have the same sums, to the bit.
    dist.broadcast(packed, 0)
    rest, shared = packed.cpu(), []
    for both in moments:
        unpacked = []
        for part in both:
            own, rest = rest.split([part.packed().numel(), rest.numel() - part.packed().numel()])
            unpacked.append(part.unpacked(own))
        shared.append((unpacked[0], unpacked[1]))
    return shared


def _is_group() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def together(model: nn.Module) -> Iterator[None]:
    """Raise in every process if one raises, so that none waits for it.

    Args:
        model: a model on the device through which the processes communicate.

    Raises:
        AlignAttnError: if another process raises.
    """
    raised: Exception | None = None
    try:
        yield
    except Exception as error:
        raised = error
    device = next(model.parameters()).device
    if _is_group() and largest_of_all_processes([float(raised is not None)], device)[0] and raised is None:
        raise AlignAttnError("another process could not balance its model: see its message")
    if raised is not None:
        raise raised


def largest_of_all_processes(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the maximum of each value over the processes; NaN if any is NaN."""
    if not _is_group():
        return list(values)
    # The maximum of NaN and a number differs between backends.
    both = torch.tensor([[float(value != value), value if value == value else 0.0] for value in values])
    both = both.to(device, torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return [float("nan") if is_nan else value for is_nan, value in both.tolist()]


def _moved(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None)

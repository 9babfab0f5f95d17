"""Give queries and keys of every head equal means and covariances, without changing the function.

The mathematics is that of `alignattn.attention.basis`; A and c of a head are folded into W_Q, b_Q, W_K and b_K.
"""

import copy
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from inspect import Parameter, signature
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.basis import Basis, Form, Moments, balancing_basis, cloud
from alignattn.attention.distance import equal_counts, halves, spread_distance
from alignattn.attention.scores import Dot, ScaledDot
from alignattn.patching.attach import attach, unpatch
from alignattn.patching.masks import real_tokens
from alignattn.patching.patch import patch
from alignattn.patching.probe import evaluating
from alignattn.patching.projections import DECLARED_POOLED, FUSED, Heads, declared_layers, norms_of
from alignattn.patching.routing import routed
from alignattn.patching.slots import LayerSlots, Patch
from alignattn.utils.attributes import replaced
from alignattn.utils.console import render_table
from alignattn.utils.errors import AlignAttnError, plural

MAX_CHANGE = 1e-3
"""Largest change of an output, relative to the spread of the outputs: float32 stays far below."""
MAX_ERROR = 1.5
"""Largest mean error of half-precision outputs against float64, relative to that before balancing."""
DIRECT_TOLERANCE = 0.02
"""Largest relative distance of queries from a multiple of their projection's output: half precision rounds."""
LABELS = ("label", "labels", "start_positions", "end_positions", "next_sentence_label")
"""Labels, which are left out because no loss is wanted, unless the model needs them, as a generative one does."""
DISTANCE_TOKENS = 4096
"""Maximum number of tokens of each attention call for the distances."""

Batch = Mapping[str, Any]
"""Keyword arguments of a model."""

Moment = tuple[Moments, Moments]
"""Moments of queries and of keys."""

ByHead = tuple[tuple[float, ...], ...]
"""A number for each layer and head."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BalancedHeads:
    """The projections of one attention module.

    Attributes:
        path: path of the module in its model.
        slots: slots of the module.
        query: weight `[G, H / G, d, in]` and bias `[G, H / G, d]`, by head of keys, views of the model's parameters; a
            bias may be None.
        key: weight `[G, d, in]` and bias `[G, d]`, likewise.
        modules: the projections by role.
    """

    path: str
    slots: LayerSlots
    query: tuple[Tensor, Tensor | None]
    key: tuple[Tensor, Tensor | None]
    modules: dict[str, nn.Linear]

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights and biases that balancing changes."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    @torch.no_grad()
    def change(self, basis: Basis) -> None:
        """Move queries and keys to another basis `[G, d, d]`, in place; products in float64."""
        for (weight, bias), matrix in ((self.query, basis.matrix[:, None]), (self.key, basis.inverse)):
            weight.copy_(matrix @ weight.to("cpu", torch.float64))
            if bias is not None:
                shift = basis.shift if bias is self.key[1] else 0
                bias.copy_((matrix @ bias.to("cpu", torch.float64)[..., None])[..., 0] + shift)


def balanced_heads(model: nn.Module) -> list[BalancedHeads]:
    """Return the heads of a model with slots, by attention module.

    Raises:
        AlignAttnError: if a change of basis would change what its attention computes, or its projections are shared.
    """
    name = type(model).__name__
    if not isinstance(model, nn.Module) or hasattr(model, "get_base_model"):
        raise AlignAttnError(f"{name} has adapters: merge them first (merge_and_unload), or balance the base model")
    for module in model.modules():
        kind = type(module).__name__.lower()
        if any(part in kind for part in ("rotary", "rope")):
            raise AlignAttnError(
                f"{name} rotates queries and keys by position, which leaves no basis free: it cannot be balanced"
            )
        if "disentangled" in kind:  # projects positions as well
            raise AlignAttnError(
                f"{name} scores positions by its queries and keys, too ({type(module).__name__}): it cannot be balanced"
            )
        own_score = getattr(module, "own_score", None)
        if own_score is not None and not isinstance(own_score, (Dot, ScaledDot)):
            raise AlignAttnError(
                f"{name} attends by a score of its own ({type(own_score).__name__}), which is no dot product of "
                "queries and keys: balancing would change what it computes"
            )
        if isinstance(module, Patch) and (reason := module.config.reason_unbalanced):
            raise AlignAttnError(f"{reason}, so balancing would change what {name} computes: it needs dot products")
    layers = [
        _heads_of(path, module)
        for path, module in model.named_modules()
        if isinstance(module._modules.get(CHILD_NAME), LayerSlots)
    ]
    # Something else that uses a projection would change with it.
    owners = Counter(id(values) for module in model.modules() for values in module._parameters.values())
    users = Counter(id(module) for heads in layers for module in heads.modules.values())
    for heads in layers:
        is_tied = any(owners[id(parameter)] > 1 for parameter in heads.parameters())
        if is_tied or any(users[id(module)] > 1 for module in heads.modules.values()):
            raise AlignAttnError(
                f"the projections of {heads.path} share their weights with others, which would change together "
                "with them"
            )
    return layers


def _heads_of(path: str, module: nn.Module) -> BalancedHeads:
    slots: Any = getattr(module, CHILD_NAME)
    modules = slots.heads.names.of(module) or {}
    if slots.heads.names == DECLARED_POOLED:
        raise AlignAttnError(f"{path} pools by a learned query, which has no distribution: it cannot be balanced")
    for role, projection in modules.items():
        _check_plain(f"{path}.{slots.heads.names.roles[role]}", projection)
    if norms_of(module):
        raise AlignAttnError(f"{path} normalises its queries and keys, which fixes the basis: it cannot be balanced")

    def part(role: str) -> tuple[Tensor, Tensor | None]:
        projection = modules[FUSED if FUSED in modules else role]
        weight, bias = projection.weight, projection.bias
        return _part(slots.heads, role, weight), None if bias is None else _part(slots.heads, role, bias)

    return BalancedHeads(path, slots, part("query"), part("key"), modules)


def _part(heads: Heads, role: str, values: Tensor) -> Tensor:
    """Return the queries' `[G, H / G, d, …]` or the keys' `[G, d, …]` part of a projection's weight or bias, a view."""
    by_group, values = (heads.key_count, -1, heads.size), values.detach()
    if heads.names.is_grouped:
        grouped = values.unflatten(0, by_group)
        return grouped[:, :-2] if role == "query" else grouped[:, -2]
    if FUSED in heads.names.roles:
        count = heads.count if role == "query" else heads.key_count
        values = values.narrow(0, 0 if role == "query" else heads.count * heads.size, count * heads.size)
    return values.unflatten(0, by_group) if role == "query" else values.unflatten(0, by_group)[:, 0]


def _check_plain(path: str, projection: nn.Module) -> None:
    """Refuse a projection of queries or keys that is not a plain linear layer with finite weights."""
    if type(projection) is not nn.Linear or "forward" in vars(projection):
        if hasattr(projection, "base_layer"):
            raise AlignAttnError(
                f"{path} has an adapter: merge it first (merge_and_unload), or balance the base and adapt that"
            )
        replaced = " with a forward that is not its own" if "forward" in vars(projection) else ""
        raise AlignAttnError(
            f"{path} is a {type(projection).__name__}, not a plain linear layer{replaced}: balance the model before "
            "it is quantised or wrapped"
        )
    weight: Any = projection.weight
    is_plain = type(weight) is nn.Parameter and weight.is_floating_point()
    if not is_plain or weight.shape != (projection.out_features, projection.in_features):
        raise AlignAttnError(
            f"the weights of {path} are quantised or sharded ({type(weight).__name__}, {weight.dtype}, "
            f"{list(weight.shape)}): balance the whole model before"
        )
    # Weights on the meta device cannot be checked here.
    if not weight.is_meta and not all(part.isfinite().all() for part in projection.parameters()):
        raise AlignAttnError(f"{path} holds weights that are not finite: there is nothing to balance")


@dataclass(frozen=True)
class BalanceReport:
    """What balancing changed in a model.

    Distances are `spread_distance`s on held-back tokens, pooled over samples, by attention call: a module that several
    layers share (ALBERT) has several. Values of A are by attention module.

    Attributes:
        form: what was made equal: `full`, means and covariances; `centre`, means; `uncentred`, second moments.
        layers: the path of each call's module.
        before: distance of queries and keys before balancing.
        after: distance of queries and keys after balancing.
        floor: distance of two halves of one cloud.
        condition: condition number of A.
        shrinkage: share of the identity in nearly singular covariances.
        tokens: number of real tokens in the moments.
        held_back_tokens: number of tokens in the distances.
        largest_change: largest change of an output of the model on held-back batches.
        spread: standard deviation of these outputs.
        rounding: for a model in half precision, the mean error of its outputs against the same function in float64,
            before and after; else None.
        notes: notes on unusual results, a line each.
    """

    form: Form
    layers: tuple[str, ...]
    before: ByHead
    after: ByHead
    floor: ByHead
    condition: ByHead
    shrinkage: ByHead
    tokens: int
    held_back_tokens: int
    largest_change: float
    spread: float
    rounding: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    def means(self) -> dict[str, float]:
        """Return the mean distances over layers and heads: `before`, `after`, `floor`."""
        return {name: _mean([_mean(heads) for heads in getattr(self, name)]) for name in ("before", "after", "floor")}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types; null for what is not finite."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return [plain(part) for part in value]
            return None if isinstance(value, float) and not math.isfinite(value) else value

        return {name: plain(value) for name, value in asdict(self).items()}

    def describe(self) -> str:
        """Return a table with a line for each layer, means over its heads, and the changes of the outputs."""
        rows = [
            [str(index), layer, *(f"{_mean(heads):.4f}" for heads in distances)]
            for index, (layer, *distances) in enumerate(
                zip(self.layers, self.before, self.after, self.floor, strict=True)
            )
        ]
        rows.append(["", "mean", *(f"{mean:.4f}" for mean in self.means().values())])
        lines = [
            render_table(["", "attention", "before", "after", "floor"], rows, left=2),
            "",
            f"Sliced Wasserstein distance of queries and keys over their spread, mean over heads, on "
            f"{self.held_back_tokens} held-back tokens; floor: two halves of one cloud.",
            f"Moments of {self.tokens} tokens, pooled over samples; condition of A at most "
            f"{max(map(max, self.condition)):.1f}.",
            f"Largest change of an output: {self.largest_change:.2g}, of a spread of {self.spread:.2g}.",
        ]
        if self.rounding is not None:
            before, after = self.rounding
            lines.append(f"Mean error of the outputs against float64: {before:.2g} before, {after:.2g} after.")
        return "\n".join([*lines, *self.notes])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def balance(
    model: nn.Module, batches: Iterable[Batch], *, held_back: Iterable[Batch] | None = None, centre: bool = False
) -> BalanceReport:
    """Give queries and keys of every head equal means and covariances, in place, without changing the function.

        report = alignattn.balance(model, loader)
        print(report.describe())

    Attention with a shift-invariant normalizer reads queries and keys only through their products, up to a constant for
    each query. So W_Q, b_Q, W_K and b_K can move to another basis of each head (`alignattn.attention.basis`). Moments
    are sums over the real tokens of all batches, in float64, with the model in evaluation mode. In a process group each
    process passes its own batches, at least two; all get one model, or all raise.

    A module that several layers share (ALBERT) gets one A for each head: moments are equal pooled over its calls, not
    in each call. Without a bias of the keys there is no c: A makes the uncentred second moments equal. Heads that share
    keys get one A. In a patched model, the layers with slots are balanced. Drop an optimizer's state of the projections
    of queries and keys, because it belongs to the old basis.

    Args:
        model: a model that `alignattn.patch` or `alignattn.attach` accepts, patched or not.
        batches: keyword arguments of the model, `[B, n]` and so on; labels are left out if the model does not need
            them. Iterated once.
        held_back: batches on which distances and the change of the outputs are measured. None: the first of `batches`,
            which then does not enter the moments, unless it is the only one.
        centre: whether to make only the means equal, by c with A = I.

    Returns:
        Distances before and after, and the largest change of an output.

    Raises:
        AlignAttnError: if attention of the model rotates queries and keys by position or reads more of them than their
            products, its projections are not plain, there are no real tokens, or an output would change by more than
            1e-3 of the outputs' spread (in half precision: if their mean error against float64 would exceed 1.5 times
            that before). The model is then bitwise unchanged.
    """
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    with _slots_of(model), routed(model), evaluating(model):
        with _together(model):
            heads = balanced_heads(model)
            for part in heads:
                if any(parameter.is_meta for parameter in part.parameters()):
                    raise AlignAttnError(
                        f"the weights of {part.path} are not in memory: load the model without a device map"
                    )
            without_bias = [part.path for part in heads if part.key[1] is None]
            if centre and without_bias:
                raise AlignAttnError(f"{without_bias[0]} adds no bias to its keys: leave centre out")
            form: Form = "uncentred" if without_bias else "centre" if centre else "full"
            if held_back is not None:
                checked = list(held_back)
                if not checked:
                    raise AlignAttnError("held_back needs at least one batch")
            else:
                rest = iter(batches)
                checked = list(itertools.islice(rest, 1))
                if not checked:
                    raise AlignAttnError("balance needs at least one batch")
                # A single batch is used for both.
                following = list(itertools.islice(rest, 1))
                batches = itertools.chain(following, rest) if following else checked
            moments = _moments_of(model, heads, batches)
        moments = _moments_of_all_processes(heads, moments)
        with _together(model):
            points, outputs = _points_and_outputs(model, heads, checked)
            exact = None
            if any(own.element_size() < torch.float32.itemsize for part in heads for own in part.parameters()):
                twin = copy.deepcopy(model).double()
                exact = _joined(_outputs_of(twin, batch, torch.float64) for batch in checked)
            if not outputs.isfinite().all():
                raise AlignAttnError(f"the outputs of {type(model).__name__} on held-back batches are not finite")
        bases = [balancing_basis(query, key, form) for query, key in moments]
        kept = [(parameter, parameter.detach().clone()) for part in heads for parameter in part.parameters()]
        try:
            with _together(model):
                for part, basis in zip(heads, bases, strict=True):
                    part.change(basis)
                points_after, outputs_after = _points_and_outputs(model, heads, checked)
            change, rounding = _checked_change(model, outputs, outputs_after, exact)
        except BaseException:
            with torch.no_grad():
                for parameter, values in kept:
                    parameter.copy_(values)
            raise
    before, after, floor = [], [], []
    for (_, *first), (_, *second) in zip(points, points_after, strict=True):
        query, key = map(halves, first)
        # Computed from as many points as the floor.
        before.append(spread_distance(query[0], key[0]))
        after.append(spread_distance(*(halves(side)[0] for side in second)))
        floor.append((spread_distance(*query) + spread_distance(*key)) / 2)
    notes = _notes(form, heads, bases, moments)
    for note in notes:
        logger.warning("%s", note)
    return BalanceReport(
        form=form,
        layers=tuple(path for path, *_ in points),
        before=_by_head(before),
        after=_by_head(after),
        floor=_by_head(floor),
        condition=_by_head([basis.condition for basis in bases]),
        shrinkage=_by_head([basis.shrinkage for basis in bases]),
        tokens=_tokens(moments[0]),
        held_back_tokens=points[0][1].shape[1],
        largest_change=change[0],
        spread=change[1],
        rounding=rounding,
        notes=tuple(notes),
    )


def reason_unbalanced(model: nn.Module) -> str | None:
    """Return why no change of basis makes the queries and keys of a model agree in means and covariances, or None."""
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    try:
        with _slots_of(model):
            balanced_heads(model)
    except AlignAttnError as error:
        return str(error)
    return None


@contextmanager
def _slots_of(model: nn.Module) -> Iterator[None]:
    """Use the slots of a model within this context, or temporary slots of plain attention if it has none.

    Raises:
        AlignAttnError: as `patch` and `attach` do.
    """
    if any(isinstance(module, LayerSlots) for module in model.modules()):
        yield
        return
    if declared_layers(model):
        attach(model, "soft")
    else:
        # It refuses models that are not of transformers.
        patch(model, "soft")  # type: ignore[arg-type]
    try:
        yield
    finally:
        unpatch(model)


def _moments_of(model: nn.Module, heads: Sequence[BalancedHeads], batches: Iterable[Batch]) -> list[Moment]:
    """Return the moments of the queries and keys of each module over batches, which are not kept.

    Raises:
        AlignAttnError: if a module does not attend with the outputs of its projections.
    """
    moments = [(Moments.none(part.slots.heads.key_count, part.slots.heads.size),) * 2 for part in heads]

    def add(index: int, query: Tensor, key: Tensor) -> None:
        of_query, of_key = moments[index]
        moments[index] = of_query + Moments.of(query).cpu(), of_key + Moments.of(key).cpu()

    for number, batch in enumerate(batches):
        with _watching(heads, add), _checking_projections(heads) if number == 0 else nullcontext():
            _outputs_of(model, batch)
    return moments


def _points_and_outputs(
    model: nn.Module, heads: Sequence[BalancedHeads], batches: Iterable[Batch]
) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor]:
    """Return the module's path and equally many queries and keys `[H, N, d]` of each attention call, and the outputs.

    Queries and keys are those of the first tokens; the outputs of the model are joined.
    """
    paths: list[str] = []
    queries: list[list[Tensor]] = []
    keys: list[list[Tensor]] = []
    outputs = []
    for batch in batches:
        calls = itertools.count()

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
            outputs.append(_outputs_of(model, batch))
    points = [
        (path, *equal_counts(torch.cat(query, dim=1), torch.cat(key, dim=1)))
        for path, query, key in zip(paths, queries, keys, strict=True)
    ]
    return points, _joined(outputs)


def _outputs_of(model: nn.Module, batch: Batch, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return a model's outputs for a batch, in float64 on the CPU: its logits, or else all floating-point tensors.

    Args:
        model: a model in evaluation mode that accepts the batch as keyword arguments.
        batch: keyword arguments; labels are left out if the model does not need them.
        dtype: type to which the batch's floating-point tensors are cast; None: no cast.
    """
    device = next(model.parameters()).device
    read = signature(model.forward).parameters
    left_out = {name for name in LABELS if name not in read or read[name].default is not Parameter.empty}
    inputs = {
        name: value.to(device, dtype if value.is_floating_point() else None) if isinstance(value, Tensor) else value
        for name, value in batch.items()
        if name not in left_out
    }
    # In the type of the weights, also if accelerate wraps the forward for mixed precision.
    own = vars(model).get("_original_forward")
    own_forward = nullcontext() if own is None else replaced(model, forward=own)
    # A compiled model would not see the hooks that watch it.
    eager = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), eager, own_forward, torch.autocast(device.type, enabled=False):
        result = model(**inputs)
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
    return [values for name, values in outputs.items() if "logits" in name] or list(outputs.values())


def _joined(outputs: Iterable[Sequence[Tensor]]) -> Tensor:
    return torch.cat([values.flatten() for of_batch in outputs for values in of_batch])


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

    with ExitStack() as hooks:
        for index, part in enumerate(heads):
            hooks.enter_context(part.slots.register_forward_pre_hook(hook_of(index)))
        yield


@contextmanager
def _checking_projections(heads: Sequence[BalancedHeads]) -> Iterator[None]:
    """Refuse attention whose queries or keys are not a multiple of their projection's output, such as normed ones."""
    with ExitStack() as hooks:
        for part in heads:
            projected: dict[str, Tensor] = {}

            def check(_: nn.Module, args: Any, part: Any = part, projected: dict[str, Tensor] = projected) -> None:
                if FUSED in projected:
                    projected["query"], projected["key"] = part.slots.heads.split(projected.pop(FUSED))
                for role, received in (("query", args[0]), ("key", args[1])):
                    received = received.transpose(1, 2).float()
                    output = projected.get(role, received.new_zeros(0)).float()
                    is_direct = output.numel() == received.numel()
                    if is_direct:
                        output, received = output.flatten(), received.flatten()
                        factor = (output @ received) / (output @ output).clamp_min(torch.finfo(output.dtype).tiny)
                        # A later check reports values that are not finite.
                        is_direct = not (received - factor * output).norm() > DIRECT_TOLERANCE * received.norm()
                    if not is_direct:
                        raise AlignAttnError(
                            f"{part.path} does not attend with the {role} that its projection gives: it rotates or "
                            "norms it first, so it cannot be balanced"
                        )

            for role, module in part.modules.items():
                hooks.enter_context(
                    module.register_forward_hook(
                        lambda _m, _a, output, role=role, projected=projected: projected.update({role: output})
                    )
                )
            hooks.enter_context(part.slots.register_forward_pre_hook(check))
        yield


def _checked_change(
    model: nn.Module, before: Tensor, after: Tensor, exact: Tensor | None
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return the largest change of an output and the spread of the outputs, and the errors in half precision.

    Raises:
        AlignAttnError: if the change or the error is too large.
    """
    change = float((after - before).abs().max())
    spread = float(before.std(correction=0)) or float(before.square().mean().sqrt())
    errors = [] if exact is None else [float((outputs - exact).abs().mean()) for outputs in (before, after)]
    change, spread, *errors = _largest_of_all_processes([change, spread, *errors], next(model.parameters()).device)
    too_much = None
    if exact is None and not change <= MAX_CHANGE * spread:
        too_much = f"an output by {change:.2g}, of a spread of {spread:.2g}"
    elif exact is not None and not errors[1] <= MAX_ERROR * errors[0]:
        too_much = f"the outputs' mean error against float64 from {errors[0]:.2g} to {errors[1]:.2g}"
    if too_much is not None:
        raise AlignAttnError(
            f"balancing would change {too_much}: something else reads the queries or keys of {type(model).__name__}, "
            "or its outputs depend on rounding; its weights are left as they were"
        )
    return (change, spread), None if exact is None else (errors[0], errors[1])


def _tokens(moment: Moment) -> int:
    """Return the number of real tokens; if heads share keys, the count of queries is a multiple of it."""
    return int(min(part.count for part in moment))


def _notes(form: Form, heads: Sequence[BalancedHeads], bases: Sequence[Basis], moments: Sequence[Moment]) -> list[str]:
    notes = []
    if form == "uncentred":
        notes.append("without a bias of the keys: uncentred second moments are equal, not means and covariances")
    tokens = [(_tokens(moment), part.slots.heads.size) for part, moment in zip(heads, moments, strict=True)]
    few = [(count, size) for count, size in tokens if count < size]
    if few and form != "centre":
        notes.append(
            f"fewer real tokens ({few[0][0]}) than the size of a head ({few[0][1]}): their covariances are singular, "
            "and shrunk towards a multiple of the identity"
        )
    elif count := sum(int((basis.shrinkage > 0).sum()) for basis in bases):
        notes.append(
            f"near singular covariances of {plural(count, 'head')} are shrunk towards a multiple of the identity"
        )
    if count := sum(int(basis.is_bounded.sum()) for basis in bases):
        notes.append(
            f"{plural(count, 'head')} balanced in part: their queries or keys are almost one point, or on a line"
        )
    return notes


def _by_head(layers: Sequence[Tensor]) -> ByHead:
    return tuple(tuple(layer.tolist()) for layer in layers)


def _is_group() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def _together(model: nn.Module) -> Iterator[None]:
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
    if _is_group() and _largest_of_all_processes([float(raised is not None)], device)[0] and raised is None:
        raise AlignAttnError("another process could not balance its model: see its message")
    if raised is not None:
        raise raised


def _largest_of_all_processes(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the maximum of each value over the processes; NaN if any is NaN."""
    if not _is_group():
        return list(values)
    # The maximum of NaN and a number differs between backends.
    both = torch.tensor([[float(value != value), value if value == value else 0.0] for value in values])
    both = both.to(device, torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return [float("nan") if is_nan else value for is_nan, value in both.tolist()]


def _moments_of_all_processes(heads: Sequence[BalancedHeads], moments: list[Moment]) -> list[Moment]:
    """Return the moments over the batches of all processes, given those of this process.

    Raises:
        AlignAttnError: if there are no real tokens in them, or queries or keys are not finite.
    """
    device = next(iter(heads[0].parameters())).device

    def summed(values: Tensor) -> Tensor:
        values = values.to(device)
        dist.all_reduce(values)
        # All processes must have the same sums, to the bit.
        dist.broadcast(values, 0)
        return values.cpu()

    def of_all(own: Moments) -> Moments:
        return Moments(summed(own.count), summed(own.total), summed(own.outer))

    if _is_group():
        moments = [(of_all(query), of_all(key)) for query, key in moments]
    for part, (query, key) in zip(heads, moments, strict=True):
        if query.count == 0:
            raise AlignAttnError(
                f"the batches for moments contain no real tokens for {part.path}: pass batches with some"
            )
        if not (query.outer.isfinite().all() and key.outer.isfinite().all()):
            raise AlignAttnError(f"queries or keys of {part.path} are not finite: there is nothing to balance")
    return moments

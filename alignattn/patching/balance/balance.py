"""Balance a model: moments of its queries and keys, the basis in which they agree, and the check of its outputs.

The mathematics is that of `alignattn.attention.basis`; A and c of a head are folded into W_Q, b_Q, W_K and b_K.
"""

import copy
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from alignattn.attention.basis import Basis, Form, balancing_basis, random_basis, rotary_basis
from alignattn.attention.distance import halves, spread_distance
from alignattn.patching.attach import attach, unpatch
from alignattn.patching.balance.forwards import (
    Batch,
    CallPoints,
    Moment,
    largest_of_all_processes,
    moments_of,
    moments_of_all_processes,
    outputs_of,
    points_and_outputs,
    together,
)
from alignattn.patching.balance.report import BalanceReport, ByHead
from alignattn.patching.heads import BalancedHeads, balanced_heads, check_in_memory, forget_basis
from alignattn.patching.patch import patch
from alignattn.patching.probe import evaluating
from alignattn.patching.projections import declared_layers
from alignattn.patching.routing import routed
from alignattn.patching.slots import LayerSlots
from alignattn.utils.errors import AlignAttnError

MAX_CHANGE = 1e-3
"""Largest change of an output, relative to the spread of the outputs: float32 stays far below."""
MAX_ERROR = 1.5
"""Largest mean error of half-precision outputs against float64, relative to that before balancing."""

RANDOM = "random"
"""The form of the control."""
ROTARY = "rotary"
"""The form where queries and keys are rotated by position: their mean squares per frequency are equal."""
ONE_FACTOR = "rotates queries and keys by position, which leaves one factor for each frequency free"
"""Why means and covariances of such a model cannot be made equal; follows its name."""

logger = logging.getLogger(__name__)


def balance(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    held_back: Iterable[Batch] | None = None,
    centre: bool = False,
    random_seed: int | None = None,
) -> BalanceReport:
    """Give queries and keys of every head equal means and covariances, in place, without changing the function.

        report = alignattn.balance(model, loader)
        print(report.describe())

    Attention with a shift-invariant normalizer reads queries and keys only through their products, up to a constant for
    each query. So W_Q, b_Q, W_K and b_K can move to another basis of each head (`alignattn.attention.basis`). Moments
    are sums over the real tokens of all batches, in float64, with the model in evaluation mode. In a process group each
    process passes its own batches, at least two; all get one model, or all raise.

    A module that several layers share (ALBERT) gets one A for each head: moments are equal pooled over its calls, not
    in each call. Without a bias of the keys there is no c: A makes the uncentred second moments equal. If queries and
    keys are rotated by position, only a factor for each frequency is free: it makes their mean squares equal. Heads
    that share keys get one A. In a patched model, the layers with slots are balanced.

    Drop an optimizer's state of `balanced_parameters`, because it belongs to the old basis. A basis that
    `gradient_scope="basis"` has learned restarts at the identity.

    Args:
        model: a model that `alignattn.patch` or `alignattn.attach` accepts, patched or not.
        batches: keyword arguments of the model, `[B, n]` and so on; labels are left out if the model does not need
            them. Iterated once.
        held_back: batches on which distances and the change of the outputs are measured. None: the first of `batches`,
            which then does not enter the moments, unless it is the only one.
        centre: whether to make only the means equal, by c with A = I.
        random_seed: seed of a random A, as a control; None: no control. This A has the eigenvalues that balance, in a
            random basis, so that means are equal and covariances are not.

    Returns:
        Distances before and after, and the largest change of an output.

    Raises:
        AlignAttnError: if attention of the model reads more of queries and keys than their products, its projections
            are not plain, there are no real tokens, or an output would change by more than 1e-3 of the outputs' spread
            (in half precision: if their mean error against float64 would exceed 1.5 times that before). The model is
            then bitwise unchanged.
    """
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    with _slots_of(model), routed(model), evaluating(model):
        report = _balance(model, batches, held_back, centre=centre, random_seed=random_seed)
        forget_basis(model)
    return report


def balanced_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights and biases of the query and key projections, which `balance` changes.

    Raises:
        AlignAttnError: for the reasons of `balance` that concern the model.
    """
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    with _slots_of(model):
        return [parameter for part in balanced_heads(model) for parameter in part.parameters()]


def reason_unbalanced(model: nn.Module) -> str | None:
    """Return why no change of basis makes the queries and keys of a model agree in means and covariances, or None."""
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    try:
        with _slots_of(model):
            heads = balanced_heads(model)
    except AlignAttnError as error:
        return str(error)
    if any(part.pairs for part in heads):
        return f"{type(model).__name__} {ONE_FACTOR}"
    return None


def _balance(
    model: nn.Module,
    batches: Iterable[Batch],
    held_back: Iterable[Batch] | None,
    *,
    centre: bool,
    random_seed: int | None,
) -> BalanceReport:
    with together(model):
        if centre and random_seed is not None:
            raise AlignAttnError("centre keeps A = I, and random_seed draws A: leave centre or random_seed out")
        heads = balanced_heads(model)
        is_rotated = any(part.pairs for part in heads)
        if is_rotated and (centre or random_seed is not None):
            raise AlignAttnError(f"{type(model).__name__} {ONE_FACTOR}: leave centre and random_seed out")
        check_in_memory(heads)
        form = _form(heads, centre=centre)
        batches, checked = _parted(batches, held_back)
        moments = moments_of(model, heads, batches)
    moments = moments_of_all_processes(heads, moments)
    with together(model):
        points, outputs = points_and_outputs(model, heads, checked)
        exact = None
        if any(own.element_size() < torch.float32.itemsize for part in heads for own in part.parameters()):
            twin = copy.deepcopy(model).double()
            exact = [outputs_of(twin, batch, torch.float64) for batch in checked]
        if not _joined(outputs).isfinite().all():
            raise AlignAttnError(f"the outputs of {type(model).__name__} on held-back batches are not finite")
    bases = [
        rotary_basis(query, key, part.pairs) if part.pairs else balancing_basis(query, key, form)
        for part, (query, key) in zip(heads, moments, strict=True)
    ]
    if random_seed is not None:
        generator = torch.Generator().manual_seed(random_seed)
        bases = [random_basis(basis, *both, form, generator) for basis, both in zip(bases, moments, strict=True)]
    with _as_before_if_refused(heads):
        with together(model):
            for part, basis in zip(heads, bases, strict=True):
                part.change(basis)
            points_after, outputs_after = points_and_outputs(model, heads, checked)
        change, rounding = _checked_change(model, outputs, outputs_after, exact)
    name = ROTARY if is_rotated else form if random_seed is None else RANDOM
    return _report(name, heads, bases, moments, (points, points_after), change, rounding)


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


@contextmanager
def _as_before_if_refused(heads: Sequence[BalancedHeads]) -> Iterator[None]:
    """Restore the weights of the heads' projections, bitwise, on any error."""
    kept = [(parameter, parameter.detach().clone()) for part in heads for parameter in part.parameters()]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.copy_(values)
        raise


def _form(heads: Sequence[BalancedHeads], *, centre: bool) -> Form:
    if all(part.key[1] is not None for part in heads):
        return "centre" if centre else "full"
    without = next(part.path for part in heads if part.key[1] is None)
    if centre:
        raise AlignAttnError(f"{without} adds no bias to its keys: leave centre out")
    return "uncentred"


def _parted(batches: Iterable[Batch], held_back: Iterable[Batch] | None) -> tuple[Iterable[Batch], list[Batch]]:
    """Return the batches for moments and those to measure on: by default the first; a single batch is used for both."""
    if held_back is not None:
        checked = list(held_back)
        if not checked:
            raise AlignAttnError("held_back needs at least one batch")
        return batches, checked
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise AlignAttnError("balance needs at least one batch")
    second = next(rest, None)
    return ([first] if second is None else itertools.chain([second], rest)), [first]


def _checked_change(
    model: nn.Module,
    before: Sequence[dict[str, Tensor]],
    after: Sequence[dict[str, Tensor]],
    exact: Sequence[dict[str, Tensor]] | None,
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """Return the largest change of an output and the spread of the outputs, and the errors in half precision.

    Raises:
        AlignAttnError: if the change or the error is too large.
    """
    device = next(model.parameters()).device
    joined = [_joined(outputs) for outputs in (before, after)]
    change = float((joined[1] - joined[0]).abs().max())
    spread = float(joined[0].std(correction=0)) or float(joined[0].square().mean().sqrt())
    errors = [] if exact is None else [float((outputs - _joined(exact)).abs().mean()) for outputs in joined]
    change, spread, *errors = largest_of_all_processes([change, spread, *errors], device)
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


def _joined(outputs: Sequence[dict[str, Tensor]]) -> Tensor:
    return torch.cat([values.flatten() for of_batch in outputs for values in of_batch.values()])


def _report(
    form: str,
    heads: Sequence[BalancedHeads],
    bases: Sequence[Basis],
    moments: Sequence[Moment],
    points: tuple[Sequence[CallPoints], Sequence[CallPoints]],
    change: tuple[float, float],
    rounding: tuple[float, float] | None,
) -> BalanceReport:
    before, after, floor = [], [], []
    for (_, *first), (_, *second) in zip(*points, strict=True):
        query, key = map(halves, first)
        # Computed from as many points as the floor.
        before.append(spread_distance(query[0], key[0]))
        after.append(spread_distance(*(halves(one)[0] for one in second)))
        floor.append((spread_distance(*query) + spread_distance(*key)) / 2)
    notes = _notes(form, heads, bases, moments)
    for note in notes:
        logger.warning("%s", note)
    return BalanceReport(
        form=form,
        layers=tuple(path for path, *_ in points[0]),
        before=_by_head(before),
        after=_by_head(after),
        floor=_by_head(floor),
        condition=_by_head([basis.condition for basis in bases]),
        shrinkage=_by_head([basis.shrinkage for basis in bases]),
        tokens=_tokens(moments[0]),
        held_back_tokens=points[0][0][1].shape[1],
        largest_change=change[0],
        spread=change[1],
        rounding=rounding,
        notes=tuple(notes),
    )


def _tokens(moment: Moment) -> int:
    """Return the number of real tokens; if heads share keys, the count of queries is a multiple of it."""
    return int(min(part.count for part in moment))


def _notes(form: str, heads: Sequence[BalancedHeads], bases: Sequence[Basis], moments: Sequence[Moment]) -> list[str]:
    notes = []
    if form == RANDOM:
        notes.append("a control: A is random, with the eigenvalues of the balancing A, so covariances stay unequal")
    if form == ROTARY:
        notes.append(
            "queries and keys are rotated by position: their mean squares per frequency are equal, not means and "
            "covariances"
        )
    if form == "uncentred":
        notes.append("without a bias of the keys: uncentred second moments are equal, not means and covariances")
    tokens = [(_tokens(moment), part.slots.heads.size) for part, moment in zip(heads, moments, strict=True)]
    few = [(count, size) for count, size in tokens if count < size]
    if few and form not in ("centre", ROTARY):
        notes.append(
            f"fewer real tokens ({few[0][0]}) than the size of a head ({few[0][1]}): their covariances are singular, "
            "and shrunk towards a multiple of the identity"
        )
    elif any((basis.shrinkage > 0).any() for basis in bases):
        count = sum(int((basis.shrinkage > 0).sum()) for basis in bases)
        notes.append(f"near singular covariances of {count} head(s) are shrunk towards a multiple of the identity")
    if any(basis.is_bounded.any() for basis in bases):
        count = sum(int(basis.is_bounded.sum()) for basis in bases)
        notes.append(f"{count} head(s) are balanced in part: their queries or keys are almost one point, or on a line")
    return notes


def _by_head(layers: Sequence[Tensor]) -> ByHead:
    return tuple(tuple(layer.tolist()) for layer in layers)

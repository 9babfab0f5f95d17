"""Check a patch: compare the patched model with the unpatched one on a small input.

A patch is refused if the two differ in a way that it does not explain.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel

from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.families import is_slotted
from alignattn.patching.masks import real_tokens
from alignattn.patching.probe_inputs import IDS, MASK, probe_inputs
from alignattn.patching.projections import FUSED, features_of
from alignattn.patching.recording import RecordedCall
from alignattn.patching.routing import IMPLEMENTATIONS, configs_of, is_ours, unrouted
from alignattn.patching.slots import LayerSlots, patch_of, update_taps
from alignattn.utils.errors import AlignAttnError

SEED = 0
"""Seed of the random numbers that both sides of a comparison draw."""

TOLERANCE = {8: 1e-6, 4: 1e-3, 2: 5e-2}
"""Largest rounding difference, relative to an output's largest value, by bytes per number. Uncompiled eager attention
and SDPA are compared bitwise; other implementations, and our own forwards (`families`), within this tolerance."""

NORM_TOLERANCE = 0.05
"""Relative distance within which the norms of a token's heads count as those of its projection: half precision rounds.
Rotations keep norms."""

SCALE_TOLERANCE = 0.01
"""Relative distance within which the norm of a query counts as scaled by 1/sqrt(d)."""

Inputs = Mapping[str, Tensor]

Received = tuple[Tensor, Tensor]
"""Queries `[B, H, n, d]` and keys `[B, G, m, d]`."""

_INTERFACE = threading.Lock()
"""Held while transformers' attention interface is watched."""


@dataclass(frozen=True)
class Probe:
    """Outputs of an unpatched model for small inputs.

    Attributes:
        base: the model without a head, or the whole model if no inputs can be made for that (DINOv3's encoder).
        inputs: without padding, and with padding if the model accepts a mask.
        outputs: outputs of the base for each input; `outputs[i][j]` is the j-th tensor.
        received: queries and keys of the first call of each module that used transformers' attention interface.
    """

    base: nn.Module
    inputs: Sequence[Inputs]
    outputs: Sequence[Sequence[Tensor]]
    received: Mapping[nn.Module, Received]


def probe(model: PreTrainedModel) -> Probe | None:
    """Run an unpatched model on small inputs; None if no input can be made for it.

    Args:
        model: the unpatched model, with its weights in memory.
    """
    bases = [model.base_model] if model.base_model is model else [model.base_model, model]
    for base, inputs in ((asked, inputs) for asked in bases for inputs in probe_inputs(asked)):
        try:
            with _receiving() as received:
                return Probe(base, inputs, [_run(partial(base, **given), base) for given in inputs], received)
        # The model needs other inputs, such as pixels and text. Its error says nothing about its attention.
        except Exception:  # noqa: S112 - the next kind of input is tried
            continue
    return None


@contextmanager
def _receiving() -> Iterator[dict[nn.Module, Received]]:
    """Yield the queries and keys of each attention module's first call of transformers' attention interface."""
    received: dict[nn.Module, Received] = {}

    def choose(interface: Any, implementation: str, default: Any) -> Any:
        function = chosen(interface, implementation, default)

        def attend(module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
            received.setdefault(module, (query.detach(), key.detach()))
            return function(module, query, key, *args, **kwargs)

        return attend

    with _INTERFACE:
        chosen = AttentionInterface.get_interface
        AttentionInterface.get_interface = choose  # type: ignore[method-assign, assignment]
        try:
            yield received
        finally:
            AttentionInterface.get_interface = chosen  # type: ignore[method-assign]


def is_dispatched(model: nn.Module) -> bool:
    """Tell whether accelerate moves a model's weights or inputs between devices."""
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def can_probe(model: nn.Module) -> bool:
    """Tell whether the weights of a model are in memory: neither on the meta device nor offloaded by accelerate."""
    return not is_dispatched(model) and not any(parameter.is_meta for parameter in model.parameters())


def prove(model: PreTrainedModel, found: Probe | None) -> None:
    """Compare the outputs of a patched model with those before the patch.

    Args:
        model: the patched model. Its alignment records as in training; slots that change its function attend as the
            plain model does, on their own route.
        found: result of `probe` before the patch; None if no input could be made. An alignment is then checked
            projection by projection.

    Raises:
        AlignAttnError: if they differ, if a padded token is taken for a real one, or if the slots refuse a call.
    """
    state = patch_of(model)
    if found is None:
        if state.config.changes_function or state.config.alignment is None:
            raise AlignAttnError(
                f"{type(model).__name__} takes inputs that alignattn cannot make, so {state.config.name!r} cannot be "
                "checked on it: choose an alignment alone"
            )
        _prove_projections(model)
        if any(isinstance(module, LayerSlots) and FUSED in module.heads.names.roles for module in model.modules()):
            prove_at_first_forward(model)
        return
    for inputs, expected in zip(found.inputs, found.outputs, strict=True):
        calls: list[RecordedCall] = []
        with _proving(model, calls):
            outputs = _run(partial(found.base, **inputs), found.base)
            _check_equal(model, expected, outputs)
        _check_recorded(model, inputs, calls)
        if inputs is found.inputs[0]:
            _check_received(model, found.received, calls)
            _check_split(model, partial(found.base, **inputs), found.received)


def prove_at_first_forward(model: PreTrainedModel) -> None:
    """Compare at the first forward of a patched model, because weights or inputs are not there before."""
    state = patch_of(model)

    def check(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or torch.distributed.is_initialized():
            return
        handle.remove()
        # Modes change below, but the hooks keep their numbers: torch is calling those of this forward.
        with _unchanged(model):
            with _off(model), unrouted(model):
                expected = _run(lambda: module(*args, **kwargs), model)
            with _proving(model, []):
                outputs = _run(lambda: module(*args, **kwargs), model)
            _check_equal(model, expected, outputs)
            _check_split(model, lambda: module(*args, **kwargs), {})

    handle = model.register_forward_pre_hook(check, with_kwargs=True)
    state.hooks.append(handle)


def _run(forward: Callable[[], Any], model: nn.Module) -> list[Tensor]:
    """Return the tensors of a forward in evaluation mode; the model and the random state stay unchanged."""
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    states = random.getstate(), np.random.get_state()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with evaluating(model), _unchanged(model), torch.random.fork_rng(devices), torch.enable_grad():
            # It builds no graph, but gradients are enabled, so that calls show whether the model itself disables them.
            for parameter in trained:
                parameter.requires_grad_(False)
            random.seed(SEED)
            np.random.seed(SEED)
            torch.manual_seed(SEED)
            outputs = list(_tensors_of(forward()))
    finally:
        for parameter in trained:
            parameter.requires_grad_()
        random.setstate(states[0])
        np.random.set_state(states[1])
    if not outputs:
        raise AlignAttnError(f"{type(model).__name__} returns no tensors to compare")
    return outputs


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the attributes, buffers and quantised weights of a model afterwards.

    Swin keeps the window of the last image that it saw. On CPUs bitsandbytes packs 4-bit weights for inference at their
    first forward in evaluation, and packed weights pass no gradient.
    """
    values = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    quantised = [parameter for parameter in model.parameters() if not parameter.is_floating_point()]
    packed = [parameter.data for parameter in quantised]
    attributes = [vars(module) for module in model.modules()]
    # These include the dicts of buffers and of hooks.
    attributes += [value for own in attributes[:] for value in own.values() if isinstance(value, dict)]
    for parameter in quantised:
        states = [value for value in vars(parameter).values() if isinstance(getattr(value, "__dict__", None), dict)]
        attributes += [vars(parameter), *(state.__dict__ for state in states)]
    contents = [dict(own) for own in attributes]
    try:
        yield
    finally:
        for own, content in zip(attributes, contents, strict=True):
            own.clear()
            own.update(content)
        for parameter, data in zip(quantised, packed, strict=True):
            parameter.data = data
        for buffer, value in values:
            buffer.copy_(value)


def _tensors_of(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping | tuple | list):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors_of(part)


@contextmanager
def _off(model: nn.Module) -> Iterator[None]:
    """Make a patched model record nothing and attend without its slots within this context."""
    collector = patch_of(model).collector
    collector.is_off = True
    try:
        yield
    finally:
        collector.is_off = False


@contextmanager
def _proving(model: nn.Module, calls: list[RecordedCall]) -> Iterator[None]:
    state = patch_of(model)
    reads_queries = any(choice.reads_raw_queries for choice in state.config.choices.values())
    hooks = _scale_hooks(model) if reads_queries else []
    state.collector.proof = calls
    try:
        update_taps(model)
        yield
    finally:
        state.collector.proof = None
        update_taps(model)
        state.collector.begin_attention()
        for hook in hooks:
            hook.remove()


def _scale_hooks(model: nn.Module) -> list[RemovableHandle]:
    """Make slots that read unscaled queries refuse queries that are scaled by 1/sqrt(d), as in ESM."""
    given: dict[nn.Module, float] = {}
    hooks = []

    def note(slots: LayerSlots, output: Tensor, role: str) -> None:
        query = slots.heads.split(output)[0] if role == FUSED else output
        # DeBERTa projects embeddings of positions after its tokens.
        given.setdefault(slots, float(query.float().norm()))

    def check(slots: Any, args: tuple[Any, ...]) -> None:
        ratio = float(args[0].float().norm()) / (given.pop(slots, 0.0) or float("inf"))
        if slots.heads.size > 1 and abs(ratio * slots.heads.size**0.5 - 1) < SCALE_TOLERANCE:
            raise AlignAttnError(
                f"{type(model).__name__} scales its queries before it attends, and {slots.config.describe_slots()} "
                "would scale them once more: choose another score or value"
            )

    for module in model.modules():
        slots = module._modules.get(CHILD_NAME)
        if isinstance(slots, LayerSlots):
            projections = slots.heads.names.of(module) or {}
            role = FUSED if FUSED in projections else "query"
            hooks.append(
                projections[role].register_forward_hook(
                    lambda _m, _a, output, slots=slots, role=role: note(slots, output, role)
                )
            )
            hooks.append(slots.register_forward_pre_hook(check))
    return hooks


def _check_equal(model: nn.Module, expected: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    bases = {config._attn_implementation for config in configs_of(model)}
    is_exact = all(base in IMPLEMENTATIONS or is_ours(base) for base in bases)
    is_exact = is_exact and not any(is_slotted(module) for module in model.modules())
    if len(expected) != len(outputs):
        difference = float("inf")
    else:
        pairs = zip(expected, outputs, strict=True)
        difference = max((_difference(*pair, is_exact=is_exact) for pair in pairs), default=0.0)
    if difference:
        raise AlignAttnError(
            f"{patch_of(model).config.name!r} would change what {type(model).__name__} computes, by up to "
            f"{difference:.2g} of an output's largest value: alignattn does not serve this model"
        )


def _difference(expected: Tensor, output: Tensor, *, is_exact: bool) -> float:
    """Return the largest difference of two outputs, relative to the largest value; 0 within the tolerance."""
    if expected.shape != output.shape:
        return float("inf")
    is_same = (expected == output) | ((expected != expected) & (output != output))
    if is_same.all():
        return 0.0
    scale = expected.double().nan_to_num().abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    # A number against NaN is not a rounding difference.
    difference = float(
        ((expected.double() - output.double()) / scale).nan_to_num(nan=float("inf")).abs()[~is_same].max()
    )
    return difference if is_exact or not difference <= TOLERANCE[output.element_size()] else 0.0


def _check_recorded(model: nn.Module, inputs: Inputs, calls: Sequence[RecordedCall]) -> None:
    """Refuse a model whose attention modules were not called, or receive a mask that does not show padding."""
    name = type(model).__name__
    if patch_of(model).config.alignment is None:
        return
    silent = {path for path, module in model.named_modules() if isinstance(module, LayerSlots)} - {
        path for path, module in model.named_modules() if any(call.slots is module for call in calls)
    }
    if silent:
        path = min(silent).removesuffix(f".{CHILD_NAME}")
        raise AlignAttnError(f"{name} did not call {path} in a test forward: patch the part that you train")
    if not any(call.is_in_graph for call in calls):
        raise AlignAttnError(
            f"{name} runs its attention without gradients (torch.no_grad), so an alignment would train nothing"
        )
    ids = inputs.get(IDS)
    real = inputs[MASK].bool() if ids is not None and MASK in inputs else None
    for call in calls:
        if ids is not None and len(call.query) != len(ids) == call.query.shape[1]:
            raise AlignAttnError(
                f"the attention of {name} puts tokens before samples: an alignment needs [batch, tokens, …]"
            )
        given = real_tokens(call.mask, len(call.query), (call.query.shape[1], call.key.shape[1]))[0]
        if given is not None and given.shape != call.query.shape[:2]:
            raise AlignAttnError(
                f"the attention of {name} receives a mask of {list(given.shape)} for {list(call.query.shape[:2])} "
                "tokens, which does not tell its padding"
            )
        if real is None or real.shape != call.query.shape[:2]:
            continue
        if not torch.equal(torch.ones_like(real) if given is None else given, real):
            raise AlignAttnError(
                f"the attention of {name} receives no mask that tells its padding, so an alignment would count it"
            )


def _check_received(model: nn.Module, received: Mapping[nn.Module, Received], calls: Sequence[RecordedCall]) -> None:
    """Refuse a model that attends with other queries or keys than those recorded, apart from rotation by position."""
    first = {call.slots: call for call in reversed(calls)}
    for module, sides in received.items():
        call = first.get(module._modules.get(CHILD_NAME))
        if call is None:
            continue
        for role, recorded, attended in zip(("query", "key"), (call.query, call.key), sides, strict=True):
            # Rows `[B, n, H * d]` and heads `[B, H, n, d]` have equal norms, up to a factor for each token. A model may
            # add a vector to each head, so they are also compared after the mean over tokens is subtracted.
            by_head = attended.transpose(1, 2).float()
            is_same = by_head.flatten(2).shape == recorded.shape
            if is_same:
                rows = recorded.view_as(by_head).float()
                centred = (side - side.mean(dim=1, keepdim=True) for side in (rows, by_head))
                is_same = _are_norms_alike(rows, by_head) or _are_norms_alike(*centred)
            if not is_same:
                raise AlignAttnError(
                    f"{type(module).__name__} of {type(model).__name__} attends with another {role} than its "
                    "projections and norms give: alignattn does not serve this model"
                )


def _check_split(model: nn.Module, forward: Callable[[], Any], received: Mapping[nn.Module, Received]) -> None:
    """Refuse a fused projection that orders its output otherwise than `split` reads it, where no call was received.

    With queries of zero, an attention output depends on no key, and on the values of more tokens than its own queries.
    """
    places: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    fused: dict[nn.Module, Tensor] = {}
    hooks = []

    def without_queries(projection: nn.Module, _args: Any, output: Tensor) -> Tensor:
        fused[projection] = output.detach().clone()
        fused[projection][..., places[projection][0]] = 0
        # Attention may change its own copy in place.
        return fused[projection].requires_grad_().clone()

    def check(attention: nn.Module, _args: Any, output: Any, projection: nn.Module) -> None:
        attended = next(_tensors_of(output))
        one = attended[(0, *[-1] * (attended.dim() - 2))]
        if not one.requires_grad:
            return
        (gradient,) = torch.autograd.grad(one @ torch.linspace(1, 2, len(one)).to(one), fused[projection])
        query, key = places[projection]
        reached = gradient.flatten(0, -2).nan_to_num() != 0
        queries, is_key_reached = reached[:, query].any(dim=1).sum(), reached[:, key].any()
        reached[:, torch.cat([query, key])] = False
        if is_key_reached or queries >= reached.any(dim=1).sum().clamp_min(1):
            raise AlignAttnError(
                f"{type(attention).__name__} of {type(model).__name__} orders queries, keys and values in its fused "
                "projection otherwise than alignattn reads them: an alignment would mix them"
            )

    for module in model.modules():
        slots = module._modules.get(CHILD_NAME)
        projections = (slots.heads.names.of(module) or {}) if isinstance(slots, LayerSlots) and slots.aligns else {}
        if FUSED in projections and module not in received:
            projection = projections[FUSED]
            places[projection] = cast(Any, slots).heads.split(torch.arange(features_of(projection)))
            hooks.append(projection.register_forward_hook(without_queries))
            hooks.append(module.register_forward_hook(partial(check, projection=projection)))
    try:
        if hooks:
            with _off(model):
                _run(forward, model)
    finally:
        for hook in hooks:
            hook.remove()


def _are_norms_alike(first: Tensor, second: Tensor) -> bool:
    norms = second.norm(dim=-1)
    # A zero vector has no direction to compare.
    ratio = norms / first.norm(dim=-1).clamp_min(torch.finfo(first.dtype).tiny)
    factor = ratio.median(dim=-1, keepdim=True).values
    return bool(((ratio - factor).abs() <= NORM_TOLERANCE * factor).all())


def _prove_projections(model: nn.Module) -> None:
    """Compare each projection with itself under its hooks, for a model that cannot be run as a whole."""
    for module in model.modules():
        slots = module._modules.get(CHILD_NAME)
        for projection in ((slots.heads.names.of(module) or {}) if isinstance(slots, LayerSlots) else {}).values():
            weight = next(projection.parameters(), None)
            width = getattr(projection, "in_features", None)
            if not features_of(projection) or width is None or weight is None or not weight.is_floating_point():
                continue
            states = torch.ones(1, 1, width, dtype=weight.dtype, device=weight.device)
            with _off(model):
                expected = _run(lambda: projection(states), projection)  # noqa: B023 - it runs at once
            with _proving(model, []):
                outputs = _run(lambda: projection(states), projection)  # noqa: B023 - it runs at once
            _check_equal(model, expected, outputs)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within this context, and restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training

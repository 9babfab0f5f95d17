"""Route a model's attention to its slots, through transformers' attention interface.

transformers calls one registered attention function in almost every model. Slots that change what a model computes need
such a function of our own, and so does `alignattn.collect`. An alignment alone needs none: hooks observe the model, and
its attention implementation stays as it is.

Our function calls its base implementation as the model itself would: for `eager` the function of the model's own
modelling file, which may cap scores or add sinks, with the mask that this function expects.
"""

import copy
import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getsource, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import eager_mask, sdpa_mask

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.attention.masks import packing_of
from alignattn.patching.families import give_slotted_forward, is_slotted, take_slotted_forward
from alignattn.patching.masks import allowed_pairs
from alignattn.patching.process_changes import ProcessChange
from alignattn.utils.errors import AlignAttnError

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
"""An attention function of transformers: it returns `[B, n, H, d]`, and the weights or None."""

EAGER = "eager"
SDPA = "sdpa"
IMPLEMENTATIONS = {SDPA: "alignattn_sdpa", EAGER: "alignattn_eager"}
"""The base attention implementations that slots support, and the name of ours for each.

A name with "flash" in it would be treated as flash attention. Each name needs a registered mask function: without one
the mask arrives as None, and padding is attended to, silently."""

_EAGER_DEFAULT = re.compile(r"\.get_interface\(\s*[^,()]+,\s*(\w+),?\s*\)")
"""The expression by which the forward of an attention module chooses its function."""

_BASES = {ours: base for base, ours in IMPLEMENTATIONS.items()}

OWN_FUNCTIONS = "alignattn_own_functions"
"""Attribute of each attention module of a patched model, with or without slots: its own attention functions, by
implementation. A module without it belongs to no patched model."""

GUARD = "alignattn_guard"
"""Attribute of a model that is built from the config of a patched one: the handle of the hook that refuses forwards."""


def is_ours(implementation: str | None) -> bool:
    """Tell whether an attention implementation is one of ours."""
    return implementation in _BASES


def base_of(implementation: str | None) -> str | None:
    """Return the base implementation of one of ours; any other is returned unchanged."""
    return _BASES.get(str(implementation), implementation)


def check_implementation(module: Any) -> None:
    """Refuse a call of a module with slots whose attention implementation was set after the patch.

    Raises:
        AlignAttnError: if so: its slots would not be used.
    """
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if OWN_FUNCTIONS in vars(module) and not is_ours(implementation):
        raise AlignAttnError(
            f"the attention implementation of {type(module).__name__} was set to {implementation!r} after the patch, "
            "and its slots would not be used: call alignattn.unpatch, set the implementation, and patch again"
        )


def own_functions(module: nn.Module) -> dict[str, AttentionFunction]:
    """Return the attention functions of the modelling file of a module, by implementation; empty if it has none."""
    for of_class in type(module).__mro__:
        home = sys.modules.get(of_class.__module__)
        interface = getattr(home, "ALL_ATTENTION_FUNCTIONS", None)
        if interface is None:
            continue
        eager = getattr(home, _name_of_eager(type(module)), None)  # type: ignore[arg-type]  # a class has a hash
        functions = {SDPA: interface[SDPA]}
        return functions if eager is None else functions | {EAGER: eager}
    return {}


@functools.cache
def _name_of_eager(of_class: Any) -> str:
    """Return the name of the eager attention function of a class of attention modules.

    A modelling file may define several; a class uses the one that its forward passes as the default.
    """
    try:
        default = _EAGER_DEFAULT.search(getsource(of_class.forward))
    except (OSError, TypeError):
        default = None
    return "eager_attention_forward" if default is None else default[1]


def unserved_keywords(module: nn.Module) -> frozenset[str]:
    """Return the arguments of a module's attention function that slots do not support."""
    eager = own_functions(module).get(EAGER)
    standard = signature(attention_function).parameters
    own = set() if eager is None else signature(eager).parameters.keys() - standard.keys()
    # These add weights or choose keys, for every model. All slots support the others; the mask contains the window.
    own |= {"s_aux", "sinks", "indices", "block_indices"}
    return frozenset(own - {"softcap", "position_bias", "sliding_window"})


def _guard_model(parent: nn.Module, _name: str, _child: nn.Module | None) -> None:
    """Make a model that is built from a patched model's config refuse its forwards; torch's registration hook.

    A keyword such as `attn_implementation="eager"` replaces our implementation in the config, but leaves the slots in
    it. A bare part of a model, such as `BertEncoder`, refuses if its attention modules keep the config.
    """
    config = vars(parent).get("config")
    fields = vars(config).get(CHILD_NAME) if isinstance(config, PreTrainedConfig) else None
    if not isinstance(fields, dict) or not AttentionConfig.from_dict(fields).changes_function:
        return
    is_guarded = isinstance(parent, PreTrainedModel) or own_functions(parent)
    if is_guarded and GUARD not in vars(parent) and not _has_slots(parent):
        object.__setattr__(parent, GUARD, parent.register_forward_pre_hook(_refuse_without_slots))


def _refuse_without_slots(model: nn.Module, *_: Any) -> None:
    if not _has_slots(model):
        raise AlignAttnError(
            f"this {type(model).__name__} is built from the config of a patched model but is not patched: call "
            "alignattn.patch, or build it from the config that alignattn.unpatch leaves"
        )


def _has_slots(model: nn.Module) -> bool:
    return any(CHILD_NAME in module._modules or OWN_FUNCTIONS in vars(module) for module in model.modules())


def lift_guard(model: nn.Module) -> None:
    """Give a model that is built from a patched model's config its own plain config, and remove its guard."""
    guarded = [module for module in model.modules() if GUARD in vars(module)]
    if not guarded:
        return
    for module in guarded:
        vars(module).pop(GUARD).remove()
    copies: dict[int, Any] = {}
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig):
            vars(module)["config"] = copy.deepcopy(config, copies)
    for config in configs_of(model):
        config._attn_implementation_internal = base_of(config._attn_implementation)
        for name in (CHILD_NAME, "attn_implementation"):
            vars(config).pop(name, None)


GUARDED_MODELS = ProcessChange(lambda: register_module_module_registration_hook(_guard_model).remove)
"""The guard of models that are built from a patched model's config: torch calls it for each new part of any module."""


def configs_of(model: nn.Module) -> list[Any]:
    """Return the configs of a model and of its modules, each once."""
    configs = {id(config): config for module in model.modules() if (config := vars(module).get("config")) is not None}
    return [config for config in configs.values() if isinstance(config, PreTrainedConfig)]


def enter_route(model: nn.Module) -> None:
    """Make the attention of a patched model call its slots.

    Raises:
        AlignAttnError: if they do not support its attention implementation.
    """
    for module in model.modules():
        if functions := own_functions(module):
            object.__setattr__(module, OWN_FUNCTIONS, functions)
    for config in configs_of(model):
        name = IMPLEMENTATIONS.get(str(config._attn_implementation))
        if name is not None:
            # Not by the public setter, which would also set the nested configs.
            config._attn_implementation_internal = name
    for module in model.modules():
        if CHILD_NAME not in module._modules:
            continue
        if OWN_FUNCTIONS not in vars(module):
            give_slotted_forward(module)
            continue
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if not is_ours(implementation):
            leave_route(model)
            raise AlignAttnError(
                f"slots do not support the attention implementation {implementation!r} of {type(model).__name__}: load "
                f"it with attn_implementation={' or '.join(map(repr, IMPLEMENTATIONS))}"
            )


def leave_route(model: nn.Module) -> None:
    """Undo `enter_route`."""
    for config in configs_of(model):
        if is_ours(config._attn_implementation):
            config._attn_implementation_internal = base_of(config._attn_implementation)
    for module in model.modules():
        take_slotted_forward(module)
        vars(module).pop(OWN_FUNCTIONS, None)


@contextmanager
def routed(model: nn.Module) -> Iterator[None]:
    """Make the attention of a model and of its parts call their slots within this context.

    Raises:
        AlignAttnError: as `enter_route` does.
    """
    slots: list[Any] = [child for module in model.modules() if (child := module._modules.get(CHILD_NAME)) is not None]
    owners = {id(owner): owner for child in slots if child.is_observed and (owner := child.collector.owner) is not None}
    entered = [owner for owner in owners.values() if not _is_on_route(owner)]
    try:
        for owner in entered:
            enter_route(owner)
        yield
    finally:
        for owner in entered:
            leave_route(owner)


@contextmanager
def unrouted(model: nn.Module) -> Iterator[None]:
    """Make the attention of a patched model call no slots within this context."""
    is_routed = _is_on_route(model)
    leave_route(model)
    try:
        yield
    finally:
        if is_routed:
            enter_route(model)


def _is_on_route(model: nn.Module) -> bool:
    return any(is_ours(config._attn_implementation) for config in configs_of(model)) or any(
        is_slotted(module) for module in model.modules()
    )


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    base: str,
    dropout: float = 0.0,
    scaling: float | None = None,
    output_attentions: bool | None = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend by the module's slots, if it has any: the attention function that transformers calls.

    Samples of a packed batch (`cu_seq_lens_q`, an argument of flash attention) attend as in a padded batch.

    Raises:
        AlignAttnError: if the module belongs to no patched model, or needs what its slots do not support.
    """
    own = getattr(module, OWN_FUNCTIONS, None)
    if own is None:
        raise AlignAttnError(
            f"{type(module).__name__} has the attention implementation {IMPLEMENTATIONS[base]!r} of a patched model, "
            "but no slots: it was built from the config of one. Patch it, too, or take copy.deepcopy of the patched "
            "model: in TRL, pass it as ref_model= (DPO, KTO), or leave out the reference model by beta=0 (GRPO, RLOO)"
        )
    # transformers omits a purely causal mask, because SDPA can apply it itself.
    is_causal = attention_mask is None and base == SDPA and query.shape[2] > 1
    if is_causal:
        asked = kwargs.get("is_causal")
        is_causal = bool(getattr(module, "is_causal", True) if asked is None else asked)
    packing = None
    if (bounds := kwargs.get("cu_seq_lens_q")) is not None:
        if len(query) != 1:
            raise AlignAttnError(
                f"{type(module).__name__} got cu_seq_lens_q with {len(query)} rows: a packed batch has one row"
            )
        packing = packing_of(bounds, kwargs.get("cu_seq_lens_k"), query.shape[2])
        query, key, value = (packing.padded(heads.transpose(1, 2)).transpose(1, 2) for heads in (query, key, value))
        attention_mask = packing.pairs(attention_mask)
        if is_causal:
            attention_mask = attention_mask.tril()

    def plain(wants_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Attend as the model itself does, with its eager function if the weights are requested."""
        name, mask = EAGER if wants_weights and EAGER in own else base, attention_mask
        if name == EAGER and mask is not None and not mask.is_floating_point():
            # Eager functions add their mask: a bool one would let padding in.
            mask = query.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(query.dtype).min)
        attended, weights = own[name](module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)
        return attended.transpose(1, 2), weights

    slots: Any = module._modules.get(CHILD_NAME)
    if slots is None:
        attended, weights = plain(False)
    else:
        name = type(module).__name__
        if query.shape[1] % key.shape[1] or query.shape[-1] != key.shape[-1]:
            raise AlignAttnError(
                f"{name} has queries {list(query.shape)} and keys {list(key.shape)}, whose heads do not fit each other"
            )
        unserved = [keyword for keyword in slots.unserved if kwargs.get(keyword) is not None]
        if unserved:
            raise AlignAttnError(
                f"{name} attends with {unserved[0]!r}, which {slots.config.describe_slots()} cannot do: choose an "
                "alignment alone"
            )
        pairs, bias = _pairs_and_bias(attention_mask, kwargs.get("position_bias"), query, key)
        if pairs is None and is_causal:
            pairs = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
            pairs = pairs.expand(len(query), 1, *pairs.shape)
        attended, weights = slots(
            query,
            key,
            value,
            pairs,
            plain,
            bias=bias,
            softcap=kwargs.get("softcap"),
            scale=scaling,
            dropout=dropout,
            wants_weights=bool(output_attentions) or base == EAGER,
            packing=packing,
            position_ids=slots.separating_positions(module, pairs, kwargs, query.shape[0], query.shape[2]),
        )
    attended = attended.transpose(1, 2).contiguous()
    return (attended if packing is None else packing.packed(attended)), weights


def _pairs_and_bias(
    mask: Tensor | None, bias: Tensor | None, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Return which query may attend to which key, `[B, 1, n, m]` bool, and the bias that the model adds to its scores.

    A custom float mask may contain any numbers: where it masks, the slots mask, and elsewhere they add it.
    """
    if mask is None:
        return None, bias
    pairs = allowed_pairs(mask)
    if mask.is_floating_point():
        added = mask.to(query.dtype)
        bias = added if bias is None else bias + added
    # Not `len`, which an export would treat as a constant.
    sizes = query.shape[0], 1, query.shape[2], key.shape[2]
    if pairs.dim() != len(sizes) or any(size not in (1, full) for size, full in zip(pairs.shape, sizes, strict=True)):
        raise AlignAttnError(
            f"slots read a mask of pairs of tokens, {list(sizes)}, and this one is {list(mask.shape)}: choose an "
            "alignment alone"
        )
    return pairs.expand(sizes), bias


for _base, _mask in ((SDPA, sdpa_mask), (EAGER, eager_mask)):
    AttentionInterface.register(IMPLEMENTATIONS[_base], functools.partial(attention_function, base=_base))
    AttentionMaskInterface.register(IMPLEMENTATIONS[_base], _mask)

"""Add slots to attention modules and remove them.

`attach` serves any model whose attention modules declare their projections (`AttentionLayer`) and call
`alignattn.attend`. `alignattn.patching.patch` uses the same functions for models of transformers.
"""

import copy
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.import_utils import is_peft_available

from alignattn.attention.attend import CHILD_NAME, SharedAttentionLayer, declares
from alignattn.attention.choices import PREDICTIVE
from alignattn.attention.config import AttentionConfig
from alignattn.models import capabilities_of_config
from alignattn.patching.collector import remove_hooks
from alignattn.patching.projections import (
    DECLARATIONS,
    DECLARED_POOLED,
    AttentionModule,
    declared_layers,
    features_of,
    names_of,
)
from alignattn.patching.routing import GUARDED_MODELS, leave_route
from alignattn.patching.saving import LOADING_HINT, SAVING, PatchedSaving, prepare_state
from alignattn.patching.slots import ConfigPairs, LayerSlots, Patch, check_causal, is_patched, patch_of, update_taps
from alignattn.utils.errors import AlignAttnError

M = TypeVar("M", bound=nn.Module)


def attach(model: M, attention: str | AttentionConfig = "aa-ct", **overrides: Any) -> M:
    """Give the attention modules of a custom model the slots that `attention` names, in place.

    `collect`, `AlignmentTrainer` and `unpatch` then accept the model as a patched encoder. Its state dict contains the
    slots' parameters: before you load it into a new model, attach the same config (`AttentionConfig.to_dict`).

    Args:
        model: its self-attention modules are `AttentionLayer`s that call `alignattn.attend`. A module with only some
            attributes of an `AttentionLayer` is refused by name; if none calls `attend`, the first loss is refused.
        attention: as for `patch`.
        **overrides: fields of `AttentionConfig` that replace those of `attention`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the model already has slots, has no such modules or also has other attention modules, or the
            config does not fit it.
    """
    config = AttentionConfig.resolve(attention, **overrides)
    check_model(model)
    if any(getattr(module, "is_causal", False) for module in model.modules()):
        check_causal(config, type(model).__name__)
    capabilities = capabilities_of_config(getattr(model, "config", None))
    for slot, reason in capabilities.reasons_unsupported.items():
        if slot in config.filled_slots:
            raise AlignAttnError(f"{slot} {getattr(config, slot)!r}: this {type(model).__name__} {reason}")
    # Custom models are not checked here: only their mask shows whether they attend step by step.
    if not capabilities.is_pretrained and not capabilities.attends_step_by_step:
        check_budget(config, type(model).__name__)
    layers = declared_layers(model)
    _check_declared(model, layers)
    if config.layers is not None and config.layers[-1] >= len(layers):
        raise AlignAttnError(f"layers={list(config.layers)}: this model has layers 0 to {len(layers) - 1}")
    layers = layers if config.layers is None else [layers[index] for index in config.layers]
    if any(layer.heads.names == DECLARED_POOLED for layer in layers):
        pools = f"{type(model).__name__} pools by a learned query, which has none"
        if config.alignment is not None:
            raise AlignAttnError(
                f"alignment {config.alignment!r} matches distributions, and {pools}: choose a score, normalizer or "
                "value"
            )
        if config.choices["normalizer"].counts_positions:
            raise AlignAttnError(
                f"normalizer {config.normalizer!r} opens a window around the position of a query, and {pools}: set "
                f"kind={PREDICTIVE!r}"
            )
        check_budget(config, type(model).__name__)
    fill_slots(model, layers, config)
    return model


def check_budget(config: AttentionConfig, name: str) -> None:
    """Refuse a budget over decoder steps for a model, given by name, that attends in one step."""
    if config.choices["normalizer"].has_budget:
        raise AlignAttnError(
            f"normalizer {config.normalizer!r}: fertility is a budget over the steps of a decoder with one query per "
            f"step, and {name} attends in one step: set bound"
        )


def unpatch(model: M) -> M:
    """Undo `patch` or `attach`: restore modules, state-dict keys and attention implementation, and keep the weights.

    The model then computes plain attention with these weights. After an alignment, that is the function it was trained
    with; after a score, normalizer or value, it is not.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the model is not patched.
    """
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):
        unpatch(model.get_base_model())  # type: ignore[operator]
        return model
    state = patch_of(model)
    leave_route(model)
    remove_hooks(model)
    for module in model.modules():
        # An adapter's wrapper (modules_to_save) exposes the attributes of the module that it wraps.
        if isinstance(module._modules.get(CHILD_NAME), LayerSlots):
            delattr(module, CHILD_NAME)
    for hook in state.hooks:
        hook.remove()
    delattr(model, CHILD_NAME)
    state.release_changes()
    config: Any = getattr(model, "config", None)
    if isinstance(config, PreTrainedConfig):
        delattr(config, CHILD_NAME)
        if state.config.changes_function:
            del config.attn_implementation
            GUARDED_MODELS.release(config)
        _return_configs(model, state.configs)
    return model


def check_model(model: nn.Module) -> None:
    """Refuse a model that already has slots, itself or in a part.

    Raises:
        AlignAttnError: if it has.
    """
    for module in model.modules():
        if is_patched(module):
            raise AlignAttnError(f"this {type(module).__name__} is patched already: call alignattn.unpatch first")


def fill_slots(
    model: nn.Module, layers: Sequence[AttentionModule], config: AttentionConfig, *, is_observed: bool = False
) -> None:
    """Add slots to layers of a model, and record the patch in the model and, for transformers, in its config.

    Args:
        model: a model without slots (`check_model`).
        layers: its attention modules.
        config: the choices.
        is_observed: as in `Patch`.

    Raises:
        AlignAttnError: if a projection is not a linear layer.
    """
    path_of = {id(module): path for path, module in model.named_modules()}
    for layer in layers:
        for role, projection in layer.projections.items():
            path = f"{path_of[id(layer.module)]}.{layer.heads.names.roles[role]}"
            if not features_of(projection):
                raise AlignAttnError(
                    f"{path} does not say how many features it gives (out_features): this is no linear layer and no "
                    "adapter of one"
                )
    # The random state is forked for the new networks: a run without them draws the same dropout.
    with torch.random.fork_rng({parameter.device for parameter in model.parameters() if parameter.is_cuda}):
        state = Patch(model, config, {path_of[id(layer.module)]: layer for layer in layers}, is_observed=is_observed)
        for layer in layers:
            # A quantised layer may have no parameters.
            weight = next(itertools.chain(layer.module.parameters(), model.parameters()))
            index = state.paths[str(layer.heads.size)].index(path_of[id(layer.module)])
            slots = LayerSlots(layer, state, index).to(weight.device).train(layer.module.training)
            layer.module.add_module(CHILD_NAME, slots)
            if is_observed and config.changes_function:
                state.hooks.append(layer.module.register_forward_pre_hook(slots.check_route))
    state.to(next(model.parameters()).device).train(model.training)
    setattr(model, CHILD_NAME, state)
    if is_peft_available():
        # Imported here because it takes a quarter of a second. An adapter may come later, from a later import of peft.
        from alignattn.patching.adapters import carry

        carry(model)
    state.hold_changes()
    state.hooks.append(model.register_load_state_dict_pre_hook(prepare_state))
    wanted = {id(layer.module) for layer in layers}
    state.collector.paths = tuple(
        path
        for path, module in model.named_modules()
        if id(module) not in wanted and wanted <= {id(part) for part in module.modules()}
    )
    update_taps(model)
    if isinstance(getattr(model, "config", None), PreTrainedConfig):
        # The model and its modules get copies of their configs, because other models may share the originals.
        copies: dict[int, Any] = {}
        pairs: dict[int, tuple[PreTrainedConfig, PreTrainedConfig]] = {}
        for module in model.modules():
            shared = vars(module).get("config")
            if isinstance(shared, PreTrainedConfig):
                # The copy of a config that contains this one contains its copy.
                pairs.setdefault(id(shared), (copy.deepcopy(shared, copies), shared))
                module.config = copies[id(shared)]
        state.configs = list(pairs.values())
        if isinstance(model, PreTrainedModel):
            setattr(model, SAVING, PatchedSaving(model))
        own: Any = model.config
        setattr(own, CHILD_NAME, config.to_dict())
        if config.changes_function:
            own.attn_implementation = LOADING_HINT
            # A config may outlive the model.
            GUARDED_MODELS.hold(own)


def _check_declared(model: nn.Module, layers: Sequence[AttentionModule]) -> None:
    """Refuse attention that slots cannot reach, and modules that do not match their declaration."""
    advice = "an attention module has num_heads, query_projection and key_projection, and calls alignattn.attend"
    declared = {id(layer.module): layer for layer in layers}
    role_of: dict[int, str] = {}
    for path, module in model.named_modules():
        name = f"{path} ({type(module).__name__})"
        if id(module) not in declared:
            if isinstance(module, nn.MultiheadAttention) or names_of(module):
                raise AlignAttnError(
                    f"{name} is attention that slots cannot reach: {advice} (alignattn.patch is for transformers' "
                    "models)"
                )
            names = {name for _, declared in DECLARATIONS for name in declared.roles.values()}
            if any(hasattr(module, projection) for projection in names):
                raise AlignAttnError(f"{name} is only part of an attention module: {advice}")
            continue
        if module is model:
            raise AlignAttnError(f"{type(model).__name__} is an attention module: pass the model that contains it")
        layer = declared[id(module)]
        sizes = [features_of(projection) for projection in layer.projections.values()]
        if len(set(sizes)) > 1 or sizes[0] == 0 or sizes[0] % layer.heads.count:
            raise AlignAttnError(
                f"{name} projects to {sizes} features, which do not make {layer.heads.count} heads of one size for "
                "queries and keys"
            )
        is_shared = any(role_of.setdefault(id(child), role) != role for role, child in layer.projections.items())
        if declares(module, SharedAttentionLayer) and not (weight := next(module.parameters())).is_meta:
            # One projection of both may give identical queries and keys.
            with torch.no_grad():
                ones = weight.new_ones(1, layer.heads.count * layer.heads.size)
                is_shared |= torch.equal(*cast(Any, module).queries_and_keys(ones))
        if is_shared:
            raise AlignAttnError(f"{name} projects queries and keys by one layer, so there is nothing to align")
    if not layers:
        raise AlignAttnError(f"{type(model).__name__} has no attention: {advice}")


def _return_configs(model: nn.Module, pairs: ConfigPairs) -> None:
    """Restore the configs from before the patch, except those that have changed since."""
    vars(model).pop(SAVING, None)
    # `to_dict` leaves out the attention implementation.
    changed = [
        own
        for own, config in pairs
        if own._attn_implementation != config._attn_implementation or own.to_dict() != config.to_dict()
    ]
    # A config that contains a changed one has changed, too, and keeps all its parts.
    for own in changed:
        changed += [part for part in vars(own).values() if isinstance(part, PreTrainedConfig)]
    kept = {id(own) for own in changed}
    before: dict[int, Any] = {id(own): config for own, config in pairs if id(own) not in kept}
    for module in model.modules():
        config = vars(module).get("config")
        if id(config) in before:
            module.config = before[id(config)]

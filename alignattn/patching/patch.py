"""Patch Hugging Face models: add an alignment to their self-attention, or slots that change what it computes.

An alignment alone observes: hooks on the projections and on the attention modules record queries and keys, and the
model's attention implementation stays as it is. Slots that change what a model computes are called through
transformers' attention interface (`alignattn.patching.routing`). Each patch is checked on a small input
(`alignattn.patching.probe`).
"""

import logging
from typing import Any, cast

from transformers import PreTrainedModel

from alignattn.attention.choices import choices_with
from alignattn.attention.config import AttentionConfig
from alignattn.patching.attach import attach, check_budget, check_model, fill_slots, unpatch
from alignattn.patching.collector import refuse_packed
from alignattn.patching.families import family_of
from alignattn.patching.probe import can_probe, is_dispatched, probe, prove, prove_at_first_forward
from alignattn.patching.projections import FUSED, AttentionModule, attention_modules, declared_layers, features_of
from alignattn.patching.routing import EAGER, IMPLEMENTATIONS, enter_route, lift_guard, own_functions, routed
from alignattn.patching.slots import alignment_parameters, function_parameters, patch_of
from alignattn.utils.errors import AlignAttnError, listing, one_line, plural

logger = logging.getLogger(__name__)


def patch(model: PreTrainedModel, attention: str | AttentionConfig = "aa-ct", **overrides: Any) -> PreTrainedModel:
    """Give the self-attention of a pretrained model the slots that `attention` names, in place.

    An alignment alone leaves the pretrained function unchanged in evaluation mode; `AlignmentTrainer` adds its loss in
    training. A score, normalizer or value of the config changes what the layers compute.
    For models that rotate queries and keys by position, the alignment compares them before the rotation, and after the
    norms that some models apply to them (Qwen 3). If heads share keys, each head of queries is compared with its
    group's keys.

    Args:
        model: an encoder, a decoder or an encoder-decoder of transformers, for text, images or audio (docs/models.md
            lists them). It may have adapters, be in a `peft.PeftModel`, or have attention modules that call
            `alignattn.attend`, as for `attach`. An alignment alone accepts any attention implementation. Other slots
            need `eager` or `sdpa`; causal models accept only slots by which no token sees later ones.
        attention: a config, a name such as `aa-ct`, `qvi` or `entmax15`, or several joined by `+`, as for
            `AttentionConfig.resolve`.
        **overrides: fields of `AttentionConfig` that replace those of `attention`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the model is already patched, is not such a model, or the config does not fit it; or if, on
            a small input, the patched model differs from the unpatched one in a way that the config does not explain.
            Weights on the meta device or offloaded are checked at the first forward.
    """
    config = AttentionConfig.resolve(attention, **overrides)
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):
        patch(model.get_base_model(), config)
        from alignattn.patching.adapters import carry

        carry(model)
        return model
    if not isinstance(model, PreTrainedModel):
        raise AlignAttnError(f"{type(model).__name__} is not a PreTrainedModel: use alignattn.attach for other models")
    if declared_layers(model):
        return attach(model, config)
    layers = _layers_to_patch(model, config)
    check_model(model)
    lift_guard(model)
    is_in_memory = can_probe(model)
    found = probe(model) if is_in_memory else None
    _check_layers(model, layers, config)
    check_budget(config, type(model).__name__)
    if "points" in config.alignment_options and config.choices["alignment"].averages_samples:
        raise AlignAttnError(
            f"alignment_options points={config.alignment_options['points']}: this limits the nodes of a graph, and "
            "would bias the loss of a text: leave it out; alignment_rows draws whole samples"
        )
    if config.changes_function:
        _check_function_slots(model, config, layers)
    fill_slots(model, layers, config, is_observed=True)
    if any(family_of(layer.module) for layer in layers):
        patch_of(model).collector.refuses_packed = not config.changes_function
        if config.changes_function:
            patch_of(model).hooks.append(model.register_forward_pre_hook(refuse_packed, with_kwargs=True))
    try:
        if config.changes_function:
            enter_route(model)
        if is_dispatched(model) and any(
            own.is_meta for own in [*alignment_parameters(model), *function_parameters(model)]
        ):
            raise AlignAttnError(
                f"weights of this {type(model).__name__} are offloaded, and accelerate would never load those of "
                "slots: patch it before it is offloaded (load it without device_map, and call "
                "accelerate.dispatch_model after)"
            )
        if not is_in_memory:
            prove_at_first_forward(model)
        elif config.filled_slots:
            prove(model, found)
        elif found is not None:
            # `collect` and `balance` route plain attention through the slots while they run.
            with routed(model):
                prove(model, found)
    except BaseException as error:
        unpatch(model)
        if isinstance(error, AlignAttnError) or not isinstance(error, Exception):
            raise
        raise AlignAttnError(
            f"{type(model).__name__} runs without a patch but fails with {config.name!r}: {one_line(error)}"
        ) from error
    return model


def patch_qvi(model: PreTrainedModel, **options: Any) -> PreTrainedModel:
    """Give a model query-value interaction (Wu et al. 2020): `patch` with the value slot `qvi`.

    `options` are further fields of `AttentionConfig`, such as `value_options={"init": "paper"}`. Returns and raises as
    `patch`.
    """
    return patch(model, "qvi", **options)


def patch_alignment(
    model: PreTrainedModel, alignment: str, *, weight: float | None = None, **options: Any
) -> PreTrainedModel:
    """Give a model alignment attention with the distance `alignment`, such as `ct` or `moments`.

    Calls `patch` with an `AttentionConfig` of this alignment and λ = `weight`, by default the alignment's. `options`
    are further fields of `AttentionConfig`. Returns and raises as `patch`.
    """
    return patch(model, AttentionConfig(alignment=alignment, alignment_weight=cast(float, weight)), **options)


def _layers_to_patch(model: PreTrainedModel, config: AttentionConfig) -> list[AttentionModule]:
    name = type(model).__name__
    layers = attention_modules(model, with_cross_attention=config.cross_attention)
    if not layers:
        raise AlignAttnError(
            f"{name} keeps no projections of queries and keys under names that alignattn knows (docs/models.md lists "
            "the models that it takes; alignattn.attach serves modules of your own)"
        )
    if config.layers is None:
        kinds = getattr(model.config, "layer_types", None) or []
        if len(layers) < len(kinds):
            # In a hybrid model, state-space layers for example have no scores and weights.
            with_softmax = {"full_attention", "sliding_attention", "chunked_attention", "attention", "hybrid"}
            logger.warning(
                "%s: %d of %d layers have attention that supports slots; the others stay as they are (%s)",
                name,
                len(layers),
                len(kinds),
                ", ".join(sorted(set(kinds) - with_softmax)),
            )
        return layers
    num_layers = getattr(model.config, "num_hidden_layers", len(layers))
    if len(layers) != num_layers:
        raise AlignAttnError(
            f"layers={list(config.layers)}: the {num_layers} layers of {name} have "
            f"{plural(len(layers), 'attention module')}, so some cannot be patched without the rest: leave layers out"
        )
    if config.layers[-1] >= num_layers:
        raise AlignAttnError(f"layers={list(config.layers)}: this model has layers 0 to {num_layers - 1}")
    return [layers[index] for index in config.layers]


def _check_layers(model: PreTrainedModel, layers: list[AttentionModule], config: AttentionConfig) -> None:
    name = type(model).__name__
    if any(hasattr(layer.module, "original_module") for layer in layers):
        raise AlignAttnError(
            f"an adapter trains copies of the attention of {name} (modules_to_save): patch the model before it is "
            "adapted"
        )
    for layer in layers:
        heads = layer.heads
        sizes = {role: features_of(projection) for role, projection in layer.projections.items()}
        query, key = heads.count * heads.size, heads.key_count * heads.size
        wanted = {"query": (query, 2 * query), "key": (key,), FUSED: (query + 2 * key,)}
        fits = heads.key_count > 0 and heads.count % heads.key_count == 0
        if all(sizes.values()) and not (fits and all(size in wanted[role] for role, size in sizes.items())):
            shown = listing([str(size) for size in sizes.values()])
            raise AlignAttnError(
                f"{type(layer.module).__name__} of {name} projects to {shown} features, "
                f"which are not {heads.count} heads of queries and {heads.key_count} of keys of one size"
            )
        # DBRX's module has the bound, OLMo's config.
        clip = getattr(layer.module, "clip_qkv", getattr(getattr(layer.module, "config", None), "clip_qkv", None))
        if config.alignment is not None and clip is not None:
            raise AlignAttnError(
                f"{type(layer.module).__name__} of {name} clips queries and keys after their projections, where an "
                f"alignment reads them: set clip_qkv={clip:g} of its config to None, or leave the alignment out"
            )


def _check_function_slots(model: PreTrainedModel, config: AttentionConfig, layers: list[AttentionModule]) -> None:
    """Refuse a model whose attention cannot call slots that change its function, or does not fit them."""
    name, slots = type(model).__name__, config.describe_slots()
    if all(family_of(layer.module) for layer in layers):
        if any("forward" in vars(layer.module) for layer in layers):
            raise AlignAttnError(
                f"the attention's forward in {name} is wrapped, as accelerate does for a device_map: patch the "
                "model before it is wrapped"
            )
        return
    if any(family_of(layer.module) for layer in layers):
        raise AlignAttnError(f"only part of {name} uses transformers' attention interface: patch that part alone")
    # A module selects its attention function by its config.
    without = [
        layer.module
        for layer in layers
        if EAGER not in own_functions(layer.module) or not hasattr(layer.module, "config")
    ]
    if without:
        raise AlignAttnError(
            f"{slots} is reached by transformers' attention interface, which {type(without[0]).__name__} of {name} "
            "does not call: choose an alignment alone"
        )
    base = model.config._attn_implementation
    if base not in IMPLEMENTATIONS:
        raise AlignAttnError(
            f"{slots} does not fit the attention implementation {base!r} of {name}: load it with attn_implementation="
            f"{' or '.join(map(repr, IMPLEMENTATIONS))}, or choose an alignment alone"
        )
    is_windowed = any(getattr(layer.module, "sliding_window", None) is not None for layer in layers)
    if is_windowed and not config.choices["score"].supports_windows:
        others = choices_with("score", "supports_windows")
        raise AlignAttnError(
            f"score={config.score!r} does not fit the sliding window of {name}: it would score all pairs; "
            f"choose one of {', '.join(others)}, or layers= without a window"
        )

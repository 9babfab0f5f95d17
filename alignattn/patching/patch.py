"""Patch Hugging Face encoders through transformers' attention interface.

transformers calls one registered function for attention in almost every model. A patch registers its own, gives each
self-attention module its slots, and sets the model's attention implementation; no forward is copied. Of the models that
do not call it, `alignattn.patching.families` serves some.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.choices import SCORES
from alignattn.attention.config import AttentionConfig
from alignattn.attention.packing import Packing, packing_of
from alignattn.attention.variant import attention_with_weights
from alignattn.patching.attach import attach, check_budget, check_model, declared_layers, fill_slots, unpatch
from alignattn.patching.families import SERVED, family_of
from alignattn.patching.probe import check_bidirectional, check_calls
from alignattn.patching.projections import AttentionModule, attention_modules, features_of
from alignattn.patching.slots import alignment_parameters, function_parameters, patch_of
from alignattn.support.errors import AlignAttnError

READ_SCALE = frozenset({"dot", "interaction", "sum", "qvi"})
"""Scores and values that take queries as the projections give them, not scaled by 1/sqrt(d)."""

BaseAttention = Callable[..., tuple[Tensor, Tensor | None]]
"""An attention function of transformers: `[B, n, H, d]` and the weights, if it gives them."""


def patch(model: PreTrainedModel, attention: str | AttentionConfig = "aa-ct", **overrides: Any) -> PreTrainedModel:
    """Give the self-attention of a pretrained encoder the slots that `attention` names, in place.

    An alignment alone leaves the pretrained function unchanged in evaluation mode; `AlignmentTrainer` adds its loss in
    training. A score, normalizer or value of the config is what the layers attend with from here on.
    For models that rotate queries and keys by position (ModernBERT), the alignment compares what the projections give,
    before the rotation.

    Args:
        model: a bidirectional encoder that uses transformers' attention interface: ALBERT, BERT, RoBERTa,
            DistilBERT, ELECTRA, XLM-RoBERTa, ModernBERT and others; DeBERTa-v2, DeBERTa-v3 or MPNet, whose part of
            relative positions is added to whatever score; or one whose attention modules call `alignattn.attend`, as
            for `attach`. It may have adapters, or be in a `peft.PeftModel`.
        attention: a config, a name such as `aa-ct`, `qvi` or `entmax15`, or several joined by `+`, as for
            `AttentionConfig.resolve`.
        **overrides: fields of `AttentionConfig` that replace those of `attention`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the model is patched already, is not such an encoder, or the config does not fit it.
    """
    config = AttentionConfig.resolve(attention, **overrides)
    if not isinstance(model, PreTrainedModel) and hasattr(model, "get_base_model"):
        patch(model.get_base_model(), config)
        return model
    if not isinstance(model, PreTrainedModel):
        raise AlignAttnError(
            f"{type(model).__name__} is no model of transformers: only those can be patched (alignattn.attach serves "
            "other models)"
        )
    if declared_layers(model):
        return attach(model, config)
    layers = _layers_to_patch(model, config)
    check_model(model)
    check_budget(config, type(model).__name__)
    base = _checked_base(model, config, layers)
    fill_slots(model, layers, config, base)
    if base is None:
        patch_of(model).hooks.append(model.register_forward_pre_hook(_refuse_packed, with_kwargs=True))
    else:
        model.set_attn_implementation(IMPLEMENTATIONS[base])
    try:
        check_calls(model)
        _check_on_a_device(model)
    except AlignAttnError:
        unpatch(model)
        raise
    return model


def patch_qvi(model: PreTrainedModel, **options: Any) -> PreTrainedModel:
    """Give a model query-value interaction (Wu et al. 2020): `patch` with the value slot `qvi`.

    The paper's patch function by name. `options` are further fields of `AttentionConfig`, such as
    `value_options={"init": "paper"}`. Returns and raises as `patch`.
    """
    return patch(model, "qvi", **options)


def patch_alignment(model: PreTrainedModel, alignment: str, *, weight: float = 0.01, **options: Any) -> PreTrainedModel:
    """Give a model alignment attention with the distance `alignment`: `gan`, `ot` or `ct`.

    The paper's patch function by name: `patch` with an `AttentionConfig` of this alignment and λ = `weight`. `options`
    are further fields of `AttentionConfig`. Returns and raises as `patch`.
    """
    return patch(model, AttentionConfig(alignment=alignment, alignment_weight=weight), **options)


def _refuse_packed(model: nn.Module, _args: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse a packed batch where the model's attention would not hear of it, and have its samples meet."""
    if kwargs.get("cu_seq_lens_q") is not None:
        raise AlignAttnError(
            f"{type(model).__name__} counts positions over a whole row, and the samples of a packed batch "
            "(cu_seq_lens_q) would meet: pad it"
        )


def _check_on_a_device(model: PreTrainedModel) -> None:
    """Refuse parameters on the meta device beside accelerate's hooks, which bring what they know of, and not these."""
    is_hooked = any(hasattr(module, "_hf_hook") for module in model.modules())
    if is_hooked and any(own.is_meta for own in [*alignment_parameters(model), *function_parameters(model)]):
        raise AlignAttnError(
            f"weights of this {type(model).__name__} are offloaded, and the slots' own would never be brought back: "
            "patch it before it is offloaded (load it without device_map, and call accelerate.dispatch_model after)"
        )


def _layers_to_patch(model: PreTrainedModel, config: AttentionConfig) -> list[AttentionModule]:
    num_heads = getattr(model.config, "num_attention_heads", None)
    layers = [] if num_heads is None else attention_modules(model, num_heads)
    if not layers:
        return []  # which `_check_interface` refuses
    if config.layers is None:
        return layers
    num_layers = model.config.num_hidden_layers
    if len(layers) != num_layers:
        raise AlignAttnError(
            f"layers={list(config.layers)}: the {num_layers} layers of {type(model).__name__} share "
            f"{len(layers)} attention module(s), so some cannot be patched without the rest: leave layers out"
        )
    if config.layers[-1] >= num_layers:
        raise AlignAttnError(f"layers={list(config.layers)}: this model has layers 0 to {num_layers - 1}")
    return [layers[index] for index in config.layers]


def _checked_base(model: PreTrainedModel, config: AttentionConfig, layers: list[AttentionModule]) -> str | None:
    """Return the attention implementation to stand on, None for one of `families`, if the model can be patched."""
    is_of_family = any(family_of(layer.module) for layer in layers)
    if is_of_family:
        _check_family(model, layers)
    else:
        _check_interface(model, config, layers)
    _check_layers(model, layers)
    check_bidirectional(model)
    return None if is_of_family else model.config._attn_implementation


def _check_interface(model: PreTrainedModel, config: AttentionConfig, layers: list[AttentionModule]) -> None:
    name = type(model).__name__
    if not model._can_set_attn_implementation() or not layers:
        raise AlignAttnError(
            f"{name} has no attention that a patch can reach (it does not use transformers' attention interface): "
            f"take ALBERT, BERT, RoBERTa, DistilBERT, ELECTRA, XLM-RoBERTa or ModernBERT, or of those without the "
            f"interface {SERVED}"
        )
    base = model.config._attn_implementation
    if base not in IMPLEMENTATIONS:
        raise AlignAttnError(
            f"{config.describe_slots() or 'a patch'} does not fit the attention implementation {base!r} of {name}: "
            f"load it with attn_implementation={' or '.join(map(repr, IMPLEMENTATIONS))}"
        )
    reads_queries = [slot for slot in ("score", "value") if getattr(config, slot) in READ_SCALE]
    if reads_queries and any(getattr(layer.module, "scaling", None) == 1 != layer.head_dim for layer in layers):
        raise AlignAttnError(
            f"{name} scales its queries before it attends, and {config.describe_slots()} would scale them once more: "
            "choose another score or value"
        )
    is_windowed = any(getattr(layer.module, "sliding_window", None) is not None for layer in layers)
    if config.score == "additive" and is_windowed:
        others = [score for score in SCORES if score != "additive"]
        raise AlignAttnError(
            f"score='additive' does not fit the sliding window of {name}: it would score every pair to drop most of "
            f"them; choose one of {', '.join(others)}, or layers= without a window"
        )


def _check_family(model: PreTrainedModel, layers: list[AttentionModule]) -> None:
    name = type(model).__name__
    if not all(family_of(layer.module) for layer in layers):
        raise AlignAttnError(
            f"a part of {name} uses transformers' attention interface and another does not: patch one of the parts"
        )
    if any("forward" in vars(layer.module) for layer in layers):
        raise AlignAttnError(
            f"something stands around the forward of the attention of {name}, as accelerate's hooks do where a "
            "device_map spreads a model: patch the model before"
        )


def _check_layers(model: PreTrainedModel, layers: list[AttentionModule]) -> None:
    name = type(model).__name__
    if any(hasattr(layer.module, "original_module") for layer in layers):
        raise AlignAttnError(
            f"an adapter trains copies of the attention of {name} (modules_to_save): patch the model before it is "
            "adapted"
        )
    for layer in layers:
        sizes = {role: features_of(projection) for role, projection in layer.projections.items()}
        if all(sizes.values()) and len(set(sizes.values())) > 1:
            raise AlignAttnError(
                f"{name} has fewer heads of keys than of queries ({sizes['key']} and {sizes['query']} features): slots "
                "are for as many of both"
            )


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    base_attention: BaseAttention,
    dropout: float = 0.0,
    scaling: float | None = None,
    output_attentions: bool | None = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls: attends by the module's slots, if it has some.

    The samples of a packed batch (`cu_seq_lens_q` of flash attention's arguments) are attended as of a padded one.
    """
    packing = _packing_of_call(module, query, kwargs)
    if packing is not None:
        query, key, value = (packing.padded(heads.transpose(1, 2)).transpose(1, 2) for heads in (query, key, value))
        attention_mask = packing.pairs(attention_mask)

    def base() -> tuple[Tensor, Tensor | None]:
        return base_attention(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)

    def plain() -> tuple[Tensor, Tensor | None]:
        attended, weights = base()
        return attended.transpose(1, 2), weights

    slots: Any = getattr(module, CHILD_NAME, None)
    if slots is None:
        attended, weights = base()
    else:
        _check_call(module, query, key, attention_mask, kwargs.get("is_causal"))
        attended, weights = slots(
            query,
            key,
            value,
            attention_mask,
            plain,
            scale=scaling,
            dropout=dropout,
            wants_weights=bool(output_attentions),
            packing=packing,
        )
        attended = attended.transpose(1, 2).contiguous()
    return (attended if packing is None else packing.packed(attended)), weights


def _packing_of_call(module: nn.Module, query: Tensor, kwargs: Mapping[str, Any]) -> Packing | None:
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is None:
        return None
    if len(query) != 1:
        name = type(module).__name__
        raise AlignAttnError(f"{name} is given cu_seq_lens_q and {len(query)} rows: a packed batch is one")
    return packing_of(bounds, kwargs.get("cu_seq_lens_k"), query.shape[2])


def _check_call(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None) -> None:
    name = type(module).__name__
    if is_causal:
        raise AlignAttnError(f"{name} attends causally: alignment attention is for bidirectional encoders")
    if query.shape != key.shape:
        raise AlignAttnError(
            f"{name} has queries {list(query.shape)} and keys {list(key.shape)}: slots are for self-attention with as "
            "many heads of keys as of queries"
        )
    if mask is not None and (mask.is_floating_point() or mask.shape[-2:] != (query.shape[2], key.shape[2])):
        raise AlignAttnError(
            f"{name} makes a mask of its own, {mask.dtype} {list(mask.shape)}, which slots cannot read: they take bool "
            "[batch, 1, tokens, tokens], as transformers' mask functions make it"
        )


def _eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float,
    scaling: float | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    attended, weights = attention_with_weights(query, key, value, attention_mask, scale=scaling, dropout=dropout)
    return attended.transpose(1, 2).contiguous(), weights


IMPLEMENTATIONS = {"sdpa": "alignattn_sdpa", "eager": "alignattn_eager"}
"""The attention implementations that a patch can stand on, and the name it registers for each.

A name with "flash" in it would be taken for flash attention. Both need a mask function of their name: without one the
mask arrives as None and padding is attended, silently.
"""

_BASE_ATTENTIONS: dict[str, BaseAttention] = {"sdpa": sdpa_attention_forward, "eager": _eager_attention}

for _base, _attention in _BASE_ATTENTIONS.items():
    _function = functools.partial(_attention_function, base_attention=_attention)
    AttentionInterface.register(IMPLEMENTATIONS[_base], _function)
    AttentionMaskInterface.register(IMPLEMENTATIONS[_base], sdpa_mask)

"""Patch, study and unpatch Hugging Face encoders through transformers' attention interface.

transformers calls one registered function for attention in almost every model. A patch registers its own, gives each
self-attention module a child that holds its slots, and sets the model's attention implementation; no forward is copied.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from alignattn.attention.choices import SCORES
from alignattn.attention.config import AttentionConfig
from alignattn.attention.variant import AttentionVariant, attention_with_weights
from alignattn.patching.projections import FUSED, AttentionModule, ProjectionTap, TappedLinear, attention_modules
from alignattn.patching.recording import Collector, LayerRecord, Recording
from alignattn.support.errors import AlignAttnError

CHILD_NAME = "alignattn"
"""Attribute of an attention module that holds its slots, and of a model and its config that tells of the patch."""

LOADING_HINT = "load_with_alignattn_from_pretrained"
"""The attention implementation that a saved config names if the patch changes the function. There is none of this name:
plain transformers refuses the checkpoint, where it would run it with soft attention, silently if the slots have no
parameters."""

BaseAttention = Callable[..., tuple[Tensor, Tensor | None]]
"""An attention function of transformers: `[B, n, H, d]` and the weights, if it gives them."""


@dataclass(frozen=True)
class Patch:
    """What `patch` did to a model; `unpatch` reads it."""

    config: AttentionConfig
    collector: Collector
    base_implementation: str


class LayerSlots(AttentionVariant):
    """The slots of one attention module of a model: the child that a patch gives it.

    Args:
        layer: the attention module and its projections.
        state: the patch it belongs to.
    """

    def __init__(self, layer: AttentionModule, state: Patch) -> None:
        super().__init__(state.config, layer.head_dim, layer.num_heads)
        self.collector = state.collector
        self.changes_function = state.config.changes_function
        self.num_heads = layer.num_heads
        self.parts = layer.names.parts

    def align(self, projected: dict[str, Tensor], mask: Tensor | None) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the alignment loss and its diagnostics of what the projections gave; None without an alignment.

        Args:
            projected: `[B, n, parts · H · d]` by the projection's role; emptied.
            mask: `[B, n]` bool, True = a real token, or None.
        """
        if self.alignment is None:
            return None, {}
        if FUSED in projected:
            query, key = projected.pop(FUSED).chunk(self.parts, dim=-1)[:2]
        else:
            query, key = projected.pop("query"), projected.pop("key")
        return self.alignment.with_diagnostics(self._split_heads(query), self._split_heads(key), mask)

    def _split_heads(self, features: Tensor) -> Tensor:
        return features.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def patch(model: PreTrainedModel, attention: str | AttentionConfig = "aa-ct", **overrides: Any) -> PreTrainedModel:
    """Give the self-attention of a pretrained encoder the slots that `attention` names, in place.

    An alignment alone leaves the pretrained function unchanged in evaluation mode; `AlignmentTrainer` adds its loss in
    training. A score, normalizer or value of the config is what the layers attend with from here on.
    For models that rotate queries and keys by position (ModernBERT), the alignment compares what the projections give,
    before the rotation.

    Args:
        model: a bidirectional encoder that uses transformers' attention interface: ALBERT, BERT, RoBERTa,
            DistilBERT, ELECTRA, XLM-RoBERTa, ModernBERT and others.
        attention: a config, a name such as `aa-ct`, `qvi` or `entmax15`, or several joined by `+`, as for
            `AttentionConfig.resolve`.
        **overrides: fields of `AttentionConfig` that replace those of `attention`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the model is patched already, is not such an encoder, or the config does not fit it.
    """
    config = AttentionConfig.resolve(attention, **overrides)
    if not isinstance(model, PreTrainedModel):
        raise AlignAttnError(f"{type(model).__name__} is no model of transformers: only those can be patched")
    layers = _layers_to_patch(model, config)
    _check_can_be_patched(model, config, layers)
    state = Patch(config, Collector(), model.config._attn_implementation)
    # The new networks draw from a generator of their own: the run beside it without them sees the same dropout.
    with torch.random.fork_rng(_cuda_devices(model)):
        for layer in layers:
            _add_slots(layer, state)
    model.set_attn_implementation(IMPLEMENTATIONS[state.base_implementation])
    setattr(model, CHILD_NAME, state)
    setattr(model.config, CHILD_NAME, config.to_dict())
    if config.changes_function:
        model.config.attn_implementation = LOADING_HINT
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


def unpatch(model: PreTrainedModel) -> PreTrainedModel:
    """Undo `patch`: the same modules, state-dict keys and attention implementation as before, trained weights kept.

    What the model then computes is plain attention with these weights: after an alignment the same as before, after a
    score, normalizer or value something else than it was trained with.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the model is not patched.
    """
    state = patch_of(model)
    model.set_attn_implementation(state.base_implementation)
    for module in model.modules():
        if isinstance(module, TappedLinear):
            module.remove_tap()
        if isinstance(getattr(module, CHILD_NAME, None), LayerSlots):
            delattr(module, CHILD_NAME)
    delattr(model, CHILD_NAME)
    delattr(model.config, CHILD_NAME)
    if state.config.changes_function:
        del model.config.attn_implementation
    return model


def is_patched(model: nn.Module) -> bool:
    """Tell whether `model` carries a patch."""
    return isinstance(getattr(model, CHILD_NAME, None), Patch)


def patch_of(model: nn.Module) -> Patch:
    """Return the patch that `model` carries.

    Raises:
        AlignAttnError: if it carries none.
    """
    state = getattr(model, CHILD_NAME, None)
    if not isinstance(state, Patch):
        raise AlignAttnError(f"this {type(model).__name__} is not patched: call alignattn.patch(model, …) first")
    return state


@contextmanager
def collect(model: PreTrainedModel) -> Iterator[Recording]:
    """Record what each attention layer of a patched model produces, for figures and study.

        with alignattn.collect(model) as seen:
            model(**batch)
        seen.layers[0].query  # [B, H, n, d]; also key, weights, mask, loss, diagnostics

    A further forward under the same `with` appends its layers.

    Raises:
        AlignAttnError: if the model is not patched (`patch(model, "soft")` leaves its function as it is).
    """
    collector = patch_of(model).collector
    outer, recording = collector.recording, Recording(keeps_tensors=True)
    collector.recording = recording
    try:
        yield recording
    finally:
        collector.recording = outer


def alignment_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the alignment losses' own networks."""
    alignments = [slots.alignment for slots in _all_slots(model) if slots.alignment is not None]
    return [parameter for alignment in alignments for parameter in alignment.parameters()]


def function_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the slots that are part of the model's function: scores, normalizers and values."""
    return [
        parameter
        for slots in _all_slots(model)
        for slot in (slots.score, slots.normalizer, slots.value)
        for parameter in slot.parameters()
    ]


def _all_slots(model: nn.Module) -> list[LayerSlots]:
    return [module for module in model.modules() if isinstance(module, LayerSlots)]


def _layers_to_patch(model: PreTrainedModel, config: AttentionConfig) -> list[AttentionModule]:
    num_heads = getattr(model.config, "num_attention_heads", None)
    layers = [] if num_heads is None else attention_modules(model, num_heads)
    if not layers:
        return []  # which `_check_can_be_patched` refuses
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


def _check_can_be_patched(model: PreTrainedModel, config: AttentionConfig, layers: list[AttentionModule]) -> None:
    name = type(model).__name__
    if is_patched(model):
        raise AlignAttnError(f"this {name} is patched already: call alignattn.unpatch(model) first")
    is_decoder = getattr(model.config, "is_decoder", False) or getattr(model.config, "is_encoder_decoder", False)
    if is_decoder or any(getattr(module, "is_causal", False) for module in model.modules()):
        raise AlignAttnError(f"{name} attends causally: alignment attention is for bidirectional encoders")
    if not model._can_set_attn_implementation() or not layers:
        raise AlignAttnError(
            f"{name} has no attention that a patch can reach (it does not use transformers' attention interface): "
            "take ALBERT, BERT, RoBERTa, DistilBERT, ELECTRA, XLM-RoBERTa or ModernBERT"
        )
    base = model.config._attn_implementation
    if base not in IMPLEMENTATIONS:
        raise AlignAttnError(
            f"{config.describe_slots() or 'a patch'} does not fit the attention implementation {base!r} of {name}: "
            f"load it with attn_implementation={' or '.join(map(repr, IMPLEMENTATIONS))}"
        )
    is_windowed = any(getattr(layer.module, "sliding_window", None) is not None for layer in layers)
    if config.score == "additive" and is_windowed:
        others = [score for score in SCORES if score != "additive"]
        raise AlignAttnError(
            f"score='additive' does not fit the sliding window of {name}: it would score every pair to drop most of "
            f"them; choose one of {', '.join(others)}, or layers= without a window"
        )
    projections = [child for layer in layers for child in layer.projections.values()]
    if config.alignment is not None and any(type(child) is not nn.Linear for child in projections):
        raise AlignAttnError(
            f"{name} projects queries or keys by something else than torch.nn.Linear (an adapter, a quantised "
            "layer): patch it before adding adapters, or merge them"
        )


def _add_slots(layer: AttentionModule, state: Patch) -> None:
    weight = next(layer.module.parameters())
    slots = LayerSlots(layer, state).to(weight.device).train(layer.module.training)
    layer.module.add_module(CHILD_NAME, slots)
    if state.config.alignment is not None:
        for role, projection in layer.projections.items():
            TappedLinear.add_tap(projection, ProjectionTap(state.collector, role, state.config.gradient_scope))


def _cuda_devices(model: PreTrainedModel) -> list[torch.device]:
    return [model.device] if model.device.type == "cuda" else []


def _attend(
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
    """The attention function that transformers calls: attends as the plain model, and records."""
    slots = getattr(module, CHILD_NAME, None)
    if slots is None:
        return base_attention(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    recording = slots.collector.active_recording(module.training)
    if recording is not None:
        _refuse_lost_gradient(slots, recording)
    wants_weights = bool(output_attentions) or (recording is not None and recording.keeps_tensors)
    if slots.changes_function:
        attended, weights = slots.attend(
            query, key, value, attention_mask, scale=scaling, dropout=dropout, wants_weights=wants_weights
        )
        attended = attended.transpose(1, 2).contiguous()
    else:
        attention: BaseAttention = _attend_with_weights if wants_weights else base_attention
        attended, weights = attention(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if recording is not None:
        mask = _real_tokens(attention_mask)
        loss, diagnostics = slots.align(recording.projected, mask)
        tensors = (query, key, weights, mask) if recording.keeps_tensors else ()
        recording.add(LayerRecord(loss, diagnostics, *tensors))
    elif module.training and slots.alignment is not None:
        _warn_of_training_without_alignment(slots.collector)
    return attended, weights


def _attend_with_weights(
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


def _real_tokens(attention_mask: Tensor | None) -> Tensor | None:
    """Return `[B, n]` bool, True = a real token, from a mask `[B, 1, n, n]`.

    A token may attend to itself if and only if it is real; off the diagonal a sliding window masks real pairs, too.
    """
    if attention_mask is None:
        return None
    diagonal = attention_mask[:, 0].diagonal(dim1=-2, dim2=-1)
    return diagonal if diagonal.dtype == torch.bool else diagonal == 0


def _refuse_lost_gradient(slots: LayerSlots, recording: Recording) -> None:
    if slots.alignment is not None and not recording.keeps_tensors and not torch.is_grad_enabled():
        raise AlignAttnError(
            "the alignment loss is computed where gradients are off, as reentrant checkpointing does, and would be "
            'lost: set activation_checkpointing_kwargs={"use_reentrant": False}'
        )


def _warn_of_training_without_alignment(collector: Collector) -> None:
    if torch.compiler.is_compiling() or collector.has_warned:
        return
    collector.has_warned = True
    warnings.warn(
        "a model with alignment attention is in training mode, but nothing collects its alignment loss: "
        "train it with alignattn.AlignmentTrainer",
        stacklevel=2,
    )


IMPLEMENTATIONS = {"sdpa": "alignattn_sdpa", "eager": "alignattn_eager"}
"""The attention implementations that a patch can stand on, and the name it registers for each.

A name with "flash" in it would be taken for flash attention. Both need a mask function of their name: without one the
mask arrives as None and padding is attended, silently.
"""

_BASE_ATTENTIONS: dict[str, BaseAttention] = {"sdpa": sdpa_attention_forward, "eager": _attend_with_weights}

for _base, _attention in _BASE_ATTENTIONS.items():
    AttentionInterface.register(IMPLEMENTATIONS[_base], functools.partial(_attend, base_attention=_attention))
    AttentionMaskInterface.register(IMPLEMENTATIONS[_base], sdpa_mask)

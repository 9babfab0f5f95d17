"""What a patch leaves in a model: the slots of each attention layer, and the record of what it did."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.attention.variant import AttentionVariant, attention_with_weights
from alignattn.patching.projections import FUSED, AttentionModule
from alignattn.patching.recording import Collector, LayerRecord, Recording
from alignattn.support.errors import AlignAttnError


@dataclass(frozen=True)
class Patch:
    """What was done to a model, which `unpatch` reads.

    Attributes:
        config: the choices of its slots.
        collector: of its layers.
        base_implementation: transformers' attention implementation that it had; None where its modules call
            `alignattn.attend` by themselves.
    """

    config: AttentionConfig
    collector: Collector
    base_implementation: str | None = None


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

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        plain: Callable[[], tuple[Tensor, Tensor | None]],
        *,
        scale: float | None = None,
        dropout: float = 0.0,
        wants_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend by the slots, and record the call if a recording is under way; arguments as for `attend`.

        Args:
            query: `[B, H, n, d]`.
            key: `[B, H, n, d]`.
            value: `[B, H, n, d]`.
            mask: `[B, 1, n, n]`: bool, or in transformers' eager attention floats that are added to the scores.
            plain: attends as the model does without slots, and gives the weights if it has them.
            scale: factor of the dot products.
            dropout: probability with which a weight is dropped.
            wants_weights: whether the caller wants the weights.

        Returns:
            The attended values `[B, H, n, d]`, and the weights `[B, H, n, n]` or None.
        """
        recording = self.collector.active_recording(self.training)
        if recording is not None:
            self._refuse_lost_gradient(recording)
        wants_weights = wants_weights or (recording is not None and recording.keeps_tensors)
        if self.changes_function:
            attended, weights = self.attend(
                query, key, value, mask, scale=scale, dropout=dropout, wants_weights=wants_weights
            )
        elif wants_weights:
            attended, weights = attention_with_weights(query, key, value, mask, scale=scale, dropout=dropout)
        else:
            attended, weights = plain()
        if recording is not None:
            real = _real_tokens(mask)
            loss, diagnostics = self._align(recording.projected, real)
            tensors = (query, key, weights, real) if recording.keeps_tensors else ()
            recording.add(LayerRecord(loss, diagnostics, *tensors))
        elif self.training and self.alignment is not None:
            _warn_of_training_without_alignment(self.collector)
        return attended, weights

    def _align(self, projected: dict[str, Tensor], mask: Tensor | None) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The alignment loss and its diagnostics of what the projections gave, which is emptied."""
        if self.alignment is None:
            return None, {}
        if FUSED in projected:
            query, key = projected.pop(FUSED).chunk(self.parts, dim=-1)[:2]
        elif len(projected) == 2:
            query, key = projected.pop("query"), projected.pop("key")
        else:
            raise AlignAttnError(
                "attention was computed without queries or keys of its module's own projections: an attention layer "
                "calls query_projection and key_projection, and then alignattn.attend, once a forward"
            )
        return self.alignment.with_diagnostics(self._split_heads(query), self._split_heads(key), mask)

    def _split_heads(self, features: Tensor) -> Tensor:
        return features.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _refuse_lost_gradient(self, recording: Recording) -> None:
        if self.alignment is not None and not recording.keeps_tensors and not torch.is_grad_enabled():
            raise AlignAttnError(
                "the alignment loss is computed where gradients are off, as reentrant checkpointing does, and would be "
                'lost: set activation_checkpointing_kwargs={"use_reentrant": False}'
            )


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
def collect(model: nn.Module) -> Iterator[Recording]:
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


def _real_tokens(mask: Tensor | None) -> Tensor | None:
    """Return `[B, n]` bool, True = a real token, from a mask `[B, 1, n, n]`.

    A token may attend to itself if and only if it is real; off the diagonal a sliding window masks real pairs, too.
    """
    if mask is None:
        return None
    diagonal = mask[:, 0].diagonal(dim1=-2, dim2=-1)
    return diagonal if diagonal.dtype == torch.bool else diagonal == 0


def _warn_of_training_without_alignment(collector: Collector) -> None:
    if torch.compiler.is_compiling() or collector.has_warned:
        return
    collector.has_warned = True
    warnings.warn(
        "a model with alignment attention is in training mode, but nothing collects its alignment loss: "
        "train it with alignattn.AlignmentTrainer",
        stacklevel=2,
    )

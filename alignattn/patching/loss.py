"""The alignment loss of a step, and on request complete records, from the forwards of a patched model."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from alignattn.attention.alignment.base import sum_of
from alignattn.patching.collector import WITHOUT_REENTRANCE
from alignattn.patching.recording import Recording, mean_alignment
from alignattn.patching.routing import routed
from alignattn.patching.slots import Patch, aligned_patches, patch_of, update_taps
from alignattn.utils.errors import AlignAttnError


def alignment_loss(model: nn.Module) -> Tensor:
    """Return λ · A(Q, K) of a step, to be added to the task loss, and forget what the step recorded.

        loss = model(**batch).loss + alignattn.alignment_loss(model)

    A step is all forwards with gradients in training mode since the last loss or optimizer step. Each uses its own
    mask, and their mean is weighted by samples.

    Args:
        model: a model patched with an alignment, or one around it: compiled, in DistributedDataParallel, or larger.

    Returns:
        A scalar.

    Raises:
        AlignAttnError: if the model has no alignment, or no such forward went through its attention.
    """
    return sum_of(state.config.alignment_weight * distance for state, distance, _ in step_alignments(model))


def step_alignments(model: nn.Module) -> list[tuple[Patch, Tensor, dict[str, Tensor]]]:
    """Return A(Q, K) of a step and its diagnostics for each patched part of a model, and forget what it recorded."""
    states = aligned_patches(model)
    if not states:
        raise AlignAttnError(
            f"this {type(model).__name__} is not patched with an alignment: call alignattn.patch first"
        )
    if any(own.is_meta for state in states for own in state.alignments.parameters()):
        raise AlignAttnError(
            f"this {type(model).__name__} is offloaded (its weights are on no device), which accelerate supports for "
            "inference only: train it on devices"
        )
    lacked_gradient = any(state.collector.saw_no_gradient for state in states)
    taken = [(state, state.collector.take()) for state in states]
    recorded = [(state, calls) for state, calls in taken if calls]
    if not recorded and lacked_gradient:
        raise AlignAttnError(
            "gradients were off in the forward, and the alignment loss would be lost: reentrant checkpointing does so "
            f"({WITHOUT_REENTRANCE}), and so do losses that cache embeddings"
        )
    if not recorded:
        raise AlignAttnError(
            f"no attention layer of this {type(model).__name__} recorded queries and keys since the last alignment "
            "loss or optimizer step: call it after a forward in training mode that passes through transformers' "
            "attention interface or through alignattn.attend"
        )
    if not any(part.requires_grad for _, calls in recorded for call in calls for part in (call.query, call.key)):
        raise AlignAttnError(
            f"nothing that makes the queries and keys of this {type(model).__name__} is trained, so no parameter can "
            "follow the alignment: train their projections, or adapt them (LoRA's target_modules)"
        )
    parts = []
    for state, calls in recorded:
        rows = state.config.alignment_rows
        distance, diagnostics, drew = mean_alignment(calls, state.alignments, rows, state.step if rows else None)
        if drew:
            state.step += 1
        parts.append((state, distance, diagnostics))
    return parts


def discard(model: nn.Module) -> None:
    """Forget what the forwards since the last loss recorded, if no loss is computed for them.

        loss = model(**batch).loss
        if not loss.isfinite():
            alignattn.discard(model)  # or the next alignment loss would count this batch, too
            continue

    A forward that fails is forgotten automatically.

    Args:
        model: as for `alignment_loss`.
    """
    for state in aligned_patches(model):
        state.collector.take()


@contextmanager
def collect(model: nn.Module) -> Iterator[Recording]:
    """Record what each attention layer of a patched model produces, for figures and study.

        with alignattn.collect(model) as seen:
            model(**batch)
        seen.layers[0].query  # [B, H, n, d]; also key, weights, mask, loss, diagnostics

    Another forward under the same `with` appends its layers. Weights come from the model's eager attention, so outputs
    of a model with SDPA may differ by rounding within this context.

    Raises:
        AlignAttnError: if the model is not patched (`patch(model, "soft")` leaves its function as it is).
    """
    state = patch_of(model)
    collector = state.collector
    outer, recording = collector.recording, Recording(alignments=state.alignments)
    collector.recording = recording
    try:
        update_taps(model)
        # The forwards of a model without an alignment are observed, too: their labels tell the padding of a decoder.
        collector.note_tapped(id(recording), is_tapped=True)
        with routed(model):
            yield recording
    finally:
        collector.recording = outer
        collector.note_tapped(id(recording), is_tapped=False)
        update_taps(model)

"""What a patched model records of its attention calls, and the alignment of recorded calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from alignattn.attention.alignment.base import Alignment, sum_of
from alignattn.attention.alignment.calls import Call, ranks
from alignattn.attention.config import ALL_ROWS
from alignattn.attention.masks import Packing
from alignattn.patching.masks import AttentionMask, Sides, packing_by_positions, real_tokens
from alignattn.patching.projections import repeated


@dataclass(eq=False)
class ForwardPass:
    """One forward of a model, shared by the calls that belong to it.

    Attributes:
        node: the first node of its graph that a tap saw; None if all projections are frozen. Backward passes through
            later layers end there, too.
        is_trained: whether an alignment's gradient changes any parameter; in a reference model's forward it does not.
    """

    node: Any = None
    is_trained: bool = False


def is_freed(node: Any) -> bool:
    """Tell whether a backward pass freed the saved tensors of a node of a custom function or a compiled graph.

    No loss can use the graph of such a node any more. Without a node (None) nothing is freed.
    """
    try:
        # Raw, because unpacking would recompute the forward of a checkpoint.
        getattr(node, "_raw_saved_tensors", None)
    except RuntimeError:
        return True
    return False


@dataclass(eq=False)
class RecordedCall:
    """One attention call of a training forward, and the call before it.

    Without arguments, it is the end of a list of calls: of this class, too, so that the compiler guards on the same
    type for any number of calls.

    Attributes:
        query: `[B, n, H * d]`, the output of the projection, with the gradient of the alignment's scope.
        key: `[B, m, G * d]` of G heads of keys, likewise.
        mask: the mask that the attention receives, or None.
        slots: the `LayerSlots` of the calling module.
        position_ids: `[B or 1, n]`, positions of the tokens, where the attention may separate the samples of a row by
            them (`packing_by_positions`). None: each row is one sample.
        previous: the call before; None at the end of the list.
        forward_pass: the forward that it belongs to; None under `torch.compile`.
        is_in_graph: whether gradients were enabled.
        witness: an empty tensor whose graph is that of the compiled forward; None without `torch.compile`.
        trace: an empty tensor that keeps `_free_spent` in a compiled graph; None likewise.
    """

    query: Any = None
    key: Any = None
    mask: AttentionMask | None = None
    slots: Any = None
    position_ids: Tensor | None = None
    previous: Any = None
    forward_pass: ForwardPass | None = None
    is_in_graph: bool = True
    witness: Tensor | None = None
    trace: Tensor | None = None

    @property
    def is_over(self) -> bool:
        """Whether no loss can use the call: a backward pass freed its graph, or nothing in it is trained."""
        if self.forward_pass is None:
            return self.witness is not None and is_freed(self.witness.grad_fn)
        node = self.forward_pass.node
        # A backward pass of a model that detaches the states of its first layers goes through the others alone.
        return node is None or any(map(is_freed, (node, self.query.grad_fn, self.key.grad_fn)))


def mean_alignment(
    calls: Sequence[RecordedCall], alignments: nn.ModuleDict, rows: int = ALL_ROWS, step: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor], bool]:
    """Return the mean distance A(Q, K) of recorded calls, weighted by their samples, its diagnostics, and if it drew.

    Args:
        calls: at least one.
        alignments: an `Alignment` for each head size.
        rows: the maximum number of samples of a forward that the loss uses, the same in all its calls; 0 = all.
        step: an int64 scalar that determines which samples these are.
    """
    # The layers of a forward share their masks and positions, so what these say is computed once, not in each layer.
    # They are compared with `is`: the compiler would guard on an id, and recompile in each step.
    masks: list[tuple[AttentionMask | None, tuple[int, int], Sides]] = []
    packings: list[tuple[Tensor, AttentionMask | None, Packing | None]] = []
    draws: list[tuple[Sides, int, Tensor, Sides]] = []
    by_size: dict[str, list[Call]] = {}
    samples = 0
    for call in calls:
        heads, query, key, lengths = call.slots.heads, call.query, call.key, (call.query.shape[1], call.key.shape[1])
        sides = next((real for mask, of_lengths, real in masks if mask is call.mask and of_lengths == lengths), None)
        if sides is None:
            sides = real_tokens(call.mask, len(query), lengths)
            masks.append((call.mask, lengths, sides))
        packing = None
        if call.position_ids is not None:
            same_row = (row for row in packings if row[0] is call.position_ids and row[1] is call.mask)
            if (row := next(same_row, None)) is None:
                packing, is_mixed = packing_by_positions(call.position_ids.expand(len(query), -1), call.mask)
                if is_mixed:
                    call.slots.collector.warn_of_mixing()
                packings.append(row := (call.position_ids, call.mask, packing))
            packing = row[2]
        if packing is not None:
            # Each sample of a packed row counts as one, with padding, as in a padded batch.
            query, key = (packing.padded(side.flatten(0, 1)[None]) for side in (query, key))
            real = packing.is_real if sides[0] is None else packing.padded(sides[0].flatten()[None]) & packing.is_real
            sides = real, real
        samples += len(query)
        chosen = None
        if step is not None and len(query) > rows:
            same_masks = (draw for draw in draws if draw[0][0] is sides[0] and draw[0][1] is sides[1])
            alike = (draw for draw in same_masks if draw[1] == len(query) and draw[2].device == query.device)
            if (draw := next(alike, None)) is None:
                # Samples of padding are drawn last.
                real_samples = [mask.any(dim=-1) for mask in dict.fromkeys(sides) if mask is not None]
                are_real = torch.stack(real_samples).all(dim=0) if real_samples else None
                chosen = ranks(step.to(query.device), len(query), are_real).topk(rows).indices
                of_query, of_key = (None if mask is None else mask.index_select(0, chosen) for mask in sides)
                # Queries and keys of the same tokens keep one mask.
                of_chosen = (of_query, of_query if sides[0] is sides[1] else of_key)
                draws.append(draw := (sides, len(query), chosen, of_chosen))
            _, _, chosen, sides = draw
        by_size.setdefault(str(heads.size), []).append(
            Call(query, heads.shared(key), heads.count, *sides, call.slots.layer, chosen)
        )
    # Each size divides by the samples of all sizes, so that the sum of the parts is the mean over all calls.
    parts = [cast(Alignment, alignments[size]).of_calls(group, samples) for size, group in by_size.items()]
    diagnostics = {name: sum_of(part[1][name] for part in parts) for name in parts[0][1]}
    return sum_of(loss for loss, _ in parts), diagnostics, bool(draws)


@dataclass(frozen=True)
class LayerRecord:
    """What one attention call produced.

    Attributes:
        loss: the alignment loss, a scalar; None without an alignment.
        diagnostics: detached scalars by name, such as the discriminator's accuracy.
        query: `[B, H, n, d]` as the attention received it.
        key: `[B, G, n, d]` for G heads of keys, G = H unless heads share keys; `[B, G, m, d]` for tokens other than the
            queries'.
        weights: `[B, H, n, m]`, the attention weights; along the edges of a graph `[1, H, E]`.
        mask: `[B, n]` bool, of the queries, True = a real token; None without padding.
        key_mask: `[B, m]` bool, of the keys; the same tensor as `mask` if they are the queries' tokens.
    """

    loss: Tensor | None = None
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    query: Tensor | None = None
    key: Tensor | None = None
    weights: Tensor | None = None
    mask: Tensor | None = None
    key_mask: Tensor | None = None

    @property
    def shared_key(self) -> Tensor | None:
        """The keys of each head of queries, `[B, H, m, d]`; shared keys are repeated."""
        if self.query is None or self.key is None:
            return self.key
        return repeated(self.key, self.query.shape[1], dim=1)

    def __repr__(self) -> str:
        """Return the shapes of the tensors, because their values would fill pages."""
        tensors = ("query", "key", "weights", "mask", "key_mask", "loss")
        named = [*((name, getattr(self, name)) for name in tensors), *self.diagnostics.items()]
        shapes = (f"{name}={list(value.shape)}" for name, value in named if value is not None)
        return f"{type(self).__name__}({', '.join(shapes)})"


@dataclass
class Recording:
    """The records of the forwards under one `collect`, in the order of the attention calls.

    Attributes:
        layers: one record for each call; a module that several layers share (ALBERT) has several.
        alignments: the model's alignments by head size.
    """

    layers: list[LayerRecord] = field(default_factory=list)
    alignments: nn.ModuleDict = field(default_factory=nn.ModuleDict)

    def __repr__(self) -> str:
        """Return one line for each call."""
        records = "".join(f"\n  {index}: {record!r}" for index, record in enumerate(self.layers))
        return f"{type(self).__name__} of {len(self.layers)} attention calls{records}"

    def losses(self) -> list[Tensor]:
        """Return the alignment losses of the calls."""
        return [record.loss for record in self.layers if record.loss is not None]

    def mean_loss(self) -> Tensor | None:
        """Return the mean alignment loss over the calls, a scalar; None if no call reported one."""
        losses = self.losses()
        return torch.stack(losses).mean() if losses else None

"""What forwards of a patched model leave behind: queries and keys for the alignment, and on request whole records.

The attention modules of one model share one collector. A call in training adds itself to a linked list: nothing that
`torch.compile` would guard on tells how many there are, and nothing stays on the modules.
"""

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from alignattn.attention.alignment.base import Alignment, sum_of
from alignattn.attention.alignment.call import Call
from alignattn.attention.alignment.in_basis import AlignmentInBasis
from alignattn.attention.cross_mask import CrossMask, Mask
from alignattn.attention.edges import Edges
from alignattn.patching.optimizer_check import warn_of_untrained_networks
from alignattn.support.errors import AlignAttnError


@dataclass(frozen=True)
class LayerRecord:
    """What one attention call produced.

    Attributes:
        loss: the alignment loss, a scalar; None without an alignment.
        diagnostics: detached scalars by name, such as the discriminator's accuracy.
        query: `[B, H, n, d]` as the attention received it.
        key: `[B, H, n, d]`; of other tokens than the queries `[B, H, m, d]`.
        weights: `[B, H, n, m]`, the attention weights; along the edges of a graph `[1, H, E]`.
        mask: `[B, n]` bool, True = a real token; None where nothing is padded. Of the queries, and of the keys where
            they are of the same tokens.
        key_mask: `[B, m]`, of the keys; the same tensor as `mask` where they are of the same tokens.
    """

    loss: Tensor | None = None
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    query: Tensor | None = None
    key: Tensor | None = None
    weights: Tensor | None = None
    mask: Tensor | None = None
    key_mask: Tensor | None = None

    def __repr__(self) -> str:
        """Return the shapes of what is there: the numbers of a step fill pages."""
        named = [*((name, getattr(self, name)) for name in _TENSORS), *self.diagnostics.items()]
        shapes = (f"{name}={list(value.shape)}" for name, value in named if value is not None)
        return f"{type(self).__name__}({', '.join(shapes)})"


_TENSORS = ("query", "key", "weights", "mask", "key_mask", "loss")


@dataclass
class Recording:
    """The records of the forwards under one `collect`, in the order of the attention calls.

    Attributes:
        layers: one record a call; a layer whose module several layers share (ALBERT) has one for each call.
        alignments: of the model, by the size of a head.
    """

    layers: list[LayerRecord] = field(default_factory=list)
    alignments: nn.ModuleDict = field(default_factory=nn.ModuleDict)

    def __repr__(self) -> str:
        """Return a line a call."""
        records = "".join(f"\n  {index}: {record!r}" for index, record in enumerate(self.layers))
        return f"{type(self).__name__} of {len(self.layers)} attention calls{records}"

    def losses(self) -> list[Tensor]:
        """Return the alignment losses of the calls."""
        return [record.loss for record in self.layers if record.loss is not None]

    def mean_loss(self) -> Tensor | None:
        """Return the mean alignment loss over the calls, a scalar; None if no call reported one."""
        losses = self.losses()
        return torch.stack(losses).mean() if losses else None


Sides = tuple[Tensor | None, Tensor | None]
"""The masks of queries and of keys."""


class RecordedCall:
    """One attention call of a training forward, and the one before it.

    Attributes:
        query: `[B, n, H * d]`, as the projection gave it, with the gradient that the alignment's scope wants.
        key: `[B, m, H * d]`, likewise.
        mask: as the attention received it, or None.
        slots: of the module that called, a `LayerSlots`.
        previous: the call before; the end of the list is None.
    """

    def __init__(self, query: Any, key: Any, mask: Tensor | CrossMask | None, slots: Any, previous: Any = None) -> None:
        self.query = query
        self.key = key
        self.mask = mask
        self.slots = slots
        self.previous = previous


def _end_of_list() -> RecordedCall:
    # Of one type with every call: what the compiler guards on is the same, however many there are.
    return RecordedCall(None, None, None, None)


class Collector:
    """Where the attention modules of one model leave what a step needs.

    A copy of the model has an empty one of its own. A copy of a part of it, such as adapters train in the place of a
    module, has that of the model: what attends in place of the part is recorded as the part is.

    Args:
        owner: the model; None if copies of parts are of no model.

    Attributes:
        recording: that of `collect`, or None.
        projected: by role, what the projections of the call under way gave.
        around: the call under way of what stands in the place of a projection.
        newest: the last recorded call.
        saw_no_gradient: whether a forward in training mode had none to record.
        is_paused: whether what projections give now is recorded by nobody.
    """

    def __init__(self, owner: nn.Module | None = None) -> None:
        self._owner = None if owner is None else weakref.ref(owner)
        self.recording: Recording | None = None
        self.projected: dict[str, Tensor] = {}
        self.around: Any = None
        self.newest = _end_of_list()
        self._taken: set[int] = set()
        self._has_warned = False
        self.saw_no_gradient = False
        self.is_paused = False
        _COLLECTORS.add(self)

    @property
    def owner(self) -> nn.Module | None:
        """The model; None if it is gone, or not known."""
        return None if self._owner is None else self._owner()

    def __reduce__(self) -> tuple[type["Collector"], tuple[()]]:
        return Collector, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Collector":
        owner = self.owner
        # A model is noted as copied before its parts are.
        return self if owner is not None and id(owner) not in memo else Collector(memo.get(id(owner)))

    def is_tapped(self, training: bool) -> bool:
        """Tell whether a module in this mode hands over its queries and keys; in evaluation it costs nothing."""
        is_tapped = not self.is_paused and (self.recording is not None or (training and torch.is_grad_enabled()))
        if is_tapped and not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            raise AlignAttnError(
                "torch.func transforms a forward that records for the alignment loss, which it would lose: give it the "
                "model in evaluation mode, or alignattn.unpatch(model)"
            )
        return is_tapped

    def pause(self, is_paused: bool) -> None:
        """Have projections hand over nothing until further notice: they are called on what is no token's state."""
        self._set("is_paused", is_paused)

    def keep(self, role: str, projected: Tensor) -> None:
        """Keep what a projection gave until its module attends."""
        if torch.compiler.is_compiling():
            # What leaves a checkpoint that is being compiled must be an operation's of its own.
            projected = projected.view_as(projected)
        self._set("projected", {**self.projected, role: projected})

    def surround(self, around: Any) -> None:
        """Note the call under way of what stands in the place of a projection, or that it is over (None)."""
        self._set("around", around)

    def take_projected(self) -> dict[str, Tensor]:
        """Return what the projections of the call under way gave, by role, and forget it."""
        projected = self.projected
        self._set("projected", {})
        return projected

    def add(self, call: RecordedCall | None) -> None:
        """Record a call in training, unless gradients are off, or a backward pass makes it again for a checkpoint.

        Raises:
            AlignAttnError: if it is in a backward pass, and its module recorded nothing before.
        """
        if call is None or not torch.is_grad_enabled():
            self.saw_no_gradient = True
        elif torch.compiler.is_compiling() or torch._C._current_graph_task_id() == _NO_BACKWARD:
            call.previous = self.newest
            self._set("newest", call)
        elif id(call.slots) not in self._taken | {id(other.slots) for other in self._calls()}:
            raise AlignAttnError(
                "a forward within a backward pass would lose its alignment loss: reentrant checkpointing makes one "
                '(set activation_checkpointing_kwargs={"use_reentrant": False}), and so do losses that cache embeddings'
            )

    def _set(self, name: str, value: Any) -> None:
        if torch.compiler.is_compiling():
            # The compiler refuses what a checkpoint leaves behind, because it would not repeat it where the checkpoint
            # is recomputed: nor may it, a recomputation records nothing.
            torch._dynamo.utils._disable_side_effect_safety_checks_for_current_subtracer(setattr, self, name, value)
        else:
            setattr(self, name, value)

    def _calls(self) -> list[RecordedCall]:
        calls, call = [], self.newest
        while call.previous is not None:
            calls.append(call)
            call = call.previous
        return calls[::-1]

    def take(self) -> list[RecordedCall]:
        """Return the calls recorded since the last time, the oldest first, and forget them."""
        calls = self._calls()
        self._taken = {id(call.slots) for call in calls}
        self.saw_no_gradient = False
        self.newest = _end_of_list()
        return calls

    def end_step(self) -> None:
        """Free what nobody took before an optimizer's step, and warn of it once."""
        is_left = self.newest.previous is not None
        self.newest = _end_of_list()
        self._taken.clear()
        self.saw_no_gradient = False
        if is_left and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "a model with alignment attention is trained without its alignment loss: add "
                "alignattn.alignment_loss(model) to the loss before the backward pass, or train it with "
                "alignattn.AlignmentTrainer",
                stacklevel=2,
            )


_NO_BACKWARD = -1
"""The number that torch gives where no backward pass is under way."""

_COLLECTORS: weakref.WeakSet[Collector] = weakref.WeakSet()


def _end_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    warn_of_untrained_networks(optimizer, _COLLECTORS)
    for collector in list(_COLLECTORS):
        collector.end_step()


register_optimizer_step_post_hook(_end_step)


def mean_alignment(calls: Sequence[RecordedCall], alignments: nn.ModuleDict) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean distance A(Q, K) of recorded calls, weighted by their samples, and its diagnostics.

    Args:
        calls: at least one.
        alignments: for each size of a head, an `Alignment` or one in a basis.
    """
    masks: list[tuple[Tensor | CrossMask | None, Sides]] = []
    by_size: dict[str, list[Call]] = {}
    for call in calls:
        slots, sides = call.slots, _real_tokens_once(call.mask, masks)
        by_size.setdefault(str(slots.head_dim), []).append(
            Call(call.query, call.key, slots.num_heads, *sides, slots.layer)
        )
    samples = sum(len(call.query) for call in calls)
    parts = [
        cast(Alignment | AlignmentInBasis, alignments[size]).of_calls(group, samples) for size, group in by_size.items()
    ]
    diagnostics = {name: sum_of(part[1][name] for part in parts) for name in parts[0][1]}
    return sum_of(loss for loss, _ in parts), diagnostics


def _real_tokens_once(mask: Tensor | CrossMask | None, known: list[tuple[Tensor | CrossMask | None, Sides]]) -> Sides:
    # Compared by `is`: the compiler would guard on an id, and compile each step anew.
    for other, real in known:
        if other is mask:
            return real
    real = real_tokens(mask)
    known.append((mask, real))
    return real


def real_tokens(mask: Mask | None) -> Sides:
    """Return which queries and which keys are real, `[B, n]` and `[B, m]` bool; None where all are.

    They are one tensor for a mask `[B, 1, n, n]`, of the same tokens: one may attend to itself if and only if it is
    real; off the diagonal a sliding window masks real pairs, too. All nodes of a graph are real.
    """
    if mask is None or isinstance(mask, Edges):
        return None, None
    if isinstance(mask, CrossMask):
        return mask.query, mask.key
    diagonal = mask[:, 0].diagonal(dim1=-2, dim2=-1)
    real = diagonal if diagonal.dtype == torch.bool else diagonal == 0
    return real, real

"""Queries and keys that the forwards of a patched model record for the alignment loss.

The attention modules of one model share one collector. Taps `keep` the outputs of the projections until their module
attends, the module joins them to a `RecordedCall` and `add`s it, and the loss of the step `take`s all calls. Calls that
no loss takes go at the optimizer's step (`end_step`), or as soon as a backward pass has freed their graph
(`free_spent`): no later loss could use them.

In training, the calls are a linked list. So no `torch.compile` guard depends on their number, and nothing stays on the
modules.

All hooks that record exist only while a patched model does: in training, in `collect`, and while a patch is checked. A
hook sends its module through the slow call of `torch.nn.Module`, also if it does nothing.
"""

import itertools
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel

from alignattn.attention.masks import CrossMask, sample_starts
from alignattn.patching.masks import PACKING_ADVICE, AttentionMask, real_targets, real_tokens
from alignattn.patching.optimizer_check import is_of_another_model, warn_of_untrained_networks
from alignattn.patching.process_changes import ProcessChange
from alignattn.patching.recording import ForwardPass, RecordedCall, Recording, is_freed
from alignattn.utils.errors import ONE_PROCESS_PER_GPU, AlignAttnError

Hook = TypeVar("Hook", bound=Callable[..., Any])

WITHOUT_REENTRANCE = (
    'set activation_checkpointing_kwargs={"use_reentrant": False}; transformers < 5.23: gradient_checkpointing_kwargs'
)
"""How to keep an alignment's gradient under checkpointing, for messages."""


def recording_hook(function: Hook) -> Hook:
    """Mark a method as a hook that `remove_hooks` removes."""
    function.is_recording_hook = True  # type: ignore[attr-defined]
    return function


def has_recording_hook(module: nn.Module) -> bool:
    """Tell whether `module` itself has a recording hook after its forward."""
    return any(getattr(hook, "is_recording_hook", None) is True for hook in module._forward_hooks.values())


def remove_hooks(module: nn.Module) -> None:
    """Remove the recording hooks of `module` and of the modules inside it.

    They are found by their mark, not by handles, because torch and peft copy modules with their hooks.
    """
    for part in module.modules():
        before = (part._forward_pre_hooks, part._forward_pre_hooks_with_kwargs)
        after = (part._forward_hooks, part._forward_hooks_with_kwargs, part._forward_hooks_always_called)
        for numbered in (before, after):
            for number, hook in list(numbered[0].items()):
                if getattr(hook, "is_recording_hook", None) is True:
                    for by_number in numbered:
                        by_number.pop(number, None)


class _Watched(torch.autograd.Function):
    """The identity, whose node tells when it is freed: nodes of torch's own operations do not."""

    @staticmethod
    def forward(_ctx: Any, output: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(_ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return grad_outputs[0]


class Collector:
    """Records the attention calls of one model until a step's loss.

    A copy of the model gets a new, empty collector. A copy of a part of the model, which an adapter trains in place of
    that part, shares the model's collector.

    Args:
        owner: the model; None for a collector that no model owns.

    Attributes:
        paths: paths of the modules of the model that contain all its layers; the model's own is empty.
        refuses_packed: whether the model cannot keep the samples of a packed batch apart.
        tapped: the layers whose projections are tapped.
        recording: the recording of `collect`, or None.
        proof: the calls of a forward that `alignattn.patching.probe` checks; None outside such a check.
        is_off: whether nothing is recorded and slots attend as the plain model does.
        projected: the outputs of the projections in the current call, by role.
        around: the current call of a module that replaces a projection; None outside one.
        witness: as in `RecordedCall`, for the current call.
        newest: the last recorded call.
        given_positions: the `position_ids` that the caller of the current forward passed; None if it passed none, so
            that each row is one sample.
        labels: labels of the next forward, which a trainer may keep from the model (for label smoothing); or None.
        real_targets: which positions of the decoder are real in the current forward, by its labels; None if they do
            not tell, or `decoder_attention_mask` does.
        saw_no_gradient: whether a forward in training mode had no gradient to record.
    """

    def __init__(self, owner: nn.Module | None = None) -> None:
        self._owner = None if owner is None else weakref.ref(owner)
        self.paths: tuple[str, ...] = ()
        self.refuses_packed = False
        self.tapped: set[Hashable] = set()
        self.recording: Recording | None = None
        self.proof: list[RecordedCall] | None = None
        self.is_off = False
        self.projected: dict[str, Tensor] = {}
        self.around: Any = None
        self.witness: Tensor | None = None
        self.newest = RecordedCall()
        self.given_positions: Tensor | None = None
        self.labels: Tensor | None = None
        self.real_targets: Tensor | None = None
        self._mixed_positions: Tensor | None = None
        self._restarts: Tensor | None = None
        self._forward_pass = ForwardPass()
        self._open: list[nn.Module] = []
        self._taken: set[int] = set()
        self._has_warned = False
        self._has_warned_of_mixing = False
        self.saw_no_gradient = False
        self.number = next(_NUMBERS)
        _COLLECTORS[self.number] = self

    @property
    def owner(self) -> nn.Module | None:
        """The model; None if it was deleted or is unknown."""
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, owner: nn.Module | None) -> None:
        self._owner = None if owner is None else weakref.ref(owner)

    def _kept_in_copies(self) -> dict[str, Any]:
        return {"paths": self.paths, "refuses_packed": self.refuses_packed, "tapped": set(self.tapped)}

    def __reduce__(self) -> tuple[type["Collector"], tuple[()], dict[str, Any]]:
        # Without the model: a part of it may be pickled.
        return Collector, (), self._kept_in_copies()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Collector":
        owner = self.owner
        # deepcopy notes a model in the memo before it copies the parts.
        if owner is not None and id(owner) not in memo:
            return self
        twin = Collector(memo.get(id(owner)))
        vars(twin).update(self._kept_in_copies())
        return twin

    @property
    def is_watching(self) -> bool:
        """Whether `collect` or a check wants the calls in any mode, with or without gradients."""
        return self.recording is not None or self.proof is not None

    def is_recording(self) -> bool:
        """Tell whether a tapped module hands over its output now: with gradients, in `collect` or in a check."""
        if self.is_off or not (torch.is_grad_enabled() or self.is_watching):
            return False
        if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
            raise AlignAttnError(
                "torch.func transforms a forward that records for the alignment loss, and would lose the records: use "
                "the model in evaluation mode, or call alignattn.unpatch(model) first"
            )
        return True

    def note_tapped(self, layer: Hashable, is_tapped: bool) -> None:
        """Note whether the projections of a layer are tapped; forwards are observed while those of any layer are."""
        was_observed = bool(self.tapped)
        if is_tapped:
            self.tapped.add(layer)
        else:
            self.tapped.discard(layer)
        owner = self.owner
        if owner is None or bool(self.tapped) == was_observed:
            return
        if was_observed:
            remove_hooks(owner)
            return
        # The model itself is not always called: peft and users may call the encoder inside it.
        for path in self.paths:
            # A part may have been replaced since the patch.
            with suppress(AttributeError):
                around = owner.get_submodule(path)
                around.register_forward_pre_hook(self.begin_forward, with_kwargs=True)
                around.register_forward_hook(self.end_forward, always_call=True)

    def keep(self, role: str, projected: Tensor, output: Tensor) -> Tensor:
        """Keep the output of a projection until its module attends, and return the output for the attention.

        Args:
            role: role of the projection.
            projected: its output as the alignment reads it.
            output: its output as the attention reads it.
        """
        if torch.compiler.is_compiling():
            # A compiled checkpoint may return nothing but outputs of operations.
            projected = projected.view_as(projected)
            self.assign("witness", output.flatten()[:0].clone())
        elif torch._C._current_graph_task_id() == _NO_BACKWARD and output.grad_fn is not None:
            if is_freed(self._forward_pass.node):
                self._begin_pass()
            # The node of the first output in a forward tells when a backward pass frees the graph.
            if self._forward_pass.node is None:
                if not isinstance(output.grad_fn, torch.autograd.function.BackwardCFunction):
                    output = cast(Tensor, _Watched.apply(output))  # type: ignore[no-untyped-call]
                self._forward_pass.node = output.grad_fn
        self.assign("projected", {**self.projected, role: projected})
        return output

    def take_projected(self) -> dict[str, Tensor]:
        """Return the outputs of the projections in the current call, by role, and forget them."""
        projected = self.projected
        self.assign("projected", {})
        return projected

    def begin_attention(self) -> None:
        """Begin an attention call: forget what a failed one left."""
        if self.projected:
            self.assign("projected", {})
        if self.around is not None:
            self.assign("around", None)

    @recording_hook
    def begin_forward(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Note that the forward of a module around all layers begins: that module's forward pre-hook."""
        if self.refuses_packed:
            refuse_packed(module, args, kwargs)
        # A layer gets positions that the model makes.
        if isinstance(module, PreTrainedModel) and isinstance(positions := kwargs.get("position_ids"), Tensor):
            self.assign("given_positions", positions)
        # Collators for encoder-decoders pad labels and pass no mask of the decoder: later padding harms no prediction.
        if getattr(getattr(module, "config", None), "is_encoder_decoder", False):
            labels, mask = kwargs.get("labels", self.labels), kwargs.get("decoder_attention_mask")
            self.assign("labels", None)
            if isinstance(labels, Tensor) and labels.dim() == 2 and mask is None:
                self.assign("real_targets", real_targets(labels))
        if _is_traced_or_in_backward():
            return
        if module.training and torch.is_grad_enabled() and getattr(module, "_is_replica", False):
            raise AlignAttnError(f"alignment attention {ONE_PROCESS_PER_GPU}")
        if any(module is part for part in self._open):
            # It began before and did not end, because of an exception that hooks do not see, such as Ctrl-C.
            self._drop_pass()
        if not self._open:
            self._begin_pass()
        self._open.append(module)

    @recording_hook
    def end_forward(self, module: nn.Module, _args: Any, output: Any) -> None:
        """Note that such a forward ends: that module's forward hook, which torch also calls after a failure."""
        if self.given_positions is not None:
            self.assign("given_positions", None)
        if self.real_targets is not None:
            self.assign("real_targets", None)
        if _is_traced_or_in_backward() or not self._open:
            return
        if output is None:
            self._drop_pass()
        else:
            self._open = self._open[:-1]

    def _begin_pass(self) -> None:
        """Begin a forward, and free the records that no loss can use any more."""
        self._forward_pass = ForwardPass()
        self.free_spent()

    def free_spent(self) -> None:
        """Free the records of forwards that no loss can use any more."""
        # A loss uses a forward as a whole: one freed call frees the others. A compiled call is a forward of its own.
        over = {id(call.forward_pass or call) for call in self.calls() if call.is_over}
        self._keep_calls(lambda call: id(call.forward_pass or call) not in over)

    def _drop_pass(self) -> None:
        """Drop the records of the current forward, which failed."""
        failed, self._open = self._forward_pass, []
        self.begin_attention()
        self._keep_calls(lambda call: call.forward_pass is not failed)

    def _keep_calls(self, is_kept: Callable[[RecordedCall], bool]) -> None:
        calls = self.calls()
        kept = [call for call in calls if is_kept(call)]
        if len(kept) == len(calls):
            return
        self.newest = RecordedCall()
        for call in kept:
            call.previous, self.newest = self.newest, call

    def add(self, call: RecordedCall | None) -> None:
        """Record a call in training, unless gradients are off, or a backward pass repeats it for a checkpoint.

        Raises:
            AlignAttnError: if a backward pass makes the call, and its module recorded nothing before.
        """
        if self.proof is not None:
            if call is not None:
                call.is_in_graph = torch.is_grad_enabled()
                self.proof.append(call)
        elif call is None or not torch.is_grad_enabled():
            self.saw_no_gradient = True
        elif torch.compiler.is_compiling() or torch._C._current_graph_task_id() == _NO_BACKWARD:
            if torch.compiler.is_compiling():
                call.witness, call.trace = self.witness, _free_spent(call.query.detach(), self.number)
                self.assign("witness", None)
            else:
                call.forward_pass = self._forward_pass
                self._forward_pass.is_trained |= call.query.requires_grad or call.key.requires_grad
            call.previous = self.newest
            self.assign("newest", call)
        elif id(call.slots) not in self._taken | {id(other.slots) for other in self.calls()}:
            raise AlignAttnError(
                "a forward within a backward pass would lose its alignment loss: reentrant checkpointing runs one "
                f"({WITHOUT_REENTRANCE}), and so do losses that cache embeddings"
            )

    def assign(self, name: str, value: Any) -> None:
        """Set an attribute of the current call; the compiler may trace it."""
        if torch.compiler.is_compiling():
            # The compiler refuses side effects in a checkpoint, because it would not repeat them when it recomputes the
            # checkpoint. Here it must not repeat them: a recomputation records nothing.
            torch._dynamo.utils._disable_side_effect_safety_checks_for_current_subtracer(setattr, self, name, value)
        else:
            setattr(self, name, value)

    def note_mixed(self, position_ids: Tensor, is_real: Tensor | None) -> None:
        """Warn once if positions restart in an attention that does not separate samples, without synchronising.

        On a GPU the answer is copied in the background, and read in the next forward.
        """
        if torch.compiler.is_compiling() or self._has_warned_of_mixing or position_ids is self._mixed_positions:
            return
        self._mixed_positions = position_ids
        starts = sample_starts(position_ids, None if is_real is None else is_real.bool())
        restarts = (starts.sum(dim=1) > 1).any()
        if not restarts.is_cuda:
            self._restarts = restarts
        elif self._restarts is None:
            self._restarts = torch.zeros((), dtype=torch.bool, pin_memory=True)
        if self._restarts.item():
            self.warn_of_mixing()
        elif restarts.is_cuda:
            self._restarts.copy_(restarts, non_blocking=True)

    def warn_of_mixing(self) -> None:
        """Warn once that the samples of a row attend to each other."""
        if not self._has_warned_of_mixing:
            self._has_warned_of_mixing = True
            name = "this model" if self.owner is None else f"this {type(self.owner).__name__}"
            warnings.warn(
                f"position_ids restart within a row, but the attention of {name} does not separate the samples there, "
                f"and its alignment counts them as one: {PACKING_ADVICE}",
                stacklevel=2,
            )

    def cross_mask(self, query: Tensor, key: Tensor, mask: AttentionMask | None) -> CrossMask:
        """Return the masks of a cross-attention call; its queries' mask is that of the self-attention before it."""
        batch, lengths = len(query), (query.shape[1], key.shape[1])
        before = self.proof[-1] if self.proof else self.newest
        queries = None
        if self.recording is not None:
            masks = [layer.mask for layer in self.recording.layers[-1:] if layer.mask is not None]
            queries = next((real for real in masks if real.shape == query.shape[:2]), None)
        elif before.query is not None and not before.slots.is_cross and before.query.shape[:2] == query.shape[:2]:
            queries = real_tokens(before.mask, batch, (lengths[0], lengths[0]))[0]
        elif isinstance(before.mask, CrossMask):
            queries = before.mask.query
        return CrossMask(queries, real_tokens(mask, batch, lengths)[1])

    def calls(self) -> list[RecordedCall]:
        """Return the calls recorded since the last loss or step, oldest first."""
        calls, call = [], self.newest
        while call.previous is not None:
            calls.append(call)
            call = call.previous
        return calls[::-1]

    def take(self) -> list[RecordedCall]:
        """Return the calls recorded since the last loss or step, oldest first, and forget them.

        Calls of forwards that train nothing, such as a reference model's (`disable_adapter()`), are left out if there
        are others.
        """
        calls = self.calls()
        calls = [call for call in calls if call.forward_pass is None or call.forward_pass.is_trained] or calls
        self._taken = {id(call.slots) for call in calls}
        self._forget()
        return calls

    def _forget(self) -> None:
        self.saw_no_gradient = False
        self.newest = RecordedCall()
        # It holds a part of the graph.
        self._forward_pass = ForwardPass()

    def end_step(self) -> None:
        """Free the records that no loss used before an optimizer step, and warn once."""
        is_left = self.newest.previous is not None
        self._forget()
        self._taken.clear()
        if is_left and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "a model with alignment attention is trained without its alignment loss: add "
                "alignattn.alignment_loss(model) to the loss before the backward pass, or train it with "
                "alignattn.AlignmentTrainer",
                stacklevel=2,
            )


def refuse_packed(model: nn.Module, _args: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse a packed batch for a model whose attention does not receive its bounds: samples would mix."""
    if kwargs.get("cu_seq_lens_q") is not None:
        raise AlignAttnError(
            f"{type(model).__name__} numbers positions over a whole row, and the samples of a packed batch "
            "(cu_seq_lens_q) would attend to each other: pad it"
        )


def _is_traced_or_in_backward() -> bool:
    """Tell whether the compiler traces, so that forwards are not tracked, or a backward pass repeats a forward."""
    return torch.compiler.is_compiling() or torch._C._current_graph_task_id() != _NO_BACKWARD


_NO_BACKWARD = -1
"""The task id that torch returns outside a backward pass."""

_NUMBERS = itertools.count()
_COLLECTORS: weakref.WeakValueDictionary[int, Collector] = weakref.WeakValueDictionary()


@torch.library.custom_op("alignattn::free_spent", mutates_args=())
def _free_spent(like: Tensor, number: int) -> Tensor:
    """Free the records of a collector, given by its number, that no loss can use; return an empty tensor.

    A custom operator, because a compiled forward runs our Python code only inside operators.
    """
    collector = _COLLECTORS.get(number)
    if collector is not None:
        collector.free_spent()
    return like.new_empty(0)


@_free_spent.register_fake
def _(like: Tensor, number: int) -> Tensor:
    return like.new_empty(0)


def _end_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    collectors = list(_COLLECTORS.values())
    warn_of_untrained_networks(optimizer, collectors)
    for collector in collectors:
        if not is_of_another_model(optimizer, collector):
            collector.end_step()


OPTIMIZER_STEPS = ProcessChange(lambda: register_optimizer_step_post_hook(_end_step).remove)
"""The end of a step, which torch announces for each optimizer of the process."""

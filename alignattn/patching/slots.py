"""What a patch leaves in a model: the slots of each attention layer, its alignment, and the record of what it did."""

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from alignattn.attention.alignment.base import sum_of
from alignattn.attention.alignment.in_basis import AlignmentInBasis
from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.choices import ALIGNMENTS
from alignattn.attention.config import BASIS, AttentionConfig
from alignattn.attention.cross_mask import Mask, pairs_of
from alignattn.attention.edges import Edges
from alignattn.attention.packing import Packing
from alignattn.attention.scores import Score
from alignattn.attention.variant import AttentionVariant, attention_with_weights, masked_bias
from alignattn.patching.owned_configs import ConfigPairs
from alignattn.patching.projections import FUSED, AttentionModule, check_direct
from alignattn.patching.recording import Collector, LayerRecord, RecordedCall, Recording, mean_alignment, real_tokens
from alignattn.support.errors import AlignAttnError, listing

LOADING_HINT = "load_with_alignattn_from_pretrained"
"""The attention implementation that a saved config names if the patch changes the function. There is none of this name:
plain transformers refuses the checkpoint, where it would run it with soft attention, silently if the slots have no
parameters."""

WRAPPERS = re.compile(r"((module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_model\.model)\.)*")
"""Where what is but around a model keeps it: data parallelism, `torch.compile`, FSDP, checkpointing, peft."""

IN_SEQUENCE = re.compile(r"\d")
"""How the names of what an `nn.Sequential` holds begin, such as a SentenceTransformer, which saves each by itself."""


class Patch(nn.Module):
    """What was done to a model, which `unpatch` reads, and the alignment of its layers.

    Args:
        model: that is patched.
        config: the choices of its slots.
        layers: the modules that get slots.
        base_implementation: transformers' attention implementation that the model had; None where its modules call
            `alignattn.attend` by themselves, or are of a family with a forward of ours.

    Attributes:
        collector: of its layers.
        alignments: by the size of a head, one with the parameters of all such layers; empty without an alignment.
        paths: by the size of a head, the names of these layers in the model.
        configs: of the model, each with the one that it had before.
        task_types: by adapter, what its config says it is for.
        hooks: of the model: one by which it loads checkpoints that hold an alignment a layer, and what else it got.
    """

    def __init__(
        self,
        model: nn.Module,
        config: AttentionConfig,
        layers: Mapping[str, AttentionModule],
        base_implementation: str | None,
    ) -> None:
        super().__init__()
        self.config = config
        self.base_implementation = base_implementation
        self.collector = Collector(model)
        self.configs: ConfigPairs = []
        self.alignments = nn.ModuleDict()
        self.paths: dict[str, list[str]] = {}
        self.task_types: dict[str, str | None] = {}
        self.hooks: list[RemovableHandle] = []
        for path, layer in layers.items():
            self.paths.setdefault(str(layer.head_dim), []).append(path)
        if config.alignment is None:
            return
        alignment_class = ALIGNMENTS.load(config.alignment)
        for size, paths in self.paths.items():
            alignment = alignment_class(
                int(size), num_layers=len(paths), head_reduction=config.head_reduction, **config.alignment_options
            )
            if config.gradient_scope == BASIS:
                alignment = AlignmentInBasis(alignment, _same_heads([layers[path] for path in paths]))
            self.alignments[size] = alignment

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        within = WRAPPERS.sub("", prefix.removesuffix(f"{CHILD_NAME}."), count=1)
        if self.config.changes_function and within and not IN_SEQUENCE.match(within):
            warnings.warn(
                f"the state of a {type(self.collector.owner).__name__} that attends by {self.config.name!r} is taken "
                f"as a part of another model's ({within.rstrip('.')}), whose config does not tell: it would be loaded "
                "with plain attention; patch the whole model instead, or this part again before the state is loaded",
                stacklevel=2,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Patch":
        owner = self.collector.owner
        if owner is not None and id(owner) not in memo:
            raise AlignAttnError(
                "the alignment is copied without its model (modules_to_save of an adapter does so): leave it out, its "
                "parameters are trained and saved with every adapter"
            )
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin


def _same_heads(layers: Sequence[AttentionModule]) -> int:
    counts = {layer.num_heads for layer in layers}
    if len(counts) > 1:
        raise AlignAttnError(
            f"gradient_scope 'basis' is for layers with as many heads each, and here are some of "
            f"{listing([str(count) for count in sorted(counts)])}: align those of one count, by layers="
        )
    return counts.pop()


class LayerSlots(AttentionVariant):
    """The slots of one attention module of a model: the child that a patch gives it.

    Args:
        layer: the attention module and its projections.
        state: the patch it belongs to.
        index: of the layer among those of its size, in the alignment's parameters.
    """

    def __init__(self, layer: AttentionModule, state: Patch, index: int) -> None:
        keeps_score = getattr(layer.module, "own_score", None) is not None
        super().__init__(
            state.config,
            layer.head_dim,
            layer.num_heads,
            keeps_score=keeps_score,
            has_one_query=layer.has_one_query,
        )
        self.collector = state.collector
        self.changes_function = state.config.changes_function
        self.aligns = state.config.alignment is not None
        self.head_dim = layer.head_dim
        self.num_heads = layer.num_heads
        self.names = layer.names
        self.queries_and_keys = getattr(layer.module, "queries_and_keys", None)
        self.layer = index
        self.gradient_scope = state.config.gradient_scope
        self.is_direct = state.config.gradient_scope != BASIS
        self.roles = {name: role for role, name in layer.names.roles.items()} if self.aligns else {}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        plain: Callable[[], tuple[Tensor, Tensor | None]] | None,
        *,
        bias: Tensor | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        wants_weights: bool = False,
        own_score: Score | None = None,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend by the slots, and record the call if a recording is under way; arguments as for `attend`.

        Args:
            query: `[B, H, n, d]`.
            key: `[B, H, n, d]`; of other tokens `[B, H, m, d]`.
            value: as the keys.
            mask: `[B, 1, n, n]`: bool, or in transformers' eager attention floats that are added to the scores; or the
                edges of a graph, or the masks of keys that are of other tokens.
            plain: attends as the model does without slots, and gives the weights if it has them; None where the slots
                attend, whatever they are.
            bias: as for `attend`; the mask is bool then.
            scale: factor of the dot products.
            dropout: probability with which a weight is dropped.
            wants_weights: whether the caller wants the weights.
            own_score: of the layer, if it has one; its `plain` then gives the weights, as it does along edges.
            packing: of the row that the projections were given, where queries, keys and values are a batch made of it.

        Returns:
            The attended values `[B, H, n, d]`, and the weights `[B, H, n, m]`, along edges `[1, H, E]`, or None.
        """
        recording = self.collector.recording
        wants_weights = wants_weights or recording is not None
        if self.changes_function:
            attended, weights = self.attend(
                query,
                key,
                value,
                mask,
                bias=bias,
                scale=scale,
                dropout=dropout,
                wants_weights=wants_weights,
                own_score=own_score,
            )
        elif plain is not None and (own_score is not None or isinstance(mask, Edges)):
            attended, weights = plain()
        elif wants_weights or plain is None:
            assert not isinstance(mask, Edges)
            added = pairs_of(mask) if bias is None else masked_bias(bias, pairs_of(mask))
            attended, weights = attention_with_weights(query, key, value, added, scale=scale, dropout=dropout)
        else:
            attended, weights = plain()
        call = self._recorded(query, key, mask, packing)
        if recording is not None:
            loss, diagnostics = (None, {}) if call is None else mean_alignment([call], recording.alignments)
            recording.layers.append(LayerRecord(loss, diagnostics, query, key, weights, *real_tokens(mask)))
        return attended, weights

    def _recorded(self, query: Tensor, key: Tensor, mask: Mask | None, packing: Packing | None) -> RecordedCall | None:
        """Return the call for the alignment, if it wants one."""
        if not self.records_calls:
            is_wanted = self.aligns and self.collector.recording is not None
            return self._projected_call(mask, packing) if is_wanted else None
        call = self.record_call(mask, packing)
        if call is not None and not self.is_direct:
            # At the first call: a change of basis of the projections would be one of what such attention computes.
            name = f"a layer of {type(self.collector.owner).__name__}"
            check_direct(name, "query", call.query, query)
            check_direct(name, "key", call.key, key)
            self.is_direct = True
        return call

    @property
    def is_asked(self) -> bool:
        """Whether a call must come to the slots, and not the model's own forward alone.

        They change its function, or somebody wants to see it: a recording, or a hook of the slots.
        """
        return self.changes_function or self.collector.recording is not None or bool(self._forward_pre_hooks)

    @property
    def records_calls(self) -> bool:
        """Whether each call is recorded for the alignment of a step."""
        return self.aligns and self.training

    def record_call(self, mask: Mask | None, packing: Packing | None = None) -> RecordedCall | None:
        """Record a call of a training forward for the alignment of the step; None where the taps were closed."""
        call = self._projected_call(mask, packing) if self.collector.is_tapped(self.training) else None
        self.collector.add(call)
        return call

    def _projected_call(self, mask: Mask | None, packing: Packing | None) -> RecordedCall:
        projected = self.collector.take_projected()
        if FUSED in projected and self.queries_and_keys is not None:
            query, key = self.queries_and_keys(projected[FUSED])
        elif FUSED in projected:
            query, key = projected[FUSED].chunk(self.names.parts, dim=-1)[:2]
        elif len(projected) == 2:
            query, key = projected["query"], projected["key"]
        else:
            raise AlignAttnError(
                "attention was computed without queries or keys of its module's own projections: an attention layer "
                "calls query_projection and key_projection, and then alignattn.attend, once a forward"
            )
        if isinstance(mask, Edges):
            # The nodes of a graph are the tokens of one sample, and all of them are real.
            return RecordedCall(query[None], key[None], None, self)
        if packing is not None:
            query, key = packing.padded(query), packing.padded(key)
        return RecordedCall(query, key, mask, self)


def is_patched(model: nn.Module) -> bool:
    """Tell whether `model` carries a patch."""
    return isinstance(getattr(model, CHILD_NAME, None), Patch)


def has_alignment(model: Any) -> bool:
    """Tell whether `model` carries a patch with an alignment."""
    return isinstance(model, nn.Module) and is_patched(model) and bool(patch_of(model).alignments)


def aligned_patches(model: nn.Module) -> list[Patch]:
    """Return the patches with an alignment of a model and of its parts."""
    return [state for state in model.modules() if isinstance(state, Patch) and state.alignments]


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
    state = patch_of(model)
    collector = state.collector
    outer, recording = collector.recording, Recording(alignments=state.alignments)
    collector.recording = recording
    try:
        yield recording
    finally:
        collector.recording = outer


def alignment_loss(model: nn.Module) -> Tensor:
    """Return λ · A(Q, K) of a step, to be added to the task loss, and forget what the step recorded.

        loss = model(**batch).loss + alignattn.alignment_loss(model)

    A step is all forwards with gradients in training mode since the last time. Each is aligned over its own mask, and
    they are averaged by their samples.

    Args:
        model: patched with an alignment, or around one that is: compiled, in DistributedDataParallel, part of another.

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
            f"this {type(model).__name__} is offloaded (its weights are on no device), which accelerate serves for "
            "inference alone: train it on devices"
        )
    lacked_gradient = any(state.collector.saw_no_gradient for state in states)
    taken = [(state, state.collector.take()) for state in states]
    recorded = [(state, calls) for state, calls in taken if calls]
    if not recorded and lacked_gradient:
        raise AlignAttnError(
            "gradients were off in the forward, and the alignment loss would be lost: reentrant checkpointing does so "
            '(set activation_checkpointing_kwargs={"use_reentrant": False}), and so do losses that cache embeddings'
        )
    if not recorded:
        raise AlignAttnError(
            f"no attention layer of this {type(model).__name__} recorded queries and keys since the last alignment "
            "loss or optimizer step: call it after a forward in training mode that passes through transformers' "
            "attention interface or through alignattn.attend"
        )
    moves_model = any(state.config.gradient_scope != BASIS for state, _ in recorded)
    if moves_model and not any(
        part.requires_grad for _, calls in recorded for call in calls for part in (call.query, call.key)
    ):
        raise AlignAttnError(
            f"nothing that makes the queries and keys of this {type(model).__name__} is trained, so no parameter can "
            "follow the alignment: train their projections, or adapt them (LoRA's target_modules)"
        )
    return [(state, *mean_alignment(calls, state.alignments)) for state, calls in recorded]


def alignment_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the alignment losses' own networks, `[L, …]`."""
    states = [module for module in model.modules() if isinstance(module, Patch)]
    return [parameter for state in states for parameter in state.alignments.parameters()]


def function_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the slots that are part of the model's function: scores, normalizers and values."""
    return [
        parameter
        for slots in model.modules()
        if isinstance(slots, LayerSlots)
        for slot in (slots.score_slot, slots.normalizer_slot, slots.value_slot)
        if slot is not None
        for parameter in slot.parameters()
    ]

"""What a patch adds to a model: the slots of each attention layer, and the patch with its alignment."""

import copy
import re
import warnings
import weakref
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.choices import ALIGNMENTS
from alignattn.attention.config import ALL_ROWS, AttentionConfig
from alignattn.attention.masks import Edges, Mask, Packing, packing_of, pairs_of
from alignattn.attention.normalizers.softmax import Softmax
from alignattn.attention.scores import ScaledDot, Score
from alignattn.attention.variant import AttentionVariant, attend_by, attention_with_weights, masked_bias
from alignattn.patching.collector import OPTIMIZER_STEPS, Collector, has_recording_hook, recording_hook, remove_hooks
from alignattn.patching.masks import AttentionMask, has_pairs, is_causal, is_flash, real_tokens
from alignattn.patching.process_changes import ProcessChange
from alignattn.patching.projections import (
    DECLARED_POOLED,
    FUSED,
    MASK_ARGUMENTS,
    AttentionModule,
    norms_of,
    repeated,
)
from alignattn.patching.recording import LayerRecord, RecordedCall, mean_alignment
from alignattn.patching.routing import GUARDED_MODELS, check_implementation, unserved_keywords
from alignattn.patching.taps import NormTap, add_tap
from alignattn.utils.errors import AlignAttnError

Plain = Callable[[bool], tuple[Tensor, Tensor | None]]
"""Attends without slots; its argument says whether to return the weights as well."""

ConfigPairs = list[tuple[PreTrainedConfig, PreTrainedConfig]]
"""Copies of configs, each with its original."""

FORMULA_TOLERANCE = {8: 1e-6, 4: 1e-4, 2: 5e-2}
"""Largest rounding difference between plain slots and a model's own attention, relative to its largest value, by bytes
per number. Eager functions compute a softmax in float32."""

WRAPPERS = re.compile(r"((module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_model(\.model)?)\.)*")
"""Prefixes under which wrappers keep a model: data parallelism, `torch.compile`, FSDP, checkpointing, peft."""


def _guard_hooks() -> Callable[[], None]:
    dynamo: Any = torch._dynamo.config
    if not dynamo.skip_nnmodule_hook_guards:
        return lambda: None
    dynamo.skip_nnmodule_hook_guards = False
    # What was compiled before has no guards on hooks.
    torch._dynamo.reset()
    return lambda: setattr(dynamo, "skip_nnmodule_hook_guards", True)


GUARDED_HOOKS = ProcessChange(_guard_hooks)
"""Makes torch compile a model again when hooks come or go. It would reuse the compiled forward of an unpatched copy, or
of the model in evaluation mode, without them."""


class Patch(nn.Module):
    """A patch of a model: what `unpatch` undoes, and the alignment of its layers.

    Args:
        model: the patched model.
        config: the choices of its slots.
        layers: the modules that get slots.
        is_observed: whether hooks on its attention modules record their calls; otherwise `alignattn.attend` does.

    Attributes:
        collector: collector of its layers.
        alignments: one alignment for each head size, with the parameters of all layers of that size; empty without one.
        step: an int64 scalar that determines which samples a loss uses; it is saved, so that a resumed run draws the
            same ones. It exists only if samples are drawn.
        paths: names of these layers in the model, by head size.
        configs: configs of the model, each with its original.
        hooks: handles of the hooks that the model and its layers keep until `unpatch`.
    """

    step: Tensor

    def __init__(
        self,
        model: nn.Module,
        config: AttentionConfig,
        layers: Mapping[str, AttentionModule],
        *,
        is_observed: bool,
    ) -> None:
        super().__init__()
        self.config = config
        self.is_observed = is_observed
        self.collector = Collector(model)
        self.configs: ConfigPairs = []
        self.alignments = nn.ModuleDict()
        self.paths: dict[str, list[str]] = {}
        self.hooks: list[RemovableHandle] = []
        for path, layer in layers.items():
            self.paths.setdefault(str(layer.heads.size), []).append(path)
        if config.alignment is None:
            return
        if config.alignment_rows != ALL_ROWS:
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        alignment_class = ALIGNMENTS.load(config.alignment)
        for size, paths in self.paths.items():
            self.alignments[size] = alignment_class(
                int(size), num_layers=len(paths), head_reduction=config.head_reduction, **config.alignment_options
            )

    def _changes(self) -> list[ProcessChange]:
        changes = [OPTIMIZER_STEPS, GUARDED_HOOKS] if self.alignments else []
        return [*changes, GUARDED_MODELS] if self.config.changes_function else changes

    def hold_changes(self) -> None:
        """Keep the changes of the process that this patch needs until `release_changes`, or until it is deleted."""
        for change in self._changes():
            change.hold(self)

    def release_changes(self) -> None:
        """Undo the changes of the process, unless other patches need them."""
        for change in self._changes():
            change.release(self)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        within = WRAPPERS.sub("", prefix.removesuffix(f"{CHILD_NAME}."), count=1)
        # A child of an `nn.Sequential`, such as a SentenceTransformer, has a number as its name and is saved by itself.
        if self.config.changes_function and within and not within[0].isdecimal():
            warnings.warn(
                f"the state of a {type(self.collector.owner).__name__} that attends by {self.config.name!r} is taken "
                f"as a part of another model's ({within.rstrip('.')}), whose config lacks the patch: it would load "
                "with plain attention; patch the whole model instead, or this part again before the state is loaded",
                stacklevel=2,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Patch":
        owner = self.collector.owner
        if owner is not None and id(owner) not in memo:
            raise AlignAttnError(
                "the alignment is copied without its model, as modules_to_save of an adapter does: leave it out there, "
                "because its parameters are trained and saved with every adapter"
            )
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        twin.hold_changes()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"owner": self.collector.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owner = state.pop("owner")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.collector.owner = owner
        self.hold_changes()


class ModuleReference:
    """A weak reference to a module, whose copy refers to the module's copy."""

    def __init__(self, module: nn.Module) -> None:
        self._reference = weakref.ref(module)

    def __call__(self) -> nn.Module | None:
        """Return the module; None if it was deleted."""
        return self._reference()

    def __reduce__(self) -> tuple[type["ModuleReference"], tuple[nn.Module | None]]:
        return ModuleReference, (self(),)


class LayerSlots(AttentionVariant):
    """The slots of one attention module of a model: the child module that a patch adds.

    Args:
        layer: the attention module and its projections.
        state: the patch it belongs to.
        index: index of the layer among those with its head size, in the alignment's parameters.
    """

    def __init__(self, layer: AttentionModule, state: Patch, index: int) -> None:
        pools = layer.heads.names == DECLARED_POOLED
        super().__init__(
            state.config,
            layer.heads.size,
            layer.heads.count,
            keeps_score=getattr(layer.module, "own_score", None) is not None,
            has_one_query=pools or bool(getattr(layer.module, "has_one_query", False)),
        )
        self.collector = state.collector
        self.config = state.config
        self.changes_function = state.config.changes_function
        self.aligns = state.config.alignment is not None
        self.is_observed = state.is_observed
        # A model of transformers is checked when it is patched; a custom one shows only its mask.
        reads_all_queries = any(choice.reads_all_queries for choice in state.config.choices.values())
        self.awaits_mask = reads_all_queries and not state.is_observed
        self.heads = layer.heads
        self.is_cross = layer.is_cross
        self.is_of_decoder = "decoder" in state.paths[str(layer.heads.size)][index].split(".")
        self.queries_and_keys = getattr(layer.module, "queries_and_keys", None)
        # The position of the mask among the positional arguments of the module; None without one.
        arguments = list(signature(layer.module.forward).parameters)
        self.mask_position = next((arguments.index(name) for name in MASK_ARGUMENTS if name in arguments), None)
        self.unserved = unserved_keywords(layer.module) if state.is_observed else frozenset()
        self.layer = index
        self.gradient_scope = state.config.gradient_scope
        self.is_tapped = False
        self.attention = ModuleReference(layer.module)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Not in `train`: some libraries, such as Lightning, set the attribute of each module.
        if name == "training":
            self.update_taps()

    def update_taps(self) -> None:
        """Register the hooks that record, if the module is in training or something watches it; else remove them."""
        attention = self.attention()
        is_wanted = self.aligns and (self.training or self.collector.is_watching)
        if attention is None or CHILD_NAME not in attention._modules:
            return
        if is_wanted == self.is_tapped:
            if is_wanted:
                self._tap_projections(attention)
            return
        self.is_tapped = is_wanted
        self.collector.note_tapped((self.heads.size, self.layer), is_wanted)
        if not is_wanted:
            remove_hooks(attention)
            return
        if self.is_observed:
            attention.register_forward_hook(self.end, with_kwargs=True, prepend=True)
        attention.register_forward_pre_hook(self.begin)
        self._tap_projections(attention)
        for role, norm in norms_of(attention).items():
            tap = NormTap(self.collector, role, self.gradient_scope, self.is_observed, self.heads)
            norm.register_forward_hook(tap.after, prepend=True)

    def _tap_projections(self, attention: nn.Module) -> None:
        """Tap the projections of the attention module; later those that replace one, such as an adapter."""
        for role, projection in (self.heads.names.of(attention) or {}).items():
            if has_recording_hook(projection):
                continue
            if torch.compiler.is_compiling():
                raise AlignAttnError(
                    f"the {role} projection of a {type(attention).__name__} was replaced: call model.train() before it "
                    "is compiled, so that the alignment reads the new one"
                )
            add_tap(projection, self.collector, role, self.gradient_scope, self.is_observed)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        plain: Plain | None,
        *,
        dropout: float = 0.0,
        wants_weights: bool = False,
        own_score: Score | None = None,
        packing: Packing | None = None,
        position_ids: Tensor | None = None,
        **scoring: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend by the slots, as `AttentionVariant.attend` does, and record the call for a loss or for `collect`.

        Args:
            query: `[B, H, n, d]`.
            key: `[B, G, n, d]` for G heads of keys, each shared by H / G heads of queries; of other tokens
                `[B, G, m, d]`.
            value: as the keys.
            mask: `[B, 1, n, n]` bool; the edges of a graph; or a `CrossMask` if keys belong to other tokens.
            plain: attends as the model does without slots; None where the slots always attend.
            dropout: probability with which a weight is dropped.
            wants_weights: whether the caller wants the weights.
            own_score: the score of the layer, if it has one.
            packing: packing of the projections' row, if queries, keys and values are the batch made from it.
            position_ids: as in `RecordedCall`.
            **scoring: `bias`, `softcap` and `scale` of the scores.

        Returns:
            The attended values `[B, H, n, d]`, and the weights `[B, H, n, m]`, along edges `[1, H, E]`, or None.

        Raises:
            AlignAttnError: if the first mask of several tokens is causal and a choice reads all queries.
        """
        if (
            self.awaits_mask
            and isinstance(mask, Tensor)
            and not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
            and not mask.is_meta
            and mask.shape[-1] != 1
        ):
            # The first mask of several tokens whose values are known shows whether a custom model is causal.
            if is_causal(mask):
                check_causal(self.config, type(self.collector.owner).__name__)
            self.awaits_mask = False
        recording, is_proven = self.collector.recording, self.collector.proof is not None
        wants_weights = wants_weights or recording is not None
        attended, weights = None, None
        if self.changes_function:
            shared_key, shared_value = (repeated(side, query.shape[1], dim=1) for side in (key, value))
            attended, weights = self.attend(
                query,
                shared_key,
                shared_value,
                mask,
                dropout=dropout,
                wants_weights=wants_weights,
                own_score=own_score,
                **scoring,
            )
            if is_proven and plain is not None:
                self._check_formula(query, shared_key, shared_value, mask, plain, **scoring)
        if attended is None or is_proven:
            if plain is not None:
                attended, weights = plain(wants_weights)
            else:
                assert not isinstance(mask, Edges)
                bias, pairs = scoring.get("bias"), pairs_of(mask)
                added = pairs if bias is None else masked_bias(bias, pairs)
                attended, weights = attention_with_weights(
                    query, key, value, added, scale=scoring.get("scale"), dropout=dropout
                )
        call = None
        if self.aligns and (self.training or is_proven):
            call = self._record(mask, packing, position_ids)
        elif self.aligns and recording is not None:
            call = self._projected_call(mask, packing, position_ids)
        if recording is not None:
            loss, diagnostics, _ = (None, {}, False) if call is None else mean_alignment([call], recording.alignments)
            real = real_tokens(self._own_mask(query[:, 0], key[:, 0], mask), lengths=(query.shape[2], key.shape[2]))
            recording.layers.append(LayerRecord(loss, diagnostics, query, key, weights, *real))
        return attended, weights

    def _check_formula(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, plain: Plain, **scoring: Any
    ) -> None:
        """Refuse slots that do not fit causal attention, or a module that computes more than plain slots do."""
        name, slots = type(self.collector.owner).__name__, self.config.describe_slots()
        if isinstance(mask, Tensor) and is_causal(mask):
            check_causal(self.config, name)
        sizes = self.heads.size, self.heads.count
        expected = plain(False)[0]
        computed = attend_by(ScaledDot(*sizes), Softmax(*sizes), query, key, value, mask, **scoring)[0]
        # A later check reports values that are not finite.
        difference = (computed - expected).abs().masked_fill(expected.isnan(), 0)
        if isinstance(mask, Tensor):
            # The output of a query at padding depends on how a mask represents it.
            difference = difference.masked_fill(~mask.any(dim=-1, keepdim=True), 0)
        if not difference.max() <= FORMULA_TOLERANCE[query.element_size()] * expected.nan_to_num().abs().max():
            raise AlignAttnError(
                f"the attention of {name} is more than a softmax of scores (it differs by "
                f"{float(difference.max()):.2g} of {float(expected.abs().max()):.2g}), and {slots} would drop the "
                "rest: choose an alignment alone"
            )

    def check_route(self, module: Any, *_: Any) -> None:
        """Refuse a call whose attention implementation no longer calls the slots: a forward pre-hook."""
        if not self.collector.is_off:
            check_implementation(module)

    @recording_hook
    def begin(self, attention: nn.Module, _args: Any) -> None:
        """Begin a call of the attention module: its forward pre-hook."""
        self._tap_projections(attention)
        if self.is_observed:
            self.collector.begin_attention()

    @recording_hook
    def end(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], _output: Any) -> None:
        """End a call of the attention module, and record it unless the slots did: its forward hook."""
        projected = self.collector.projected
        if not projected:
            if self.training and not torch.is_grad_enabled():
                self.collector.add(None)
            return
        if not self.training and self.collector.proof is None:
            # `collect` has a model whose attention does not call the slots.
            self.collector.take_projected()
            return
        mask = next((kwargs[name] for name in MASK_ARGUMENTS if name in kwargs), None)
        if mask is None and self.mask_position is not None and self.mask_position < len(args):
            mask = args[self.mask_position]
        bounds = kwargs.get("cu_seq_lens_q")
        rows, tokens = next(iter(projected.values())).shape[:2]
        if bounds is not None:
            self._record(mask, packing_of(bounds, kwargs.get("cu_seq_lens_k"), tokens), None)
        else:
            self._record(mask, None, self.separating_positions(module, mask, kwargs, rows, tokens))

    def separating_positions(
        self, module: nn.Module, mask: AttentionMask | None, kwargs: Mapping[str, Any], rows: int, tokens: int
    ) -> Tensor | None:
        """Return the positions by which a recorded attention call may separate the samples of a row, or None.

        Positions that the caller did not pass do not restart, and are not read: reading them would synchronise.
        """
        given, own = self.collector.given_positions, kwargs.get("position_ids")
        if given is None or self.is_cross or not self.is_tapped or not self.collector.is_recording():
            return None
        # Some models of images and text count positions in rows and columns, and pass those of the text on.
        positions = own if isinstance(own, Tensor) and own.dim() == 2 else given
        if positions.dim() != 2 or positions.shape[1] != tokens:
            return None
        if has_pairs(mask) or (mask is None and positions is own and rows == 1 and is_flash(module)):
            return positions
        if mask is None or isinstance(mask, Tensor):
            self.collector.note_mixed(positions, mask)
        return None

    def _record(
        self, mask: AttentionMask | None, packing: Packing | None, position_ids: Tensor | None
    ) -> RecordedCall | None:
        """Record a call of a training forward for the loss of the step; None if gradients were off."""
        is_recorded = self.is_tapped and self.collector.is_recording()
        call = self._projected_call(mask, packing, position_ids) if is_recorded else None
        self.collector.add(call)
        return call

    def _projected_call(
        self, mask: AttentionMask | None, packing: Packing | None, position_ids: Tensor | None
    ) -> RecordedCall:
        projected = self.collector.take_projected()
        if FUSED in projected and self.queries_and_keys is not None:
            query, key = self.queries_and_keys(projected[FUSED])
        elif FUSED in projected:
            query, key = self.heads.split(projected[FUSED])
        elif len(projected) == 2:
            query, key = self.heads.without_gates(projected["query"]), projected["key"]
        else:
            raise AlignAttnError(
                "attention was computed without queries or keys of its module's own projections: an attention layer "
                "calls query_projection, key_projection and then alignattn.attend, once in each forward"
            )
        if isinstance(mask, Edges):
            # The nodes of a graph are the tokens of one sample, and all of them are real.
            return RecordedCall(query[None], key[None], None, self)
        if packing is not None:
            query, key = packing.padded(query), packing.padded(key)
            mask, position_ids = packing.is_real, None
        # As `[B, n, H * d]`: an image may keep its tokens in rows and columns.
        query, key = (side[None] if side.dim() == 2 else side.flatten(1, -2) for side in (query, key))
        if len(query) != len(key):
            raise AlignAttnError(
                f"an attention module of {type(self.collector.owner).__name__} projects {len(query)} rows of queries "
                f"and {len(key)} of keys, which an alignment cannot pair"
            )
        if self.is_cross:
            position_ids = None
        return RecordedCall(query, key, self._own_mask(query, key, mask), self, position_ids)

    def _own_mask(self, query: Tensor, key: Tensor, mask: AttentionMask | None) -> AttentionMask | None:
        """Return a mask that tells the padding of queries `[B, n, …]` and keys `[B, m, …]`, also in a decoder."""
        if self.is_cross:
            return self.collector.cross_mask(query, key, mask)
        targets = self.collector.real_targets
        # Prompts of an adapter stand before the targets.
        is_told = targets is not None and self.is_of_decoder and targets.shape == query.shape[:2]
        return targets if is_told else mask


def check_causal(config: AttentionConfig, name: str) -> None:
    """Refuse choices that do not fit a causal model, given by its name."""
    for slot, choice in config.choices.items():
        chosen = f"{slot} {getattr(config, slot)!r}"
        if choice.reads_all_queries:
            raise AlignAttnError(
                f"{name} attends causally, and {chosen} reads all queries, so a token would see later ones: choose "
                "another, or an alignment alone"
            )
        if choice.counts_positions:
            raise AlignAttnError(
                f"{name} attends causally, and {chosen} counts positions, which would restart at each step with a "
                "cache of keys: choose another"
            )


def update_taps(model: nn.Module) -> None:
    """Register the hooks that record in each layer of a model, or remove them, as its mode and its collector need."""
    for module in model.modules():
        if isinstance(module, LayerSlots):
            module.update_taps()


def is_patched(model: nn.Module) -> bool:
    """Tell whether `model` carries a patch."""
    return isinstance(getattr(model, CHILD_NAME, None), Patch)


def has_alignment(model: Any) -> bool:
    """Tell whether `model` carries a patch with an alignment."""
    return isinstance(model, nn.Module) and is_patched(model) and bool(patch_of(model).alignments)


def aligned_patches(model: nn.Module) -> list[Patch]:
    """Return the patches with an alignment of a model and of its parts."""
    patches: dict[nn.Module, Patch] = {}
    modules = [model]
    while modules:
        module = modules.pop()
        # By `_modules`: a wrapper such as peft's exposes the attributes of the module that it wraps.
        patch = module._modules.get(CHILD_NAME)
        if isinstance(patch, Patch):
            # No part of a patched model is patched, and a step has no time for a walk over its modules.
            patches[module] = patch
        else:
            modules += [*module.children()][::-1]
    return [patch for patch in patches.values() if patch.alignments]


def patch_of(model: nn.Module) -> Patch:
    """Return the patch that `model` carries.

    Raises:
        AlignAttnError: if it carries none.
    """
    state = getattr(model, CHILD_NAME, None)
    if not isinstance(state, Patch):
        raise AlignAttnError(f"this {type(model).__name__} is not patched: call alignattn.patch(model, …) first")
    return state


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

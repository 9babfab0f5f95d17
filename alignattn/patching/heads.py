"""Heads whose basis can change: by `alignattn.balance`, or to a learned basis (`fold_basis`).

Their projections are plain, and their attention reads queries and keys only through products.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from alignattn.attention.alignment.in_basis import AlignmentInBasis
from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.basis import Basis
from alignattn.attention.scores import Dot, ScaledDot
from alignattn.patching.projections import DECLARED_POOLED, FUSED, Heads, norms_of
from alignattn.patching.slots import LayerSlots, Patch
from alignattn.utils.errors import AlignAttnError

ROTARY = ("rotary", "rope")
"""Parts of the class names of modules that rotate queries and keys by position."""
FREQUENCIES = "inv_freq"
"""End of the names of their buffers that hold a number for each frequency."""
DISENTANGLED = "disentangled"
"""Part of the class names of attention modules whose projections also read positions."""


@dataclass(frozen=True)
class BalancedHeads:
    """The projections of one attention module.

    Attributes:
        path: path of the module in its model.
        slots: slots of the module.
        query: weight `[G, H / G, d, in]` and bias `[G, H / G, d]`, by head of keys, views of the model's parameters; a
            bias may be None.
        key: weight `[G, d, in]` and bias `[G, d]`, likewise.
        modules: the projections by role.
        pairs: number of frequencies by which queries and keys are rotated; 0 if they are not.
    """

    path: str
    slots: LayerSlots
    query: tuple[Tensor, Tensor | None]
    key: tuple[Tensor, Tensor | None]
    modules: dict[str, nn.Linear]
    pairs: int = 0

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights and biases that balancing changes."""
        return [parameter for module in self.modules.values() for parameter in module.parameters()]

    @torch.no_grad()
    def change(self, basis: Basis) -> None:
        """Move queries and keys to another basis `[G, d, d]`, in place; products in float64."""
        for (weight, bias), matrix in ((self.query, basis.matrix[:, None]), (self.key, basis.inverse)):
            weight.copy_(matrix @ weight.to("cpu", torch.float64))
            if bias is not None:
                shift = basis.shift if bias is self.key[1] else 0
                bias.copy_((matrix @ bias.to("cpu", torch.float64)[..., None])[..., 0] + shift)


def balanced_heads(model: nn.Module) -> list[BalancedHeads]:
    """Return the heads of a model with slots, by attention module.

    Raises:
        AlignAttnError: if a change of basis would change what its attention computes, or its projections are shared.
    """
    name = type(model).__name__
    if not isinstance(model, nn.Module) or hasattr(model, "get_base_model"):
        raise AlignAttnError(f"{name} has adapters: merge them first (merge_and_unload), or balance the base model")
    pairs = _rotated_pairs(model)
    for module in model.modules():
        kind = type(module).__name__.lower()
        if DISENTANGLED in kind:
            raise AlignAttnError(
                f"{name} scores positions by its queries and keys, too ({type(module).__name__}): it cannot be balanced"
            )
        own_score = getattr(module, "own_score", None)
        if own_score is not None and not isinstance(own_score, (Dot, ScaledDot)):
            raise AlignAttnError(
                f"{name} attends by a score of its own ({type(own_score).__name__}), which is no dot product of "
                "queries and keys: balancing would change what it computes"
            )
        if isinstance(module, Patch) and (reason := module.config.reason_unbalanced):
            raise AlignAttnError(f"{reason}, so balancing would change what {name} computes: it needs dot products")
    found = [
        replace(_heads_of(path, module), pairs=pairs)
        for path, module in model.named_modules()
        if isinstance(module._modules.get(CHILD_NAME), LayerSlots)
    ]
    _check_own(model, found)
    return found


def _rotated_pairs(model: nn.Module) -> int:
    """Return the number of frequencies by which a model rotates queries and keys by position; 0 if it does not."""
    if not any(part in type(module).__name__.lower() for module in model.modules() for part in ROTARY):
        return 0
    counts = {buffer.numel() for name, buffer in model.named_buffers() if name.endswith(FREQUENCIES)}
    if len(counts) != 1:
        raise AlignAttnError(
            f"{type(model).__name__} rotates queries and keys by position, but has no buffer {FREQUENCIES} that "
            "says how: it cannot be balanced"
        )
    return counts.pop()


def _heads_of(path: str, module: nn.Module) -> BalancedHeads:
    slots: Any = getattr(module, CHILD_NAME)
    modules = slots.heads.names.of(module) or {}
    if slots.heads.names == DECLARED_POOLED:
        raise AlignAttnError(f"{path} pools by a learned query, which has no distribution: it cannot be balanced")
    for role, projection in modules.items():
        check_plain(f"{path}.{slots.heads.names.roles[role]}", projection)
    if norms_of(module):
        raise AlignAttnError(f"{path} normalises its queries and keys, which fixes the basis: it cannot be balanced")

    def part(role: str) -> tuple[Tensor, Tensor | None]:
        projection = modules[FUSED if FUSED in modules else role]
        weight, bias = projection.weight, projection.bias
        return _part(slots.heads, role, weight), None if bias is None else _part(slots.heads, role, bias)

    return BalancedHeads(path, slots, part("query"), part("key"), modules)


def _part(heads: Heads, role: str, values: Tensor) -> Tensor:
    """Return the queries' `[G, H / G, d, …]` or the keys' `[G, d, …]` part of a projection's weight or bias, a view."""
    by_group, values = (heads.key_count, -1, heads.size), values.detach()
    if heads.names.is_grouped:
        grouped = values.unflatten(0, by_group)
        return grouped[:, :-2] if role == "query" else grouped[:, -2]
    if FUSED in heads.names.roles:
        count = heads.count if role == "query" else heads.key_count
        values = values.narrow(0, 0 if role == "query" else heads.count * heads.size, count * heads.size)
    return values.unflatten(0, by_group) if role == "query" else values.unflatten(0, by_group)[:, 0]


def check_plain(path: str, projection: nn.Module) -> None:
    """Refuse a projection that is not a plain linear layer with finite weights.

    Args:
        path: path of the projection, for messages.
        projection: a projection of queries or keys.

    Raises:
        AlignAttnError: if it is not.
    """
    if type(projection) is not nn.Linear or "forward" in vars(projection):
        if hasattr(projection, "base_layer"):
            raise AlignAttnError(
                f"{path} has an adapter: merge it first (merge_and_unload), or balance the base and adapt that"
            )
        replaced = " with a forward that is not its own" if "forward" in vars(projection) else ""
        raise AlignAttnError(
            f"{path} is a {type(projection).__name__}, not a plain linear layer{replaced}: balance the model before "
            "it is quantised or wrapped"
        )
    weight: Any = projection.weight
    is_plain = type(weight) is nn.Parameter and weight.is_floating_point()
    if not is_plain or weight.shape != (projection.out_features, projection.in_features):
        raise AlignAttnError(
            f"the weights of {path} are quantised or sharded ({type(weight).__name__}, {weight.dtype}, "
            f"{list(weight.shape)}): balance the whole model before"
        )
    # Weights on the meta device cannot be checked here.
    if not weight.is_meta and not all(part.isfinite().all() for part in projection.parameters()):
        raise AlignAttnError(f"{path} holds weights that are not finite: there is nothing to balance")


def check_in_memory(heads: list[BalancedHeads]) -> None:
    """Refuse heads whose weights are not in memory.

    Raises:
        AlignAttnError: if any are not.
    """
    for part in heads:
        if any(parameter.is_meta for parameter in part.parameters()):
            raise AlignAttnError(f"the weights of {part.path} are not in memory: load the model without a device map")


def _check_own(model: nn.Module, found: list[BalancedHeads]) -> None:
    """Refuse projections that something else uses as well, because it would change with them."""
    owners = Counter(id(values) for module in model.modules() for values in module._parameters.values())
    users = Counter(id(module) for heads in found for module in heads.modules.values())
    for heads in found:
        is_tied = any(owners[id(parameter)] > 1 for parameter in heads.parameters())
        if is_tied or any(users[id(module)] > 1 for module in heads.modules.values()):
            raise AlignAttnError(
                f"the projections of {heads.path} share their weights with others, which would change together "
                "with them"
            )


def fold_basis(model: nn.Module) -> dict[str, tuple[float, ...]]:
    """Fold the basis that `gradient_scope="basis"` has learned into the projections of queries and keys, in place.

        condition = alignattn.fold_basis(model)
        model.save_pretrained("out")

    `AlignmentTrainer.train` calls it at its end; a custom loop calls it before it saves. Until then, and in every
    training checkpoint, the projections are raw and the basis is stored separately, because the moments of the
    optimizer belong to the raw projections. Outputs change only by rounding, and the basis restarts at the identity.

    Args:
        model: a model patched with that scope, or a wrapper of one.

    Returns:
        The condition number of A for each head, by the name of the attention module.

    Raises:
        AlignAttnError: if it is not patched with that scope, or for the reasons of `alignattn.balance`.
    """
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    if not learns_basis(model):
        raise AlignAttnError(
            f"this {type(model).__name__} does not learn a basis: patch it with gradient_scope='basis'"
        )
    heads = balanced_heads(model)
    check_in_memory(heads)
    learned = {module.collector: module.alignments for module in model.modules() if isinstance(module, Patch)}
    if dist.is_available() and dist.is_initialized():
        # Each process has means of its own rows.
        for module in model.modules():
            if isinstance(module, AlignmentInBasis):
                dist.broadcast(module.means, 0)
    conditions = {}
    for part in heads:
        alignment = learned[part.slots.collector][str(part.slots.heads.size)]
        assert isinstance(alignment, AlignmentInBasis)
        basis = alignment.basis(part.slots.layer)
        part.change(basis)
        conditions[part.path] = tuple(basis.condition.tolist())
    forget_basis(model)
    return conditions


def forget_basis(model: nn.Module) -> None:
    """Reset the learned basis of a model, if it has one, because its projections are in another basis."""
    for module in model.modules():
        if isinstance(module, AlignmentInBasis):
            module.reset()


def learns_basis(model: nn.Module) -> bool:
    """Tell whether a model, or a part of it, is patched with the scope `basis`."""
    return any(isinstance(module, AlignmentInBasis) for module in model.modules())


def check_foldable(model: nn.Module) -> None:
    """Refuse a model into whose projections no basis could be folded.

    Args:
        model: a model with slots.

    Raises:
        AlignAttnError: as for `alignattn.balance`; if queries and keys are rotated; or if keys have no bias for c.
    """
    for part in balanced_heads(model):
        if part.pairs:
            raise AlignAttnError(
                f"gradient_scope 'basis': {part.path} rotates queries and keys by position, which leaves no basis "
                "free: choose 'projections'"
            )
        if part.key[1] is None:
            raise AlignAttnError(
                f"gradient_scope 'basis': {part.path} adds no bias to its keys, which the shift c needs: choose "
                "'projections', or give the keys a bias"
            )

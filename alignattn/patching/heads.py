"""Heads whose basis `alignattn.balance` can change.

Their projections are plain, and their attention reads queries and keys only through products.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.basis import Basis
from alignattn.attention.scores import Dot, ScaledDot
from alignattn.patching.projections import DECLARED_POOLED, FUSED, Heads, norms_of
from alignattn.patching.slots import LayerSlots, Patch
from alignattn.utils.errors import AlignAttnError

ROTARY = ("rotary", "rope")
"""Parts of the class names of modules that rotate queries and keys by position."""
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
    """

    path: str
    slots: LayerSlots
    query: tuple[Tensor, Tensor | None]
    key: tuple[Tensor, Tensor | None]
    modules: dict[str, nn.Linear]

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
    for module in model.modules():
        kind = type(module).__name__.lower()
        if any(part in kind for part in ROTARY):
            raise AlignAttnError(
                f"{name} rotates queries and keys by position, which leaves no basis free: it cannot be balanced"
            )
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
        _heads_of(path, module)
        for path, module in model.named_modules()
        if isinstance(module._modules.get(CHILD_NAME), LayerSlots)
    ]
    # Something else that uses a projection would change with it.
    owners = Counter(id(values) for module in model.modules() for values in module._parameters.values())
    users = Counter(id(module) for heads in found for module in heads.modules.values())
    for heads in found:
        is_tied = any(owners[id(parameter)] > 1 for parameter in heads.parameters())
        if is_tied or any(users[id(module)] > 1 for module in heads.modules.values()):
            raise AlignAttnError(
                f"the projections of {heads.path} share their weights with others, which would change together "
                "with them"
            )
    return found


def _heads_of(path: str, module: nn.Module) -> BalancedHeads:
    slots: Any = getattr(module, CHILD_NAME)
    modules = slots.heads.names.of(module) or {}
    if slots.heads.names == DECLARED_POOLED:
        raise AlignAttnError(f"{path} pools by a learned query, which has no distribution: it cannot be balanced")
    for role, projection in modules.items():
        _check_plain(f"{path}.{slots.heads.names.roles[role]}", projection)
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


def _check_plain(path: str, projection: nn.Module) -> None:
    """Refuse a projection of queries or keys that is not a plain linear layer with finite weights."""
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

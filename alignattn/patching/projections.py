"""Where models keep the projections of queries and keys."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn

from alignattn.attention.attend import AttentionLayer, PooledAttentionLayer, SharedAttentionLayer, declares
from alignattn.patching.families import family_of

FUSED = "fused"

MASK_ARGUMENTS = ("attention_mask", "mask")
"""Names of the argument of transformers' attention modules that says which tokens may attend to which."""

CROSS_ATTENTION = re.compile(r"cross_?att|encoder_attn|EncDec|\bx_attn", re.IGNORECASE)
"""Parts of the path of a cross-attention module, whose keys belong to other tokens than its queries, or of the class of
it or of a module around it."""

NORMS = (
    {"query": "q_norm", "key": "k_norm"},
    {"query": "q_layernorm", "key": "k_layernorm"},
    {"query": "query_layernorm", "key": "key_layernorm"},
)
"""Attributes of an attention module that normalise the outputs of its projections, by role."""


@dataclass(frozen=True)
class ProjectionNames:
    """Where a family of models keeps the projections of queries and keys.

    Attributes:
        roles: attribute of the projection by role: `query` and `key`, or `fused`.
        has_values: for `fused`, whether its output holds queries, keys and values; otherwise the module itself computes
            queries and keys from it.
        is_grouped: for `fused`, whether the output is ordered by head of keys, each as [its queries, key, value].
    """

    roles: dict[str, str]
    has_values: bool = True
    is_grouped: bool = False

    def of(self, module: nn.Module) -> dict[str, nn.Module] | None:
        """Return the projections of `module` by role, or None if it is not attention of this family."""
        children = {role: getattr(module, name, None) for role, name in self.roles.items()}
        projections = {role: child for role, child in children.items() if isinstance(child, nn.Module)}
        return projections if len(projections) == len(children) else None


PROJECTIONS = (
    ProjectionNames({"query": "query", "key": "key"}),
    ProjectionNames({"query": "q_lin", "key": "k_lin"}),
    ProjectionNames({"query": "q_proj", "key": "k_proj"}),
    ProjectionNames({"query": "q", "key": "k"}),
    ProjectionNames({"query": "linear_q", "key": "linear_k"}),
    ProjectionNames({"query": "Wq", "key": "Wk"}),
    ProjectionNames({FUSED: "Wqkv"}),
    ProjectionNames({FUSED: "qkv"}),
    ProjectionNames({FUSED: "qkv_proj"}),
    ProjectionNames({FUSED: "c_attn"}),
    ProjectionNames({FUSED: "query_key_value"}, is_grouped=True),
)


def names_of(module: nn.Module) -> list[ProjectionNames]:
    """Return the projection names that fit `module`; none if it is not attention."""
    family = family_of(module)
    names = PROJECTIONS if family is None else (ProjectionNames(dict(family.roles)),)
    return [name for name in names if name.of(module)]


DECLARED_POOLED = ProjectionNames({"key": "key_projection"})
"""The names of `alignattn.attention.attend.PooledAttentionLayer`, which does not project its queries."""

DECLARATIONS: Sequence[tuple[Any, ProjectionNames]] = (
    (AttentionLayer, ProjectionNames({"query": "query_projection", "key": "key_projection"})),
    # It computes queries and keys itself.
    (SharedAttentionLayer, ProjectionNames({FUSED: "shared_projection"}, has_values=False)),
    (PooledAttentionLayer, DECLARED_POOLED),
)
"""The protocols by which a module declares its projections, and the names that they use."""


def repeated(heads: Tensor, count: int, dim: int) -> Tensor:
    """Repeat G heads of keys or values along `dim`, so that each of `count` heads of queries, a multiple, has one."""
    own = heads.shape[dim]
    return heads if own == count else heads.repeat_interleave(count // own, dim=dim)


@dataclass(frozen=True)
class Heads:
    """The heads of an attention module, and where its projections hold them.

    Attributes:
        names: names of its projections.
        count: heads H of queries.
        key_count: heads G of keys, each shared by H / G heads of queries.
        size: size d of a head's query and key.
    """

    names: ProjectionNames
    count: int
    key_count: int
    size: int

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries `[..., H * d]` and keys `[..., G * d]` of a fused projection's output."""
        queries, keys = self.count * self.size, self.key_count * self.size
        if not self.names.is_grouped:
            return fused[..., :queries], fused[..., queries : queries + keys]
        grouped = fused.unflatten(-1, (self.key_count, -1, self.size))
        return grouped[..., :-2, :].flatten(-3), grouped[..., -2, :].flatten(-2)

    def without_gates(self, projected: Tensor) -> Tensor:
        """Return queries or keys without the gates that some models project after the query of each head."""
        if projected.shape[-1] != 2 * self.count * self.size:
            return projected
        return projected.unflatten(-1, (self.count, 2 * self.size))[..., : self.size].flatten(-2)

    def shared(self, keys: Tensor) -> Tensor:
        """Repeat keys `[..., G * d]` for each head of queries, `[..., H * d]`."""
        if self.key_count == self.count:
            return keys
        return repeated(keys.unflatten(-1, (self.key_count, self.size)), self.count, dim=-2).flatten(-2)


@dataclass(frozen=True)
class AttentionModule:
    """An attention module of a model, and its projections by role."""

    module: nn.Module
    projections: dict[str, nn.Module]
    heads: Heads
    is_cross: bool = False


def features_of(projection: nn.Module) -> int:
    """Return the number of output features of a projection, or of the layer that it adapts; 0 if unknown.

    Args:
        projection: a linear layer, which may be quantised or adapted.
    """
    layer: Any = projection
    while not hasattr(layer, "out_features") and hasattr(layer, "base_layer"):
        layer = layer.base_layer
    # GPT-2's Conv1D is a linear layer whose weight is transposed.
    return int(getattr(layer, "out_features", getattr(layer, "nf", 0)))


def attention_modules(model: nn.Module, *, with_cross_attention: bool = False) -> list[AttentionModule]:
    """Return the self-attention modules of a model in the order of its layers, and those of cross-attention if wanted.

    Args:
        model: any model; without modules that `PROJECTIONS` or `FAMILIES` describe, the list is empty.
        with_cross_attention: whether to include cross-attention, whose keys belong to other tokens than its queries.
    """
    modules = dict(model.named_modules())
    crosses = tuple(f"{path}." for path in modules if CROSS_ATTENTION.search(f"{path} {type(modules[path]).__name__}"))
    return [
        replace(_attention_module(module, names, count, model), is_cross=is_cross)
        for path, module in modules.items()
        if with_cross_attention >= (is_cross := f"{path}.".startswith(crosses))
        for names in names_of(module)[:1]
        if (count := _count_of(module, model, ("num_attention_heads", "num_heads", "n_heads"))) is not None
    ]


def _attention_module(module: nn.Module, names: ProjectionNames, count: int, model: nn.Module) -> AttentionModule:
    projections = names.of(module) or {}
    features = {role: features_of(projection) for role, projection in projections.items()}
    if FUSED in features and not names.has_values:
        size, key_count = features[FUSED] // count, count
    elif FUSED in features:
        # Several heads of queries may share a head of keys and values (grouped-query attention).
        key_count = _count_of(module, model, ("num_key_value_heads", "num_kv_heads", "kv_heads")) or count
        size = features[FUSED] // (count + 2 * key_count)
    else:
        size = features.get("query", features["key"]) // count
        if 2 * getattr(module, "head_dim", 0) == size:
            size //= 2
        key_count = features["key"] // size if size else count
    return AttentionModule(module, projections, Heads(names, count, key_count, size))


def norms_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the norms of the outputs of an attention module's projections, by role; empty if it has none."""
    return next((norms for names in NORMS if (norms := ProjectionNames(names).of(module))), {})


def _count_of(module: nn.Module, model: nn.Module, names: Sequence[str]) -> int | None:
    """Return the number of heads from an attention module, its config or its model's config, in this order."""
    for source in (module, getattr(module, "config", None), getattr(model, "config", None)):
        for name in names:
            count = getattr(source, name, None)
            if isinstance(count, int):
                return count
    return None


def declared_layers(model: nn.Module) -> list[AttentionModule]:
    """Return the modules of a model that are `AttentionLayer`s, in its order."""
    return [
        _attention_module(module, names[0], cast(Any, module).num_heads, model)
        for module in model.modules()
        if (names := [names for protocol, names in DECLARATIONS if declares(module, protocol)])
    ]

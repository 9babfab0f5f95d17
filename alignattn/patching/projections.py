"""Where models keep the projections of queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from alignattn.attention.attend import AttentionLayer, PooledAttentionLayer, SharedAttentionLayer
from alignattn.patching.families import family_of
from alignattn.utils.errors import AlignAttnError

FUSED = "fused"

MASK_ARGUMENT = "attention_mask"
"""The argument of transformers' attention modules that says which tokens may attend to which."""

HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
"""Attributes of an attention module, or of its config, that hold its number of heads."""

DIRECT_TOLERANCE = 0.02
"""Largest relative distance of queries from a multiple of their projection's output: half precision rounds."""


@dataclass(frozen=True)
class ProjectionNames:
    """Where a family of models keeps the projections of queries and keys.

    Attributes:
        roles: attribute of the projection by role: `query` and `key`, or `fused`.
        parts: for `fused`, how many equal parts its output has; queries are the first, keys the second.
    """

    roles: dict[str, str]
    parts: int = 1

    def of(self, module: nn.Module) -> dict[str, nn.Module] | None:
        """Return the projections of `module` by role, or None if it is not attention of this family."""
        found = {role: getattr(module, name, None) for role, name in self.roles.items()}
        projections = {role: child for role, child in found.items() if isinstance(child, nn.Module)}
        return projections if len(projections) == len(found) else None


PROJECTIONS = (
    ProjectionNames({"query": "query", "key": "key"}),
    ProjectionNames({"query": "q_lin", "key": "k_lin"}),
    ProjectionNames({"query": "q_proj", "key": "k_proj"}),
    ProjectionNames({FUSED: "Wqkv"}, parts=3),
)


def names_of(module: nn.Module) -> list[ProjectionNames]:
    """Return the names by which `module` keeps projections of queries and keys: none if it is not attention."""
    family = family_of(module)
    names = PROJECTIONS if family is None else (ProjectionNames(dict(family.roles)),)
    return [name for name in names if name.of(module)]


DECLARED = ProjectionNames({"query": "query_projection", "key": "key_projection"})
"""The names of `alignattn.attention.attend.AttentionLayer`."""

DECLARED_SHARED = ProjectionNames({FUSED: "shared_projection"})
"""Those of `alignattn.attention.attend.SharedAttentionLayer`, whose parts the module itself makes."""


DECLARED_POOLED = ProjectionNames({"key": "key_projection"})
"""Those of `alignattn.attention.attend.PooledAttentionLayer`, whose queries are parameters."""


DECLARATIONS: Sequence[tuple[Any, ProjectionNames]] = (
    (AttentionLayer, DECLARED),
    (SharedAttentionLayer, DECLARED_SHARED),
    (PooledAttentionLayer, DECLARED_POOLED),
)
"""The protocols by which a module declares its projections, and the names that they use."""


@dataclass(frozen=True)
class AttentionModule:
    """A self-attention module of a model, and its projections."""

    module: nn.Module
    names: ProjectionNames
    projections: dict[str, nn.Module]
    num_heads: int

    @property
    def head_dim(self) -> int:
        """Size d of a head's query and key."""
        return features_of(next(iter(self.projections.values()))) // self.names.parts // self.num_heads

    @property
    def has_one_query(self) -> bool:
        """Whether it attends by one query, as pooling does and a decoder that attends step by step."""
        return self.names is DECLARED_POOLED or bool(getattr(self.module, "has_one_query", False))


def features_of(projection: nn.Module) -> int:
    """Return how many features a projection gives, or 0 if it does not say; an adapter's layer knows that it is around.

    Args:
        projection: a linear layer, quantised or adapted or not.
    """
    layer: Any = projection
    while not hasattr(layer, "out_features") and hasattr(layer, "base_layer"):
        layer = layer.base_layer
    return int(getattr(layer, "out_features", 0))


def check_direct(name: str, role: str, given: Tensor, received: Tensor) -> None:
    """Refuse attention whose queries or keys are no multiple of what its projection gave: rotated, or normed.

    Args:
        name: of the attention.
        role: `query` or `key`.
        given: by the projection, `[B, n, H * d]`.
        received: by the attention, `[B, H, n, d]`.

    Raises:
        AlignAttnError: if so.
    """
    received, given = received.transpose(1, 2).flatten().float(), given.flatten().float()
    is_direct = given.shape == received.shape
    if is_direct:
        factor = (given @ received) / (given @ given).clamp_min(torch.finfo(given.dtype).tiny)
        # A later check names values that are not finite.
        is_direct = not (received - factor * given).norm() > DIRECT_TOLERANCE * received.norm()
    if not is_direct:
        raise AlignAttnError(
            f"{name} does not attend with the {role} that its projection gives: it rotates or norms it between, and "
            "cannot be balanced"
        )


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Return the attention modules of a model in the order of its layers.

    Args:
        model: any model; one that neither `PROJECTIONS` nor `FAMILIES` knows has none.
    """
    return [
        AttentionModule(module, names, names.of(module) or {}, num_heads)
        for module in model.modules()
        for names in names_of(module)
        if (num_heads := _heads_of(module, model)) is not None
    ]


def _heads_of(module: nn.Module, model: nn.Module) -> int | None:
    """Return the number of heads that an attention module says it has, or else its config or that of its model."""
    for source in (module, getattr(module, "config", None), getattr(model, "config", None)):
        for name in HEAD_COUNTS:
            count = getattr(source, name, None)
            if isinstance(count, int):
                return count
    return None


def position_of_mask(module: nn.Module) -> int | None:
    """Return the place of the mask among the positional arguments of an attention module, or None if it takes none."""
    names = list(signature(module.forward).parameters)
    return names.index(MASK_ARGUMENT) if MASK_ARGUMENT in names else None


def declared_layers(model: nn.Module) -> list[AttentionModule]:
    """Return the modules of a model that are `AttentionLayer`s, in its order."""
    return [
        AttentionModule(module, names, names.of(module) or {}, cast(Any, module).num_heads)
        for module in model.modules()
        if (names := _declared_names(module)) is not None
    ]


def _declared_names(module: nn.Module) -> ProjectionNames | None:
    """The names that a module declares its projections by, or None if it declares none."""
    for protocol, names in DECLARATIONS:
        if isinstance(module, protocol):
            return names
    return None

"""Where models keep the projections of queries and keys, and how a patch taps them."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from alignattn.attention.config import GradientScope
from alignattn.attention.projection import forked_linear
from alignattn.patching.recording import Collector

FUSED = "fused"


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


DECLARED = ProjectionNames({"query": "query_projection", "key": "key_projection"})
"""The names of `alignattn.attention.attend.AttentionLayer`."""


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
        projection: Any = next(iter(self.projections.values()))
        return int(projection.out_features) // self.names.parts // self.num_heads


@dataclass(frozen=True)
class ProjectionTap:
    """What a tapped projection needs to know of the attention that it serves."""

    collector: Collector
    role: str
    gradient_scope: GradientScope


class TappedLinear(nn.Linear):
    """A projection that also hands its output to the alignment loss in training, or while `collect` records.

    A patch changes the class of a `torch.nn.Linear` in place, so parameters and state-dict keys stay as they are.
    """

    tap: ProjectionTap

    @classmethod
    def add_tap(cls, projection: nn.Module, tap: ProjectionTap) -> None:
        """Turn a `torch.nn.Linear` into a tapped one, in place."""
        projection.__class__ = cls
        object.__setattr__(projection, "tap", tap)

    def remove_tap(self) -> None:
        """Turn this projection into the `torch.nn.Linear` it was, in place."""
        del self.tap
        object.__setattr__(self, "__class__", nn.Linear)

    def forward(self, input: Tensor) -> Tensor:
        """Project `[..., in_features]` to `[..., out_features]`."""
        collector = self.tap.collector
        if not collector.is_tapped(self.training):
            return super().forward(input)
        output, recorded = forked_linear(input, self.weight, self.bias, reaches_input=self.tap.gradient_scope == "all")
        collector.keep(self.tap.role, recorded)
        return output


def attention_modules(model: nn.Module, num_heads: int) -> list[AttentionModule]:
    """Return the self-attention modules of a model in the order of its layers.

    Args:
        model: any model; one of a family that `PROJECTIONS` does not list has none.
        num_heads: heads of each.
    """
    found = []
    for module in model.modules():
        for names in PROJECTIONS:
            projections = names.of(module)
            if projections is not None:
                found.append(AttentionModule(module, names, projections, num_heads))
    return found

"""One choice for each slot of the attention formula, with its presets and its validation."""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from alignattn.attention.alignment import ALIGNMENTS
from alignattn.attention.alignment.base import HeadReduction
from alignattn.errors import AlignAttnError

GradientScope = Literal["projections", "all"]


@dataclass(frozen=True)
class AttentionConfig:
    """What a patched model's attention does beyond the pretrained one; validates itself.

    The minimised loss is the task loss + `alignment_weight` · mean over layers of A(Q, K) (Zhang et al. 2021, eq. 1).

    Attributes:
        alignment: the distance A between the key and query distributions: `gan`, `ot`, `ct`, or None.
        alignment_weight: λ.
        alignment_options: keyword arguments of the alignment's class, such as `{"epsilon": 0.05}` for `ot`.
        head_reduction: `sum` (the paper's text) or `mean` (its code) over a layer's heads.
        gradient_scope: which parameters of the model the alignment loss moves: `projections`, the weights and
            biases that make queries and keys; `all`, also everything below them, as the paper's code does.
        layers: indices of the attention layers to patch, from 0; None = all.

    Raises:
        AlignAttnError: if a value is not among the choices or out of its range.
    """

    alignment: str | None = None
    alignment_weight: float = 0.01
    alignment_options: Mapping[str, Any] = field(default_factory=dict)
    head_reduction: HeadReduction = "sum"
    gradient_scope: GradientScope = "projections"
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.alignment is not None:
            _check_choice("alignment", self.alignment, ALIGNMENTS)
        _check_choice("gradient_scope", self.gradient_scope, get_args(GradientScope))
        _check_choice("head_reduction", self.head_reduction, get_args(HeadReduction))
        if not 0 <= self.alignment_weight < float("inf"):
            raise AlignAttnError(f"alignment_weight={self.alignment_weight} must be a finite number of 0 or more")
        self._check_options()
        if self.layers is not None:
            object.__setattr__(self, "layers", _checked_layers(self.layers))

    def _check_options(self) -> None:
        if not self.alignment_options:
            return
        if self.alignment is None:
            raise AlignAttnError("alignment_options are given but no alignment: choose one or drop them")
        own = set(inspect.signature(ALIGNMENTS[self.alignment]).parameters) - {"head_dim", "head_reduction"}
        for name in self.alignment_options:
            _check_choice(f"option of alignment {self.alignment!r}", name, sorted(own))
        # Building the loss once lets it judge the values of its own options.
        ALIGNMENTS[self.alignment](1, **self.alignment_options)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        fields = dataclasses.asdict(self)
        return fields | {"layers": None if self.layers is None else list(self.layers)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "AttentionConfig":
        """Build a config from `to_dict`'s result.

        Raises:
            AlignAttnError: if a field is unknown or its value invalid.
        """
        known = [known_field.name for known_field in dataclasses.fields(cls)]
        for name in fields:
            _check_choice("field of AttentionConfig", name, known)
        return cls(**fields)

    @classmethod
    def resolve(cls, attention: "str | AttentionConfig", **overrides: Any) -> "AttentionConfig":
        """Return the config that a preset's name or a config stands for, with some fields replaced.

        Raises:
            AlignAttnError: if the preset or a field is unknown or a value invalid.
        """
        if isinstance(attention, str):
            _check_choice("attention", attention, PRESETS)
            attention = PRESETS[attention]
        return cls.from_dict(attention.to_dict() | overrides)


def _check_choice(what: str, value: Any, choices: Any) -> None:
    if value not in choices:
        raise AlignAttnError(f"unknown {what} {value!r}: choose one of {', '.join(map(str, choices))}")


def _checked_layers(layers: Any) -> tuple[int, ...]:
    layers = tuple(layers)
    valid = all(isinstance(layer, int) and layer >= 0 for layer in layers)
    if not layers or not valid or len(set(layers)) != len(layers):
        raise AlignAttnError(f"layers={list(layers)} must be distinct layer indices from 0")
    return tuple(sorted(layers))


PRESETS: dict[str, AttentionConfig] = {
    "soft": AttentionConfig(),
    "aa-gan": AttentionConfig(alignment="gan"),
    "aa-ot": AttentionConfig(alignment="ot"),
    "aa-ct": AttentionConfig(alignment="ct"),
}
"""The papers' names: plain soft attention, and alignment attention with each of the three distances."""

"""The configuration of attention: one choice for each slot, its presets and its validation."""

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, cast, get_args

from alignattn.attention.choices import ALIGNMENTS, SLOTS, Choice, HeadReduction, choices_with
from alignattn.utils.errors import AlignAttnError, unknown
from alignattn.utils.options import Option
from alignattn.utils.registry import Reference

PLAIN_ATTENTION = "soft"
"""The preset that leaves a model's attention as it is."""

DEFAULT_WEIGHT = 0.01
WEIGHTS: Mapping[str | None, float] = {"moments": 0.001}
"""λ of an alignment, if not `DEFAULT_WEIGHT`. With 0.01, 3 of 30 runs of `moments` of five epochs broke; with 0.001,
none (docs/study/why.md)."""

DEFAULT_ROWS = 8
"""Samples that a loss over samples draws by default (docs/study/rows.md)."""
ALL_ROWS = 0
"""The `alignment_rows` that draw no samples."""

GradientScope = Literal["projections", "all"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The choices for a model's attention; it validates itself, and imports torch only to check options.

    The attention of a layer is O = N(S(Q, K)) · g(Q, V). The loss is the task loss + `alignment_weight` · mean over
    layers of A(Q, K) (Zhang et al. 2021, eq. 1).

    Attributes:
        score: S, one of `SCORES` in `alignattn.attention.choices`. The default, `scaled_dot`, leaves a layer its own
            score if it has one, as in a graph attention network.
        normalizer: N, one of `NORMALIZERS`.
        value: g, one of `VALUES`.
        alignment: the distance A between the key and query distributions, one of `ALIGNMENTS`, or None.
        alignment_weight: λ; by default 0.01, and 0.001 for `moments`. With another alignment,
            `dataclasses.replace` keeps its value, and `resolve` replaces a default.
        score_options: keyword arguments of the score's class.
        normalizer_options: keyword arguments of the normalizer's class, such as `{"alpha": 1.3}` for `entmax`.
        value_options: keyword arguments of the value's class, such as `{"init": "paper"}` for `qvi`.
        alignment_options: keyword arguments of the alignment's class, such as `{"epsilon": 0.05}` for `ot`.
        alignment_rows: the maximum number of samples of a forward, and of a process, from which `gan`, `ot` and `ct`
            compute their loss; they are drawn anew for each loss. Their loss is a mean over samples, so it stays
            unbiased. 0 = all; by default 8, and 0 with other alignments and with `points`. A model that attends in
            windows, such as Swin, has a sample for each window.
        head_reduction: `sum` (the paper's text) or `mean` (its code) over a layer's heads.
        gradient_scope: which parameters the alignment loss trains: `projections`, the weights and biases of the query
            and key projections; `all`, also everything below them, as in the paper's code.
        layers: indices of the attention layers to patch, from 0; None = all.
        cross_attention: whether an alignment also observes attention to tokens of another sequence, such as a decoder's
            attention to its encoder. Other slots are for self-attention. Modules that call `alignattn.attend` get every
            slot in both kinds of attention, whatever this field says.

    Raises:
        AlignAttnError: if a value is not among the choices or out of its range.
    """

    score: str = "scaled_dot"
    normalizer: str = "softmax"
    value: str = "identity"
    alignment: str | None = None
    alignment_weight: float = cast(float, None)
    score_options: Mapping[str, Any] = field(default_factory=dict)
    normalizer_options: Mapping[str, Any] = field(default_factory=dict)
    value_options: Mapping[str, Any] = field(default_factory=dict)
    alignment_options: Mapping[str, Any] = field(default_factory=dict)
    head_reduction: HeadReduction = "sum"
    gradient_scope: GradientScope = "projections"
    layers: tuple[int, ...] | None = None
    cross_attention: bool = False
    alignment_rows: int = cast(int, None)

    def __post_init__(self) -> None:
        for slot in SLOTS:
            choice, options = getattr(self, slot), getattr(self, f"{slot}_options")
            if not isinstance(options, Mapping):
                raise AlignAttnError(f"{slot}_options={options!r} must be a dict of options and their values")
            if choice is None and slot == "alignment":
                if options:
                    raise AlignAttnError("alignment_options need an alignment: choose one, or leave them out")
                continue
            _check_choice(slot, choice, SLOTS[slot])
            declared = {option.name: option for option in SLOTS[slot][choice].options}
            for name in options:
                if not declared:
                    raise AlignAttnError(f"{slot} {choice!r} takes no options: drop {name!r}, or choose another {slot}")
                _check_choice(f"option of {slot} {choice!r}", name, declared)
            try:
                options = {name: _checked(declared[name], value) for name, value in options.items()}
            except AlignAttnError as error:
                raise AlignAttnError(f"{slot} {choice!r}: {error}") from error
            object.__setattr__(self, f"{slot}_options", options)
        _check_choice("gradient_scope", self.gradient_scope, get_args(GradientScope))
        _check_choice("head_reduction", self.head_reduction, get_args(HeadReduction))
        if self.alignment_weight is None:
            object.__setattr__(self, "alignment_weight", WEIGHTS.get(self.alignment, DEFAULT_WEIGHT))
        if not (_is_number(self.alignment_weight) and 0 <= self.alignment_weight < float("inf")):
            raise AlignAttnError(f"alignment_weight={self.alignment_weight!r} must be a finite number of 0 or more")
        object.__setattr__(self, "alignment_weight", _plain(self.alignment_weight))
        if self.alignment_rows is None:
            averages = self.alignment is not None and ALIGNMENTS[self.alignment].averages_samples
            is_drawn = averages and "points" not in self.alignment_options
            object.__setattr__(self, "alignment_rows", DEFAULT_ROWS if is_drawn else ALL_ROWS)
        if not _is_number(self.alignment_rows, Integral) or self.alignment_rows < 0:
            raise AlignAttnError(f"alignment_rows={self.alignment_rows!r} must be a number of samples, or 0 for all")
        object.__setattr__(self, "alignment_rows", _plain(self.alignment_rows))
        if self.alignment_rows != ALL_ROWS:
            if self.alignment is not None and not ALIGNMENTS[self.alignment].averages_samples:
                averaging = ", ".join(choices_with("alignment", "averages_samples"))
                raise AlignAttnError(
                    f"alignment_rows is for a mean over samples ({averaging}), and {self.alignment!r} compares all "
                    "tokens of a batch: leave it out"
                )
            if "points" in self.alignment_options:
                raise AlignAttnError(
                    "alignment_rows draws samples, and points the nodes of a graph: leave one of them out"
                )
        if self.cross_attention and (self.changes_function or self.alignment is None):
            raise AlignAttnError(
                f"cross_attention is for an alignment alone, but the attention is {self.name!r}: leave one of them out"
            )
        if self.layers is not None:
            layers: Any = self.layers
            is_several = isinstance(layers, Collection) and not isinstance(layers, str)
            valid = is_several and all(_is_number(layer, Integral) and layer >= 0 for layer in layers)
            if not valid or not layers or len(set(layers)) != len(layers):
                raise AlignAttnError(f"layers={layers!r} must be distinct layer indices from 0, such as (0, 1)")
            object.__setattr__(self, "layers", tuple(sorted(_plain(layer) for layer in layers)))
        # A choice that has options is built once, because its class checks options that depend on each other.
        for slot in SLOTS:
            if options := getattr(self, f"{slot}_options"):
                choice_class = SLOTS[slot].load(getattr(self, slot))
                sizes = inspect.signature(choice_class).parameters.keys() & {"head_dim", "num_heads"}
                choice_class(**dict.fromkeys(sizes, 1), **options)

    @property
    def name(self) -> str:
        """The name of these choices for `resolve`, such as `aa-ct+entmax15`, without their options."""
        preset_of = {preset.alignment: name for name, preset in PRESETS.items() if preset.alignment is not None}
        names = [] if self.alignment is None else [preset_of.get(self.alignment, self.alignment)]
        names += [getattr(self, slot) for slot in self.filled_slots if slot != "alignment"]
        return "+".join(names) or PLAIN_ATTENTION

    @property
    def filled_slots(self) -> tuple[str, ...]:
        """The slots whose choice differs from plain attention."""
        return tuple(slot for slot in SLOTS if getattr(self, slot) != getattr(PLAIN, slot))

    def describe_slots(self) -> str:
        """Return the filled slots and their choices, such as `normalizer='entmax15', value='qvi'`; empty if none is."""
        return ", ".join(f"{slot}={getattr(self, slot)!r}" for slot in self.filled_slots)

    @property
    def references(self) -> list[Reference]:
        """The papers of the choices in the filled slots, each once."""
        cited = (SLOTS[slot][getattr(self, slot)].reference for slot in self.filled_slots)
        return [reference for reference in dict.fromkeys(cited) if reference]

    @property
    def changes_function(self) -> bool:
        """Whether the patched model computes a different function from the pretrained one, even in evaluation mode."""
        return any(slot != "alignment" for slot in self.filled_slots)

    @property
    def choices(self) -> Mapping[str, Choice]:
        """The registry entries of the choices by slot, with their options applied; `alignment` only if there is one."""
        chosen = {slot: getattr(self, slot) for slot in SLOTS if getattr(self, slot) is not None}
        return {slot: SLOTS[slot][name].given(getattr(self, f"{slot}_options")) for slot, name in chosen.items()}

    @property
    def reason_unbalanced(self) -> str:
        """Why `alignattn.balance` would change the function; empty if attention reads only products of q and k."""
        reasons = (
            f"{slot} {getattr(self, slot)!r} {choice.reads_beyond_products}"
            for slot, choice in self.choices.items()
            if choice.reads_beyond_products
        )
        return next(reasons, "")

    def function_fields(self) -> dict[str, Any]:
        """Return the fields that determine the function of a patched model: all but those of the alignment."""
        names = ("score", "normalizer", "value", "layers")
        fields = {name: value for name, value in self.to_dict().items() if name.removesuffix("_options") in names}
        return fields if self.changes_function else fields | {"layers": None}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        fields = dataclasses.asdict(self)
        return fields | {"layers": None if self.layers is None else list(self.layers)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "AttentionConfig":
        """Build a config from `to_dict`'s result; saved without `alignment_rows`, it uses all samples.

        Raises:
            AlignAttnError: if a field is unknown or its value invalid.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            _check_choice("field of AttentionConfig", name, names)
        rows = fields.get("alignment_rows")
        return cls(**{**fields, "alignment_rows": ALL_ROWS if rows is None else rows})

    @classmethod
    def resolve(cls, attention: "str | AttentionConfig", **overrides: Any) -> "AttentionConfig":
        """Return the config for a name or a config, with some fields replaced.

        Args:
            attention: a config; or a preset (`aa-ct`), a choice of any slot (`entmax15`), or several of them joined by
                `+` (`aa-ct+qvi+entmax15`).
            **overrides: fields that replace those of `attention`. With another alignment, a λ and a number of drawn
                samples that are the defaults of the replaced one become the defaults of the new one.

        Raises:
            AlignAttnError: if a name or a field is unknown, two names fill one slot, or a value is invalid.
        """
        if not isinstance(attention, (str, cls)):
            raise AlignAttnError(f"attention={attention!r} must be a name, such as 'aa-ct', or an AttentionConfig")
        if isinstance(attention, str):
            slot_of = {choice: slot for slot, choices in SLOTS.items() for choice in choices}
            plain = PLAIN.to_dict()
            fields: dict[str, Any] = {}
            for name in attention.split("+"):
                _check_choice("attention", name, [*PRESETS, *(choice for choice in slot_of if choice not in PRESETS)])
                if name in PRESETS:
                    chosen = {field: value for field, value in PRESETS[name].to_dict().items() if value != plain[field]}
                else:
                    chosen = {slot_of[name]: name}
                if twice := next((slot for slot in chosen if slot in fields), None):
                    raise AlignAttnError(
                        f"attention {attention!r} fills the slot {twice!r} twice: drop one of the names"
                    )
                fields |= chosen
        else:
            fields = attention.to_dict()
        alignment, alignment_options = fields.get("alignment"), fields.get("alignment_options", {})
        if "alignment" in overrides and fields.get("alignment_weight") == WEIGHTS.get(alignment, DEFAULT_WEIGHT):
            fields["alignment_weight"] = None
        if overrides.keys() & {"alignment", "alignment_options"}:
            default = cls(alignment=alignment, alignment_options=alignment_options)
            if fields.get("alignment_rows") == default.alignment_rows:
                fields["alignment_rows"] = None
        fields |= overrides
        config = cls.from_dict(fields)
        if fields.get("alignment_rows") is None:
            config = dataclasses.replace(config, alignment_rows=cast(int, None))
        return config


def _check_choice(what: str, value: Any, choices: Any) -> None:
    if not isinstance(value, str) or value not in choices:
        raise unknown(what, value, choices)


def _checked(option: Option, value: Any) -> Any:
    if isinstance(value, str) and str not in option.types:
        # The command line has already parsed its numbers; in Python or in a saved config, text for one is a mistake.
        wanted = "True or False" if bool in option.types else "a number"
        raise AlignAttnError(f"{option.name}={value!r} is text: give {wanted}")
    return option.checked(_plain(value))


def _is_number(value: Any, kind: type = Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Convert another library's number, such as NumPy's, to a Python number, which JSON accepts; keep other values."""
    if not isinstance(value, Real) or isinstance(value, (int, float)):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


PLAIN = AttentionConfig()
"""Plain soft attention."""

PRESETS: dict[str, AttentionConfig] = {
    PLAIN_ATTENTION: PLAIN,
    "aa-gan": AttentionConfig(alignment="gan"),
    "aa-ot": AttentionConfig(alignment="ot"),
    "aa-ct": AttentionConfig(alignment="ct"),
    "aa-moments": AttentionConfig(alignment="moments"),
    "aa-means": AttentionConfig(alignment="means"),
    "qvi": AttentionConfig(value="qvi"),
}
"""Soft attention, alignment attention with the paper's three distances and with two that need no adversary, and
query-value interaction."""

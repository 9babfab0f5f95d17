"""The report of a balanced model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alignattn.utils.text_tables import render_table

ByHead = tuple[tuple[float, ...], ...]
"""A number for each layer and head."""


@dataclass(frozen=True)
class BalanceReport:
    """What balancing changed in a model.

    Distances are `spread_distance`s on held-back tokens, pooled over samples, by attention call: a module that several
    layers share (ALBERT) has several. Values of A are by attention module.

    Attributes:
        form: what was made equal: `full`, means and covariances; `centre`, means; `uncentred`, second moments;
            `rotary`, mean squares per frequency; `random`, the control, with a random A.
        layers: the path of each call's module.
        before: distance of queries and keys before balancing.
        after: distance of queries and keys after balancing.
        floor: distance of two halves of one cloud.
        condition: condition number of A.
        shrinkage: share of the identity in nearly singular covariances.
        tokens: number of real tokens in the moments.
        held_back_tokens: number of tokens in the distances.
        largest_change: largest change of an output of the model on held-back batches.
        spread: standard deviation of these outputs.
        rounding: for a model in half precision, the mean error of its outputs against the same function in float64,
            before and after; else None.
        notes: notes on unusual results, a line each.
    """

    form: str
    layers: tuple[str, ...]
    before: ByHead
    after: ByHead
    floor: ByHead
    condition: ByHead
    shrinkage: ByHead
    tokens: int
    held_back_tokens: int
    largest_change: float
    spread: float
    rounding: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()

    def means(self) -> dict[str, float]:
        """Return the mean distances over layers and heads: `before`, `after`, `floor`."""
        return {name: _mean([_mean(heads) for heads in getattr(self, name)]) for name in ("before", "after", "floor")}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types; null for what is not finite."""
        fields: dict[str, Any] = _plain(asdict(self))
        return fields

    def describe(self) -> str:
        """Return a table with a line for each layer, means over its heads, and the changes of the outputs."""
        rows = [
            [str(index), layer, *(f"{_mean(heads):.4f}" for heads in distances)]
            for index, (layer, *distances) in enumerate(
                zip(self.layers, self.before, self.after, self.floor, strict=True)
            )
        ]
        rows.append(["", "mean", *(f"{mean:.4f}" for mean in self.means().values())])
        largest = max(max(heads) for heads in self.condition)
        lines = [
            render_table(["", "attention", "before", "after", "floor"], rows, left=2),
            "",
            f"Sliced Wasserstein distance of queries and keys over their spread, mean over heads, on "
            f"{self.held_back_tokens} held-back tokens; floor: two halves of one cloud.",
            f"Moments of {self.tokens} tokens, pooled over samples; condition of A at most {largest:.1f}.",
            f"Largest change of an output: {self.largest_change:.2g}, of a spread of {self.spread:.2g}.",
        ]
        if self.rounding is not None:
            before, after = self.rounding
            lines.append(f"Mean error of the outputs against float64: {before:.2g} before, {after:.2g} after.")
        return "\n".join([*lines, *self.notes])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The output of the throughput comparison: a line for each pair of attacks, and a table by recipe."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from alignattn.robustness.records import AttackRecord
from alignattn.utils.console import render_table

THROUGHPUT_FILE = "throughput.csv"
ALL_RECIPES = "all"
QUARTILES = (0.25, 0.5, 0.75)

HEADINGS = (
    "recipe",
    "attacks",
    "attack s",
    "TextAttack's",
    "ratio [quartiles]",
    "of totals",
    "texts/s",
    "TextAttack's",
    "ratio [quartiles]",
    "of totals",
    "distinct %",
    "same inputs",
    "same outcome",
)


class Spread(NamedTuple):
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class TimedAttack:
    """An attack on one row with one wrapper.

    Attributes:
        seconds: duration of the whole attack.
        scoring_seconds: part of the duration spent in the wrapper.
        inputs: token ids of the texts that the wrapper was asked to score, in order.
        record: result of the attack.
        last_input: token ids of the attack's last text.
    """

    seconds: float
    scoring_seconds: float
    inputs: tuple[Hashable, ...]
    record: AttackRecord
    last_input: Hashable


@dataclass(frozen=True)
class PairedAttack:
    """The same row attacked with both wrappers.

    Attributes:
        index: the row in the split.
        recipe: the attack's name.
        textattack_first: whether TextAttack's wrapper was first.
        ours: the attack with this package's wrapper.
        textattack: the attack with TextAttack's wrapper.
    """

    index: int
    recipe: str
    textattack_first: bool
    ours: TimedAttack
    textattack: TimedAttack

    @property
    def is_same_outcome(self) -> bool:
        """Whether both attacks failed, or both succeeded, with the same last input.

        Only the inputs are compared: if two texts have the same input, rounding decides which one TextAttack's wrapper
        prefers.
        """
        ours, textattack = self.ours, self.textattack
        return (ours.record.outcome, ours.last_input) == (textattack.record.outcome, textattack.last_input)

    @property
    def is_same_inputs(self) -> bool:
        """Whether both wrappers were asked to score the same inputs in the same order."""
        return self.ours.inputs == self.textattack.inputs

    @property
    def attack_ratio(self) -> float:
        """Duration with TextAttack's wrapper divided by that with this package's."""
        return self.textattack.seconds / self.ours.seconds

    @property
    def scoring_ratio(self) -> float:
        """Texts per second of this package's wrapper divided by those of TextAttack's."""
        return _rate([self.ours]) / _rate([self.textattack])

    def line(self) -> dict[str, Any]:
        """Return the columns of `throughput.csv`."""
        ours, textattack = self.ours, self.textattack
        return {
            "recipe": self.recipe,
            "index": self.index,
            "words": ours.record.words,
            "textattack_first": self.textattack_first,
            "seconds": ours.seconds,
            "textattack_seconds": textattack.seconds,
            "scoring_seconds": ours.scoring_seconds,
            "textattack_scoring_seconds": textattack.scoring_seconds,
            "texts": len(ours.inputs),
            "textattack_texts": len(textattack.inputs),
            "distinct_inputs": len(set(ours.inputs)),
            "same_inputs": self.is_same_inputs,
            "outcome": ours.record.outcome,
            "textattack_outcome": textattack.record.outcome,
            "same_outcome": self.is_same_outcome,
        }


@dataclass(frozen=True)
class ThroughputSummary:
    """Both wrappers over the attacks of a recipe, or of all. Ratios above 1 are in favour of this package's.

    Attributes:
        recipe: the attack's name.
        attacks: number of pairs of attacks.
        seconds: mean duration of an attack with this package's wrapper.
        textattack_seconds: mean duration of an attack with TextAttack's.
        attack_ratio: duration with TextAttack's divided by that with this package's, over the pairs.
        total_attack_ratio: ratio of the total durations of all attacks.
        texts_per_second: texts that this package's wrapper scored per second, over all attacks.
        textattack_texts_per_second: texts that TextAttack's scored per second.
        scoring_ratio: texts per second of this package's divided by those of TextAttack's, over the pairs.
        total_scoring_ratio: ratio of the texts per second over all attacks.
        distinct_share: share of distinct inputs among those that this package's wrapper scored; others were cached.
        same_inputs: number of pairs in which both scored the same inputs.
        same_outcome: number of pairs that ended with the same outcome and input.
    """

    recipe: str
    attacks: int
    seconds: float
    textattack_seconds: float
    attack_ratio: Spread
    total_attack_ratio: float
    texts_per_second: float
    textattack_texts_per_second: float
    scoring_ratio: Spread
    total_scoring_ratio: float
    distinct_share: float
    same_inputs: int
    same_outcome: int


def summarise_throughput(pairs: Sequence[PairedAttack]) -> list[ThroughputSummary]:
    """Return a summary of each recipe, and of all recipes if there are several."""
    by_recipe: dict[str, list[PairedAttack]] = {}
    for pair in pairs:
        by_recipe.setdefault(pair.recipe, []).append(pair)
    summaries = [_summary(recipe, members) for recipe, members in by_recipe.items()]
    return summaries if len(summaries) == 1 else [*summaries, _summary(ALL_RECIPES, pairs)]


def throughput_table(summaries: Sequence[ThroughputSummary], device: str, max_length: int) -> str:
    """Return the table as text.

    Args:
        summaries: the rows.
        device: the device of the model.
        max_length: maximum number of tokens of a text.
    """
    rows = [
        [
            one.recipe,
            str(one.attacks),
            f"{one.seconds:.2f}",
            f"{one.textattack_seconds:.2f}",
            _cell(one.attack_ratio),
            f"{one.total_attack_ratio:.1f}",
            f"{one.texts_per_second:.0f}",
            f"{one.textattack_texts_per_second:.0f}",
            _cell(one.scoring_ratio),
            f"{one.total_scoring_ratio:.1f}",
            f"{100 * one.distinct_share:.0f}",
            f"{one.same_inputs}/{one.attacks}",
            f"{one.same_outcome}/{one.attacks}",
        ]
        for one in summaries
    ]
    caption = f"Whole attacks, and the wrappers alone within them; {device}, texts of at most {max_length} tokens"
    return f"{caption}\n{render_table(HEADINGS, rows)}"


def _summary(recipe: str, pairs: Sequence[PairedAttack]) -> ThroughputSummary:
    ours, textattack = [pair.ours for pair in pairs], [pair.textattack for pair in pairs]
    seconds, textattack_seconds = _seconds(ours), _seconds(textattack)
    rate, textattack_rate = _rate(ours), _rate(textattack)
    return ThroughputSummary(
        recipe=recipe,
        attacks=len(pairs),
        seconds=seconds / len(pairs),
        textattack_seconds=textattack_seconds / len(pairs),
        attack_ratio=_spread([pair.attack_ratio for pair in pairs]),
        total_attack_ratio=textattack_seconds / seconds,
        texts_per_second=rate,
        textattack_texts_per_second=textattack_rate,
        scoring_ratio=_spread([pair.scoring_ratio for pair in pairs]),
        total_scoring_ratio=rate / textattack_rate,
        distinct_share=sum(len(set(one.inputs)) for one in ours) / sum(len(one.inputs) for one in ours),
        same_inputs=sum(pair.is_same_inputs for pair in pairs),
        same_outcome=sum(pair.is_same_outcome for pair in pairs),
    )


def _seconds(attacks: Sequence[TimedAttack]) -> float:
    return sum(attack.seconds for attack in attacks)


def _rate(attacks: Sequence[TimedAttack]) -> float:
    """Return the texts scored per second of the time in the wrapper."""
    return sum(len(attack.inputs) for attack in attacks) / sum(attack.scoring_seconds for attack in attacks)


def _spread(ratios: Sequence[float]) -> Spread:
    low, median, high = np.quantile(ratios, QUARTILES).tolist()
    return Spread(median, low, high)


def _cell(ratio: Spread) -> str:
    return f"{ratio.median:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]"

"""Summaries of attacks: counts and shares of a run, and tables of several runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.intervals import wilson_interval
from alignattn.robustness.recipe_names import OUTCOMES
from alignattn.robustness.records import AttackRun, AttackSettings
from alignattn.utils.files import write_csv, write_json, write_text
from alignattn.utils.text_tables import READABLE_WIDTH, split_tables

TABLE_NAME = "robustness"
NO_SHARE = "-"
"""Cell of a share whose denominator is 0."""

SUMMARY_HEADINGS: Mapping[str, str] = {
    "recipe": "recipe",
    "task": "task",
    "attention": "attention",
    "attack_columns": "attacked",
    "failed_share": "failed %",
    "interval": "95 % interval",
    "failed": "failed",
    "succeeded": "succeeded",
    "skipped": "skipped",
    "errors": "errors",
    "failed_share_of_all": "failed/all %",
    "accuracy_before": "accuracy",
    "accuracy_under_attack": "under attack",
    "mean_queries": "queries",
    "words_changed_share": "words changed %",
    "run": "run",
}
"""Columns of a table in the terminal."""

KEYS = ("recipe", "task", "attention")
"""Columns that are repeated in each part of a wide table."""

OF_A_TABLE = ("num_examples", "max_length", "precision", "seed")
"""Settings that all attacks of a table share."""

SHARES_OF_ROWS = ("failed_share", "failed_share_of_all", "accuracy_before", "accuracy_under_attack")
SHARES = (*SHARES_OF_ROWS, "words_changed_share")


@dataclass(frozen=True)
class AttackSummary:
    """The summary of the attacks on one model with one recipe. Shares are fractions, or None if the denominator is 0.

    Attributes:
        settings: the settings of the attacks.
        versions: the versions of the packages.
        rows_left_out: rows of the split that cannot be used and are counted nowhere else.
        failed: attacks that the model withstood.
        succeeded: attacks that it did not withstand.
        skipped: rows that were not attacked because the model misclassifies them, and the rows of `errors`.
        errors: rows whose attack was aborted, or whose label is not a class of the model.
        failed_share: `failed / (failed + succeeded)`.
        interval: the 95 % interval of that share, of Wilson (1927).
        failed_share_of_all: `failed / (failed + succeeded + skipped)`.
        accuracy_before: share of the rows without errors that the model classifies correctly.
        accuracy_under_attack: share of the same rows that it also classifies correctly under attack.
        mean_queries: texts scored per attack, mean over failed and succeeded attacks.
        words_changed_share: insertions, deletions and replacements of words per word of the text, mean over succeeded
            attacks on texts with words. A blank inserted into a word counts as two: a replacement and an insertion.
        constant_prediction: the class that the model predicts for every row before the attacks, although their labels
            differ: failed attacks on such a model mean nothing. None for other models.
    """

    settings: AttackSettings
    versions: Mapping[str, str]
    rows_left_out: int
    failed: int
    succeeded: int
    skipped: int
    errors: int
    failed_share: float | None
    interval: Interval | None
    failed_share_of_all: float | None
    accuracy_before: float | None
    accuracy_under_attack: float | None
    mean_queries: float | None
    words_changed_share: float | None
    constant_prediction: str | None


def summarise_attacks(run: AttackRun) -> AttackSummary:
    """Return counts, shares and means of a run of attacks, finished or not."""
    by_outcome = {outcome: [record for record in run.records if record.outcome == outcome] for outcome in OUTCOMES}
    failed, succeeded, skipped = (len(by_outcome[outcome]) for outcome in OUTCOMES)
    attacked = failed + succeeded
    errors = sum(record.error is not None for record in run.records)
    return AttackSummary(
        settings=run.header.settings,
        versions=run.header.versions,
        rows_left_out=len(run.header.left_out),
        failed=failed,
        succeeded=succeeded,
        skipped=skipped,
        errors=errors,
        failed_share=_share(failed, attacked),
        interval=wilson_interval(failed, attacked),
        failed_share_of_all=_share(failed, attacked + skipped),
        accuracy_before=_share(attacked, attacked + skipped - errors),
        accuracy_under_attack=_share(failed, attacked + skipped - errors),
        mean_queries=_mean(record.queries for record in by_outcome["failed"] + by_outcome["succeeded"]),
        words_changed_share=_mean(
            record.words_changed / record.words for record in by_outcome["succeeded"] if record.words
        ),
        constant_prediction=_constant_prediction(run),
    )


def _constant_prediction(run: AttackRun) -> str | None:
    predictions = (record.original_prediction for record in run.records)
    predicted = {number for number in predictions if number is not None}
    if len(predicted) != 1 or len({record.label for record in run.records}) == 1:
        return None
    number, names = predicted.pop(), dict(enumerate(run.header.labels))
    return f"class {names[number]!r}" if number in names else f"class {number}"


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None


@dataclass(frozen=True)
class AttackTable:
    """Comparable summaries: of attacks with the same settings and resources.

    Attributes:
        summaries: sorted by recipe, task and attention, each in the order of first occurrence.
    """

    summaries: tuple[AttackSummary, ...]

    @property
    def resources(self) -> dict[str, str]:
        """The resources of the attacks of its recipes, by part."""
        return {part: resource for summary in self.summaries for part, resource in summary.settings.resources.items()}

    @property
    def caption(self) -> str:
        """The settings and resources of the attacks, in one line."""
        settings = self.summaries[0].settings
        parts = "; ".join(f"{part}: {resource}" for part, resource in self.resources.items())
        return (
            f"Attacks on up to {settings.num_examples} examples, {settings.max_length} tokens at most, "
            f"{settings.precision}, seed {settings.seed}, made with {parts or 'the resources of the recipes'}"
        )

    def render(self) -> str:
        """Return the caption, the table in lines with shares in percent, and warnings about its models."""
        rows = [[_cell(name, line[name]) for name in SUMMARY_HEADINGS] for line in map(_line, self.summaries)]
        tables = split_tables(list(SUMMARY_HEADINGS.values()), rows, READABLE_WIDTH, keys=len(KEYS))
        constant = dict.fromkeys(
            f"{one.settings.run} predicts {one.constant_prediction} for every row of {one.settings.task}: failed "
            "attacks do not mean that it is robust"
            for one in self.summaries
            if one.constant_prediction is not None
        )
        return "\n".join([self.caption, *tables[:-1], *constant])


def tabulate(summaries: Sequence[AttackSummary]) -> list[AttackTable]:
    """Return a table per combination of settings and resources: figures of different ones are not comparable."""
    tables: list[list[AttackSummary]] = []
    for summary in summaries:
        alike = (one for one in tables if all(_are_alike(summary.settings, other.settings) for other in one))
        if (members := next(alike, None)) is None:
            tables.append(members := [])
        members.append(summary)
    return [AttackTable(tuple(_by_first_occurrence(members))) for members in tables]


def write_attack_tables(folder: Path, tables: Sequence[AttackTable]) -> list[Path]:
    """Write `robustness.txt`, `.json` and `.csv` to `folder`, and return their paths.

    The CSV file has the rows of all tables; the column `resources` distinguishes the tables.
    """
    text, content, rows = (folder / f"{TABLE_NAME}.{ending}" for ending in ("txt", "json", "csv"))
    write_text(text, "\n\n".join(table.render() for table in tables) + "\n")
    contents = [
        {"caption": one.caption, "resources": one.resources, "summaries": list(map(asdict, one.summaries))}
        for one in tables
    ]
    write_json(content, {"tables": contents})
    write_csv(rows, ({**_csv_line(summary), "resources": one.caption} for one in tables for summary in one.summaries))
    return [text, content, rows]


def _are_alike(settings: AttackSettings, other: AttackSettings) -> bool:
    """Return whether attacks are comparable; of the resources, only those that both recipes use count."""
    common = settings.resources.keys() & other.resources.keys()
    return all(getattr(settings, name) == getattr(other, name) for name in OF_A_TABLE) and all(
        settings.resources[part] == other.resources[part] for part in common
    )


def _by_first_occurrence(summaries: Sequence[AttackSummary]) -> list[AttackSummary]:
    """Sort by recipe, task and attention, each in the order of first occurrence."""
    orders = [list(dict.fromkeys(getattr(summary.settings, key) for summary in summaries)) for key in KEYS]
    return sorted(
        summaries,
        key=lambda one: [order.index(getattr(one.settings, key)) for order, key in zip(orders, KEYS, strict=True)],
    )


def _line(summary: AttackSummary) -> dict[str, Any]:
    columns = "+".join(summary.settings.attack_columns)
    return {**vars(summary.settings), **vars(summary), "attack_columns": columns}


def _csv_line(summary: AttackSummary) -> dict[str, Any]:
    line, interval = _line(summary), summary.interval
    for name in ("settings", "interval", "versions", "resources"):
        del line[name]
    return {**line, "interval_low": interval and interval.low, "interval_high": interval and interval.high}


def _cell(name: str, value: Any) -> str:
    if value is None:
        return NO_SHARE
    if isinstance(value, Interval):
        return f"{100 * value.low:.1f} to {100 * value.high:.1f}"
    if isinstance(value, float):
        return f"{100 * value if name in SHARES else value:.1f}"
    return str(value)

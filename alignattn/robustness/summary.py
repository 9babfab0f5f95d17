"""Summaries of attacks: counts and shares of a run, and tables of several runs."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.intervals import wilson_interval
from alignattn.robustness.records import AttackRun, AttackSettings
from alignattn.utils.console import READABLE_WIDTH, split_tables
from alignattn.utils.files import write_csv, write_json, write_text

TABLE_NAME = "robustness"

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
"""Columns that order a table, and that each part of a wide one repeats."""


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
    records = run.records
    failed, succeeded, skipped = (
        sum(record.outcome == outcome for record in records) for outcome in ("failed", "succeeded", "skipped")
    )
    attacked = failed + succeeded
    errors = sum(record.error is not None for record in records)
    changed = [one.words_changed / one.words for one in records if one.outcome == "succeeded" and one.words]
    predicted = {record.original_prediction for record in records} - {None}
    constant = None
    if len(predicted) == 1 and len({record.label for record in records}) > 1:
        number, names = predicted.pop(), dict(enumerate(run.header.labels))
        constant = f"class {names[number]!r}" if number in names else f"class {number}"

    def share(count: int, total: int) -> float | None:
        return count / total if total else None

    return AttackSummary(
        settings=run.header.settings,
        versions=run.header.versions,
        rows_left_out=len(run.header.left_out),
        failed=failed,
        succeeded=succeeded,
        skipped=skipped,
        errors=errors,
        failed_share=share(failed, attacked),
        interval=wilson_interval(failed, attacked),
        failed_share_of_all=share(failed, attacked + skipped),
        accuracy_before=share(attacked, attacked + skipped - errors),
        accuracy_under_attack=share(failed, attacked + skipped - errors),
        mean_queries=share(sum(record.queries for record in records if record.outcome != "skipped"), attacked),
        words_changed_share=statistics.fmean(changed) if changed else None,
        constant_prediction=constant,
    )


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

    def are_alike(settings: AttackSettings, other: AttackSettings) -> bool:
        # Two recipes share a table if the resources that both use are the same.
        common = settings.resources.keys() & other.resources.keys()
        names = ("num_examples", "max_length", "precision", "seed")
        return all(getattr(settings, name) == getattr(other, name) for name in names) and all(
            settings.resources[part] == other.resources[part] for part in common
        )

    tables: list[list[AttackSummary]] = []
    for summary in summaries:
        alike = (one for one in tables if all(are_alike(summary.settings, other.settings) for other in one))
        if (members := next(alike, None)) is None:
            tables.append(members := [])
        members.append(summary)
    for members in tables:
        orders = [list(dict.fromkeys(getattr(one.settings, key) for one in members)) for key in KEYS]
        members.sort(key=lambda one: [o.index(getattr(one.settings, key)) for o, key in zip(orders, KEYS, strict=True)])
    return [AttackTable(tuple(members)) for members in tables]


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
    lines = []
    for table in tables:
        for summary in table.summaries:
            line, interval = _line(summary), summary.interval
            for name in ("settings", "interval", "versions", "resources"):
                del line[name]
            line |= {"interval_low": interval and interval.low, "interval_high": interval and interval.high}
            lines.append(line | {"resources": table.caption})
    write_csv(rows, lines)
    return [text, content, rows]


def _line(summary: AttackSummary) -> dict[str, Any]:
    columns = "+".join(summary.settings.attack_columns)
    return {**vars(summary.settings), **vars(summary), "attack_columns": columns}


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Interval):
        return f"{100 * value.low:.1f} to {100 * value.high:.1f}"
    if isinstance(value, float):
        return f"{value if name == 'mean_queries' else 100 * value:.1f}"
    return str(value)

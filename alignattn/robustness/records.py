"""What is kept of attacks: a record of each example, and a header that says what was attacked."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from alignattn.support.bad_rows import numbers_without
from alignattn.support.errors import AlignAttnError

Outcome = Literal["failed", "succeeded", "skipped"]
"""The model withstood; it did not; there was nothing to attack, or the attack broke off with an error."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Shard:
    """A part of the rows, which are dealt round: row i goes to shard i mod `count` + 1.

    Attributes:
        number: which, from 1.
        count: how many there are.

    Raises:
        AlignAttnError: if there is no such shard.
    """

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise AlignAttnError(f"there is no shard {self}: give one from 1/{self.count} to {self.count}/{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `3/8`.

        Raises:
            AlignAttnError: if it is no shard.
        """
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and int(count) > 0):
            raise AlignAttnError(f"{text!r} is no shard: give its number and their count, such as 3/8")
        return cls(int(number), int(count))

    def deal(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows that are its own."""
        return rows[self.number - 1 :: self.count]


WHOLE = Shard()
"""All rows."""


@dataclass(frozen=True)
class AttackSettings:
    """What makes records comparable: records of other settings are never continued, merged or counted together.

    Attributes:
        run: the attacked model in words; where its folder lies makes no difference.
        model: what tells it from others: the start of its SHA-256, or its Hub id.
        task: the task's name.
        split: the split that the rows are of.
        attention: the preset's name.
        recipe: the attack's name.
        attack_columns: the columns that may be changed.
        max_length: the most tokens that the model reads of a row.
        seed: of the attacks.
        num_examples: how many examples were asked for.
        precision: "float32" or "float16", in which the models computed.
        resources: what the recipe's parts were made of, by part.
    """

    run: str = field(compare=False)
    model: str
    task: str
    split: str
    attention: str
    recipe: str
    attack_columns: tuple[str, ...]
    max_length: int
    seed: int
    num_examples: int
    precision: str
    resources: Mapping[str, str]


@dataclass(frozen=True)
class AttackHeader:
    """What stands beside a file of records.

    Attributes:
        settings: of the attacks.
        shard: the part of the rows that the file is of.
        rows: how many rows all shards together walk through, the first of those there are.
        rows_available: how many there are.
        left_out: the numbers of the split's rows that cannot be used and are not among them, from 0.
        rows_digest: SHA-256 of the numbers, texts and labels of those there are.
        versions: of the packages when the header was written, by name; headers that differ in them alone are equal.
    """

    settings: AttackSettings
    shard: Shard
    rows: int
    rows_available: int
    left_out: tuple[int, ...]
    rows_digest: str
    versions: Mapping[str, str] = field(compare=False)

    @property
    def usable_rows(self) -> Sequence[int]:
        """The number in the split, from 0, of each row there is."""
        return list(itertools.islice(numbers_without(self.left_out), self.rows_available))

    @property
    def row_numbers(self) -> Sequence[int]:
        """Those of the records of the finished file, in order."""
        return self.shard.deal(self.usable_rows[: self.rows])

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Return the header that `dataclasses.asdict` made `content` of.

        Raises:
            ValueError: if it is not that.
        """
        _check_values(content, _HEADER_VALUES)
        settings, shard = content["settings"], content["shard"]
        _check_values(settings, _SETTINGS_VALUES)
        _check_values(shard, _SHARD_VALUES)
        objects = {
            "settings": AttackSettings(**settings | {"attack_columns": tuple(settings["attack_columns"])}),
            "shard": Shard(**shard),
            "left_out": tuple(content["left_out"]),
        }
        return cls(**content | objects)


@dataclass(frozen=True)
class AttackRecord:
    """One attacked example, one JSON line.

    Attributes:
        index: the row in the split, from 0.
        recipe: the attack's name.
        outcome: one of `OUTCOMES`.
        label: the right class.
        original: the texts by column.
        perturbed: the attack's last texts by column; None where it was skipped.
        original_scores: `[C]` probabilities of the original; empty where the model never saw it.
        perturbed_scores: `[C]` probabilities of `perturbed`; None where it was skipped.
        queries: texts that the attack had the model score.
        words: how many the original has in all columns, as TextAttack counts them.
        words_changed: the fewest insertions, deletions and replacements of words that make `perturbed` of `original`.
        seed: of the random numbers of this example.
        error: what broke the attack off; None where nothing did.
    """

    index: int
    recipe: str
    outcome: Outcome
    label: int
    original: Mapping[str, str]
    perturbed: Mapping[str, str] | None
    original_scores: Sequence[float]
    perturbed_scores: Sequence[float] | None
    queries: int
    words: int
    words_changed: int
    seed: int
    error: str | None = None

    @property
    def original_prediction(self) -> int | None:
        """The class with the highest score, of several the first; None without scores."""
        return _argmax(self.original_scores)

    @property
    def perturbed_prediction(self) -> int | None:
        """The same of `perturbed`."""
        return _argmax(self.perturbed_scores)

    def to_line(self) -> str:
        """Return the record as one line of JSON, line end included."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Read what `to_line` wrote.

        Raises:
            ValueError: if it is not what `to_line` writes.
        """
        content = json.loads(line)
        _check_values(content, _RECORD_VALUES)
        return cls(**content)


@dataclass(frozen=True)
class AttackRun:
    """A file of records and its header.

    Attributes:
        path: of the file.
        header: what it is of.
        records: in the order in which they were written, that of the rows.
    """

    path: Path
    header: AttackHeader
    records: tuple[AttackRecord, ...]

    @property
    def is_finished(self) -> bool:
        """True where no row is missing."""
        return len(self.records) == len(self.header.row_numbers)


def _argmax(scores: Sequence[float] | None) -> int | None:
    return max(range(len(scores)), key=scores.__getitem__) if scores else None


def _check_values(content: Any, checks: Mapping[str, Callable[[Any], bool]]) -> None:
    """Check that `content` is an object of the names and values that `checks` tells.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(content, dict) or content.keys() != checks.keys():
        raise ValueError(f"expected an object of {', '.join(checks)}")
    for name, is_good in checks.items():
        if not is_good(content[name]):
            raise ValueError(f"{name} is {content[name]!r}")


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list_of(is_good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_good, value))


def _or_none(is_good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_good(value)


_RECORD_VALUES: Mapping[str, Callable[[Any], bool]] = {
    "index": _is_int,
    "recipe": _is_text,
    "outcome": OUTCOMES.__contains__,
    "label": _is_int,
    "original": _is_texts,
    "perturbed": _or_none(_is_texts),
    "original_scores": _is_list_of(_is_float),
    "perturbed_scores": _or_none(_is_list_of(_is_float)),
    "queries": _is_int,
    "words": _is_int,
    "words_changed": _is_int,
    "seed": _is_int,
    "error": _or_none(_is_text),
}
"""What a value of a line must be, by name."""

_SHARD_VALUES: Mapping[str, Callable[[Any], bool]] = {"number": _is_int, "count": _is_int}

_SETTINGS_VALUES: Mapping[str, Callable[[Any], bool]] = {
    "run": _is_text,
    "model": _is_text,
    "task": _is_text,
    "split": _is_text,
    "attention": _is_text,
    "recipe": _is_text,
    "attack_columns": _is_list_of(_is_text),
    "max_length": _is_int,
    "seed": _is_int,
    "num_examples": _is_int,
    "precision": _is_text,
    "resources": _is_texts,
}

_HEADER_VALUES: Mapping[str, Callable[[Any], bool]] = {
    "settings": _is_object,
    "shard": _is_object,
    "rows": _is_int,
    "rows_available": _is_int,
    "left_out": _is_list_of(_is_int),
    "rows_digest": _is_text,
    "versions": _is_texts,
}

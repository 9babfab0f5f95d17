"""What is kept of attacks: a record of each example, and a header that says what was attacked."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError

from alignattn.robustness.recipe_names import Outcome
from alignattn.utils.bad_rows import numbers_without
from alignattn.utils.json_records import parse_json
from alignattn.utils.shard import Shard

NO_VALUE = ("missing", "unexpected_keyword_argument")
"""pydantic's errors in which it is a name that is wrong, and no value."""

R = TypeVar("R")


@dataclass(frozen=True)
class AttackSettings:
    """What makes records comparable: records of other settings are never continued, merged or counted together.

    Attributes:
        run: the attacked model in words; where its folder lies makes no difference.
        model: what tells it from others: the start of its SHA-256, or its Hub id.
        task: the task's name.
        split: the split that the rows are of.
        attention: the preset's name, or that of a model that has none: what it is, `model` tells.
        recipe: the attack's name.
        attack_columns: the columns that may be changed.
        max_length: the most tokens that the model reads of a row.
        seed: of the attacks.
        num_examples: how many examples were asked for.
        precision: "float32" or "float16", in which the models computed.
        resources: what the recipe's parts were made of, by part.
    """

    run: StrictStr = field(compare=False)
    model: StrictStr
    task: StrictStr
    split: StrictStr
    attention: StrictStr = field(compare=False)
    recipe: StrictStr
    attack_columns: tuple[StrictStr, ...]
    max_length: StrictInt
    seed: StrictInt
    num_examples: StrictInt
    precision: StrictStr
    resources: Mapping[StrictStr, StrictStr]


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
        labels: the names of the classes, in order.
    """

    settings: AttackSettings
    shard: Shard
    rows: StrictInt
    rows_available: StrictInt
    left_out: tuple[StrictInt, ...]
    rows_digest: StrictStr
    versions: Mapping[StrictStr, StrictStr] = field(compare=False)
    labels: tuple[StrictStr, ...] = field(compare=False)

    @property
    def usable_rows(self) -> Sequence[int]:
        """The number in the split, from 0, of each row there is."""
        return list(itertools.islice(numbers_without(self.left_out), self.rows_available))

    @property
    def row_numbers(self) -> Sequence[int]:
        """Those of the records of the finished file, in order."""
        return self.shard.deal(self.usable_rows[: self.rows])

    @classmethod
    def from_dict(cls, content: Any) -> "AttackHeader":
        """Return the header that `dataclasses.asdict` made `content` of."""
        return _validated(_HEADER, content)


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

    index: StrictInt
    recipe: StrictStr
    outcome: Outcome
    label: StrictInt
    original: Mapping[StrictStr, StrictStr]
    perturbed: Mapping[StrictStr, StrictStr] | None
    original_scores: Sequence[StrictFloat]
    perturbed_scores: Sequence[StrictFloat] | None
    queries: StrictInt
    words: StrictInt
    words_changed: StrictInt
    seed: StrictInt
    error: StrictStr | None = None

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
    def from_line(cls, line: str) -> "AttackRecord":
        """Read what `to_line` wrote."""
        return _validated(_RECORD, parse_json(line))


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


def _validated(adapter: TypeAdapter[R], content: Any) -> R:
    """The record that `dataclasses.asdict` made `content` of, or a ValueError that names the first wrong value."""
    try:
        # Not read as JSON by pydantic, which refuses the half of a surrogate pair, as a strange text may hold it.
        return adapter.validate_python(content, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        value = "" if first["type"] in NO_VALUE else f" is {first['input']!r}"
        raise ValueError(f"{place}{value}: {first['msg']}") from error


_HEADER: TypeAdapter[AttackHeader] = TypeAdapter(AttackHeader)
_RECORD: TypeAdapter[AttackRecord] = TypeAdapter(AttackRecord)

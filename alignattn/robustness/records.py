"""Records of attacks: a file with one JSON line per example, and a header file."""

import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError

from alignattn.robustness.recipe_names import Outcome
from alignattn.utils.bad_rows import numbers_without
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import check_file, write_json
from alignattn.utils.json_records import parse_json
from alignattn.utils.shard import Shard

RECORDS_SUFFIX = ".jsonl"
NAME_ERRORS = ("missing", "unexpected_keyword_argument")
"""pydantic's errors about names instead of values."""

R = TypeVar("R")


@dataclass(frozen=True)
class AttackSettings:
    """Settings of records; records with different settings are never continued, merged or counted together.

    Attributes:
        run: the attacked model in words; the location of its folder does not count.
        model: the model's identity: the start of its SHA-256, or its Hub id.
        task: the task's name.
        split: the split of the rows.
        attention: the preset's name, or the model's if it has no attention; `model` identifies it.
        recipe: the attack's name.
        attack_columns: the columns that may change.
        max_length: the maximum of tokens per row.
        seed: the seed of the attacks.
        num_examples: the number of examples to attack.
        precision: "float32" or "float16", the precision of the models.
        resources: the resource of each part of the recipe.
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
    """The header of a file of records.

    Attributes:
        settings: the settings of the attacks.
        shard: the part of the rows in this file.
        rows: the number of rows that all shards together attack or skip, the first of those available.
        rows_available: the number of usable rows of the split.
        left_out: the numbers from 0 of the split's unusable rows.
        rows_digest: SHA-256 of the numbers, texts and labels of the usable rows.
        versions: the versions of the packages, by name; headers with other versions are equal.
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
        """The numbers of the usable rows in the split, from 0."""
        return list(itertools.islice(numbers_without(self.left_out), self.rows_available))

    @property
    def row_numbers(self) -> Sequence[int]:
        """The numbers of the rows of the finished file, in order."""
        return self.shard.deal(self.usable_rows[: self.rows])

    @classmethod
    def from_dict(cls, content: Any) -> "AttackHeader":
        """Return the header whose `dataclasses.asdict` is `content`; raises ValueError for other content."""
        return _validated(_HEADER, content)


@dataclass(frozen=True)
class AttackRecord:
    """One attacked example, one JSON line.

    Attributes:
        index: the row in the split, from 0.
        recipe: the attack's name.
        outcome: one of `OUTCOMES`.
        label: the correct class.
        original: the texts by column.
        perturbed: the attack's last texts by column; None if the example was skipped.
        original_scores: `[C]` probabilities of the original; empty if the model could not read it.
        perturbed_scores: `[C]` probabilities of `perturbed`; None if the example was skipped.
        queries: texts that the model scored.
        words: the number of words of the original in all columns, as TextAttack counts them.
        words_changed: the fewest insertions, deletions and replacements of words from `original` to `perturbed`.
        seed: the seed of this example.
        error: what aborted the attack, or None.
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
        """The class with the highest score, the first of equals; None without scores."""
        scores = self.original_scores
        return max(range(len(scores)), key=scores.__getitem__) if scores else None

    def to_line(self) -> str:
        """Return the record as one line of JSON with its end."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "AttackRecord":
        """Read what `to_line` wrote; raises ValueError."""
        return _validated(_RECORD, parse_json(line))


@dataclass(frozen=True)
class AttackRun:
    """A file of records and its header.

    Attributes:
        path: the path of the file.
        header: the header of the file.
        records: the records in the order of the rows.
    """

    path: Path
    header: AttackHeader
    records: tuple[AttackRecord, ...]

    @property
    def is_finished(self) -> bool:
        """Whether no row is missing."""
        return len(self.records) == len(self.header.row_numbers)


def header_path(records_path: Path) -> Path:
    """Return the path of the header of a file of records: next to it, ending in `.json`."""
    return records_path.with_suffix(".json")


def write_header(records_path: Path, header: AttackHeader) -> None:
    """Write the header of a file of records atomically."""
    write_json(header_path(records_path), asdict(header))


def read_header(records_path: Path) -> AttackHeader:
    """Read the header of a file of records."""
    path = header_path(records_path)
    if not path.is_file():
        raise AlignAttnError(f"{path}, the header of {records_path.name}, is missing: an attack needs both files")
    try:
        return AttackHeader.from_dict(parse_json(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise AlignAttnError(
            f"{path} is damaged or of another version ({one_line(error)}): move both files away to run again"
        ) from error


def read_run(records_path: Path, *, truncate: bool = False) -> AttackRun:
    """Read a file of records and its header.

    Args:
        records_path: the file, which may be missing. A last line torn by a kill is left out.
        truncate: whether to cut that line off, so that the next record starts a line.
    """
    header = read_header(records_path)
    records, torn = _read_records(records_path, "move the file away to run again")
    settings, turns = header.settings, header.row_numbers
    for number, (record, row) in enumerate(zip(records, turns, strict=False), 1):
        if (record.index, record.recipe, record.seed) != (row, settings.recipe, settings.seed + row):
            raise AlignAttnError(
                f"{records_path}, line {number} belongs to {record.recipe} on row {record.index} with seed "
                f"{record.seed}, not to {settings.recipe} on row {row} with seed {settings.seed + row}: move the "
                "file away to run again"
            )
    if len(records) > len(turns):
        raise AlignAttnError(f"{records_path} has {len(records)} records for {len(turns)} rows: move it away")
    if torn and truncate:
        with records_path.open("r+b") as file:
            file.truncate(records_path.stat().st_size - torn)
            os.fsync(file.fileno())
    return AttackRun(records_path, header, tuple(records))


def read_examples(path: Path) -> list[AttackRecord]:
    """Return the examples of a file in its order.

    A last line without its end is being written, or was torn by a kill; it is left out, and standard error says so.
    """
    advice = "give the JSON lines that an attack wrote"
    check_file(path, advice)
    records, torn = _read_records(path, advice)
    if torn:
        print(f"the last line of {path} is incomplete and left out", file=sys.stderr)
    if not records:
        raise AlignAttnError(f"{path} has no example yet: let the attack continue")
    return records


def _read_records(path: Path, advice: str) -> tuple[list[AttackRecord], int]:
    """Return the records of the whole lines of a file, and the number of bytes of a last line without its end."""
    content = path.read_bytes() if path.is_file() else b""
    length = content.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(content[:length].splitlines(), 1):
        try:
            records.append(AttackRecord.from_line(line.decode("utf-8")))
        except ValueError as error:
            reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else one_line(error)
            raise AlignAttnError(f"{path}, line {number} is not an attacked example ({reason}): {advice}") from error
    return records, len(content) - length


def _validated(adapter: TypeAdapter[R], content: Any) -> R:
    """Return the record whose `dataclasses.asdict` is `content`; a ValueError names the first wrong value."""
    try:
        # Not parsed as JSON by pydantic, which rejects the lone surrogates that a text may contain.
        return adapter.validate_python(content, extra="forbid")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        value = "" if first["type"] in NAME_ERRORS else f" is {first['input']!r}"
        raise ValueError(f"{place}{value}: {first['msg']}") from error


_HEADER: TypeAdapter[AttackHeader] = TypeAdapter(AttackHeader)
_RECORD: TypeAdapter[AttackRecord] = TypeAdapter(AttackRecord)

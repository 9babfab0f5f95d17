"""Records of attacks: a file with one JSON line per example, and a header file next to it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alignattn.robustness import Outcome
from alignattn.utils.errors import AlignAttnError, numbers_without, one_line
from alignattn.utils.files import parse_json, read_record

RECORDS_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class AttackSettings:
    """Settings of records; records with different settings are never continued or counted together.

    Attributes:
        run: the attacked model in words; the location of its folder does not count.
        model: the model's identity: the start of its SHA-256, or its Hub id and commit.
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

    run: str = field(compare=False)
    model: str
    task: str
    split: str
    attention: str = field(compare=False)
    recipe: str
    attack_columns: tuple[str, ...]
    max_length: int
    seed: int
    num_examples: int
    precision: str
    resources: Mapping[str, str]


@dataclass(frozen=True)
class AttackHeader:
    """The header of a file of records.

    Attributes:
        settings: the settings of the attacks.
        rows_available: the number of usable rows of the split.
        left_out: the numbers from 0 of the split's unusable rows.
        rows_digest: SHA-256 of the numbers, texts and labels of the usable rows.
        versions: the versions of the packages, by name; headers with other versions are equal.
        labels: the names of the classes, in order.
    """

    settings: AttackSettings
    rows_available: int
    left_out: tuple[int, ...]
    rows_digest: str
    versions: Mapping[str, str] = field(compare=False)
    labels: tuple[str, ...] = field(compare=False)

    @property
    def usable_rows(self) -> Sequence[int]:
        """The numbers of the usable rows in the split, from 0."""
        return list(itertools.islice(numbers_without(self.left_out), self.rows_available))


@dataclass(frozen=True)
class AttackRecord:
    """One attacked example, one JSON line.

    Attributes:
        index: the row in the split, from 0.
        recipe: the attack's name.
        outcome: the attack failed or succeeded, or the row was skipped.
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
        """The class with the highest score, the first of equals; None without scores."""
        scores = self.original_scores
        return max(range(len(scores)), key=scores.__getitem__) if scores else None

    @property
    def is_example(self) -> bool:
        """Whether the model classified the original correctly, so that it counts as an attacked example."""
        return self.original_prediction == self.label


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
    def num_examples(self) -> int:
        """The number of attacked examples so far."""
        return sum(record.is_example for record in self.records)

    @property
    def is_finished(self) -> bool:
        """Whether all examples are attacked, or all rows are used up."""
        return self.num_examples >= self.header.settings.num_examples or len(self.records) == self.header.rows_available


def header_path(records_path: Path) -> Path:
    """Return the path of the header of a file of records: next to it, ending in `.json`."""
    return records_path.with_suffix(".json")


def read_header(records_path: Path) -> AttackHeader:
    """Read the header of a file of records."""
    path = header_path(records_path)
    header = read_record(path, AttackHeader, "attack")
    if header is None:
        raise AlignAttnError(f"{path}, the header of {records_path.name}, is missing: an attack needs both files")
    return header


def read_run(records_path: Path, *, truncate: bool = False) -> AttackRun:
    """Read a file of records and its header.

    Args:
        records_path: the file, which may be missing. A last line that a kill has damaged is left out.
        truncate: whether to cut that line off, so that the next record starts a line.
    """
    header = read_header(records_path)
    lines = records_path.read_bytes().splitlines(keepends=True) if records_path.is_file() else []
    records: list[AttackRecord] = []
    for number, (line, row) in enumerate(itertools.zip_longest(lines, header.usable_rows[: len(lines)]), 1):
        try:
            content = parse_json(line)
        except ValueError:
            content = None
        if number == len(lines) and (content is None or not line.endswith(b"\n")):
            if truncate:
                with records_path.open("r+b") as file:
                    file.truncate(sum(map(len, lines[:-1])))
            break
        try:
            record = AttackRecord(**content)
        except TypeError as error:
            raise AlignAttnError(
                f"{records_path}, line {number} is not an attacked example ({one_line(error)}): move the file away "
                "to run again"
            ) from error
        if (record.index, record.recipe) != (row, header.settings.recipe):
            raise AlignAttnError(
                f"{records_path}, line {number} belongs to {record.recipe} on row {record.index}, not to "
                f"{header.settings.recipe} on row {row}: move the file away to run again"
            )
        records.append(record)
    return AttackRun(records_path, header, tuple(records))

"""Bad rows: refused with their numbers, or listed and skipped (`--skip_bad_rows`)."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alignattn.utils.errors import AlignAttnError, plural

MAX_NAMED = 3
"""Bad rows that a refusal names."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        row: its number in the file, from 1; the header of a CSV file does not count.
        problem: what is wrong with it.
        line: the line of the file where it begins, from 1, if the reader knows it.
    """

    row: int
    problem: str
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON files contain them, without an unknown line."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """Return the line, the row and its problem in words."""
        return f"{'' if self.line is None else f'line {self.line}, '}row {self.row}: {self.problem}"


def list_bad_rows(
    problems: Mapping[int, str], origin: str, num_rows: int, *, skip: bool | None, lines: Sequence[int] = ()
) -> list[BadRow]:
    """Return the bad rows to skip, in order.

    Args:
        problems: the problem of each bad row, by row index from 0.
        origin: the file or split, for the message.
        num_rows: number of rows, good and bad.
        skip: `--skip_bad_rows`; None if the command has no such option.
        lines: the line of the file where each row begins, from 1; empty if it is unknown.

    Raises:
        AlignAttnError: if a row is bad and `skip` is not set, or if every row is bad.
    """
    bad = [
        BadRow(index + 1, problem, lines[index] if len(lines) else None) for index, problem in sorted(problems.items())
    ]
    if not bad:
        return []
    if not skip:
        named = "; ".join(map(str, bad[:MAX_NAMED]))
        more = f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
        advice = ", or leave bad rows out with --skip_bad_rows" if skip is not None else ""
        raise AlignAttnError(
            f"{origin}, {named}{more} ({len(bad)} bad of {plural(num_rows, 'row')}); "
            f"correct {'it' if len(bad) == 1 else 'them'}{advice}"
        )
    if len(bad) == num_rows:
        raise AlignAttnError(f"{origin} has no usable row; the first: {bad[0].problem}; correct it")
    return bad


def as_json(bad_rows: Mapping[str, Sequence[BadRow]]) -> dict[str, list[dict[str, Any]]]:
    """Return the bad rows of each split as `results.json` contains them."""
    return {split: [bad.to_dict() for bad in listed] for split, listed in bad_rows.items()}


def numbers_without(left_out: Iterable[int]) -> Iterator[int]:
    """Yield 0, 1, 2, … without the skipped numbers, so that the other rows keep theirs."""
    missing = frozenset(left_out)
    return (number for number in itertools.count() if number not in missing)

"""Rows that cannot be used: named and refused, or counted, listed and left out."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        row: its number in the file, from 1; a CSV file's header is not a row.
        problem: what is wrong with it.
    """

    row: int
    problem: str


def list_bad_rows(problems: Mapping[int, str], origin: str, num_rows: int, *, skip: bool | None) -> list[BadRow]:
    """Return the bad rows in their order, if they are to be left out.

    Args:
        problems: what is wrong with a row, by its index from 0.
        origin: the file or the split of a data set that the rows are of, for the message.
        num_rows: how many rows there are, good and bad.
        skip: leave bad rows out, as the option --skip_bad_rows asks; None where the command has no such option.
    """
    bad = [BadRow(index + 1, problem) for index, problem in sorted(problems.items())]
    if not bad:
        return []
    first = bad[0]
    if not skip:
        advice = ", or leave bad rows out with --skip_bad_rows" if skip is not None else ""
        raise AlignAttnError(
            f"{origin}, row {first.row}: {first.problem} ({len(bad)} bad of {num_rows} rows); correct it{advice}"
        )
    if len(bad) == num_rows:
        raise AlignAttnError(f"{origin} has no good row, the first: {first.problem}; correct it")
    return bad


def as_json(bad_rows: Mapping[str, Sequence[BadRow]]) -> dict[str, list[dict[str, Any]]]:
    """Return the bad rows of splits as `results.json` lists them."""
    return {split: [asdict(bad) for bad in listed] for split, listed in bad_rows.items()}


def numbers_without(left_out: Iterable[int]) -> Iterator[int]:
    """Yield 0, 1, 2 and so on without end, but for those left out: the rows that stay keep their numbers."""
    missing = frozenset(left_out)
    return (number for number in itertools.count() if number not in missing)

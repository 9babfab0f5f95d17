"""Bad rows: refused with their number, or listed and skipped (`--skip_bad_rows`)."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        row: its number in the file, from 1; the header of a CSV file does not count.
        problem: what is wrong with it.
    """

    row: int
    problem: str


def list_bad_rows(problems: Mapping[int, str], origin: str, num_rows: int, *, skip: bool | None) -> list[BadRow]:
    """Return the bad rows to skip, in order.

    Args:
        problems: the problem of each bad row, by row index from 0.
        origin: the file or split, for the message.
        num_rows: number of rows, good and bad.
        skip: `--skip_bad_rows`; None if the command has no such option.

    Raises:
        AlignAttnError: if a row is bad and `skip` is not set, or if every row is bad.
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
        raise AlignAttnError(f"{origin} has no usable row; the first: {first.problem}; correct it")
    return bad


def as_json(bad_rows: Mapping[str, Sequence[BadRow]]) -> dict[str, list[dict[str, Any]]]:
    """Return the bad rows of each split as `results.json` contains them."""
    return {split: [asdict(bad) for bad in listed] for split, listed in bad_rows.items()}


def numbers_without(left_out: Iterable[int]) -> Iterator[int]:
    """Yield 0, 1, 2, … without the skipped numbers, so that the other rows keep theirs."""
    missing = frozenset(left_out)
    return (number for number in itertools.count() if number not in missing)

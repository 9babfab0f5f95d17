"""A part of rows or files, as options name it: imports nothing heavy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Shard:
    """A part of the rows, which are dealt round: row i goes to shard i mod `count` + 1.

    Attributes:
        number: which, from 1.
        count: how many there are.
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
        """Read `3/8`."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and int(count) > 0):
            raise AlignAttnError(f"{text!r} is no shard: give its number and their count, such as 3/8")
        return cls(int(number), int(count))

    def deal(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows that are its own."""
        return rows[self.number - 1 :: self.count]


WHOLE = Shard()
"""All of them."""

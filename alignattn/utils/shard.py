"""A shard of rows or files, as in `--shard 3/8`; imports nothing heavy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Shard:
    """One of `count` shards of the rows, numbered from 1; row i belongs to shard i mod `count` + 1."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise AlignAttnError(f"there is no shard {self}: give one from 1/{self.count} to {self.count}/{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `3/8`."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and int(count) > 0):
            raise AlignAttnError(f"{text!r} is not a shard: give number/count, such as 3/8")
        return cls(int(number), int(count))

    def deal(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of this shard."""
        return rows[self.number - 1 :: self.count]


WHOLE = Shard()
"""All rows."""

"""How messages show what a user gave: short, whatever it is."""

from collections.abc import Sequence
from typing import Any

_LISTED_NAMES = 10
_SHOWN_CHARACTERS = 40


def shown(value: Any) -> str:
    """A value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def listing(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")

"""Texts as the tokens that are read or written, and back."""

import unicodedata
from collections.abc import Sequence

from alignattn.tasks.sequences.task import Units

PADDING, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[BOS]", "[EOS]"
SPECIAL = (PADDING, UNKNOWN, BEGIN, END)
"""The tokens of no text, by their numbers."""


def units_of(text: str, units: Units) -> list[str]:
    """Return the units of a text, composed (NFC): its characters, or what stands between its blanks."""
    composed = unicodedata.normalize("NFC", text)
    return list(composed) if units == "characters" else composed.split()


def text_of(parts: Sequence[str], units: Units) -> str:
    """Return the text of units."""
    return ("" if units == "characters" else " ").join(parts)

"""Characters that the pictures' own font lacks: drawn in other fonts of the machine, or told in one line."""

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

FONT = "DejaVu Sans"
"""Of all pictures: matplotlib brings it along."""

MISSING_GLYPH = re.compile(r"Glyph (\d+) .* missing from")
"""How matplotlib's warning of a character begins that it draws as a box."""

BOXES = "Last Resort"
"""How the name of a font begins that has a box for every character."""

UPRIGHT, REGULAR_WEIGHTS = "normal", (400, "normal", "regular", "book")
"""Of a font's face, as matplotlib names them."""


@contextmanager
def missing_characters() -> Iterator[list[str]]:
    """Yield a list that holds, after the context, the characters drawn as boxes in it, which matplotlib warns of.

    Its other warnings are given on.
    """
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    for warning in caught:
        glyph = MISSING_GLYPH.match(str(warning.message))
        if glyph is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif chr(int(glyph[1])) not in found:
            found.append(chr(int(glyph[1])))


def fonts_with(characters: Collection[str]) -> list[str]:
    """Return names of fonts on this machine that together have as many of some characters as any do.

    Args:
        characters: one each.
    """
    wanted, names = {ord(character) for character in characters}, []
    while wanted:
        has = {name: wanted & _characters_of(path) for name, path in _faces()}
        # The first of those that have most: the order is the same on each machine.
        name = max(sorted(has), key=lambda name: len(has[name]), default="")
        if not has.get(name):
            break
        names.append(name)
        wanted -= has[name]
    return names


@contextmanager
def in_fonts(figure: Any, names: Sequence[str]) -> Iterator[None]:
    """While the context lasts, have each character of a drawn `matplotlib` figure in the first font that has it."""
    from matplotlib.text import Text

    # A list under the name "sans-serif" would not do: of that, matplotlib takes the first font alone.
    before = [(text, text.get_fontfamily()) for text in figure.findobj(Text)]
    for text, _ in before:
        text.set_fontfamily(list(names))
    try:
        yield
    finally:
        for text, families in before:
            text.set_fontfamily(families)


@cache
def _faces() -> Sequence[tuple[str, str]]:
    """The name and file of the upright face of each font."""
    from matplotlib import font_manager

    faces = {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == UPRIGHT and entry.weight in REGULAR_WEIGHTS and not entry.name.startswith(BOXES)
    }
    return list(faces.items())


@cache
def _characters_of(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(path).get_charmap())

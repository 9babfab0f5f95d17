"""Common parts of all pictures: colours, sizes, legends, and writing to a file."""

import logging
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from alignattn.utils.errors import install_extra, listing
from alignattn.utils.files import replacing

logger = logging.getLogger(__name__)

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
"""Okabe and Ito's palette for the colour-blind, without yellow, which is too pale on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HEAT_COLOURS = "cividis"
"""A colour map with even steps of lightness, also for the colour-blind."""
DIFFERENCE_COLOURS = "RdBu_r"
"""A colour map with white at no difference, red above and blue below."""
DOTS_PER_INCH = 150
PANEL_WIDTH = 4.2
"""Sizes are in inches here and below."""
PANEL_HEIGHT = 3.6
TITLE_CHARACTERS = 11
"""Characters per inch of a title; longer titles are wrapped."""
LEGEND_INCHES = 1.4
"""Minimum width of an entry of the legend."""
HANDLE_INCHES = 0.5
LEGEND_CHARACTERS = 13
"""Characters per inch of a name in the legend, next to its handle."""

LEGEND_MARKER_SCALE = 1.5

FONT = "DejaVu Sans"
"""Font of all pictures; matplotlib contains it."""
REGULAR_WEIGHTS = (400, "normal", "regular", "book")
"""Attributes of a font face, by matplotlib's names."""
BOXES = "Last Resort"
"""Prefix of the names of fonts that draw a box for every character."""

FILE_SETTINGS: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "alignattn",
    "font.sans-serif": [FONT],
}
"""Settings that keep text as text, which is small and searchable, and make equal pictures equal files."""


@cache
def can_draw() -> bool:
    """Return whether matplotlib is installed; if not, log once how to install it."""
    if find_spec("matplotlib") is not None:
        return True
    logger.warning("matplotlib is not installed, so pictures are left out: %s", install_extra("plots"))
    return False


def new_figure(
    rows: int, columns: int, width: float, height: float, title: str, **grid: Any
) -> tuple[Any, Sequence[Any]]:
    """Return a `matplotlib` figure of `width` × `height` inches with a title, and its axes, row by row."""
    # A figure without pyplot draws with Agg, needs no display and leaves no state behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(wrapped(title, width), fontsize="medium")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).flatten())


def wrapped(title: str, inches: float) -> str:
    """Return a title in lines that fit into a width."""
    return "\n".join(textwrap.fill(line, int(inches * TITLE_CHARACTERS)) for line in title.splitlines())


def finished(figure: Any, all_axes: Sequence[Any]) -> Any:
    """Hide needless spines, put the legend of the first axes, if any, below the picture, and return the figure."""
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    if handles:
        inches = max(LEGEND_INCHES, HANDLE_INCHES + max(map(len, labels)) / LEGEND_CHARACTERS)
        abreast = max(1, min(len(labels), int(figure.get_figwidth() / inches)))
        figure.legend(
            handles, labels, loc="outside lower center", ncols=abreast, frameon=False, markerscale=LEGEND_MARKER_SCALE
        )
    return figure


def write_figure(figure: Any, path: Path) -> None:
    """Write a picture atomically, in the format of the path's suffix.

    Characters that the text font lacks are drawn in other fonts of the machine. An SVG file keeps text as text, so its
    viewer chooses the fonts.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    for text in texts:
        # A name or token that contains dollar signs is not a formula.
        text.set_parse_math(False)
        text.set_fontfamily("sans-serif")
    is_svg = path.name.endswith(".svg")
    characters = set() if is_svg else {ord(one) for text in texts for one in text.get_text() if one.isprintable()}
    if lacking := characters - _characters_of(_faces()[FONT]):
        others = [name for name, face in sorted(_faces().items()) if lacking & _characters_of(face)]
        for text in texts:
            text.set_fontfamily([FONT, *others])
        lacking -= {one for name in others for one in _characters_of(_faces()[name])}
    with replacing(path) as temporary, rc_context(FILE_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, dpi=DOTS_PER_INCH)
    if lacking:
        logger.warning(
            "no font on this machine has %s: boxes in the picture; install one (Noto Sans CJK, say), or write an .svg",
            listing(sorted(map(chr, lacking))),
        )


@cache
def _faces() -> Mapping[str, str]:
    """Return the file of the upright face of each font, by name."""
    from matplotlib import font_manager

    return {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and entry.weight in REGULAR_WEIGHTS and not entry.name.startswith(BOXES)
    }


@cache
def _characters_of(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(path).get_charmap())


def cycled(choices: Sequence[str], index: int) -> str:
    """Return the choice at an index; after the last choice, the first follows again."""
    return choices[index % len(choices)]

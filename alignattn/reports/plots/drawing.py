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
PANEL_WIDTH, PANEL_HEIGHT = 4.2, 3.6
"""Sizes are in inches."""
FONT = "DejaVu Sans"
"""Font of all pictures; matplotlib contains it."""


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
    """Return a title in lines that fit into a width, at 11 characters an inch."""
    return "\n".join(textwrap.fill(line, int(inches * 11)) for line in title.splitlines())


def finished(figure: Any, all_axes: Sequence[Any]) -> Any:
    """Hide needless spines, put the legend of the first axes, if any, below the picture, and return the figure."""
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    if handles:
        # An entry is a handle of half an inch and a name of 13 characters an inch.
        inches = max(1.4, 0.5 + max(map(len, labels)) / 13)
        abreast = max(1, min(len(labels), int(figure.get_figwidth() / inches)))
        figure.legend(handles, labels, loc="outside lower center", ncols=abreast, frameon=False, markerscale=1.5)
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
    # Text stays text, which is small and searchable, and equal pictures are equal files.
    settings: Any = {
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
        "svg.hashsalt": "alignattn",
        "font.sans-serif": [FONT],
    }
    with replacing(path) as temporary, rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(temporary, dpi=150)
    if lacking:
        logger.warning(
            "no font on this machine has %s: boxes in the picture; install one (Noto Sans CJK, say), or write an .svg",
            listing(sorted(map(chr, lacking))),
        )


@cache
def _faces() -> Mapping[str, str]:
    """Return the file of the upright face of each font, by name."""
    from matplotlib import font_manager

    # "Last Resort" fonts draw a box for every character.
    return {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
        and not entry.name.startswith("Last Resort")
    }


@cache
def _characters_of(path: str) -> frozenset[int]:
    from matplotlib.font_manager import get_font

    return frozenset(get_font(path).get_charmap())


def cycled(choices: Sequence[str], index: int) -> str:
    """Return the choice at an index; after the last choice, the first follows again."""
    return choices[index % len(choices)]

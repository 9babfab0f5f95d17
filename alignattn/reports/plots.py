"""Pictures of results, drawn from numbers by name with matplotlib; the suffix of the path sets the format."""

import logging
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

PANELS_ABREAST = 4
CELL_INCHES = 0.25
"""Size of a row and a column, unless the map would be larger or smaller than these."""
MIN_MAP_INCHES, MAX_MAP_INCHES = 2.4, 13.0
CHARACTER_INCHES = 0.09
"""Width of a character of a label."""
FRAME_INCHES = 1.2
"""Width of a colour bar and height of the titles."""


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
    """Hide needless spines, put a legend of all axes, if any, below the picture, and return the figure."""
    entries: dict[str, Any] = {}
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        # An entry is a handle of half an inch and a name of 13 characters an inch.
        inches = max(1.4, 0.5 + max(map(len, entries)) / 13)
        abreast = max(1, min(len(entries), int(figure.get_figwidth() / inches)))
        figure.legend(
            entries.values(), entries, loc="outside lower center", ncols=abreast, frameon=False, markerscale=1.5
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


@dataclass(frozen=True)
class PointPanel:
    """One axes of clouds.

    Attributes:
        title: title of the panel.
        series: points of each cloud, x and y, by the name in the legend.
    """

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def draw_points(panels: Sequence[PointPanel], *, x_label: str, y_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of clouds; panels are side by side, each on separate axes without ticks.

    Args:
        panels: one or more panels; series of one name have the same colour and marker in all of them.
        x_label: label of every x axis.
        y_label: label of every y axis.
        title: title of the whole picture.
    """
    figure, all_axes = new_figure(1, len(panels), 4.2 * len(panels), 5.1, title)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    for axes, panel in zip(all_axes, panels, strict=True):
        for name, points in panel.series.items():
            index = names.index(name)
            x, y = zip(*points, strict=True)
            # These markers are distinct even when small.
            style = {"color": COLOURS[index % len(COLOURS)], "marker": "o^DP"[index % 4]}
            axes.scatter(x, y, s=12, alpha=0.6, linewidths=0, label=name, **style)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(panel.title, fontsize="medium")
    return finished(figure, all_axes)


@dataclass(frozen=True)
class ReliabilityPanel:
    """One reliability diagram: bins equally wide from 0 to 1, with a strip of counts below.

    Attributes:
        title: title of the panel.
        confidence: mean confidence of each bin, a fraction; ignored if the bin is empty.
        accuracy: accuracy of each bin, a fraction; ignored if the bin is empty.
        counts: number of rows of each bin.
    """

    title: str
    confidence: Sequence[float]
    accuracy: Sequence[float]
    counts: Sequence[int]


def draw_reliability(panels: Sequence[ReliabilityPanel], *, title: str) -> Any:
    """Return the `matplotlib` figure of reliability diagrams side by side.

    A bar is the accuracy of a bin; the hatched part is the gap to its mean confidence.

    Args:
        panels: one or more panels.
        title: title of the whole picture.
    """
    figure, all_axes = new_figure(
        2, len(panels), 4.4 * len(panels), 5.4, title, sharex=True, sharey="row", height_ratios=(3, 1)
    )
    for panel, axes, strip in zip(panels, all_axes[: len(panels)], all_axes[len(panels) :], strict=True):
        num_bins = len(panel.counts)
        bins: dict[str, Any] = {"width": 1 / num_bins, "align": "edge"}
        occupied = [index for index in range(num_bins) if panel.counts[index]]
        lefts, accuracy = [index / num_bins for index in occupied], [panel.accuracy[index] for index in occupied]
        gaps = [panel.confidence[index] - panel.accuracy[index] for index in occupied]
        axes.bar(lefts, accuracy, color=COLOURS[0], edgecolor="white", label="accuracy", **bins)
        gap_style = {"facecolor": "none", "edgecolor": COLOURS[4], "hatch": "///"}
        axes.bar(lefts, gaps, bottom=accuracy, label="gap to mean confidence", **gap_style, **bins)
        axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect calibration")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_title(panel.title, fontsize="medium")
        every_left = [index / num_bins for index in range(num_bins)]
        bars = strip.bar(every_left, panel.counts, color="grey", edgecolor="white", **bins)
        # The printed counts of more bins would overlap.
        if num_bins <= 15:
            strip.bar_label(bars, [str(count or "") for count in panel.counts], fontsize="x-small", padding=1)
        strip.margins(y=0.25)
        strip.set_xlabel("confidence")
    all_axes[0].set_ylabel("accuracy")
    all_axes[len(panels)].set_ylabel("rows")
    return finished(figure, all_axes)


@dataclass(frozen=True)
class CurvePanel:
    """One axes of curves over a common x.

    Attributes:
        title: title of the panel.
        y_label: quantity and unit.
        series: the curves, points x and y, by the name of the run; some runs may have none.
    """

    title: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def draw_curves(
    panels: Sequence[CurvePanel],
    *,
    names: Sequence[str],
    x_label: str,
    title: str,
) -> Any:
    """Return the `matplotlib` figure of curves, three panels abreast.

    Args:
        panels: one or more panels.
        names: names of series, in the order of colours and markers; the legend shows them if there are several.
        x_label: quantity and unit.
        title: title of the whole picture.
    """
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    # The title and the legend need 0.6 inches.
    figure, all_axes = new_figure(rows, columns, PANEL_WIDTH * columns, PANEL_HEIGHT * rows + 0.6, title)
    for axes in all_axes[len(panels) :]:
        axes.remove()
    drawn = all_axes[: len(panels)]
    for axes, panel in zip(drawn, panels, strict=True):
        for index, name in enumerate(names):
            # A run without this quantity keeps its colour and its entry in the legend.
            points = panel.series.get(name, ())
            # A single line needs neither a name nor markers, but a single point is invisible without a marker.
            label = name if len(names) > 1 else None
            marker = "os^DvPX"[(index + index // 7) % 7] if len(names) > 1 or len(points) == 1 else None
            style = {"color": COLOURS[index % len(COLOURS)], "marker": marker, "markersize": 3.5, "linewidth": 1.2}
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        axes.locator_params(nbins=5)
        axes.set_xlabel(x_label)
        axes.set_ylabel(panel.y_label)
        axes.set_title(panel.title, fontsize="medium")
        axes.grid(alpha=0.3)
    return finished(figure, drawn)


@dataclass(frozen=True)
class HeatMapPanel:
    """One heat map; its colours start at 0.

    Attributes:
        title: title of the panel.
        rows: names of the rows, top to bottom.
        columns: names of the columns, left to right.
        values: one number per row and column; NaN is left blank.
        top: upper end of the colour scale; None = the largest value of all panels.
    """

    title: str
    rows: Sequence[Any]
    columns: Sequence[Any]
    values: Sequence[Sequence[float]]
    top: float | None = None


def draw_heat_maps(
    panels: Sequence[HeatMapPanel], *, x_label: str, y_label: str, title: str, colour_label: str = ""
) -> Any:
    """Return the `matplotlib` figure of heat maps, `PANELS_ABREAST` abreast.

    Args:
        panels: one or more panels.
        x_label: what the columns are.
        y_label: what the rows are.
        title: title of the whole picture.
        colour_label: what the colours are.
    """
    abreast = min(len(panels), PANELS_ABREAST)
    lines = math.ceil(len(panels) / abreast)
    num_columns, num_rows = (max(len(getattr(panel, side)) for panel in panels) for side in ("columns", "rows"))
    map_width, map_height = (
        min(max(CELL_INCHES * count, MIN_MAP_INCHES), MAX_MAP_INCHES) for count in (num_columns, num_rows)
    )
    # Labels are at most three quarters of their row or column high, at 72 points an inch.
    font = min(9.0, 0.75 * 72 * map_width / num_columns, 0.75 * 72 * map_height / num_rows)
    left, below = (
        CHARACTER_INCHES * max(len(str(label)) for panel in panels for label in getattr(panel, side))
        for side in ("rows", "columns")
    )
    width, height = map_width + left + FRAME_INCHES, map_height + below + FRAME_INCHES
    figure, all_axes = new_figure(lines, abreast, width * abreast, height * lines, title)
    for axes in all_axes[len(panels) :]:
        axes.remove()
    finite = [value for panel in panels for row in panel.values for value in row if math.isfinite(value)]
    for axes, panel in zip(all_axes, panels, strict=False):
        top = panel.top if panel.top is not None else max(finite, default=0)
        image = axes.imshow(panel.values, aspect="auto", cmap="cividis", vmin=0, vmax=top or 1)
        axes.set_xticks(
            range(len(panel.columns)), panel.columns, rotation=90 if below > 2 * CHARACTER_INCHES else 0, fontsize=font
        )
        axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=font)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(panel.title, fontsize="medium")
        figure.colorbar(image, ax=axes, label=colour_label)
    return figure

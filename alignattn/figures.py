"""Pictures of results: what is drawn is given as numbers by name, and a path ending chooses the format."""

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignattn.files import replacing

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which the colour-blind tell apart, less its yellow, too pale on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTS_PER_INCH = 150
MIN_WIDTH = 6.0
"""In inches, so the next."""
PANEL_WIDTH = 4.2
PANEL_HEIGHT = 3.6
BAR_INCHES = 0.5
SMALLEST_SHOWN = 2**-14
"""Share of a panel's largest value below which a logarithmic axis ends."""
BARS_SHARE = 0.8
"""Share of a group's width that its bars fill."""
HEAT_COLOURS = "cividis"
"""Rises evenly in lightness, also for the colour-blind."""
HEAT_PANELS_ABREAST = 4
CELL_INCHES = 0.2
HEAT_MARGIN_INCHES = (1.2, 0.9)
"""What a heat map needs beside its cells for labels and its colour bar, and above and below them."""
MIN_HEAT_WIDTH = 2.8
"""In inches: what a title needs."""
TITLE_CHARACTERS = 11
"""An inch of the picture's width; a longer title goes on in the next line."""
LEGEND_INCHES = 1.4
"""What a name in the legend takes of the picture's width."""
RELIABILITY_HEIGHTS = (3.0, 1.0)
"""Of a reliability diagram and of the counts below it, in proportion."""
RELIABILITY_INCHES = (4.4, 5.4)
"""Width and height of one of its panels."""
MOST_COUNTS_SHOWN = 15
"""Bins beyond which the numbers of rows would overlap."""
ACCURACY_COLOUR, GAP_COLOUR = COLOURS[0], COLOURS[4]


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Spread":
        """Return a single value, which has no spread."""
        return cls(value, value, value)


@dataclass(frozen=True)
class BarPanel:
    """One axes of grouped bars.

    Attributes:
        title: what is shown.
        groups: the groups' names, left to right.
        series: by the name in the legend, one spread a group.
    """

    title: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[Spread]]


@dataclass(frozen=True)
class LinePanel:
    """One axes of lines over a common x, both axes logarithmic.

    Attributes:
        title: what is shown.
        y_label: quantity and unit.
        x: positive numbers, rising.
        series: by the name in the legend, one number an x; what is not positive, or negligible beside the
            largest, is left out.
        has_guide: whether a dotted line of slope one, growth in proportion to x, is drawn below the lines.
    """

    title: str
    y_label: str
    x: Sequence[int]
    series: Mapping[str, Sequence[float]]
    has_guide: bool = False


@dataclass(frozen=True)
class HeatMapPanel:
    """One quantity as a heat map of rows and columns, one map a series, on one colour scale from 0.

    Attributes:
        title: what is shown, and its unit.
        row_names: top to bottom.
        series: by name, one number a row and column; NaN is left blank.
        marked: by the series' name, the cells, as row and column, that bear a dot.
    """

    title: str
    row_names: Sequence[str]
    series: Mapping[str, Sequence[Sequence[float]]]
    marked: Mapping[str, Collection[tuple[int, int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReliabilityPanel:
    """One reliability diagram: bins equally wide from 0 to 1, with a strip of counts below.

    Attributes:
        title: what is shown.
        confidence: mean confidence a bin, a fraction; not read where the bin is empty.
        accuracy: likewise.
        counts: rows a bin.
    """

    title: str
    confidence: Sequence[float]
    accuracy: Sequence[float]
    counts: Sequence[int]


def plot_bars(
    path: Path,
    panels: Sequence[BarPanel],
    *,
    names: Sequence[str],
    y_label: str,
    reference: float,
    title: str,
) -> None:
    """Draw panels of grouped bars with their spread, one above the other, and a dashed line at `reference`.

    Args:
        path: the picture, written in one step.
        panels: one or more.
        names: of series, in the order that gives them their colours; some may not be drawn here.
        y_label: quantity and unit.
        reference: the height that the bars are compared with.
        title: of the whole picture.
    """
    width = max(MIN_WIDTH, *(BAR_INCHES * len(panel.groups) * (len(panel.series) + 1) for panel in panels))
    figure, all_axes = _figure(len(panels), 1, width, PANEL_HEIGHT * len(panels), title)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_groups(axes, panel, names)
        axes.axhline(reference, color="black", linestyle="--", linewidth=0.8)
        axes.set_ylabel(y_label)
    _save(figure, all_axes, path)


def plot_comparison(path: Path, panels: Sequence[BarPanel], *, names: Sequence[str], title: str) -> None:
    """Draw panels of grouped bars side by side, each with a scale of its own; the titles give quantity and unit.

    Args:
        path: the picture, written in one step.
        panels: one or more.
        names: of series, in the order that gives them their colours.
        title: of the whole picture.
    """
    figure, all_axes = _figure(1, len(panels), PANEL_WIDTH * len(panels), PANEL_HEIGHT, title)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_groups(axes, panel, names)
    _save(figure, all_axes, path)


def plot_growth(path: Path, panels: Sequence[LinePanel], *, names: Sequence[str], x_label: str, title: str) -> None:
    """Draw panels of lines side by side on logarithmic axes.

    Args:
        path: the picture, written in one step.
        panels: one or more; the series of the first are in the legend.
        names: of series, in the order that gives them their colours and markers.
        x_label: quantity and unit.
        title: of the whole picture.
    """
    figure, all_axes = _figure(1, len(panels), PANEL_WIDTH * len(panels), PANEL_HEIGHT, title)
    for axes, panel in zip(all_axes, panels, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2, nonpositive="mask")
        for name, values in panel.series.items():
            index = names.index(name)
            style = {"color": _cycled(COLOURS, index), "marker": _cycled(MARKERS, index)}
            axes.plot(panel.x, values, label=name, markersize=5, **style)
        _hide_negligible(axes, panel)
        if panel.has_guide:
            _draw_guide(axes, panel)
        axes.set_xticks(panel.x, [str(value) for value in panel.x])
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.minorticks_off()
        axes.set_xlabel(x_label)
        axes.set_ylabel(panel.y_label)
        axes.set_title(panel.title)
        axes.grid(alpha=0.3)
    _save(figure, all_axes, path)


def plot_heat_maps(path: Path, panels: Sequence[HeatMapPanel], *, x_label: str, y_label: str, title: str) -> None:
    """Draw heat maps, as `draw_heat_maps` arranges them.

    Args:
        path: the picture, written in one step.
        panels: one or more, of the same series.
        x_label: what the columns are, numbered from 0.
        y_label: what the rows are.
        title: of the whole picture.
    """
    _write(draw_heat_maps(panels, x_label=x_label, y_label=y_label, title=title), path)


def draw_heat_maps(panels: Sequence[HeatMapPanel], *, x_label: str, y_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of heat maps: a panel's series one below the other, `HEAT_PANELS_ABREAST` abreast.

    Arguments as for `plot_heat_maps`.
    """
    names = list(panels[0].series)
    blocks = math.ceil(len(panels) / HEAT_PANELS_ABREAST)
    columns = min(len(panels), HEAT_PANELS_ABREAST)
    rows = blocks * len(names)
    beside, above = HEAT_MARGIN_INCHES
    width = max(MIN_HEAT_WIDTH, CELL_INCHES * len(panels[0].series[names[0]][0]) + beside)
    height = CELL_INCHES * len(panels[0].row_names) + above
    figure, all_axes = _figure(rows, columns, width * columns, height * rows + above, title)
    for index, panel in enumerate(panels):
        block, column = divmod(index, columns)
        for offset, name in enumerate(names):
            axes = all_axes[(block * len(names) + offset) * columns + column]
            _draw_heat_map(figure, axes, panel, name)
            axes.set_title(f"{name}: {panel.title}" if len(names) > 1 else panel.title, fontsize="medium")
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
    for axes in all_axes:
        if not axes.images:
            axes.remove()
    return figure


def plot_reliability(path: Path, panels: Sequence[ReliabilityPanel], *, title: str) -> None:
    """Draw reliability diagrams, as `draw_reliability` arranges them.

    Args:
        path: the picture, written in one step.
        panels: one or more.
        title: of the whole picture.
    """
    _write(draw_reliability(panels, title=title), path)


def draw_reliability(panels: Sequence[ReliabilityPanel], *, title: str) -> Any:
    """Return the `matplotlib` figure of reliability diagrams side by side.

    A bar is a bin's accuracy; hatched is the gap to its mean confidence. Arguments as for `plot_reliability`.
    """
    width, height = RELIABILITY_INCHES
    figure, all_axes = _figure(
        2, len(panels), width * len(panels), height, title, sharex=True, sharey="row", height_ratios=RELIABILITY_HEIGHTS
    )
    for panel, axes, strip in zip(panels, all_axes[: len(panels)], all_axes[len(panels) :], strict=True):
        _draw_gaps(axes, panel)
        _draw_counts(strip, panel)
    all_axes[0].set_ylabel("accuracy")
    all_axes[len(panels)].set_ylabel("rows")
    _finish(figure, all_axes)
    return figure


def _draw_gaps(axes: Any, panel: ReliabilityPanel) -> None:
    num_bins = len(panel.counts)
    filled = [index for index in range(num_bins) if panel.counts[index]]
    lefts = [index / num_bins for index in filled]
    accuracy = [panel.accuracy[index] for index in filled]
    gaps = [panel.confidence[index] - panel.accuracy[index] for index in filled]
    bars = {"width": 1 / num_bins, "align": "edge"}
    axes.bar(lefts, accuracy, color=ACCURACY_COLOUR, edgecolor="white", label="accuracy", **bars)
    gap_style = {"facecolor": "none", "edgecolor": GAP_COLOUR, "hatch": "///"}
    axes.bar(lefts, gaps, bottom=accuracy, label="gap to mean confidence", **gap_style, **bars)
    axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect calibration")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_title(panel.title, fontsize="medium")


def _draw_counts(axes: Any, panel: ReliabilityPanel) -> None:
    num_bins = len(panel.counts)
    lefts = [index / num_bins for index in range(num_bins)]
    bars = axes.bar(lefts, panel.counts, 1 / num_bins, align="edge", color="grey", edgecolor="white")
    if num_bins <= MOST_COUNTS_SHOWN:
        names = [str(count) if count else "" for count in panel.counts]
        axes.bar_label(bars, names, fontsize="x-small", padding=1)
    axes.margins(y=0.25)
    axes.set_xlabel("confidence")


def _draw_heat_map(figure: Any, axes: Any, panel: HeatMapPanel, name: str) -> None:
    values = panel.series[name]
    numbers = [value for rows in panel.series.values() for row in rows for value in row if math.isfinite(value)]
    image = axes.imshow(values, cmap=HEAT_COLOURS, vmin=0, vmax=max(numbers, default=0) or 1, aspect="auto")
    axes.set_xticks(range(len(values[0])), [str(column) for column in range(len(values[0]))])
    axes.set_yticks(range(len(panel.row_names)), panel.row_names)
    axes.tick_params(labelsize="x-small")
    for row, column in panel.marked.get(name, ()):
        # White with a black edge is seen on every colour of the map.
        axes.plot(column, row, marker="o", markersize=4.5, color="white", markeredgecolor="black")
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize="x-small")


def _draw_groups(axes: Any, panel: BarPanel, names: Sequence[str]) -> None:
    bar_width = BARS_SHARE / len(panel.series)
    for index, (name, spreads) in enumerate(panel.series.items()):
        offset = (index - (len(panel.series) - 1) / 2) * bar_width
        positions = [group + offset for group in range(len(panel.groups))]
        _draw_bars(axes, positions, spreads, bar_width, name, _cycled(COLOURS, names.index(name)))
    axes.set_xticks(range(len(panel.groups)), panel.groups)
    axes.set_title(panel.title)
    axes.margins(y=0.15)


def _draw_bars(
    axes: Any, positions: Sequence[float], spreads: Sequence[Spread], width: float, name: str, colour: str
) -> None:
    medians = [spread.median for spread in spreads]
    lengths = (
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    )
    whiskers = {"yerr": lengths, "capsize": 3} if any(map(any, lengths)) else {}
    axes.bar(positions, medians, width, color=colour, edgecolor="white", label=name, **whiskers)
    for position, spread in zip(positions, spreads, strict=True):
        axes.annotate(
            f"{spread.median:.3g}",
            (position, spread.high),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )


def _draw_guide(axes: Any, panel: LinePanel) -> None:
    """Up to half of the lowest last value, so that it hides no line; the axes stay as they are."""
    ends = [values[-1] for values in panel.series.values() if values[-1] > 0]
    if ends:
        limits = axes.get_ylim()
        guide = [min(ends) / 2 * x / panel.x[-1] for x in panel.x]
        axes.plot(panel.x, guide, color="grey", linestyle=":", label="in proportion to x", zorder=1)
        axes.set_ylim(limits)


def _hide_negligible(axes: Any, panel: LinePanel) -> None:
    """A few bytes beside megabytes would stretch a logarithmic axis over the whole picture."""
    largest = max(value for values in panel.series.values() for value in values)
    if largest > 0:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], largest * SMALLEST_SHOWN))


def _cycled(choices: Sequence[str], index: int) -> str:
    return choices[index % len(choices)]


def _figure(rows: int, columns: int, width: float, height: float, title: str, **grid: Any) -> tuple[Any, Sequence[Any]]:
    # A figure without pyplot draws with Agg, needs no display and leaves no state behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    lines = (textwrap.fill(line, int(width * TITLE_CHARACTERS)) for line in title.splitlines())
    figure.suptitle("\n".join(lines), fontsize="medium")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).flatten())


def _save(figure: Any, all_axes: Sequence[Any], path: Path) -> None:
    _finish(figure, all_axes)
    _write(figure, path)


def _finish(figure: Any, all_axes: Sequence[Any]) -> None:
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    abreast = max(1, min(len(labels), int(figure.get_figwidth() / LEGEND_INCHES)))
    figure.legend(handles, labels, loc="outside lower center", ncols=abreast, frameon=False)


def _write(figure: Any, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DOTS_PER_INCH)

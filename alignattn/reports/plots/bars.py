"""Grouped bars, clouds of points in the plane, and both in one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import (
    COLOURS,
    LEGEND_MARKER_SCALE,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    cycled,
    finished,
    new_figure,
)

MIN_WIDTH = 6.0
"""Sizes are in inches here and below."""
BAR_INCHES = 0.5
BARS_SHARE = 0.8
"""Share of a group's width that its bars fill."""
DIGITS = ".3g"
"""Format of the number over a bar."""


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Spread":
        """Return the spread of a single value, which is zero."""
        return cls(value, value, value)


@dataclass(frozen=True)
class BarPanel:
    """One axes of grouped bars.

    Attributes:
        title: title of the panel.
        groups: names of the groups, left to right.
        series: one spread per group, by the name in the legend.
    """

    title: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[Spread]]


def draw_bars(panels: Sequence[BarPanel], *, names: Sequence[str], y_label: str, reference: float, title: str) -> Any:
    """Return the `matplotlib` figure of grouped bars with their spread; panels are stacked.

    Args:
        panels: one or more panels.
        names: names of series, in the order of colours; some may not occur in the panels.
        y_label: quantity and unit.
        reference: height of the dashed line that the bars are compared with.
        title: title of the whole picture.
    """
    width = max(MIN_WIDTH, *(BAR_INCHES * len(panel.groups) * (len(panel.series) + 1) for panel in panels))
    figure, all_axes = new_figure(len(panels), 1, width, PANEL_HEIGHT * len(panels), title)
    for axes, panel in zip(all_axes, panels, strict=True):
        draw_groups(axes, panel, names)
        axes.axhline(reference, color="black", linestyle="--", linewidth=0.8)
        axes.set_ylabel(y_label)
    return finished(figure, all_axes)


def draw_groups(axes: Any, panel: BarPanel, names: Sequence[str], digits: str = DIGITS) -> None:
    """Draw the bars of a panel.

    Args:
        axes: `matplotlib` axes.
        panel: a panel with one or more series.
        names: names of series, in the order of colours.
        digits: format of the numbers over the bars.
    """
    bar_width = BARS_SHARE / len(panel.series)
    for index, (name, spreads) in enumerate(panel.series.items()):
        offset = (index - (len(panel.series) - 1) / 2) * bar_width
        positions = [group + offset for group in range(len(panel.groups))]
        _draw_bars(axes, positions, spreads, bar_width, name, cycled(COLOURS, names.index(name)), digits)
    axes.set_xticks(range(len(panel.groups)), panel.groups)
    axes.set_title(panel.title)
    axes.margins(y=0.15)


def _draw_bars(
    axes: Any, positions: Sequence[float], spreads: Sequence[Spread], width: float, name: str, colour: str, digits: str
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
            f"{spread.median:{digits}}",
            (position, spread.high),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )


POINT_PANEL_INCHES = (4.2, 4.4)
"""Width and height."""
POINTS_TITLE_INCHES = 0.7
"""Height of the picture's title and legend."""
POINT_AREA = 12
"""Size of a marker, in square points."""
CLOUD_MARKERS = ("o", "^", "D", "P")
"""Markers that are distinct even when small."""


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
        panels: one or more panels of the same series; each series has its own colour and marker.
        x_label: label of every x axis.
        y_label: label of every y axis.
        title: title of the whole picture.
    """
    width, height = POINT_PANEL_INCHES
    figure, all_axes = new_figure(1, len(panels), width * len(panels), height + POINTS_TITLE_INCHES, title)
    for axes, panel in zip(all_axes, panels, strict=True):
        draw_clouds(axes, panel, x_label=x_label, y_label=y_label)
    return finished(figure, all_axes)


def draw_clouds(axes: Any, panel: PointPanel, *, x_label: str, y_label: str) -> None:
    """Draw the clouds of a panel; arguments as for `draw_points`."""
    for index, (name, points) in enumerate(panel.series.items()):
        x, y = zip(*points, strict=True)
        style = {"color": cycled(COLOURS, index), "marker": cycled(CLOUD_MARKERS, index)}
        axes.scatter(x, y, s=POINT_AREA, alpha=0.6, linewidths=0, label=name, **style)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(panel.title, fontsize="medium")


ROWS = 2
ONE_DIGIT = ".1f"
"""Format of the numbers over the bars."""


def draw_overview(
    bars: Sequence[BarPanel],
    clouds: Sequence[PointPanel],
    *,
    names: Sequence[str],
    x_label: str,
    y_label: str,
    title: str,
) -> Any:
    """Return the `matplotlib` figure of bars and of clouds below; panels are side by side, each with its own scale.

    Args:
        bars: panels of bars; their titles give quantity and unit.
        clouds: the same number of panels of clouds, of the same series.
        names: names of the bars' series, in the order of colours.
        x_label: label of every x axis of clouds.
        y_label: label of every y axis of clouds.
        title: title of the whole picture.
    """
    columns = len(bars)
    figure, all_axes = new_figure(ROWS, columns, PANEL_WIDTH * columns, ROWS * PANEL_HEIGHT, title)
    for axes, panel in zip(all_axes[:columns], bars, strict=True):
        draw_groups(axes, panel, names, ONE_DIGIT)
    for axes, cloud in zip(all_axes[columns:], clouds, strict=True):
        draw_clouds(axes, cloud, x_label=x_label, y_label=y_label)
    all_axes[columns].legend(frameon=False, markerscale=LEGEND_MARKER_SCALE, fontsize="small")
    return finished(figure, all_axes)

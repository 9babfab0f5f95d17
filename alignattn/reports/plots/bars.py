"""Grouped bars, clouds of points in the plane, and both in one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, PANEL_HEIGHT, PANEL_WIDTH, cycled, finished, new_figure


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
    width = max(6.0, *(0.5 * len(panel.groups) * (len(panel.series) + 1) for panel in panels))
    figure, all_axes = new_figure(len(panels), 1, width, PANEL_HEIGHT * len(panels), title)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_groups(axes, panel, names, ".3g")
        axes.axhline(reference, color="black", linestyle="--", linewidth=0.8)
        axes.set_ylabel(y_label)
    return finished(figure, all_axes)


def _draw_groups(axes: Any, panel: BarPanel, names: Sequence[str], digits: str) -> None:
    bar_width = 0.8 / len(panel.series)
    for index, (name, spreads) in enumerate(panel.series.items()):
        offset = (index - (len(panel.series) - 1) / 2) * bar_width
        places = [group + offset for group in range(len(panel.groups))]
        lengths = ([one.median - one.low for one in spreads], [one.high - one.median for one in spreads])
        whiskers = {"yerr": lengths, "capsize": 3} if any(map(any, lengths)) else {}
        style = {"color": cycled(COLOURS, names.index(name)), "edgecolor": "white"}
        axes.bar(places, [one.median for one in spreads], bar_width, label=name, **style, **whiskers)
        for place, spread in zip(places, spreads, strict=True):
            axes.annotate(
                f"{spread.median:{digits}}",
                (place, spread.high),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
    axes.set_xticks(range(len(panel.groups)), panel.groups)
    axes.set_title(panel.title)
    axes.margins(y=0.15)


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
    figure, all_axes = new_figure(1, len(panels), 4.2 * len(panels), 5.1, title)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_clouds(axes, panel, x_label, y_label)
    return finished(figure, all_axes)


def _draw_clouds(axes: Any, panel: PointPanel, x_label: str, y_label: str) -> None:
    for index, (name, points) in enumerate(panel.series.items()):
        x, y = zip(*points, strict=True)
        # These markers are distinct even when small.
        style = {"color": cycled(COLOURS, index), "marker": cycled("o^DP", index)}
        axes.scatter(x, y, s=12, alpha=0.6, linewidths=0, label=name, **style)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(panel.title, fontsize="medium")


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
    figure, all_axes = new_figure(2, columns, PANEL_WIDTH * columns, 2 * PANEL_HEIGHT, title)
    for axes, panel in zip(all_axes[:columns], bars, strict=True):
        _draw_groups(axes, panel, names, ".1f")
    for axes, cloud in zip(all_axes[columns:], clouds, strict=True):
        _draw_clouds(axes, cloud, x_label, y_label)
    all_axes[columns].legend(frameon=False, markerscale=1.5, fontsize="small")
    return finished(figure, all_axes)

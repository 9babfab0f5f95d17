"""Clouds of points in the plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, cycled, finished, new_figure


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
    return finished(figure, all_axes)

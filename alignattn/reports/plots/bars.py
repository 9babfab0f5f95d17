"""Clouds of points in the plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, cycled, finished, new_figure

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
        for index, (name, points) in enumerate(panel.series.items()):
            x, y = zip(*points, strict=True)
            style = {"color": cycled(COLOURS, index), "marker": cycled(CLOUD_MARKERS, index)}
            axes.scatter(x, y, s=POINT_AREA, alpha=0.6, linewidths=0, label=name, **style)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(panel.title, fontsize="medium")
    return finished(figure, all_axes)

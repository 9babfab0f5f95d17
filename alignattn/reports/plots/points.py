"""Clouds of points in the plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, cycled, finished, new_figure

POINT_PANEL_INCHES = (4.2, 4.4)
"""Width and height."""
POINTS_TITLE_INCHES = 0.7
"""What the picture's title and legend need of its height."""
POINT_AREA = 12
"""Of a marker, in square points."""
CLOUD_MARKERS = ("o", "^", "D", "P")
"""Told apart where they are small, too."""


@dataclass(frozen=True)
class PointPanel:
    """One axes of clouds.

    Attributes:
        title: what is shown.
        series: each cloud's points, x and y, by its name in the legend.
    """

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]


def draw_points(panels: Sequence[PointPanel], *, x_label: str, y_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of clouds, panels side by side, each on axes of its own without ticks.

    Args:
        panels: one or more, of the same series, each with a colour and a marker of its own.
        x_label: of every panel.
        y_label: likewise.
        title: of the whole picture.
    """
    width, height = POINT_PANEL_INCHES
    figure, all_axes = new_figure(1, len(panels), width * len(panels), height + POINTS_TITLE_INCHES, title)
    for axes, panel in zip(all_axes, panels, strict=True):
        draw_clouds(axes, panel, x_label=x_label, y_label=y_label)
    return finished(figure, all_axes)


def draw_clouds(axes: Any, panel: PointPanel, *, x_label: str, y_label: str) -> None:
    """Draw the clouds of a panel; arguments as of `draw_points`."""
    for index, (name, points) in enumerate(panel.series.items()):
        x, y = zip(*points, strict=True)
        style = {"color": cycled(COLOURS, index), "marker": cycled(CLOUD_MARKERS, index)}
        axes.scatter(x, y, s=POINT_AREA, alpha=0.6, linewidths=0, label=name, **style)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(panel.title, fontsize="medium")

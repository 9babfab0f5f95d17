"""Curves over training: one panel a quantity, one colour and marker a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, MARKERS, PANEL_HEIGHT, PANEL_WIDTH, cycled, finished, new_figure

CURVE_PANELS_ABREAST = 3
MARKER_POINTS = 3.5
LINE_POINTS = 1.2
MAX_TICKS = 5
"""Intervals of an axis."""
CURVES_TITLE_INCHES = 0.6
"""What the picture's title and legend need of its height."""

Curve = Sequence[tuple[float, float]]
"""Points, x and y."""


@dataclass(frozen=True)
class CurvePanel:
    """One axes of curves over a common x.

    Attributes:
        title: what is shown.
        y_label: quantity and unit.
        series: the curve of each run that has one, by the run's name.
    """

    title: str
    y_label: str
    series: Mapping[str, Curve]


def draw_curves(panels: Sequence[CurvePanel], *, names: Sequence[str], x_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of curves, `CURVE_PANELS_ABREAST` panels abreast.

    Args:
        panels: one or more.
        names: of series, in the order that gives them their colours and markers; two or more are in the legend.
        x_label: quantity and unit.
        title: of the whole picture.
    """
    columns = min(len(panels), CURVE_PANELS_ABREAST)
    rows = math.ceil(len(panels) / columns)
    width, height = PANEL_WIDTH * columns, PANEL_HEIGHT * rows + CURVES_TITLE_INCHES
    figure, all_axes = new_figure(rows, columns, width, height, title)
    for axes in all_axes[len(panels) :]:
        axes.remove()
    drawn = all_axes[: len(panels)]
    for axes, panel in zip(drawn, panels, strict=True):
        _draw_panel(axes, panel, names)
        axes.set_xlabel(x_label)
    finished(figure, drawn)
    return figure


def _draw_panel(axes: Any, panel: CurvePanel, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        # A run without this quantity keeps its colour and its line in the legend.
        points = panel.series.get(name, ())
        x, y = [point[0] for point in points], [point[1] for point in points]
        # A line alone needs neither a name nor markers to be told apart; a point alone is a line that no one sees.
        label = name if len(names) > 1 else None
        marker = cycled(MARKERS, index) if len(names) > 1 or len(points) == 1 else None
        style = {"color": cycled(COLOURS, index), "marker": marker, "markersize": MARKER_POINTS}
        axes.plot(x, y, label=label, linewidth=LINE_POINTS, **style)
    axes.locator_params(nbins=MAX_TICKS)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, fontsize="medium")
    axes.grid(alpha=0.3)

"""Numbers and clouds of several models in one picture."""

from collections.abc import Sequence
from typing import Any

from alignattn.reports.plots.bars import BarPanel, draw_groups
from alignattn.reports.plots.drawing import LEGEND_MARKER_SCALE, PANEL_HEIGHT, PANEL_WIDTH, finished, new_figure
from alignattn.reports.plots.points import PointPanel, draw_clouds

ROWS = 2
ONE_DIGIT = ".1f"
"""Of the numbers over the bars."""


def draw_overview(
    bars: Sequence[BarPanel],
    clouds: Sequence[PointPanel],
    *,
    names: Sequence[str],
    x_label: str,
    y_label: str,
    title: str,
) -> Any:
    """Return the `matplotlib` figure of bars, panels side by side, each with a scale of its own, and of clouds below.

    Args:
        bars: as many panels as of clouds; their titles give quantity and unit.
        clouds: panels of the same series.
        names: of the bars' series, in the order that gives them their colours.
        x_label: of every panel of clouds.
        y_label: likewise.
        title: of the whole picture.
    """
    columns = len(bars)
    figure, all_axes = new_figure(ROWS, columns, PANEL_WIDTH * columns, ROWS * PANEL_HEIGHT, title)
    for axes, panel in zip(all_axes[:columns], bars, strict=True):
        draw_groups(axes, panel, names, ONE_DIGIT)
    for axes, cloud in zip(all_axes[columns:], clouds, strict=True):
        draw_clouds(axes, cloud, x_label=x_label, y_label=y_label)
    all_axes[columns].legend(frameon=False, markerscale=LEGEND_MARKER_SCALE, fontsize="small")
    return finished(figure, all_axes)

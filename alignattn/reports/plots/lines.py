"""Line plots: curves over training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, PANEL_HEIGHT, PANEL_WIDTH, cycled, finished, new_figure


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
            marker = cycled("os^DvPX", index) if len(names) > 1 or len(points) == 1 else None
            style = {"color": cycled(COLOURS, index), "marker": marker, "markersize": 3.5, "linewidth": 1.2}
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        axes.locator_params(nbins=5)
        axes.set_xlabel(x_label)
        axes.set_ylabel(panel.y_label)
        axes.set_title(panel.title, fontsize="medium")
        axes.grid(alpha=0.3)
    return finished(figure, drawn)

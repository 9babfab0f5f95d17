"""Line plots: curves over training, growth over sizes."""

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
    doubles: bool = False,
    has_guide: bool = False,
) -> Any:
    """Return the `matplotlib` figure of curves, three panels abreast.

    Args:
        panels: one or more panels.
        names: names of series, in the order of colours and markers; the legend shows them if there are several.
        x_label: quantity and unit.
        title: title of the whole picture.
        doubles: whether x are doubling sizes: both axes are logarithmic, without negligible and nonpositive values.
        has_guide: whether to draw a dotted line in proportion to x, below the curves; only for doubling sizes.
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
        if doubles:
            _scale_by_doubling(axes, panel, has_guide=has_guide)
        else:
            axes.locator_params(nbins=5)
        axes.set_xlabel(x_label)
        axes.set_ylabel(panel.y_label)
        axes.set_title(panel.title, fontsize="medium")
        axes.grid(alpha=0.3)
    return finished(figure, drawn)


def _scale_by_doubling(axes: Any, panel: CurvePanel, *, has_guide: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2, nonpositive="mask")
    sizes = sorted({x for points in panel.series.values() for x, _ in points})
    largest = max(y for points in panel.series.values() for _, y in points)
    if largest > 0:
        # A few bytes next to megabytes would stretch a logarithmic axis over the whole picture.
        axes.set_ylim(bottom=max(axes.get_ylim()[0], largest * 2**-14))
    ends = [points[-1][1] for points in panel.series.values() if points[-1][1] > 0]
    if has_guide and ends:
        # Below the lines, so that it hides none; the limits of the axis do not change.
        limits = axes.get_ylim()
        guide = [min(ends) / 2 * x / sizes[-1] for x in sizes]
        axes.plot(sizes, guide, color="grey", linestyle=":", label="in proportion to x", zorder=1)
        axes.set_ylim(limits)
    axes.set_xticks(sizes, [str(x) for x in sizes])
    axes.yaxis.set_major_formatter("{x:.3g}")
    axes.minorticks_off()

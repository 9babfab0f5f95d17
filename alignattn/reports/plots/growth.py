"""Lines over sizes that double, on logarithmic axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, MARKERS, PANEL_HEIGHT, PANEL_WIDTH, cycled, finished, new_figure

MIN_SHOWN = 2**-14
"""Share of a panel's largest value below which a logarithmic axis ends."""


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


def draw_lines(panels: Sequence[LinePanel], *, names: Sequence[str], x_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of lines on logarithmic axes, panels side by side.

    Args:
        panels: one or more; the series of the first are in the legend.
        names: of series, in the order that gives them their colours and markers.
        x_label: quantity and unit.
        title: of the whole picture.
    """
    figure, all_axes = new_figure(1, len(panels), PANEL_WIDTH * len(panels), PANEL_HEIGHT, title)
    for axes, panel in zip(all_axes, panels, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2, nonpositive="mask")
        for name, values in panel.series.items():
            index = names.index(name)
            style = {"color": cycled(COLOURS, index), "marker": cycled(MARKERS, index)}
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
    return finished(figure, all_axes)


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
        axes.set_ylim(bottom=max(axes.get_ylim()[0], largest * MIN_SHOWN))

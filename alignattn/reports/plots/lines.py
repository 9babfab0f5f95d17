"""Lines: curves over training, growth over sizes, risk over coverage."""

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


STYLES = ("-", "--", ":", "-.")
TITLE_LINE_INCHES = 0.2
"""What each line of a panel's title takes of the picture's height."""


@dataclass(frozen=True)
class CoveragePanel:
    """One axes of risk-coverage curves.

    Attributes:
        title: what is shown.
        curves: by the name in the legend, coverage and risk, both fractions, rising in coverage to 1.
    """

    title: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]


def draw_risk_coverage(panels: Sequence[CoveragePanel], *, title: str) -> Any:
    """Return the `matplotlib` figure of risk-coverage curves, panels side by side.

    Args:
        panels: one or more, with the same names; a dotted line is the risk of all rows.
        title: of the whole picture.
    """
    height = PANEL_HEIGHT + TITLE_LINE_INCHES * max(panel.title.count("\n") for panel in panels)
    figure, all_axes = new_figure(1, len(panels), PANEL_WIDTH * len(panels), height, title, sharey=True)
    for axes, panel in zip(all_axes, panels, strict=True):
        for index, (name, (coverage, risk)) in enumerate(panel.curves.items()):
            style = {"color": cycled(COLOURS, index), "linestyle": cycled(STYLES, index)}
            axes.plot(coverage, risk, label=name, drawstyle="steps-post", **style)
            axes.axhline(risk[-1], color=cycled(COLOURS, index), linestyle=":", linewidth=0.8)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("coverage: share of rows that are answered")
        axes.set_title(panel.title, fontsize="small")
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("risk: share of these that are wrong")
    return finished(figure, all_axes)

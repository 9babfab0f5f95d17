"""Pictures of results: what is drawn is given as numbers by name, and a path ending chooses the format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignattn.files import replacing

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which the colour-blind tell apart, less its yellow, too pale on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTS_PER_INCH = 150
BARS_SHARE = 0.8
"""Share of a group's width that its bars fill."""


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class BarPanel:
    """One axes of grouped bars.

    Attributes:
        title: what is shown.
        groups: the groups' names, left to right.
        series: by the name in the legend, one spread a group.
    """

    title: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[Spread]]


@dataclass(frozen=True)
class LinePanel:
    """One axes of lines over a common x, both axes logarithmic.

    Attributes:
        title: what is shown.
        y_label: quantity and unit.
        x: positive numbers, rising.
        series: by the name in the legend, one number an x; what is not positive is left out.
    """

    title: str
    y_label: str
    x: Sequence[int]
    series: Mapping[str, Sequence[float]]


def plot_bars(path: Path, panels: Sequence[BarPanel], *, y_label: str, reference: float, title: str) -> None:
    """Draw panels of grouped bars with their spread side by side, and a dashed line at `reference`.

    Args:
        path: the picture, written in one step.
        panels: one or more; all have the same series.
        y_label: quantity and unit.
        reference: the height that the bars are compared with.
        title: of the whole picture.
    """
    width = sum(2 + 1.1 * len(panel.groups) * len(panel.series) / 2 for panel in panels)
    figure, all_axes = _figure(width, len(panels), title)
    for axes, panel in zip(all_axes, panels, strict=True):
        bar_width = BARS_SHARE / len(panel.series)
        for index, (name, spreads) in enumerate(panel.series.items()):
            offset = (index - (len(panel.series) - 1) / 2) * bar_width
            positions = [group + offset for group in range(len(panel.groups))]
            _draw_bars(axes, positions, spreads, bar_width, name, COLOURS[index % len(COLOURS)])
        axes.axhline(reference, color="black", linestyle="--", linewidth=0.8)
        axes.set_xticks(range(len(panel.groups)), panel.groups)
        axes.set_title(panel.title)
        axes.margins(y=0.12)
    all_axes[0].set_ylabel(y_label)
    _save(figure, all_axes, path)


def plot_growth(path: Path, panels: Sequence[LinePanel], *, x_label: str, title: str) -> None:
    """Draw panels of lines side by side on logarithmic axes, with a dotted line of slope one in each.

    Args:
        path: the picture, written in one step.
        panels: one or more; the series of the first are in the legend and give the colours.
        x_label: quantity and unit.
        title: of the whole picture.
    """
    figure, all_axes = _figure(4.2 * len(panels), len(panels), title)
    names = list(panels[0].series)
    for axes, panel in zip(all_axes, panels, strict=True):
        for name, values in panel.series.items():
            index = names.index(name) % len(COLOURS)
            axes.plot(panel.x, values, color=COLOURS[index], marker=MARKERS[index], markersize=5, label=name)
        _draw_slope_one(axes, panel)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", nonpositive="mask")
        axes.set_xticks(panel.x, [str(value) for value in panel.x])
        axes.minorticks_off()
        axes.set_xlabel(x_label)
        axes.set_ylabel(panel.y_label)
        axes.set_title(panel.title)
        axes.grid(alpha=0.3)
    _save(figure, all_axes, path)


def _draw_bars(
    axes: Any, positions: Sequence[float], spreads: Sequence[Spread], width: float, name: str, colour: str
) -> None:
    medians = [spread.median for spread in spreads]
    lengths = (
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    )
    axes.bar(positions, medians, width, yerr=lengths, capsize=3, color=colour, edgecolor="white", label=name)
    for position, spread in zip(positions, spreads, strict=True):
        axes.annotate(
            f"{spread.median:.2f}",
            (position, max(spread.median, spread.high)),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )


def _draw_slope_one(axes: Any, panel: LinePanel) -> None:
    """Through the lowest positive first value, as a guide for the eye."""
    starts = [values[0] for values in panel.series.values() if values[0] > 0]
    if starts:
        guide = [min(starts) * x / panel.x[0] for x in panel.x]
        axes.plot(panel.x, guide, color="grey", linestyle=":", label="grows with x", zorder=1)


def _figure(width: float, panels: int, title: str) -> tuple[Any, Sequence[Any]]:
    # A figure without pyplot draws with Agg, needs no display and leaves no state behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width, 6.0), 4.2), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _save(figure: Any, all_axes: Sequence[Any], path: Path) -> None:
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DOTS_PER_INCH)

"""Differences to a baseline with their intervals, and reliability diagrams."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, finished, new_figure, wrapped

PANEL_INCHES = 3.4
MAX_ABREAST = 6
"""Panels per row of the picture."""


@dataclass(frozen=True)
class DifferenceLine:
    """A method's difference to the baseline.

    Attributes:
        row: index of its row, from the top.
        difference: the difference, in the unit of its panel.
        interval: the ends of its interval; None without an interval.
        survives: whether it survives correction.
    """

    row: int
    difference: float
    interval: tuple[float, float] | None
    survives: bool


@dataclass(frozen=True)
class DifferencePanel:
    """One axes of differences.

    Attributes:
        title: the measure.
        x_label: quantity and unit.
        lines: the differences; rows without one are left empty.
    """

    title: str
    x_label: str
    lines: Sequence[DifferenceLine]


def draw_differences(panels: Sequence[DifferencePanel], *, rows: Sequence[str], title: str) -> Any:
    """Return the `matplotlib` figure of differences: a grid of panels, each with a line at 0.

    Args:
        panels: one or more panels.
        rows: names of the rows, from top to bottom.
        title: title of the whole picture.
    """
    lines = math.ceil(len(panels) / MAX_ABREAST)
    abreast = math.ceil(len(panels) / lines)
    # The names of the rows need 2.2 inches, titles and axes 1.4.
    width, height = 2.2 + PANEL_INCHES * abreast, (1.4 + 0.3 * len(rows)) * lines
    figure, all_axes = new_figure(lines, abreast, width, height, title, sharey=True)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(all_axes, panels, strict=False):
        axes.axvline(0, color="grey", linewidth=0.8)
        for line in panel.lines:
            colour = COLOURS[4] if line.survives else COLOURS[6]
            if line.interval is not None:
                axes.plot(line.interval, [line.row] * 2, color=colour, linewidth=1.5)
            axes.plot([line.difference], [line.row], color=colour, marker="D" if line.survives else "o", markersize=5)
        axes.set_title(wrapped(panel.title, PANEL_INCHES), fontsize="medium")
        axes.set_xlabel(panel.x_label)
        axes.grid(axis="x", alpha=0.3)
    all_axes[0].set_yticks(range(len(rows)), rows)
    all_axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return finished(figure, all_axes)


@dataclass(frozen=True)
class ReliabilityPanel:
    """One reliability diagram: bins equally wide from 0 to 1, with a strip of counts below.

    Attributes:
        title: title of the panel.
        confidence: mean confidence of each bin, a fraction; ignored if the bin is empty.
        accuracy: accuracy of each bin, a fraction; ignored if the bin is empty.
        counts: number of rows of each bin.
    """

    title: str
    confidence: Sequence[float]
    accuracy: Sequence[float]
    counts: Sequence[int]


def draw_reliability(panels: Sequence[ReliabilityPanel], *, title: str) -> Any:
    """Return the `matplotlib` figure of reliability diagrams side by side.

    A bar is the accuracy of a bin; the hatched part is the gap to its mean confidence.

    Args:
        panels: one or more panels.
        title: title of the whole picture.
    """
    figure, all_axes = new_figure(
        2, len(panels), 4.4 * len(panels), 5.4, title, sharex=True, sharey="row", height_ratios=(3, 1)
    )
    for panel, axes, strip in zip(panels, all_axes[: len(panels)], all_axes[len(panels) :], strict=True):
        num_bins = len(panel.counts)
        bins: dict[str, Any] = {"width": 1 / num_bins, "align": "edge"}
        occupied = [index for index in range(num_bins) if panel.counts[index]]
        lefts, accuracy = [index / num_bins for index in occupied], [panel.accuracy[index] for index in occupied]
        gaps = [panel.confidence[index] - panel.accuracy[index] for index in occupied]
        axes.bar(lefts, accuracy, color=COLOURS[0], edgecolor="white", label="accuracy", **bins)
        gap_style = {"facecolor": "none", "edgecolor": COLOURS[4], "hatch": "///"}
        axes.bar(lefts, gaps, bottom=accuracy, label="gap to mean confidence", **gap_style, **bins)
        axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect calibration")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_title(panel.title, fontsize="medium")
        every_left = [index / num_bins for index in range(num_bins)]
        bars = strip.bar(every_left, panel.counts, color="grey", edgecolor="white", **bins)
        # The printed counts of more bins would overlap.
        if num_bins <= 15:
            strip.bar_label(bars, [str(count or "") for count in panel.counts], fontsize="x-small", padding=1)
        strip.margins(y=0.25)
        strip.set_xlabel("confidence")
    all_axes[0].set_ylabel("accuracy")
    all_axes[len(panels)].set_ylabel("rows")
    return finished(figure, all_axes)

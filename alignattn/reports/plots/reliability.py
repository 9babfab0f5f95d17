"""Reliability diagrams: accuracy over confidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, finished, new_figure

RELIABILITY_HEIGHTS = (3.0, 1.0)
"""Of a reliability diagram and of the counts below it, in proportion."""
RELIABILITY_INCHES = (4.4, 5.4)
"""Width and height of one of its panels."""
MAX_COUNTS_SHOWN = 15
"""Bins beyond which the numbers of rows would overlap."""
ACCURACY_COLOUR, GAP_COLOUR = COLOURS[0], COLOURS[4]


@dataclass(frozen=True)
class ReliabilityPanel:
    """One reliability diagram: bins equally wide from 0 to 1, with a strip of counts below.

    Attributes:
        title: what is shown.
        confidence: mean confidence a bin, a fraction; not read where the bin is empty.
        accuracy: likewise.
        counts: rows a bin.
    """

    title: str
    confidence: Sequence[float]
    accuracy: Sequence[float]
    counts: Sequence[int]


def draw_reliability(panels: Sequence[ReliabilityPanel], *, title: str) -> Any:
    """Return the `matplotlib` figure of reliability diagrams side by side.

    A bar is a bin's accuracy; hatched is the gap to its mean confidence.

    Args:
        panels: one or more.
        title: of the whole picture.
    """
    width, height = RELIABILITY_INCHES
    figure, all_axes = new_figure(
        2, len(panels), width * len(panels), height, title, sharex=True, sharey="row", height_ratios=RELIABILITY_HEIGHTS
    )
    for panel, axes, strip in zip(panels, all_axes[: len(panels)], all_axes[len(panels) :], strict=True):
        _draw_gaps(axes, panel)
        _draw_counts(strip, panel)
    all_axes[0].set_ylabel("accuracy")
    all_axes[len(panels)].set_ylabel("rows")
    return finished(figure, all_axes)


def _draw_gaps(axes: Any, panel: ReliabilityPanel) -> None:
    num_bins = len(panel.counts)
    occupied = [index for index in range(num_bins) if panel.counts[index]]
    lefts = [index / num_bins for index in occupied]
    accuracy = [panel.accuracy[index] for index in occupied]
    gaps = [panel.confidence[index] - panel.accuracy[index] for index in occupied]
    bars = {"width": 1 / num_bins, "align": "edge"}
    axes.bar(lefts, accuracy, color=ACCURACY_COLOUR, edgecolor="white", label="accuracy", **bars)
    gap_style = {"facecolor": "none", "edgecolor": GAP_COLOUR, "hatch": "///"}
    axes.bar(lefts, gaps, bottom=accuracy, label="gap to mean confidence", **gap_style, **bars)
    axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect calibration")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_title(panel.title, fontsize="medium")


def _draw_counts(axes: Any, panel: ReliabilityPanel) -> None:
    num_bins = len(panel.counts)
    lefts = [index / num_bins for index in range(num_bins)]
    bars = axes.bar(lefts, panel.counts, 1 / num_bins, align="edge", color="grey", edgecolor="white")
    if num_bins <= MAX_COUNTS_SHOWN:
        names = [str(count) if count else "" for count in panel.counts]
        axes.bar_label(bars, names, fontsize="x-small", padding=1)
    axes.margins(y=0.25)
    axes.set_xlabel("confidence")

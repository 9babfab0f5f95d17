"""Differences to a baseline with their intervals: a row a method, a panel a measure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, finished, new_figure

ROW_INCHES = 0.3
PANEL_INCHES = 3.4
LABEL_INCHES = 2.2
"""What the names of the rows take of the picture's width."""
FRAME_INCHES = 1.4
"""What titles and axes take of its height."""
MAX_ABREAST = 6
"""Panels side by side; more go on below."""
NOISE_COLOUR, SURVIVING_COLOUR = COLOURS[6], COLOURS[4]


@dataclass(frozen=True)
class DifferenceLine:
    """A method's difference to the baseline.

    Attributes:
        row: index of its row, from the top.
        difference: in the unit of its panel.
        interval: its ends; None where it has none.
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
        title: what was measured.
        x_label: quantity and unit.
        lines: those that there are.
    """

    title: str
    x_label: str
    lines: Sequence[DifferenceLine]


def draw_differences(panels: Sequence[DifferencePanel], *, rows: Sequence[str], title: str) -> Any:
    """Return the `matplotlib` figure of differences, panels side by side and below one another, 0 a line in each.

    Args:
        panels: one or more.
        rows: names, from top to bottom.
        title: of the whole picture.
    """
    lines = math.ceil(len(panels) / MAX_ABREAST)
    abreast = math.ceil(len(panels) / lines)
    width, height = LABEL_INCHES + PANEL_INCHES * abreast, (FRAME_INCHES + ROW_INCHES * len(rows)) * lines
    figure, all_axes = new_figure(lines, abreast, width, height, title, sharey=True)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(all_axes, panels, strict=False):
        axes.axvline(0, color="grey", linewidth=0.8)
        for line in panel.lines:
            colour = SURVIVING_COLOUR if line.survives else NOISE_COLOUR
            if line.interval is not None:
                axes.plot(line.interval, [line.row] * 2, color=colour, linewidth=1.5)
            axes.plot([line.difference], [line.row], color=colour, marker="D" if line.survives else "o", markersize=5)
        axes.set_title(panel.title, fontsize="medium")
        axes.set_xlabel(panel.x_label)
        axes.grid(axis="x", alpha=0.3)
    all_axes[0].set_yticks(range(len(rows)), rows)
    all_axes[0].set_ylim(len(rows) - 0.5, -0.5)
    return finished(figure, all_axes)

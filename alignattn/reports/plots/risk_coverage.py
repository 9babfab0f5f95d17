"""Risk-coverage curves: the share of wrong answers over the share of rows that are answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, PANEL_HEIGHT, PANEL_WIDTH, cycled, finished, new_figure

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

"""Heat maps: a number per row and column, such as a measure per layer and head or an attention weight per pair."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import new_figure

PANELS_ABREAST = 4
CELL_INCHES = 0.25
"""Size of a row and a column, unless the map would be larger or smaller than these."""
MIN_MAP_INCHES, MAX_MAP_INCHES = 2.4, 13.0
CHARACTER_INCHES = 0.09
"""Width of a character of a label."""
FRAME_INCHES = 1.2
"""Width of a colour bar and height of the titles."""


@dataclass(frozen=True)
class HeatMapPanel:
    """One heat map; its colours start at 0.

    Attributes:
        title: title of the panel.
        rows: names of the rows, top to bottom.
        columns: names of the columns, left to right.
        values: one number per row and column; NaN is left blank.
        top: upper end of the colour scale; None = the largest value of all panels.
    """

    title: str
    rows: Sequence[Any]
    columns: Sequence[Any]
    values: Sequence[Sequence[float]]
    top: float | None = None


def draw_heat_maps(
    panels: Sequence[HeatMapPanel], *, x_label: str, y_label: str, title: str, colour_label: str = ""
) -> Any:
    """Return the `matplotlib` figure of heat maps, `PANELS_ABREAST` abreast.

    Args:
        panels: one or more panels.
        x_label: what the columns are.
        y_label: what the rows are.
        title: title of the whole picture.
        colour_label: what the colours are.
    """
    abreast = min(len(panels), PANELS_ABREAST)
    lines = math.ceil(len(panels) / abreast)
    num_columns, num_rows = (max(len(getattr(panel, side)) for panel in panels) for side in ("columns", "rows"))
    map_width, map_height = (
        min(max(CELL_INCHES * count, MIN_MAP_INCHES), MAX_MAP_INCHES) for count in (num_columns, num_rows)
    )
    # Labels are at most three quarters of their row or column high, at 72 points an inch.
    font = min(9.0, 0.75 * 72 * map_width / num_columns, 0.75 * 72 * map_height / num_rows)
    left, below = (
        CHARACTER_INCHES * max(len(str(label)) for panel in panels for label in getattr(panel, side))
        for side in ("rows", "columns")
    )
    width, height = map_width + left + FRAME_INCHES, map_height + below + FRAME_INCHES
    figure, all_axes = new_figure(lines, abreast, width * abreast, height * lines, title)
    for axes in all_axes[len(panels) :]:
        axes.remove()
    finite = [value for panel in panels for row in panel.values for value in row if math.isfinite(value)]
    for axes, panel in zip(all_axes, panels, strict=False):
        top = panel.top if panel.top is not None else max(finite, default=0)
        image = axes.imshow(panel.values, aspect="auto", cmap="cividis", vmin=0, vmax=top or 1)
        axes.set_xticks(
            range(len(panel.columns)), panel.columns, rotation=90 if below > 2 * CHARACTER_INCHES else 0, fontsize=font
        )
        axes.set_yticks(range(len(panel.rows)), panel.rows, fontsize=font)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_title(panel.title, fontsize="medium")
        figure.colorbar(image, ax=axes, label=colour_label)
    return figure

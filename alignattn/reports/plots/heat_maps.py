"""Heat maps of a number a row and column."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignattn.reports.plots.drawing import DIFFERENCE_COLOURS, HEAT_COLOURS, new_figure

HEAT_PANELS_ABREAST = 4
CELL_INCHES = 0.2
HEAT_MARGIN_INCHES = (1.2, 0.9)
"""What a heat map needs beside its cells for labels and its colour bar, and above and below them."""
MIN_HEAT_WIDTH = 2.8
"""In inches: what a title needs."""


@dataclass(frozen=True)
class HeatMapPanel:
    """One quantity as a heat map of rows and columns, one map a series, on one colour scale from 0.

    Attributes:
        title: what is shown, and its unit.
        row_names: top to bottom.
        series: by name, one number a row and column; NaN is left blank.
        marked: by the series' name, the cells, as row and column, that bear a dot.
        differences: likewise by name, maps below those, on a scale of their own around 0.
    """

    title: str
    row_names: Sequence[str]
    series: Mapping[str, Sequence[Sequence[float]]]
    marked: Mapping[str, Collection[tuple[int, int]]] = field(default_factory=dict)
    differences: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def draw_heat_maps(panels: Sequence[HeatMapPanel], *, x_label: str, y_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of heat maps: a panel's series one below the other, `HEAT_PANELS_ABREAST` abreast.

    Args:
        panels: one or more, of the same series and differences.
        x_label: what the columns are, numbered from 0.
        y_label: what the rows are.
        title: of the whole picture.
    """
    names = [*panels[0].series, *panels[0].differences]
    blocks = math.ceil(len(panels) / HEAT_PANELS_ABREAST)
    columns = min(len(panels), HEAT_PANELS_ABREAST)
    rows = blocks * len(names)
    beside, above = HEAT_MARGIN_INCHES
    width = max(MIN_HEAT_WIDTH, CELL_INCHES * len(next(iter(panels[0].series.values()))[0]) + beside)
    height = CELL_INCHES * len(panels[0].row_names) + above
    figure, all_axes = new_figure(rows, columns, width * columns, height * rows + above, title)
    for index, panel in enumerate(panels):
        block, column = divmod(index, columns)
        for offset, name in enumerate(names):
            axes = all_axes[(block * len(names) + offset) * columns + column]
            _draw_heat_map(figure, axes, panel, name)
            axes.set_title(f"{name}: {panel.title}" if len(names) > 1 else panel.title, fontsize="medium")
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
    for axes in all_axes:
        if not axes.images:
            axes.remove()
    return figure


def _draw_heat_map(figure: Any, axes: Any, panel: HeatMapPanel, name: str) -> None:
    maps = panel.differences if name in panel.differences else panel.series
    values = maps[name]
    top = max(
        (abs(value) for rows in maps.values() for row in rows for value in row if math.isfinite(value)), default=0
    )
    if name in panel.differences:
        scale: dict[str, Any] = {"cmap": DIFFERENCE_COLOURS, "vmin": -(top or 1), "vmax": top or 1}
    else:
        scale = {"cmap": HEAT_COLOURS, "vmin": 0, "vmax": top or 1}
    image = axes.imshow(values, aspect="auto", **scale)
    axes.set_xticks(range(len(values[0])), [str(column) for column in range(len(values[0]))])
    axes.set_yticks(range(len(panel.row_names)), panel.row_names)
    axes.tick_params(labelsize="x-small")
    for row, column in panel.marked.get(name, ()):
        # White with a black edge is seen on every colour of the map.
        axes.plot(column, row, marker="o", markersize=4.5, color="white", markeredgecolor="black")
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize="x-small")

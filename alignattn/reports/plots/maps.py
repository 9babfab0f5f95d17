"""Heat maps: a number per row and column, attention from token to token, attention over the cells of a picture."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignattn.reports.plots.drawing import (
    COLOURS,
    DIFFERENCE_COLOURS,
    HEAT_COLOURS,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    new_figure,
)

HEAT_PANELS_ABREAST = 4
CELL_INCHES = 0.2
HEAT_MARGIN_INCHES = (1.2, 0.9)
"""Size of a heat map's labels, colour bar and margins around its cells."""
MIN_HEAT_WIDTH = 2.8
"""Minimum width of a heat map, so that its title fits, in inches."""


@dataclass(frozen=True)
class HeatMapPanel:
    """One quantity as a heat map of rows and columns, one map per series, on one colour scale from 0.

    Attributes:
        title: quantity and unit.
        row_names: names of the rows, top to bottom.
        series: one number per row and column, by name; NaN is left blank.
        marked: the cells with a dot, as row and column, by the name of the series.
        differences: further maps by name, drawn below on a separate scale around 0.
    """

    title: str
    row_names: Sequence[str]
    series: Mapping[str, Sequence[Sequence[float]]]
    marked: Mapping[str, Collection[tuple[int, int]]] = field(default_factory=dict)
    differences: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def draw_heat_maps(panels: Sequence[HeatMapPanel], *, x_label: str, y_label: str, title: str) -> Any:
    """Return the `matplotlib` figure of heat maps: a panel's maps are stacked, `HEAT_PANELS_ABREAST` panels abreast.

    Args:
        panels: one or more panels of the same series and differences.
        x_label: label of the columns, which are numbered from 0.
        y_label: label of the rows.
        title: title of the whole picture.
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
        # White with a black edge is visible on every colour of the map.
        axes.plot(column, row, marker="o", markersize=4.5, color="white", markeredgecolor="black")
    figure.colorbar(image, ax=axes).ax.tick_params(labelsize="x-small")


TOKEN_INCHES = 0.2
"""Size of a token's row and column, unless there are too many."""
MAP_INCHES = (3.0, 13.0)
"""Minimum and maximum width and height of a map."""
LABEL_INCHES = 1.1
"""Size of the labels of tokens and axes beside and below the cells."""
COLOUR_BAR_INCHES = 0.9
COLOUR_BAR_ASPECT = 30
MAP_TITLE_INCHES = 0.9
POINTS_AN_INCH = 72
LABEL_SHARE = 0.75
"""Height of a token's label, as a share of its row's height."""
MAX_LABEL = 9.0
"""Font size, in points."""


@dataclass(frozen=True)
class TokenMapPanel:
    """How the tokens of a text attend to each other, or to those of another text.

    Attributes:
        title: title of the panel.
        tokens: n labels of the queries.
        weights: `[n][m]`, a row per query.
        attended: m labels of the keys; None if the keys are the same tokens.
    """

    title: str
    tokens: Sequence[str]
    weights: Sequence[Sequence[float]]
    attended: Sequence[str] | None = None

    @property
    def keys(self) -> Sequence[str]:
        """The labels of the keys."""
        return self.tokens if self.attended is None else self.attended


def draw_token_maps(panels: Sequence[TokenMapPanel], *, title: str) -> Any:
    """Return the `matplotlib` figure of attention maps side by side, on one colour scale from 0.

    Args:
        panels: one or more panels.
        title: title of the whole picture.
    """
    count = max(len(labels) for panel in panels for labels in (panel.tokens, panel.keys))
    smallest, largest = MAP_INCHES
    side = min(max(smallest, TOKEN_INCHES * count), largest)
    width = (side + LABEL_INCHES) * len(panels) + COLOUR_BAR_INCHES
    figure, all_axes = new_figure(1, len(panels), width, side + LABEL_INCHES + MAP_TITLE_INCHES, title)
    top = max(weight for panel in panels for row in panel.weights for weight in row)
    label_size = min(MAX_LABEL, LABEL_SHARE * POINTS_AN_INCH * side / count)
    for axes, panel in zip(all_axes, panels, strict=True):
        image = axes.imshow(panel.weights, cmap=HEAT_COLOURS, vmin=0, vmax=top)
        # `write_figure` turns formulas off: a dollar sign in a text is not a formula.
        axes.set_xticks(range(len(panel.keys)), panel.keys, rotation=90, fontsize=label_size)
        axes.set_yticks(range(len(panel.tokens)), panel.tokens, fontsize=label_size)
        axes.set_xlabel("key (token attended to)")
        axes.set_ylabel("query (token that attends)")
        axes.set_title(panel.title, fontsize="medium")
    figure.colorbar(image, ax=list(all_axes), label="attention weight", shrink=0.8, aspect=COLOUR_BAR_ASPECT)
    # Maps are square: without this, their unused space would separate them from the title.
    figure.set_layout_engine("compressed")
    return figure


COVER = 0.6
"""Opacity of a cell's colour over the picture."""


@dataclass(frozen=True)
class ImagePanel:
    """A picture with a weight per cell, and the words of its question, if any, with a weight per word.

    Attributes:
        title: title of the panel.
        pixels: `[height][width][3]`, from 0 to 1.
        cells: `[rows][columns]`, the weights of the picture's cells.
        words: words of the question; empty without a question.
        word_weights: one weight per word.
    """

    title: str
    pixels: Any
    cells: Sequence[Sequence[float]]
    words: Sequence[str] = ()
    word_weights: Sequence[float] = ()


def draw_image_attention(panels: Sequence[ImagePanel], *, title: str, cells: str = "weight of a cell (rollout)") -> Any:
    """Return the `matplotlib` figure of pictures under the weights of their cells, with the weights of words below.

    Args:
        panels: one or more panels, side by side.
        title: title of the whole picture.
        cells: label of the weights of cells.
    """
    rows = 2 if panels[0].words else 1
    figure, all_axes = new_figure(rows, len(panels), PANEL_WIDTH * len(panels), rows * PANEL_HEIGHT, title)
    top = max(weight for panel in panels for row in panel.cells for weight in row)
    widest = max((weight for panel in panels for weight in panel.word_weights), default=0)
    for axes, panel in zip(all_axes[: len(panels)], panels, strict=True):
        height, width = len(panel.pixels), len(panel.pixels[0])
        frame = (0, width, height, 0)
        axes.imshow(panel.pixels, extent=frame)
        image = axes.imshow(panel.cells, extent=frame, cmap=HEAT_COLOURS, vmin=0, vmax=top, alpha=COVER)
        axes.set_title(panel.title, fontsize="medium")
        axes.set_axis_off()
        figure.colorbar(image, ax=axes, label=cells)
    for axes, panel in zip(all_axes[len(panels) :], panels if rows > 1 else (), strict=True):
        places = range(len(panel.words))
        axes.barh(places, panel.word_weights, color=COLOURS[0])
        axes.set_yticks(places, panel.words)
        axes.invert_yaxis()
        axes.set_xlim(0, widest)
        axes.set_xlabel("attention of the cells to a word")
    return figure

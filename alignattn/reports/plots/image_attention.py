"""Attention over the cells of a picture, and of a question over its own words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import COLOURS, HEAT_COLOURS, PANEL_HEIGHT, PANEL_WIDTH, new_figure

COVER = 0.6
"""How much of the picture a cell's colour hides."""


@dataclass(frozen=True)
class ImagePanel:
    """A picture and its cells, and the words of a question if there is one, with a weight each.

    Attributes:
        title: what is shown.
        pixels: `[height][width][3]`, of 0 to 1.
        cells: `[rows][columns]`, the weights of the picture's cells.
        words: of the question; none where nothing is asked.
        word_weights: one a word.
    """

    title: str
    pixels: Any
    cells: Sequence[Sequence[float]]
    words: Sequence[str] = ()
    word_weights: Sequence[float] = ()


def draw_image_attention(panels: Sequence[ImagePanel], *, title: str, cells: str = "weight of a cell (rollout)") -> Any:
    """Return the `matplotlib` figure of pictures under their cells' weights, and of their words' below them.

    Args:
        panels: one or more, side by side.
        title: of the whole picture.
        cells: what the weights of cells are called.
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

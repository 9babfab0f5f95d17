"""Heat maps of attention from token to token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.reports.plots.drawing import HEAT_COLOURS, new_figure

TOKEN_INCHES = 0.2
"""Of a token's row and column, unless there are too many."""
MAP_INCHES = (3.0, 13.0)
"""Least and greatest width and height of a map's cells."""
LABEL_INCHES = 1.1
"""What the labels of the tokens and the axes need beside the cells, and below them."""
COLOUR_BAR_INCHES = 0.9
COLOUR_BAR_ASPECT = 30
MAP_TITLE_INCHES = 0.9
POINTS_AN_INCH = 72
LABEL_SHARE = 0.75
"""Height of a token's label, as a share of its row's."""
MAX_LABEL = 9.0
"""In points."""


@dataclass(frozen=True)
class TokenMapPanel:
    """How the tokens of one text attend to each other, or to those of another.

    Attributes:
        title: what is shown.
        tokens: n labels, of the queries.
        weights: `[n][m]`, a row a query.
        attended: m labels, of the keys; None where they are of the same tokens.
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
        panels: one or more.
        title: of the whole picture.
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
        # A dollar sign in a text is no formula.
        axes.set_xticks(range(len(panel.keys)), panel.keys, rotation=90, fontsize=label_size)
        axes.set_yticks(range(len(panel.tokens)), panel.tokens, fontsize=label_size)
        axes.set_xlabel("key (token attended to)")
        axes.set_ylabel("query (token that attends)")
        axes.set_title(panel.title, fontsize="medium")
    figure.colorbar(image, ax=list(all_axes), label="attention weight", shrink=0.8, aspect=COLOUR_BAR_ASPECT)
    # Maps are square: without this the room that they leave over would stand between them and the title.
    figure.set_layout_engine("compressed")
    return figure

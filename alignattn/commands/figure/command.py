"""`alignattn figure`: one picture of runs side by side, as PNG, SVG or PDF."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.nodes import draw_nodes
from alignattn.commands.figure.pictures import (
    draw_attention,
    draw_distance,
    draw_run_reliability,
    draw_training,
    draw_tsne,
)
from alignattn.commands.figure.rows import draw_hops, draw_question, draw_written
from alignattn.finetuning.run_folder import short_names
from alignattn.reports.plots.drawing import write_figure
from alignattn.utils.errors import AlignAttnError


def named_runs(options: FigureOptions) -> Mapping[str, Path]:
    """Return the run folders by their names in the picture."""
    folders = [Path(run) for run in options.run]
    short = short_names(folders, "--run")
    names = options.names or [short[folder] for folder in folders]
    if len(names) != len(folders) or len(set(names)) < len(names):
        raise AlignAttnError(f"--names {' '.join(names)}: give {len(folders)} different names, one for each run")
    return dict(zip(names, folders, strict=True))


DRAWN: Mapping[str, Callable[[Mapping[str, Path], FigureOptions], Any]] = {
    "tsne": draw_tsne,
    "nodes": draw_nodes,
    "attention": draw_attention,
    "hops": draw_hops,
    "question": draw_question,
    "written": draw_written,
    "reliability": draw_run_reliability,
    "distance": draw_distance,
    "curves": draw_training,
}
"""The function that draws the `matplotlib` figure of each kind."""


def make_figure(options: FigureOptions) -> Any:
    """Draw one picture of runs, write it, and return the `matplotlib` figure."""
    figure = DRAWN[options.kind](named_runs(options), options)
    write_figure(figure, Path(options.output_file))
    print(f"written to {options.output_file}")
    return figure

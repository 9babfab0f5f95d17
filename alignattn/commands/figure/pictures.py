"""Pictures of runs side by side, drawn from the files in their folders."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.heads import choose_examples
from alignattn.evaluation.calibration.predictions import Predictions, read_predictions
from alignattn.finetuning.heads import tsne_panel, view_head
from alignattn.finetuning.logs import (
    AS_IS_NAME,
    BALANCED_NAME,
    DISTANCE_NAME,
    FLOOR_NAME,
    X_LABEL,
    Y_LABELS,
    curve_panels,
    curves_of,
    read_log_history,
)
from alignattn.finetuning.results import PREDICTIONS_FILE
from alignattn.reports.diagrams import reliability_panel
from alignattn.reports.plots.bars import draw_points
from alignattn.reports.plots.comparisons import draw_reliability
from alignattn.reports.plots.lines import CurvePanel, draw_curves
from alignattn.reports.plots.maps import draw_token_maps
from alignattn.tasks.task import PROBABILITIES
from alignattn.utils.errors import AlignAttnError, one_line

DISTANCE_PANELS: Mapping[str, str] = {
    DISTANCE_NAME: "mean over heads and layers",
    AS_IS_NAME: "as is",
    BALANCED_NAME: "balanced",
    FLOOR_NAME: "floor: two halves of one cloud",
}
"""Titles of the panels, by the logged name."""


def draw_tsne(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the t-SNE of a head's queries and keys, one panel per run (Zhang et al. 2021, figure 1 a, b).

    The queries and keys of a run are projected together. If there are more than `max_tokens` tokens, `max_tokens` of
    them are sampled.
    """
    examples = choose_examples(list(runs.values()), options, options.max_eval_samples)
    views = [view_head(folder, name, examples, options.layer, options.head) for name, folder in runs.items()]
    for view in views:
        if options.balanced and view.reason_unbalanced is not None:
            raise AlignAttnError(f"--balanced: {view.name}: {view.reason_unbalanced}")
    panels = [
        tsne_panel(view, max_tokens=options.max_tokens, seed=options.seed, balanced=options.balanced) for view in views
    ]
    title = f"t-SNE of queries and keys{', balanced' if options.balanced else ''}, {examples.description}"
    return draw_points(panels, x_label="t-SNE dimension 1", y_label="t-SNE dimension 2", title=title)


def draw_attention(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return heat maps of a head's attention in one example, one per run (Zhang et al. 2021, figures 1 and 3)."""
    examples = choose_examples(list(runs.values()), options, num_rows=1)
    views = [view_head(folder, name, examples, options.layer, options.head) for name, folder in runs.items()]
    panels = [view.attention_panels()[0] for view in views]
    return draw_token_maps(panels, title=f"attention, {examples.description}")


def draw_run_reliability(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the reliability diagrams of runs side by side."""
    panels = []
    for name, folder in runs.items():
        predictions = _read_probabilities(folder)
        chosen = options.split or predictions.split_names()[0]
        if chosen not in predictions.split_names():
            there = ", ".join(predictions.split_names())
            raise AlignAttnError(f"--split {chosen}: {folder} has predictions of {there}")
        rows = predictions.splits == chosen
        panel = reliability_panel(predictions.probabilities[rows], predictions.labels[rows])
        panels.append(replace(panel, title=f"{name}\n{chosen}, {int(rows.sum())} rows, {panel.title}"))
    return draw_reliability(panels, title="Reliability: accuracy over confidence")


def draw_distance(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the distance of queries and keys over training, one line per run."""
    curves = {name: curves_of(read_log_history(folder)) for name, folder in runs.items()}
    for name, folder in runs.items():
        if DISTANCE_NAME not in curves[name]:
            raise AlignAttnError(
                f"{folder} did not log {DISTANCE_NAME}: train another run with --log_query_key_distance true"
            )
    panels = [
        CurvePanel(title, Y_LABELS[logged], {name: of[logged] for name, of in curves.items() if logged in of})
        for logged, title in DISTANCE_PANELS.items()
        if any(logged in of_run for of_run in curves.values())
    ]
    return draw_curves(panels, names=list(runs), x_label=X_LABEL, title="Distance of queries and keys over training")


def draw_training(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the training curves of runs, one panel per quantity and one line per run."""
    panels = curve_panels({name: read_log_history(folder) for name, folder in runs.items()})
    if not panels:
        raise AlignAttnError(f"{', '.join(map(str, runs.values()))} did not log any loss: train with --logging_steps")
    return draw_curves(panels, names=list(runs), x_label=X_LABEL, title="Training curves")


def _read_probabilities(folder: Path) -> Predictions:
    path = folder / PREDICTIONS_FILE
    if not path.is_file():
        raise AlignAttnError(f"{folder} has no {PREDICTIONS_FILE}: the run has not finished, or had no evaluation rows")
    try:
        columns = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise AlignAttnError(f"cannot read {path} as a Parquet file: {one_line(error)}") from error
    if PROBABILITIES not in columns:
        raise AlignAttnError(
            f"{folder} has no probabilities: a reliability diagram needs a task with one class per row"
        )
    return read_predictions(path, label_column="label", probabilities_column=PROBABILITIES)

"""The log of a run, read from its folder without torch, and its curves over the steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from alignattn.finetuning.results import EVALUATION, NOT_SCORES
from alignattn.reports.charts import line_chart
from alignattn.reports.plots import CurvePanel
from alignattn.tasks.metrics import metric_of
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_record

STATE_FILE = "trainer_state.json"
"""transformers' name of the file with the log of a run."""

DISTANCE_NAME = "query_key_distance"
"""Name of the distance in logs, in units of the size of queries and keys."""


@dataclass(frozen=True)
class LoggedState:
    """The fields of `trainer_state.json` that are read."""

    log_history: list[dict[str, Any]]


def read_log_history(folder: Path) -> list[dict[str, Any]]:
    """Return the log entries of the run in `folder`, in order."""
    state = read_record(folder / STATE_FILE, LoggedState, "run")
    if state is None:
        raise AlignAttnError(f"{folder} has no {STATE_FILE}: the run has not finished, or logged nothing")
    return state.log_history


X_LABEL = "training step"
LOSS, TASK_LOSS = "loss", "task_loss"

Y_LABELS: Mapping[str, str] = {
    LOSS: "task loss + λ · alignment loss",
    TASK_LOSS: "task loss",
    "align_loss": "alignment loss, mean over layers",
    "eval_loss": "task loss, evaluation rows",
    "discriminator_accuracy": "discriminator accuracy (0.5: chance)",
    "critic_gap": "critic gap (0 to 2)",
    "marginal_error": "marginal error (L1)",
    DISTANCE_NAME: "distance (in units of their size)",
}
"""Axis labels of the logged quantities, in the order of the panels; evaluation scores follow."""
SCORE_LABEL, ERROR_LABEL = "score (1: perfect)", "error (0: perfect)"

LogHistory = Sequence[Mapping[str, Any]]
"""The entries of `log_history` in `trainer_state.json`."""


def curve_panels(histories: Mapping[str, LogHistory]) -> list[CurvePanel]:
    """Return a panel for each quantity that a run logged: losses, diagnostics, scores of the evaluation.

    The loss of a run without alignment is its task loss, and is drawn with the task losses of the others.

    Args:
        histories: the logs by the name of the run.
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in histories}
    for run, history in histories.items():
        for entry in history:
            for name, value in entry.items():
                is_score = name.startswith(EVALUATION) and not name.endswith(NOT_SCORES)
                if (name in Y_LABELS or is_score) and isinstance(value, int | float) and math.isfinite(value):
                    curves[run].setdefault(name, []).append((float(entry["step"]), float(value)))
    if any(TASK_LOSS in of_run for of_run in curves.values()):
        for of_run in curves.values():
            if LOSS in of_run:
                of_run.setdefault(TASK_LOSS, of_run[LOSS])
    logged = dict.fromkeys(quantity for of_run in curves.values() for quantity in of_run)
    shown = [quantity for quantity in Y_LABELS if quantity in logged]
    # A resumed run has read its entries from a file with sorted names.
    shown += sorted(quantity for quantity in logged if quantity not in Y_LABELS)
    return [
        CurvePanel(
            quantity,
            _y_label(quantity),
            {name: of_run[quantity] for name, of_run in curves.items() if quantity in of_run},
        )
        for quantity in shown
    ]


def _y_label(quantity: str) -> str:
    if quantity in Y_LABELS:
        return Y_LABELS[quantity]
    if quantity.endswith("_loss"):
        return Y_LABELS["eval_loss"]
    return ERROR_LABEL if metric_of(quantity).lower_is_better else SCORE_LABEL


def training_charts(log_history: LogHistory) -> dict[str, Markup]:
    """Return a chart of each quantity that one run logged, by its name."""
    return {
        panel.title: line_chart(panel.series, title=panel.title, x_label=X_LABEL, y_label=panel.y_label)
        for panel in curve_panels({"run": log_history})
    }

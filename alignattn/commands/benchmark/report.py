"""The output of the benchmark: CSV files, a table with one line per attention, shape and phase, and pictures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.benchmark import REPEATS_FILE, SUMMARY_FILE, Shape
from alignattn.commands.benchmark.step_timing import PHASES, Measurement, Phase
from alignattn.reports.plots.bars import BarPanel, Spread, draw_bars
from alignattn.reports.plots.drawing import write_figure
from alignattn.reports.plots.lines import CurvePanel, draw_curves
from alignattn.utils.files import write_csv
from alignattn.utils.text_tables import render_table

BYTES_A_MEBIBYTE = 2**20

Conditions = Mapping[str, Any]
"""The conditions of a run: the last columns of `benchmark.csv`."""


@dataclass(frozen=True)
class StepCost:
    """The cost of one attention at one shape in one phase.

    Attributes:
        attention: a preset's name; `soft` is the model without a patch.
        phase: `training`: forward, loss and backward, no optimizer; `evaluation`: forward without gradients.
        shape: number of rows, and of tokens of the longest; the other rows have a quarter to all of its length.
        median_seconds: median time of a step over the repeats.
        ratio: ratio of a step's time to that of `soft` in the same repeat: median and quartiles.
        peak_mib: peak memory of a step in MiB (2^20 bytes), beyond what was allocated before it (parameters, the
            batch).
        extra_mib: `peak_mib` minus that of `soft`.
        diagnostics: diagnostics of the alignment, mean over layers and repeats: `name=value`, separated by spaces.
        parameters: number of the model's parameters, including the alignment's networks.
    """

    attention: str
    phase: Phase
    shape: Shape
    median_seconds: float
    ratio: Spread
    peak_mib: float
    extra_mib: float
    diagnostics: str
    parameters: int

    def line(self) -> dict[str, Any]:
        """Return the columns of `benchmark.csv` without the conditions."""
        return {
            "attention": self.attention,
            "phase": self.phase,
            "batch": self.shape.batch,
            "length": self.shape.length,
            "median_seconds": self.median_seconds,
            "ratio_median": self.ratio.median,
            "ratio_q25": self.ratio.low,
            "ratio_q75": self.ratio.high,
            "peak_mib": self.peak_mib,
            "extra_mib": self.extra_mib,
            "parameters": self.parameters,
            "diagnostics": self.diagnostics,
        }


def costs_of(measurement: Measurement) -> list[StepCost]:
    """Return the cost of each attention of a measurement."""
    soft_seconds = np.array(measurement.seconds[PLAIN_ATTENTION])
    soft_peak = measurement.peak_bytes[PLAIN_ATTENTION]
    costs = []
    for attention, seconds in measurement.seconds.items():
        low, median, high = np.quantile(np.array(seconds) / soft_seconds, (0.25, 0.5, 0.75)).tolist()
        peak = measurement.peak_bytes[attention]
        costs.append(
            StepCost(
                attention=attention,
                phase=measurement.phase,
                shape=measurement.shape,
                median_seconds=float(np.median(seconds)),
                ratio=Spread(median, low, high),
                peak_mib=peak / BYTES_A_MEBIBYTE,
                extra_mib=(peak - soft_peak) / BYTES_A_MEBIBYTE,
                diagnostics=" ".join(f"{name}={one:.4g}" for name, one in measurement.diagnostics[attention].items()),
                parameters=measurement.parameters[attention],
            )
        )
    return costs


def write_costs(
    folder: Path, costs: Iterable[StepCost], measurements: Iterable[Measurement], conditions: Conditions
) -> None:
    """Write `benchmark.csv`, a line per cost, and `repeats.csv`, a line for every timed step."""
    write_csv(folder / SUMMARY_FILE, ({**cost.line(), **conditions} for cost in costs))
    repeats = (
        {
            "attention": attention,
            "phase": measurement.phase,
            "batch": measurement.shape.batch,
            "length": measurement.shape.length,
            "repeat": repeat,
            "seconds": value,
        }
        for measurement in measurements
        for attention, seconds in measurement.seconds.items()
        for repeat, value in enumerate(seconds)
    )
    write_csv(folder / REPEATS_FILE, repeats)


def described(conditions: Conditions) -> str:
    """Return the model, precision and machine of a run in one line."""
    compiled = ", torch.compile" if conditions["compiled"] else ""
    threads = f"{conditions['threads']} CPU thread{'s' if conditions['threads'] > 1 else ''}"
    return "{model}, {dtype}{}, dropout {dropout}, {machine}, {}".format(compiled, threads, **conditions)


def render_costs(costs: Sequence[StepCost], conditions: Conditions) -> str:
    """Return the table as text: seconds, ratio with its quartiles, memory and diagnostics."""
    header = ["shape", "phase", "attention", "diagnostics", "seconds", "ratio [quartiles]", "peak MiB", "extra"]
    rows = [
        [
            str(cost.shape),
            cost.phase,
            cost.attention,
            cost.diagnostics,
            f"{cost.median_seconds:.4f}",
            f"{cost.ratio.median:.2f} [{cost.ratio.low:.2f}, {cost.ratio.high:.2f}]",
            f"{cost.peak_mib:.1f}",
            f"{cost.extra_mib:.1f}",
        ]
        for cost in costs
    ]
    first = f"{described(conditions)}, torch {conditions['torch']}, {conditions['repeats']} repeats"
    return f"{first}\n{render_table(header, rows, left=4)}"


def draw_ratios(path: Path, costs: Sequence[StepCost], conditions: Conditions) -> None:
    """Draw the time of each attention relative to `soft` as bars with quartiles, one group per shape."""
    names = _attentions(costs)
    panels = [
        BarPanel(
            phase,
            list(dict.fromkeys(str(cost.shape) for cost in costs)),
            {
                name: [cost.ratio for cost in costs if (cost.phase, cost.attention) == (phase, name)]
                for name in names
                if name != PLAIN_ATTENTION
            },
        )
        for phase in PHASES
    ]
    y_label = f"time of a step / {PLAIN_ATTENTION}"
    figure = draw_bars(panels, names=names, y_label=y_label, reference=1.0, title=described(conditions))
    write_figure(figure, path)


def draw_growth(path: Path, costs: Sequence[StepCost], conditions: Conditions) -> None:
    """Draw time and peak memory of a training step over the length.

    At short lengths the gradients may set the peak, which then does not show the memory that the forward keeps.

    Args:
        path: the picture.
        costs: costs at the lengths to draw, in ascending order, at the same number of rows or about the same number
            of tokens.
        conditions: conditions of the run.
    """
    training = [cost for cost in costs if cost.phase == "training"]
    names = _attentions(training)
    rows = {cost.shape.batch for cost in training}
    tokens = max(cost.shape.batch * cost.shape.length for cost in training)
    has_guide = len(rows) == 1
    batch = f"{rows.pop()} row(s)" if has_guide else f"{tokens} tokens"

    def panel(title: str, unit: str, column: str, attentions: Sequence[str]) -> CurvePanel:
        return CurvePanel(
            title,
            unit,
            {
                name: [(cost.shape.length, cost.line()[column]) for cost in training if cost.attention == name]
                for name in attentions
            },
        )

    panels = [
        panel("time", "seconds", "median_seconds", names),
        panel("peak memory", "MiB", "peak_mib", names),
        panel(
            f"peak memory beyond {PLAIN_ATTENTION}",
            "MiB",
            "extra_mib",
            [name for name in names if name != PLAIN_ATTENTION],
        ),
    ]
    title = f"Training step: {described(conditions)}"
    x_label = f"length in tokens (batch: {batch})"
    figure = draw_curves(panels, names=names, x_label=x_label, title=title, doubles=True, has_guide=has_guide)
    write_figure(figure, path)


def _attentions(costs: Iterable[StepCost]) -> list[str]:
    return list(dict.fromkeys(cost.attention for cost in costs))

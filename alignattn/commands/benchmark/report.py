"""What the benchmark writes: a line an attention, shape and phase, a table of them, and pictures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.benchmark import REPEATS_FILE, SUMMARY_FILE, Shape
from alignattn.commands.benchmark.step_timing import PHASES, Measurement, Phase
from alignattn.reports.plots import BarPanel, LinePanel, Spread, draw_bars, draw_lines, write_figure
from alignattn.utils.files import write_csv

BYTES_A_MEBIBYTE = 2**20


@dataclass(frozen=True)
class Conditions:
    """What holds for a whole run.

    Attributes:
        repeats: timed steps of each attention.
        model: as it was named.
        dropout: as it was named, or `model`.
        dtype: of autocast; `float32` = none.
        compiled: whether the model went through `torch.compile`.
        device: `cpu` or `cuda`.
        machine: the name of the processor or GPU.
        threads: of the CPU.
        load_average: processes that wanted to run, over the last minute before the start.
        torch: its version.
        memory_method: how memory was measured.
    """

    repeats: int
    model: str
    dropout: str
    dtype: str
    compiled: bool
    device: str
    machine: str
    threads: int
    load_average: float
    torch: str
    memory_method: str

    def __str__(self) -> str:
        compiled = ", torch.compile" if self.compiled else ""
        where = f"{self.machine}, {self.threads} CPU thread{'s' if self.threads > 1 else ''}"
        return f"{self.model}, {self.dtype}{compiled}, dropout {self.dropout}, {where}"


@dataclass(frozen=True)
class StepCost:
    """What was found of one attention at one shape in one phase.

    Attributes:
        attention: a preset's name; `soft` is the model without a patch.
        phase: `training`: forward, loss and backward, no optimizer; `evaluation`: forward without gradients.
        shape: rows, and tokens of the longest; the others have a quarter of it to all of it.
        median_seconds: of one step, over the repeats.
        ratio: of a step's seconds to those of `soft` in the same repeat.
        peak_mib: most memory that a step held at once, in MiB of 2^20 bytes, beyond what was allocated before
            it (parameters, the batch).
        extra_mib: `peak_mib` less that of `soft`.
        diagnostics: the alignment's, mean over layers and repeats.
        parameters: how many the model has, those of the alignment's networks included.
    """

    attention: str
    phase: Phase
    shape: Shape
    median_seconds: float
    ratio: Spread
    peak_mib: float
    extra_mib: float
    diagnostics: dict[str, float]
    parameters: int

    def line(self, conditions: Conditions) -> dict[str, Any]:
        """Return the columns of `benchmark.csv`."""
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
            "diagnostics": self.render_diagnostics(),
            **asdict(conditions),
        }

    def render_diagnostics(self) -> str:
        """Return the diagnostics as `name=value`, with blanks between."""
        return " ".join(f"{name}={value:.4g}" for name, value in self.diagnostics.items())


def write_costs(
    folder: Path, costs: Iterable[StepCost], measurements: Iterable[Measurement], conditions: Conditions
) -> None:
    """Write `benchmark.csv`, a line a cost, and `repeats.csv`, a line for every timed step."""
    write_csv(folder / SUMMARY_FILE, (cost.line(conditions) for cost in costs))
    write_csv(folder / REPEATS_FILE, (line for measurement in measurements for line in _repeat_lines(measurement)))


def costs_of(measurement: Measurement) -> list[StepCost]:
    """Return the cost of each attention of a measurement."""
    soft_seconds = np.array(measurement.seconds[PLAIN_ATTENTION])
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
                extra_mib=(peak - measurement.peak_bytes[PLAIN_ATTENTION]) / BYTES_A_MEBIBYTE,
                diagnostics=measurement.diagnostics[attention],
                parameters=measurement.parameters[attention],
            )
        )
    return costs


def render_costs(costs: Sequence[StepCost], conditions: Conditions) -> str:
    """Return a table in lines: seconds, ratio with its quartiles, memory and diagnostics."""
    lines = [
        f"{conditions}, torch {conditions.torch}, {conditions.repeats} repeats",
        f"{'shape':<9}{'phase':<12}{'attention':<11}{'seconds':>9}  {'ratio [quartiles]':<20}"
        f"{'peak MiB':>9}{'extra':>9}  diagnostics",
    ]
    for one in costs:
        ratio = f"{one.ratio.median:.2f} [{one.ratio.low:.2f}, {one.ratio.high:.2f}]"
        line = (
            f"{one.shape!s:<9}{one.phase:<12}{one.attention:<11}{one.median_seconds:>9.4f}  {ratio:<20}"
            f"{one.peak_mib:>9.1f}{one.extra_mib:>9.1f}  {one.render_diagnostics()}"
        )
        lines.append(line.rstrip())
    return "\n".join(lines)


def draw_ratios(path: Path, costs: Sequence[StepCost], conditions: Conditions) -> None:
    """Draw the time of each attention but `soft` as bars, a group a shape, with quartiles."""
    shapes = list(dict.fromkeys(cost.shape for cost in costs))
    panels = []
    for phase in PHASES:
        series: dict[str, list[Spread]] = {}
        for cost in costs:
            if cost.phase == phase and cost.attention != PLAIN_ATTENTION:
                series.setdefault(cost.attention, []).append(cost.ratio)
        panels.append(BarPanel(phase, [str(shape) for shape in shapes], series))
    y_label = f"time of a step / {PLAIN_ATTENTION}"
    figure = draw_bars(panels, names=_attentions(costs), y_label=y_label, reference=1.0, title=str(conditions))
    write_figure(figure, path)


def draw_growth(path: Path, costs: Sequence[StepCost], conditions: Conditions) -> None:
    """Draw time and peak memory of a training step over the length.

    At short lengths the gradients may outweigh all that the forward keeps, and hide it from the peak.

    Args:
        path: the picture.
        costs: those at the lengths to draw, by rising length; of equal rows, or about equal tokens.
        conditions: of the run.
    """
    training = [cost for cost in costs if cost.phase == "training"]
    lengths = list(dict.fromkeys(cost.shape.length for cost in training))
    names = _attentions(training)
    rows = {cost.shape.batch for cost in training}
    has_guide = len(rows) == 1
    tokens = max(cost.shape.batch * cost.shape.length for cost in training)
    batch = f"{rows.pop()} row(s)" if has_guide else f"{tokens} tokens"

    def series(value: Callable[[StepCost], float], attentions: Sequence[str]) -> dict[str, list[float]]:
        return {name: [value(cost) for cost in training if cost.attention == name] for name in attentions}

    aligned = [name for name in names if name != PLAIN_ATTENTION]
    panels = [
        LinePanel("time", "seconds", lengths, series(lambda cost: cost.median_seconds, names), has_guide),
        LinePanel("peak memory", "MiB", lengths, series(lambda cost: cost.peak_mib, names), has_guide),
        LinePanel(
            f"peak memory beyond {PLAIN_ATTENTION}",
            "MiB",
            lengths,
            series(lambda cost: cost.extra_mib, aligned),
            has_guide,
        ),
    ]
    x_label = f"length in tokens (batch: {batch})"
    write_figure(draw_lines(panels, names=names, x_label=x_label, title=f"Training step: {conditions}"), path)


def _attentions(costs: Iterable[StepCost]) -> list[str]:
    return list(dict.fromkeys(cost.attention for cost in costs))


def _repeat_lines(measurement: Measurement) -> Iterable[dict[str, Any]]:
    for attention, seconds in measurement.seconds.items():
        for repeat, value in enumerate(seconds):
            yield {
                "attention": attention,
                "phase": measurement.phase,
                "batch": measurement.shape.batch,
                "length": measurement.shape.length,
                "repeat": repeat,
                "seconds": value,
            }

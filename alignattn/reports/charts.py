"""Charts of lines and of calibration as `<svg>` elements of a page, drawn without matplotlib, which is an extra."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from alignattn.evaluation.calibration.measures import ECE_BINS, expected_calibration_error, reliability
from alignattn.evaluation.calibration.scaling import apply_temperature
from alignattn.evaluation.calibration.selective import risk_coverage, shift_auroc, shift_auroc_interval
from alignattn.evaluation.calibration.summary import summarise
from alignattn.evaluation.estimates import Estimate, EstimatesByState
from alignattn.reports.plots import COLOURS, ReliabilityPanel

WIDTH, HEIGHT = 420, 280
"""Sizes are in pixels of the picture, which scales with the page."""
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 44
"""Margins around the axes."""
LEGEND_HEIGHT = 18
TICKS = 5
"""Approximate number of intervals of an axis."""
MAX_POINTS = 400
"""Maximum number of points drawn of a line, evenly spaced."""
MAX_DOTS = 40
"""Maximum number of points of a line with a dot at each point, whose tooltip shows the numbers."""
DASHES = ("", "6 3", "2 3", "8 3 2 3")

Line = Sequence[tuple[float, float]]
"""Points, x and y."""

AREA = "area_under_risk_coverage"
"""A key of `alignattn.evaluation.calibration.FIGURES`."""


def line_chart(
    lines: Mapping[str, Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    is_of_shares: bool = False,
    stairs: bool = False,
) -> Markup:
    """Return a chart of lines on common axes.

    Args:
        lines: lines of finite points, by the name in the legend; a single line has no legend.
        title: the title.
        x_label: quantity and unit.
        y_label: quantity and unit.
        is_of_shares: whether both axes go from 0 to 1.
        stairs: whether a value holds until the next point.
    """
    points = [point for line in lines.values() for point in line]
    x_ticks, y_ticks = (
        [share / TICKS for share in range(TICKS + 1)] if is_of_shares else _ticks(min(values), max(values))
        for values in zip(*points, strict=True)
    )

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    names = list(lines) if len(lines) > 1 else []
    parts = [
        Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}">').format(
            title, WIDTH, HEIGHT + LEGEND_HEIGHT * len(names)
        )
    ]
    text = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    for value in y_ticks:
        y = y_of(value)
        parts.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - RIGHT))
        parts.append(text.format(LEFT - 6, y + 4, "end", f"{value:.6g}"))
    parts += [text.format(x_of(value), HEIGHT - BOTTOM + 16, "middle", f"{value:.6g}") for value in x_ticks]
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(text.format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", x_label))
    upright = Markup('<text transform="translate(13 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>')
    parts.append(upright.format(middle, y_label))
    for index, (name, line) in enumerate(lines.items()):
        stride = math.ceil(len(line) / MAX_POINTS)
        kept = line if stride <= 1 else [*line[:-1:stride], line[-1]]
        corners = [(x_of(x), y_of(y)) for x, y in kept]
        path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" if stairs else f"L{x:.1f} {y:.1f}" for x, y in corners[1:]
        )
        colour = COLOURS[index % (len(COLOURS) - 1)]
        style = Markup('stroke="{}" stroke-dasharray="{}"').format(colour, DASHES[index % len(DASHES)])
        parts.append(Markup('<path class="line" d="{}" {}/>').format(path, style))
        if len(kept) <= MAX_DOTS:
            dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="{}"><title>{}</title></circle>')
            parts += [
                dot.format(*corner, colour, f"{f'{name}: ' if names else ''}{x:.6g}, {y:.4g}")
                for corner, (x, y) in zip(corners, kept, strict=True)
            ]
        if names:
            y = HEIGHT + LEGEND_HEIGHT * (index + 0.5)
            parts.append(Markup('<path class="line" d="M{} {}h24" {}/>').format(LEFT, y - 4, style))
            parts.append(text.format(LEFT + 32, y, "start", name))
    return Markup("").join([*parts, Markup("</svg>")])


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances, the first at most `low` and the last at least `high`."""
    span = high - low or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * TICKS >= span * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def reliability_chart(panel: ReliabilityPanel) -> Markup:
    """Return the reliability diagram of bins; a dot shows the mean confidence and the accuracy of a bin."""
    bins = zip(panel.confidence, panel.accuracy, panel.counts, strict=True)
    found = [(confidence, accuracy) for confidence, accuracy, count in bins if count]
    lines: dict[str, Line] = {"rows by confidence": found, "perfect calibration": [(0, 0), (1, 1)]}
    return line_chart(lines, title=panel.title, x_label="confidence", y_label="accuracy", is_of_shares=True)


def confidence_chart(panel: ReliabilityPanel) -> Markup:
    """Return the histogram of confidence that belongs to a reliability diagram, with its bins."""
    starts = [(index / len(panel.counts), count) for index, count in enumerate(panel.counts)]
    steps: dict[str, Line] = {"rows": [(0, 0), *starts, (1, 0)]}
    return line_chart(steps, title="rows by confidence", x_label="confidence", y_label="rows", stairs=True)


@dataclass(frozen=True)
class ScaledPredictions:
    """Predictions of rows, as saved and after temperature scaling.

    Attributes:
        probabilities: `[N, C]` by state: `before` and `after` temperature scaling.
        labels: `[N]`.
        temperature: the temperature of `after`; None without this state.
    """

    probabilities: Mapping[str, NDArray[np.float64]]
    labels: NDArray[np.int64]
    temperature: float | None = None

    @classmethod
    def by_temperature(
        cls, probabilities: NDArray[np.float64], labels: NDArray[np.int64], temperature: float
    ) -> "ScaledPredictions":
        """Return predictions before and after temperature scaling."""
        after = apply_temperature(probabilities, temperature)
        return cls({"before": probabilities, "after": after}, labels, temperature)

    def estimates(self, **drawn: Any) -> EstimatesByState:
        """Return the figures of each state; arguments as for `summarise`."""
        return {state: summarise(rows, self.labels, **drawn) for state, rows in self.probabilities.items()}

    def shifts_to(self, other: "ScaledPredictions", **drawn: Any) -> dict[str, Estimate]:
        """Return how well confidence separates these rows from others (AUROC), for each state that both have.

        Args:
            other: predictions of rows outside the domain.
            **drawn: as for `shift_auroc_interval`.
        """
        return {
            state: Estimate(
                shift_auroc(rows, other.probabilities[state]),
                shift_auroc_interval(rows, other.probabilities[state], **drawn),
            )
            for state, rows in self.probabilities.items()
            if state in other.probabilities
        }

    def charts(self, estimates: EstimatesByState, num_bins: int = ECE_BINS) -> dict[str, Markup]:
        """Return a reliability diagram per state and a chart of risk over coverage, by captions with the figures.

        Args:
            estimates: the result of `estimates`.
            num_bins: number of bins of the diagrams and their errors.
        """
        by_state = {"before": "as saved", "after": f"temperature {self.temperature or 1:.2f}"}
        names = {state: by_state[state] for state in self.probabilities}
        panels = [
            reliability_panel(rows, self.labels, num_bins, names[state]) for state, rows in self.probabilities.items()
        ]
        curves = {names[state]: risk_coverage(rows, self.labels) for state, rows in self.probabilities.items()}
        areas = (f"AURC {percent_text(estimates[state][AREA], unit=' %')} {name}" for state, name in names.items())
        caption = f"risk over coverage: {', '.join(areas)}"
        chart = line_chart(
            {
                name: list(zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True))
                for name, curve in curves.items()
            },
            title=caption,
            x_label="coverage: share of rows with an answer",
            y_label="risk: share of wrong answers",
            stairs=True,
        )
        return {panel.title: reliability_chart(panel) for panel in panels} | {caption: chart}


def reliability_panel(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], num_bins: int = ECE_BINS, how: str = "as saved"
) -> ReliabilityPanel:
    """Return the reliability diagram of probabilities, with its error in the title.

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`.
        num_bins: number of bins of the diagram and its error.
        how: how the probabilities were obtained, for the title.
    """
    bins = reliability(probabilities, labels, num_bins)
    error = expected_calibration_error(probabilities, labels, num_bins)
    return ReliabilityPanel(
        f"{how}: ECE {100 * error:.1f} %", bins.confidence.tolist(), bins.accuracy.tolist(), bins.counts.tolist()
    )


def interval_text(estimate: Estimate, digits: int = 1, factor: float = 100) -> str:
    """Return the ends of an estimate's interval; empty without an interval."""
    ends = estimate.interval
    return "" if ends is None else f"{factor * ends.low:.{digits}f}–{factor * ends.high:.{digits}f}"


def percent_text(estimate: Estimate, digits: int = 1, unit: str = "") -> str:
    """Return a share in percent, with its interval in brackets after the unit."""
    ends = interval_text(estimate, digits)
    return f"{100 * estimate.value:.{digits}f}{unit}{f' ({ends})' if ends else ''}"

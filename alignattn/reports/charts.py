"""Line charts as `<svg>` elements of a page, drawn without matplotlib, which is an extra."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from alignattn.reports.plots.comparisons import ReliabilityPanel
from alignattn.reports.plots.drawing import COLOURS, cycled

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
        kept = _thinned(line)
        corners = [(x_of(x), y_of(y)) for x, y in kept]
        path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" if stairs else f"L{x:.1f} {y:.1f}" for x, y in corners[1:]
        )
        colour = cycled(COLOURS[:-1], index)
        style = Markup('stroke="{}" stroke-dasharray="{}"').format(colour, cycled(DASHES, index))
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


def _thinned(line: Line) -> Line:
    stride = math.ceil(len(line) / MAX_POINTS)
    return line if stride <= 1 else [*line[:-1:stride], line[-1]]


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

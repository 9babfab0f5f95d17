"""Pictures of results: what is drawn is given as numbers by name, and a path's ending chooses the format."""

from alignattn.reports.plots.bars import (
    BarPanel,
    PointPanel,
    Spread,
    draw_bars,
    draw_overview,
    draw_points,
)
from alignattn.reports.plots.comparisons import (
    DifferenceLine,
    DifferencePanel,
    ReliabilityPanel,
    draw_differences,
    draw_reliability,
)
from alignattn.reports.plots.drawing import COLOURS, MARKERS, svg_text, write_figure
from alignattn.reports.plots.lines import (
    CoveragePanel,
    CurvePanel,
    LinePanel,
    draw_curves,
    draw_lines,
    draw_risk_coverage,
)
from alignattn.reports.plots.maps import (
    HeatMapPanel,
    ImagePanel,
    TokenMapPanel,
    draw_heat_maps,
    draw_image_attention,
    draw_token_maps,
)

__all__ = [
    "COLOURS",
    "MARKERS",
    "BarPanel",
    "CoveragePanel",
    "CurvePanel",
    "DifferenceLine",
    "DifferencePanel",
    "HeatMapPanel",
    "ImagePanel",
    "LinePanel",
    "PointPanel",
    "ReliabilityPanel",
    "Spread",
    "TokenMapPanel",
    "draw_bars",
    "draw_curves",
    "draw_differences",
    "draw_heat_maps",
    "draw_image_attention",
    "draw_lines",
    "draw_overview",
    "draw_points",
    "draw_reliability",
    "draw_risk_coverage",
    "draw_token_maps",
    "svg_text",
    "write_figure",
]

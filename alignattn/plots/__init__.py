"""Pictures of results: what is drawn is given as numbers by name, and a path's ending chooses the format."""

from alignattn.plots.bars import BarPanel, Spread, draw_bars
from alignattn.plots.curves import CurvePanel, draw_curves
from alignattn.plots.differences import DifferenceLine, DifferencePanel, draw_differences
from alignattn.plots.drawing import COLOURS, MARKERS, svg_text, write_figure
from alignattn.plots.growth import LinePanel, draw_lines
from alignattn.plots.heat_maps import HeatMapPanel, draw_heat_maps
from alignattn.plots.image_attention import ImagePanel, draw_image_attention
from alignattn.plots.overview import draw_overview
from alignattn.plots.points import PointPanel, draw_points
from alignattn.plots.reliability import ReliabilityPanel, draw_reliability
from alignattn.plots.risk_coverage import CoveragePanel, draw_risk_coverage
from alignattn.plots.token_maps import TokenMapPanel, draw_token_maps

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

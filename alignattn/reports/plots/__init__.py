"""Pictures of results: what is drawn is given as numbers by name, and a path's ending chooses the format."""

from alignattn.reports.plots.bars import BarPanel, Spread, draw_bars
from alignattn.reports.plots.curves import CurvePanel, draw_curves
from alignattn.reports.plots.differences import DifferenceLine, DifferencePanel, draw_differences
from alignattn.reports.plots.drawing import COLOURS, MARKERS, svg_text, write_figure
from alignattn.reports.plots.growth import LinePanel, draw_lines
from alignattn.reports.plots.heat_maps import HeatMapPanel, draw_heat_maps
from alignattn.reports.plots.image_attention import ImagePanel, draw_image_attention
from alignattn.reports.plots.overview import draw_overview
from alignattn.reports.plots.points import PointPanel, draw_points
from alignattn.reports.plots.reliability import ReliabilityPanel, draw_reliability
from alignattn.reports.plots.risk_coverage import CoveragePanel, draw_risk_coverage
from alignattn.reports.plots.token_maps import TokenMapPanel, draw_token_maps

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

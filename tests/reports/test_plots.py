"""Plots: shapes are at the places of their numbers, for any texts, in the format of the suffix of the file."""

import itertools

import pytest

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.comparison import Comparison
from alignattn.reports import plots
from alignattn.reports.measures import Measure
from alignattn.reports.plots import (
    CurvePanel,
    HeatMapPanel,
    PointPanel,
    draw_curves,
    draw_heat_maps,
    draw_points,
    write_figure,
)
from alignattn.reports.table import Cell, ResultTable
from alignattn.reports.writers import MAX_ABREAST, differences_figure

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_heat_map_has_a_row_and_a_column_per_name():
    panels = [
        HeatMapPanel("a", ["K", "AE"], ["c", "a", "$t$"], [[0.1, 0.2, 0.7], [0.0, 0.5, 0.5]]),
        HeatMapPanel("b", ["x", "y"], ["x", "y"], [[1.0, 0.0], [0.25, 0.75]]),
        HeatMapPanel("c", [0, 1], [0], [[2.0], [3.0]], top=4),
    ]
    figure = draw_heat_maps(panels, x_label="key", y_label="query", title="all", colour_label="weight")
    for panel, axes, top in zip(panels, figure.axes[:3], (3, 3, 4), strict=True):
        (drawn,) = axes.images
        assert drawn.get_array().tolist() == panel.values
        assert drawn.get_clim() == (0, top)
        assert drawn.origin == "upper"
        assert labels_of(axes.yaxis) == [str(name) for name in panel.rows]
        assert labels_of(axes.xaxis) == [str(name) for name in panel.columns]
        assert axes.get_title() == panel.title
    assert {axes.get_ylabel() for axes in figure.axes[3:]} == {"weight"}


def test_cells_without_a_number_are_blank_and_maps_continue_in_further_rows():
    panel = HeatMapPanel("a", [0], [0, 1], [[float("nan"), 1.0]])
    figure = draw_heat_maps([panel] * 5, x_label="x", y_label="y", title="all")
    assert figure.axes[0].images[0].get_array().mask.tolist() == [[True, False]]
    assert [axes.get_title() for axes in figure.axes[:5]] == ["a"] * 5


def differences(*cells):
    """The figure of cells, each given by its row, its column and its comparison."""
    measure = Measure(label="accuracy out, after")
    table = [Cell(row=row, column=column, measure=measure, comparison=compared) for row, column, compared in cells]
    return differences_figure(ResultTable(name="table", title="all", cells=table))


def test_differences_stand_in_their_rows_with_their_intervals():
    noise, gain = (
        Comparison(0.01, Interval(-0.005, 0.025), 0.4, 0.4, "", 3),
        Comparison(0.03, None, 0.01, 0.01, "", 3),
    )
    figure = differences(("aa-ct", "MRPC", noise), ("aa-ot", "RTE", gain), ("soft + $x$", "MRPC", gain))
    axes = figure.axes[0]
    drawn = [(list(line.get_xdata()), list(line.get_ydata()), line.get_marker()) for line in axes.lines[1:]]
    assert drawn == [([-0.5, 2.5], [0, 0], "None"), ([1.0], [0], "o"), ([3.0], [2], "D")]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["aa-ct", "aa-ot", "soft + $x$"]
    assert axes.get_ylim() == (2.5, -0.5)


def test_many_panels_continue_in_further_rows_and_their_long_titles_do_not_overlap():
    gain = Comparison(0.03, None, 0.01, 0.01, "", 3)
    figure = differences(*(("aa-ct", f"MRPC → TwitterPPDB {place}", gain) for place in range(MAX_ABREAST + 1)))
    assert len({axes.get_subplotspec().colspan.start for axes in figure.axes}) <= MAX_ABREAST
    assert sum(axes.axison for axes in figure.axes) == MAX_ABREAST + 1
    figure = differences(*(("aa-ct", f"MRPC → TwitterPPDB {place}", gain) for place in range(MAX_ABREAST)))
    figure.draw_without_rendering()
    boxes = [axes.title.get_window_extent() for axes in figure.axes]
    assert not any(left.overlaps(right) for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize("suffix", STARTS)
@pytest.mark.parametrize("name", ["plain", "$not math", r"$\\frac$", "<b>&\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_any_text_is_drawn_in_any_format(name, suffix, tmp_path):
    figure = draw_points([PointPanel(name, {name: [(0, 1), (1, 0)]})], x_label="x", y_label="y", title=name)
    write_figure(figure, tmp_path / f"points.{suffix}")
    assert (tmp_path / f"points.{suffix}").read_bytes().startswith(STARTS[suffix])


def test_panels_of_other_series_have_their_own_colours_and_one_legend():
    clouds = {name: [(0, 1), (1, 0)] for name in ("a", "b", "c")}
    panels = [PointPanel("", {name: clouds[name] for name in names}) for names in ("ab", "cb")]
    figure = draw_points(panels, x_label="", y_label="", title="")
    colours = [[tuple(cloud.get_facecolor()[0]) for cloud in axes.collections] for axes in figure.axes]
    assert colours[0][1] == colours[1][1]
    assert len({*colours[0], *colours[1]}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]


def test_many_curves_have_distinct_colours_and_markers():
    names = [f"run {number}" for number in range(20)]
    panel = CurvePanel("", "", {name: [(0, 1), (1, 0)] for name in names})
    (axes,) = draw_curves([panel], names=names, x_label="", title="").axes
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == len(names)


def titled(*titles):
    panels = [PointPanel(title, {"soft": [(0, 1), (1, 0)]}) for title in titles]
    return draw_points(panels, x_label="", y_label="", title="")


@pytest.mark.parametrize(("ending", "said"), [("png", ["练", "训"]), ("svg", [])])
def test_characters_that_no_font_has_are_one_line(ending, said, tmp_path, monkeypatch, caplog, recwarn):
    own = {plots.FONT: plots._faces()[plots.FONT]}
    monkeypatch.setattr(plots, "_faces", lambda: own)
    write_figure(titled("训练", "练"), tmp_path / f"points.{ending}")
    assert [message.partition(":")[0] for message in caplog.messages] == [
        f"no font on this machine has {', '.join(said)}"
    ] * bool(said)
    assert not recwarn.list


def test_characters_of_another_font_are_drawn_in_it(tmp_path, caplog, recwarn):
    # A script letter, which the mathematical fonts of matplotlib have and its text font lacks.
    figure = titled("\U0001d49c")
    write_figure(figure, tmp_path / "bars.pdf")
    assert not caplog.messages
    assert not recwarn.list
    assert b"Math" in (tmp_path / "bars.pdf").read_bytes()
    # The next drawing of the figure uses only the text font again.
    write_figure(figure, tmp_path / "bars.svg")
    assert b"Math" not in (tmp_path / "bars.svg").read_bytes()

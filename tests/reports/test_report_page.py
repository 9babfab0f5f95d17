"""The page of a report: in a real browser, with texts that contain HTML, and without empty parts."""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import NARROW, WIDE, find, forget_logs, needs_browser, requested, resize

from alignattn.reports.charts import MAX_POINTS, line_chart, reliability_chart, reliability_panel
from alignattn.reports.pages import Section, Shaded, write_report

NASTY = '</table><script>alert("1")</script><img src=x onerror=alert(2)> & ü'


def sections() -> list[Section]:
    chart = line_chart({NASTY: [(1, 2), (2, 3)], "other": [(1, 1.5)]}, title=NASTY, x_label=NASTY, y_label="loss")
    return [
        Section(
            title=NASTY, notes=[NASTY], header=[NASTY, "n"], rows=[[NASTY, Shaded(NASTY, 0.5)]], charts={NASTY: chart}
        ),
        Section(title="nothing to show", notes=["left out"]),
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(path, NASTY, {NASTY: NASTY}, sections())
    return path


@needs_browser
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_in_a_browser_it_fetches_nothing_and_shows_texts_as_they_are(browser: Any, page: Path, width: int) -> None:
    resize(browser, width)
    browser.get("about:blank")
    forget_logs(browser)
    browser.get(page.as_uri())
    assert requested(browser) == [page.as_uri()]
    assert browser.get_log("browser") == []
    assert find(browser, "script, main img") == []
    assert [cell.text for cell in find(browser, "tbody tr > *")] == [NASTY, NASTY]
    assert find(browser, "h1")[0].text == NASTY
    chart = find(browser, "svg.chart")[0]
    assert 0 < chart.size["width"] <= width
    assert NASTY in [text.text for text in chart.find_elements("css selector", "text")]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_an_empty_part_is_left_out(page: Path) -> None:
    text = page.read_text()
    assert "nothing to show" not in text
    assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", text)


def points_of(chart: str) -> list[tuple[float, float]]:
    path = next(one for one in ElementTree.fromstring(chart).iter("path") if one.get("class") == "line")
    return [tuple(map(float, pair.split())) for pair in re.split("[ML]", path.get("d"))[1:]]


@pytest.mark.parametrize(
    "values",
    [[3.0], [2.0, 2.0], [0.0, 0.0], [-1e-9, 1e-9], [1e12, 3e12], [-5.0, 0.1, 7.3], [0.1 + 0.2, 0.3]],
)
def test_points_lie_within_the_axes_and_keep_their_order(values: list[float]) -> None:
    chart = line_chart({"run": list(enumerate(values))}, title="", x_label="step", y_label="loss")
    points = points_of(chart)
    assert len(points) == len(values)
    assert all(50 <= x <= 420 and 0 <= y <= 280 for x, y in points)
    heights = [-y for _, y in points]
    for index in range(1, len(values)):
        if not math.isclose(values[index], values[index - 1], rel_tol=1e-6):
            assert (heights[index] > heights[index - 1]) == (values[index] > values[index - 1])


def test_a_long_line_is_thinned_and_ends_where_it_ends() -> None:
    line = [(step, step % 7) for step in range(100_000)]
    chart = line_chart({"run": line}, title="", x_label="step", y_label="loss")
    assert len(points_of(chart)) <= MAX_POINTS + 1
    assert points_of(chart)[-1][0] == points_of(line_chart({"run": line[-2:]}, title="", x_label="", y_label=""))[-1][0]


def test_a_reliability_chart_has_a_dot_for_each_bin_with_rows() -> None:
    probabilities = np.array([[0.95, 0.05], [0.92, 0.08], [0.55, 0.45]])
    chart = reliability_chart(reliability_panel(probabilities, np.array([0, 1, 0])))
    assert "0.935, 0.5" in chart
    assert "0.55, 1" in chart
    assert chart.count("<circle") == 2 + 2

"""A page of a measured table in a real browser: nothing is fetched, no error is logged, every link has a target."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, WIDE, find, forget_logs, is_in_view, needs_browser, prefer, requested, resize
from measured_table import CELLS, NASTY, measured_table
from selenium.webdriver.support.ui import WebDriverWait

from alignattn.reports.writers import to_html
from alignattn.utils.files import write_text

pytestmark = needs_browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "table1.html"
    write_text(path, to_html(measured_table()))
    return path


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The browser with the page newly opened and empty logs before."""
    resize(browser, WIDE)
    browser.get("about:blank")
    forget_logs(browser)
    browser.get(page.as_uri())
    return browser


def test_nothing_but_the_page_is_fetched_and_nothing_is_logged(opened: Any, page: Path) -> None:
    assert requested(opened) == [page.as_uri()]
    assert opened.get_log("browser") == []


def test_ids_are_unique_and_every_link_leads_to_one(opened: Any) -> None:
    ids = [element.get_attribute("id") for element in find(opened, "[id]")]
    assert len(ids) == len(set(ids))
    targets = [link.get_dom_attribute("href") for link in find(opened, "a")]
    assert len(targets) > len(CELLS)
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    assert {f"run-{digest}" for digest in measured_table().runs} <= set(ids)


def test_each_number_leads_to_its_runs(opened: Any) -> None:
    cells = find(opened, ".results td.measured")
    assert len(cells) == len(CELLS)
    for td, cell in zip(cells, CELLS, strict=True):
        number, *runs = (link.get_dom_attribute("href") for link in td.find_elements("css selector", ":not(sup) > a"))
        assert number == f"#run-{cell.digests[0]}"
        assert runs == [f"#run-{digest}" for digest in cell.digests]


PATIENCE = 60
"""Seconds until a test gives up waiting for the browser."""


@pytest.mark.parametrize("link", ["a.number", ".seeds a:last-child"])
def test_a_click_opens_the_run_and_goes_there_also_when_it_was_closed_again(opened: Any, link: str) -> None:
    clicked = find(opened, f".results tr:last-child {link}")[0]
    run = opened.find_element("id", clicked.get_dom_attribute("href").removeprefix("#"))
    config = run.find_element("css selector", ".columns")
    assert not config.is_displayed()
    for _ in range(2):
        clicked.click()
        # The page opens the run after the click.
        WebDriverWait(opened, PATIENCE).until(lambda _: config.is_displayed() and is_in_view(run))
        run.find_element("tag name", "summary").click()
        WebDriverWait(opened, PATIENCE).until(lambda _: not config.is_displayed())


def test_a_link_to_a_run_opens_it_at_once(opened: Any, page: Path) -> None:
    digest = CELLS[-1].digests[1]
    opened.get("about:blank")
    opened.get(f"{page.as_uri()}#run-{digest}")
    assert opened.find_element("id", f"run-{digest}").get_property("open")
    assert len(find(opened, "details[open]")) == 1


def test_a_failure_leads_to_its_reason(opened: Any) -> None:
    link = find(opened, "td.failed sup a")[0]
    assert link.text == "1"
    link.click()
    reason = opened.find_element("css selector", ":target")
    assert reason.text.endswith(NASTY)
    assert is_in_view(reason)


def test_every_chart_has_a_text(opened: Any) -> None:
    charts = find(opened, "svg.chart")
    assert len(charts) == sum(len(run.charts) for run in measured_table().runs.values()) > 0
    assert {chart.get_attribute("aria-label") for chart in charts} == {NASTY}


def test_measured_stands_beside_published(opened: Any) -> None:
    row = find(opened, ".results tbody tr")[0]
    cells = [cell.text.splitlines()[:1] for cell in row.find_elements("css selector", "th, td")]
    assert cells == [["soft"], ["72.00 ± 2.00"], ["86.5"], ["12.00 ± 2.00"], ["0.250"], [], ["2,000.0"]]
    sources = [head.text for head in find(opened, ".results thead tr:last-child th")]
    assert sources == ["measured", "published", "measured", "measured", "published", "measured"]


def test_only_what_survives_for_the_better_is_bold(opened: Any) -> None:
    weights = [int(number.value_of_css_property("font-weight")) for number in find(opened, ".results .number")]
    bold = [cell for cell, weight in zip(CELLS, weights, strict=True) if weight >= 600]
    assert bold == [CELLS[4], CELLS[9]]


def test_a_cell_tells_what_it_is(opened: Any) -> None:
    title = find(opened, ".results tbody tr:nth-child(2) td.measured")[0].get_attribute("title")
    for words in ("aa-gan, MRPC accuracy", "82.00 ± 2.00 %", "3 seeds", "+10.00 points", "[+9.00, +11.00]", "0.012"):
        assert words in title


def test_texts_are_shown_as_they_are(opened: Any) -> None:
    opened.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    run = find(opened, "details.run")[0]
    assert NASTY in run.find_element("css selector", "summary .title").text
    codes = [code.text for code in run.find_elements("tag name", "code")]
    assert codes == [f"alignattn finetune --task mrpc --note '{NASTY}'", f"seed: 1\nnote: {NASTY}"]
    assert len(find(opened, "script")) == 1
    assert NASTY in opened.title


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_page_itself_never_scrolls_sideways(opened: Any, width: int) -> None:
    opened.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    resize(opened, width)
    root = find(opened, "html")[0]
    assert opened.execute_script("return innerWidth") == width
    assert root.get_property("scrollWidth") == root.get_property("clientWidth")


def test_the_page_follows_the_readers_scheme(opened: Any) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        prefer(opened, scheme)
        colour = find(opened, "body")[0].value_of_css_property("background-color")
        grounds[scheme] = [int(part) for part in colour.removeprefix("rgba(").split(",")[:3]]
    assert min(grounds["light"]) > 200
    assert max(grounds["dark"]) < 50


def test_a_table_without_results_is_a_page(browser: Any, tmp_path: Path) -> None:
    missing = [replace(one, state="missing", values={}, comparison=None, reason=None) for one in CELLS]
    write_text(tmp_path / "empty.html", to_html(replace(measured_table(), cells=missing, runs={}, notes=[])))
    forget_logs(browser)
    browser.get((tmp_path / "empty.html").as_uri())
    assert browser.get_log("browser") == []
    assert {cell.text for cell in find(browser, "td.measured")} == {"–"}
    assert find(browser, "a") == []
    assert [heading.text for heading in find(browser, "h2")] == ["Measured and published"]

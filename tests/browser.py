"""A real browser for the tests of pages."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from needs import BROWSER

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDE, NARROW, HEIGHT = 1280, 390, 900

needs_browser = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None, reason=f"{BROWSER}: chromium with its chromedriver on the PATH"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    yield driver
    driver.quit()


def forget_logs(browser: Any) -> None:
    for kind in ("browser", "performance"):
        browser.get_log(kind)


def requested(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("data:")]


def resize(browser: Any, width: int) -> None:
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def find(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def is_in_view(element: Any) -> bool:
    script = "const top = arguments[0].getBoundingClientRect().top; return top >= 0 && top < innerHeight"
    return element.parent.execute_script(script, element)

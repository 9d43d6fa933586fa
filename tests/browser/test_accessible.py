"""Every page in both themes without a serious finding of axe-core, and on a phone with cause and lever at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from kvitals.app.demo import DEMO
from kvitals.app.page_settings import PageSettings
from tests.browser.accessibility import serious_findings
from tests.browser.page import chromium, served, visit, wait_for, wait_until_at_rest

UNEVEN = Path(__file__).parents[1] / "captures" / "incidents" / "uneven-1.kvcap"
PAGES = {
    "": "rules:",
    "timeline": "As a list",
    "tenants": "Fairness indices",
    "cache": "Hit rate at other sizes",
    "cascades": "Stage 4 of 5",
    "requests": "what the time went into",
    "fleet": "Find the knee",
    "engine": "KV usage p90",
    "efficiency": "too short for a review",
    "what-if": "1,005 requests",
    "size": "Size it",
    "rules": "What it sees",
    "sources": "Incidents that ship",
}
"""The path of each page, and text near its end."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(PageSettings(api="http://127.0.0.1:1", recording=str(DEMO))) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_serious_finding(url: str, driver: webdriver.Chrome, page: str, dark: bool) -> None:
    visit(driver, f"{url}/?page={page}", dark=dark)
    wait_for(driver, PAGES[page])
    wait_until_at_rest(driver)
    assert serious_findings(driver) == []

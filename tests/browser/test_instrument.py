"""The page as an instrument: faults that were seen in a browser once, and the links from a finding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from kvitals.app.page_settings import PageSettings
from tests.browser.page import (
    chromium,
    console_errors,
    served,
    text_of,
    visit,
    wait_for,
    wait_until,
    wait_until_at_rest,
)
from tests.browser.test_journeys import button, charts, click, go

UNEVEN = Path(__file__).parents[1] / "captures" / "incidents" / "uneven-1.kvcap"
CASCADE = "demo%3Aeviction_cascade"
PLOT = (
    "return [...document.querySelectorAll('[class*=st-key-signal-] svg.marks')].map(s => "
    "s.querySelector('.role-frame.root path.background').getBBox().height)"
)
LINES = (
    "return [...document.querySelectorAll('[class*=st-key-signal-] svg.marks')].map(s => "
    "[...s.querySelectorAll('.role-legend-symbol path')].map(e => e.getAttribute('stroke')).join())"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(PageSettings(api="http://127.0.0.1:1", recording=str(UNEVEN))) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def follow(driver: webdriver.Chrome, label: str, page: str) -> dict[str, list[str]]:
    """Click a link of a finding; returns what the address of the next page names."""
    click(driver, By.XPATH, f"//a[@data-testid='stPageLink-NavLink'][contains(normalize-space(), '{label}')]")
    wait_until(lambda: urlsplit(driver.current_url).path == f"/{page}", f"the page {page} is shown")
    wait_until(lambda: "go=" not in driver.current_url, "the address is that of the page")
    return parse_qs(urlsplit(driver.current_url).query)


def test_timeline_and_triage_state_the_same_verdict(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, url)
    wait_for(driver, "Requests wait for slots while the KV cache has room.")
    visit(driver, f"{url}/?page=timeline")
    charts(driver, 4)
    shown = driver.execute_script("return document.querySelector('.st-key-axis svg.marks').textContent")
    for text in ("Requests wait for slots", "SCH01", "LAT01"):
        assert text in shown, shown


def test_engines_have_lanes_of_their_own_and_one_colour(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?page=timeline")
    charts(driver, 6)
    lanes = driver.execute_script("return document.querySelector('.st-key-axis svg.marks').textContent")
    for text in ("one: Engine restarted", "two: Engine restarted"):
        assert text in lanes
    heights = driver.execute_script(PLOT)
    assert heights and min(heights) >= 35, f"a legend presses its plot flat: {heights}"
    colours = set(driver.execute_script(LINES))
    assert len(colours) == 1, f"an engine changes its colour from chart to chart: {colours}"


def test_from_the_finding_to_onset_engine_rule_and_replay(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source={CASCADE}")
    wait_for(driver, "Noisy tenant evicts")
    asked = follow(driver, "Onset", "timeline")
    assert float(asked["to"][0]) > float(asked["from"][0])
    charts(driver, 3)
    wait_until_at_rest(driver)
    driver.back()
    wait_for(driver, "What to do, in this order")
    assert follow(driver, "Engine", "engine")["engine"] == ["engine"]
    wait_for(driver, "KV usage p90")
    assert follow(driver, "Rule TEN02", "rules")["rule"] == ["TEN02"]
    wait_for(driver, "What it sees")
    visit(driver, f"{url}/?source={CASCADE}")
    wait_for(driver, "Noisy tenant evicts")
    assert follow(driver, "What if", "what-if")["lever"] == ["raise-kv-budget"]
    wait_for(driver, "Hit rate when recorded")
    assert console_errors(driver) == []


def test_a_back_that_streamlit_loses_is_asked_for_again(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source={CASCADE}")
    wait_for(driver, "Noisy tenant evicts")
    left = driver.current_url
    follow(driver, "Onset", "timeline")
    charts(driver, 3)
    wait_until_at_rest(driver)
    lost = "addEventListener('popstate', e => e.stopImmediatePropagation(), {capture: true, once: true})"
    driver.execute_script(lost)
    driver.back()
    wait_for(driver, "What to do, in this order")
    assert driver.current_url == left, "one link is one step of Back"


@pytest.mark.parametrize("title", ["Cache", "Triage"])
def test_a_link_of_the_sidebar_that_streamlit_loses_is_asked_for_again(
    url: str, driver: webdriver.Chrome, title: str
) -> None:
    visit(driver, f"{url}/?source={CASCADE}")
    wait_for(driver, "Noisy tenant evicts")
    go(driver, "Rules")
    wait_until_at_rest(driver)
    driver.execute_script(
        "const send = WebSocket.prototype.send; window.lost = 0;"
        "WebSocket.prototype.send = function (data) { if (window.lost++) { send.call(this, data); } };"
    )
    go(driver, title)
    assert driver.execute_script("return window.lost") > 1


def test_tenants_begin_with_culprit_victims_and_cost(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?page=tenants&source={CASCADE}")
    wait_for(driver, "Fairness indices")
    said = text_of(driver)
    for text in ("Noisy tenant evicts", "Culprit t-us5rs6vatl: 94%", "Victims t-7t3xmotuqe", "of prefill"):
        assert said.index(text) < said.index("Who paid for whom") < said.index("Hit rate, and attainable hit rate"), (
            text
        )
    assert "Jain" not in said, "indices that stay near perfect in this incident are folded in"
    for old in ("could find", "of that", "lost and wanted again"):
        assert old not in said, old


def test_cascades_state_when_the_last_one_ended(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?page=cascades&source={CASCADE}")
    wait_for(driver, "no cascade under way; the last cascade ended at 10:41:26 UTC")
    assert "under way" not in text_of(driver).replace("no cascade under way", "")


def test_pages_without_data_are_folded_away_with_their_reason(url: str, driver: webdriver.Chrome) -> None:
    section = "No data in this source"
    visit(driver, f"{url}/?source={CASCADE}")
    wait_for(driver, "Noisy tenant evicts")
    wait_until(
        lambda: titles_below(driver, section) == ["Efficiency"], "the demo has data for all pages but the week's"
    )
    visit(driver, f"{url}/?source=demo%3Aheavy_tenant")
    wait_for(driver, "What to do, in this order")
    folded = ["Cache", "Cascades", "Requests", "Efficiency"]
    wait_until(lambda: titles_below(driver, section) == folded, "pages without data are last")
    go(driver, "Cascades")
    wait_for(driver, "No engine has reported its blocks")


def titles_below(driver: webdriver.Chrome, section: str) -> list[str]:
    """The titles of the pages in a section of the sidebar."""
    script = (
        "return [...document.querySelectorAll('[data-testid=stNavSectionHeader]')]"
        ".filter(e => e.innerText.includes(arguments[0]))"
        ".flatMap(e => [...e.parentElement.querySelectorAll('a p')].map(p => p.innerText))"
    )
    return list(driver.execute_script(script, section))


def test_a_phone_has_cause_and_lever_on_its_first_screen(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, url, width=390)
    wait_for(driver, "--max-num-seqs 16")
    bottom = "return Math.max(...[...document.querySelectorAll('[class*=st-key-verdict-] p')].filter(" \
             "e => e.innerText.includes('Impact')).map(e => e.getBoundingClientRect().bottom))"  # fmt: skip
    assert driver.execute_script(bottom) < 900


def test_the_range_of_the_header_is_typed_or_a_preset(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source={CASCADE}")
    wait_for(driver, "Noisy tenant evicts")
    button(driver, "window")
    wait_for(driver, "Time range of every page")
    click(driver, By.CSS_SELECTOR, ".st-key-preset-60 button")
    wait_until(lambda: "from=" in driver.current_url, "the address has the range")
    asked = parse_qs(urlsplit(driver.current_url).query)
    assert float(asked["to"][0]) - float(asked["from"][0]) == pytest.approx(60.0, abs=0.01)
    wait_for(driver, "window of 60 s")
    assert "This page failed" not in text_of(driver)
    picked = range_shown(driver)
    button(driver, "back")
    wait_until(lambda: range_shown(driver).endswith("the end"), "the whole recording is shown")
    wait_until_at_rest(driver)
    driver.back()
    wait_until(lambda: range_shown(driver) == picked, "Back shows the range again")
    wait_until_at_rest(driver)
    driver.forward()
    wait_until(lambda: range_shown(driver).endswith("the end"), "Forward shows the whole recording again")


def range_shown(driver: webdriver.Chrome) -> str:
    """The label of the time range in the header."""
    shown = "return document.querySelector('.st-key-window button p')?.innerText ?? ''"
    return str(driver.execute_script(shown))


@pytest.mark.parametrize("dark", [False, True])
def test_the_text_of_a_button_can_be_read(url: str, driver: webdriver.Chrome, dark: bool) -> None:
    visit(driver, f"{url}/?page=size", dark=dark)
    wait_for(driver, "Size it")
    colours = (
        "const e = [...document.querySelectorAll('button')].find(b => b.innerText.includes('Size it'));"
        "const s = getComputedStyle(e); return [s.color, s.backgroundColor]"
    )
    text, back = (luminance(one) for one in driver.execute_script(colours))
    assert (max(text, back) + 0.05) / (min(text, back) + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, by WCAG."""
    parts = [int(one) / 255 for one in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue

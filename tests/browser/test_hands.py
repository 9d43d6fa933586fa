"""Twelve journeys, each with the mouse and with the keyboard alone, and the first screen of a phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kvitals.app.demo import DEMO
from kvitals.app.page_settings import PageSettings
from tests.browser.page import chromium, resize, served, visit, wait_for, wait_until, wait_until_at_rest

MOST_TABS = 150
FOCUSED = """
const wanted = document.evaluate(arguments[0], document, null, XPathResult.FIRST_ORDERED_NODE_TYPE, null)
  .singleNodeValue;
return !!wanted && (wanted === document.activeElement || wanted.contains(document.activeElement));
"""
TRIAGE = "Noisy tenant evicts"


@dataclass(frozen=True)
class Journey:
    """From a page, over elements that are used one after the other (XPath), to a text or a part of the address."""

    name: str
    page: str
    said: str
    steps: Sequence[str]
    ends: str


def _page(title: str) -> str:
    return f"//section[@data-testid='stSidebar']//a[.//span[normalize-space()='{title}']]"


def _link(label: str) -> str:
    return f"(//a[@data-testid='stPageLink-NavLink'][contains(normalize-space(), '{label}')])[1]"


def _button(key: str) -> str:
    return f"//*[contains(concat(' ', @class, ' '), ' st-key-{key} ')]//button"


def _fold(label: str) -> str:
    return f"//details/summary[contains(., '{label}')]"


JOURNEYS = (
    Journey("timeline by the sidebar", "", TRIAGE, (_page("Timeline"),), "Select a window"),
    Journey("onset of the finding", "", TRIAGE, (_link("Onset"),), "As a list"),
    Journey("engine of the finding", "", TRIAGE, (_link("Engine"),), "KV usage p90"),
    Journey("tenants of the finding", "", TRIAGE, (_link("Tenants"),), "Who paid for whom"),
    Journey("requests of the finding", "", TRIAGE, (_link("Requests"),), "what the time went into"),
    Journey("rule of the finding", "", TRIAGE, (_link("Rule TEN02"),), "What it sees"),
    Journey("replay of the lever", "", TRIAGE, (_link("What if"),), "Hit rate when recorded"),
    Journey("forecast of the lever", "", TRIAGE, (_link("What if"),), "Measured and simulated both describe"),
    Journey("what was ruled out", "", "Ruled out", (_fold("Ruled out"),), "on engine"),
    Journey("the incident for a ticket", "", TRIAGE, (_button("incident-copy"),), "- Evidence: http"),
    Journey("a link to the moment", "", TRIAGE, (_button("incident-pin"),), "A link that also shows this moment later"),
    Journey("a preset of the time range", "", TRIAGE, (_button("window"), _button("preset-60")), "Back to the end"),
    Journey("another source", "sources", "Incidents that ship", (_button("choose-few_slots"),),
            "Requests wait for slots while the KV cache has room"),
)  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(PageSettings(api="http://127.0.0.1:1", recording=str(DEMO))) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def use(driver: webdriver.Chrome, where: str, hand: str) -> None:
    """Click an element, or go to it with the Tab key and press Enter."""
    wait_until(lambda: bool(driver.find_elements(By.XPATH, where)), f"{where} is there")
    if hand == "mouse":
        element = driver.find_element(By.XPATH, where)
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        return
    for _ in range(MOST_TABS):
        if driver.execute_script(FOCUSED, where):
            break
        ActionChains(driver).send_keys(Keys.TAB).perform()
    else:
        pytest.fail(f"not reached with {MOST_TABS} times Tab: {where}")
    outline = "return getComputedStyle(document.activeElement)"
    ring = driver.execute_script(f"{outline}.outlineStyle") != "none" or driver.execute_script(f"{outline}.boxShadow")
    assert ring != "none", f"the focus is not seen on {where}"
    ActionChains(driver).send_keys(Keys.ENTER).perform()


@pytest.mark.parametrize("hand", ["mouse", "keyboard"])
@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda journey: journey.name.replace(" ", "-"))
def test_a_journey(url: str, driver: webdriver.Chrome, journey: Journey, hand: str) -> None:
    visit(driver, f"{url}/?page={journey.page}")
    wait_for(driver, journey.said)
    wait_until_at_rest(driver)
    for step in journey.steps:
        use(driver, step, hand)
    wait_for(driver, journey.ends)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("eviction_cascade", ("Noisy tenant evicts", "Rate-limit the tenant")),
        ("heavy_tenant", ("KV cache full", "Add replicas")),
        ("few_slots", ("Requests wait for slots", "--max-num-seqs")),
    ],
)
def test_a_phone_has_cause_and_lever_on_its_first_screen(
    url: str, driver: webdriver.Chrome, source: str, texts: Sequence[str]
) -> None:
    visit(driver, f"{url}/?source=demo%3A{source}", width=390)
    resize(driver, 390, 844)
    wait_for(driver, "What to do, in this order")
    wait_until_at_rest(driver)
    lowest = """return Math.max(...[...document.querySelectorAll("[class*='st-key-verdict-'] h1, "
      + "[class*='st-key-verdict-'] strong")].filter(e => e.innerText.startsWith('Now') || e.tagName === 'H1')
      .map(e => e.getBoundingClientRect().bottom))"""
    assert driver.execute_script(lowest) <= 844
    verdict = driver.find_element(By.CSS_SELECTOR, "[class*='st-key-verdict-']").text
    for text in texts:
        assert text in verdict

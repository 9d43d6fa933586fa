"""The page in a real Chromium: what people see, what stays while it is live, and whom it talks to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from selenium import webdriver
from selenium.webdriver.common.by import By

from kvitals.rules.finding import RuledOut
from kvitals.ui.web.views.triage import MAX_CARDS
from tests.browser.page import (
    chromium,
    console_errors,
    hosts_asked,
    screenshot,
    served,
    text_of,
    visit,
    wait_for,
    wait_until,
)
from tests.unit.web import documents
from tests.unit.web.stub import Stub, stub_api

REFRESH_SECONDS = 15.0
DOCUMENTS = {
    "unhealthy": documents.unhealthy(),
    "healthy": documents.document(),
    "unknown": documents.could_not_tell(),
}
LINE = "return document.querySelector('svg.marks .mark-line path').getAttribute('d')"


@pytest.fixture(scope="module")
def api() -> Iterator[Stub]:
    with stub_api(documents.document()) as stub:
        yield stub


@pytest.fixture(scope="module")
def url(api: Stub) -> Iterator[str]:
    with served(api.url) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def expander(driver: webdriver.Chrome, label: str) -> webdriver.remote.webelement.WebElement:
    return driver.find_element(By.XPATH, f"//details[summary[contains(., '{label}')]]")


@pytest.mark.parametrize("look", ["light-1280", "dark-1280", "light-390", "dark-390"])
@pytest.mark.parametrize(("name", "word"), [("unhealthy", "Unhealthy"), ("healthy", "Healthy"), ("unknown", "Unknown")])
def test_the_verdict_is_seen(
    api: Stub, url: str, driver: webdriver.Chrome, tmp_path: Path, name: str, word: str, look: str
) -> None:
    document = DOCUMENTS[name]
    theme, width = look.split("-")
    api.say(document)
    visit(driver, url, width=int(width), dark=theme == "dark")
    wait_for(driver, document.verdict)
    wait_for(driver, "22 rules:")  # the foot: all above it is drawn
    for cause in document.causes:
        wait_for(driver, cause.conclusion)
    assert word in text_of(driver)
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert driver.execute_script(sideways) <= 0
    background = "return getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    dark = sum(int(c) for c in driver.execute_script(background)[4:-1].split(",")[:3]) < 384
    assert dark is (theme == "dark")
    screenshot(driver, tmp_path / f"{name}-{look}.png")
    assert (tmp_path / f"{name}-{look}.png").stat().st_size > 10_000
    assert hosts_asked(driver) == {"127.0.0.1"}
    assert console_errors(driver) == []


def test_a_card_has_charts_and_the_setting_to_copy(api: Stub, url: str, driver: webdriver.Chrome) -> None:
    api.say(documents.unhealthy())
    visit(driver, url)
    wait_for(driver, "What to do, in this order")
    card = driver.find_element(By.CSS_SELECTOR, "[class*='st-key-card-page-']")
    charts = "[data-testid='stVegaLiteChart'] svg.marks"
    wait_until(lambda: len(card.find_elements(By.CSS_SELECTOR, charts)) >= 4, "four charts are drawn")
    first = expander(driver, "Keep keys and values in 8 bits")
    assert first.get_attribute("open") is not None
    assert "--kv-cache-dtype fp8" in first.text
    assert first.find_element(By.CSS_SELECTOR, "button[aria-label='Copy to clipboard']").is_displayed()
    assert expander(driver, "Give the KV cache more memory").get_attribute("open") is None


def test_a_live_page_follows_the_agent_and_keeps_what_was_opened(api: Stub, url: str, driver: webdriver.Chrome) -> None:
    api.say(documents.unhealthy())
    visit(driver, url)
    wait_for(driver, "Ruled out: 2 other causes")
    expander(driver, "Ruled out").find_element(By.TAG_NAME, "summary").click()
    wait_for(driver, "KV usage p90 is 97 %, not below 50 %")
    time.sleep(1)  # until the charts are in place
    driver.execute_script("document.querySelectorAll('svg.marks, h1, details').forEach(e => e.marked = true)")
    marked = "return [...document.querySelectorAll('svg.marks, h1, details')].every(e => e.marked)"

    asked = len(api.asked)
    wait_until(lambda: len(api.asked) >= asked + 2, "the page goes on asking", REFRESH_SECONDS)
    assert driver.execute_script(marked), "the same document was drawn anew: it flickers"

    drawn = driver.execute_script(LINE)
    proof = documents.kv_full().evidence
    moved = replace(proof[0], lines=[documents.line(0.97, 0.99, 0.01)])
    conclusion = "Live requests pin 99 % of the KV blocks."
    changed = replace(documents.kv_full(), conclusion=conclusion, evidence=[moved, *proof[1:]])
    document = documents.unhealthy()
    api.say(replace(document, causes=[changed, *document.causes[1:]]))
    wait_for(driver, conclusion, REFRESH_SECONDS)
    wait_until(lambda: driver.execute_script(LINE) != drawn, "the chart follows", REFRESH_SECONDS)
    assert expander(driver, "Ruled out").get_attribute("open") is not None
    assert driver.execute_script(marked), "one changed sentence drew the rest anew"


def test_when_the_agent_goes_and_comes_back_the_page_follows(api: Stub, url: str, driver: webdriver.Chrome) -> None:
    api.say(documents.unhealthy())
    visit(driver, url)
    wait_for(driver, "Unhealthy")
    api.status, api.body = 503, b'{"status":"error","errorType":"unavailable","error":"no findings yet"}'
    wait_for(driver, "The agent has no verdict yet", REFRESH_SECONDS)
    assert "KV cache full: requests wait for blocks." in text_of(driver)
    api.say(documents.document())
    wait_for(driver, "No trouble found", REFRESH_SECONDS)
    assert "The agent has no verdict yet" not in text_of(driver)


def titles_of_cards(driver: webdriver.Chrome) -> list[str]:
    texts = driver.execute_script(
        "return [...document.querySelectorAll(\"[class*='st-key-card-'] h2\")].map(e => e.innerText)"
    )
    return [text.replace("\u2060", "").strip().partition(". ")[2] for text in texts]


@pytest.mark.parametrize("way", [1, -1])
def test_strangers_text_shows_as_itself_and_does_nothing(
    api: Stub, url: str, driver: webdriver.Chrome, way: int
) -> None:
    """The first causes have cards, the others lines: backwards it is the other way round."""
    names, verdict = documents.HOSTILE[::way], f"Hostile, {way}."
    causes = [documents.hostile(name, i) for i, name in enumerate(names)]
    ruled_out = [RuledOut(name, name, name, name) for name in names]
    document = documents.document(healthy=False, verdict=verdict, causes=causes, ruled_out=ruled_out)
    api.say(document)
    visit(driver, url)
    wait_for(driver, verdict)
    wanted = [" ".join(name.split()).replace("\u202e", "\ufffd") for name in names[:MAX_CARDS]]
    # The cards of the document before stay until the page is drawn to its end.
    wait_until(lambda: titles_of_cards(driver) == wanted, "the cards of this document are drawn")
    own = "[data-testid='stPageLink-NavLink']"
    for made in ("script", "iframe", f"a:not([href^='#']):not({own})", "img", ".katex", "table", "del"):
        assert driver.find_elements(By.CSS_SELECTOR, f".stMainBlockContainer {made}") == [], made
    for link in driver.find_elements(By.CSS_SELECTOR, own):
        assert str(link.get_attribute("href")).startswith(f"{url}/")
    assert hosts_asked(driver) == {"127.0.0.1"}
    assert console_errors(driver) == []

"""The app as people walk through it, on a recorded eviction cascade; each page is kept as a picture.

`KVITALS_SCREENSHOTS=DIR` keeps the pictures there.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kvitals.app.demo import DEMO, HEAVY_TENANT
from kvitals.app.page_settings import PageSettings
from tests.browser.page import (
    chromium,
    console_errors,
    screenshot,
    served,
    text_of,
    traffic,
    visit,
    wait_for,
    wait_until,
    wait_until_at_rest,
)
from tests.unit.web import hostile

CASCADE = DEMO
STILL = "[data-testid='stApp'][data-test-script-state='notRunning']"
DRAWN = "svg.marks"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(PageSettings(api="http://127.0.0.1:1", recording=str(CASCADE))) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("KVITALS_SCREENSHOTS", str(tmp_path)))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def go(driver: webdriver.Chrome, title: str) -> None:
    """Click a page's name in the sidebar."""
    link = f"//section[@data-testid='stSidebar']//a[.//span[normalize-space()='{title}']]"
    driver.find_element(By.XPATH, link).click()
    heading = "return [...document.querySelectorAll('.st-key-bar h2')].map(e => e.innerText)"
    wait_until(lambda: title in driver.execute_script(heading), title)


def charts(driver: webdriver.Chrome, many: int) -> None:
    wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, DRAWN)) >= many, f"{many} charts are drawn")


def summary(driver: webdriver.Chrome, label: str) -> None:
    """Open what is folded in under a label."""
    click(driver, By.XPATH, f"//details/summary[contains(., '{label}')]")


def button(driver: webdriver.Chrome, key: str) -> None:
    click(driver, By.CSS_SELECTOR, f".st-key-{key} button")


def focus(driver: webdriver.Chrome, where: str, which: int) -> None:
    """Put the keyboard on one of the elements that a selector finds, once it takes it: a page that loads takes none."""
    element = f'const e = document.querySelectorAll("{where}")[{which}]'
    taken = f"{element}; e?.focus(); return !!e && document.activeElement === e"
    wait_until(lambda: bool(driver.execute_script(taken)), f"{where} takes the keyboard")


def click(driver: webdriver.Chrome, by: str, where: str) -> None:
    """Wait for an element on a page that is at rest, bring it into sight, and click it."""
    wait_until(lambda: bool(driver.find_elements(by, where)), f"{where} is there")
    wait_until_at_rest(driver, 0.3)
    found = driver.find_element(by, where)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    found.click()


def send(driver: webdriver.Chrome, file: Path) -> None:
    """Give a file to the page."""
    field = ".st-key-upload input[type='file']"
    wait_until(lambda: bool(driver.find_elements(By.CSS_SELECTOR, field)), "a file can be sent")
    driver.find_element(By.CSS_SELECTOR, field).send_keys(str(file))


def choose_upload(driver: webdriver.Chrome, name: str) -> None:
    """Choose the file that was sent: click when the page is drawn, since what is drawn above moves the button away, and
    wait until the page shows the source, since to leave the page before discards the click."""
    wait_for(driver, f"Look at {name}")
    wait_until(lambda: bool(driver.find_elements(By.CSS_SELECTOR, STILL)), "the page is drawn")
    button(driver, "choose-upload")
    heading = "return [...document.querySelectorAll('.st-key-source-now h3')].map(e => e.innerText).join()"
    wait_until(lambda: name in driver.execute_script(heading), f"{name} is the source")


def picture(driver: webdriver.Chrome, path: Path) -> None:
    """The whole page; afterwards the screen is as it was."""
    screenshot(driver, path)
    metrics = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def sound(driver: webdriver.Chrome) -> None:
    """Nobody outside was asked, nothing failed, the console is clean, and no page broke."""
    hosts, failed = traffic(driver)
    assert hosts <= {"127.0.0.1"}
    assert failed == []
    assert console_errors(driver) == []
    assert "This page failed" not in text_of(driver)


def test_on_call_from_the_verdict_to_the_lever(url: str, driver: webdriver.Chrome, pictures: Path) -> None:
    visit(driver, url)
    wait_for(driver, "Noisy tenant evicts the prefixes of other tenants, with ")
    charts(driver, 4)
    wait_for(driver, "What to do, in this order")
    summary(driver, "Ruled out")
    wait_for(driver, "on engine")
    picture(driver, pictures / "triage.png")
    button(driver, "exports")
    wait_for(driver, "Markdown, for a ticket")
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    sound(driver)


def test_the_timeline_and_a_window_that_every_page_follows(url: str, driver: webdriver.Chrome, pictures: Path) -> None:
    visit(driver, url)
    wait_for(driver, "Noisy tenant evicts")
    go(driver, "Timeline")
    charts(driver, 4)
    picture(driver, pictures / "timeline.png")
    focus(driver, ".st-key-pick input[type='range']", 1)
    for _ in range(30):  # with the keyboard alone
        driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    wait_for(driver, "10:40:48 to 10:41:18")  # the last key has come to the server
    wait_until(lambda: "to=" in driver.current_url, "the address has the window")
    go(driver, "Triage")
    wait_for(driver, "window of 30 s up to 2026-11-21 10:41:18 UTC")
    sound(driver)


def test_tenants_cache_and_cascades_tell_who_and_why(url: str, driver: webdriver.Chrome, pictures: Path) -> None:
    visit(driver, url)
    wait_for(driver, "Noisy tenant evicts")
    for title, said, many in (
        ("Tenants", "Who paid for whom", 4),
        ("Cache", "Hit rate at other sizes", 2),
        ("Cascades", "Stage 4 of 5 on engine", 1),
        ("Requests", "what the time went into", 3),
        ("Fleet", "with any finding", 0),
    ):
        go(driver, title)
        wait_for(driver, said)
        charts(driver, many)
        picture(driver, pictures / f"{title.lower()}.png")
    sound(driver)


def test_what_if_rules_and_fleet_tell_what_to_do(url: str, driver: webdriver.Chrome, pictures: Path) -> None:
    visit(driver, url)
    wait_for(driver, "Noisy tenant evicts")
    go(driver, "What if")
    wait_for(driver, "1,005 requests in 71 s")
    click(driver, By.XPATH, "//button[.//p[text()='Replay']]")
    wait_for(driver, "Hit rate when recorded")
    charts(driver, 1)
    picture(driver, pictures / "what-if.png")
    click(driver, By.XPATH, "//button[.//p[text()='Predict']]")
    wait_for(driver, "engine: --num-gpu-blocks-override 192 → 240")  # as the finding's lever fills it in
    assert len(driver.find_elements(By.CSS_SELECTOR, ".st-key-forecast-tiles-0 [data-testid=stMetric]")) == 6
    picture(driver, pictures / "what-if-settings.png")
    go(driver, "Rules")
    wait_for(driver, "What it sees")
    click(driver, By.XPATH, "//*[@role='tab'][contains(., 'Try it')]")
    wait_for(driver, "With its own thresholds the condition holds on 1 entity here")
    charts(driver, 1)
    picture(driver, pictures / "rules.png")
    go(driver, "Size")
    click(driver, By.XPATH, "//button[.//p[text()='Size it']]")
    wait_for(driver, "The working")
    picture(driver, pictures / "size.png")
    go(driver, "Fleet")
    button(driver, "knee")
    wait_for(driver, "Binding constraints in the last")
    charts(driver, 1)
    picture(driver, pictures / "knee.png")
    sound(driver)


def test_sources_are_switched_and_a_recording_is_sent(url: str, driver: webdriver.Chrome, pictures: Path) -> None:
    visit(driver, url)
    wait_for(driver, "Noisy tenant evicts")
    go(driver, "Sources")
    wait_for(driver, "Incidents that ship")
    picture(driver, pictures / "sources.png")
    button(driver, "choose-few_slots")
    wait_for(driver, "Requests wait for slots while the KV cache has room")
    go(driver, "Triage")
    wait_for(driver, "Requests wait for slots while the KV cache has room")
    go(driver, "Sources")
    send(driver, HEAVY_TENANT.with_name("healthy.kvcap"))
    choose_upload(driver, "healthy.kvcap")
    go(driver, "Triage")
    wait_for(driver, "No trouble found")
    sound(driver)


def test_a_link_shows_the_same_to_somebody_else(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?page=cascades&source=demo%3Aheavy_tenant")
    wait_for(driver, "No engine has reported its blocks")
    sound(driver)


def test_a_phone_reads_it_all(url: str, driver: webdriver.Chrome, pictures: Path) -> None:
    sideways = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for page, said in (("", "What to do, in this order"), ("timeline", "Select a window"), ("tenants", "Who paid")):
        visit(driver, f"{url}/?page={page}", width=390, dark=page == "timeline")
        wait_for(driver, said)
        assert driver.execute_script(sideways) <= 0, page
        time.sleep(1)
        screenshot(driver, pictures / f"phone-{page or 'triage'}.png")
    sound(driver)


@pytest.mark.parametrize(("origin", "answer"), [("http://evil.example", 403), ("", 101)])
def test_a_page_of_another_site_can_not_connect(url: str, origin: str, answer: int) -> None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Origin": origin or url,
    }
    connection.request("GET", "/_stcore/stream", headers=headers)
    assert connection.getresponse().status == answer
    connection.close()


def test_a_password_keeps_others_out(driver: webdriver.Chrome, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    with served(PageSettings(recording=str(CASCADE), password_file=str(secret))) as guarded:
        visit(driver, guarded)
        wait_for(driver, "Password")
        assert "One tenant" not in text_of(driver)
        assert "Timeline" not in text_of(driver)
        driver.find_element(By.CSS_SELECTOR, "input[type='password']").send_keys("wrong" + Keys.ENTER)
        wait_for(driver, "The password is wrong.")
        focus(driver, "input[type='password']", 0)
        driver.switch_to.active_element.send_keys(Keys.CONTROL, "a")
        driver.switch_to.active_element.send_keys("hunter2" + Keys.ENTER)
        wait_for(driver, "Noisy tenant evicts the prefixes of other tenants, with ")


def test_a_hostile_recording_is_refused_and_its_name_is_text(
    url: str, driver: webdriver.Chrome, tmp_path: Path
) -> None:
    bad = tmp_path / "<img src=x onerror=document.title=1>.kvcap"
    bad.write_bytes(CASCADE.read_bytes()[:500])
    visit(driver, f"{url}/?page=sources")
    wait_for(driver, "Incidents that ship")
    send(driver, bad)
    choose_upload(driver, "<img")
    wait_for(driver, "This recording cannot be shown")
    go(driver, "Triage")
    wait_for(driver, "This recording cannot be shown")
    assert driver.title != "1"
    sound(driver)


def test_hostile_names_in_a_recording_do_nothing(url: str, driver: webdriver.Chrome, tmp_path: Path) -> None:
    visit(driver, f"{url}/?page=sources")
    send(driver, hostile.written(tmp_path / "named.kvcap", hostile.named))
    choose_upload(driver, "named.kvcap")
    for title, said in (("Triage", "rules:"), ("Timeline", "Select a window"), ("Fleet", "with any finding")):
        go(driver, title)
        wait_for(driver, said)
        for made in ("script", "iframe", "a[href^='http://evil']", "img[src*='evil']", ".katex"):
            assert driver.find_elements(By.CSS_SELECTOR, f".stMainBlockContainer {made}") == [], f"{title}: {made}"
    go(driver, "Triage")
    wait_for(driver, "<script>alert(1)</script> [x](http://evil.example)")
    sound(driver)

"""Faults that were once seen in a browser, each as it was seen: on a recording, beside an agent that stopped, and on a
Prometheus whose next answer does not come. One server of the page for all."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from typing import Literal
from urllib.request import Request, urlopen

import pytest
from msgspec import json, structs
from selenium import webdriver
from selenium.webdriver.common.by import By

from kvitals.app.page_settings import PageSettings
from kvitals.rules.finding import LeverAdvice, LeverSetting
from kvitals.ui.web import graphs
from tests.browser.page import chromium, served, text_of, visit, wait_for, wait_until, wait_until_at_rest
from tests.browser.test_instrument import CASCADE, luminance, range_shown
from tests.browser.test_journeys import charts, click, go
from tests.fleet.backfill import backfill
from tests.fleet.situations import of_families
from tests.oracle.oracle_server import prometheus
from tests.unit.web import documents
from tests.unit.web.stub import Stub, stub_api

QUERY = "/api/v1/query"
NO_SERIES = b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
CASCADE_BEGINS, CASCADE_ENDS = 1_795_257_626.0, 1_795_257_708.0
"""The recording of the cascade, from 10:40:26 to 10:41:48 UTC of 2026-11-21."""

ENGINES, HOURS, AHEAD_SECONDS, BLOCK_SECONDS = 4, 2, 900.0, 7200.0
FOLD = "Confidence, and how to check it"
OPEN = f"return [...document.querySelectorAll('details[open] summary')].some(e => e.innerText.includes('{FOLD}'))"
STROKES = """
return [...document.querySelectorAll('[class*=st-key-signal-] svg.marks')].map(s =>
  [...s.querySelectorAll('.mark-line path')].map(e => getComputedStyle(e).stroke))
"""
LANES = """
return [...document.querySelectorAll('svg.marks')].filter(s => /\\d\\d:\\d\\d:\\d\\d/.test(s.textContent)).slice(0, 1)
  .flatMap(s => [...s.querySelectorAll('.role-axis-label text')].map(e => e.textContent))
"""
BACKGROUND = "return getComputedStyle(document.querySelector('.stApp')).backgroundColor"
SLIDER_TEXT = """
const shown = e => e.getClientRects().length && getComputedStyle(e).visibility !== 'hidden';
return [...document.querySelectorAll('[data-testid=stSlider]')].map(slider =>
  [...slider.querySelectorAll('*')].filter(e => e.innerText && !e.querySelector('*') && shown(e)).map(e => {
    const range = document.createRange(); range.selectNodeContents(e);
    const b = range.getBoundingClientRect(); return [e.innerText, b.left, b.top, b.right, b.bottom];
  }))
"""
TIER = LeverSetting("--kv-offloading-size", "", "two to four times the device's KV memory, in GiB", True, "")
FP8 = LeverSetting("--kv-cache-dtype", "auto", "fp8", True, "")
CACHING = LeverSetting("--enable-prefix-caching", "off", "on", True, "")
COMMAND = re.compile(r"(--[a-z][a-z0-9_-]*( (?!-)\S+)?)( --[a-z][a-z0-9_-]*( (?!-)\S+)?)*")
"""Flags, each with one value or none."""


@dataclass
class Gate:
    """A server in front of another that can stop to answer. `waiting`: questions that have no answer yet."""

    url: str
    open: threading.Event = field(default_factory=threading.Event)
    waiting: int = 0


@contextmanager
def gate(port: int) -> Iterator[Gate]:
    """A gate in front of a server on loopback, open at first."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass(None)

        def do_POST(self) -> None:
            self._pass(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _pass(self, body: bytes | None) -> None:
            found.waiting += 1
            found.open.wait()
            found.waiting -= 1
            kind = self.headers.get("Content-Type", "")
            asked = Request(f"http://127.0.0.1:{port}{self.path}", body, {"Content-Type": kind})
            with urlopen(asked, timeout=60) as answer:
                told = answer.read()
                self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Gate(f"http://127.0.0.1:{server.server_port}")
    found.open.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        found.open.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def api() -> Iterator[Stub]:
    with stub_api(documents.unhealthy()) as stub:
        stub.answers[QUERY] = NO_SERIES
        yield stub


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A Prometheus with some engines, one of which has a fault; its last samples are of now."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "data").mkdir()
    end = time.time() + AHEAD_SECONDS
    begin = (end - HOURS * 3600.0) // BLOCK_SECONDS * BLOCK_SECONDS
    made = of_families(ENGINES, 1, seconds=end - begin, fault_seconds=3600.0 + AHEAD_SECONDS)
    backfill(replace(made, begin=begin), folder / "data")
    with prometheus(folder) as server, gate(server.port) as before:
        yield before


@pytest.fixture(scope="module")
def url(api: Stub, fleet: Gate) -> Iterator[str]:
    with served(PageSettings(api=api.url, prometheus=fleet.url)) as url:
        yield url


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def test_a_judgement_that_does_not_end_keeps_nobody_waiting(fleet: Gate, url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source=prometheus")
    wait_for(driver, "What to do, in this order")
    click(driver, By.XPATH, f"//details/summary[contains(., '{FOLD}')]")
    wait_until(lambda: bool(driver.execute_script(OPEN)), "it is opened")
    wait_until_at_rest(driver)
    driver.execute_script("document.querySelectorAll('h1, details').forEach(e => e.marked = true)")
    fleet.open.clear()
    try:
        wait_until(lambda: fleet.waiting > 0, "the next judgement is under way", 30.0)
        time.sleep(6)  # a refresh of the page during it
        assert driver.execute_script("return [...document.querySelectorAll('h1, details')].every(e => e.marked)")
        assert driver.execute_script(OPEN), "what was opened closed"
        for title, said in (("Fleet", "with any finding"), ("Rules", "What it sees"), ("Triage", "rules:")):
            began = time.monotonic()
            go(driver, title)
            wait_for(driver, said, 10.0)
            assert time.monotonic() - began < 5.0, title
            assert "Evaluating the fleet" not in text_of(driver), f"{title} waits for the judgement"
        assert fleet.waiting > 0, "the judgement is still under way"
    finally:
        fleet.open.set()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_lines_of_every_engine_can_be_seen(api: Stub, url: str, driver: webdriver.Chrome, dark: bool) -> None:
    api.say(documents.unhealthy())
    api.answers[QUERY] = _of_engines(len(graphs.SERIES))
    try:
        visit(driver, f"{url}/?source=agent&page=timeline", dark=dark)
        charts(driver, 4)
        wait_until_at_rest(driver)
    finally:
        api.answers[QUERY] = NO_SERIES
    strokes = driver.execute_script(STROKES)
    assert strokes and all(len(set(of)) == len(graphs.SERIES) for of in strokes), strokes
    back = luminance(driver.execute_script(BACKGROUND))
    for colour in {one for of in strokes for one in of}:
        line = luminance(colour)
        contrast = (max(line, back) + 0.05) / (min(line, back) + 0.05)
        assert contrast >= 3.0, f"{colour} cannot be seen: {contrast:.1f}:1"


def _of_engines(many: int) -> bytes:
    """The answer to a query: a line of the last minutes for each engine."""
    now = time.time()
    found = [
        {"metric": {"engine": f"engine-{n}"}, "values": [[now - 300 + 10 * i, f"{n + i % 3}"] for i in range(30)]}
        for n in range(many)
    ]
    return json.encode({"status": "success", "data": {"resultType": "matrix", "result": found}})


def test_the_fleet_names_each_engine_in_its_lane(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source=prometheus&page=fleet")
    wait_for(driver, "with any finding")
    charts(driver, 1)
    wait_until(lambda: bool(driver.execute_script(LANES)), "the heat map is drawn")
    names = driver.execute_script(LANES)
    links = driver.execute_script(
        "return [...document.querySelectorAll('.st-key-engine-links a')].map(e => e.innerText.split('\\n').pop())"
    )
    assert len(links) == ENGINES
    assert set(links) <= set(names), f"{links} are not lanes: {names}"


def test_a_range_of_two_days_names_its_days(url: str, driver: webdriver.Chrome) -> None:
    end = 1_795_240_800.0  # 06:00 UTC
    visit(driver, f"{url}/?source=prometheus&page=rules&from={end - 2 * 86400:.0f}&to={end:.0f}")
    wait_until(lambda: " to " in range_shown(driver), "the header has the range")
    assert range_shown(driver) == "19 Nov 06:00:00 to 21 Nov 06:00:00"


@pytest.mark.parametrize(("kind", "said"), [("agent", "stopped scraping"), ("capture", "data ended")])
def test_an_agent_without_news_gives_no_all_clear(
    api: Stub, url: str, driver: webdriver.Chrome, kind: Literal["agent", "capture"], said: str
) -> None:
    """An agent that stopped, and one that serves a recording."""
    document = documents.unhealthy()
    api.say(structs.replace(document, source=structs.replace(document.source, kind=kind)))
    for page in ("timeline", "fleet", "tenants", "engine"):
        visit(driver, f"{url}/?source=agent&page={page}")
        wait_for(driver, said, 20.0)
        wait_for(driver, document.verdict, 20.0)
        assert "No trouble found" not in driver.execute_script("return document.body.textContent"), page


@pytest.mark.parametrize("source", ["demo%3Afew_slots", CASCADE, "agent"])
def test_what_a_copy_button_copies_is_a_command(api: Stub, url: str, driver: webdriver.Chrome, source: str) -> None:
    cause = structs.replace(documents.kv_full(), levers=[lever(to) for to in (TIER, FP8, CACHING)])
    api.say(structs.replace(documents.unhealthy(), causes=[cause]))
    visit(driver, f"{url}/?source={source}")
    wait_for(driver, "What to do, in this order")
    wait_until_at_rest(driver)
    driver.execute_script("""
        window.copied = [];
        const write = text => { window.copied.push(text); return Promise.resolve(); };
        Object.defineProperty(navigator, 'clipboard', {value: {writeText: write}, configurable: true});
        for (const e of document.querySelectorAll("[class*='st-key-lever-'] summary")) {
            if (!e.parentElement.open) { e.click(); }
        }""")
    buttons = "[class*='st-key-lever-'] button[aria-label='Copy to clipboard']"
    wait_until(lambda: bool(driver.find_elements(By.CSS_SELECTOR, buttons)), "something can be copied", 20.0)
    wait_until_at_rest(driver)
    driver.execute_script(f'document.querySelectorAll("{buttons}").forEach(e => e.click())')
    all_copied = f'return window.copied.length >= document.querySelectorAll("{buttons}").length'
    wait_until(lambda: bool(driver.execute_script(all_copied)), "all are copied", 20.0)
    found = driver.execute_script("return window.copied")
    for text in found:
        assert COMMAND.fullmatch(text), f"no command: {text}"
    if "few_slots" in source:
        assert any(text.startswith("--max-num-seqs ") for text in found)
    if source == "agent":
        assert found == ["--kv-cache-dtype fp8", "--enable-prefix-caching"]
        assert TIER.flag in text_of(driver), "the setting without a value is stated in words"


def lever(setting: LeverSetting) -> LeverAdvice:
    return documents.lever(setting.flag.strip("-"), setting.flag, "why", setting)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_labels_of_a_slider_do_not_overlap(url: str, driver: webdriver.Chrome, width: int) -> None:
    narrow = f"&from={CASCADE_BEGINS + 30:.0f}&to={CASCADE_BEGINS + 36:.0f}"
    for page, said in (("timeline", "Select a window"), ("cache", "Hit rate at other sizes"), ("what-if", "1,005")):
        visit(driver, f"{url}/?source={CASCADE}&page={page}{narrow}", width=width)
        wait_for(driver, said)
        wait_until_at_rest(driver)
        sliders = driver.execute_script(SLIDER_TEXT)
        assert sliders, page
        for texts in sliders:
            for (one, *a), (other, *b) in combinations(texts, 2):
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, f"{page}: {one!r} lies on {other!r}"


def test_tenants_follow_the_time_range(url: str, driver: webdriver.Chrome) -> None:
    verdicts = []
    for middle in (CASCADE_BEGINS + 35, CASCADE_ENDS):
        visit(driver, f"{url}/?source={CASCADE}&page=tenants&from={CASCADE_BEGINS:.0f}&to={middle:.0f}")
        wait_for(driver, "in the time range")
        wait_until_at_rest(driver)
        verdicts.append(driver.find_element(By.CSS_SELECTOR, "[class*='st-key-verdict-']").text)
    early, whole = verdicts
    assert early.partition("Cost")[2] != whole.partition("Cost")[2], "the figures do not follow the range"


def test_no_tenant_finds_more_than_is_attainable(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source={CASCADE}&page=tenants")
    wait_for(driver, "Fairness indices")
    charts(driver, 2)
    points = driver.execute_script(
        "return [...document.querySelectorAll('svg.marks .mark-symbol path[aria-label]')]"
        ".map(e => e.getAttribute('aria-label'))"
    )
    rates: dict[str, dict[str, float]] = {}
    for text in points:
        told = dict(part.split(": ", 1) for part in text.split("; "))
        if {"tenant", "what", "share"} <= told.keys():
            rates.setdefault(told["tenant"], {})[told["what"]] = float(told["share"].rstrip("%"))
    assert len(rates) > 1, points
    for tenant, of in rates.items():
        assert of["hit rate"] <= of["attainable hit rate"], tenant


def test_one_source_has_one_hit_rate(url: str, driver: webdriver.Chrome) -> None:
    visit(driver, f"{url}/?source={CASCADE}&page=cache")
    wait_for(driver, "Hit rate at other sizes")
    wait_until_at_rest(driver)
    cache = text_of(driver)
    measured = _after(cache, r"hit rate since start\s+([\d.]+)%")
    modelled = _after(cache, r"modelled hit rate ([\d.]+)%")
    visit(driver, f"{url}/?source={CASCADE}&page=what-if&lever=raise-kv-budget")
    wait_for(driver, "Hit rate when recorded")
    wait_until_at_rest(driver)
    replayed = text_of(driver)
    assert _after(replayed, r"Hit rate when recorded: ([\d.]+)%") == measured
    assert _after(replayed, r"\bbase\s+([\d.]+)%") == modelled


def _after(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in:\n{text}"
    return found[1]

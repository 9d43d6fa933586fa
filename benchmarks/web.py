"""The web page in a real Chromium: how soon it answers, how fast it follows, and what it takes.

    python -m benchmarks.web                            all three sources, under six minutes
    python -m benchmarks.web --sources recording live   some of them

One server of the page, three sources: a recording of ten minutes of four engines (`recording`), a live agent on four
engines (`live`), and a Prometheus with 40 engines of two days, six of which have a fault (`fleet`). Of each source: the
time from opening the page to its first verdict; the median of five changes to each page; the median of five
interactions. At the end the memory of the server's process with a viewer on each source. Times run until the page has
its heading, the server computes nothing for it any more, and its charts are drawn. Those of changes and interactions
are taken inside the page, from the click on: WebDriver itself takes some 0.05 s to make a click, and each of its
questions keeps the page from working. Chromium logs nothing, since its log copies each message of the server.

It exits with 1 when a budget is missed. Times are of this
machine as busy as it is, so the load is printed beside them, and the CPU seconds of the server, which depend on it
least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import msgspec
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from benchmarks import processes
from benchmarks.pages import Engine
from benchmarks.processes import cpu_seconds, memory_bytes
from kvitals.app import page_process
from kvitals.app.demo import incidents
from kvitals.app.page_settings import PageSettings
from kvitals.series.recordings import CaptureReader, CaptureWriter, Record
from tests.browser.page import chromium, free_port
from tests.fleet.backfill import backfill
from tests.fleet.situations import of_families
from tests.oracle.oracle_server import prometheus

SECONDS, EVERY, ENGINES = 600, 5, 4
FLEET_ENGINES, FLEET_FAULTS, FLEET_SECONDS, BLOCK_SECONDS = 40, 6, 2 * 86400.0, 7200.0
AHEAD_SECONDS = 900.0
"""The samples of the fleet go on so long after they are written, in which it is looked at."""

FIRST_BUDGET, FLEET_FIRST_BUDGET, CHANGE_BUDGET, INTERACTION_BUDGET = 2.0, 15.0, 0.3, 0.15
MEMORY_BUDGET = 350e6
TIMES = 5
PAGES = (
    *("Timeline", "Tenants", "Cache", "Cascades", "Requests", "Fleet", "Engine", "Efficiency"),
    *("What if", "Size", "Rules", "Sources", "Triage"),
)
PLACES = {"recording": "", "live": "agent", "fleet": "prometheus"}
STATE = "return document.querySelector('.stApp')?.getAttribute('data-test-script-state')"
HEADING = "return document.querySelector('.st-key-bar h2')?.innerText"
FOOT = "return document.body.innerText.includes('rules:')"
WATCH = """
const title = arguments[0], at = s => document.querySelector(s);
const charts = () => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].filter(e => e.offsetParent);
const drawn = () => charts().every(e => e.querySelector('.marks'));
window.benchmarkSeconds = null;
addEventListener('click', click => {
  const end = () => { window.benchmarkSeconds = (performance.now() - click.timeStamp) / 1000; };
  const look = () => {
    const done = (!title || at('.st-key-bar h2')?.textContent === title)
      && at('.stApp').getAttribute('data-test-script-state') === 'notRunning' && drawn();
    if (done) requestAnimationFrame(() => setTimeout(end)); else setTimeout(look, 5);
  };
  setTimeout(look, 30);  // until the browser has sent it
}, {capture: true, once: true});
"""
SECONDS_TAKEN = "return window.benchmarkSeconds"
PATIENCE_SECONDS, LOOK_SECONDS = 120.0, 0.05
WARM_SECONDS = 20.0
"""How long the live agent watches its engines before a page is opened."""


def recording(path: Path, engines: int) -> None:
    """Ten minutes of pages that go on changing, as `kvitals record` would have written them."""
    source = next(iter(incidents()))
    with CaptureReader.open(source) as reader:
        facts = [record for record in reader if record.sense in ("facts", "scrape")]
    scrape = msgspec.msgpack.decode(next(record for record in facts if record.sense == "scrape").payload)
    begun = facts[0].t
    pages = [Engine(seed) for seed in range(engines)]
    targets = [f"http://127.0.0.1:{8300 + i}" for i in range(engines)]
    meta = {"targets": [{"url": url, "name": "", "labels": {}} for url in targets], "every_seconds": float(EVERY)}
    with CaptureWriter(path, version="benchmark", meta=meta) as writer:
        for at in range(0, SECONDS + 1, EVERY):
            for url, page in zip(targets, pages, strict=True):
                for _ in range(EVERY):
                    page.advance()
                t, target = begun + at, f"{url}/metrics"
                payload = msgspec.msgpack.encode(scrape | {"t": t, "target": target, "body": page.page()})
                writer.write(Record(t, "scrape", target, payload))


@contextmanager
def agent() -> Iterator[str]:
    """The URL of an agent on four engines whose pages change."""
    first, port = free_port(), free_port()
    urls = [f"http://127.0.0.1:{first + i}" for i in range(ENGINES)]
    command = [sys.executable, "-m", "kvitals.ui.cli.main", "run", "--no-web", *urls, f"--listen=127.0.0.1:{port}"]
    with processes.child("benchmarks.web", "--serve", str(first)):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _until(lambda: _answers(f"http://127.0.0.1:{port}/api/v1/findings"), "the agent has a verdict")
            time.sleep(WARM_SECONDS)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def fleet(folder: Path) -> Iterator[str]:
    """The URL of a Prometheus with a fleet whose last samples are of now."""
    (folder / "data").mkdir(parents=True)
    end = time.time() + AHEAD_SECONDS
    begin = (end - FLEET_SECONDS) // BLOCK_SECONDS * BLOCK_SECONDS
    made = of_families(FLEET_ENGINES, FLEET_FAULTS, seconds=end - begin, fault_seconds=3600.0 + AHEAD_SECONDS)
    began = time.monotonic()
    samples = backfill(replace(made, begin=begin), folder / "data")
    print(f"{FLEET_ENGINES} engines, {samples:,} samples, written in {time.monotonic() - began:.0f} s", flush=True)
    with prometheus(folder) as server:
        yield f"http://127.0.0.1:{server.port}"


@contextmanager
def served(settings: PageSettings) -> Iterator[tuple[str, int]]:
    """The page: its URL and its process."""
    port = free_port()
    begun = time.monotonic()
    process = subprocess.Popen(
        page_process.command(port, settings),
        env=page_process.environment(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until(lambda: _answers(f"http://127.0.0.1:{port}/_stcore/health"), "the page answers")
        print(f"from start until the server answers  {time.monotonic() - begun:8.2f} s")
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _until(so: Callable[[], object], what: str) -> float:
    begun = time.monotonic()
    while not so():
        if time.monotonic() - begun > PATIENCE_SECONDS:
            raise RuntimeError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - begun


def ready(driver: webdriver.Chrome, title: str) -> bool:
    """Whether a page of this title is there, and nothing is being computed for it."""
    return bool(driver.execute_script(HEADING) == title and driver.execute_script(STATE) == "notRunning")


def click(driver: webdriver.Chrome, element: WebElement, title: str = "") -> float:
    """Seconds from a click until the page followed it, with this heading where it leads to another page."""
    driver.execute_script(WATCH, title)
    element.click()
    _until(lambda: driver.execute_script(SECONDS_TAKEN), title or "the page followed")
    return float(driver.execute_script(SECONDS_TAKEN))


def change(driver: webdriver.Chrome, title: str) -> float:
    """Seconds until another page is there and is done."""
    link = f"//section[@data-testid='stSidebar']//a[.//span[normalize-space()='{title}']]"
    return click(driver, driver.find_element(By.XPATH, link), title)


def interact(driver: webdriver.Chrome) -> float:
    """Seconds until the page has followed one interaction, the median: on Fleet the engines are put in another order,
    and back."""
    change(driver, "Fleet")
    orders = [f".st-key-fleet-order button:nth-of-type({(2, 1)[at % 2]})" for at in range(TIMES)]
    return statistics.median(click(driver, driver.find_element(By.CSS_SELECTOR, order)) for order in orders)


def measure(driver: webdriver.Chrome, url: str, pid: int, name: str) -> list[str]:
    """Print the figures of one source; what misses its budget."""
    used = cpu_seconds(pid)
    begun = time.monotonic()
    driver.get(f"{url}/?source={PLACES[name]}" if PLACES[name] else url)
    _until(lambda: ready(driver, "Triage") or driver.execute_script(HEADING), "the first page")
    shown = time.monotonic() - begun
    _until(lambda: ready(driver, "Triage") and driver.execute_script(FOOT), "the verdict")
    first, budget = time.monotonic() - begun, FLEET_FIRST_BUDGET if name == "fleet" else FIRST_BUDGET
    print(f"{name}: page {shown:.2f} s, with its verdict {first:.2f} s, budget {budget:g} s; "
          f"CPU of the server {cpu_seconds(pid) - used:.2f} s; load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    missed = [f"{name}: the first verdict takes {first:.2f} s"] if first > budget else []
    medians = {}
    for turn in range(TIMES):
        for title in PAGES:
            medians.setdefault(title, []).append(change(driver, title))
        if turn == 0:
            print("  first visit: " + ", ".join(f"{t} {took[0]:.2f}" for t, took in medians.items()), flush=True)
    print("  median of five: " + ", ".join(f"{t} {statistics.median(took):.2f}" for t, took in medians.items()))
    for title, took in medians.items():
        if statistics.median(took) > CHANGE_BUDGET:
            missed.append(f"{name}: {title} takes {statistics.median(took):.2f} s")
    took = interact(driver)
    print(f"  interaction, median of five {took:.3f} s, budget {INTERACTION_BUDGET:g} s; load {os.getloadavg()[0]:.1f}",
          flush=True)  # fmt: skip
    return missed + ([f"{name}: an interaction takes {took:.3f} s"] if took > INTERACTION_BUDGET else [])


def measure_memory(driver: webdriver.Chrome, url: str, pid: int, names: Sequence[str]) -> list[str]:
    """The memory with a viewer on each source, each of whom has seen some pages."""
    for name in names:
        driver.switch_to.new_window("tab")
        driver.get(f"{url}/?source={PLACES[name]}" if PLACES[name] else url)
        _until(lambda: ready(driver, "Triage"), "another viewer's page")
        for title in ("Timeline", "Fleet"):
            change(driver, title)
    memory = memory_bytes(pid)
    print(f"memory with {len(names)} viewers {memory / 1e6:.0f} MB, budget {MEMORY_BUDGET / 1e6:.0f} MB")
    return [f"the server takes {memory / 1e6:.0f} MB"] if memory > MEMORY_BUDGET else []


def run(names: Sequence[str]) -> list[str]:
    """What misses its budget."""
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kvitals-bench-") as folder, ExitStack() as stack:
        path = Path(folder, "ten-minutes.kvcap")
        recording(path, ENGINES)
        settings = PageSettings(
            recording=str(path) if "recording" in names else "",
            prometheus=stack.enter_context(fleet(Path(folder, "fleet"))) if "fleet" in names else "",
            api=stack.enter_context(agent()) if "live" in names else "http://127.0.0.1:1",
        )
        url, pid = stack.enter_context(served(settings))
        driver = stack.enter_context(chromium(logs=False))
        for name in names:
            missed += measure(driver, url, pid, name)
        missed += measure_memory(driver, url, pid, names)
        print(f"CPU of the server {cpu_seconds(pid):.1f} s; load of this machine {os.getloadavg()[0]:.1f}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description="The web page in a real Chromium.")
    parser.add_argument("--sources", nargs="+", choices=tuple(PLACES), default=tuple(PLACES))
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(processes.serve([Engine(seed) for seed in range(ENGINES)], args.serve))
        return
    missed = run(args.sources)
    print("\n".join(f"MISSED {line}" for line in missed) or "all budgets hold")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

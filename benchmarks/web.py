"""The web page on a recording of ten minutes, in a real Chromium: how soon it can be used, and what it takes.

    python -m benchmarks.web [--engines 4] [--live]

Makes the recording of pages that change, serves it, and opens the page as a person does. It prints the time from the
start of the process until it answers; from then until the first page can be used, and until it shows its verdict and
its charts; the time of each change of page until nothing moves any more, the second time around too; the time of one
interaction on a page; and the memory of the server's process with three viewers. With `--live` the page is that of an
agent on the incident that ships, as `kvitals run --demo` starts it. It exits with 1 when a budget is missed. Times
are of this machine as busy as it is, so the load is printed beside them, and the CPU seconds of server and browser,
which depend on it least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import msgspec
import psutil
from selenium import webdriver
from selenium.webdriver.common.by import By

from benchmarks.pages import Engine
from benchmarks.processes import cpu_seconds, memory_bytes
from kvitals.app import page_process
from kvitals.app.demo import incidents
from kvitals.app.page_settings import PageSettings
from kvitals.series.recordings import CaptureReader, CaptureWriter, Record
from tests.browser.page import chromium, free_port

SECONDS, EVERY = 600, 5
FIRST_BUDGET, CHANGE_BUDGET, MEMORY_BUDGET = 3.0, 1.0, 350e6
INTERACTION_BUDGET = 0.5
VIEWERS = 3
PAGES = (
    "Timeline",
    "Tenants",
    "Cache",
    "Cascades",
    "Requests",
    "Fleet",
    "Engine",
    "What if",
    "Size",
    "Rules",
    "Sources",
    "Triage",
)
STATE = "return document.querySelector('.stApp')?.getAttribute('data-test-script-state')"
HEADING = "return document.querySelector('.st-key-bar h2')?.innerText"
FOOT = "return document.body.innerText.includes('rules:')"
PATIENCE_SECONDS = 120.0


def recording(path: Path, engines: int) -> None:
    """Ten minutes of pages that go on changing, as `kvitals record` would have written them."""
    source = next(iter(incidents()))
    with CaptureReader.open(source) as reader:
        facts = [one for one in reader if one.sense in ("facts", "scrape")]
    scrape = msgspec.msgpack.decode(next(one for one in facts if one.sense == "scrape").payload)
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
def served(settings: PageSettings) -> Iterator[tuple[str, int, float]]:
    """The page: its URL, its process, and how long it took to answer."""
    port = free_port()
    begun = time.monotonic()
    process = subprocess.Popen(
        page_process.command(port, settings),
        env=page_process.environment(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until(lambda: _healthy(port), "the page answers")
        yield f"http://127.0.0.1:{port}", process.pid, time.monotonic() - begun
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def live() -> Iterator[tuple[str, int, float]]:
    """The page of an agent on the incident that ships: its URL, its process, and how long it took to answer."""
    port, api = free_port(), free_port()
    begun = time.monotonic()
    options = ["run", "--demo", f"--web-port={port}", f"--listen=127.0.0.1:{api}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvitals.ui.cli.main", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until(lambda: _healthy(port), "the page answers")
        page = next(one for one in psutil.Process(process.pid).children(recursive=True) if _listens(one, port))
        yield f"http://127.0.0.1:{port}", page.pid, time.monotonic() - begun
    finally:
        process.terminate()
        process.wait(20)


def _listens(process: psutil.Process, port: int) -> bool:
    return any(one.laddr.port == port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN)


def _healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _until(so: Callable[[], object], what: str) -> float:
    begun = time.monotonic()
    while not so():
        if time.monotonic() - begun > PATIENCE_SECONDS:
            raise RuntimeError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - begun


def ready(driver: webdriver.Chrome, title: str) -> bool:
    """Whether a page of this title is there, and nothing is being computed for it."""
    return bool(driver.execute_script(HEADING) == title and driver.execute_script(STATE) == "notRunning")


def browser_seconds(driver: webdriver.Chrome) -> float:
    """CPU seconds of the browser, all of its processes that still run."""
    total = 0.0
    for one in psutil.Process(driver.service.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


def change(driver: webdriver.Chrome, title: str, pid: int) -> tuple[float, float, float]:
    """Seconds until another page is there and is done, and CPU seconds of the server and of the browser in them."""
    link = f"//section[@data-testid='stSidebar']//a[.//span[normalize-space()='{title}']]"
    found = driver.find_element(By.XPATH, link)
    begun, used, drawn = time.monotonic(), cpu_seconds(pid), browser_seconds(driver)
    found.click()
    _until(lambda: ready(driver, title), title)
    return time.monotonic() - begun, cpu_seconds(pid) - used, browser_seconds(driver) - drawn


def interact(driver: webdriver.Chrome, pid: int) -> float:
    """Seconds until the page has followed one interaction, the middle of five: the kind of requests is switched between
    slowest and newest."""
    change(driver, "Requests", pid)
    times = []
    for at in (1, 0, 1, 0, 1):
        choice = f".st-key-which-requests button:nth-of-type({at + 1})"
        button = driver.find_element(By.CSS_SELECTOR, choice)
        begun = time.monotonic()
        button.click()
        time.sleep(0.03)  # until the browser has sent it
        _until(lambda: driver.execute_script(STATE) == "notRunning", "the page followed")
        times.append(time.monotonic() - begun)
    return statistics.median(times)


def measure_live() -> bool:
    """The same of the page of an agent."""
    with live() as (url, pid, up):
        print("the page of an agent on the incident that ships")
        print(f"from start until it answers          {up:8.2f} s")
        with chromium() as driver:
            return _look(driver, url, pid)


def measure(engines: int) -> bool:
    """Print the figures; whether all budgets hold."""
    with tempfile.TemporaryDirectory(prefix="kvitals-bench-") as folder:
        path = Path(folder, "ten-minutes.kvcap")
        recording(path, engines)
        size = path.stat().st_size / 1e6
        print(f"a recording of {SECONDS} s of {engines} engines every {EVERY} s, {size:.1f} MB")
        with served(PageSettings(api="http://127.0.0.1:1", recording=str(path))) as (url, pid, up):
            print(f"from start until it answers          {up:8.2f} s")
            with chromium() as driver:
                return _look(driver, url, pid)


def _look(driver: webdriver.Chrome, url: str, pid: int) -> bool:
    begun = time.monotonic()
    driver.get(url)
    _until(lambda: driver.execute_script(HEADING) == "Triage", "the first page")
    first = time.monotonic() - begun
    _until(lambda: ready(driver, "Triage") and driver.execute_script(FOOT), "the verdict")
    told = time.monotonic() - begun
    print(f"first page, from then on             {first:8.2f} s   budget {FIRST_BUDGET:g} s")
    print(f"  with its verdict and charts        {told:8.2f} s   CPU of the server until then {cpu_seconds(pid):.2f} s")
    changes = []
    for turn in ("first", "again"):
        for title in PAGES:
            took, used, drawn = change(driver, title, pid)
            changes.append((took, used))
            print(f"to {title:<10} {turn:<22}{took:8.2f} s   CPU of server {used:.2f}, of browser {drawn:.2f} s")
    took = interact(driver, pid)
    print(f"interaction, middle of five          {took:8.2f} s   budget {INTERACTION_BUDGET:g} s")
    for _ in range(VIEWERS - 1):
        driver.switch_to.new_window("tab")
        driver.get(url)
        _until(lambda: ready(driver, "Triage"), "another viewer's page")
        for title in ("Timeline", "Fleet"):
            change(driver, title, pid)
    memory = memory_bytes(pid)
    longest, most = (max(one[i] for one in changes) for i in range(2))
    middle, usual = (statistics.median(one[i] for one in changes) for i in range(2))
    print(f"changes of page: middle {middle:.2f} s, longest {longest:.2f} s, budget {CHANGE_BUDGET:g} s")
    print(f"  of that CPU of the server: middle {usual:.2f} s, most {most:.2f} s")
    print(f"memory with {VIEWERS} viewers {memory / 1e6:22.0f} MB  budget {MEMORY_BUDGET / 1e6:.0f} MB")
    print(f"CPU of the server {cpu_seconds(pid):27.1f} s   load of this machine {os.getloadavg()[0]:.1f}")
    return told <= FIRST_BUDGET and longest <= CHANGE_BUDGET and took <= INTERACTION_BUDGET and memory <= MEMORY_BUDGET


def main() -> None:
    parser = argparse.ArgumentParser(description="The web page in a real Chromium.")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--live", action="store_true", help="the page of an agent instead of a recording")
    args = parser.parse_args()
    sys.exit(0 if (measure_live() if args.live else measure(args.engines)) else 1)


if __name__ == "__main__":
    main()

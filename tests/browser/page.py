"""The page as a process of its own, and a headless Chromium that looks at it. What is started is ended."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from kvitals.app import page_process
from kvitals.app.page_settings import PageSettings
from tests.support.processes import free_port

CHROMIUM = shutil.which("chromium")
CHROMEDRIVER = shutil.which("chromedriver")
START_SECONDS = 120.0
JUDGED_SECONDS = 240.0
"""The longest that a recording takes to be judged on a busy machine, with the page telling how far it is."""
_PROGRESS = re.compile(r"moment by moment: (\d+)%")
QUIET = [
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "disable-dev-shm-usage",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-default-apps",
    "disable-extensions",
]


@contextmanager
def served(what: PageSettings | str) -> Iterator[str]:
    """The page with these settings, or of the agent at a URL; yields its URL."""
    settings = PageSettings(api=what) if isinstance(what, str) else what
    port = free_port()
    process = subprocess.Popen(
        page_process.command(port, settings),
        env=page_process.environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_until_healthy(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = process.stdout.read().decode() if process.stdout else ""
            raise AssertionError(f"the page ended with {process.returncode}: {said}")
        try:
            with urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the page did not start within {START_SECONDS:.0f} s")


@contextmanager
def chromium(*, logs: bool = True) -> Iterator[webdriver.Chrome]:
    """A Chromium with an empty profile. `logs`: its console and every request, for `traffic` and `console_errors`."""
    assert CHROMIUM and CHROMEDRIVER, "these tests need Debian's packages chromium and chromium-driver"
    with tempfile.TemporaryDirectory(prefix="kvitals-chromium-") as profile:
        options = Options()
        options.binary_location = CHROMIUM
        for flag in [*QUIET, f"user-data-dir={profile}", "window-size=1280,900"]:
            options.add_argument(f"--{flag}")
        if logs:
            options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
        try:
            driver.set_page_load_timeout(30)
            yield driver
        finally:
            driver.quit()


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    """The size of the page itself, which may be narrower than any window can be."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def visit(driver: webdriver.Chrome, url: str, *, width: int = 1280, dark: bool = False) -> None:
    """Open `url` as someone with this screen and this preference does; what was logged before is forgotten."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    resize(driver, width, 900)
    driver.get("about:blank")  # a page that was left goes on trying to reach its server
    for log in ("browser", "performance"):
        driver.get_log(log)  # type: ignore[no-untyped-call]
    driver.get(url)


def text_of(driver: webdriver.Chrome) -> str:
    """All text that the page shows."""
    return str(driver.execute_script("return document.body.innerText"))


def wait_until(so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until `so()` is true; `what` says in the failure what did not come about."""
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


def wait_until_at_rest(driver: webdriver.Chrome, seconds: float = 1.0) -> None:
    """Wait until no run of the page's script has been under way for `seconds`. Streamlit merges requests that come
    during a run: a chart that reports its state then takes the page of a Back, or the click, just before it."""
    state = "return document.querySelector('[data-testid=stApp]').getAttribute('data-test-script-state')"
    last_run = time.monotonic()

    def so() -> bool:
        nonlocal last_run
        if driver.execute_script(state) != "notRunning":
            last_run = time.monotonic()
        return time.monotonic() - last_run >= seconds

    wait_until(so, "the page is at rest")


def wait_for(driver: webdriver.Chrome, text: str, seconds: float = 60.0) -> None:
    """Wait until the page shows `text`; while it tells how far it is in a recording, it may take longer."""
    begun = so_far = time.monotonic()
    progress: list[str] = []
    while text not in (shown := text_of(driver)):
        now = time.monotonic()
        if (told := _PROGRESS.findall(shown)) and told != progress:
            progress, so_far = told, now
        late = now >= min(so_far + seconds, begun + JUDGED_SECONDS)
        assert not late, f"not within {now - begun:.0f} s: {text!r}; the page shows:\n{shown}"
        time.sleep(0.1)


def screenshot(driver: webdriver.Chrome, path: Path) -> None:
    """The whole length of the page."""
    script = "return (document.querySelector('.stMainBlockContainer') || document.body).scrollHeight"
    time.sleep(0.5)  # until charts have their height
    width = int(driver.execute_script("return window.innerWidth"))
    resize(driver, width, max(600, int(driver.execute_script(script)) + 40))
    time.sleep(0.7)
    driver.save_screenshot(str(path))


def hosts_asked(driver: webdriver.Chrome) -> set[str]:
    """Every host that the page sent a request to, web sockets included."""
    return traffic(driver)[0]


def traffic(driver: webdriver.Chrome) -> tuple[set[str], list[str]]:
    """Every host that was asked since the last look, and every answer that was none."""
    hosts, failed = set(), []
    for entry in driver.get_log("performance"):  # type: ignore[no-untyped-call]
        message: dict[str, Any] = json.loads(entry["message"])["message"]
        params = message["params"]
        url = params.get("request", {}).get("url") or params.get("url", "")
        if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
            parts = urlsplit(url)
            if parts.scheme in ("http", "https", "ws", "wss"):
                hosts.add(parts.hostname or "")
        if message["method"] == "Network.responseReceived" and params["response"]["status"] >= 400:
            failed.append(f"{params['response']['status']} {params['response']['url']}")
        if message["method"] == "Network.loadingFailed" and not params.get("canceled"):
            failed.append(str(params.get("errorText")))
    return hosts, failed


def console_errors(driver: webdriver.Chrome) -> list[str]:
    """What the page's console reported as severe."""
    log = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [str(entry["message"]) for entry in log if entry["level"] == "SEVERE"]

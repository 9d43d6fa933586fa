"""The whole product on the recorded incident that ships: agent, API and page, as `kvitals run --demo` starts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from kvitals.rules.finding import Triage
from tests.browser.page import (
    chromium,
    console_errors,
    hosts_asked,
    screenshot,
    visit,
    wait_for,
    wait_until,
)
from tests.support.processes import free_port

START_SECONDS = 60.0
END_SECONDS = 15.0


@dataclass(frozen=True)
class Product:
    page: str
    api: str
    document: Triage


def answer(url: str) -> bytes | None:
    """The body, or None while nobody answers with one."""
    try:
        with urlopen(url, timeout=10) as response:
            body: bytes = response.read()
            return body
    except OSError:
        return None


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    page, api = free_port(), free_port()
    options = ["--demo", "--web-port", str(page), "--listen", f"127.0.0.1:{api}"]
    command = [sys.executable, "-m", "kvitals.ui.cli.main", "run", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    findings, health = f"http://127.0.0.1:{api}/api/v1/findings", f"http://127.0.0.1:{page}/_stcore/health"
    try:
        wait_until(lambda: bool(answer(findings) and answer(health)), "page and API answer", START_SECONDS)
        document = msgspec.json.decode(answer(findings) or b"", type=Triage)
        yield Product(f"http://127.0.0.1:{page}", f"http://127.0.0.1:{api}", document)
        process.terminate()
        assert process.wait(END_SECONDS) in (0, 130)
        assert answer(health) is None, "the page outlives the command"
    finally:
        process.kill()
        process.wait()


def test_the_page_says_what_the_api_says(product: Product, tmp_path: Path) -> None:
    with chromium() as driver:
        visit(driver, product.page)
        wait_for(driver, product.document.verdict)
        for cause in product.document.causes:
            wait_for(driver, cause.conclusion)
        wait_for(driver, f"{product.document.coverage.rules} rules:")
        screenshot(driver, tmp_path / "demo.png")
        assert hosts_asked(driver) == {"127.0.0.1"}
        assert console_errors(driver) == []

"""The page beside a real engine in trouble: an agent is started on it, and its pages are walked through meanwhile.

    python -m tests.browser.live [--situation few_slots] [--pictures DIR]

Takes the lab (docs/lab.md). Ends with 1 where the page does not tell the right cause, a page fails, the console has an
error, or a host outside is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

from tests.browser.page import (
    chromium,
    console_errors,
    screenshot,
    text_of,
    traffic,
    visit,
    wait_for,
    wait_until,
)
from tests.browser.test_journeys import charts, go
from tests.lab.scenario import Scenario, load_scenario
from tests.lab.stage import Stage
from tests.support.processes import free_port

BASELINE_SECONDS, LIMIT_SECONDS = 15.0, 280.0
PAGES = {
    "Timeline": "Select a window",
    "Tenants": "No tenant is known",
    "Cache": "No engine has reported its blocks",
    "Requests": "No requests are known",
    "Fleet": "with severity page",
    "Rules": "What it sees",
    "Sources": "Incidents that ship",
}


async def play(situation: str, pictures: Path) -> list[str]:
    """What is wrong with the page, as sentences."""
    scenario = load_scenario(situation)
    async with asyncio.timeout(LIMIT_SECONDS), Stage(scenario) as stage:
        await stage.play("baseline", BASELINE_SECONDS)
        async with stage.playing("incident"):
            return await asyncio.to_thread(_beside, [one.url for one in stage.servers], scenario, pictures)


def _beside(urls: list[str], scenario: Scenario, pictures: Path) -> list[str]:
    with _agent(urls) as page, chromium() as driver:
        visit(driver, page)
        wait_until(lambda: any(code in text_of(driver) for code in scenario.expect), "the right cause", 120.0)
        time.sleep(2)
        screenshot(driver, pictures / "live-triage.png")
        wrong = []
        for title, said in PAGES.items():
            go(driver, title)
            wait_for(driver, said)
            if title == "Timeline":
                charts(driver, 3)
            time.sleep(6)  # two refreshes of what is live
            if "This page failed" in text_of(driver):
                wrong.append(f"{title} failed")
            screenshot(driver, pictures / f"live-{title.lower()}.png")
        hosts, failed = traffic(driver)
        wrong += [f"asked {host}" for host in hosts - {"127.0.0.1"}]
        return [*wrong, *(f"not answered: {one}" for one in failed), *console_errors(driver)]


@contextlib.contextmanager
def _agent(urls: list[str]) -> Iterator[str]:
    """`kvitals run` on these engines, with its page; yields the page's URL."""
    port, api = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="kvitals-live-") as folder:
        config = Path(folder, "kvitals.toml")
        config.write_text(f'[history]\ndirectory = "{folder}/history"\n')
        options = [*urls, f"--config={config}", f"--web-port={port}", f"--listen=127.0.0.1:{api}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "kvitals.ui.cli.main", "run", *options], stdout=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: _answers(port), "the page answers", 120.0)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="The page beside a real engine in trouble.")
    parser.add_argument("--situation", default="few_slots")
    parser.add_argument("--pictures", type=Path, default=Path())
    args = parser.parse_args()
    args.pictures.mkdir(parents=True, exist_ok=True)
    wrong = asyncio.run(play(args.situation, args.pictures))
    print("\n".join(wrong) or f"{args.situation}: the page told the right cause, and {len(PAGES)} pages were sound")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

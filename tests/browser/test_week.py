"""A week of six engines from a real Prometheus, on the page: its figures are those of `kvitals review`, and the GPU
time stacks to the total. Nothing is scraped in the last 20 minutes of the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from benchmarks.review import make
from kvitals.app.page_settings import PageSettings
from kvitals.diagnoser.review.result import Review
from kvitals.ui.cli.main import main as command
from kvitals.ui.review.sections import tiles
from kvitals.ui.web.views.efficiency import gpu_time_rectangles
from tests.browser.page import chromium, served, text_of, visit, wait_for, wait_until
from tests.browser.test_journeys import click
from tests.fleet.week import backfill
from tests.oracle.oracle_server import prometheus

ENGINES, DAYS = 6, 7.0
SILENT_SECONDS = 1200.0
RECTANGLES = """
return [...document.querySelectorAll('svg.marks')].filter(svg => svg.querySelector('.mark-rect path')).slice(0, 1)
  .flatMap(svg => [...svg.querySelectorAll('.mark-rect path')].map(e => {
    const b = e.getBoundingClientRect();
    return [b.left, b.top, b.bottom];
  }))
"""


@dataclass(frozen=True)
class Week:
    """A week on a server: `review` is the document that the command makes of it."""

    url: str
    start: float
    end: float
    review: Review


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Week]:
    folder = tmp_path_factory.mktemp("week")
    (folder / "data").mkdir()
    made = make(ENGINES, DAYS)
    backfill(made.engines, made.times, folder / "data")
    start, end = float(made.times[0]), float(made.times[-1]) + SILENT_SECONDS
    with prometheus(folder) as server:
        url = f"http://127.0.0.1:{server.port}"
        yield Week(url, start, end, _reviewed(url, start, end, folder / "review"))


def _reviewed(url: str, start: float, end: float, out: Path) -> Review:
    arguments = ["review", "--prometheus", url, "--from", f"{start:.0f}", "--to", f"{end:.0f}", "--out", str(out)]
    with pytest.raises(SystemExit) as stop:
        command(arguments)
    assert not stop.value.code
    return msgspec.json.decode((out / "review.json").read_bytes(), type=Review)


@pytest.fixture(scope="module")
def driver(week: Week) -> Iterator[webdriver.Chrome]:
    settings = PageSettings(api="http://127.0.0.1:1", prometheus=week.url)
    with served(settings) as url, chromium() as driver:
        visit(driver, f"{url}/?page=efficiency&from={week.start:.0f}&to={week.end:.0f}")
        wait_for(driver, "Nothing was reviewed yet")
        click(driver, By.XPATH, "//button[.//p[text()='Review']]")
        wait_for(driver, "Where the GPU time went", 120.0)
        wait_until(lambda: bool(driver.execute_script(RECTANGLES)), "the GPU time is drawn")
        yield driver


def test_the_figures_are_those_of_the_command(week: Week, driver: webdriver.Chrome) -> None:
    shown = driver.execute_script(
        "return [...document.querySelectorAll('.st-key-review-tiles [data-testid=stMetricValue]')]"
        ".map(e => e.innerText)"
    )
    assert shown == [value for value, _ in tiles(week.review)]
    said = text_of(driver)
    for sentence in week.review.story:
        assert sentence in said.replace("\u2060", ""), sentence


def test_the_gpu_time_stacks_to_the_total(week: Week, driver: webdriver.Chrome) -> None:
    columns: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for left, top, bottom in driver.execute_script(RECTANGLES):
        columns[round(left, 1)].append((bottom, top))
    assert len(columns) == len(week.review.courses.ends)
    pixels = 0.0
    for stacked in columns.values():
        stacked.sort(reverse=True)
        pixels += stacked[0][0] - stacked[-1][1]
        for (_, top), (bottom, _) in pairwise(stacked):
            assert abs(top - bottom) < 0.6, "a part floats above the one below it"
    drawn = gpu_time_rectangles(week.review)
    assert sum(row["hours"] for row in drawn) == pytest.approx(week.review.total.gpu_hours, rel=1e-3)
    highest = max(row["high"] for row in drawn)
    tallest = max(stacked[0][0] - stacked[-1][1] for stacked in columns.values())
    assert pixels * highest / tallest == pytest.approx(week.review.total.gpu_hours, rel=0.02)


def test_the_table_adds_up_to_the_tile(week: Week) -> None:
    assert sum(part.gpu_hours for part in week.review.ledger) == pytest.approx(week.review.total.gpu_hours, rel=1e-6)
    assert all(part.gpu_hours >= 0 for part in week.review.ledger)

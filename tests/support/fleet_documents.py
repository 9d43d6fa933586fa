"""Documents of fleets for tests of `kvitals top`, and a source that hands them out."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from kvitals.rules.finding import EngineRow, Triage
from kvitals.ui.cli.top_app import FleetApp
from tests.support.recordings import CAPTURES, judge, setup

PAIR = CAPTURES / "incidents" / "pd_decode_slots-1.kvcap"
HEAVY = CAPTURES.parents[1] / "app" / "demo" / "heavy_tenant.kvcap"
SECONDS = 60.0


def document_of(path: Path) -> Triage:
    """What `kvitals triage FILE` says."""
    return judge(path, setup()).document


def named(row: EngineRow, name: str, node: str = "") -> EngineRow:
    """The same row of another engine."""
    labels = {"engine": name} | ({"node": node} if node else {})
    return msgspec.structs.replace(row, entity=msgspec.structs.replace(row.entity, labels=labels, title=name))


def fleet_of(engines: int) -> Triage:
    """A fleet in which the first engine is the sick one of `PAIR` and all others are like its healthy one."""
    document = document_of(PAIR)
    sick, healthy = document.engines
    rows = [sick, *(named(healthy, f"10.0.0.{number}:8000/0", f"node-{number % 8}") for number in range(1, engines))]
    return msgspec.structs.replace(document, engines=rows)


class StillSource:
    """Hands out one document or error after another, then the last one again whenever it is asked."""

    name = "still"

    def __init__(self, *answers: Triage | Exception) -> None:
        self._answers, self._last = list(answers), answers[0]
        self.read_count = 0
        self.closed = False

    @property
    def pause(self) -> float:
        return 0.0 if self._answers else math.inf

    async def open(self) -> None:
        """Nothing to open."""

    async def read(self) -> Triage:
        self.read_count += 1
        answer = self._answers.pop(0) if self._answers else self._last
        self._last = answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True

    def hand_out(self, document: Triage) -> None:
        """The next answer."""
        self._answers.append(document)


def screen_text(app: FleetApp) -> str:
    """What stands on the uppermost screen."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def until(condition: Callable[[], bool], app: FleetApp, pilot: Pilot[None]) -> None:
    """Wait for the screen. Raises AssertionError with what it shows instead."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, screen_text(app)
        await pilot.pause(0.02)


@asynccontextmanager
async def shown(app: FleetApp, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Pilot[None]]:
    """The app with its first document on a screen without a terminal."""
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.document is not None, app, pilot)
        await pilot.pause()
        yield pilot

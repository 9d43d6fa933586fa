"""Looped recordings as pages that a Prometheus scrapes: of engines, or of the agents that watch them.

A page is calculated from arrays that are prepared once, so that 60 engines cost a few per cent of a core.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from kvitals.series.types import METRIC_NAME, Floats, Labels, escape
from tests.fleet.loops import STARTED_BEFORE, Loop, is_clock

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PHASE_SECONDS = 7.0
"""Between the phases of two engines of the same recording."""


class LoopTable:
    """The values of all series of a loop at any time."""

    def __init__(self, loop: Loop) -> None:
        self.labels = [course.labels for course in loop.courses]
        self.cumulative = np.array([course.cumulative for course in loop.courses])
        self._lap = loop.courses[0].lap
        self._grid = np.unique(np.concatenate([course.times for course in loop.courses]))
        self._values = np.array([course.at(self._grid) for course in loop.courses])
        self._gained = np.array([course.gained for course in loop.courses])

    def at(self, seconds: float) -> Floats:
        """The values so many seconds after the first lap's start, in the order of `labels`."""
        laps, phase = divmod(seconds, self._lap)
        place = max(0, int(np.searchsorted(self._grid, phase, side="right")) - 1)
        values: Floats = self._values[:, place] + laps * self._gained
        return values


@dataclass(frozen=True)
class LoopedEngine:
    """An engine that is healthy until `onset`, seconds after the start, and has a fault from then on."""

    number: int
    pool: str
    usual: LoopTable
    fault: LoopTable | None = None
    onset: float = 0.0

    @property
    def address(self) -> str:
        return f"10.0.{self.number >> 8}.{self.number & 255}:8000"

    @property
    def node(self) -> str:
        return f"node-{self.pool}"


class EnginePage:
    """The text of an engine's series. with_node: whether the series that are of the node come too."""

    def __init__(self, engine: LoopedEngine, started: float, *, with_node: bool = True) -> None:
        self._engine = engine
        self._phase = PHASE_SECONDS * engine.number
        self._tables = [(table, self._names(table, with_node)) for table in (engine.usual, engine.fault) if table]
        self._clock = f"{started - STARTED_BEFORE:.0f}"
        self._offset = self._continued()

    def _names(self, table: LoopTable, with_node: bool) -> list[tuple[int, str, bool]]:
        """Place, text up to the value, whether the value is the start of a process."""
        return [
            (i, _series(labels, self._engine.address), is_clock(labels.name))
            for i, labels in enumerate(table.labels)
            if with_node or "engine" in labels
        ]

    def _continued(self) -> Floats:
        """What is added to each counter of the fault, so that it goes on from where the healthy engine was."""
        engine = self._engine
        if engine.fault is None:
            return np.zeros(0)
        at = engine.onset + self._phase
        usual = dict(zip((labels.drop("engine") for labels in engine.usual.labels), engine.usual.at(at), strict=True))
        before = np.array([usual.get(labels.drop("engine"), 0.0) for labels in engine.fault.labels])
        gap = before - engine.fault.at(at)
        known = np.array([labels.drop("engine") in usual for labels in engine.fault.labels])
        return np.where(known & engine.fault.cumulative & np.isfinite(gap), gap, 0.0)

    def lines(self, seconds: float) -> Iterator[str]:
        """seconds: since the start of the scenario."""
        faulty = self._engine.fault is not None and seconds >= self._engine.onset
        table, names = self._tables[-1 if faulty else 0]
        values = table.at(seconds + self._phase)
        numbers = (values + self._offset if faulty else values).tolist()
        for place, name, clock in names:
            yield f"{name}{self._clock if clock else repr(numbers[place])}\n"


def _series(labels: Labels, address: str) -> str:
    """A series up to its value, as a page has it: an agent names its engines, an engine does not name itself."""
    named = {name: value for name, value in labels.items() if name != METRIC_NAME}
    if "engine" in named and labels.name.startswith("kvitals"):
        # Some recordings name their engine without its rank; an engine keeps its name when its fault begins.
        named["engine"] = f"{address}/{named['engine'].partition('/')[2] or '0'}"
    return labels.name + "{" + ",".join(f'{name}="{escape(value)}"' for name, value in named.items()) + "} "


def engine_pages(engines: Sequence[LoopedEngine], started: float) -> dict[str, Callable[[float], str]]:
    """Path -> text of the page at a time, a page an engine."""
    return {f"/engine/{engine.number}": _joined([EnginePage(engine, started)]) for engine in engines}


def agent_pages(engines: Sequence[LoopedEngine], started: float) -> dict[str, Callable[[float], str]]:
    """Path -> text of the page at a time, a page for the agent of each pool's node."""
    pools: dict[str, list[EnginePage]] = {}
    for engine in engines:
        pages = pools.setdefault(engine.pool, [])
        pages.append(EnginePage(engine, started, with_node=not pages))
    return {f"/agent/{pool}": _joined(pages) for pool, pages in pools.items()}


def _joined(pages: Sequence[EnginePage]) -> Callable[[float], str]:
    return lambda seconds: "".join(line for page in pages for line in page.lines(seconds))


class PageServer(ThreadingHTTPServer):
    """Serves pages; a Prometheus that ends closes its connections, which is no error."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serving(pages: Mapping[str, Callable[[float], str]], started: float) -> Iterator[int]:
    """Serves the pages on loopback and yields the port. started: the time of the scenario's start."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = pages.get(self.path)
            if page is None:
                self.send_error(404)
                return
            body = page(max(0.0, time.time() - started)).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = PageServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

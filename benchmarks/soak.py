"""The whole agent under load for an hour: memory that stays flat, looks that are on time, nothing dropped.

    python -m benchmarks.soak [--seconds 3600]

8 engines and the exporter of 8 GPUs, whose pages change each second, looked at every 5 seconds; besides, at bounded
rates: KV events of every engine (a recorded mix that begins anew with other blocks), spans over OTLP, chats through a
tap whose observations go to the agent, and somebody who reads the agent's own page every 15 seconds. The first half
fills what is bounded: the window, requests and names that are remembered. The second half is measured.

Memory grows by the slope of the line through the means of twelve parts of the second half; its standard error is that
of the line. A look is missed where two rows of an engine are more than one and a half intervals apart; drift is how
much longer than the interval the time between looks is on the mean. Exits with 1 where something of it does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import zmq
import zmq.asyncio

from benchmarks import processes
from benchmarks.gpus import Exporter
from benchmarks.ledger import mix
from benchmarks.pages import Engine
from benchmarks.requests import BATCH, BEGIN, PER_SECOND, Made, recorded
from tests.chaos.requests.clients import Connection, request

INTERVAL_SECONDS = 5.0
ENGINES, GPUS = 8, 8
FIRST_PORT = 19300
OTLP, TAP, ADMIN, AGENT, PLAYED = (FIRST_PORT + 40 + i for i in range(5))
EVENTS_PORT = FIRST_PORT + 60

MESSAGES_A_SECOND = 16.0
"""Of KV events, of each engine; a message has some 35 blocks, so all eight store and remove about 4,500 a second."""
SPANS_A_SECOND = 200.0
CHATS_A_SECOND = 20.0
PAGE_SECONDS = 15.0

WINDOW_SECONDS = 1800.0
"""Of the agent, in an hour. A shorter soak has a window that its first half fills all the same."""
PARTS = 12
MEMORY_BUDGET = 400e6
"""Bytes. By the limits of what is kept: 150 MB for the agent that only looks, which `benchmarks.agent` measures;
300,000 blocks of all ledgers, 160 bytes each: 48; 4,096 look-ups of each of eight engines that wait for their request's
record, 700 bytes each: 23; a million block references for replays with their rows: 18; 20,000 requests, and the ids of
those that were given out: 72; 6,000 series more than that agent has, and half of their cells as slack: 26. That is 337,
and a fifth more for what allocators hold and what is under way."""
SLOPE_BUDGET = 60e6
"""Bytes an hour that are no leak: signals are kept for two hours, so they go on filling, some 300 of each engine."""
JUDGED_SECONDS = 1700.0
"""Of the second half. In less, what is remembered still fills, the ledgers' 300,000 blocks for 23 minutes: growth is
told and not judged."""
DRIFT_BUDGET = 0.01
"""Of the interval."""


@dataclass
class Line:
    """A line through measurements. slope: a second, and its standard error."""

    slope: float
    error: float


@dataclass
class Soaked:
    """What came of it. Times in seconds, memory in bytes."""

    seconds: float
    cpu: float = 0.0
    tap_cpu: float = 0.0
    memory: list[tuple[float, float]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)  # times of rows of one engine
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        return max(size for _, size in self.memory)

    @property
    def growth(self) -> Line:
        return line(self.memory)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.looks)]

    @property
    def missed(self) -> int:
        return sum(round(gap / INTERVAL_SECONDS) - 1 for gap in self.gaps if gap > 1.5 * INTERVAL_SECONDS)

    @property
    def drift(self) -> float:
        """By what share of the interval the mean time between looks is longer."""
        return (self.looks[-1] - self.looks[0]) / max(len(self.gaps) + self.missed, 1) / INTERVAL_SECONDS - 1.0


def line(points: list[tuple[float, float]]) -> Line:
    """The least-squares line through the means of `PARTS` parts of the points, whose neighbours are alike."""
    parts = [np.mean(some, axis=0) for some in np.array_split(np.array(points), PARTS) if len(some)]
    at, size = np.array(parts).T
    if len(at) < 3:
        return Line(math.nan, math.nan)
    (slope, start), residuals = np.polyfit(at, size, 1), 0.0
    residuals = float(((size - slope * at - start) ** 2).sum())
    error = math.sqrt(residuals / (len(at) - 2) / float(((at - at.mean()) ** 2).sum()))
    return Line(float(slope), error)


def measure(seconds: float) -> Soaked:
    """Run everything for so long."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(processes.child("benchmarks.soak", "--serve"))
        agent = stack.enter_context(_agent(folder, min(WINDOW_SECONDS, max(seconds / 3, 60.0))))
        tap = stack.enter_context(_tap(folder))
        load = stack.enter_context(processes.child("benchmarks.soak", "--load"))
        found = _watch(agent.pid, tap.pid, seconds)
        if any(process.poll() is not None for process in (agent, tap, load)):
            raise RuntimeError("the agent, the tap or the load ended before its time")
        return found


def _watch(agent: int, tap: int, seconds: float) -> Soaked:
    began, halfway = time.monotonic(), seconds / 2
    found = Soaked(seconds - halfway)
    cpu, read = (0.0, 0.0), 0.0
    while (done := time.monotonic() - began) < seconds:
        if done >= halfway and not found.memory:
            cpu = processes.cpu_seconds(agent), processes.cpu_seconds(tap)
            halfway = done
        if done >= halfway:
            found.memory.append((done, processes.memory_bytes(agent)))
        if done - read >= 60.0 or not found.looks:
            read = done
            found.looks = _with(found.looks, _rows(120.0))
            if sys.stdout.isatty():
                print(f"{done:5.0f} s  {processes.memory_bytes(agent) / 1e6:.0f} MB", flush=True)
        time.sleep(min(INTERVAL_SECONDS, max(seconds - done, 0.0)))
    found.seconds = time.monotonic() - began - halfway
    found.cpu = processes.cpu_seconds(agent) - cpu[0]
    found.tap_cpu = processes.cpu_seconds(tap) - cpu[1]
    found.looks = _with(found.looks, _rows(120.0))
    found.counts = _counts()
    return found


def _with(known: list[float], rows: list[float]) -> list[float]:
    return sorted({*known, *rows})


_ENGINE = f"127.0.0.1:{FIRST_PORT}.*"

_COUNTED = {
    "engines and exporter up": "sum(kvitals_target_up)",
    "requests in records": "sum(kvitals_tenant_requests_total)",
    "spans and chats taken": "sum(kvitals_parts_total)",
    "of them dropped": 'sum(kvitals_parts_dropped_total{reason!~"not_ours|detail"}) or vector(0)',
    "batches of KV events": "sum(kvitals_kv_event_batches_total)",
    "of them lost": "sum(kvitals_kv_event_batches_lost_total) or vector(0)",
    "history: cycles dropped": "sum(kvitals_history_dropped_total) or vector(0)",
}
_SOME_OF = ("requests in records", "spans and chats taken", "batches of KV events")
_NONE_OF = ("of them dropped", "of them lost", "history: cycles dropped")


def _counts() -> dict[str, float]:
    now = time.time()
    return {name: _value(query, now) for name, query in _COUNTED.items()}


def _value(query: str, at: float) -> float:
    found = _asked(query, at)
    return float(found[0]["value"][1]) if found else math.nan


def _rows(seconds: float) -> list[float]:
    """When one engine's rows are, of the last so many seconds."""
    found = _asked(f'kvitals_target_up{{engine=~"{_ENGINE}"}}[{seconds:.0f}s]', time.time())
    return [float(t) for t, _ in found[0]["values"]] if found else []


def _asked(query: str, at: float) -> list[dict[str, Any]]:
    arguments = urllib.parse.urlencode({"query": query, "time": at})
    with urllib.request.urlopen(f"http://127.0.0.1:{AGENT}/api/v1/query?{arguments}", timeout=20) as answer:
        return list(json.load(answer)["data"]["result"])


@contextmanager
def _agent(folder: Path, window: float) -> Iterator[subprocess.Popen[bytes]]:
    urls = [f"http://127.0.0.1:{FIRST_PORT + i}" for i in range(ENGINES + 1)]
    targets = "".join(f'[[target]]\nurl = "{url}"\n' for url in urls)
    sources = "".join(
        f'[[kv_events.source]]\ntarget = "{url}"\nendpoint = "tcp://127.0.0.1:{EVENTS_PORT + i}"\nbind = false\n'
        for i, url in enumerate(urls[:ENGINES])
    )
    config = folder / "kvitals.toml"
    config.write_text(
        f'[agent]\nlisten = "127.0.0.1:{AGENT}"\nwindow = "{window:.0f}s"\ndiscover = false\n'
        f'[otlp]\ngrpc = ""\nhttp = "127.0.0.1:{OTLP}"\n[history]\nmin_free_bytes = 0\n{targets}{sources}'
    )
    with _kvitals(folder, "agent", "run", "--no-web", f"--config={config}") as process:
        processes.wait(f"http://127.0.0.1:{AGENT}/api/v1/findings")
        yield process


@contextmanager
def _tap(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tests.chaos.requests.engine", str(PLAYED)]
        played = stack.enter_context(subprocess.Popen(command))
        stack.callback(played.terminate)
        processes.wait(f"http://127.0.0.1:{PLAYED}/metrics")
        options = [f"--listen=127.0.0.1:{TAP}", f"--admin=127.0.0.1:{ADMIN}", f"--upstream=http://127.0.0.1:{PLAYED}"]
        with _kvitals(folder, "tap", "tap", *options, f"--agent=http://127.0.0.1:{AGENT}") as process:
            processes.wait(f"http://127.0.0.1:{ADMIN}/metrics")
            yield process


@contextmanager
def _kvitals(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "HOME": str(folder)}
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "kvitals.ui.cli.main", *arguments]
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
            try:
                yield process
            except RuntimeError as error:
                raise RuntimeError(f"{error}; it says: {(folder / f'{name}.log').read_text()[-2000:]}") from error
            finally:
                process.terminate()


async def _load() -> None:
    """Everything that comes to the agent by itself, until ended."""
    os.nice(5)
    async with aiohttp.ClientSession() as session:
        tasks = [_publish(number) for number in range(ENGINES)]
        tasks += [_send_spans(session), _chat(), _read_page(session)]
        print("ready", flush=True)
        await asyncio.gather(*tasks)


async def _publish(number: int) -> None:
    """KV events of one engine: the recorded mix over and over, each time with other blocks."""
    socket = zmq.asyncio.Context.instance().socket(zmq.PUB)
    socket.bind(f"tcp://127.0.0.1:{EVENTS_PORT + number}")
    payloads = [payload for _, payload in mix()]
    sequence, due = 0, time.monotonic() + random.random()
    for cycle in itertools.count(1):
        mask = (cycle * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) & (1 << 64) - 1
        for payload in payloads:
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            due += 1 / MESSAGES_A_SECOND
            await socket.send_multipart([b"kv", sequence.to_bytes(8, "big"), _other(payload, mask)])
            sequence += 1


def _other(payload: bytes, mask: int) -> bytes:
    """A recorded message as it would be now, of other blocks."""
    _, events, *rest = msgspec.msgpack.decode(payload)
    for event in events:
        if "block_hashes" in event:
            event["block_hashes"] = [_hash(one, mask) for one in event["block_hashes"]]
        if event.get("parent_block_hash") is not None:
            event["parent_block_hash"] = _hash(event["parent_block_hash"], mask)
    return msgspec.msgpack.encode([time.time(), events, *rest])


def _hash(one: int | bytes, mask: int) -> int | bytes:
    if isinstance(one, bytes):
        return one[:-8] + (int.from_bytes(one[-8:], "big") ^ mask).to_bytes(8, "big")
    return one ^ (mask >> 1)


async def _send_spans(session: aiohttp.ClientSession) -> None:
    chance, pattern = random.Random(1), recorded()
    headers = {"Content-Type": "application/x-protobuf"}
    due = time.monotonic()
    while True:
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        due += BATCH / SPANS_A_SECOND
        made = Made(chance, round((time.time() - 1.0 - BEGIN) * PER_SECOND), pattern)
        async with session.post(f"http://127.0.0.1:{OTLP}/v1/traces", data=made.payload, headers=headers) as answer:
            await answer.read()


async def _chat() -> None:
    """Chats through the tap, of a thousand tenants."""
    chance, due, running = random.Random(2), time.monotonic(), set[asyncio.Task[bytes]]()
    while True:
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        due += 1 / CHATS_A_SECOND
        tenant = f"tenant-{int(chance.paretovariate(1.1)) % 1000}"
        task = asyncio.create_task(_ask(request(tenant, events=10, every=20)))
        running.add(task)
        task.add_done_callback(running.discard)


async def _ask(said: bytes) -> bytes:
    connection = Connection(TAP)
    try:
        return await connection.ask(said)
    finally:
        connection.close()


async def _read_page(session: aiohttp.ClientSession) -> None:
    while True:
        async with session.get(f"http://127.0.0.1:{AGENT}/metrics") as answer:
            await answer.read()
        await asyncio.sleep(PAGE_SECONDS)


def report(found: Soaked) -> bool:
    """Print the table; whether everything held."""
    growth, hour = found.growth, 3600.0
    print(f"\nsecond half, {found.seconds:.0f} s, load of the machine {os.getloadavg()[0]:.1f}")
    rows = {
        "CPU of the agent": f"{found.cpu / found.seconds:.2%} of a core",
        "CPU of the tap": f"{found.tap_cpu / found.seconds:.2%} of a core",
        "resident at the peak": f"{found.peak / 1e6:.0f} MB",
        "growth": f"{growth.slope * hour / 1e6:+.1f} MB an hour, standard error {growth.error * hour / 1e6:.1f}",
        "looks": f"{len(found.looks)}, {found.missed} missed, {max(found.gaps):.2f} s apart at most",
        "drift": f"{found.drift:+.3%} of the interval",
    }
    rows |= {name: f"{count:,.0f}" for name, count in found.counts.items()}
    for name, text in rows.items():
        print(f"  {name:26} {text}")
    checks = {
        f"under {MEMORY_BUDGET / 1e6:.0f} MB": found.peak < MEMORY_BUDGET,
        "no look missed": found.missed == 0,
        f"drift under {DRIFT_BUDGET:.0%}": abs(found.drift) < DRIFT_BUDGET,
        "nothing dropped or lost": all(found.counts[name] == 0 for name in _NONE_OF),
        "every target read": found.counts["engines and exporter up"] == ENGINES + 1,
        "events, spans and chats came": min(found.counts[name] for name in _SOME_OF) > 0,
    }
    if found.seconds >= JUDGED_SECONDS:
        name = f"no growth above {SLOPE_BUDGET / 1e6:.0f} MB an hour by more than its error can be"
        checks[name] = growth.slope - 2 * growth.error < SLOPE_BUDGET / hour
    for check, holds in checks.items():
        print(f"{'ok  ' if holds else 'NOT '} {check}")
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        pages: list[processes.Page] = [*map(Engine, range(ENGINES)), Exporter(GPUS)]
        asyncio.run(processes.serve(pages, FIRST_PORT))
    if options.load:
        asyncio.run(_load())
    return 0 if report(measure(options.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())

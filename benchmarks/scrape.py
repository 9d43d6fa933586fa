"""Scrape to window against Prometheus: CPU per million samples, on the same changing pages, in the same run.

    python -m benchmarks.scrape [--seconds 300] [--engines 8]

A server process serves the pages of loaded engines over HTTP on loopback. A Prometheus and our scrape sense, each
a process of its own, scrape all of them every second. What is counted is the CPU time of the whole process, all
threads, from the end of the warm-up on, over the samples on the pages scraped (all of them, as Prometheus counts;
that we drop the `_created` ones is our gain and their waste). Exits with 1 when we use more than half as much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.pages import Engine

BUDGET = 0.5
INTERVAL_SECONDS = 1.0
WARM_UP_SECONDS = 10.0
FIRST_PORT = 19700
PROMETHEUS = shutil.which("prometheus") or "/usr/bin/prometheus"


class _Page(asyncio.Protocol):
    """Answers every request on a connection with the engine's page of the current second."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self._answer = answer
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            request, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            path = request.split(b" ", 2)[1]
            self._transport.write(self._answer() if path == b"/metrics" else _NOT_FOUND)


_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


async def serve(engines: int) -> None:
    """Serve one engine on each port from FIRST_PORT on; its page changes every second."""
    pages = [Engine(seed) for seed in range(engines)]
    answers = [b""] * engines

    def turn() -> None:
        for i, engine in enumerate(pages):
            engine.advance()
            body = engine.page()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}"
            answers[i] = head.encode() + b"\r\n\r\n" + body

    turn()
    loop = asyncio.get_running_loop()
    for i in range(engines):
        await loop.create_server(lambda i=i: _Page(lambda: answers[i]), "127.0.0.1", FIRST_PORT + i)
    print("ready", flush=True)
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        turn()


async def sense(engines: int) -> None:
    """Scrape every engine each second into a window, until interrupted; then print the times of the scrapes."""
    from agent.senses.scrape import ScrapeSense, Target
    from series.window import Window

    done: list[float] = []  # times of good scrapes
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    async with ScrapeSense(Window(retention=3600.0, max_series=100_000)) as scraper:
        keys = [scraper.add(Target(url=f"http://127.0.0.1:{FIRST_PORT + i}")) for i in range(engines)]
        print("ready", flush=True)
        due = loop.time()
        while not stop.is_set():
            # All at once, as the agent does: each wake-up finds cold caches.
            for records in await asyncio.gather(*map(scraper.read, keys)):
                outcomes = [scraper.feed(record) for record in records]
                done += [r.t for r, outcome in zip(records, outcomes, strict=True) if outcome and outcome.ok]
            due += INTERVAL_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), due - loop.time())
    print(json.dumps(done))


def measure(engines: int, seconds: float) -> dict[str, float]:
    """CPU seconds, scrapes and samples of both over `seconds`."""
    per_page = sum(1 for line in Engine(0).page().splitlines() if not line.startswith(b"#"))
    with ExitStack() as stack:
        stack.enter_context(_python("--serve", engines))
        ours = stack.enter_context(_python("--sense", engines))
        prometheus, port = stack.enter_context(_prometheus(engines))
        time.sleep(WARM_UP_SECONDS)
        began, cpu = time.time(), (_cpu(ours.pid), _cpu(prometheus.pid))
        time.sleep(seconds)
        ended, spent = time.time(), (_cpu(ours.pid) - cpu[0], _cpu(prometheus.pid) - cpu[1])
        memory = _memory(ours.pid), _memory(prometheus.pid)
        query = f"sum(sum_over_time(scrape_samples_scraped[{int(seconds)}s]))"
        theirs = _ask(port, query, ended)
        ours.send_signal(signal.SIGINT)
        assert ours.stdout is not None
        scrapes = sum(began <= t < ended for t in json.loads(ours.stdout.readline()))
    return {
        "seconds": ended - began,
        "our cpu": spent[0],
        "our samples": float(scrapes * per_page),
        "our memory": memory[0],
        "their cpu": spent[1],
        "their samples": theirs,
        "their memory": memory[1],
    }


def report(result: dict[str, float]) -> float:
    """Print the table and return the ratio of CPU per sample."""
    costs = {}
    print(f"\n{'':12} {'samples':>10} {'CPU s':>8} {'of a core':>10} {'CPU s per 1e6':>14} {'RSS MB':>7}")
    for name, who in (("prometheus", "their"), ("kvitals", "our")):
        cpu, samples = result[f"{who} cpu"], result[f"{who} samples"]
        costs[who] = cpu / samples * 1e6
        share, memory = cpu / result["seconds"], result[f"{who} memory"] / 1e6
        print(f"{name:12} {samples:10.0f} {cpu:8.2f} {share:10.2%} {costs[who]:14.3f} {memory:7.0f}")
    ratio = costs["our"] / costs["their"]
    print(f"\nratio {ratio:.3f}, budget {BUDGET}")
    return ratio


@contextmanager
def _python(mode: str, engines: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "benchmarks.scrape", mode, "--engines", str(engines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{mode} did not start")
            yield process
        finally:
            process.terminate()


@contextmanager
def _prometheus(engines: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = FIRST_PORT + 99
    targets = ", ".join(f'"127.0.0.1:{FIRST_PORT + i}"' for i in range(engines))
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "prometheus.yml")
        config.write_text(
            f"global: {{scrape_interval: {INTERVAL_SECONDS:g}s, scrape_timeout: {INTERVAL_SECONDS:g}s}}\n"
            f"scrape_configs: [{{job_name: engines, static_configs: [{{targets: [{targets}]}}]}}]\n"
        )
        command = [
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with subprocess.Popen(command) as process:
            try:
                _wait(port)
                yield process, port
            finally:
                process.terminate()


def _wait(port: int) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("Prometheus did not start")


def _ask(port: int, query: str, at: float) -> float:
    arguments = urllib.parse.urlencode({"query": query, "time": at})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{arguments}", timeout=10) as answer:
        return float(json.load(answer)["data"]["result"][0]["value"][1])


def _cpu(pid: int) -> float:
    """CPU seconds of a process, all of its threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sense", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve or options.sense:
        asyncio.run((serve if options.serve else sense)(options.engines))
        return 0
    return 0 if report(measure(options.engines, options.seconds)) <= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())

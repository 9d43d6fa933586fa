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
import signal
import sys
import time
from contextlib import ExitStack, suppress

from benchmarks import processes
from benchmarks.pages import Engine

BUDGET = 0.5
INTERVAL_SECONDS = 1.0
WARM_UP_SECONDS = 10.0
FIRST_PORT = 19700
PROMETHEUS_PORT = FIRST_PORT + 99


async def sense(engines: int) -> None:
    """Scrape every engine each second into a window, until interrupted; then print the times of the scrapes."""
    from kvitals.agent.collectors.scrape import ScrapeSense, ScrapeTarget
    from kvitals.series.window import Window

    done: list[float] = []  # times of good scrapes
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    async with ScrapeSense(Window(retention=3600.0, max_series=100_000)) as scraper:
        keys = [scraper.add(ScrapeTarget(url=f"http://127.0.0.1:{FIRST_PORT + i}")) for i in range(engines)]
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
        stack.enter_context(processes.child("benchmarks.scrape", "--serve", f"--engines={engines}"))
        ours = stack.enter_context(processes.child("benchmarks.scrape", "--sense", f"--engines={engines}"))
        ports = range(FIRST_PORT, FIRST_PORT + engines)
        prometheus = stack.enter_context(processes.prometheus(ports, INTERVAL_SECONDS, PROMETHEUS_PORT))
        time.sleep(WARM_UP_SECONDS)
        began, cpu = time.time(), (processes.cpu_seconds(ours.pid), processes.cpu_seconds(prometheus.pid))
        time.sleep(seconds)
        ended, spent = (
            time.time(),
            (processes.cpu_seconds(ours.pid) - cpu[0], processes.cpu_seconds(prometheus.pid) - cpu[1]),
        )
        memory = processes.memory_bytes(ours.pid), processes.memory_bytes(prometheus.pid)
        query = f"sum(sum_over_time(scrape_samples_scraped[{int(seconds)}s]))"
        theirs = processes.ask(PROMETHEUS_PORT, query, ended)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sense", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve or options.sense:
        pages = [Engine(seed) for seed in range(options.engines)] if options.serve else []
        asyncio.run(processes.serve(pages, FIRST_PORT) if options.serve else sense(options.engines))
        return 0
    return 0 if report(measure(options.engines, options.seconds)) <= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())

"""The whole agent beside Prometheus: 8 engines and the exporter of 8 GPUs, every 5 seconds, in the same run.

    python -m benchmarks.agent [--seconds 600] [--engines 8] [--gpus 8]

A server process serves the changing pages over HTTP on loopback. `kvitals run --no-web`, as a user starts it, scrapes
them, reads the node's own senses, translates the pages, evaluates all signals, judges all rules, ranks what fired into
a verdict, saves its memory and looks at its configuration file; a Prometheus scrapes the same pages and judges nothing.
What is counted is the CPU time of the whole process, all threads, from the end of the warm-up on. Nobody asks either
for anything meanwhile; the document with its evidence is made when somebody does.

A third process does the same cycles and says what its parts cost, and a fourth is the same agent with a window of a
minute: what its memory grows by in ten minutes is not the window, which is full after half an hour. Exits with 1 when
a budget does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import processes
from benchmarks.gpus import Exporter
from benchmarks.pages import Engine

CPU_BUDGET = 0.02  # of a core
MEMORY_BUDGET = 150e6  # bytes, at the peak
JUDGING_BUDGET = 0.05  # CPU seconds a cycle: signals and rules
INTERVAL_SECONDS = 5.0
WARM_UP_SECONDS = 40.0
FIRST_PORT = 19500
PROMETHEUS_PORT, AGENT_PORT, SHORT_PORT = FIRST_PORT + 97, FIRST_PORT + 98, FIRST_PORT + 99


@dataclass
class Used:
    """What one process used in the measured time."""

    cpu: float  # seconds
    up: float  # targets that it had read at the end
    memory: list[tuple[float, float]] = field(default_factory=list)  # seconds into the run, bytes

    @property
    def peak(self) -> float:
        return max(size for _, size in self.memory)

    @property
    def slope(self) -> float:
        """Bytes an hour, of the least-squares line through the second half of the run."""
        later = self.memory[len(self.memory) // 2 :]
        at, size = np.array(later).T
        return float(np.polyfit(at, size, 1)[0]) * 3600 if len(later) > 1 else float("nan")


def measure(engines: int, gpus: int, seconds: float) -> tuple[dict[str, Used], dict[str, float]]:
    """What each process used over `seconds`, and the parts of a cycle in CPU seconds."""
    ports = range(FIRST_PORT, FIRST_PORT + engines + 1)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        shape = (f"--engines={engines}", f"--gpus={gpus}")
        stack.enter_context(processes.child("benchmarks.agent", "--serve", *shape))
        running = {
            "prometheus": stack.enter_context(processes.prometheus(ports, INTERVAL_SECONDS, PROMETHEUS_PORT)),
            "kvitals": stack.enter_context(_agent(urls, AGENT_PORT)),
            "kvitals, 1m": stack.enter_context(_agent(urls, SHORT_PORT, window="1m")),
        }
        cycles = stack.enter_context(processes.child("benchmarks.agent", "--cycles", *shape))
        time.sleep(WARM_UP_SECONDS)
        used = _watch({name: process.pid for name, process in running.items()}, seconds)
        now = time.time()
        for name, port, query in (
            ("prometheus", PROMETHEUS_PORT, "sum(up)"),
            ("kvitals", AGENT_PORT, "sum(kvitals_target_up)"),
            ("kvitals, 1m", SHORT_PORT, "sum(kvitals_target_up)"),
        ):
            used[name].up = processes.ask(port, query, now)
        cycles.send_signal(signal.SIGINT)
        assert cycles.stdout is not None
        return used, json.loads(cycles.stdout.readline())


def _watch(pids: dict[str, int], seconds: float) -> dict[str, Used]:
    before = {name: processes.cpu_seconds(pid) for name, pid in pids.items()}
    began = time.monotonic()
    memory: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
    while (done := time.monotonic() - began) < seconds:
        for name, pid in pids.items():
            memory[name].append((done, processes.memory_bytes(pid)))
        time.sleep(min(INTERVAL_SECONDS, seconds - done))
    return {name: Used(processes.cpu_seconds(pid) - before[name], 0.0, memory[name]) for name, pid in pids.items()}


@contextmanager
def _agent(urls: Sequence[str], port: int, window: str = "30m") -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "kvitals.toml")
        targets = "".join(f'[[target]]\nurl = "{url}"\n' for url in urls)
        config.write_text(f'[agent]\nlisten = "127.0.0.1:{port}"\nwindow = "{window}"\ndiscover = false\n{targets}')
        command = [str(Path(sys.executable).with_name("kvitals")), "run", "--no-web", "--config", str(config)]
        environment = {**os.environ, "XDG_STATE_HOME": directory}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
            try:
                processes.wait(f"http://127.0.0.1:{port}/api/v1/findings")
                yield process
            finally:
                process.terminate()


async def cycle(targets: int) -> None:
    """The agent's cycles, until interrupted; then print what the parts of one cost, in CPU seconds."""
    from kvitals.app.pipeline import FAST_SECONDS, SLOW_SECONDS, Pipeline, Setup
    from kvitals.app.state import StateKeeper
    from kvitals.config import Config, TargetTable
    from kvitals.diagnoser.signals import EvaluationSpan
    from kvitals.rules.finding import DocumentSource
    from kvitals.rules.loader import load

    urls = [f"http://127.0.0.1:{FIRST_PORT + i}" for i in range(targets)]
    setup = Setup(load(), Config(targets=tuple(TargetTable(url=url) for url in urls)))
    pipeline = Pipeline(setup, DocumentSource("agent", "benchmark"))
    signals = pipeline.judge.signals
    stop, spent, cycles = asyncio.Event(), dict.fromkeys(_PARTS, 0.0), 0
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    observe = signals.observe
    signals.observe = lambda span: signals.known  # type: ignore[method-assign]  # evaluated and counted before
    await pipeline.node.open()
    print("ready", flush=True)
    began = loop.time()
    with tempfile.TemporaryDirectory() as directory:
        keeper = StateKeeper(Path(directory, "state.json"), print)
        keeper.open(time.time())
        while not stop.is_set():
            due = loop.time() + INTERVAL_SECONDS
            clock = [time.process_time()]
            records = await pipeline.node.read()
            clock.append(time.process_time())
            pipeline.ingest_recorded(records)
            clock.append(time.process_time())
            now = time.time()
            observe(EvaluationSpan(now, FAST_SECONDS, SLOW_SECONDS))
            clock.append(time.process_time())
            pipeline.observe(now)
            clock.append(time.process_time())
            pipeline.verdict()
            clock.append(time.process_time())
            keeper.save(pipeline.judge.memory)
            clock.append(time.process_time())
            if loop.time() - began > WARM_UP_SECONDS:
                cycles += 1
                for part, start, end in zip(_PARTS, clock, clock[1:], strict=False):
                    spent[part] += end - start
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), due - loop.time())
        keeper.close()
    await pipeline.node.close()
    print(json.dumps({part: seconds / max(cycles, 1) for part, seconds in spent.items()}))


_PARTS = ("read: HTTP, senses", "parse and translate", "signals", "rules", "verdict", "save memory")


def report(used: dict[str, Used], parts: dict[str, float], seconds: float, targets: int) -> bool:
    """Print the tables; whether the budgets hold."""
    print(f"\n{'':14} {'up':>4} {'CPU s':>8} {'of a core':>10} {'RSS MB at peak':>15} {'MB more an hour':>16}")
    for name, one in used.items():
        row = f"{one.up:4.0f} {one.cpu:8.2f} {one.cpu / seconds:10.2%} {one.peak / 1e6:15.0f} {one.slope / 1e6:16.1f}"
        print(f"{name:14} {row}")
    print("\nCPU milliseconds a cycle")
    for part, spent in parts.items():
        print(f"  {part:20} {spent * 1000:6.1f}")
    ours, theirs = used["kvitals"], used["prometheus"]
    judging = parts["signals"] + parts["rules"]
    print(f"\n{ours.cpu / theirs.cpu:.2f} times the CPU of Prometheus, {ours.peak / theirs.peak:.2f} times its memory")
    checks = {
        f"under {CPU_BUDGET:.0%} of a core": ours.cpu / seconds < CPU_BUDGET,
        f"under {MEMORY_BUDGET / 1e6:.0f} MB": ours.peak < MEMORY_BUDGET,
        f"signals and rules under {JUDGING_BUDGET * 1000:.0f} ms a cycle": judging < JUDGING_BUDGET,
        "every target read": all(one.up == targets for one in used.values()),
    }
    for check, holds in checks.items():
        print(f"{'ok  ' if holds else 'NOT '} {check}")
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cycles", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = options.engines + 1
    if options.serve:
        pages: list[processes.Page] = [*map(Engine, range(options.engines)), Exporter(options.gpus)]
        asyncio.run(processes.serve(pages, FIRST_PORT))
    if options.cycles:
        asyncio.run(cycle(targets))
        return 0
    used, parts = measure(options.engines, options.gpus, options.seconds)
    return 0 if report(used, parts, options.seconds, targets) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Every budget in one table: ours, the budget, a peer in the same run, on this machine.

    python -m benchmarks.report [NAME...] [--write docs/performance.md] [--quick]

Runs the benchmarks as processes of their own, one after the other, and reads the figures off what they print. A
benchmark fails its rows with its exit status, or where a figure is not found in what it said. With --write the rows go
into the table between the marks of a Markdown file; rows that were not measured this time, or could not be, stay as
they are, each with its own date and load. --quick: shorter runs, for a look and not for the table. Exits with 1 where a
budget does not hold.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- budgets: written by `make bench` -->", "<!-- budgets end -->"
HEAD = "| what | budget | ours | beside it, in the same run | holds | measured |"
LIMIT_SECONDS = 3600.0
MISSING = "not measured"
TRIAGE_PORT = 19290


@dataclass(frozen=True)
class Row:
    """A budget. `ours` and `beside` are patterns whose groups are put into their texts, or texts alone."""

    what: str
    budget: str
    ours: tuple[str, str]  # pattern in the output, text with {0}, {1} ...
    beside: tuple[str, str] = ("", "no peer was run")
    holds: Callable[[Sequence[str]], bool] | None = None  # of the groups of `ours`; None: as the benchmark says


@dataclass(frozen=True)
class Bench:
    """A benchmark: its module with options, those for a quick look, and the budgets that it measures."""

    command: tuple[str, ...]
    quick: tuple[str, ...]
    rows: tuple[Row, ...]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


BENCHES: Mapping[str, Bench] = {
    "scrape": Bench(
        ("scrape",), ("--seconds", "40"),
        (
            Row(
                "scrape to window, CPU s per million samples", "at most half of Prometheus",
                (r"(?m)^kvitals +\d+ +[\d.]+ +[\d.]+% +([\d.]+)(?s:.*)ratio ([\d.]+)", "{0}, ratio {1}"),
                (r"(?m)^prometheus +\d+ +[\d.]+ +[\d.]+% +([\d.]+)", "Prometheus: {0}"),
            ),
        ),
    ),
    "agent": Bench(
        ("agent", "--seconds", "300"), ("--seconds", "20"),
        (
            Row(
                "the agent at 8 engines and 8 GPUs, every 5 s", "under 2 % of a core, 150 MB",
                (r"(?m)^kvitals +\d+ +[\d.]+ +([\d.]+)% +(\d+)", "{0} %, {1} MB"),
                (r"(?m)^prometheus +\d+ +[\d.]+ +([\d.]+)% +(\d+)", "Prometheus, which judges nothing: {0} %, {1} MB"),
                lambda found: _number(found[0]) < 2.0 and _number(found[1]) < 150.0,
            ),
            Row(
                "all rules on one node, a cycle", "under 50 ms",
                (r"(?m)^ +signals +([\d.]+)\n +rules +([\d.]+)", "signals {0} ms, rules {1} ms"),
                holds=lambda found: _number(found[0]) + _number(found[1]) < 50.0,
            ),
        ),
    ),
    "events": Bench(
        ("ledger",), ("--cycles", "5"),
        (
            Row(
                "KV events through the ledger, operations a second and core", "300,000",
                (r"sense and ledger ([\d,]+),", "{0}"),
                (r"(?m)^token ids unpacked +[\d.]+ +([\d,]+)", "unpacking everything and keeping none: {0}"),
            ),
        ),
    ),
    "spans": Bench(
        ("requests",), ("--requests", "20480"),
        (
            Row(
                "OTLP to records, spans a second and core", "40,000",
                (r"spans alone: ([\d,]+) requests", "{0}"),
                (r"nothing kept: ([\d,]+) a second", "OpenTelemetry's code, unpacking alone: {0}"),
            ),
        ),
    ),
    "fleet": Bench(
        ("fleet",), ("--engines", "50", "--times", "1"),
        (
            Row(
                "1,000 engines and all rules from a Prometheus, CPU", "under 3 s",
                (r"ours: ([\d.]+) s", "{0} s"),
                (r"([\d.]+) s there\n(?!.* there)", "the Prometheus that is asked: {0} s"),
            ),
        ),
    ),
    "whatif": Bench(
        ("whatif",), (),
        (
            Row("what-if, block references a second", "1 million", (r"slowest ([\d.]+) million", "{0} million, worst")),
            Row(
                "what-if, exact hit rates inside a sample's 95% interval", "at least 93%",
                (r"intervals: ([\d.]+)% inside at worst", "{0}%, the worst routing of three traces"),
                holds=lambda found: _number(found[0]) >= 93.0,
            ),
            Row(
                "what-if, 100 million references", "0.3 CPU s a million, 1,000 MB",
                (r"replay, 3 capacities +([\d.]+) CPU s a million, ([\d,]+) MB", "{0} CPU s a million, {1} MB"),
                (r"C\+\+, 1,000,000 blocks +([\d.]+) CPU s", "an LRU list in C++, one capacity: {0}"),
                holds=lambda found: _number(found[0]) <= 0.3 and _number(found[1]) <= 1000,
            ),
        ),
    ),
    "triage": Bench(
        ("report", "--triage"), (),
        (
            Row(
                "triage of a live engine, cold, to the verdict", "under 20 s",
                (r"cold ([\d.]+) s, ([\d.]+) of CPU", "{0} s, {1} s of CPU"),
                holds=lambda found: _number(found[0]) < 20.0,
            ),
            Row(
                "triage of a recording", "under 2 s",
                (r"recording ([\d.]+) s, ([\d.]+) of CPU", "{0} s, {1} s of CPU"),
                holds=lambda found: _number(found[0]) < 2.0,
            ),
            Row(
                "triage from a running agent", "under 2 s",
                (r"agent ([\d.]+) s, ([\d.]+) of CPU", "{0} s, {1} s of CPU"),
                holds=lambda found: _number(found[0]) < 2.0,
            ),
        ),
    ),
    "tap": Bench(
        ("tap",), ("--rounds", "3"),
        (
            Row(
                "tap, added at the median of a quiet request; at p99 of a chunk", "under 1 ms each",
                (r"budgets: (-?[\d.]+) ms of [\d.]+ at the median of a quiet request, (-?[\d.]+) ms", "{0} ms; {1} ms"),
                (
                    r"(?ms)^nginx +[\d.]+ +[\d.]+ +(-?[\d.]+).*?^nginx +[\d.]+ +[\d.]+ +-?[\d.]+ +(-?[\d.]+)",
                    "nginx: {0} ms; {1} ms",
                ),
            ),
        ),
    ),
    "history": Bench(
        ("history",), ("--hours", "3", "--kills", "2", "--prometheus-hours", "1"),
        (
            Row(
                "history, a day at 5,000 series every 5 s", "under 250 MB",
                (r"(?s)(\d+) series, .*after a day +([\d.]+) MB", "{1} MB at {0} series"),
                (r"beside Prometheus: \d+ samples, ([\d.]+) bytes each, Prometheus ([\d.]+)",
                 "Prometheus' blocks: {1} bytes a sample to {0}"),
            ),
            Row(
                "committed ticks lost by SIGKILL", "none",
                (r"(\d+) kills: (\d+) ticks had been shown, (\d+) of them lost", "{2} of {1}, by {0} kills"),
                holds=lambda found: found[2] == "0",
            ),
        ),
    ),
}  # fmt: skip


def run(name: str, quick: bool) -> tuple[dict[str, str], bool]:
    """The lines of a benchmark's rows by what they are of, and whether they hold."""
    bench = BENCHES[name]
    command = [
        sys.executable,
        "-m",
        f"benchmarks.{bench.command[0]}",
        *bench.command[1:],
        *(bench.quick if quick else ()),
    ]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    print(f"\n== {name}: {' '.join(command[2:])} ({time.monotonic() - began:.0f} s)\n{done.stdout}", flush=True)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
    lines, all_hold = {}, True
    when = f"{time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}"
    for row in bench.rows:
        ours, said = _told(row.ours, done.stdout)
        _, beside = _told(row.beside, done.stdout)
        holds = ours is not None and (row.holds(ours) if row.holds is not None else done.returncode == 0)
        all_hold &= holds
        lines[row.what] = f"| {row.what} | {row.budget} | {said} | {beside} | {'yes' if holds else '**no**'} | {when} |"
    return lines, all_hold


def _told(what: tuple[str, str], output: str) -> tuple[tuple[str, ...] | None, str]:
    pattern, text = what
    if not pattern:
        return (), text
    found = re.search(pattern, output)
    return (found.groups(), text.format(*found.groups())) if found else (None, MISSING)


def write(path: Path, lines: Mapping[str, str]) -> None:
    """Put rows into the table between the marks; those of other budgets stay."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no table: it begins with {BEGIN} and ends with {END}")
    known = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ") and line != HEAD}
    order = [row.what for bench in BENCHES.values() for row in bench.rows]
    rows = [merged for what in order if (merged := lines.get(what) or known.get(what))]
    made = "\n".join([HEAD, "|---" * 6 + "|", *rows])
    path.write_text(f"{before}{begin}\n{made}\n{end}{after}", encoding="utf-8")


def machine() -> str:
    """What this was measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GB, {system}"


def triage() -> None:
    """What the three triages take, start of the process included."""
    with ExitStack() as stack:
        stack.enter_context(processes.child("benchmarks.report", "--serve"))
        url, folder = f"http://127.0.0.1:{TRIAGE_PORT}", stack.enter_context(tempfile.TemporaryDirectory())
        agent = f"127.0.0.1:{TRIAGE_PORT + 9}"
        environment = {**os.environ, "XDG_STATE_HOME": folder, "HOME": folder}
        command = [sys.executable, "-m", "kvitals.ui.cli.main", "run", "--no-web", url, f"--listen={agent}"]
        running = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment))
        stack.callback(running.terminate)
        processes.wait(f"http://{agent}/api/v1/findings")
        for name, what in (("cold", url), ("recording", "app/demo/heavy_tenant.kvcap"), ("agent", f"http://{agent}")):
            wall, cpu = min(_seconds("triage", what) for _ in range(1 if name == "cold" else 3))
            print(f"{name} {wall:.2f} s, {cpu:.2f} of CPU")


def _seconds(*arguments: str) -> tuple[float, float]:
    """Of the clock and of CPU, for a command to its end."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "kvitals.ui.cli.main", *arguments], cwd=ROOT, capture_output=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def _serve() -> None:
    import asyncio

    from benchmarks.pages import Engine

    asyncio.run(processes.serve([Engine(0)], TRIAGE_PORT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}; none: all")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the Markdown file with the table")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--triage", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve()
    if options.triage:
        triage()
        return 0
    if unknown := set(options.names) - BENCHES.keys():
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    if options.write and not options.write.is_file():
        parser.error(f"there is no file {options.write}")
    print(machine())
    lines: dict[str, str] = {}
    all_hold = True
    for name in options.names or BENCHES:
        found, holds = run(name, options.quick)
        lines |= found
        all_hold &= holds
        if options.write:
            write(options.write, {what: line for what, line in found.items() if MISSING not in line.split("|")[3]})
    print("\n".join(["", HEAD, "|---" * 6 + "|", *lines.values()]))
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())

"""Published tools of the same kind on the same incidents, re-served by `kvitals record --replay FILE --serve`.

Each is run as its manual says, while the incident lasts: inferpilot's `doctor` with two scrapes, vllm-doctor's
`diagnose` on a Prometheus that scrapes every second (without one it leaves rules out), with the incident's
objectives in its configuration, inferguard's `profile live`.
What they call things is put beside our codes by `MEANS`: generously, a name of a symptom counts for the causes whose
symptom it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvitals.app.serve_recorded import read_pages
from kvitals.app.sources.recording_reader import span_of
from tests.captures.looks import truth

from ..paths import HOME, LabError
from ..ports import HOST, Port
from ..product import kvitals_command
from ..scenario import Slo
from ..tables import grid
from .incident import Incident, Label
from .judging import incident_of

OTHERS = HOME / "others"
SAID = Path(__file__).with_name("others_said.json")
VERSIONS = {"inferpilot": "0.1.0", "vllm-doctor": "0.6.0", "inferguard": "0.7.4"}
WINDOW_S = 20
LIMIT_S = 120.0
AT_ONCE = 4

QUEUE = ("SCH01", "SCH10", "LOR01", "SCH12", "TEN03", "TEN04", "TEN05", "GRD04", "SCH09", "PDX03", "SCH05")
FULL = ("KVC01", "KVC09", "KVC17", "TEN05")
MISSES = ("PFX02", "PFX10", "PFX11", "KVC04", "KVC06", "KVC05", "KVC07", "PFX03", "KVC12", "TEN02")
MEANS: dict[str, Sequence[str]] = {
    "kv_capacity_bound_preempting": FULL,
    "near_capacity": FULL,
    "not_kv_bound": QUEUE,
    "insufficient_metrics": (),
    "queue_pressure": QUEUE,
    "queue_latency": QUEUE,
    "kv_cache_pressure": FULL,
    "preemption_pressure": FULL,
    "low_throughput": (),
    "error_rate": ("PDX06", "ENG05", "ENG06", "TEL01"),
    "ttft_bottleneck": ("LAT01", "SCH05", "SCH09", "PFX02", "PFX11", "KVC13", *QUEUE),
    "tpot_bottleneck": ("LAT02", "LAT08", "SCH18", "SCH08", "SCH04"),
    "prefix_cache_efficiency": MISSES,
    "replica_imbalance": ("TEL01", "PFX03"),
    "profile_kv_cache_high": FULL,
    "profile_kv_cache_critical": FULL,
    "profile_preemptions_rising": FULL,
    "profile_queue_backlog": QUEUE,
    "profile_prefix_hit_rate_low": MISSES,
    "profile_offload_churn": ("KVC12", "KVC13", "KVC06", "KVC04"),
    "profile_metrics_unavailable": ("TEL01",),
    "can_not_be_reached": ("TEL01",),
}
WELL = ("healthy_or_underutilized",)
"""A verdict that nothing is wrong."""


@dataclass(frozen=True)
class Told:
    """What one tool said of one recording, its most severe finding first; empty: it found nothing wrong."""

    tool: str
    findings: tuple[str, ...]

    def first_right(self, label: Label) -> bool:
        return not self.findings if not label.first else self._is(self.findings[:1], label)

    def any_right(self, label: Label) -> bool:
        return not self.findings if not label.first else self._is(self.findings, label)

    @staticmethod
    def _is(findings: Sequence[str], label: Label) -> bool:
        return any(set(MEANS.get(finding, ())) & set(label.first) for finding in findings)


async def ask_all(captures: Sequence[Path], kept: Path) -> dict[str, list[Told]]:
    """What each tool says of each recording, a few at once. `kept` is the file of what they said already; it grows."""
    for tool in VERSIONS:
        if not _program(tool).exists():
            raise LabError(
                f"{tool} is missing: python3 -m venv {OTHERS / tool} && "
                f"{OTHERS / tool}/bin/pip install {tool}=={VERSIONS[tool]}"
            )
    gate = asyncio.Semaphore(AT_ONCE)
    told = _kept(kept)

    async def one(capture: Path) -> None:
        async with gate, asyncio.timeout(LIMIT_S):
            told[capture.stem] = await _ask(capture)
        _keep(kept, told)

    await asyncio.gather(*(one(capture) for capture in captures if capture.stem not in told))
    return told


def _kept(file: Path) -> dict[str, list[Told]]:
    said = json.loads(file.read_text()) if file.exists() else {}
    return {run: [Told(tool, tuple(found)) for tool, found in tools.items()] for run, tools in said.items()}


def _keep(file: Path, told: dict[str, list[Told]]) -> None:
    said = {run: {one.tool: one.findings for one in tools} for run, tools in sorted(told.items())}
    lines = (f"{json.dumps(run)}: {json.dumps(tools)}" for run, tools in said.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


async def _ask(capture: Path) -> list[Told]:
    count = len(read_pages(capture))
    ports = _row_of_ports(count)
    first, last = span_of(capture)
    wait = max(truth(capture)["began"] + 3.0, last - WINDOW_S - 4.0) - first
    folder = Path(tempfile.mkdtemp(prefix="incidents-"))
    urls = [port.url for port in ports]
    prometheus = Port.take()
    try:
        serve = [*kvitals_command(), "replay", str(capture), "--serve", "--port", str(ports[0].number)]
        async with _running(serve), _running(_prometheus(folder, urls, prometheus)):
            await asyncio.sleep(wait)
            pilots = [_pilot(url) for url in urls]
            guards = [_guard(url, folder / str(n)) for n, url in enumerate(urls)]
            told = await asyncio.gather(*pilots, *guards)
            doctor = await _doctor(prometheus.url, folder, incident_of(capture).scenario.slo)
    finally:
        for port in (prometheus, *ports):
            port.release()
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Told("inferpilot", _merged(told[:count])),
        Told("vllm-doctor", doctor),
        Told("inferguard", _merged(told[count:])),
    ]


async def _pilot(url: str) -> tuple[str, ...]:
    said = await _json("inferpilot", "doctor", "--url", url, "--interval", str(WINDOW_S), "--json")
    if said is None:
        return ("can_not_be_reached",)
    return () if said["verdict"] in WELL else (said["verdict"],)


async def _doctor(url: str, folder: Path, slo: Slo) -> tuple[str, ...]:
    """With the objectives as its limits, which it has of first tokens and of tokens."""
    config = folder / "vllm-doctor.toml"
    limits = {"ttft_bottleneck": ("high_ttft_p95", slo.ttft_p99), "tpot_bottleneck": ("high_tpot_p95", slo.itl_p99)}
    config.write_text("".join(f"[rules.{rule}]\n{name} = {limit}\n" for rule, (name, limit) in limits.items()))
    options = ("--since", f"{WINDOW_S}s", "--output", "json", "--config", str(config))
    said = await _json("vllm-doctor", "diagnose", url, *options)
    if said is None:
        return ("can_not_be_reached",)
    fired = [(check["finding"]["severity"] != "critical", check["id"]) for check in said["checks"] if check["finding"]]
    return tuple(id_ for _, id_ in sorted(fired, key=lambda one: one[0]))


async def _guard(url: str, folder: Path) -> tuple[str, ...]:
    arguments = ("--duration", str(WINDOW_S), "--interval", "2", "--output-dir", str(folder))
    await _output("inferguard", "profile", "live", "--endpoint", f"{url}/metrics", *arguments)
    summary = folder / "profile_summary.json"
    if not summary.exists():
        return ("can_not_be_reached",)
    found = json.loads(summary.read_text())["findings"]
    ordered = sorted(found, key=lambda one: one["severity"] != "critical")
    return tuple(one["code"] for one in ordered)


def _merged(several: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Of several targets, one after another's first finding, each once."""
    longest = max((len(one) for one in several), default=0)
    return tuple(dict.fromkeys(one[place] for place in range(longest) for one in several if place < len(one)))


def _program(tool: str) -> Path:
    return OTHERS / tool / "bin" / tool


async def _output(tool: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(_program(tool)), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return out.decode()


async def _json(tool: str, *arguments: str) -> dict[str, Any] | None:
    """The object that it prints; None where it prints none, since it could not read what it was pointed at."""
    out = await _output(tool, *arguments)
    try:
        found: dict[str, Any] = json.loads(out[out.index("\n{") if "\n{" in out else out.index("{") :])
    except ValueError:
        return None
    return found


@contextlib.asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncIterator[None]:
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=nothing, stderr=nothing)
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _prometheus(folder: Path, urls: Sequence[str], port: Port) -> list[str]:
    program = shutil.which("prometheus")
    if program is None:
        raise LabError("vllm-doctor's rules want a Prometheus (Debian: apt-get install prometheus)")
    targets = ", ".join(f'"{url.removeprefix("http://")}"' for url in urls)
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        f"  - {{job_name: engines, static_configs: [{{targets: [{targets}]}}]}}\n"
    )
    listen = f"--web.listen-address={HOST}:{port.number}"
    return [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", listen]


def _row_of_ports(count: int) -> list[Port]:
    """Ports that follow one another, as a re-served recording wants them."""
    row: list[Port] = []
    passed: list[Port] = []
    while len(row) < count:
        port = Port.take()
        if row and port.number != row[-1].number + 1:
            passed, row = passed + row, []
        row.append(port)
    for port in passed:
        port.release()
    return row


def compared(captures: Sequence[Path], told: dict[str, list[Told]]) -> str:
    """A recording a line, and the sums."""
    lines, sums = [], {tool: [0, 0, 0, 0] for tool in VERSIONS}
    for capture in captures:
        one: Incident = incident_of(capture)
        words = []
        for said in told[capture.stem]:
            right = said.first_right(one.label)
            counts = sums[said.tool]
            counts[0] += right
            counts[1] += said.any_right(one.label)
            counts[2] += one.label.healthy == "yes" and not said.findings
            counts[3] += one.label.healthy == "yes"
            more = f" and {len(said.findings) - 1} more" if said.findings[1:] else ""
            words.append(("+ " if right else "- ") + (said.findings[0] + more if said.findings else "nothing"))
        lines.append((capture.stem, " ".join(one.label.first) or "nothing", *words))
    total = len(captures)
    for name, place in (("first right", 0), ("right at all", 1)):
        lines.append((name, "", *(f"{counts[place]} of {total}" for counts in sums.values())))
    lines.append(("healthy called healthy", "", *(f"{counts[2]} of {counts[3]}" for counts in sums.values())))
    return grid(("run", "label", *(f"{tool} {version}" for tool, version in VERSIONS.items())), lines)

"""A first `kvitals.toml` from what runs on this machine: engines among the processes, and GPUs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from kvitals.agent.collectors.gpu import GpuSense
from kvitals.agent.discovery import DiscoveredTargets, Finder
from kvitals.agent.records import GpuRecord
from kvitals.config import AgentTable, NodeLabels, SloTable
from kvitals.rules.engine_map import load_map, systems
from kvitals.series.window import Window

_SET = "# kvitals.toml of {node}, written by `kvitals init` on {now}."


@dataclass(frozen=True)
class MachineSurvey:
    """What was seen on this machine at one moment."""

    engines: DiscoveredTargets
    gpus: GpuRecord
    at: float  # seconds since the epoch


def survey_machine() -> MachineSurvey:
    """Look for engines and GPUs. Takes about a second; connects to nothing."""
    now = time.time()
    engines = Finder({system: load_map(system) for system in systems()}).scan()
    return MachineSurvey(engines, GpuSense(Window(retention=60.0, max_series=10_000), {}).read(now), now)


def configuration_text(survey: MachineSurvey) -> str:
    """The file: what was seen is set, all else is a comment with its default."""
    node, agent, slo = NodeLabels().node, AgentTable(), SloTable()
    now = f"{datetime.fromtimestamp(survey.at, UTC):%Y-%m-%d %H:%M} UTC"
    lines = [
        _SET.format(node=node, now=now),
        "# Check it with `kvitals config check`, start the agent with `kvitals run`. All keys: docs/configuration.md.",
        "",
        "[agent]",
        f"listen = {_text(agent.listen)}  # API, metrics and data source for Grafana; loopback only",
        f'# interval = "{agent.interval:g}s"  # between scrapes',
        "",
        "[labels]",
        f"node = {_text(node)}",
        '# cluster = "eu-1"  # set it if one Prometheus has several clusters',
        "",
        "[slo]",
        "# Defaults. Set what your users expect, in seconds: verdicts and alerts depend on it.",
        f"ttft_p99_seconds = {slo.ttft_p99_seconds}  # time to first token",
        f"itl_p99_seconds = {slo.itl_p99_seconds}  # time between two output tokens",
        "",
        *_targets(survey.engines),
        "",
        *_gpus(survey.gpus),
        "",
        "# [history]  # what the agent keeps on disk; enabled by default",
        '# directory = "/var/lib/kvitals/history"  # default: below the state directory of the user',
        '# keep = "30d"',
        "",
        "# [otlp]  # spans of engines and gateways: request records with phases (docs/otlp.md)",
        '# grpc = "127.0.0.1:4317"',
    ]
    return "\n".join(lines) + "\n"


def _targets(engines: DiscoveredTargets) -> Iterator[str]:
    if engines.targets:
        yield "# Engines that run now. Without any [[target]] the agent finds engines by itself, also later ones."
    else:
        yield "# No engine was found. The agent looks for engines by itself while no [[target]] is set."
        yield "# [[target]]"
        yield '# url = "http://127.0.0.1:8000"'
    for one in engines.targets:
        yield ""
        yield "[[target]]"
        state = {False: ", does not listen yet", None: "", True: ""}[one.listening]
        yield f"url = {_text(one.url)}  # {_comment(one.system)}, process {one.pid}{state}"
    yield from (f"# {_comment(note)}" for note in engines.notes)


def _gpus(record: GpuRecord) -> Iterator[str]:
    if record.gpus:
        counted = Counter(reading.hardware or "unknown model" for reading in record.gpus)
        seen = ", ".join(f"{number} x {_comment(name)}" for name, number in counted.items())
        yield f"# GPUs: {seen}, driver {_comment(record.driver)}. The agent reads them by NVML: nothing to set."
    else:
        yield f"# GPUs: none read ({_comment((record.message or record.reason.replace('_', ' ')).rstrip('.'))})."
        yield '# Where a DCGM exporter runs, add it as a target: url = "http://127.0.0.1:9400"'


def _text(value: str) -> str:
    """A TOML string. JSON's escapes are TOML's."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _comment(value: str) -> str:
    """A text on one line without control characters, which TOML refuses in comments."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(value.split()))

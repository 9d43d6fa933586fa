"""`kvitals check`: what telemetry an engine lacks, and which flag brings it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding

from rules.engine_map import EngineMap, Telemetry, load_map, systems
from rules.versions import in_range
from series.promql import evaluate, parse
from series.types import Labels
from ui.cli.common import add_judging_options, setup, status_console
from ui.live import Collector
from ui.pipeline import Pipeline

LOOK_SECONDS = 2.0
WANTED_FACTS = {"slots": "the slot limit (max_num_seqs)", "block_tokens": "tokens per KV block"}
_MARK = {True: ("on", "green"), False: ("off", "yellow"), None: ("unknown", "dim")}


@dataclass(frozen=True)
class Blind:
    """One piece of telemetry on one engine: True on, False off, None not known."""

    telemetry: Telemetry
    state: bool | None


def add(commands: Any) -> None:
    parser = commands.add_parser("check", help="which telemetry is missing, and the flag that brings it")
    parser.add_argument("source", nargs="*", metavar="URL", help="engines; none: discover the engines on this node")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    return asyncio.run(_check(args))


async def _check(args: argparse.Namespace) -> int:
    console = Console(highlight=False)
    async with Collector(setup(args), args.source) as collector:
        for line in collector.said:
            status_console().print(line, style="dim")
        async for _ in collector.collect(LOOK_SECONDS):
            pass
        document = collector.document()
        pipeline = collector.pipeline
    for finding in document.telemetry:
        console.print(f"{finding.code} {finding.title} · {finding.entity.title}", style="bold red")
        console.print(f"  {finding.conclusion}")
        for evidence in finding.evidence:
            for shown in evidence.lines:
                console.print(f"  {evidence.title}: {' '.join(shown.labels.values()) or evidence.text}")
    lacking = False
    for engine in pipeline.judge.entities("engine", document.window.end):
        lacking |= _report(engine, pipeline, document.window.end, console)
    return 1 if lacking or document.telemetry else 0


def _report(engine: Labels, pipeline: Pipeline, at: float, console: Console) -> bool:
    """Print one engine's telemetry; whether something is off or unknown."""
    info = pipeline.judge.info(engine, at)
    system = info.get("system", "")
    console.print()
    console.print(f"{engine['engine']}  {system or 'engine not recognised'} {info.get('version', '')}", style="bold")
    if info.get("untested"):
        console.print("  newer than the versions that the map was made from: read with the newest map")
    facts = dict(_facts(engine, pipeline, at))
    blind = list(blind_spots(load_map(system), facts, info.get("version", ""))) if system in systems() else []
    for item in sorted(blind, key=lambda item: item.state is True):
        word, style = _MARK[item.state]
        console.print(f"  [{style}]{word:7}[/{style}] {item.telemetry.flag}", soft_wrap=True)
        if not item.state:
            console.print(Padding(item.telemetry.brings.strip(), (0, 0, 0, 10)))
            console.print(Padding(f"cost: {item.telemetry.cost.strip()}", (0, 0, 0, 10)), style="dim")
    for fact, words in WANTED_FACTS.items():
        if fact not in facts:
            console.print(
                f"  {words} is not known: give it as `facts = {{{fact} = N}}` under [[target]] in kvitals.toml"
            )
    return any(not item.state for item in blind)


def _facts(engine: Labels, pipeline: Pipeline, at: float) -> Iterator[tuple[str, float]]:
    found = evaluate(parse("kvitals_engine_fact"), pipeline.node.window, at)
    if not isinstance(found, float):
        for labels, value in zip(found.labels, found.values, strict=True):
            if labels.get("engine") == engine.get("engine"):
                yield labels.get("fact", ""), float(value)


def blind_spots(map_: EngineMap, facts: dict[str, float], version: str) -> Iterator[Blind]:
    """Which of the map's telemetry is on, off or not known on an engine with these facts."""
    for telemetry in map_.telemetry:
        if telemetry.versions and version and not in_range(version, telemetry.versions):
            continue
        value = facts.get(telemetry.fact)
        yield Blind(telemetry, None if value is None else value > 0)

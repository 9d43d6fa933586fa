"""`kvitals compare`: two engines, or two windows of a recording, signal by signal."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.live import Collector
from kvitals.app.sources.recording import Moments, judge_recording, span_of
from kvitals.diagnoser.text import plain, render
from kvitals.rules.finding import Triage
from kvitals.ui.cli.common import (
    add_judging_options,
    answer_console,
    parse_duration,
    parse_moment,
    print_wide,
    setup,
    status_console,
)


@dataclass(frozen=True)
class ComparedSource:
    name: str
    document: Triage
    values: Mapping[str, float]  # signal -> value, of the one engine or the mean over several


def add(commands: Any) -> None:
    parser = commands.add_parser("compare", help="two engines or two windows, side by side")
    for name in ("a", "b"):
        parser.add_argument(
            name, metavar=name.upper(), help="an engine's URL, a recording, or FILE@MOMENT (f.kvcap@+75s)"
        )
    parser.add_argument("--for", dest="seconds", default="12s", metavar="TIME", help="live: how long to look (12s)")
    parser.add_argument("--all", action="store_true", help="also signals that hardly differ")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    chosen = setup(args)
    sides = asyncio.run(_sides(args, chosen))
    console = answer_console()
    for letter, side in zip("AB", sides, strict=True):
        console.print(f"{letter}  {side.name}: {side.document.verdict}", style="bold")
    console.print()
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("signal", no_wrap=True)
    table.add_column("A", justify="right", no_wrap=True)
    table.add_column("B", justify="right", no_wrap=True)
    table.add_column("B is", no_wrap=True)
    for name, a, b in differences(sides[0].values, sides[1].values, args.all):
        unit = chosen.knowledge.signals[name].unit
        told = render(a, unit), render(b, unit)
        if args.all or told[0] != told[1]:
            table.add_row(plain(name), *told, "" if unit == "bool" else change(a, b))
    if table.row_count:
        print_wide(table, console)
    else:
        console.print("No signal differs by a tenth or more. All of them: --all")
    return 0


def differences(
    a: Mapping[str, float], b: Mapping[str, float], everything: bool
) -> list[tuple[str, float | None, float | None]]:
    """Signals that differ by a tenth or more (or all), largest ratio first, those on one side only last."""
    both = [n for n in a if n in b and (everything or _distance(a[n], b[n]) >= math.log(1.1))]
    both.sort(key=lambda n: -_distance(a[n], b[n]))
    return [(n, a.get(n), b.get(n)) for n in [*both, *sorted(a.keys() ^ b.keys())]]


def _distance(a: float, b: float) -> float:
    if a == b:
        return 0.0
    return abs(math.log(b / a)) if _have_ratio(a, b) else math.inf


def _is_zero(value: float) -> bool:
    """A difference of equal numbers is what rounding leaves of it."""
    return abs(value) < 1e-12


def _have_ratio(a: float, b: float) -> bool:
    return a * b > 0 and math.isfinite(a) and math.isfinite(b) and not _is_zero(a) and not _is_zero(b)


def change(a: float | None, b: float | None) -> str:
    """How the second value differs from the first, in words; empty where that says nothing."""
    if a is None or b is None:
        return "known in B only" if a is None else "known in A only"
    if _is_zero(a) != _is_zero(b):
        return "zero in B" if _is_zero(b) else "zero in A"
    if not _have_ratio(a, b):
        return "of the other sign" if a * b < 0 else ""
    times = max(b / a, a / b)
    told = f"{times:.1f}" if times < 100 else f"{times:,.0f}"
    return f"{told} times A" if b / a >= 1 else f"A / {told}"


async def _sides(args: argparse.Namespace, chosen: Setup) -> list[ComparedSource]:
    live = [s for s in (args.a, args.b) if "://" in s]
    with status_console().status(Text(f"looking at {', '.join(live)}" if live else "reading")):
        return list(await asyncio.gather(*(_side(s, args, chosen) for s in (args.a, args.b))))


async def _side(spec: str, args: argparse.Namespace, chosen: Setup) -> ComparedSource:
    if "://" in spec:
        async with Collector(chosen, [spec]) as collector:
            async for _ in collector.collect(parse_duration(args.seconds, "--for")):
                pass
            document = collector.document()
            return ComparedSource(spec, document, _values(collector.pipeline))
    file, _, moment = spec.partition("@")
    first, _ = span_of(Path(file))
    at = parse_moment(moment, first, spec) if moment else None
    judged = judge_recording(Path(file), chosen, Moments(at))
    return ComparedSource(spec, judged.document, _values(judged.pipeline))


def _values(pipeline: Pipeline) -> dict[str, float]:
    """Each signal's mean over the engines that have it."""
    known = pipeline.judge.signals.known
    return {n: sum(k.values.values()) / len(k.values) for n, k in known.items() if k.values}

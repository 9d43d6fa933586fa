"""`kvitals compare`: two engines, or two windows of a recording, signal by signal."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvitals.app.pipeline import Pipeline, Setup
from kvitals.app.sources.live import Collector
from kvitals.app.sources.recording import Moments, judge_recording, span_of
from kvitals.diagnoser.text import plain, render
from kvitals.rules.finding import Triage
from kvitals.rules.finding import encode as encode_triage
from kvitals.rules.model import Signal
from kvitals.ui.cli.common import (
    add_judging_options,
    is_recording,
    json_text,
    parse_duration,
    parse_moment,
    print_wide,
    say_beyond,
    setup,
    status_console,
)
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit
from kvitals.ui.formats import moment

OBJECTIVES = ("ttft_p99_seconds", "itl_p99_seconds")
"""Signals that come first, whatever their difference."""

COLUMNS = ("signal", "of", "A", "B", "B is", "over")
ROWS = 15
"""Signals that are listed without `--all`, and fit one screen."""


@dataclass(frozen=True)
class ComparedSource:
    name: str
    document: Triage
    values: Mapping[str, float]  # signal -> value, of the one entity of its scope or the mean over several
    seen: float  # seconds that were observed up to the moment of the verdict
    slow: float  # seconds of the slow window, at most

    def window(self, signal: Signal) -> str:
        """The time that a signal is calculated over, as far as it was observed; empty where it has no window."""
        if "$window" not in signal.expr:
            return ""
        longest = self.document.window.seconds if signal.window == "fast" else self.slow
        return render(min(longest, self.seen), "seconds")


def add(commands: Any) -> None:
    parser = commands.add_parser("compare")
    for name in ("a", "b"):
        parser.add_argument(
            name, metavar=name.upper(), help="an engine's URL, a recording, or FILE@MOMENT (f.kvcap@+75s)"
        )
    parser.add_argument(
        "--for", dest="seconds", default="12s", metavar="TIME", help="time to observe live engines (default: 12s)"
    )
    add_output_options(parser, "both documents and the rows that are shown")
    parser.add_argument("--all", action="store_true", help="every signal, also those that hardly differ")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    parse_duration(args.seconds, "--for")  # wrong ones are refused whatever the sources are
    chosen = setup(args)
    sides = asyncio.run(_sides(args, chosen))
    rows = _rows(sides, chosen.knowledge.signals, args.all)
    shown = rows if args.all else rows[:ROWS]

    def show(console: Console) -> None:
        for letter, side in zip("AB", sides, strict=True):
            _head(letter, side, console)
        if shown:
            print_wide(_table(shown), console)
        else:
            console.print("No signal differs by a tenth or more. All of them: --all")
        if len(rows) > len(shown):
            console.print(f"{len(rows) - len(shown)} more signals differ by a tenth or more: --all", style="dim")

    def encode() -> str:
        documents = {letter: json.loads(encode_triage(side.document)) for letter, side in zip("AB", sides, strict=True)}
        return json_text({**documents, "signals": [dict(zip(COLUMNS, row, strict=True)) for row in shown]})

    emit(PrintedDocument(f"{sides[0].name} and {sides[1].name}", show, encode), args.output)
    return 0


def _head(letter: str, side: ComparedSource, console: Console) -> None:
    document = side.document
    console.print(f"{letter}  {side.name}: {document.verdict}", style="bold")
    window = f"{document.window.seconds:.0f} s up to {moment(document.window.end)}"
    objectives = ", ".join(f"{one.name} {one.seconds:g} s" for one in document.slo)
    console.print(f"   {window} · objectives: {objectives}", style="dim")
    if causes := document.leading_causes:
        console.print(f"   causes: {', '.join(f'{one.code} {one.title}' for one in causes)}", style="dim")


def _rows(sides: Sequence[ComparedSource], signals: Mapping[str, Signal], everything: bool) -> list[tuple[str, ...]]:
    """The table's rows: objectives, what the causes of either side name, then the largest differences."""
    a, b = sides
    measured = [one.signal for side in sides for cause in side.document.leading_causes for one in cause.measures]
    first = list(dict.fromkeys([*OBJECTIVES, *measured]))
    ranked = {row[0]: row for row in differences(a.values, b.values, everything)}
    ranked |= {row[0]: row for row in differences(a.values, b.values, True) if row[0] in OBJECTIVES}
    rows: list[tuple[str, ...]] = []
    for name, one, other in [ranked[key] for key in dict.fromkeys([*first, *ranked]) if key in ranked]:
        signal = signals[name]
        texts = render(one, signal.unit), render(other, signal.unit)
        if everything or texts[0] != texts[1]:
            how = "" if signal.unit == "bool" else change(one, other)
            windows = dict.fromkeys(side.window(signal) for side in sides)
            rows.append((plain(name), signal.scope, *texts, how, " / ".join(windows)))
    return rows


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        table.add_column(column, no_wrap=True, justify="right" if column in "AB" else "left")
    for row in rows:
        table.add_row(*row)
    return table


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
    live = [source for source in (args.a, args.b) if not _is_file(source)]
    with status_console().status(Text(f"scraping {', '.join(live)}" if live else "reading")):
        return list(await asyncio.gather(*(_side(source, args, chosen) for source in (args.a, args.b))))


def _is_file(spec: str) -> bool:
    return is_recording(spec.rpartition("@")[0] or spec) or is_recording(spec)


async def _side(spec: str, args: argparse.Namespace, chosen: Setup) -> ComparedSource:
    if not _is_file(spec):
        seconds = parse_duration(args.seconds, "--for")
        async with Collector(chosen, [spec]) as collector:
            async for _ in collector.collect(seconds):
                pass
            return _compared(spec, collector.document(), collector.pipeline, seconds)
    file, _, at_text = (spec, "", "") if is_recording(spec) else spec.rpartition("@")
    first, last = span_of(Path(file))
    at = parse_moment(at_text, first, spec, last) if at_text else None
    say_beyond(file, first, last, at)
    judged = judge_recording(Path(file), chosen, Moments(at))
    return _compared(spec, judged.document, judged.pipeline, judged.document.window.end - first)


def _compared(name: str, document: Triage, pipeline: Pipeline, seen: float) -> ComparedSource:
    assert pipeline.span is not None
    return ComparedSource(name, document, _values(pipeline), seen, pipeline.span.slow)


def _values(pipeline: Pipeline) -> dict[str, float]:
    """Each signal's mean over the entities that have it."""
    known = pipeline.judge.signals.known
    return {n: sum(k.values.values()) / len(k.values) for n, k in known.items() if k.values}

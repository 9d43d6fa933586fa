"""`kvitals check`: what each target is, what its telemetry is enough for, and the flag that brings what is missing.

It renders `kvitals.rules.inspection.Inspection` and computes nothing. Exit code: 0 no defect, 1 some target has one, 2
bad use, 3 no target could be read.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvitals.agent.collectors import gpu, host
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Pipeline
from kvitals.app.sources.live import Collector, is_agent
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.inspect import inspect
from kvitals.rules.engine_flags import GUESSED
from kvitals.rules.inspection import InspectedTarget, Inspection, Score, Sense, schema
from kvitals.series.json_text import encode_json
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_judging_options,
    parse_duration,
    parse_url,
    recordings,
    setup,
    status_console,
)
from kvitals.ui.cli.narrow import bar_columns, print_hanging, print_to_copy
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit, is_text

_STATE_STYLE = {"live": "green", "zero": "dim", "stale": "red", "missing": "red", "off": "yellow", "newer": "dim"}
_STATE_WORDS = {
    "live": "live",
    "zero": "at zero since the start",
    "stale": "stale",
    "missing": "missing",
    "off": "off (a flag enables them)",
    "newer": "in a newer version",
}
LIVE = "3s"
"""How long live engines are observed."""

_BAR = 20
MAX_LACKS = 4
REASONS = {"gpu": {reason: text for reason, (_, text) in gpu.REASONS.items()}, "host": host.REASONS}
_EXIT = {True: EXIT_HEALTHY, False: EXIT_FINDINGS, None: EXIT_UNKNOWN}


def add(commands: Any) -> None:
    parser = commands.add_parser("check")
    parser.add_argument(
        "source", nargs="*", metavar="URL|FILE", help="engines, or one recording; default: the engines on this node"
    )
    parser.add_argument(
        "--for",
        dest="look",
        metavar="TIME",
        help="time to observe engines (3s); for a recording, its last TIME",
    )
    add_output_options(parser, "the inspection")
    parser.add_argument("--schema", action="store_true", help="print only the JSON schema of --json")
    parser.add_argument("-v", "--verbose", action="store_true", help="every family and fact, not only the missing ones")
    add_judging_options(parser)
    prometheus.add_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.schema:
        sys.stdout.write(msgspec.json.format(encode_json(schema())).decode() + "\n")
        return EXIT_HEALTHY
    if args.prometheus:
        return prometheus.check(args)
    if files := recordings(args.source):
        return _answer(_recording(files[0], args), [], args)
    return asyncio.run(_live(args))


def _recording(path: Path, args: argparse.Namespace) -> Inspection:
    seconds = parse_duration(args.look, "--for") if args.look else None
    start = None if seconds is None else span_of(path)[1] - seconds
    return _inspected(judge_recording(path, setup(args), Moments(start=start)).pipeline)


async def _live(args: argparse.Namespace) -> int:
    seconds = parse_duration(args.look or LIVE, "--for")
    if len(args.source) == 1 and await is_agent(parse_url(args.source[0])):
        raise UsageError(
            f"{args.source[0]} is a kvitals agent, but check reads engines. Name the engines, as in kvitals check"
            " http://127.0.0.1:8000, or run kvitals check without a URL on the agent's node."
        )
    async with Collector(setup(args), args.source) as collector:
        said = iter(collector.said)
        async for _ in collector.collect(seconds):
            for line in said:  # once, and only where a target answers
                status_console().print(line, style="dim")
        collector.document()
        return _answer(_inspected(collector.pipeline), collector.complaints(), args)


def _inspected(pipeline: Pipeline) -> Inspection:
    assert pipeline.span is not None
    inspection = inspect(pipeline.judge, pipeline.span, pipeline.source)
    ok = None if any(loss.hides for loss in pipeline.losses) and inspection.ok else inspection.ok
    return msgspec.structs.replace(inspection, ok=ok, warnings=[loss.text for loss in pipeline.losses])


def _answer(inspection: Inspection, complaints: Sequence[str], args: argparse.Namespace) -> int:
    document = PrintedDocument(
        _verdict(inspection).plain,
        partial(show, inspection, verbose=args.verbose),
        lambda: msgspec.json.format(encode_json(inspection)).decode(),
    )
    emit(document, args.output)
    if not is_text(args):
        return _EXIT[inspection.ok]
    for complaint in complaints:
        status_console().print(complaint, style="red")
    return _EXIT[inspection.ok]


def show(inspection: Inspection, console: Console, *, verbose: bool = False) -> None:
    """Print an inspection. `verbose` lists every family and fact."""
    for target in inspection.targets:
        _head(target, console)
        if target.system:
            _scores(target.scores, console, verbose)
            _families(target, console, verbose)
            _switches(target, console)
            _resolutions(target, console)
            _facts(target, console, verbose)
        _problems(target, console)
        console.print()
    for sense in inspection.senses:
        _sense(sense, console)
    for warning in inspection.warnings:
        print_hanging(warning, console, 2, "yellow")
    console.print(_verdict(inspection))


def _sense(sense: Sense, console: Console) -> None:
    style = {"ok": "green", "failed": "red"}.get(sense.state, "yellow")
    text = REASONS.get(sense.sense, {}).get(sense.reason, "")
    why = sense.reason.replace("_", " ") if not text or "{" in text else text
    head = (f"this node's {sense.sense}: ", (sense.state.replace("_", " "), style))
    console.print(Text.assemble(*head, f"  {why}" if sense.reason not in ("", "ok") else ""))


def _head(target: InspectedTarget, console: Console) -> None:
    what = " ".join(part for part in (target.system, target.version) if part) or "not recognised"
    about = [what if not target.untested else f"{what} (untested)", target.kind if target.kind != "engine" else ""]
    about += [target.role, f"model {target.model}" if target.model else ""]
    console.print(Text.assemble((target.engine, "bold"), "  ", ", ".join(part for part in about if part)))
    if target.version_source == GUESSED:
        console.print("  the version is the oldest that has every name on the page", style="dim")


def _scores(scores: Sequence[Score], console: Console, verbose: bool) -> None:
    for score in scores:
        columns = bar_columns(console, beside=60, most=_BAR)
        filled = round(columns * score.have / score.of)
        style = "green" if score.have == score.of else "yellow" if score.have else "red"
        bar = [("█" * filled, style), ("░" * (columns - filled), "dim")]
        counted = Text.assemble(f"  {score.journey:8} ", *bar, f" {score.have} of {score.of}  ")
        print_hanging(counted + Text(score.title, "dim"), console, counted.cell_len)
        shown = score.lacks if verbose else score.lacks[:MAX_LACKS]
        for lack in shown:
            line = Text.assemble("missing: ", (lack.what, "yellow"), f" ({lack.remedy})")
            console.print(Padding(line, (0, 0, 0, 11)))
        if len(shown) < len(score.lacks):
            console.print(f"           and {len(score.lacks) - len(shown)} more: --verbose", style="dim")


def _families(target: InspectedTarget, console: Console, verbose: bool) -> None:
    counts: Counter[str] = Counter(family.state for family in target.families)
    parts = [f"{counts[state]} {words}" for state, words in _STATE_WORDS.items() if counts[state]]
    print_hanging(f"  families: {', '.join(parts)}", console, 4)
    shown = [f for f in target.families if verbose or f.state in ("stale", "missing")]
    table = Table.grid(padding=(0, 2))
    for family in shown:
        table.add_row(
            "   ", Text(family.state, _STATE_STYLE[family.state]), family.family, Text(family.raw, "dim"), family.why
        )
    if shown:
        console.print(table)


def _switches(target: InspectedTarget, console: Console) -> None:
    for switch in sorted(target.switches, key=lambda s: s.on is True):
        word, style = {True: ("on", "green"), False: ("off", "yellow"), None: ("unknown", "dim")}[switch.on]
        print_to_copy(Text.assemble("  ", (f"{word:8}", style), switch.flag), console)
        if not switch.on:
            console.print(Padding(Text(switch.brings), (0, 0, 0, 10)))
            console.print(Padding(Text(f"cost: {switch.cost}", "dim"), (0, 0, 0, 10)))


def _resolutions(target: InspectedTarget, console: Console) -> None:
    for resolution in target.resolutions:
        style = "" if resolution.on_edge else "yellow"
        line = Text.assemble(f"  objective {resolution.objective} {resolution.seconds:g} s: ", (resolution.text, style))
        print_hanging(line, console, 4)


def _facts(target: InspectedTarget, console: Console, verbose: bool) -> None:
    known = {fact.fact for fact in target.facts}
    wanted = [
        name for name in ("slots", "block_tokens") if name not in known and target.kind in ("engine", "scheduler")
    ]
    if wanted:
        given = f"`facts = {{{', '.join(f'{name} = N' for name in wanted)}}}` under [[target]] in kvitals.toml"
        console.print(f"  unknown: {', '.join(wanted)}; give them as {given}")
    if not verbose:
        return
    table = Table.grid(padding=(0, 2))
    for name, value, source in _told(target):
        table.add_row("   ", name, value, Text(source, "dim"))
    console.print(table)


def _told(target: InspectedTarget) -> Iterator[tuple[str, str, str]]:
    for fact in target.facts:
        yield fact.fact, f"{fact.value:g}", fact.source
    for name, text in target.strings.items():
        yield name, text, ""


def _problems(target: InspectedTarget, console: Console) -> None:
    for problem in sorted(target.problems, key=lambda p: not p.defect):
        style = "red" if problem.defect else "yellow"
        console.print(Padding(Text.assemble((problem.what, style), f"  {problem.remedy}"), (0, 0, 0, 2)))


def _verdict(inspection: Inspection) -> Text:
    if inspection.ok is None:
        why = "Not checked: part of the source could not be read." if inspection.targets else "No target could be read."
        return Text(why, "bold red")
    if inspection.ok:
        return Text("The enabled telemetry has no defects.", "bold green")
    bad = [target.engine for target in inspection.targets if any(problem.defect for problem in target.problems)]
    return Text(f"The telemetry of {', '.join(bad)} has defects.", "bold red")

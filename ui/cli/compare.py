"""`kvitals compare`: two engines, or two windows of a recording, signal by signal."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvitals.app.comparison import ComparedSignal, ComparedSource, compare_live, compare_recording, compared_signals
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import encode as encode_triage
from kvitals.ui.cli.common import (
    add_judging_options,
    is_recording,
    json_text,
    parse_duration,
    parse_moment,
    say_beyond,
    setup,
    status_console,
)
from kvitals.ui.cli.narrow import print_hanging, print_table
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit
from kvitals.ui.formats import moment

COLUMNS = ("signal", "of", "A", "B", "B is", "over")
DISPENSABLE = (5, 1)
"""Columns that a narrow terminal loses: the window first, then the kind of thing."""

LIVE = "12s"
"""For how long a live engine is observed."""

ROWS = 15
"""Signals that are listed without `--all`, and fit one screen."""


def add(commands: Any) -> None:
    parser = commands.add_parser("compare")
    for name in ("a", "b"):
        parser.add_argument(
            name, metavar=name.upper(), help="an engine's URL, a recording, or FILE@MOMENT (f.kvcap@+75s)"
        )
    parser.add_argument(
        "--for", dest="look", metavar="TIME", help=f"time to observe engines ({LIVE}); for a recording, its last TIME"
    )
    add_output_options(parser, "both documents and the rows of the table")
    parser.add_argument("--all", action="store_true", help="every signal, including those that hardly differ")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.look:
        parse_duration(args.look, "--for")  # wrong ones are refused whatever the sources are
    chosen = setup(args)
    sides = asyncio.run(_sides(args, chosen))
    a, b = sides
    rows = compared_signals(a, b, chosen.knowledge.signals, args.all)
    shown = rows if args.all else rows[:ROWS]

    def show(console: Console) -> None:
        for letter, side in zip("AB", sides, strict=True):
            _head(letter, side, console)
        if shown:
            print_table(_table(shown), console, DISPENSABLE)
        else:
            console.print("No signal differs by 10 % or more. All of them: --all")
        if len(rows) > len(shown):
            console.print(f"{len(rows) - len(shown)} more signals differ by 10 % or more: --all", style="dim")

    def encode() -> str:
        documents = {letter: json.loads(encode_triage(side.document)) for letter, side in zip("AB", sides, strict=True)}
        return json_text({**documents, "signals": [dict(zip(COLUMNS, _cells(row), strict=True)) for row in shown]})

    emit(PrintedDocument(f"{sides[0].name} and {sides[1].name}", show, encode), args.output)
    return 0


def _head(letter: str, side: ComparedSource, console: Console) -> None:
    document = side.document
    print_hanging(f"{letter}  {side.name}: {document.verdict}", console, 3, "bold")
    window = f"{document.window.seconds:.0f} s up to {moment(document.window.end)}"
    objectives = ", ".join(f"{one.name} {one.seconds:g} s" for one in document.slo)
    print_hanging(f"   {window} · objectives: {objectives}", console, 3, "dim")
    for warning in document.coverage.warnings:
        print_hanging(f"   {warning}", console, 3, "yellow")
    if causes := document.leading_causes:
        print_hanging(f"   causes: {', '.join(f'{one.code} {one.title}' for one in causes)}", console, 3, "dim")


def _table(rows: Sequence[ComparedSignal]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        table.add_column(column, no_wrap=True, justify="right" if column in "AB" else "left")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: ComparedSignal) -> tuple[str, ...]:
    """What stands in each of the columns."""
    return row.title, row.of, row.a, row.b, row.how, row.window


async def _sides(args: argparse.Namespace, chosen: Setup) -> list[ComparedSource]:
    live = [source for source in (args.a, args.b) if not _is_file(source)]
    with status_console().status(Text(f"scraping {', '.join(live)}" if live else "reading")):
        return list(await asyncio.gather(*(_side(source, args, chosen) for source in (args.a, args.b))))


def _is_file(spec: str) -> bool:
    return is_recording(spec.rpartition("@")[0] or spec) or is_recording(spec)


async def _side(spec: str, args: argparse.Namespace, chosen: Setup) -> ComparedSource:
    if not _is_file(spec):
        return await compare_live(spec, chosen, parse_duration(args.look or LIVE, "--for"))
    file, _, at_text = (spec, "", "") if is_recording(spec) else spec.rpartition("@")
    first, last = span_of(Path(file))
    at = parse_moment(at_text, first, spec, last) if at_text else None
    say_beyond(file, first, last, at)
    start = (last if at is None else min(at, last)) - parse_duration(args.look, "--for") if args.look else None
    return compare_recording(Path(file), chosen, Moments(at, start), spec)

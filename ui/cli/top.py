"""`kvitals top`: every engine of a node or a fleet on one screen that follows them."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.sources.fleet_source import AgentFleet, FleetSource, LiveFleet, PrometheusFleet, RecordedFleet
from kvitals.app.sources.live import agent_document
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Triage
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import (
    EXIT_UNKNOWN,
    add_judging_options,
    answer_console,
    exit_code,
    parse_moment,
    parse_url,
    recordings,
    say_beyond,
    setup,
    status_console,
)
from kvitals.ui.cli.narrow import print_hanging
from kvitals.ui.cli.render import moment, verdict_line
from kvitals.ui.cli.top_table import SORTS, FleetTable, beside, counts, sorted_rows

ONCE_SECONDS = 12.0
"""How long live engines are observed for one screen, as `kvitals triage` does."""

BROKEN = (
    "kvitals: the screen ended because of a defect in kvitals. Report the lines above; kvitals top --once prints one "
    "screen."
)


def add(commands: Any) -> None:
    parser = commands.add_parser("top")
    parser.add_argument(
        "source",
        nargs="*",
        metavar="URL|FILE",
        help="engines or a kvitals agent by URL, or one recording; default: discover the engines on this node",
    )
    parser.add_argument(
        "--at",
        metavar="T",
        help="start of a replayed recording, such as 75s after its beginning (default: its end)",
    )
    parser.add_argument("--once", action="store_true", help="print one screen as text and end, with triage's exit code")
    add_judging_options(parser)
    prometheus.add_options(parser)
    parser.epilog = "Press ? for the keys. docs/top.md has a picture and lists all keys."
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if not args.once and not _is_terminal():
        raise UsageError(
            "top needs a terminal for its full screen. --once prints one screen as text; kvitals triage --json prints"
            " the document."
        )
    source = _source(args)
    if args.once:
        return _print(asyncio.run(_first(source)))
    return _show(source)


def _is_terminal() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "") not in ("", "dumb")


def _source(args: argparse.Namespace) -> FleetSource:
    """Where documents come from, as `kvitals triage` understands its arguments. Raises UsageError."""
    if args.prometheus:
        if args.source or args.at:
            raise UsageError("--prometheus reads a server: remove URL, FILE and --at")
        return PrometheusFleet(prometheus.access(args), setup(args))
    if any(Path(source).is_dir() for source in args.source):
        raise UsageError("top shows live engines or a recording; for a history use kvitals triage DIRECTORY")
    if files := recordings(args.source):
        first, last = span_of(files[0])
        at = parse_moment(args.at, first, "--at", last) if args.at else None
        say_beyond(files[0].name, first, last, at)
        return RecordedFleet(files[0], setup(args), at)
    if args.at:
        raise UsageError("--at works with a recording; a live screen shows only the present")
    if len(args.source) == 1:
        url = parse_url(args.source[0]).removesuffix("/metrics")
        if asyncio.run(agent_document(url)) is not None:
            if args.slo or args.rules:
                status_console().print(f"{url} is an agent: it uses its own objectives and rules", style="yellow")
            return AgentFleet(url)
    return LiveFleet(setup(args), args.source, ONCE_SECONDS) if args.once else LiveFleet(setup(args), args.source)


async def _first(source: FleetSource) -> Triage:
    try:
        await source.open()
        return await source.read()
    finally:
        await source.close()


def _print(document: Triage) -> int:
    """One screen as text."""
    console = answer_console()
    rows = sorted_rows(document.engines, SORTS[0])
    table = FleetTable(console.width, rows)
    console.print(Text(f"{document.source.name} · {moment(document.window.end)}", style="dim"))
    console.print(verdict_line(document))
    console.print(Text(counts(rows)))
    console.print(Text("").join(table.titles(SORTS[0])), style="bold", no_wrap=True)
    for row in rows:
        console.print(Text("").join(table.cells(row)), no_wrap=True)
    for line in filter(None, (beside(document), *document.coverage.warnings)):
        print_hanging(line, console, 2, "yellow")
    return exit_code(document)


def _show(source: FleetSource) -> int:
    """The full screen, until the user quits. Raises what ended the source, and KeyboardInterrupt after Ctrl-C."""
    from kvitals.ui.cli.top_app import FleetApp  # a fifth of a second to import
    from kvitals.ui.cli.top_keys import accept_any_bytes

    accept_any_bytes()
    app = FleetApp(source)
    app.run()
    for path in app.recorded:
        if path.exists():
            print_hanging(f"recorded {path.name}. Judge it: kvitals triage {path.name}", answer_console(), 2)
    if app.failure is not None:
        raise app.failure
    if app.interrupted:
        raise KeyboardInterrupt
    if app.is_broken or app.return_code:
        print(BROKEN, file=sys.stderr)
        return EXIT_UNKNOWN
    return 0

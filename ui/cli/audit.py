"""`kvitals audit`: which signals moved before the objective was missed, by how long, and whether that is enough."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from agent import objectives as promised
from diagnoser import steps
from diagnoser.leading import Audit, Lead, Ready, audits, starts
from diagnoser.steps import step_of
from diagnoser.text import render
from series.history.schema import HistoryError
from series.promql import PromQLError
from series.types import Labels
from ui.auditing import TTFT, pool_objectives
from ui.cli import prometheus
from ui.cli.common import UsageError, add_judging_options, answer_console
from ui.cli.common import setup as made
from ui.cli.knee import add_source, course, moment

_TITLES = {
    "queue": "requests waiting",
    "queue_trend": "growth of the queue",
    "kv": "KV blocks in use",
    "capacity_waits": "waiting for slots or KV",
    "running": "requests running",
    "tokens": "prompt tokens a second",
    "cpu": "CPU of the engines",
    "gpu": "GPU utilisation",
}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="which signal leads the objective here, by how long, and is that longer than an engine takes to start",
        description="The scaling-signal audit: what moved before p99 of first tokens passed its objective.",
    )
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="all of it as JSON")
    add_judging_options(parser)
    prometheus.add_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    chosen = made(args)
    general = next(one.seconds for one in promised.general(chosen.config, chosen.slo_sources) if one.name == TTFT)
    try:
        with course(args, chosen) as of:
            told = {} if args.slo else pool_objectives(steps.objectives(of.ask, of.end), steps.pools(of.ask, of.end))
            found = audits(of.ask, of.start, of.end, step_of(of.gap), told, general)
            begun = starts(of.ask, of.start, of.end)
    except (HistoryError, PromQLError) as error:
        raise UsageError(str(error)) from error
    if not found:
        raise UsageError(f"{of.name} has no time to first token of any engine")
    if args.json:
        print(
            json.dumps(
                {"audits": [_document(one) for one in found], "starts": [_start(one) for one in begun]}, indent=2
            )
        )
        return 0
    console = answer_console()
    console.print(f"{of.name}: {moment(of.start)} to {moment(of.end)}", style="dim", soft_wrap=True)
    needed = total(begun)
    console.print(_started(begun), soft_wrap=True)
    for one in found:
        console.print()
        show(one, needed, console)
    return 0


def total(begun: Sequence[Ready]) -> float | None:
    """Seconds from the process to the first token, in the median of the starts that were seen whole."""
    whole = [one.load + one.first_token for one in begun if one.first_token is not None]
    return statistics.median(whole) if whole else None


def show(audit: Audit, needed: float | None, console: Console) -> None:
    """One pool's audit: a table of signals, the best first."""
    title = f"pool {audit.entity['pool']}" if "pool" in audit.entity else "all engines"
    console.print(title, style="bold")
    if audit.missing:
        console.print(f"  not known: {audit.missing}.", style="yellow", soft_wrap=True)
        return
    console.print(
        f"  p99 of first tokens came to pass {render(audit.objective, 'seconds')} {len(audit.misses)} times.",
    )
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("  moved before", no_wrap=True)
    for column in ("times", "median lead", "least", "false alarms/h", "in time"):
        table.add_column(column, justify="right")
    for lead in audit.leads:
        least = "" if lead.least is None else render(lead.least, "seconds")
        cells = (
            f"{lead.caught} of {len(audit.misses)}",
            render(lead.median, "seconds"),
            least,
            f"{lead.false_alarms:.2f}",
        )
        table.add_row(f"  {_TITLES[lead.signal]}", *cells, _in_time(lead, needed))
    console.print(table)
    if audit.absent:
        console.print(f"  not told: {', '.join(_TITLES[name] for name in audit.absent)}.", style="dim", soft_wrap=True)


def _in_time(lead: Lead, needed: float | None) -> str:
    if lead.median <= 0:
        return "no"
    return "unknown" if needed is None else ("yes" if lead.median >= needed else "no")


def _started(begun: Sequence[Ready]) -> str:
    needed = total(begun)
    if needed is None:
        return "Ready time: unknown, no start of an engine was seen from its process to its first token."
    load = statistics.median(one.load for one in begun)
    return (
        f"Ready time: {render(needed, 'seconds')} from the process to its first token, {render(load, 'seconds')} of it"
        f" until it answers; the median of {len(begun)} starts, to the quarter of a minute. A machine and an image take"
        " theirs before."
    )


def _document(audit: Audit) -> dict[str, Any]:
    return {**asdict(replace(audit, entity=Labels())), "entity": dict(audit.entity)}


def _start(ready: Ready) -> dict[str, Any]:
    return {**asdict(replace(ready, entity=Labels())), "entity": dict(ready.entity)}

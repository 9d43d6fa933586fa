"""`kvitals knee --audit`: which signals moved before the objective was missed, and whether that was early enough."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kvitals.agent import objectives as promised
from kvitals.app.derived_metrics.scaling_audit import TTFT, pool_objectives
from kvitals.app.errors import UsageError
from kvitals.diagnoser import steps
from kvitals.diagnoser.scaling_lead import Audit, Lead, Ready, audits, starts
from kvitals.diagnoser.steps import step_of
from kvitals.diagnoser.text import render
from kvitals.ui.cli.common import json_text, setup
from kvitals.ui.cli.course import course, with_entity
from kvitals.ui.cli.narrow import columns_that_fit, print_hanging
from kvitals.ui.cli.output import PrintedDocument, emit
from kvitals.ui.formats import moment

_TITLES = {
    "queue": "requests waiting",
    "queue_trend": "growth of the queue",
    "kv": "KV blocks in use",
    "capacity_waits": "waiting for slots or KV",
    "running": "requests running",
    "tokens": "prompt tokens a second",
    "cpu": "CPU of the engines",
    "gpu": "GPU utilization",
}


def run(args: argparse.Namespace) -> int:
    """Print the audit of what the arguments name. Raises UsageError."""
    chosen = setup(args)
    general = next(one.seconds for one in promised.general(chosen.config, chosen.slo_sources) if one.name == TTFT)
    with course(args, chosen) as of:
        told = {} if args.slo else pool_objectives(steps.objectives(of.ask, of.end), steps.pools(of.ask, of.end))
        found = audits(of.ask, of.start, of.end, step_of(of.gap), told, general)
        begun = starts(of.ask, of.start, of.end)
    if not found:
        raise UsageError(f"{of.name} reports no time to first token for any engine")

    def show_all(console: Console) -> None:
        console.print(f"{of.name}: {moment(of.start)} to {moment(of.end)}", style="dim")
        needed = total(begun)
        console.print(_started(begun))
        for one in found:
            console.print()
            show(one, needed, console)

    def encode() -> str:
        return json_text({"audits": list(map(with_entity, found)), "starts": list(map(with_entity, begun))})

    emit(PrintedDocument("Scaling-signal audit", show_all, encode), args.output)
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
        print_hanging(f"  not known: {audit.missing}.", console, 4, "yellow")
        return
    console.print(
        f"  p99 of first tokens exceeded {render(audit.objective, 'seconds')} {len(audit.misses)} times.",
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
    console.print(columns_that_fit(table, (3, 4), console)[0])
    if audit.absent:
        print_hanging(f"  not reported: {', '.join(_TITLES[name] for name in audit.absent)}.", console, 4, "dim")


def _in_time(lead: Lead, needed: float | None) -> str:
    if lead.median <= 0:
        return "no"
    return "unknown" if needed is None else ("yes" if lead.median >= needed else "no")


def _started(begun: Sequence[Ready]) -> str:
    needed = total(begun)
    if needed is None:
        return "Ready time: unknown, because no start of an engine was observed from its process to its first token."
    load = statistics.median(one.load for one in begun)
    return (
        f"Ready time: {render(needed, 'seconds')} from the process to its first token; "
        f"{render(load, 'seconds')} of it until the engine answers. Median of {len(begun)} starts, with a "
        f"resolution of 15 s. Starting a machine and pulling an image take more time before that."
    )

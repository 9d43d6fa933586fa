"""`kvitals whatif SOURCE --set FLAG=VALUE`: latency and throughput of an engine with other settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kvitals.app.agent_client import AgentClient
from kvitals.app.engine_twin import advised_settings, engine_lookups, forecasts
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import judge_recording
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.diagnoser.twin.forecast import TwinDocument
from kvitals.kvcache.accesses import Accesses
from kvitals.rules.finding import Triage
from kvitals.ui import twin_text
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import (
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_config_option,
    add_rules_option,
    json_text,
    parse_url,
    setup,
    status_console,
)
from kvitals.ui.cli.course import add_source, course
from kvitals.ui.cli.narrow import print_hanging
from kvitals.ui.cli.output import PrintedDocument, emit

ADVISED = "advised"
"""Stands for the settings of the triage's levers."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `--set`, with the sources that it reads."""
    add_source(parser, "--capture, --agent or --trace")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="FLAG=VALUE",
        help="an engine setting to predict latency and throughput for, such as max-num-seqs=16; repeatable; "
        f"{ADVISED}: each setting that the triage of SOURCE advises",
    )
    prometheus.add_options(parser, "--from and --to")
    parser.set_defaults(slo=[])
    add_config_option(parser)
    add_rules_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the forecasts. Returns EXIT_UNKNOWN where no engine has a prediction. Raises UsageError."""
    if args.trace is not None:
        raise UsageError(
            "--set with --trace: a trace contains no step times; name a recording, an agent, a history or a Prometheus"
        )
    if args.curve or args.capacity is not None:
        raise UsageError("--set with --curve or --capacity: use only one of them, because these two replay lookups")
    named = args.source or (str(args.capture) if args.capture else args.agent)
    args = argparse.Namespace(**{**vars(args), "source": named})
    chosen = setup(args)
    with status_console().status("simulating"), course(args, chosen) as of:
        lookups = _lookups(named)
        if args.settings == [ADVISED]:
            documents = _advised(of, _triage(named, chosen), lookups, args.seed)
        else:
            documents = forecasts(of, args.settings, lookups, seed=args.seed)

    def show(console: Console) -> None:
        for number, document in enumerate(documents):
            if number:
                console.print()
            show_forecast(document, console)

    def encode() -> str:
        return json_text([msgspec.to_builtins(document) for document in documents])

    emit(PrintedDocument("Predicted latency and throughput", show, encode), args.output)
    return EXIT_UNKNOWN if all(document.no_prediction for document in documents) else EXIT_HEALTHY


def _triage(named: str | None, chosen: Setup) -> Triage:
    """The triage of the source whose levers are simulated. Raises UsageError."""
    if named and "://" in named:
        return AgentClient(parse_url(named)).findings()
    if named and Path(named).is_file():
        return judge_recording(Path(named), chosen).document
    raise UsageError(f"--set {ADVISED}: name a source with a triage: a recording or the URL of an agent")


def _advised(of: TimeseriesSource, triage: Triage, lookups: Accesses | None, seed: int) -> list[TwinDocument]:
    settings = advised_settings(triage)
    if not settings:
        raise UsageError(
            f"--set {ADVISED}: no lever of this triage sets a flag that the twin simulates; name a setting, "
            f"such as --set max-num-seqs=16"
        )
    return [
        document
        for setting in settings
        for document in forecasts(of, [setting.text], lookups, seed=seed)
        if document.engine == setting.engine.labels
    ]


def show_forecast(document: TwinDocument, console: Console) -> None:
    """One engine."""
    console.print(twin_text.changes_text(document), style="bold")
    for text, style in ((twin_text.load_text(document), "dim"), (twin_text.refusal_text(document), "yellow")):
        if text:
            print_hanging(text, console, 2, style)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in twin_text.columns(document):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for row in document.quantities:
        table.add_row(*twin_text.cells(document, row))
    console.print(table)
    for assumed in twin_text.notes(document):
        print_hanging(assumed, console, 2, "yellow")
    if not document.no_prediction:
        print_hanging(twin_text.NOTE, console, 2, "dim")


def _lookups(named: str | None) -> Accesses | None:
    return engine_lookups(Path(named)) if named and Path(named).is_file() else None

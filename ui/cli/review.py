"""`kvitals review`: what was paid for, what came of it, and what would bring more, as documents."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvitals.agent import objectives as promised
from kvitals.app import timeseries_sources
from kvitals.app.agent_client import AgentClient, HistorySpan, NotKvitalsError
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import DAY_SECONDS, TimeseriesSource
from kvitals.diagnoser import steps
from kvitals.diagnoser.review import incidents
from kvitals.diagnoser.review.assemble import ReviewRequest, review
from kvitals.diagnoser.review.events import noted_events
from kvitals.diagnoser.review.money import GpuPrices
from kvitals.diagnoser.review.result import Incidents, ReviewEvent
from kvitals.rules.model import Rule
from kvitals.series.history import event_log
from kvitals.series.history.new_rows import STEP_SECONDS
from kvitals.series.history.reader import HistoryReader
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import (
    add_judging_options,
    answer_console,
    history_file,
    parse_duration,
    parse_past,
    setup,
    status_console,
)
from kvitals.ui.review.write import write

WEEK = "7d"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "review",
        help="the week: tokens per GPU-hour, cost, waste, incidents, and the levers that would bring most",
        description="A document of the time: one HTML page, Markdown, JSON, and tables to plot again.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="URL|DIR", help="an agent, or the directory of a history; none: this node's"
    )
    parser.add_argument("--since", metavar="TIME", default=WEEK, help=f"how long, until now ({WEEK})")
    parser.add_argument("--from", dest="from_", metavar="T", help="instead: from then on: RFC 3339, or --from=-14d")
    parser.add_argument("--to", metavar="T", help="until then (now)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the documents are written")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="[NAME=]USD",
        help="US dollars an hour of one GPU: 2.50 of all, or H100=2.10 of a kind of hardware, a pool or a model",
    )
    parser.add_argument(
        "--gpus", type=float, metavar="N", help="GPUs of an engine that does not tell how many it has (1)"
    )
    add_judging_options(parser)
    prometheus.add_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    chosen = setup(args)
    end = parse_past(args.to, "--to") if args.to else time.time()
    start = parse_past(args.from_, "--from") if args.from_ else end - parse_duration(args.since, "--since")
    if start >= end:
        raise UsageError("--from must lie before --to")
    given = _given(args, chosen)
    began = time.monotonic()
    with _course(args, chosen, start, end) as (of, happenings):
        found = review(of.ask, _asked(of, happenings, chosen, start, given), chosen.knowledge)
    try:
        files = write(found, args.out)
    except OSError as error:
        raise UsageError(f"can not write to {args.out}: {error.strerror}; choose another --out") from error
    console = answer_console()
    for sentence in found.story:
        console.print(f"{sentence}\n")
    status_console().print(f"{time.monotonic() - began:.0f} s; written: {', '.join(str(path) for path in files)}")
    return 0


def _given(args: argparse.Namespace, chosen: Setup) -> GpuPrices:
    """Prices and GPUs as the options say, else as [review] does."""
    table = chosen.config.review
    every, by_name = _prices(args.price)
    gpus = table.gpus_per_engine if args.gpus is None else args.gpus
    if not 0 < gpus <= 1024:
        raise UsageError(f"--gpus {gpus:g}: an engine has from a part of one to 1024")
    by_name |= {name: usd for name, usd in table.prices.items() if name not in by_name}
    return GpuPrices(table.usd_per_gpu_hour if every is None else every, by_name, gpus)


def _prices(options: Sequence[str]) -> tuple[float | None, dict[str, float]]:
    every, by_name = None, {}
    for option in options:
        name, equals, value = option.rpartition("=")
        try:
            usd = float(value)
        except ValueError:
            usd = -1.0
        if not 0 <= usd < 1e6 or (equals and not name):
            raise UsageError(f"--price {option}: write USD an hour of one GPU, as 2.50 or H100=2.10")
        if name:
            by_name[name] = usd
        else:
            every = usd
    return every, by_name


@dataclass(frozen=True)
class _Happenings:
    """Where it is told what went wrong in a time, and what else happened."""

    incidents: Callable[[float, float], Incidents]
    noted_events: Callable[[float, float], Sequence[ReviewEvent]]


@contextmanager
def _course(
    args: argparse.Namespace, chosen: Setup, start: float, end: float
) -> Iterator[tuple[TimeseriesSource, _Happenings]]:
    """What is asked about the time: a server, an agent, or a history on this machine."""
    if args.source and args.prometheus:
        raise UsageError("one of URL or DIR, and --prometheus")
    rules = chosen.knowledge.rules
    if args.prometheus or (args.source and "://" in args.source):
        access = prometheus.access(argparse.Namespace(**{**vars(args), "prometheus": args.prometheus or args.source}))
        agent = AgentClient.with_access(access)
        kept = _kept(agent) if args.source else None
        first = kept.first if kept is not None else float("-inf")
        with timeseries_sources.of_server(access, chosen, start, end, first) as of:
            if kept is None:
                yield of, _Happenings(lambda a, b: incidents.of_alerts(of.ask, a, b, of.gap, rules), lambda a, b: [])
            else:
                # Memory may hold a row a second; what is further back has those that were written.
                yield replace(of, gap=max(of.gap, STEP_SECONDS)), _of_agent(agent, rules)
        return
    file = _file(args, chosen)
    with timeseries_sources.of_history(file, start, end) as of:
        yield of, _of_file(file, rules)


def _kept(agent: AgentClient) -> HistorySpan | None:
    """What an agent keeps; None where it keeps no history, or where the URL is a Prometheus'."""
    try:
        return agent.history()
    except NotKvitalsError:
        return None


def _of_agent(agent: AgentClient, rules: Mapping[str, Rule]) -> _Happenings:
    """An agent's history, asked by its URL."""

    def findings(start: float, end: float) -> Incidents:
        told = agent.events(start - DAY_SECONDS, end, incidents.TOLD)
        return incidents.of_history(agent.episodes(start, end), told, start, end, rules)

    return _Happenings(findings, lambda start, end: noted_events(agent.events(start, end)))


def _of_file(file: Path, rules: Mapping[str, Rule]) -> _Happenings:
    """A history on this machine."""

    def findings(start: float, end: float) -> Incidents:
        with HistoryReader(file).reading() as connection:
            told = event_log.events(connection, start - DAY_SECONDS, end, incidents.TOLD)
            return incidents.of_history(list(event_log.episodes(connection, start, end)), told, start, end, rules)

    def events(start: float, end: float) -> list[ReviewEvent]:
        with HistoryReader(file).reading() as connection:
            return noted_events(event_log.events(connection, start, end))

    return _Happenings(findings, events)


def _file(args: argparse.Namespace, chosen: Setup) -> Path:
    file = history_file(Path(args.source) if args.source else None, chosen.config)
    if args.source and Path(args.source).is_file() and file != Path(args.source):
        raise UsageError(f"{args.source} is no history; of a recording kvitals triage, knee and audit tell")
    if not file.exists():
        raise UsageError(f"no history at {file}: `kvitals run` keeps one; a fleet is reviewed with --prometheus URL")
    return file


def _asked(
    of: TimeseriesSource, happenings: _Happenings, chosen: Setup, start: float, given: GpuPrices
) -> ReviewRequest:
    general = {one.name: one for one in promised.general(chosen.config, chosen.slo_sources)}
    return ReviewRequest(
        source=of.name,
        start=start,
        since=of.start,
        end=of.end,
        first=of.first,
        gap=of.gap,
        objectives={name: general[name].seconds for name in steps.OBJECTIVES},
        objectives_from=", ".join(sorted({general[name].source for name in steps.OBJECTIVES})),
        given=given,
        incidents=happenings.incidents,
        noted=happenings.noted,
    )

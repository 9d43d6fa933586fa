"""Where the commands read what engines did over time: an agent, a history, a Prometheus or a recording."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvitals.app import timeseries_sources
from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import existing_history
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.diagnoser.operating_point import OperatingPoint
from kvitals.diagnoser.scaling_lead import Audit, Ready
from kvitals.series.types import Labels
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import agent_of, parse_moment, parse_past, say_notes


def add_source(parser: argparse.ArgumentParser, none: str = "the history of this node's agent") -> None:
    """Where it is read what engines did over time. none: what it is where nothing is named."""
    parser.add_argument(
        "source",
        nargs="?",
        metavar="URL|DIR|FILE",
        help=f"a kvitals agent, the directory of a history, or a recording; without a source: {none}",
    )
    parser.add_argument(
        "--history", action="store_true", help="the history of this node's agent, also if it is stopped"
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="T",
        help="start of the time range: RFC 3339, or --from=-7d; in a recording also 60s after its start (default: the "
        "last day, a recording whole)",
    )
    parser.add_argument("--to", metavar="T", help="until then (now)")


@contextmanager
def course(args: argparse.Namespace, chosen: Setup) -> Iterator[TimeseriesSource]:
    """What the arguments ask for; what could not be read of it is stated on stderr. Raises UsageError."""
    with _source(args, chosen) as of:
        say_notes(of.notes)
        yield of


def _source(args: argparse.Namespace, chosen: Setup) -> AbstractContextManager[TimeseriesSource]:
    """Raises UsageError."""
    if sum(map(bool, (args.source, args.history, args.prometheus))) > 1:
        raise UsageError("one of URL, DIR or FILE, --history and --prometheus")
    path = Path(args.source) if args.source and "://" not in args.source else None
    if path is not None and not path.exists():
        raise UsageError(f"no file or directory {path}; a URL begins with http://")
    if path is not None and path.is_file() and path.suffix != ".db":
        return _part_of_recording(path, args, chosen)
    start = parse_past(args.from_, "--from") if args.from_ else None
    end = parse_past(args.to, "--to") if args.to else None
    if start is not None and start >= (end or time.time()):
        raise UsageError("--from must lie before --to")
    if args.source and "://" in args.source:
        args = argparse.Namespace(**{**vars(args), "prometheus": args.source})
    if args.prometheus:
        return timeseries_sources.of_server(prometheus.access(args), chosen, start, end or time.time())
    elsewhere = f"for an agent elsewhere give its URL ({agent_of(chosen.config)})"
    file = existing_history(path, chosen.config, elsewhere)
    return timeseries_sources.of_history(file, start, end)


@contextmanager
def _part_of_recording(path: Path, args: argparse.Namespace, chosen: Setup) -> Iterator[TimeseriesSource]:
    with timeseries_sources.of_recording(path, chosen) as of:
        start = parse_moment(args.from_, of.start, "--from", of.end) if args.from_ else of.start
        end = parse_moment(args.to, of.start, "--to", of.end) if args.to else of.end
        start, end = max(start, of.start), min(end, of.end)
        if start >= end:
            raise UsageError("--from must lie before --to, and both in the time of the recording")
        yield replace(of, start=start, end=end)


def with_entity(one: OperatingPoint | Audit | Ready) -> dict[str, Any]:
    """What is known of an entity as a document, its labels included."""
    return {**asdict(replace(one, entity=Labels())), "entity": dict(one.entity)}

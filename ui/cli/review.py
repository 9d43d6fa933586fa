"""`kvitals review`: what was paid for, what came of it, and what would bring more, as documents."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from kvitals.app.errors import UsageError
from kvitals.app.history_recorder import existing_history
from kvitals.app.pipeline import Setup
from kvitals.app.weekly_review import (
    ReviewSource,
    gpu_prices,
    history_review,
    review_of,
    server_review,
)
from kvitals.series.json_text import encode_json
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import (
    add_judging_options,
    parse_duration,
    parse_past,
    say_notes,
    setup,
    status_console,
)
from kvitals.ui.cli.output import Block, PrintedDocument, add_output_options, emit
from kvitals.ui.review.write import write

WEEK = "7d"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "review",
        description="Writes a report on a time range: one HTML page, Markdown, JSON, and tables for your own plots.",
    )
    parser.add_argument(
        "source", nargs="?", metavar="URL|DIR", help="an agent, or the directory of a history; default: this node's"
    )
    parser.add_argument("--since", metavar="TIME", default=WEEK, help=f"how long, until now ({WEEK})")
    parser.add_argument("--from", dest="from_", metavar="T", help="start of the time range: RFC 3339, or --from=-14d")
    parser.add_argument("--to", metavar="T", help="until then (now)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory for the documents")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="[NAME=]USD",
        help="US dollars per GPU hour: 2.50 for all, or H100=2.10 for a kind of hardware, a pool or a model",
    )
    parser.add_argument(
        "--gpus", type=float, metavar="N", help="GPUs per engine, for engines that do not report their GPUs (1)"
    )
    add_judging_options(parser)
    prometheus.add_options(parser, "--from and --to")
    add_output_options(parser, "the review document")
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    chosen = setup(args)
    end = parse_past(args.to, "--to") if args.to else time.time()
    start = parse_past(args.from_, "--from") if args.from_ else end - parse_duration(args.since, "--since")
    if start >= end:
        raise UsageError("--from must lie before --to")
    prices = gpu_prices(chosen.config, *_prices(args.price), args.gpus)
    began = time.monotonic()
    with _source(args, chosen, start, end) as source:
        say_notes(source.series.notes)
        found = review_of(source, chosen, start, prices)
    try:
        files = write(found, args.out)
    except OSError as error:
        raise UsageError(f"cannot write to {args.out}: {error.strerror}; choose another --out") from error

    def show(console: Console) -> None:
        for sentence in found.story:
            console.print(sentence)
            console.print()

    blocks = [Block(sentence) for sentence in found.story]
    document = PrintedDocument("Weekly review", show, lambda: encode_json(found).decode(), lambda: blocks)
    emit(document, args.output)
    status_console().print(f"{time.monotonic() - began:.0f} s; written: {', '.join(str(path) for path in files)}")
    return 0


def _prices(options: Sequence[str]) -> tuple[float | None, dict[str, float]]:
    every, by_name = None, {}
    for option in options:
        name, equals, value = option.rpartition("=")
        try:
            usd = float(value)
        except ValueError:
            usd = -1.0
        if not 0 <= usd < 1e6 or (equals and not name):
            raise UsageError(f"--price {option}: write USD per GPU-hour, as 2.50 or H100=2.10")
        if name:
            by_name[name] = usd
        else:
            every = usd
    return every, by_name


def _source(args: argparse.Namespace, chosen: Setup, start: float, end: float) -> AbstractContextManager[ReviewSource]:
    """What the review is computed from: a server, an agent, or a history on this machine."""
    if args.source and args.prometheus:
        raise UsageError("one of URL or DIR, and --prometheus")
    if args.prometheus or (args.source and "://" in args.source):
        access = prometheus.access(argparse.Namespace(**{**vars(args), "prometheus": args.prometheus or args.source}))
        return server_review(access, chosen, start, end, may_be_agent=bool(args.source))
    return history_review(_file(args, chosen), chosen, start, end)


def _file(args: argparse.Namespace, chosen: Setup) -> Path:
    named = Path(args.source) if args.source else None
    is_file = named is not None and named.is_file()
    otherwise = "for a recording use kvitals triage or knee" if is_file else "review a fleet with --prometheus URL"
    return existing_history(named, chosen.config, otherwise)

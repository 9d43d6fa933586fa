"""The recorded accesses that `kvitals whatif` and its curve replay: where they come from, and how many there are."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from kvitals.app.errors import UsageError
from kvitals.app.lookups import Lookups, agent_lookups, parse_size, recorded_lookups, trace_lookups
from kvitals.kvcache.sampling import SampleError
from kvitals.kvcache.traces.request import TraceError
from kvitals.kvcache.whatif import ReplayPlan, ReplayRow, what_if
from kvitals.ui.cli.common import parse_url, say_notes, status_console


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that replays accesses."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--capture", type=Path, metavar="FILE", help="a recording (.kvcap) of engines with KV events")
    source.add_argument("--agent", metavar="URL", help="a running agent with KV events (http://127.0.0.1:9477)")
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="a trace file, also as .gz (formats: docs/inputs.md)"
    )
    parser.add_argument(
        "--block-size",
        type=int,
        metavar="TOKENS",
        help="tokens that one block id of the trace stands for (default: calculated from ids and lengths)",
    )
    parser.add_argument(
        "--today", metavar="SIZE", help="today's capacity of one node, in blocks or tokens (58594, 30000000t)"
    )
    parser.add_argument(
        "--sample", type=float, default=1.0, metavar="SHARE", help="share of blocks to replay, with lru only (1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sample and of sticky routing (0)")


def subject(args: argparse.Namespace) -> Lookups:
    """What the options name. Raises UsageError, CaptureError."""
    if args.source is not None:
        args = _named(args)
    if args.trace is None:
        of = _of_ledger(args)
    else:
        try:
            of = trace_lookups(args.trace, args.block_size)
        except TraceError as error:
            raise UsageError(str(error)) from error
    say_notes(of.notes)
    if args.today is None:
        return of
    return replace(of, today=parse_size(args.today, of.accesses.block_size, "--today"))


def _named(args: argparse.Namespace) -> argparse.Namespace:
    """The source without an option: the URL of an agent, a recording, else a trace. Raises UsageError."""
    if args.capture is not None or args.agent is not None or args.trace is not None:
        raise UsageError("one of SOURCE, --capture, --agent and --trace")
    if "://" in args.source:
        return argparse.Namespace(**{**vars(args), "agent": args.source})
    name = "capture" if args.source.endswith(".kvcap") else "trace"
    return argparse.Namespace(**{**vars(args), name: Path(args.source)})


def _of_ledger(args: argparse.Namespace) -> Lookups:
    """The look-ups of a recording or of an agent, and the blocks of its largest engine."""
    if args.capture is None and args.agent is None:
        raise UsageError("name the lookups to replay: a recording, a trace file or the URL of an agent")
    if args.capture is not None:
        return recorded_lookups(args.capture)
    return agent_lookups(parse_url(args.agent, "--agent:"))


def replay_plan(of: Lookups, plan: ReplayPlan) -> list[ReplayRow]:
    """The rows of a plan. Raises UsageError."""
    try:
        with status_console().status("replaying"):
            return what_if(of.accesses, plan)
    except SampleError as error:
        raise UsageError(f"--sample: {error}") from error
    except ValueError as error:
        raise UsageError(f"{of.title}: {error}") from error


def trace_document(of: Lookups) -> dict[str, Any]:
    """How a trace was read, for JSON: `trace`, null for the look-ups of engines."""
    return {"trace": None if of.trace is None else asdict(of.trace)}


def head(of: Lookups, console: Console) -> None:
    """What was replayed, and how much of all there was that is."""
    accesses = of.accesses
    console.print(of.title, style="bold")
    console.print(of.extent)
    share = "an unknown share" if accesses.observed is None else f"{accesses.observed:.0%}"
    console.print(
        f"observed: {share} of lookups ({accesses.learned or 'nothing is known about the others'})", style="dim"
    )
    if (hit := of.recorded_hit_rate) is not None:
        console.print(f"hit rate when recorded: {hit:.2%}; compare it with today's size below")
    console.print()

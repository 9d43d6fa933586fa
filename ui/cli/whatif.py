"""`kvitals whatif`: what other memory, routing or eviction would have made of recorded accesses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from kvitals.app.errors import UsageError
from kvitals.app.lookups import Lookups, parse_capacity, parse_size
from kvitals.diagnoser.replay_worth import Worth, base_of, worth
from kvitals.kvcache.eviction import POLICIES
from kvitals.kvcache.routing import ROUTINGS
from kvitals.kvcache.whatif import ReplayPlan, ReplayRow
from kvitals.ui.cli import curve, twin
from kvitals.ui.cli.accesses import add_subject_options, head, replay_plan, subject, trace_document
from kvitals.ui.cli.common import parse_duration
from kvitals.ui.cli.narrow import print_hanging, print_table
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit
from kvitals.ui.formats import short

MAX_ROWS = 1000

DESCRIPTION = """\
Replays recorded block accesses with other memory, routing or eviction, and prints the hit rate of each. With --set,
simulates an engine with other settings instead, and prints latency and throughput before and after (docs/whatif.md).

capacities are per node, as blocks (1953), tokens (3000000t), a multiple of today's (2x, the gain of FP8 over 16-bit
KV) or unlimited (inf).

routings      round-robin; least-loaded (fewest pending prompt tokens); sticky (by a hash of the session,
              guessed from the prompts' beginnings where unknown); prefix (the node that holds most of the prompt,
              within a load cap); pooled (one cache with the memory of all nodes)
policies      lru, lfu, fifo; priority (lru, but blocks of active sessions leave last)
"""

Name = TypeVar("Name", bound=str)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "whatif",
        description=DESCRIPTION,
    )
    twin.add_options(parser)
    add_subject_options(parser)
    parser.add_argument(
        "--curve", action="store_true", help="the hit rate of one LRU cache at each size, and the size that is enough"
    )
    parser.add_argument("--capacity", metavar="LIST", help="capacities to try (default: 1x,2x,inf if today's is known)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes to route over (1)")
    parser.add_argument("--routing", default="round-robin", metavar="LIST", help=f"{', '.join(ROUTINGS)} (round-robin)")
    parser.add_argument("--policy", default="lru", metavar="LIST", help=f"{', '.join(POLICIES)} (lru)")
    parser.add_argument(
        "--host-tier", metavar="SIZE", help="a second tier in each node's host memory: blocks or tokens"
    )
    parser.add_argument(
        "--horizon", default="5m", metavar="TIME", help="priority: how long a session stays active (5m)"
    )
    parser.add_argument(
        "--prefill-rate",
        type=float,
        metavar="TOKENS",
        help="prompt tokens that a node computes per second; needed for latencies",
    )
    add_output_options(parser, "the rows")
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.settings:
        return twin.run(args)
    of = subject(args)
    if args.curve:
        return curve.run(of, args)
    rows = replay_plan(of, _plan(args, of))
    base = base_of(rows, of.today)
    worths = [worth(row, base, len(of.accesses), args.prefill_rate) for row in rows]

    def show(console: Console) -> None:
        head(of, console)
        print_table(_table(rows, worths, base), console)
        _foot(of, rows, base, args, console)

    emit(PrintedDocument("Predicted hit rates", show, lambda: _json(rows, worths, of)), args.output)
    return 0


def _plan(args: argparse.Namespace, of: Lookups) -> ReplayPlan:
    if args.capacity is None and of.today is None:
        raise UsageError(
            "choose capacities: --capacity 10000,3000000t,inf, or --today SIZE, which replays 1x, 2x and inf of it"
        )
    if args.prefill_rate is not None and not 0 < args.prefill_rate < 1e9:
        raise UsageError(f"--prefill-rate {args.prefill_rate:g}: write prompt tokens a second, above 0")
    capacities = [parse_capacity(text, of) for text in (args.capacity or "1x,2x,inf").split(",")]
    routings, policies = _names(args.routing, ROUTINGS, "--routing"), _names(args.policy, POLICIES, "--policy")
    if len(capacities) * len(routings) * len(policies) > MAX_ROWS:
        raise UsageError(f"this gives more than {MAX_ROWS} rows: use fewer capacities, routings or policies at once")
    try:
        return ReplayPlan(
            capacities=tuple(dict.fromkeys(capacities)),
            nodes=args.nodes,
            routings=routings,
            policies=policies,
            rate=args.sample,
            seed=args.seed,
            host_blocks=0
            if args.host_tier is None
            else parse_size(args.host_tier, of.accesses.block_size, "--host-tier"),
            horizon=parse_duration(args.horizon, "--horizon"),
            prefill_rate=args.prefill_rate,
        )
    except ValueError as error:
        raise UsageError(f"--nodes: {error}") from error


def _names(text: str, known: Sequence[Name], option: str) -> tuple[Name, ...]:
    chosen = dict.fromkeys(name.strip() for name in text.split(","))
    for name in chosen:
        if name not in known:
            raise UsageError(f"{option} {name}: write some of {', '.join(known)}")
    return tuple(name for name in chosen if name in known)  # type: ignore[misc]


def _json(rows: Sequence[ReplayRow], worths: Sequence[Worth], of: Lookups) -> str:
    told = [
        {
            name: _rounded(value)
            for name, value in (
                asdict(row) | {"observed": of.accesses.observed} | trace_document(of) | asdict(gain)
            ).items()
        }
        for row, gain in zip(rows, worths, strict=True)
    ]
    return "[\n" + ",\n".join(json.dumps(row) for row in told) + "\n]"


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _table(rows: Sequence[ReplayRow], worths: Sequence[Worth], base: ReplayRow) -> Table:
    sampled, host = any(row.sample_rate < 1 for row in rows), any(row.host_token_hit_rate is not None for row in rows)
    timed = any(gain.seconds_saved is not None for gain in worths)
    columns: list[tuple[str, bool, Callable[[ReplayRow, Worth], str]]] = [
        ("routing", rows[0].nodes > 1, lambda row, _: row.routing),
        ("policy", True, lambda row, _: row.policy),
        ("blocks", True, lambda row, _: "endless" if row.capacity_blocks is None else f"{row.capacity_blocks:,}"),
        ("hit", True, lambda row, _: f"{row.token_hit_rate:.2%}"),
        ("±", sampled, lambda row, _: f"{row.error:.2%}"),
        ("in host", host, lambda row, _: f"{row.host_token_hit_rate or 0:.2%}"),
        ("to prefill", True, lambda row, _: short(row.prefill_tokens)),
        ("saved", len(rows) > 1, lambda row, gain: "base" if row is base else _change(gain.prefill_saved)),
        ("seconds", timed, lambda _, gain: f"{gain.seconds_saved or 0:+,.0f}"),
        ("TTFT", timed, lambda _, gain: f"{1000 * (gain.ttft_change or 0):+,.0f} ms"),
        ("busiest", rows[0].nodes > 1, lambda row, _: f"{row.load_max_over_mean:.2f}"),
    ]
    shown = [(title, cell) for title, wanted, cell in columns if wanted]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title, _ in shown:
        table.add_column(title, justify="left" if title in ("routing", "policy") else "right", no_wrap=True)
    for row, gain in zip(rows, worths, strict=True):
        style = "bold" if row is base else ""
        table.add_row(*(cell(row, gain) for _, cell in shown), style=style)
    return table


def _foot(of: Lookups, rows: Sequence[ReplayRow], base: ReplayRow, args: argparse.Namespace, console: Console) -> None:
    notes = ["hit: share of prompt tokens; blocks: per node"]
    if base.nodes > 1:
        notes.append("busiest: prompt tokens sent to the busiest node, divided by the mean of all")
    if len(rows) > 1:
        notes.append("saved: the share of the base's prefill work, and of its GPU-hours, that is no longer needed")
    if args.prefill_rate is not None:
        notes.append("seconds saved and mean TTFT count prefill only; shorter queues save more")
    if args.sample < 1:
        notes.append("±: 95% interval of the sampling error")
    if of.guesses_sessions(rows):
        notes.append(
            "sessions are guessed from how prompts begin: results of sticky, prefix and priority may be several "
            "points too high"
        )
    if any(row.routing == "pooled" for row in rows) and base.nodes > 1:
        notes.append(f"pooled: the memory of all {base.nodes} nodes in one cache")
    console.print()
    for note in notes:
        print_hanging(note, console, 2, "dim")


def _change(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"

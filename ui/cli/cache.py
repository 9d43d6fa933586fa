"""`kvitals cache`: what the cache holds and for whom, what was thrown away and wanted again, and who paid for whom."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvitals.app.cache import CacheReport, of_agent, of_engines, of_recording
from kvitals.app.errors import UsageError
from kvitals.rules.loader import Knowledge
from kvitals.ui.cascade_text import BEFORE, STAGE_WORDS, cascade_sentences, cascade_until, tenant_name
from kvitals.ui.cli.common import (
    EXIT_FINDINGS,
    EXIT_HEALTHY,
    EXIT_UNKNOWN,
    add_judging_options,
    agent_of,
    configuration,
    knowledge,
    parse_duration,
    setup,
    status_console,
)
from kvitals.ui.cli.narrow import bar_columns, columns_that_fit, print_hanging, print_to_copy
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit
from kvitals.ui.cli.render import moment
from kvitals.ui.formats import plain, seconds, short

WIDTH = 32
LABEL = 12
"""Columns of a line's name."""
DISPENSABLE = (7, 3, 1)
"""Columns of the table of tenants that a narrow terminal leaves out: holds, could find, looked up."""
MOST_CASCADES = 3
MOST_TENANTS = 12
MATRIX = 6
PURPOSES = {"pinned": ("█", "green"), "hot": ("▓", "cyan"), "cold": ("░", "dim"), "offloaded": ("▒", "blue")}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cache",
        description="Residency, tenants, blame, reuse and eviction cascades, from an engine's KV events.",
    )
    parser.add_argument("source", nargs="?", default="", metavar="URL|FILE", help="an agent, an engine or a recording")
    parser.add_argument("--window", default="15s", metavar="TIME", help="time to listen to a live engine (15s)")
    add_output_options(parser, "the report and the cascades")
    add_judging_options(parser)
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    parse_duration(args.window, "--window")  # wrong ones are refused whatever the source is
    source = args.source or agent_of(configuration(args))
    known = _known(source, args)

    def show_all(console: Console) -> None:
        console.print(Text(source, style="bold"))
        for note in known.notes:
            console.print(Text(f"  {plain(note)}", style="dim"))
        if known.cache.get("engines"):
            _show(known, source, console)
        else:
            _switch_on(knowledge(args.rules), console)

    def encode() -> str:
        return json.dumps({"cache": known.cache, "cascades": known.cascades})

    emit(PrintedDocument("KV cache", show_all, encode), args.output)
    if not known.cache.get("engines"):
        return EXIT_UNKNOWN
    return EXIT_FINDINGS if _open(known) else EXIT_HEALTHY


def _show(known: CacheReport, source: str, console: Console) -> None:
    try:
        show(known, console)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{source} reports data that this version cannot read: use the agent's version of kvitals"
        ) from error


def show(known: CacheReport, console: Console) -> None:
    """Print all of it: the answer first."""
    console.print(_headline(known))
    for engine in known.cache["engines"]:
        console.print()
        _engine(engine, console)
        mine = [one for one in known.cascades.get("cascades", []) if one["engine"] == engine["engine"]]
        for cascade in mine[:MOST_CASCADES]:
            console.print()
            _cascade(cascade, known.names, console)
        if len(mine) > MOST_CASCADES:
            console.print(Text(f"  {len(mine) - MOST_CASCADES} earlier cascades: --json", style="dim"))
        _curve(engine, console)
        _blame(engine, known.names, console)
    _tenants(known, console)


def _known(source: str, args: argparse.Namespace) -> CacheReport:
    if "://" not in source:
        if not Path(source).exists():
            raise UsageError(f"{source}: no such file; give a recording, or the URL of an agent or an engine")
        return of_recording(Path(source), setup(args))
    found = of_agent(source)
    if found is not None:
        return found
    if not args.source:
        raise UsageError(
            f"no agent answers at {source}: start one with `kvitals run`, or give an engine or a recording"
        )
    with status_console().status(f"listening for {args.window}"):
        return asyncio.run(of_engines(setup(args), [source], parse_duration(args.window, "--window")))


def _open(known: CacheReport) -> list[dict[str, Any]]:
    return [one for one in known.cascades.get("cascades", []) if one["state"] == "open"]


def _headline(known: CacheReport) -> Text:
    opened, all_ = _open(known), known.cascades.get("cascades", [])
    if opened:
        worst = max(opened, key=lambda one: one["stage"])
        who = _who(worst.get("blamed"), known.names)
        return Text(f"✗ Eviction cascade on {worst['engine']}, stage {worst['stage']} of 5{who}.", style="bold red")
    states = {one["state"] for one in known.cascades.get("engines", [])}
    lost = sum(engine["refaulted_tokens"] for engine in known.cache["engines"])
    if all_:
        last = all_[0]
        who = _who(last.get("blamed"), known.names)
        return Text(
            f"! No cascade now; the last one ended {_clock(last['ended'])} at stage {last['stage']} of 5{who}.",
            style="bold yellow",
        )
    if "unknown" in states:
        return Text("? Too little of the cache is observed yet to calculate losses.", style="bold yellow")
    if lost:
        return Text(f"✓ No cascade; {short(lost)} tokens were evicted and recomputed.", style="bold green")
    return Text("✓ No evicted block was recomputed.", style="bold green")


def _who(blamed: Mapping[str, Any] | None, names: Mapping[str, str]) -> str:
    return f", {blamed['share']:.0%} of it by {tenant_name(blamed['tenant'], names)}" if blamed else ""


def _engine(engine: Mapping[str, Any], console: Console) -> None:
    confidence, observed = engine["confidence"], engine["observed"]
    looks = sum(engine["accesses"].values())
    untold = sum(engine["unobserved"].values())
    console.print(
        Text(f"{plain(engine['engine'])}  ", style="bold")
        + Text(
            f"observed {_percent(observed)} of lookups · confidence {_percent(confidence)} · {looks:,} lookups"
            + (f", {untold:,} requests without a known lookup" if untold else ""),
            style="dim" if observed is not None and observed > 0.9 and confidence == 1 else "yellow",
        )
    )
    held, size = engine["resident_tokens"], engine["block_tokens"]
    pool = (engine["pool_blocks"] or 0) * size
    total = pool or sum(held.values()) or 1
    bar = Text("  held      ")
    columns = bar_columns(console, beside=46, most=WIDTH)
    for purpose, (mark, style) in PURPOSES.items():
        if purpose != "offloaded":
            bar.append(mark * round(columns * held.get(purpose, 0) / total), style=style)
    fill = f"{engine['live_blocks'] / engine['pool_blocks']:.0%} of {engine['pool_blocks']:,} blocks" if pool else ""
    console.print(bar.append(f"  {fill or 'size unknown'}, {short(pool or total)} tokens"))
    parts = [f"{PURPOSES[p][0]} {p} {short(held[p])}" for p in PURPOSES if p in held]
    print_hanging(f"            {' · '.join(parts)}", console, LABEL, "dim")
    looked, hit, lost = engine["lookup_tokens"], engine["hit_tokens"], engine["refaulted_tokens"]
    missed = looked - hit
    line = Text(
        f"  found     {_share(hit, looked)} of {short(looked)} prompt tokens since the start; evicted and recomputed: "
    )
    line.append(f"{short(lost)}", style="red" if missed and lost > 0.1 * missed else "")
    line.append(f", {_share(lost, missed)} of the computed tokens" if missed > 0 else "")
    print_hanging(line, console, LABEL)


def _cascade(one: Mapping[str, Any], names: Mapping[str, str], console: Console) -> None:
    began = one["began"]
    span = max(cascade_until(one) - began, 1.0)
    state = {"open": "still open", "cut": "ended early: the cache was emptied or events stopped"}.get(one["state"], "")
    head = Text(f"  CASCADE  stage {one['stage']} of 5  ", style="bold")
    head.append(f"{moment(began)}, {seconds(span)}{f'; {state}' if state else ''}", style="" if not state else "yellow")
    print_hanging(head, console, 11)
    columns = bar_columns(console, beside=50, most=WIDTH)
    reached = {onset["stage"]: onset for onset in one["stages"]}
    for stage, (name, what) in STAGE_WORDS.items():
        onset = reached.get(stage)
        line = Text(f"    {stage} {name:<11}")
        if onset is None:
            known = stage > 1 or one["pressure_known"]
            line.append(
                f"{'·' * columns}  {'not reached' if stage > one['stage'] else '—' if known else 'unknown'}", "dim"
            )
            print_hanging(line, console, columns + 19)
            continue
        start = min(round(columns * (onset["began"] - began) / span), columns - 1)
        line.append("·" * start, style="dim").append("█" * (columns - start), style="red" if stage > 2 else "yellow")
        line.append(f"  +{onset['began'] - began:.0f} s  {what}{BEFORE if onset['before'] else ''}")
        print_hanging(line, console, columns + 25)
    for sentence in cascade_sentences(one, names):
        print_hanging(f"    {sentence}", console, LABEL + 2)


def _curve(engine: Mapping[str, Any], console: Console) -> None:
    curve, pool = engine["curve"], engine["pool_blocks"]
    console.print()
    if curve is None:
        console.print(Text("  REUSE     too few lookups yet for a curve", style="dim"))
        return
    console.print(Text("  REUSE     tokens found by size of the cache", style="bold"))
    columns = bar_columns(console, beside=40, most=WIDTH)
    sizes, rates, errors = curve["capacity_blocks"], curve["token_hit_rate"], curve["error"]
    top = max(max(rates), 1e-9)
    wanted = sorted({round(times * pool) for times in (0.5, 1, 2, 4, 8)}) if pool else sizes[:: max(1, len(sizes) // 6)]
    for size in wanted:
        if size not in sizes:  # beyond the curve
            continue
        at = sizes.index(size)
        line = Text(f"    {size:>12,}  ")
        line.append("█" * round(columns * rates[at] / top), style="bold" if size == pool else "cyan")
        line.append(f" {rates[at]:.1%} ± {errors[at]:.1%}")
        console.print(line.append("  today", style="bold") if size == pool else line)


def _blame(engine: Mapping[str, Any], names: Mapping[str, str], console: Console) -> None:
    cells = {(cell["tenant"], cell["by"]): cell["tokens"] for cell in engine["blame"]["tokens"]}
    if not cells:
        return
    rows = _largest(cells, 0)
    columns = _largest(cells, 1)
    known = engine["blame"]["known"]
    console.print()
    title = Text("  WHO PAID FOR WHOM", style="bold")
    title.append(
        f"  tokens that the tenant of a row lost to blocks of the tenant of a column; both known for {_percent(known)}",
        style="not bold dim",
    )
    print_hanging(title, console, 4)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("    lost by", no_wrap=True)
    for by in columns:
        table.add_column(tenant_name(by, names), justify="right", no_wrap=True)
    most = max(cells.values())
    for victim in rows:
        figures = [cells.get((victim, by), 0.0) for by in columns]
        table.add_row(
            f"    {tenant_name(victim, names)}",
            *(Text(short(f) if f else "·", style="bold red" if f > most / 4 else "" if f else "dim") for f in figures),
        )
    shown, left_out = columns_that_fit(table, range(len(columns), 1, -1), console)
    console.print(shown)
    if left_out:
        console.print(Text(f"    and {left_out} tenants more: -o wide", style="dim"))


def _largest(cells: Mapping[tuple[str, str], float], side: int) -> list[str]:
    sums: dict[str, float] = {}
    for pair, tokens in cells.items():
        sums[pair[side]] = sums.get(pair[side], 0.0) + tokens
    return sorted(sums, key=lambda name: -sums[name])[:MATRIX]


def _tenants(known: CacheReport, console: Console) -> None:
    cells = [cell for engine in known.cache["engines"] for cell in engine["blame"]["tokens"]]
    cost: dict[str, float] = {}
    for cell in cells:
        if cell["by"] != cell["tenant"]:
            cost[cell["by"]] = cost.get(cell["by"], 0.0) + cell["tokens"]
    tenants = {name: sums for name, sums in known.cache["tenants"].items() if sums["lookup_tokens"]}
    if not tenants:
        return
    console.print()
    console.print(Text("TENANTS", style="bold") + Text("  prompt tokens", style="dim"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("tenant", "looked up", "found", "could find", "of that", "lost", "cost others", "holds"):
        table.add_column(title, justify="left" if title == "tenant" else "right", no_wrap=True)
    ordered = sorted(tenants, key=lambda name: -tenants[name]["lookup_tokens"])
    for name in ordered[:MOST_TENANTS]:
        sums = tenants[name]
        looked, could = sums["lookup_tokens"], sums["attainable_tokens"]
        efficiency = sums["hit_tokens"] / could if could else None
        others = cost.get(name, 0.0)
        table.add_row(
            tenant_name(name, known.names),
            short(looked),
            _share(sums["hit_tokens"], looked),
            _share(could, looked) if could is not None else "unknown",
            Text(
                "unknown" if efficiency is None else "all" if efficiency >= 0.995 else f"{efficiency:.0%}",
                style="red" if efficiency is not None and efficiency < 0.5 else "",
            ),
            Text(short(sums["refaulted_tokens"]), style="red" if sums["refaulted_tokens"] > 0.1 * looked else ""),
            Text(short(others), style="red" if others > 0.1 * looked else ""),
            short(sums["resident_tokens"]),
        )
    console.print(columns_that_fit(table, DISPENSABLE, console)[0])
    if len(ordered) > MOST_TENANTS:
        console.print(Text(f"{len(ordered) - MOST_TENANTS} more tenants: --json", style="dim"))


def _switch_on(known: Knowledge, console: Console) -> None:
    console.print("No engine reports KV events, so the contents of the cache are unknown.")
    console.print("A flag enables KV events, after a restart of the engine (docs/kv-events.md):")
    for setting in known.levers["kv-events-replay"].settings:
        print_to_copy(f"  {setting.system:<8}{setting.flag} {' '.join(setting.value.split())}", console)


def _clock(t: float) -> str:
    return f"{datetime.fromtimestamp(t, UTC):%H:%M:%S} UTC"


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share:.0%}"


def _share(part: float | None, whole: float) -> str:
    return "—" if part is None or whole <= 0 else f"{part / whole:.0%}"

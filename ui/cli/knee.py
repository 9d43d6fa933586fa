"""`kvitals knee`: throughput and latency against load, where the knee is and how far it is off, and what binds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from kvitals.agent import objectives as promised
from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Setup
from kvitals.app.timeseries_sources import TimeseriesSource
from kvitals.diagnoser import steps
from kvitals.diagnoser.binding import UNKNOWN, Binding, bindings
from kvitals.diagnoser.change_effect import ConfigurationChange, latest_changes
from kvitals.diagnoser.operating_point import (
    NOW_SECONDS,
    Bin,
    BoundedEstimate,
    Limit,
    OperatingPoint,
    operating_point,
    under_configuration,
)
from kvitals.diagnoser.steps import Steps, gather, step_of, together
from kvitals.diagnoser.text import render
from kvitals.series.types import Labels
from kvitals.ui.cli import audit, prometheus
from kvitals.ui.cli.common import (
    add_judging_options,
    json_text,
    parse_duration,
    setup,
)
from kvitals.ui.cli.course import add_source, course, with_entity
from kvitals.ui.cli.narrow import bar_columns, print_hanging
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit
from kvitals.ui.formats import bar, moment

BINDING_SECONDS = 3600.0
MAX_STEPS = 2_000_000
"""Of all engines together: some 460 engines for a day of samples every 5 s. 2,000 engines (8.6 million) took 2.4 GB."""

WIDTH = 24
FIGURES = 50
"""Columns beside the bar: load, rate, TTFT, ITL."""
_BINDS = {
    "fault": "down or wedged",
    "kv": "KV blocks",
    "slots": "slots",
    "token_budget": "the token budget of a step",
    "deferral": "deferred requests (adapters, KV in transfer)",
    "room": "slots or KV blocks (unknown which)",
    "arrival": "no constraint (the engine keeps up with the load)",
    "unknown": "unknown",
}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "knee",
        description="Throughput and latency over concurrency, for each engine and pool, from recorded data.",
    )
    add_source(parser)
    parser.add_argument("--step", metavar="TIME", help="seconds per point (default: the interval of the rows)")
    parser.add_argument(
        "--audit",
        action="store_true",
        help="the scaling-signal audit: which signals moved before TTFT p99 exceeded its objective, how long "
        "before, and whether an engine starts in that time",
    )
    add_output_options(parser, "every number")
    add_judging_options(parser)
    prometheus.add_options(parser, "--from and --to")
    parser.set_defaults(do=do)


def do(args: argparse.Namespace) -> int:
    if args.audit:
        return audit.run(args)
    chosen = setup(args)
    with course(args, chosen) as of:
        found = points(of, chosen, args)
        since = max(of.start, of.end - BINDING_SECONDS)
        bound = {one.entity: one for one in bindings(of.ask, since, of.end, of.gap)}
    if not found:
        raise UsageError(f"{of.name} has no engine that reports its running requests")

    def show_all(console: Console) -> None:
        console.print(f"{of.name}: {moment(of.start)} to {moment(of.end)}", style="dim")
        for point in found:
            console.print()
            show(point, bound.get(point.entity), console)

    def encode() -> str:
        return json_text([_document(point, bound.get(point.entity), of) for point in found])

    emit(PrintedDocument("Knee and headroom", show_all, encode), args.output)
    return 0


def points(of: TimeseriesSource, chosen: Setup, args: argparse.Namespace) -> list[OperatingPoint]:
    """The operating point of each engine, and of each pool of several."""
    step = parse_duration(args.step, "--step") if args.step else step_of(of.gap)
    if round(step / of.gap) < 2:
        raise UsageError(
            f"--step {args.step}: rows are {of.gap:g} s apart, so the step must be at least {2 * of.gap:g}s"
        )
    start, end = steps.whole_steps(of.start, of.end, step)
    engines, each = steps.engines(of.ask, of.end), round((end - start) / step)
    if engines * each > MAX_STEPS:
        raise UsageError(
            f"{engines:,} engines in {each:,} steps are more than {MAX_STEPS:,} steps: give a shorter time range with "
            "--from and --to, or a longer --step"
        )
    several = gather(of.ask, start, end, step)
    changed = latest_changes(of.ask, start, end, step)
    told = {} if args.slo else steps.objectives(of.ask, of.end)
    general = {one.name: one.seconds for one in promised.general(chosen.config, chosen.slo_sources)}

    def objectives(entity: Labels) -> dict[str, float]:
        return {name: told.get(entity, general).get(name, general[name]) for name in steps.OBJECTIVES}

    found = [_point(one, changed.get(one.entity), objectives(one.entity)) for one in several]
    for pool, members in _pools(several, steps.pools(of.ask, of.end)):
        last = max((changed[one.entity] for one in members if one.entity in changed), key=_first, default=None)
        found.append(_point(together(members, pool), last, objectives(members[0].entity)))
    return found


def _first(change: ConfigurationChange) -> float:
    return change.first


def _point(of: Steps, change: ConfigurationChange | None, objectives: dict[str, float]) -> OperatingPoint:
    """The operating point under the last configuration: an engine with other settings has another curve."""
    kept = of if change is None else steps.steps_after(of, change.first)
    return under_configuration(operating_point(kept, objectives), change)


def _pools(several: Sequence[Steps], pool_of: dict[Labels, Labels]) -> Iterator[tuple[Labels, list[Steps]]]:
    members: dict[Labels, list[Steps]] = {}
    for one in several:
        if one.entity in pool_of:
            members.setdefault(pool_of[one.entity], []).append(one)
    yield from ((pool, engines) for pool, engines in members.items() if len(engines) > 1)


@dataclass(frozen=True)
class _Mark:
    """A load that is pointed out in the chart."""

    load: float
    text: str


def show(point: OperatingPoint, bound: Binding | None, console: Console) -> None:
    """An operating point as a small chart and sentences."""
    title = point.entity.get("engine") or f"pool {point.entity.get('pool', '')}, {point.engines} engines"
    console.print(title, style="bold")
    for line in chart(point, console):
        console.print(line)
    if point.bins:
        console.print()
    for sentence in sentences(point, bound):
        print_hanging(f"  {sentence}", console, 4)
    if point.changed_at is not None:
        what = ", ".join(point.changed)
        when = moment(point.changed_at)
        text = f"  The configuration changed at {when}: {what}. Only steps after that change are counted."
        print_hanging(text, console, 4, "yellow")
    for missing in point.missing:
        print_hanging(f"  not known: {missing}.", console, 4, "yellow")


def chart(point: OperatingPoint, console: Console) -> list[Text]:
    """Throughput as a bar for each load, with the p99 of first tokens beside it. Marks go below their line where the
    terminal is too narrow for them."""
    rates = [_rate(one, point.unit) for one in point.bins]
    if not rates:
        return []
    top = max(rates)
    width = bar_columns(console, beside=FIGURES, most=WIDTH)
    lines = [
        Text(
            f"  {'at a time':>12}  {'':{width}}  {point.unit + '/s':>10}  {'TTFT p99':>9}  {'ITL p99':>9}", style="dim"
        )
    ]
    marks = _marks(point)
    for i, (one, rate) in enumerate(zip(point.bins, rates, strict=True)):
        here = [mark.text for mark in marks if _nearest(mark.load, point.bins) == i]
        line = Text(f"  {_load(one):>12}  ")
        line.append(f"{bar(rate / top, width):{width}}", style="cyan")
        line.append(f"  {rate:>10,.4g}  {_seconds(one.p99.get('ttft_p99')):>9}  {_seconds(one.p99.get('itl_p99')):>9}")
        marked = f"  {', '.join(here)}" if here else ""
        if line.cell_len + len(marked) <= console.width:
            lines.append(line.append(marked, style="bold"))
        else:
            lines += [line, Text(f"{'':14}↑{marked[1:]}", style="bold")]
    return lines


def _load(one: Bin) -> str:
    """The loads of a bin's steps: what is said of a load can be found in the chart."""
    low, high = f"{one.lowest:.1f}", f"{one.highest:.1f}"
    return low if low == high else f"{low} to {high}"


def _nearest(load: float, bins: Sequence[Bin]) -> int:
    """The line of the chart that a load is in, or closest to."""
    return min(range(len(bins)), key=lambda i: max(bins[i].lowest - load, load - bins[i].highest, 0.0))


def sentences(point: OperatingPoint, bound: Binding | None) -> Iterator[str]:
    """What the numbers mean."""
    if point.knee is not None:
        knee = point.knee
        yield (
            f"Knee at {_estimate(knee.concurrency)} requests at a time: one request alone makes {knee.alone:,.4g} "
            f"{point.unit}/s, all together at most {knee.most:,.4g}. At the knee, throughput is "
            f"{knee.there / knee.most:.0%} of that maximum."
        )
    if point.now is not None:
        where = ""
        if point.headroom is not None:
            where = f": {abs(point.headroom):.0%} {'below' if point.headroom >= 0 else 'beyond'} the knee"
        last = render(min(max(NOW_SECONDS, point.step), point.end - point.start), "seconds")
        yield f"Now {point.now:.1f} at a time, mean of the last {last}{where}."
    for limit in point.limits:
        if limit.concurrency is not None:
            yield _usable(limit)
    if point.littles_gap is not None:
        yield f"Little's law: rate times residence differs by {point.littles_gap:+.1%} from the counted requests."
    if point.burst is not None:
        yield f"Bursts: the busiest 1 % of steps of {point.step:g} s have {point.burst:.1f} times the mean arrivals."
    if bound is not None:
        shares = sorted(((share, name) for name, share in bound.known_shares.items() if share >= 0.005), reverse=True)
        told = ", ".join(f"{_BINDS[name]} {share:.0%}" for share, name in shares) or "not known"
        known = 1.0 - bound.shares.get(UNKNOWN, 0.0)
        of = f" (known for {known:.0%} of that time; shares of the known time)" if shares and known < 0.995 else ""
        yield f"Binding constraints in the last {render(bound.seconds, 'seconds')}{of}: {told}."


def _usable(limit: Limit) -> str:
    assert limit.concurrency is not None
    rates = [
        f"{value:,.4g} {unit}/s" for value, unit in ((limit.requests, "requests"), (limit.tokens, "tokens")) if value
    ]
    name = limit.objective.upper().replace("_P99", " p99")
    usable = f": usable are {' or '.join(rates)}" if rates else ""
    return f"{name} exceeds {_seconds(limit.seconds)} at {_estimate(limit.concurrency)} at a time (C_max){usable}."


def _marks(point: OperatingPoint) -> list[_Mark]:
    loads = [("knee", point.knee.concurrency.value)] if point.knee else []
    loads += [(_c_max(one), one.concurrency.value) for one in point.limits if one.concurrency is not None]
    loads += [("now", point.now)] if point.now is not None else []
    return [_Mark(load, f"{name} {load:.1f}") for name, load in loads]


def _c_max(limit: Limit) -> str:
    return f"C_max {limit.objective.removesuffix('_p99').upper()}"


def _estimate(of: BoundedEstimate) -> str:
    return f"{of.value:.1f} ({of.low:.1f} to {of.high:.1f})"


def _rate(one: Bin, unit: str) -> float:
    return (one.tokens if unit == "tokens" else one.requests) or 0.0


def _seconds(value: float | None) -> str:
    return "" if value is None else render(value, "seconds")


def _document(point: OperatingPoint, bound: Binding | None, of: TimeseriesSource) -> dict[str, Any]:
    binding = None
    if bound is not None:
        binding = {
            "seconds": bound.seconds,
            "shares": {name: round(share, 4) for name, share in bound.shares.items()},
            "slots": bound.slots,
            "slots_from": bound.slots_from,
        }
    return {**with_entity(point), "source": of.name, "binding": binding}

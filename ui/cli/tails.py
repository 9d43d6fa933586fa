"""What explains slow requests, for the terminal: by phase, whose they are, and whom they waited behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from kvitals.agent.requests.occupancy import OTHER, UNKNOWN
from kvitals.agent.requests.slow_tail import GROUPS, GroupValue, PhaseExcess, TailReport
from kvitals.agent.requests.slow_tail import IN_WORDS as PHASES_IN_WORDS
from kvitals.ui.cli.narrow import bar_columns, print_hanging
from kvitals.ui.formats import GROUP_WORDS, PHASE_STYLES, TIME_WORDS, plain, seconds

BAR_WIDTH = 48
FIGURES = 34
"""Columns beside a bar."""
NAME_WIDTH = 13
OFTENER, AMONG_SLOW = 1.2, 0.25
"""A value is shown that so many times as often as among all is among the slow ones, and that share of them has."""

LEAST = 0.005
"""Of a phase's share that is shown."""

SHOWN = 2
"""Values of a group, and tenants in front, that are shown."""


def show(reports: Iterable[TailReport], names: Mapping[str, str], console: Console) -> None:
    """What explains each of the two times' tails. `names`: of tenants, where they may be told."""
    for report in reports:
        for line in lines(report, names, bar_columns(console, FIGURES, BAR_WIDTH)):
            print_hanging(line, console, NAME_WIDTH + 4 if line.plain.startswith("  ") else 2)
        console.print()


def lines(report: TailReport, names: Mapping[str, str], columns: int = BAR_WIDTH) -> Iterable[Text]:
    """A report, a line at a time. columns: of a bar."""
    title = TIME_WORDS[report.of]
    if report.why_unknown or report.tail_mean is None or report.bulk_mean is None:
        yield Text(plain(f"Slow {title}: cause unknown, {report.why_unknown}"), style="dim")
        return
    dominant = report.dominant
    mostly = f", mostly {PHASES_IN_WORDS.get(dominant.name, dominant.name)}" if dominant is not None else ""
    head = Text(f"Slow {title}{mostly}: ", style="bold")
    head.append(f"{report.tail} of {report.requests} requests took {seconds(report.tail_mean)} on average,")
    yield head.append(f" the faster half {seconds(report.bulk_mean)}")
    yield Text(f"  {_which(report)}", style="dim")
    for phase in report.phases:
        if phase.share is None or abs(phase.share) >= LEAST:
            yield _phase(phase, columns)
    if report.queue_has_transfer:
        yield Text("  the queue phase may include KV transfer", style="dim")
    yield from _behind(report, names)
    for group in GROUPS:
        oftener = [value for value in report.groups.get(group, ()) if _is_telling(value)]
        for value in oftener[:SHOWN]:
            yield _group(group, value, report, names)


def _which(report: TailReport) -> str:
    """What makes a request one of the slow ones, and when they ended."""
    if report.by == "objective":
        which = f"above the objective, {seconds(report.threshold)}" if report.threshold else "above their objectives"
    else:
        which = f"the slowest 5 %, from {seconds(report.threshold)} on"
    start, end = (datetime.fromtimestamp(t, UTC) for t in (report.start, report.end))
    without = f"; for {report.without} other requests the time is unknown" if report.without else ""
    return f"{which}; ended {start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC{without}"


def _phase(phase: PhaseExcess, columns: int) -> Text:
    """By how much a phase took longer, and which part of the whole difference that is."""
    line = Text(f"  {plain(phase.name):<{NAME_WIDTH}}")
    if phase.seconds is None or phase.share is None:
        return line.append(f"{'unknown':>10}   known of {phase.known:.0%} of the slow ones", style="dim")
    sign = "+" if phase.seconds >= 0 else "-"
    line.append(f"{sign + seconds(abs(phase.seconds)):>10}   ")
    width = round(min(max(phase.share, 0.0), 1.0) * columns)
    line.append("█" * width, style=PHASE_STYLES.get(phase.name, ""))
    return line.append(" " * (columns - width) + f" {phase.share:4.0%}")


def _behind(report: TailReport, names: Mapping[str, str]) -> Iterable[Text]:
    if report.why_not_behind:
        yield _named("waited behind", plain(f"not known: {report.why_not_behind}"))
    if report.behind is None:
        return
    measure = "tokens held" if report.behind.measure == "token_seconds" else "time"
    told = [one for one in report.behind.occupants if one.tenant not in (UNKNOWN, OTHER)][:SHOWN]
    if not told:
        yield _named("waited behind", "requests without a tenant")
        return
    shares = ", ".join(f"{_tenant(one.tenant, names)} {one.share:.0%}" for one in told)
    own = f"; {report.behind.own:.0%} was their own tenant's" if report.behind.own is not None else ""
    yield _named("waited behind", f"{shares} of the {measure} meanwhile{own}")


def _group(group: str, value: GroupValue, report: TailReport, names: Mapping[str, str]) -> Text:
    told = _tenant(value.value, names) if group == "tenant" else plain(value.value)
    told += " tokens" if group == "prompt_tokens" else ""
    among_all = f"{value.all / report.requests:.0%} of all"
    return _named(GROUP_WORDS[group], f"{told}: {value.tail} of the slow ones ({value.share:.0%}), {among_all}")


def _named(name: str, text: str) -> Text:
    return Text(f"  {name:<{NAME_WIDTH}}  ", style="dim").append(text, style="default")


def _is_telling(value: GroupValue) -> bool:
    return value.value != UNKNOWN and value.lift >= OFTENER and value.share >= AMONG_SLOW


def _tenant(tenant: str, names: Mapping[str, str]) -> str:
    return plain(f"{tenant} ({names[tenant]})" if names.get(tenant, tenant) != tenant else tenant)

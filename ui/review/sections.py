"""What a review's documents have, one after the other: paragraphs, tables and charts, without a look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvitals.diagnoser.review.efficiency import BINDS, NAMES
from kvitals.diagnoser.review.result import LeverRow, ModelGroup, Review, ReviewIncident, TenantRow
from kvitals.diagnoser.review.words import (
    count,
    day,
    hours,
    lasting,
    moment,
    share,
    share_range,
    signed_count,
    span,
    usd,
)
from kvitals.ui.review import charts

TENANTS = 25


@dataclass(frozen=True)
class Text:
    """A paragraph. small: a note on how something is known."""

    text: str
    small: bool = False


@dataclass(frozen=True)
class DataTable:
    """text: of how many columns, from the left, are texts; the others are numbers. total: the last row is the sum."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    total: bool = False


@dataclass(frozen=True)
class Chart:
    """An SVG, and a sentence for those who do not see it."""

    svg: str
    caption: str


Block = Text | DataTable | Chart


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


def sections(review: Review) -> list[Section]:
    """In the order in which they are read."""
    made = (
        ("Where the GPU time went", _went),
        ("Day by day", _days),
        ("Against the best week", _compared),
        ("Levers, by money", _levers),
        ("Incidents", _incidents),
        ("By pool, model and hardware", _groups),
        ("Who pays", _tenants),
        ("Within the objective", _goodput),
        ("The cache", _cache),
        ("What changed", _changed),
        ("Prices, GPUs, and missing data", _basis),
        ("What others published", _published),
    )
    found = [Section(title, list(of(review))) for title, of in made]
    return [one for one in found if one.blocks]


def tiles(review: Review) -> list[tuple[str, str]]:
    """The few figures at the top: value, what it is."""
    total = review.total
    found = [(count(total.tokens_per_gpu_hour), "output tokens per GPU-hour")]
    if total.usd_per_million_output is not None:
        found.append((usd(total.usd_per_million_output), "a million output tokens"))
    found.append((hours(total.gpu_hours), f"GPU-hours{f', {usd(total.usd)}' if total.usd is not None else ''}"))
    ttft = next((one for one in review.goodput.objectives if one.name == "ttft_p99" and one.within is not None), None)
    if ttft is not None:
        found.append((share(ttft.within), "of first tokens in time"))
    wasted = sum(part.share for part in review.ledger if part.waste)
    found.append((share(wasted), "of GPU time idle or wasted"))
    return found


def _went(review: Review) -> Iterator[Block]:
    one = review.courses
    yield Chart(
        charts.stacked_bars(one.ends, review.step, one.parts),
        f"GPU-hours by use; each bar covers {lasting(review.step)} or more.",
    )
    rows = [
        (NAMES[part.part], part.what, hours(part.gpu_hours), share(part.share), usd(part.usd))
        for part in sorted(review.ledger, key=lambda part: -part.gpu_hours)
        if part.gpu_hours > 0
    ]
    all_ = sum(part.gpu_hours for part in review.ledger)
    total = ("all", "", hours(all_), share(1.0), usd(review.total.usd))
    yield DataTable(("part", "", "GPU-hours", "share", "cost"), [*rows, total], text=2, total=True)
    yield Text(
        "An engine runs many requests at once, and no metric attributes a kernel to a request. Busy time is "
        "divided: aborted requests by their number, prefill and decode by the requests' time in each, "
        "recomputed prefill by its share of the computed tokens, rejected drafts by their share of the decoded "
        "positions.",
        small=True,
    )
    trap = review.trap
    if trap.used is not None:
        nvml = f"; NVML's utilization reads {share(trap.gpu_utilization)}" if trap.gpu_utilization is not None else ""
        verdict = "Below 40 % GPUs look busy and do little work (utilization trap)." if trap.trapped else ""
        better = (
            f" At 70 %, a million output tokens would cost {usd(trap.usd_at_target)} instead of "
            f"{usd(review.total.usd_per_million_output)}."
            if trap.usd_at_target is not None and trap.used < 0.7
            else ""
        )
        yield Text(f"{share(trap.used)} of {trap.of} was used{nvml}. {verdict}{better}".strip())
        yield Text(trap.method, small=True)

    told = sorted(((value, name) for name, value in trap.binding.items() if value >= 0.005), reverse=True)
    if told:
        listed = ", ".join(f"{BINDS.get(name, name)} {share(value)}" for value, name in told)
        yield Text(f"Binding constraints by time: {listed}.")


def _days(review: Review) -> Iterator[Block]:
    one = review.courses
    yield Chart(
        charts.course(one.ends, review.step, one.tokens_per_gpu_hour, "Output tokens a GPU-hour"),
        "Output tokens a GPU-hour.",
    )
    if any(value is not None for value in one.ttft_within):
        yield Chart(
            charts.within(one.ends, review.step, one.ttft_within), "Share of first tokens within the objective."
        )
    if len(review.days) > 1:
        yield DataTable(
            ("day (UTC)", "what it was about", "GPU-hours", "tokens/GPU-hour", "in time", "idle", "wasted"),
            [
                (
                    day(one.start), one.said or "nothing in particular", hours(one.work.gpu_hours),
                    count(one.work.tokens_per_gpu_hour), share(one.ttft_within), share(one.idle_share),
                    share(one.wasted_share),
                )
                for one in review.days
            ],
            text=2,
        )  # fmt: skip


def _compared(review: Review) -> Iterator[Block]:
    one = review.compared
    if one.best is not None and one.before is not None and one.now is not None:
        factors = [(factor.what, factor.tokens_per_gpu_hour) for factor in one.factors]
        best = next(week for week in one.weeks if week.weeks == one.best)
        yield Chart(
            charts.change(one.before, one.now, factors),
            f"Output tokens per GPU-hour: the week of {day(best.start)} against this week, for the hours that "
            f"both have.",
        )
        rows = [
            (factor.what, signed_count(factor.tokens_per_gpu_hour), f"{100 * factor.share:+.1f} %")
            for factor in one.factors
        ]
        change = one.now - one.before
        rows.append(("all", signed_count(change), f"{100 * change / one.before:+.1f} %"))
        yield DataTable(("factor", "tokens/GPU-hour", "of then"), rows, total=True)
    if one.weeks:
        yield DataTable(
            ("week of", "note", "tokens/GPU-hour then", "now, same hours", "GPU-hours"),
            [
                (
                    day(week.start), week.why_not or ("the best" if week.weeks == one.best else "comparable"),
                    count(week.tokens_per_gpu_hour), count(week.now), hours(week.hours),
                )
                for week in one.weeks
            ],
            text=2,
        )  # fmt: skip
        yield Text(one.method, small=True)
    else:
        yield Text(f"Not known: {one.missing}.")


def _levers(review: Review) -> Iterator[Block]:
    if not review.levers:
        yield Text("No lever would save an amount of money that can be calculated.")
        return
    yield DataTable(
        ("lever", "why", "confidence, and how it is calculated", "GPU-hours", "money"),
        [_lever(one) for one in review.levers],
        text=3,
    )
    yield Text(
        "Rows overlap, so they do not add up. The money is for this time range, at the prices below.", small=True
    )


def _lever(one: LeverRow) -> tuple[str, str, str, str, str]:
    most = "up to " if one.at_most else ""
    name = f"{one.title} ({one.lever})" + (f": {one.setting}" if one.setting else "")
    if one.gpu_hours is None:
        return name, one.why, "not in money", "", ""
    priced = f"{most}{usd(one.usd)}" if one.usd is not None else "no price"
    return name, one.why, f"{one.confidence}: {one.method}", f"{most}{hours(one.gpu_hours)}", priced


def _incidents(review: Review) -> Iterator[Block]:
    one = review.incidents
    if one.missing:
        yield Text(f"Not known: {one.missing}.")
        return
    if not one.rows:
        yield Text(f"None, by the {one.source}.")
        return
    by_code: dict[tuple[str, str], list[ReviewIncident]] = {}
    for row in one.rows:
        by_code.setdefault((row.code, ", ".join(row.explained_by[:2])), []).append(row)
    yield DataTable(
        ("what", "where", "severity", "times", "longest", "detected after", "in time", "lost or late"),
        [_incident(rows, explained) for (_, explained), rows in by_code.items()],
        text=3,
    )
    more = f" {one.not_listed} more are not listed." if one.not_listed else ""
    yield Text(
        f"From the {one.source}.{more} Detected after: median time from the start of an incident to its "
        f"detection; rules wait before they fire. In time: TTFT within the objective during the incident. Lost "
        f"or late: the larger of two numbers of busy GPU-hours: those whose tokens were not generated, against "
        f"the same engines' busy hours without an incident, and those whose first tokens were late.",
        small=True,
    )


def _incident(rows: Sequence[ReviewIncident], explained: str) -> tuple[str, ...]:
    """One code on one entity or several."""
    first = rows[0]
    detected = sorted(row.detected for row in rows if row.detected is not None)
    within = [row.ttft_within for row in rows if row.ttft_within is not None]
    cost = sum(max(row.lost_gpu_hours or 0.0, row.late_gpu_hours or 0.0) for row in rows)
    return (
        f"{first.title} ({first.code}{f', explained by {explained}' if explained else ''})",
        first.entity + (f" and {len(rows) - 1} more" if len(rows) > 1 else ""),
        first.severity,
        str(sum(row.times for row in rows)),
        ("at least " if any(row.at_least for row in rows) else "")
        + lasting(max(end - start for row in rows for start, end in row.spans)),
        lasting(detected[len(detected) // 2]) if detected else "not known",
        share(min(within)) if within else "",
        hours(cost) if cost > 0 else "",
    )


def _groups(review: Review) -> Iterator[Block]:
    heads = {"pool": "pool", "model": "model", "tier": "hardware"}
    for kind, head in heads.items():
        several = [one for one in review.groups if one.kind == kind]
        if len(several) == 1 and several[0].name == "not told":
            continue
        rows = [_group(one) for one in sorted(several, key=lambda one: -one.work.gpu_hours)]
        yield DataTable(
            (head, "engines", "GPUs", "GPU-hours", "cost", "output tokens", "tokens/GPU-hour", "$/million", "busy",
             "in time"),
            rows,
        )  # fmt: skip


def _group(one: ModelGroup) -> tuple[str, ...]:
    work = one.work
    return (
        one.name, str(one.engines), f"{one.gpus:g}", hours(work.gpu_hours), usd(work.usd), count(work.output_tokens),
        count(work.tokens_per_gpu_hour), usd(work.usd_per_million_output), share(work.busy_share),
        share(one.ttft_within),
    )  # fmt: skip


def _tenants(review: Review) -> Iterator[Block]:
    one = review.chargeback
    if one.missing:
        yield Text(f"Not known: {one.missing}.")
        return
    rows = [_tenant(row) for row in one.rows[:TENANTS]]
    rest = one.rows[TENANTS:]
    if rest:
        rows.append(_tenant(_together(rest)))
    yield DataTable(
        (
            "tenant",
            "requests",
            "prompt tokens",
            "cached",
            "output tokens",
            "share",
            "GPU-hours",
            "tokens/GPU-hour",
            "cost",
        ),
        [*rows, _all_tenants(review)],
        total=True,
    )
    yield Text(
        "Tenants are counted by their requests' records, and all by the engines' counters. A record is complete some "
        "seconds after its request, and requests that no engine took have one.",
        small=True,
    )
    yield Text(one.method, small=True)


def _all_tenants(review: Review) -> tuple[str, ...]:
    """What was done for all of them, which is the work of the engines; the bill is that of the rows."""
    work, all_ = review.total, _together(review.chargeback.rows)
    found = share(review.cache.hit_ratio) if review.cache.hit_ratio is not None else ""
    return (
        "all", count(work.requests), count(work.prompt_tokens), found, count(work.output_tokens), *_tenant(all_)[5:7],
        count(work.tokens_per_gpu_hour), _tenant(all_)[8],
    )  # fmt: skip


def _together(rows: Sequence[TenantRow]) -> TenantRow:
    cents = [row.usd_cents for row in rows if row.usd_cents is not None]
    cached = [row.cached_tokens for row in rows if row.cached_tokens is not None]
    gpu_hours, output = sum(row.gpu_hours for row in rows), sum(row.output_tokens for row in rows)
    return TenantRow(
        tenant=f"{len(rows)} others",
        requests=sum(row.requests for row in rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(cached) if len(cached) == len(rows) else None,
        output_tokens=output,
        share=sum(row.share for row in rows),
        gpu_hours=gpu_hours,
        usd_cents=sum(cents) if len(cents) == len(rows) else None,
        tokens_per_gpu_hour=output / gpu_hours if gpu_hours > 0 else 0.0,
    )


def _tenant(row: TenantRow) -> tuple[str, ...]:
    found = (
        share(row.cached_tokens / row.prompt_tokens) if row.cached_tokens is not None and row.prompt_tokens > 0 else ""
    )
    cost = f"${row.usd_cents / 100:,.2f}" if row.usd_cents is not None else "no price"
    return (
        row.tenant, count(row.requests), count(row.prompt_tokens), found, count(row.output_tokens), share(row.share),
        hours(row.gpu_hours), count(row.tokens_per_gpu_hour), cost,
    )  # fmt: skip


def _goodput(review: Review) -> Iterator[Block]:
    one = review.goodput
    rows = [
        (
            objective.what, span(*objective.seconds), objective.source, count(objective.observations),
            share(objective.within), share_range(objective.bounds) or ("as stated" if objective.bounds else ""),
        )
        for objective in one.objectives
    ]  # fmt: skip
    yield DataTable(("", "objective", "said by", "observations", "in time", "true share"), rows, text=3)
    if one.tokens_per_gpu_hour is not None:
        yield Text(
            f"Goodput: {count(one.tokens_per_gpu_hour)} output tokens per GPU-hour were within the objectives, "
            f"{share(one.share)} of all."
        )
        yield Text(one.method, small=True)


def _cache(review: Review) -> Iterator[Block]:
    one = review.cache
    if one.hit_ratio is not None:
        saved = (
            f" Without these hits prefill would have taken {hours(one.saved_gpu_hours)} GPU-hours more"
            f"{f', {usd(one.saved_usd)}' if one.saved_usd is not None else ''}."
            if one.saved_gpu_hours is not None
            else ""
        )
        yield Text(f"{share(one.hit_ratio)} of prompt tokens were found in a cache.{saved}")
    if one.attainable is not None and one.attainable_gpu_hours is not None:
        money = f", {usd(one.attainable_usd)}" if one.attainable_usd is not None else ""
        yield Text(
            f"The block ledger observed {share(one.known_share)} of the lookups. Their hit rate is "
            f"{share(one.known_hit_ratio)}; caches without evictions would reach {share(one.attainable)}. That "
            f"would save"
            f" {hours(one.attainable_gpu_hours)} GPU-hours{money}."
        )
    for missing in one.missing:
        yield Text(f"Not known: {missing}.")
    if one.saved_gpu_hours is not None:
        yield Text(one.method, small=True)


def _changed(review: Review) -> Iterator[Block]:
    if not review.happened:
        yield Text("No change of a setting or version, no restart, and no added or removed engine was observed.")
        return
    yield DataTable(
        ("when (UTC)", "what", "where", ""),
        [(moment(one.t), one.kind, one.who, one.text) for one in review.happened],
        text=4,
    )
    if review.happened_not_listed:
        yield Text(f"{review.happened_not_listed} earlier events are not listed.", small=True)


def _basis(review: Review) -> Iterator[Block]:
    gpus, coverage = review.gpus, review.coverage
    yield DataTable(
        ("hardware", "source of the price", "as of", "GPU-hours", "$/GPU-hour", "span"),
        [
            (
                one.hardware, one.basis, one.as_of, hours(one.gpu_hours), usd(one.usd_per_hour),
                "" if one.low is None or one.low == one.high else f"{usd(one.low)} to {usd(one.high)}",
            )
            for one in review.prices
        ],
        text=3,
    )  # fmt: skip
    assumed = (
        f"; {gpus.assumed_engines} of {coverage.engines} engines do not report their GPUs; "
        f"{gpus.assumed_each:g} each is assumed"
        if gpus.assumed_engines
        else ", as NVML tells them"
    )
    power = (
        f" They used {count(gpus.energy_kwh)} kWh, {count(gpus.tokens_per_kwh or 0.0)} output tokens per kWh; "
        f"the prices here do not include electricity."
        if gpus.energy_kwh is not None
        else ""
    )
    yield Text(f"GPUs: {gpus.count:g}{assumed}.{power}")
    gaps = "; ".join(f"{moment(a)} to {moment(b)}" for a, b in coverage.gaps)
    yield Text(
        f"Observed: {share(coverage.seen_share)} of the time from {moment(coverage.asked_from)} UTC on; each "
        f"engine {share(coverage.engine_share)} of the time between its first and last scrape."
        + (f" Longest gaps: {gaps}." if gaps else "")
    )
    for one in review.unknown:
        yield Text(f"Not known: {one}.")


def _published(review: Review) -> Iterator[Block]:
    if not review.published:
        return
    yield DataTable(
        ("hardware", "model", "scenario and conditions", "source", "results", "tokens/GPU-hour (least, middle, most)"),
        [
            (
                one.hardware, one.model, f"{one.scenario}: {one.conditions}", one.source, str(one.results),
                ", ".join(count(value) for value in one.tokens_per_gpu_hour),
            )
            for one in review.published
        ],
        text=4,
    )  # fmt: skip
    yield Text(
        "For orientation only: these are other models, lengths and limits, tuned for a benchmark. kvitals "
        "calculated the median; it is not an official result of MLPerf.",
        small=True,
    )

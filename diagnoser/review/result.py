"""What a review says, as types: the JSON that is written, and all that a page of it shows. Whoever renders it computes
nothing. Money is in US dollars, null where no price is known; times are seconds since the epoch."""

from __future__ import annotations

from msgspec import Struct

VERSION = "1"


class ReviewCoverage(Struct, frozen=True, kw_only=True):
    """How much of the time was seen. Only what was seen is counted."""

    asked_from: float
    seen_share: float  # of the time that was asked for, in which at least one engine was watched
    engine_share: float  # of each engine's time between its first and last sight, in which it was watched
    engines: int
    gaps: list[tuple[float, float]]  # the longest times in which nobody watched anything


class Gpus(Struct, frozen=True, kw_only=True):
    """GPUs that the hours are of."""

    count: float  # of all engines that were seen
    assumed_engines: int  # engines that do not tell how many they have
    assumed_each: float
    energy_kwh: float | None
    tokens_per_kwh: float | None


class PriceUsed(Struct, frozen=True, kw_only=True):
    """What a GPU-hour of some hardware is taken to cost; low and high where there are several defaults."""

    hardware: str
    usd_per_hour: float | None
    low: float | None
    high: float | None
    basis: str
    as_of: str
    gpu_hours: float


class PaidWork(Struct, frozen=True, kw_only=True):
    """What was paid for and what came of it, of everything or of a group."""

    gpu_hours: float
    usd: float | None
    output_tokens: float
    prompt_tokens: float
    cached_tokens: float | None  # prompt tokens that a cache had
    requests: float
    busy_share: float | None
    tokens_per_gpu_hour: float
    usd_per_million_output: float | None
    usd_per_million_tokens: float | None  # of prompt and output together


class ModelGroup(Struct, frozen=True, kw_only=True):
    """One model on one kind of hardware in one pool, or all of one of these."""

    kind: str  # pool, model, tier
    name: str
    engines: int
    gpus: float
    work: PaidWork
    ttft_within: float | None


class TenantRow(Struct, frozen=True, kw_only=True):
    """What a tenant is charged. usd_cents add up to the total exactly. cached_tokens: of the prompt; null where no
    record of the tenant's requests has it."""

    tenant: str
    requests: float
    prompt_tokens: float
    cached_tokens: float | None
    output_tokens: float
    share: float
    gpu_hours: float
    usd_cents: int | None
    tokens_per_gpu_hour: float


class Chargeback(Struct, frozen=True, kw_only=True):
    rows: list[TenantRow]
    total_cents: int | None
    gpu_hours: float
    method: str
    missing: str  # why there is none


class GpuTimePart(Struct, frozen=True, kw_only=True):
    """Of the GPU-hours."""

    part: str
    what: str
    gpu_hours: float
    share: float
    usd: float | None
    waste: bool
    unknown: str  # why it can not be told


class WeekBefore(Struct, frozen=True, kw_only=True):
    """An earlier week, on the hours that both have."""

    weeks: int
    start: float
    tokens_per_gpu_hour: float
    now: float  # this week's on the same hours
    hours: float
    comparable: bool
    why_not: str


class Factor(Struct, frozen=True, kw_only=True):
    name: str
    what: str
    tokens_per_gpu_hour: float
    share: float  # of the rate before


class WeekComparison(Struct, frozen=True, kw_only=True):
    """This week against its own best comparable week. The factors add up to now - before."""

    weeks: list[WeekBefore]
    best: int | None  # weeks before
    before: float | None
    now: float | None
    factors: list[Factor]
    method: str
    missing: str


class ObjectiveShare(Struct, frozen=True, kw_only=True):
    """within: share of the observations that were within what was promised, interpolated in a bucket. bounds: between
    which shares the true one lies."""

    name: str
    what: str
    seconds: tuple[float, float]  # the strictest and the loosest of the engines
    source: str
    observations: float
    within: float | None
    bounds: tuple[float, float] | None


class Goodput(Struct, frozen=True, kw_only=True):
    objectives: list[ObjectiveShare]
    tokens_per_gpu_hour: float | None
    share: float | None
    method: str


class Trap(Struct, frozen=True, kw_only=True):
    """How much of what the hardware could do within the objective was used."""

    used: float | None
    of: str  # what `used` is a share of
    busy_share: float | None
    gpu_utilization: float | None  # as NVML has it
    trapped: bool | None
    usd_at_target: float | None  # a million output tokens at 70 % used
    binding: dict[str, float]  # what bounded progress, as a share of the engines' time; empty where nobody tells
    method: str


class CacheMoney(Struct, frozen=True, kw_only=True):
    hit_ratio: float | None
    saved_gpu_hours: float | None
    saved_usd: float | None
    known_share: float | None  # of prompt tokens whose look-ups the block ledger knows; the next two are of these
    known_hit_ratio: float | None
    attainable: float | None
    attainable_gpu_hours: float | None
    attainable_usd: float | None
    method: str
    missing: list[str]


class IncidentLever(Struct, frozen=True):
    lever: str
    title: str
    setting: str


class ReviewIncident(Struct, frozen=True, kw_only=True):
    """A finding of one entity, as often as it opened. detected: seconds from its beginning until it was told, the
    middle of those that are known. lost_gpu_hours: worth of tokens that were not made. late_gpu_hours: whose answers
    began too late, beyond those that usually do. Both of its engines' busy time in it, null where not known."""

    code: str
    title: str
    kind: str
    severity: str
    entity: str
    labels: dict[str, str]
    times: int
    spans: list[tuple[float, float]]
    seconds: float
    detected: float | None
    at_least: bool  # the beginning or the end of one of them is not in the time range, or was not seen
    open: bool  # at the end of the time range
    conclusion: str
    explains: list[str]
    explained_by: list[str]
    lost_gpu_hours: float | None
    late_gpu_hours: float | None
    ttft_within: float | None
    levers: list[IncidentLever]


class Incidents(Struct, frozen=True, kw_only=True):
    rows: list[ReviewIncident]
    not_listed: int
    detected: float | None  # the middle over all
    source: str
    missing: str


class LeverRow(Struct, frozen=True, kw_only=True):
    """What a lever could bring. Rows overlap: they do not add up."""

    lever: str
    title: str
    why: str
    setting: str
    gpu_hours: float | None
    usd: float | None
    at_most: bool
    confidence: str
    method: str
    does_not_fix: str
    codes: list[str]


class ReviewEvent(Struct, frozen=True):
    t: float
    kind: str
    who: str
    text: str


class Day(Struct, frozen=True, kw_only=True):
    start: float
    end: float
    work: PaidWork
    ttft_within: float | None
    idle_share: float | None
    wasted_share: float | None
    said: str


class Courses(Struct, frozen=True, kw_only=True):
    """Step by step, for charts. null where nothing was seen."""

    ends: list[float]
    gpu_hours: list[float | None]
    output_tokens: list[float | None]
    tokens_per_gpu_hour: list[float | None]
    ttft_within: list[float | None]
    parts: dict[str, list[float]]  # GPU-hours


class PublishedRate(Struct, frozen=True, kw_only=True):
    """What others published; for orientation, not a target."""

    hardware: str
    model: str
    scenario: str
    tokens_per_gpu_hour: tuple[float, float, float]  # least, middle, most
    results: int
    conditions: str
    source: str


class Review(Struct, frozen=True, kw_only=True):
    """The document of a time: totals, groups, parts of the GPU time, incidents, cost and levers by money."""

    version: str = VERSION
    made: float
    source: str
    start: float
    end: float
    step: float
    story: list[str]
    coverage: ReviewCoverage
    gpus: Gpus
    prices: list[PriceUsed]
    total: PaidWork
    groups: list[ModelGroup]
    days: list[Day]
    compared: WeekComparison
    goodput: Goodput
    trap: Trap
    ledger: list[GpuTimePart]
    cache: CacheMoney
    chargeback: Chargeback
    incidents: Incidents
    levers: list[LeverRow]
    happened: list[ReviewEvent]
    happened_not_listed: int
    published: list[PublishedRate]
    courses: Courses
    unknown: list[str]

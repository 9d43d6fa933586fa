"""Requests as families in the window: by tenant, by engine, and how stitching fares.

Tenants come without end, series must not. The tenants with most traffic have series of their own, all others together
are `other`. Who has series keeps them while there is traffic; one of the others takes the place of the least busy only
when it was clearly busier lately. What is counted stays counted: nothing moves from one series to another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvitals.agent.counter_writer import CounterRows
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.series_keys import Key, LabelSet, LabelsOf, entity_series
from kvitals.series.types import Labels
from kvitals.series.window import Window

GROUP = "requests"

OTHER = "other"
"""What series say in place of a tenant or engine beyond those that have their own."""

MAX_TENANTS = 50
MAX_ENGINES = 256
MAX_CANDIDATES = 500
"""Tenants without series whose traffic is counted, about."""

EPOCH_SECONDS = 300.0
"""How often the traffic of late is halved and places are given anew."""

IDLE_SECONDS = 3600.0
"""A tenant without traffic for so long gives up its series."""

CLEARLY = 2.0
"""How many times as busy a newcomer has to be."""

MAX_TEXT = 128

TTFT = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80)
ITL = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
E2E = (0.1, 0.25, 0.5, 1, 2, 3.5, 5, 7.5, 10, 20, 40, 60, 120, 300, 600)
QUEUE = (0.001, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 5, 10, 20, 40, 80)
PHASE = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 3.5, 5, 10, 20, 40, 80, 160)


@dataclass(frozen=True)
class Exemplar:
    """A request that fell into a bucket."""

    trace: str
    value: float
    t: float  # when the request ended, seconds since the epoch


class Histogram:
    """Counts by bucket, the last one without a bound, and for each the last trace."""

    __slots__ = ("_keys", "bounds", "counts", "last", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = tuple(map(float, bounds))  # which are compared in half the time that whole numbers take
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.last: list[tuple[str, float, float] | None] = [None] * (len(bounds) + 1)
        self._keys: list[Key] = []

    def observe(self, value: float, trace: str, t: float) -> None:
        """Count one value."""
        i = bisect_left(self.bounds, value)
        self.counts[i] += 1
        self.total += value
        if trace:
            self.last[i] = trace, value, t

    def samples(self) -> list[float]:
        """The buckets as Prometheus has them, then sum and count."""
        running, found = 0, []
        for count in self.counts:
            running += count
            found.append(float(running))
        return [*found, self.total, float(running)]

    def keys(self, family: str, labels: LabelSet) -> list[Key]:
        """Those of its samples' series, which are those that it was first asked for."""
        if not self._keys:
            names = self.names(family)
            self._keys = [(name, (*labels, ("le", le)) if le else labels) for name, le in names]
        return self._keys

    def names(self, family: str) -> list[tuple[str, str]]:
        """Name and `le` of each sample."""
        les = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return [*((f"{family}_bucket", le) for le in les), (f"{family}_sum", ""), (f"{family}_count", "")]


class _Counts:
    """Counts of requests by outcome and of their tokens; None: not told yet, which is no 0."""

    __slots__ = ("cached", "output", "prompt", "requests", "told")

    def __init__(self) -> None:
        self.requests: dict[str, float] = {}
        self.prompt: float | None = None
        self.output: float | None = None
        self.cached: float | None = None
        self.told: float | None = None  # prompt tokens where it was told how many of them were cached

    def add(self, record: RequestRecord, outcome: str) -> None:
        self.requests[outcome] = self.requests.get(outcome, 0.0) + 1.0
        prompt, output, cached = record.prompt_tokens, record.output_tokens, record.cached_tokens
        if prompt is not None:
            self.prompt = (self.prompt or 0.0) + prompt
            if cached is not None:  # of a prompt that is not known it is no share
                self.told = (self.told or 0.0) + prompt
                self.cached = (self.cached or 0.0) + cached
        if output is not None:
            self.output = (self.output or 0.0) + output


class _Tenant:
    """One tenant's numbers, or those of all others."""

    def __init__(self) -> None:
        self.counts: dict[str, _Counts] = {}  # by engine
        self.ttft, self.itl = Histogram(TTFT), Histogram(ITL)
        self.e2e, self.queue = Histogram(E2E), Histogram(QUEUE)
        self.recent = 0.0  # requests of late
        self.last = 0.0  # when the last one came

    def add(self, record: RequestRecord, engine: str, outcome: str, queue: float | None) -> None:
        counts = self.counts.get(engine)
        if counts is None:
            counts = self.counts[engine] = _Counts()
        counts.add(record, outcome)
        trace, end = record.trace, record.end
        if (ttft := record.ttft) is not None:
            self.ttft.observe(ttft, trace, end)
        if (itl := record.itl) is not None:
            self.itl.observe(itl, trace, end)
        if (e2e := record.e2e) is not None:
            self.e2e.observe(e2e, trace, end)
        if queue is not None:
            self.queue.observe(queue, trace, end)
        self.recent += 1.0
        if end > self.last:
            self.last = end

    def histograms(self) -> Iterable[tuple[str, Histogram]]:
        yield "kvitals_tenant_ttft_seconds", self.ttft
        yield "kvitals_tenant_itl_seconds", self.itl
        yield "kvitals_tenant_e2e_seconds", self.e2e
        yield "kvitals_tenant_queue_seconds", self.queue


class _Engine:
    """What the request side saw of one engine."""

    def __init__(self) -> None:
        self.counts: dict[str, _Counts] = {}  # by role
        self.phases: dict[str, Histogram] = {}
        self.handovers: dict[str, float] = {}  # by whether the traces of both sides are one


class RequestFamilies:
    """Counts records and writes them into the window, a row at most each second of the records' clock."""

    def __init__(
        self,
        window: Window,
        labels: Mapping[str, str],
        labels_of: LabelsOf,
        top: int = MAX_TENANTS,
    ) -> None:
        """`labels` are this node's; `labels_of` tells those of an engine that is watched."""
        self._rows = CounterRows(window, GROUP)
        self._named = entity_series(labels, labels_of)
        self._top = top
        self._tenants: dict[str, _Tenant] = {OTHER: _Tenant()}
        self._candidates: dict[str, float] = {}  # tenant without series -> requests of late
        self._engines: dict[str, _Engine] = {}
        self._stitched: dict[str, float] = {}
        # Sets that keep their order: sums over series then are the same to the digit whenever a recording is judged.
        self._dirty_tenants: dict[str, None] = {}
        self._dirty_engines: dict[str, None] = {}
        self._epoch: float | None = None

    def label(self, tenant: str) -> str:
        """Under which name a tenant has series."""
        return tenant if tenant in self._tenants else OTHER

    @property
    def tenants(self) -> Iterable[str]:
        """The tenants that have series of their own."""
        return self._tenants.keys() - {"", OTHER}

    def add(self, record: RequestRecord) -> None:
        """Count one request."""
        engines, tenant = record.engines, record.tenant
        engine = engines.get("unified") or engines.get("decode") or ""
        if engine not in self._engines:
            engine = self._engine_name(engine)
        outcome = record.outcome
        queue = self._add_engines(record, engine, outcome)
        if tenant not in self._tenants:
            tenant = self._place(tenant)
        self._tenants[tenant].add(record, engine, outcome, queue)
        self._dirty_tenants[tenant] = None
        state = "complete" if record.complete else "incomplete"
        self._stitched[state] = self._stitched.get(state, 0.0) + 1.0

    def due(self, t: float) -> bool:
        """Whether it is time for a row."""
        return self._rows.due(t)

    def row(self, t: float, opened: int, oldest: float | None, dropped: Mapping[str, int]) -> None:
        """Write a row. `opened`, `oldest`: requests that are open, and since when the first one is;
        `dropped`: parts that are in no request, by reason."""
        self._review(t)
        counts: dict[Key, float] = {}
        for name in self._dirty_tenants:
            self._say_tenant(name, counts)
        for name in self._dirty_engines:
            self._say_engine(name, counts)
        self._dirty_tenants.clear()
        self._dirty_engines.clear()
        for family, label, said in (
            ("kvitals_requests_stitched_total", "state", self._stitched),
            ("kvitals_request_parts_dropped_total", "reason", dropped),
        ):
            for value, count in said.items():
                counts[family, ((label, value),)] = float(count)
        gauges: dict[Key, float] = {
            ("kvitals_requests_open", ()): float(opened),
            ("kvitals_requests_open_age_seconds", ()): max(0.0, t - oldest) if oldest is not None else 0.0,
            ("kvitals_tenants", ()): float(len(self._tenants.keys() - {"", OTHER})),
        }
        self._rows.write(t, counts, gauges, self._named)

    def exemplars(self) -> Iterable[tuple[Labels, Exemplar]]:
        """For each bucket that has one, its series and the last request that fell into it."""
        for tenant, held in self._tenants.items():
            for family, histogram in held.histograms():
                yield from self._exemplars_of(histogram, family, _of_tenant(tenant))
        for engine, seen in self._engines.items():
            for phase, histogram in seen.phases.items():
                labels = ("engine", engine), ("phase", phase)
                yield from self._exemplars_of(histogram, "kvitals_request_phase_seconds", labels)

    def _exemplars_of(self, histogram: Histogram, family: str, labels: LabelSet) -> Iterable[tuple[Labels, Exemplar]]:
        for last, (name, le) in zip(histogram.last, histogram.names(family), strict=False):
            if last is not None:
                yield self._named((name, (*labels, ("le", le)))), Exemplar(*last)

    def _engine_name(self, name: str) -> str:
        name = name[:MAX_TEXT]
        return name if name in self._engines or len(self._engines) < MAX_ENGINES else OTHER

    def _add_engines(self, record: RequestRecord, engine: str, outcome: str) -> float | None:
        """Count it by engine. Returns its queue time."""
        own: _Engine | None = None
        for role, label in record.engines.items():
            if label == engine:
                seen = own = self._seen(engine)
            else:
                seen = self._seen(self._engine_name(label))
            counts = seen.counts.get(role)
            if counts is None:
                counts = seen.counts[role] = _Counts()
            counts.add(record, outcome)
        if not engine:
            return record.seconds("queue")
        if state := _handover(record):
            handovers = (own or self._seen(engine)).handovers
            handovers[state] = handovers.get(state, 0.0) + 1.0
        phases, trace, end, queue = (own or self._seen(engine)).phases, record.trace, record.end, None
        for phase in record.phases:
            name, seconds = phase.name, phase.seconds
            if seconds is None:
                continue
            if name == "queue":
                queue = seconds
            histogram = phases.get(name)
            if histogram is None:
                histogram = phases[name] = Histogram(PHASE)
            histogram.observe(seconds, trace, end)
        return queue

    def _seen(self, name: str) -> _Engine:
        seen = self._engines.get(name)
        if seen is None:
            seen = self._engines[name] = _Engine()
        self._dirty_engines[name] = None
        return seen

    def _place(self, tenant: str) -> str:
        """Under which name a tenant is counted."""
        tenant = tenant[:MAX_TEXT]
        if tenant in self._tenants:
            return tenant
        if not tenant or len(self._tenants.keys() - {"", OTHER}) < self._top:
            self._tenants[tenant] = _Tenant()
            return tenant
        if tenant not in self._candidates and len(self._candidates) >= MAX_CANDIDATES:
            # Misra and Gries: who comes often stays, however many come once.
            self._candidates = {name: count - 1.0 for name, count in self._candidates.items() if count > 1.0}
            return OTHER
        self._candidates[tenant] = self._candidates.get(tenant, 0.0) + 1.0
        return OTHER

    def _review(self, t: float) -> None:
        """Now and then, give places to those who have the traffic."""
        if self._epoch is None:
            self._epoch = t
        if 0 <= t - self._epoch < EPOCH_SECONDS:
            return
        self._epoch = t
        for name, held in list(self._tenants.items()):
            if name not in ("", OTHER) and t - held.last > IDLE_SECONDS:
                self._leave(name)
        busiest = sorted(self._candidates, key=self._candidates.__getitem__)
        while busiest:
            members = [name for name in self._tenants if name not in ("", OTHER)]
            weakest = min(members, key=lambda name: self._tenants[name].recent, default="")
            newcomer = busiest.pop()
            if len(members) >= self._top:
                if self._candidates[newcomer] <= CLEARLY * self._tenants[weakest].recent:
                    break
                self._leave(weakest)
            self._tenants[newcomer] = _Tenant()
            self._tenants[newcomer].recent, self._tenants[newcomer].last = self._candidates.pop(newcomer), t
        for held in self._tenants.values():
            held.recent /= 2.0
        self._candidates = {name: count / 2.0 for name, count in self._candidates.items() if count >= 1.0}

    def _leave(self, tenant: str) -> None:
        del self._tenants[tenant]
        self._dirty_tenants.pop(tenant, None)
        self._rows.end(("tenant", tenant))

    def _say_tenant(self, tenant: str, said: dict[Key, float]) -> None:
        held, mine = self._tenants[tenant], _of_tenant(tenant)
        for engine, counts in held.counts.items():
            labels = (*mine, ("engine", engine))
            for outcome, count in counts.requests.items():
                said["kvitals_tenant_requests_total", (*labels, ("outcome", outcome))] = count
            for family, tokens in (
                ("kvitals_tenant_prompt_tokens_total", counts.prompt),
                ("kvitals_tenant_output_tokens_total", counts.output),
                ("kvitals_tenant_cached_tokens_total", counts.cached),
                ("kvitals_tenant_cache_told_tokens_total", counts.told),
            ):
                if tokens is not None:
                    said[family, labels] = tokens
        for family, histogram in held.histograms():
            _say_histogram(histogram, family, mine, said)

    def _say_engine(self, engine: str, said: dict[Key, float]) -> None:
        seen, mine = self._engines[engine], ("engine", engine)
        for state, count in seen.handovers.items():
            said["kvitals_handover_traces_total", (mine, ("state", state))] = count
        for role, counts in seen.counts.items():
            labels = mine, ("role", role)
            for outcome, count in counts.requests.items():
                said["kvitals_observed_requests_total", (*labels, ("outcome", outcome))] = count
            if counts.prompt is not None:
                said["kvitals_observed_prompt_tokens_total", labels] = counts.prompt
            if counts.output is not None and role != "prefill":
                said["kvitals_observed_output_tokens_total", labels] = counts.output
        for phase, histogram in seen.phases.items():
            _say_histogram(histogram, "kvitals_request_phase_seconds", (mine, ("phase", phase)), said)


def _of_tenant(tenant: str) -> LabelSet:
    return (("tenant", tenant),)


def _say_histogram(histogram: Histogram, family: str, labels: LabelSet, said: dict[Key, float]) -> None:
    said.update(zip(histogram.keys(family, labels), histogram.samples(), strict=True))


def _handover(record: RequestRecord) -> str:
    """Whether a request with a prefill and a decode side has its engine spans in one trace (`shared`) or several
    (`broken`); empty where the spans of a side are missing."""
    if not record.engines.keys() >= {"prefill", "decode"}:
        return ""
    traces = [span.trace for span in record.spans if span.observer == "engine"]
    if len(traces) < len(record.engines):
        return ""
    return "shared" if len(set(traces)) == 1 else "broken"

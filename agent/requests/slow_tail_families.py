"""The tails of every engine, of each pool and of the node, now and then, as families and as reports to ask for.

tails = Tails(window, {"node": "n"}, labels_of)
tails.add(record)       # each request
tails.advance(t)        # looks when it is time
tails.reports           # the last ones
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from kvitals.agent.gauge_writer import GaugeRows
from kvitals.agent.requests.columns import RequestBlock, join_blocks, lay_out
from kvitals.agent.requests.occupancy import OTHER, UNKNOWN
from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import OFS, Objective, PrefillsBeside, Recent, TailReport
from kvitals.agent.series_keys import LabelsOf
from kvitals.series.slices import Steps, complete
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

GROUP = "tail"
WINDOW_SECONDS = 300.0
LOOK_SECONDS = 30.0
AROUND_SECONDS = 300.0
"""Requests that ended so long before the window may have stood in front of one of it."""

MAX_RECORDS = 20_000
"""Requests that are looked at, the last ones, and some more as blocks are whole."""

STEP = 2_000
"""How much is done at one go, in requests that are laid out, of which one takes about 4 us. With more to do a look goes
on with the next call: its length is that of what it counts, and so the same in a replay."""

CHUNK = 1_000  # requests that are laid out between two looks at what was done
JOINED = 0.15  # what it costs to put one that is laid out among the others
SCOPE, TIMED = 500.0, 0.05  # what it costs to explain a scope: as such, and for each request of it

MAX_ENGINES = 256
MAX_BEHIND = 5
"""Tenants that have a series of their own in front of a tail; the others are `other`."""

TenantLabel = Callable[[str], str]
Series = dict[Labels, float]


class Tails:
    """Explains tails and writes what was found into a window."""

    def __init__(
        self,
        window: Window,
        labels: Mapping[str, str],
        labels_of: LabelsOf,
        objective: Objective = lambda _: None,
        tenant_label: TenantLabel = lambda tenant: tenant,
    ) -> None:
        """`labels` are the node's, `labels_of` those of an engine that is watched; `tenant_label` says which tenants
        have series, by the name that those have."""
        self._labels = dict(labels)
        self._labels_of = labels_of
        self._objective = objective
        self._tenant_label = tenant_label
        self._rows = GaugeRows(window, GROUP)
        self._last = float("-inf")
        self._first = float("inf")  # the start of the first request
        self._came: deque[RequestRecord] = deque(maxlen=MAX_RECORDS)  # since the last look
        self._work: Iterator[float] = iter(())  # what is left of the look that was begun, each step with its cost
        self._blocks: deque[RequestBlock] = deque()  # those before, the oldest first
        self._laid = 0  # requests in them
        self.reports: list[TailReport] = []

    def add(self, record: RequestRecord) -> None:
        """Take a request. As many of the oldest go as the next look would leave out, or they stayed until then."""
        self._came.append(record)
        self._first = min(self._first, record.start)
        while self._blocks and self._laid + len(self._came) - len(self._blocks[0].records) >= MAX_RECORDS:
            self._leave()

    def advance(self, t: float) -> None:
        """If it is time, explain the tails of the window that ends at `t`, seconds since the epoch, or go on."""
        complete(self.advance_steps(t))

    def advance_steps(self, t: float) -> Steps[None]:
        """The same in steps."""
        if not 0 <= t - self._last < LOOK_SECONDS:
            self._last = t
            self._work = self._look(t, self._start(t))
        done = 0.0
        for cost in self._work:
            done += cost
            yield None
            if done >= STEP:
                return

    def flush(self, t: float) -> None:
        """Explain the tails of the window that ends at `t`, with every request that was added."""
        self._last = t
        self._work = iter(())
        for _ in self._look(t, self._start(t)):
            pass

    def _start(self, t: float) -> float:
        """Of the window that ends at `t`: not before the first request."""
        return max(t - WINDOW_SECONDS, min(self._first, t))

    def _look(self, t: float, start: float) -> Iterator[float]:
        blocks, left = self._blocks, len(self._came)
        while left > 0 and self._came:
            some = [self._came.popleft() for _ in range(min(left, CHUNK, len(self._came)))]
            blocks.append(lay_out(some))
            self._laid += len(some)
            left -= len(some)
            yield float(len(some))
        while blocks and blocks[0].until < start - AROUND_SECONDS:
            self._leave()
        recent = Recent(join_blocks(blocks, start - AROUND_SECONDS, t), start, t)
        yield (once := JOINED * self._laid)
        reports: list[TailReport] = []
        series: Series = {}
        for labels, scope, engines in self._scopes(recent):
            for of in OFS:
                reports.append(recent.explain(of, self._objective, engines, {**labels, "scope": scope}))
                series |= families(reports[-1], labels, scope, self._tenant_label)
            series |= _beside(recent.prefills_beside(engines), labels, scope)
            yield once + SCOPE + TIMED * reports[-1].requests
            once = 0.0  # what all scopes share is made for the first one
        self.reports = reports
        self._rows.write(t, series)

    def _leave(self) -> None:
        """Forget the oldest block."""
        self._laid -= len(self._blocks.popleft().records)

    def _scopes(self, recent: Recent) -> Iterable[tuple[dict[str, str], str, set[str] | None]]:
        """Each engine that is watched, each pool and the node, with its labels and its engines."""
        pools: dict[tuple[tuple[str, str], ...], set[str]] = {}
        for engine in recent.engines[:MAX_ENGINES]:
            labels = self._labels_of(engine)
            if labels is None:
                continue
            yield {**labels, "engine": engine}, "engine", {engine}
            if labels.get("pool"):
                pool = tuple((name, labels[name]) for name in ("cluster", "pool") if name in labels)
                pools.setdefault(pool, set()).add(engine)
        for pool, members in sorted(pools.items()):
            yield dict(pool), "pool", members
        if recent.records:
            yield self._labels, "node", None


def families(
    report: TailReport, labels: Mapping[str, str], scope: str, tenant_label: TenantLabel = lambda tenant: tenant
) -> Series:
    """What a report says, as series; nothing where it does not know. `labels` are those of what it is about."""
    if report.why_unknown or report.tail_mean is None or report.bulk_mean is None:
        return {}
    base = {**labels, "scope": scope, "of": report.of}

    def named(family: str, **more: str) -> Labels:
        return Labels({**base, **more, METRIC_NAME: family})

    found: Series = {
        named("kvitals_tail_requests", part="tail"): float(report.tail),
        named("kvitals_tail_requests", part="bulk"): float(report.bulk),
        named("kvitals_tail_excess_seconds"): report.tail_mean - report.bulk_mean,
    }
    for phase in report.phases:
        if phase.share is not None:
            found[named("kvitals_tail_phase_share", phase=phase.name)] = phase.share
    for group, values in report.groups.items():
        leading = next((one for one in values if one.value != UNKNOWN), None)
        if leading is not None:
            value = tenant_label(leading.value) if group == "tenant" else leading.value
            found[named("kvitals_tail_group_share", group=group, value=value)] = leading.share
            found[named("kvitals_tail_group_lift", group=group, value=value)] = leading.lift
    behind = report.behind
    if behind is not None:
        for i, occupant in enumerate(behind.occupants):
            tenant = occupant.tenant if i < MAX_BEHIND else OTHER
            tenant = tenant if tenant in (UNKNOWN, OTHER) else tenant_label(tenant)
            key = named("kvitals_tail_behind_share", tenant=tenant)
            found[key] = found.get(key, 0.0) + occupant.share
        if behind.own is not None:
            found[named("kvitals_tail_behind_own_share")] = behind.own
    return found


def _beside(found: PrefillsBeside | None, labels: Mapping[str, str], scope: str) -> Series:
    if found is None:
        return {}
    base = {**labels, "scope": scope, METRIC_NAME: "kvitals_tail_prefill_beside_share"}
    return {Labels({**base, "part": "tail"}): found.tail, Labels({**base, "part": "bulk"}): found.bulk}

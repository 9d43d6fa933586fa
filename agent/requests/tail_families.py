"""The tails of every engine, of each pool and of the node, now and then, as families and as reports to ask for.

tails = Tails(window, {"node": "n"}, labels_of)
tails.look(t, store.newest(MAX_RECORDS))     # does nothing while it is not time
tails.reports                                # the last ones
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.gauge_rows import GaugeRows
from agent.requests.occupancy import OTHER, UNKNOWN
from agent.requests.record import RequestRecord
from agent.requests.tail import OFS, Objective, PrefillsBeside, Recent, TailReport
from series.types import METRIC_NAME, Labels
from series.window import Window

GROUP = "tail"
WINDOW_SECONDS = 300.0
LOOK_SECONDS = 30.0
AROUND_SECONDS = 300.0
"""Requests that ended so long before the window may have stood in front of one of it."""

MAX_ENGINES = 256
MAX_BEHIND = 5
"""Tenants that have a series of their own in front of a tail; the others are `other`."""

LabelsOf = Callable[[str], Mapping[str, str] | None]
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
        self.reports: list[TailReport] = []

    def due(self, t: float) -> bool:
        """Whether it is time to look."""
        return not 0 <= t - self._last < LOOK_SECONDS

    def look(self, t: float, records: Iterable[RequestRecord]) -> None:
        """Explain the tails of the window that ends at `t`, seconds since the epoch, if it is time."""
        if not self.due(t):
            return
        self._last = t
        start = t - WINDOW_SECONDS
        recent = Recent((r for r in records if start - AROUND_SECONDS <= r.end <= t), start, t)
        self.reports = []
        series: Series = {}
        for labels, scope, engines in self._scopes(recent.records):
            for of in OFS:
                report = recent.explain(of, self._objective, engines, {**labels, "scope": scope})
                self.reports.append(report)
                series |= families(report, labels, scope, self._tenant_label)
            series |= _beside(recent.prefills_beside(engines), labels, scope)
        self._rows.write(t, series)

    def _scopes(self, records: Sequence[RequestRecord]) -> Iterable[tuple[dict[str, str], str, set[str] | None]]:
        """Each engine that is watched, each pool and the node, with its labels and its engines."""
        pools: dict[tuple[tuple[str, str], ...], set[str]] = {}
        engines = sorted({engine for record in records for engine in record.engines.values()})
        for engine in engines[:MAX_ENGINES]:
            labels = self._labels_of(engine)
            if labels is None:
                continue
            yield {**labels, "engine": engine}, "engine", {engine}
            if labels.get("pool"):
                pool = tuple((name, labels[name]) for name in ("cluster", "pool") if name in labels)
                pools.setdefault(pool, set()).add(engine)
        for pool, members in sorted(pools.items()):
            yield dict(pool), "pool", members
        if records:
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

"""Incidents of one entity that turn out to have one cause: they join, and one of them goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kvitals.app.notify import notice as notices
from kvitals.app.notify.notice import Notice
from kvitals.app.notify.notice_builder import Diagnosis, joined_notice
from kvitals.app.notify.queue import OpenIncident

MAX_INCIDENT_ALERTS = 1000
"""Alerts of one incident that are remembered, the newest. An older one that is repeated counts as new."""


def of_one_cause(several: Iterable[OpenIncident], found: Diagnosis) -> list[OpenIncident]:
    """Those of some incidents of one entity that a diagnosis gives one cause: their cause is its cause, explains it or
    is explained by it; or they have none, and it explains all of their alerts."""
    cause = found.cause
    if cause is None:
        return []
    reached = {cause.code, *found.explains}

    def has_it(one: OpenIncident) -> bool:
        if one.code:
            return one.code in reached or cause.code in one.explains
        return one.alert_codes <= reached

    return [one for one in several if has_it(one)]


def join(into: OpenIncident, several: Sequence[OpenIncident], now: float) -> tuple[OpenIncident, list[Notice]]:
    """The incident that goes on with the alerts of several others, and the last message about each of these."""
    for one in several:
        alerts = {**into.open, **one.open}
        into = msgspec.structs.replace(
            into,
            open=dict(list(alerts.items())[-MAX_INCIDENT_ALERTS:]),
            severity=notices.highest((into.severity, one.severity)),
            began=min(into.began, one.began),
            pool=into.pool or one.pool,
            engine=into.engine or one.engine,
            of_engines=into.of_engines or one.of_engines,
            waning=max(into.waning, one.waning),
        )
    return into, [joined_notice(one, into, now) for one in several]

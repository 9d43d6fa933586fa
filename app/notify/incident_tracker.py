"""From alerts and a diagnosis to what is told: each trouble once, again when it is worse or its cause is found, and
when it is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kvitals.app.notify import notice as notices
from kvitals.app.notify.finding_match import DiagnosisRequest, diagnosis_request, is_of_engine
from kvitals.app.notify.incoming import OURS, Alert, Message
from kvitals.app.notify.joining import MAX_INCIDENT_ALERTS, join, of_one_cause
from kvitals.app.notify.notice import Change, Link, Notice, NoticeAlert
from kvitals.app.notify.notice_builder import Diagnosis, digest_of, incident_title, notice_of, resolved_notice
from kvitals.app.notify.order import EntityKey, entity_key
from kvitals.app.notify.queue import OpenIncident
from kvitals.config import MuteTable
from kvitals.rules.finding import Finding

NEW_EPISODE_SECONDS = 60.0
"""An alert that began so much later than it is known to have begun was resolved in between."""

Diagnose = Callable[[DiagnosisRequest], Awaitable[Diagnosis]]


@dataclass
class SettledMessage:
    """What a message comes to."""

    incidents: dict[str, OpenIncident] = field(default_factory=dict)  # as they are now
    over: list[str] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    folded: int = 0  # alerts that were not told by themselves
    muted: int = 0  # alerts of rules that the configuration mutes


@dataclass(frozen=True)
class Rules:
    """What differs between installations. repeat: seconds after which an incident that goes on is told again, when an
    Alertmanager repeats it; page: URL of our web page, or empty; mutes: of rules that nobody is to be told of."""

    repeat: float
    page: str = ""
    mutes: Sequence[MuteTable] = ()


async def settle(
    message: Message, received: float, known: Sequence[OpenIncident], diagnose: Diagnose, rules: Rules
) -> SettledMessage:
    """Deal with one message. Alerts that we made ourselves are left out, so that nothing goes round in circles."""
    dealing = _Dealing(message, received, diagnose, rules)
    at_hand = {incident.id: incident for incident in known}
    by_entity: dict[EntityKey, list[Alert]] = {}
    for alert in message.alerts:
        if alert.status == "firing" and any(one.covers(alert.code, alert.entity, received) for one in rules.mutes):
            dealing.out.muted += 1
        elif OURS not in alert.labels:
            by_entity.setdefault(entity_key(alert.entity), []).append(alert)
    for identity, alerts in by_entity.items():
        here = [one for one in at_hand.values() if entity_key(one.entity) == identity]
        left = dealing.resolve(alerts, here)
        firing = [one for one in alerts if one.status == "firing"]
        if firing:
            await dealing.fire(_whole_entity(firing), firing, left)
    return dealing.out


def _whole_entity(alerts: Sequence[Alert]) -> dict[str, str]:
    """The labels of the entity that any of its alerts has."""
    return dict(label for alert in alerts for label in sorted(alert.entity.items()))


def look_again(
    incident: OpenIncident, found: Diagnosis, now: float, others: Sequence[OpenIncident] = ()
) -> SettledMessage:
    """An incident that was told without a cause, and a later diagnosis of it. others: open incidents of its entity,
    which it joins where they have this cause, or which join it."""
    if found.cause is None:
        return SettledMessage()
    same = of_one_cause(others, found)
    before = next((one for one in same if one.code), incident)
    gone = [one for one in (incident, *same) if one.id != before.id]
    joined, last = join(before, gone, now)
    after = _with_cause(joined, found, now)
    out = SettledMessage({after.id: after}, [one.id for one in gone], last)
    if after.code != before.code or after.severity != before.severity:
        change: Change = "cause" if after.code != before.code else "worse"
        out.notices.append(notice_of(after, change, found, now, incident.links))
    return out


def _with_cause(incident: OpenIncident, found: Diagnosis, now: float) -> OpenIncident:
    """An incident with the cause that was found, unless its own explains that."""
    cause = found.cause
    if cause is None or (incident.code and cause.code in (incident.code, *incident.explains)):
        return incident
    return msgspec.structs.replace(
        incident,
        code=cause.code,
        title=incident_title(next(iter(incident.open.values())), cause),
        explains=found.explains,
        told=now,
        pool=found.pool or incident.pool,
        engine=found.engine or incident.engine,
        judged=True,
    )


def close_if_over(incident: OpenIncident, found: Diagnosis, now: float) -> SettledMessage:
    """An incident of which alerts are left, and a later diagnosis: it is over where this shows none of them."""
    document, lead = found.document, found.lead
    if (
        document is None
        or found.elsewhere
        or found.gone
        or document.window.cold
        or (lead is not None and not lead.ended)
    ):
        return SettledMessage()
    why = f"its alerts are no longer true, and no message resolved them: {found.how}"
    return SettledMessage(over=[incident.id], notices=[resolved_notice(incident, now, incident.links, why=why)])


def asked_about_rules(incident: OpenIncident, now: float) -> DiagnosisRequest:
    """What is wanted of a diagnosis of whether an incident is over: the rules of its alerts, and no other cause."""
    return replace(asked_again(incident, now), symptomatic=False)


def asked_again(incident: OpenIncident, now: float) -> DiagnosisRequest:
    """What is wanted of a later diagnosis."""
    several = incident.open.values()
    codes = frozenset(one.code for one in several if one.code)
    symptomatic = any(one.kind not in ("cause", "telemetry", "note") for one in several)
    return DiagnosisRequest(incident.entity, codes, symptomatic, incident.began, now, incident.of_engines)


@dataclass
class _Dealing:
    """With one message."""

    message: Message
    received: float
    diagnose: Diagnose
    rules: Rules
    out: SettledMessage = field(default_factory=SettledMessage)

    def resolve(self, alerts: Sequence[Alert], here: Sequence[OpenIncident]) -> list[OpenIncident]:
        """Take resolved alerts from the incidents of an entity; those without any are over. Those that go on."""
        gone = {one.key for one in alerts if one.status == "resolved"}
        since = {key: known.since for one in here for key, known in one.open.items()}
        gone |= {a.key for a in alerts if a.key in since and self._is_anew(a, since[a.key])}
        left = {one.id: {key: alert for key, alert in one.open.items() if key not in gone} for one in here}
        going_on = []
        for incident in here:
            if not left[incident.id]:
                continue
            after = incident
            if len(left[incident.id]) < len(incident.open):
                after = msgspec.structs.replace(incident, open=left[incident.id], waning=self.received)
                self.out.incidents[incident.id] = after
            going_on.append(after)
        for incident in here:
            if left[incident.id]:
                continue
            self.out.over.append(incident.id)
            links = self._links([one for one in alerts if one.key in incident.open], incident.code)
            self.out.notices.append(resolved_notice(incident, self.received, links, going_on))
        return going_on

    def _is_anew(self, alert: Alert, since: float) -> bool:
        """Whether a firing alert was resolved since it was last spoken of, and no message stated that."""
        return alert.status == "firing" and alert.began(since) > since + NEW_EPISODE_SECONDS

    async def fire(self, entity: dict[str, str], firing: Sequence[Alert], here: Sequence[OpenIncident]) -> None:
        """Join firing alerts to an incident of their entity, or begin one; tell it where there is something to tell."""
        known = {key for incident in here for key in incident.open}
        fresh = [one for one in firing if one.key not in known]
        due = [one for one in here if self._is_due(one) and any(a.key in one.open for a in firing)]
        if not fresh and not due:
            self.out.folded += len(firing)
            return
        about = fresh or [one for one in firing if one.key in due[0].open]
        asked = diagnosis_request(about, entity, self.received)
        found = await self.diagnose(asked)
        before = _same_trouble(asked, here, found) if fresh else due[0]
        change = self._change(before, about, found.cause)
        if before is not None:
            before, change = self._join(before, here, found, change)
        incident = self._incident(before, entity, about, found, of_engines=asked.of_engines, told=change is not None)
        self.out.incidents[incident.id] = incident
        if change is None:
            self.out.folded += len(about)
        else:
            self.out.notices.append(notice_of(incident, change, found, self.received, incident.links, self._beyond))

    def _join(
        self, before: OpenIncident, here: Sequence[OpenIncident], found: Diagnosis, change: Change | None
    ) -> tuple[OpenIncident, Change | None]:
        """An incident with the alerts of others that have the same cause, and why it is told now."""
        gone = [one for one in of_one_cause(here, found) if one.id != before.id]
        after, last = join(before, gone, self.received)
        self.out.notices += last
        self.out.over += [one.id for one in gone]
        for one in gone:
            self.out.incidents.pop(one.id, None)
        return after, change or ("worse" if after.severity != before.severity else None)

    def _change(self, before: OpenIncident | None, fresh: Sequence[Alert], lead: Finding | None) -> Change | None:
        """Why an incident is told now; None where all of it was told before."""
        if before is None:
            return "new"
        severities = [*(one.severity for one in fresh), before.severity]
        if notices.highest(severities) != before.severity:
            return "worse"
        if lead is not None and lead.code != before.code and lead.code not in before.explains:
            return "cause"
        if any(one.key not in before.open and not before.explained(one.code) for one in fresh):
            return "more"
        return "again" if self._is_due(before) else None

    def _incident(
        self,
        before: OpenIncident | None,
        entity: dict[str, str],
        fresh: Sequence[Alert],
        found: Diagnosis,
        *,
        of_engines: bool,
        told: bool,
    ) -> OpenIncident:
        lead = found.cause
        new = {one.key: notices.notice_alert(one, self.received) for one in fresh}
        known = {**(before.open if before else {}), **new}
        open_: Mapping[str, NoticeAlert] = dict(list(known.items())[-MAX_INCIDENT_ALERTS:])
        first = next(iter(open_.values()))
        explained = before is not None and lead is not None and lead.code in before.explains
        if before is not None and (lead is None or explained):
            code, title, explains = before.code, before.title, before.explains
        elif lead is not None:
            code, title, explains = lead.code, incident_title(first, lead), found.explains
        else:
            code, title, explains = "", incident_title(first, found.lead), []
        return OpenIncident(
            id=before.id if before else digest_of(entity, code or first.name, self.received),
            entity=entity,
            code=code,
            title=title,
            severity=notices.highest(one.severity for one in open_.values()),
            began=min(one.since for one in open_.values()),
            told=self.received if told or before is None else before.told,
            explains=explains,
            open=dict(open_),
            links=self._links(fresh, code),
            pool=found.pool or (before.pool if before else ""),
            engine=found.engine or (before.engine if before else ""),
            of_engines=of_engines or (before is not None and before.of_engines),
            waning=before.waning if before else 0.0,
            judged=found.document is not None or (before is not None and before.judged),
        )

    def _is_due(self, incident: OpenIncident) -> bool:
        return self.received - incident.told >= self.rules.repeat

    def _links(self, alerts: Sequence[Alert], code: str) -> list[Link]:
        return notices.links(alerts, code, self.message.url, self.rules.page)

    @property
    def _beyond(self) -> int:
        """Alerts that the message does not list."""
        return self.message.truncated


def _same_trouble(asked: DiagnosisRequest, here: Sequence[OpenIncident], found: Diagnosis) -> OpenIncident | None:
    """The incident that fresh alerts belong to: of the same cause, or one of the two explains the other. Alerts of an
    engine that was not judged are one incident, until a diagnosis tells them apart."""
    cause = found.cause
    reached = {cause.code, *found.explains} if cause is not None else set()
    for incident in sorted(here, key=lambda one: not one.code):  # one whose cause is known comes first
        if not incident.codes.isdisjoint(reached | asked.codes):
            return incident
    if found.document is None and is_of_engine(asked):
        return next((one for one in here if not one.judged and not one.code and one.of_engines), None)
    return None

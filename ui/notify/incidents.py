"""From alerts and a diagnosis to what is told: each trouble once, again when it is worse or its cause is found, and
when it is over."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from rules.finding import Finding, Triage
from ui.notify import notice as notices
from ui.notify.concern import Asked, asked
from ui.notify.incoming import OURS, Alert, Message
from ui.notify.notice import Change, Notice, Told
from ui.notify.spool import Incident


@dataclass(frozen=True)
class Diagnosis:
    """What is known of an entity. document: of the moment that was judged, None where nothing could be."""

    how: str  # by what and when, or why not
    document: Triage | None = None
    lead: Finding | None = None


Diagnose = Callable[[Asked], Awaitable[Diagnosis]]


@dataclass
class Settled:
    """What a message comes to."""

    incidents: dict[str, Incident] = field(default_factory=dict)  # as they are now
    over: list[str] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    folded: int = 0  # alerts that were not told by themselves


@dataclass(frozen=True)
class Rules:
    """What differs between installations. repeat: seconds after which an incident that goes on is told again, when an
    Alertmanager repeats it; page: URL of our web page, or empty."""

    repeat: float
    page: str = ""


async def settle(
    message: Message, received: float, known: Sequence[Incident], diagnose: Diagnose, rules: Rules
) -> Settled:
    """Deal with one message. Alerts that we made ourselves are left out, so that nothing goes round in circles."""
    settled = Settled()
    at_hand = {incident.id: incident for incident in known}
    by_entity: dict[tuple[tuple[str, str], ...], list[Alert]] = {}
    for alert in message.alerts:
        if OURS not in alert.labels:
            by_entity.setdefault(tuple(sorted(alert.entity.items())), []).append(alert)
    for entity, alerts in by_entity.items():
        here = [one for one in at_hand.values() if tuple(sorted(one.entity.items())) == entity]
        for incident in _resolve(alerts, here, received, message, rules, settled):
            at_hand[incident.id] = incident
        for gone in settled.over:
            at_hand.pop(gone, None)
        here = [at_hand[one.id] for one in here if one.id in at_hand]
        firing = [one for one in alerts if one.status == "firing"]
        if firing:
            joined = await _fire(dict(entity), firing, here, received, message, diagnose, rules, settled)
            if joined is not None:
                at_hand[joined.id] = joined
    return settled


def _resolve(
    alerts: Sequence[Alert], here: Sequence[Incident], received: float, message: Message, rules: Rules, out: Settled
) -> list[Incident]:
    """Take resolved alerts from their incidents; those without any are over."""
    gone = {one.key for one in alerts if one.status == "resolved"}
    changed = []
    for incident in here:
        left = {key: one for key, one in incident.open.items() if key not in gone}
        if len(left) == len(incident.open):
            continue
        if left:
            changed.append(msgspec.structs.replace(incident, open=left))
            out.incidents[incident.id] = changed[-1]
            continue
        out.incidents.pop(incident.id, None)
        out.over.append(incident.id)
        mine = [one for one in alerts if one.key in incident.open]
        out.notices.append(_resolved(incident, mine, received, message, rules))
    return changed


async def _fire(
    entity: dict[str, str],
    firing: Sequence[Alert],
    here: Sequence[Incident],
    received: float,
    message: Message,
    diagnose: Diagnose,
    rules: Rules,
    out: Settled,
) -> Incident | None:
    """Join firing alerts to an incident of their entity, or begin one; tell it where there is something to tell."""
    known = {key: incident for incident in here for key in incident.open}
    fresh = [one for one in firing if one.key not in known]
    due = [one for one in here if received - one.told >= rules.repeat and any(a.key in one.open for a in firing)]
    if not fresh and not due:
        out.folded += len(firing)
        return None
    about = fresh or [one for one in firing if one.key in due[0].open]
    found = await diagnose(asked(about, entity, received))
    before = _same_trouble(about, here, found.lead) if fresh else due[0]
    change = _change(before, about, found.lead, received, rules)
    new = {one.key: notices.told(one, received) for one in about}
    incident = _incident(before, entity, new, found.lead, received, told=bool(change))
    out.incidents[incident.id] = incident
    if change:
        out.notices.append(_notice(incident, change, about, found, received, message, rules))
    else:
        out.folded += len(about)
    return incident


def _same_trouble(fresh: Sequence[Alert], here: Sequence[Incident], lead: Finding | None) -> Incident | None:
    """The incident that fresh alerts belong to: of the same cause, or one of the two explains the other."""
    codes = {one.code for one in fresh if one.code}
    for incident in here:
        if lead is not None and (
            lead.code == incident.code or not incident.codes.isdisjoint({lead.code, *lead.explains})
        ):
            return incident
        if codes & incident.codes or (lead is None and codes & set(incident.explains)):
            return incident
    return None


def _change(
    before: Incident | None, fresh: Sequence[Alert], lead: Finding | None, received: float, rules: Rules
) -> Change | None:
    """Why an incident is told now; None where all of it was told before."""
    if before is None:
        return "new"
    severities = [*(one.severity for one in fresh), before.severity]
    if notices.highest(severities) != before.severity:
        return "worse"
    if lead is not None and lead.code != before.code and lead.code not in before.explains:
        return "cause"
    if any(one.key not in before.open and one.code not in before.codes for one in fresh):
        return "more"
    return "again" if received - before.told >= rules.repeat else None


def _incident(
    before: Incident | None,
    entity: dict[str, str],
    new: Mapping[str, Told],
    lead: Finding | None,
    received: float,
    *,
    told: bool,
) -> Incident:
    open_ = {**(before.open if before else {}), **new}
    severity = notices.highest(one.severity for one in open_.values())
    began = min(one.since for one in open_.values())
    first = next(iter(open_.values()))
    explained = before is not None and lead is not None and lead.code in before.explains
    if before is not None and (lead is None or explained):
        code, title, explains = before.code, before.title, before.explains
    elif lead is not None:
        code, title, explains = lead.code, lead.title, list(lead.explains)
    else:
        code, title, explains = "", first.summary or first.name, []
    return Incident(
        id=before.id if before else _id(entity, code or first.name, received),
        entity=entity,
        code=code,
        title=title,
        severity=severity,
        began=began,
        told=received if told or before is None else before.told,
        explains=explains,
        open=open_,
    )


def _notice(
    incident: Incident,
    change: Change,
    alerts: Sequence[Alert],
    found: Diagnosis,
    received: float,
    message: Message,
    rules: Rules,
) -> Notice:
    lead, document = found.lead, found.document
    told = list(incident.open.values())
    notice = Notice(
        id=_id(incident.entity, f"{incident.id} {change}", received),
        incident=incident.id,
        status="firing",
        change=change,
        severity=incident.severity,
        title=incident.title,
        where=_where(incident.entity),
        entity=incident.entity,
        began=incident.began,
        at=received,
        judged=found.how,
        alerts=told[-notices.MAX_ALERTS :],
        not_listed=max(0, len(told) - notices.MAX_ALERTS) + message.truncated,
        links=notices.links(alerts, lead.code if lead else "", message.url, rules.page),
    )
    if lead is None:
        return msgspec.structs.replace(notice, verdict=document.verdict if document is not None else "")
    return msgspec.structs.replace(
        notice,
        title=lead.title,
        code=lead.code,
        verdict=lead.conclusion,
        confidence=f"{lead.confidence_words} ({lead.confidence:.2f})",
        numbers=notices.numbers(lead),
        actions=notices.actions(lead.levers),
        explains=_explained(lead, document),
        ruled_out=_ruled_out(document),
        unknown=[f"{one.what}: {one.why}" for one in lead.unknowns[:3]],
        finding=_without_courses(lead),
    )


def _resolved(incident: Incident, alerts: Sequence[Alert], received: float, message: Message, rules: Rules) -> Notice:
    return Notice(
        id=_id(incident.entity, f"{incident.id} resolved", received),
        incident=incident.id,
        status="resolved",
        change="resolved",
        severity=incident.severity,
        title=incident.title,
        where=_where(incident.entity),
        entity=incident.entity,
        began=incident.began,
        at=received,
        judged="all of its alerts are resolved",
        code=incident.code,
        alerts=list(incident.open.values())[: notices.MAX_ALERTS],
        links=notices.links(alerts, incident.code, message.url, rules.page),
    )


def _explained(lead: Finding, document: Triage | None) -> list[str]:
    """What the cause explains, by code and title."""
    several = (*document.causes, *document.symptoms) if document is not None else ()
    titles = {one.code: one.title for one in several}
    return [f"{code} {titles.get(code, '')}".strip() for code in lead.explains]


def _ruled_out(document: Triage | None) -> list[str]:
    return [f"{one.code} {one.title}: {one.because}" for one in document.ruled_out[:3]] if document is not None else []


def _without_courses(finding: Finding) -> Finding:
    evidence = [msgspec.structs.replace(one, lines=[]) for one in finding.evidence]
    return msgspec.structs.replace(finding, evidence=evidence)


def _where(entity: Mapping[str, str]) -> str:
    """Whose trouble it is, for people: the most specific first."""
    order = ("engine", "instance", "node", "pool", "cluster")
    shown = [f"{name} {entity[name]}" for name in order if entity.get(name)]
    return " · ".join(shown) or "the fleet"


def _id(entity: Mapping[str, str], what: str, at: float) -> str:
    return hashlib.sha256(f"{sorted(entity.items())}{what}{at!r}".encode()).hexdigest()[:16]

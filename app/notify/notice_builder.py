"""An incident and its diagnosis as a notice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvitals.app.identity import URLS, names_engine
from kvitals.app.notify import notice as notices
from kvitals.app.notify.finding_match import explained_codes
from kvitals.app.notify.notice import Change, Link, Notice, NoticeAlert
from kvitals.app.notify.queue import OpenIncident
from kvitals.rules.finding import Finding, Triage

_OF_ENTITY = re.compile(r": (engine|node|pool|cluster) [^:]*(:[^:]*)?$")
"""How the summary of an alert of ours ends: whose it is, which a message says beside its title."""
PAGE_SECONDS = 60.0
"""Of a page that a message links to, where nothing was judged."""


@dataclass(frozen=True)
class Diagnosis:
    """What is known of an entity. document: of the moment that was judged, None where nothing could be."""

    how: str  # by what and when, or why not
    document: Triage | None = None
    lead: Finding | None = None
    pool: str = ""  # of the engine that the alert names; empty where it is not known
    partial: bool = False  # the lead is so and leaves open why
    not_judged: Sequence[str] = ()  # causes of the lead that could not be judged, with the reasons
    elsewhere: bool = False  # the alert names an engine that the document does not know
    engine: str = ""  # that the alert names, or else the lead is of; empty: none or several
    gone: bool = False  # the engine had no series any more, and was judged at a moment before

    @property
    def cause(self) -> Finding | None:
        """The lead, unless it is a symptom, which is what the alert reports itself, or leaves open why: the cause is
        still unknown."""
        return self.lead if self.lead is not None and self.lead.kind != "symptom" and not self.partial else None

    @property
    def explains(self) -> list[str]:
        """The codes that the lead explains, by way of other causes too."""
        if self.lead is None or self.document is None:
            return []
        return explained_codes(self.lead, self.document)

    @property
    def engine_on_page(self) -> str:
        """The title of the engine on which our web page opens: where the first verdict of the document is another
        engine's. Empty: the page opens on that verdict."""
        first = next(iter((self.document.causes or self.document.symptoms) if self.document else ()), None)
        if self.document is None or first is None or first.entity.labels.get("engine", self.engine) == self.engine:
            return ""
        titles = [row.entity.title for row in self.document.engines if row.entity.labels.get("engine") == self.engine]
        return titles[0] if len(titles) == 1 else ""

    def window(self, at: float) -> tuple[float, float]:
        """The start and the end of what was judged, or where nothing was, a minute up to a moment."""
        if self.document is None:
            return at - PAGE_SECONDS, at
        return self.document.window.start, self.document.window.end


def notice_of(
    incident: OpenIncident, change: Change, found: Diagnosis, at: float, links: list[Link], beyond: int = 0
) -> Notice:
    """The message about an incident that goes on. beyond: alerts that are known of by their number alone."""
    lead, document = found.lead, found.document
    told = list(incident.open.values())
    notice = Notice(
        id=digest_of(incident.entity, f"{incident.id} {change}", at),
        incident=incident.id,
        status="firing",
        change=change,
        severity=incident.severity,
        title=incident.title,
        where=_where(incident),
        entity=entity_of(incident),
        began=incident.began,
        began_at_least=incident.began_at_least,
        at=at,
        judged=found.how,
        alerts=told[-notices.MAX_ALERTS :],
        not_listed=max(0, len(told) - notices.MAX_ALERTS) + beyond,
        links=notices.links_at(links, *found.window(at), found.engine_on_page),
    )
    if found.cause is None and incident.code:
        return msgspec.structs.replace(
            notice, code=incident.code, verdict=f"The cause is known already: {incident.code}."
        )
    if lead is None:  # the document's verdict may be of another engine
        judged = document is not None and not found.elsewhere
        verdict = f"No known cause matches on {notice.where}." if judged else ""
        return msgspec.structs.replace(notice, verdict=verdict)
    return msgspec.structs.replace(
        notice,
        title=incident_title(told[0], lead),
        code=found.cause.code if found.cause is not None else "",
        verdict=lead.conclusion,
        confidence=f"{lead.confidence_words} ({lead.confidence:.2f})",
        numbers=notices.numbers(lead),
        actions=notices.actions(lead.levers),
        explains=_explained(found.explains, document),
        ruled_out=[f"{one.code} {one.title}: {one.because}" for one in lead.ruled_out[:3]],
        unknown=[*_open_question(found), *(f"{one.what}: {one.why}" for one in lead.unknowns[:3])],
        finding=_without_courses(lead),
    )


def incident_title(first: NoticeAlert, lead: Finding | None) -> str:
    """The title of an incident that began with an alert. One of other people's rules keeps its own words: what kvitals
    found on the same engine need not be what the alert is about. A symptom that another alert reports is no title
    either: it goes on where this alert ends."""
    own = _OF_ENTITY.sub("", first.summary) if first.code else first.summary
    own = own or first.name
    if lead is None or (first.code and lead.kind == "symptom" and lead.code != first.code):
        return own
    if first.kind == "telemetry" and first.code != lead.code and first.code not in lead.explains:
        return f"{own}; before: {lead.title}"  # an engine that is gone
    return lead.title if first.code else f"{own}: {lead.title}"


def _open_question(found: Diagnosis) -> list[str]:
    """What a lead leaves open: the cause, and which causes of it could not be judged."""
    if not found.partial or found.lead is None:
        return [*found.not_judged]
    return [
        f"the cause: {found.lead.code} states a condition, not its cause; kvitals diagnoses again",
        *found.not_judged,
    ]


def resolved_notice(
    incident: OpenIncident,
    at: float,
    links: list[Link],
    still_open: Sequence[OpenIncident] = (),
    why: str = "all of its alerts are resolved",
) -> Notice:
    """The last message about an incident. still_open: others of the same entity, which it must not seem to end."""
    others = "; ".join(dict.fromkeys(one.title for one in still_open))
    return Notice(
        id=digest_of(incident.entity, f"{incident.id} resolved", at),
        incident=incident.id,
        status="resolved",
        change="resolved",
        severity=incident.severity,
        title=incident.title,
        where=_where(incident),
        entity=entity_of(incident),
        began=incident.began,
        began_at_least=incident.began_at_least,
        at=at,
        judged=why + (f"; still open here: {others}" if others else ""),
        code=incident.code,
        alerts=list(incident.open.values())[: notices.MAX_ALERTS],
        links=notices.links_at(links, at - PAGE_SECONDS, at),
    )


def joined_notice(incident: OpenIncident, into: OpenIncident, at: float) -> Notice:
    """The last message about an incident whose alerts go on in another one."""
    why = f"it has the cause of incident {into.id}, which goes on: {into.title}"
    ended = resolved_notice(incident, at, incident.links, why=why)
    return msgspec.structs.replace(ended, change="joined", joined=into.id, code=into.code)


def entity_of(incident: OpenIncident) -> dict[str, str]:
    """The labels of what an incident is about, with the pool of its engine, which alerts of engines do not name."""
    return {**({"pool": incident.pool} if incident.pool else {}), **incident.entity}


def _where(incident: OpenIncident) -> str:
    """Whose trouble an incident is. That of a pool or a node names the engine that was found."""
    found = {"engine": incident.engine} if incident.engine and not names_engine(incident.entity) else {}
    return where({**entity_of(incident), **found})


def where(entity: Mapping[str, str]) -> str:
    """Whose trouble it is, for people: the most specific first."""
    order = ("engine", *URLS, "pod", "instance", "node", "pool", "cluster")
    pod = "/".join(filter(None, (entity.get("namespace"), entity.get("pod"))))
    named = {**entity, "pod": pod}
    return " · ".join(f"{name} {named[name]}" for name in order if named.get(name)) or "the fleet"


def digest_of(entity: Mapping[str, str], what: str, at: float) -> str:
    """A name for something about an entity at a moment."""
    return hashlib.sha256(f"{sorted(entity.items())}{what}{at!r}".encode()).hexdigest()[:16]


def _explained(codes: Sequence[str], document: Triage | None) -> list[str]:
    """What the cause explains, by code and title."""
    several = (*document.causes, *document.symptoms) if document is not None else ()
    named = {one.code: f"{one.code_and_severity} {one.title}" for one in several}
    return [named.get(code, code) for code in codes]


def _without_courses(finding: Finding) -> Finding:
    evidence = [msgspec.structs.replace(one, lines=[]) for one in finding.evidence]
    return msgspec.structs.replace(finding, evidence=evidence)

"""What is told of an incident: the one form that every target's message is made of."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import quote, urlsplit

from msgspec import Struct

from kvitals.app.escaping import plain
from kvitals.app.notify.incoming import Alert
from kvitals.diagnoser.text import UNKNOWN
from kvitals.rules.finding import Finding, LeverAdvice
from kvitals.rules.model import Severity

VERSION = "1.2"
"""Of the message document. The first number changes when a reader of the old documents would break, the second when
fields are added: 1.1 added `began_at_least` and `since_at_least`, 1.2 added `joined`."""
SEVERITIES: tuple[Severity, ...] = ("info", "ticket", "page")
MAX_NUMBERS = 6
MAX_LEVERS = 3
MAX_ALERTS = 10
BOARD_SECONDS = 1800.0
"""Of a board, up to the moment of the verdict: a rate of a minute shows little in the window of the verdict alone."""

_PAGE, _BOARD, _QUERY = "kvitals", "Board", "Query"
"""Titles of links that open on a moment."""
_OF_EARLIER_VERSION = ("from=", "to=")
"""What an incident that an earlier version kept has in the address of its page."""
_FROM, _INPUT = re.compile(r"(^|&)from="), re.compile(r"(^|&)g0\.(end|moment)_input=")

Change = Literal["new", "cause", "worse", "more", "again", "joined", "resolved"]


class NoticeNumber(Struct, frozen=True):
    title: str
    text: str


class Action(Struct, frozen=True):
    """A lever: what to set, and what it will not mend."""

    title: str
    setting: str  # empty where no setting is known
    why: str
    does_not_fix: str


class Link(Struct, frozen=True):
    title: str
    url: str


class NoticeAlert(Struct, frozen=True):
    """An alert of the incident."""

    name: str
    code: str
    severity: Severity
    summary: str
    description: str
    since: float
    kind: str = ""  # of the rule
    since_at_least: bool = False  # the alert has no start: it fires since then or earlier


class Notice(Struct, frozen=True, kw_only=True):
    """One message about one incident. Times are seconds since the epoch."""

    version: str = VERSION
    id: str  # of this message: the same again is the same message sent twice
    incident: str  # the same for all messages of one incident
    status: Literal["firing", "resolved"]
    change: Change  # why it is told now
    severity: Severity
    title: str
    where: str
    entity: dict[str, str]
    began: float
    began_at_least: bool = False  # it began then or earlier
    at: float  # when the message of the Alertmanager came
    judged: str  # by what and when, or why nothing could be said
    code: str = ""  # of the cause; empty where none was found
    verdict: str = ""  # one sentence with numbers
    confidence: str = ""
    numbers: list[NoticeNumber] = []
    actions: list[Action] = []
    explains: list[str] = []
    ruled_out: list[str] = []
    unknown: list[str] = []
    alerts: list[NoticeAlert] = []
    not_listed: int = 0  # alerts of it that are not among `alerts`
    links: list[Link] = []
    finding: Finding | None = None  # the whole of it, as in the triage document, less its courses
    joined: str = ""  # the incident in which this one goes on, if it joined one


def highest(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=SEVERITIES.index, default="info")


def notice_alert(alert: Alert, otherwise: float) -> NoticeAlert:
    """What is kept of an alert. otherwise: when it began, where it does not say."""
    said = alert.annotations
    summary = said.get("summary") or said.get("message") or said.get("title") or ""
    return NoticeAlert(
        alert.name,
        alert.code,
        alert.severity,
        summary,
        said.get("description", ""),
        alert.began(otherwise),
        alert.labels.get("kind", ""),
        since_at_least=alert.start is None,
    )


def numbers(finding: Finding) -> list[NoticeNumber]:
    """The values that show the finding, those of its proof first; without those that are not known."""
    shown = [NoticeNumber(one.title, one.text) for one in finding.evidence if one.text not in ("", UNKNOWN)]
    if not shown:
        shown = [NoticeNumber(one.meaning or one.signal, one.text) for one in finding.measures if one.value is not None]
    return shown[:MAX_NUMBERS]


def actions(levers: Sequence[LeverAdvice]) -> list[Action]:
    return [Action(one.title, _setting(one), one.why, _first(one.does_not_fix)) for one in levers[:MAX_LEVERS]]


def links(alerts: Sequence[Alert], code: str, manager: str, page: str) -> list[Link]:
    """Where to read on, each once; `links_at` adds the moment. code: of the cause, whose runbook stands beside the
    alerts' and comes first; manager: URL of the Alertmanager; page: of our web page."""
    found: dict[str, str] = {}
    for alert in alerts:
        own = alert.annotations.get("runbook_url", "")
        folder, slash, name = own.rpartition("/")
        if code and slash and alert.code and name.startswith(alert.code) and _url(own):
            found[f"{folder}/{code}{name.removeprefix(alert.code)}"] = f"Runbook {code}"
            break
    wanted = (("runbook_url", "Runbook"), ("dashboard_url", _BOARD))
    for alert in alerts:
        for name, title in wanted:
            if url := _url(alert.annotations.get(name, "")):
                found.setdefault(url, title if not alert.code else f"{title} {alert.code}")
    for alert in alerts[:1]:
        if url := _url(alert.url):
            found.setdefault(url, _QUERY)
    for url, title in ((page, _PAGE), (manager, "Alertmanager")):
        if _url(url):
            found.setdefault(url, title)
    return [Link(title, url) for url, title in list(found.items())[:8]]


def links_at(several: Sequence[Link], start: float, end: float, engine: str = "") -> list[Link]:
    """Links that open on the moment of a verdict. Times are seconds since the epoch. engine: the one that our web page
    opens on, by its title; empty: the page opens on the verdict."""
    return [Link(one.title, _dated(one, start, end, engine)) for one in several]


def _dated(link: Link, start: float, end: float, engine: str) -> str:
    try:
        parts = urlsplit(link.url)
    except ValueError:
        return link.url
    more = ""
    if link.title == _PAGE:
        kept = (one for one in parts.query.split("&") if not one.startswith(_OF_EARLIER_VERSION))
        parts = parts._replace(query="&".join(kept))
        more = f"from={start:.3f}&to={end:.3f}" + (f"&page=engine&engine={quote(engine, safe='')}" if engine else "")
    elif link.title.startswith(_BOARD) and "/d/" in parts.path and not _FROM.search(parts.query):  # of Grafana
        more = f"from={(end - BOARD_SECONDS) * 1000:.0f}&to={end * 1000:.0f}"
    elif link.title == _QUERY and "g0.expr=" in parts.query and not _INPUT.search(parts.query):  # of Prometheus
        more = f"g0.end_input={time.strftime('%Y-%m-%d%%20%H%%3A%M%%3A%S', time.gmtime(end))}"
    return parts._replace(query="&".join(filter(None, (parts.query, more)))).geturl()


def _setting(lever: LeverAdvice) -> str:
    setting = lever.setting
    if setting is None:
        return ""
    return setting.text + (" (restart)" if setting.restart else "")


def _first(text: str) -> str:
    """The first sentence."""
    words = " ".join(text.split())
    first, stop, _ = words.partition(". ")
    return f"{first}." if stop else words


def _url(text: str) -> str:
    """A link that a browser may follow, else nothing."""
    bad = plain.ODD.search(text) or any(c.isspace() or c in '<>"|' for c in text)
    good = text.startswith(("http://", "https://")) and not bad
    return text if good and len(text) <= 2000 else ""

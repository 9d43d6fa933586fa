"""A notice as the request that a target takes. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kvitals.app.escaping import annotation, plain, slack
from kvitals.app.notify.incoming import OURS
from kvitals.app.notify.notice import SEVERITIES, Notice
from kvitals.app.notify.notice_text import action, foot, headline, lines
from kvitals.config import AlertmanagerTarget, NotifyTarget, PagerDutyTarget, SlackTarget, WebhookTarget
from kvitals.series.secret_file import SecretError, secret

MAX_SECTION = 2900
"""Characters of a text in Slack, which takes 3,000."""
MAX_FIELDS = 10
MAX_DIGEST_LINES, MAX_DIGEST_LINE, LINES_IN_SECTION = 40, 250, 10
"""Of a message about many incidents: lines, characters of each, and lines in one of Slack's sections."""
MAX_DETAIL = 2000
HOLD_SECONDS = 24 * 3600.0
"""For so long an Alertmanager that is told of an incident once takes it to go on."""


@dataclass(frozen=True)
class JsonPost:
    """A POST of JSON."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def request(target: NotifyTarget, notice: Notice) -> JsonPost:
    """What is sent for a notice. Secrets are read anew each time, so they may be replaced. Raises SecretError."""
    for kind, make in _MAKERS.items():
        if type(target) is kind:
            return make(target, notice)
    raise TypeError(f"no message for {type(target).__name__}")


def digest(target: SlackTarget, several: Sequence[Notice]) -> JsonPost:
    """One message for many notices, in their order. Raises SecretError."""
    newest = list({one.incident: one for one in several}.values())
    firing = [one for one in newest if one.status == "firing"]
    pages = sum(one.severity == "page" for one in firing)
    counted = [f"{len(firing)} incidents" + (f", {pages} of severity page" if pages else "")] if firing else []
    joined = sum(one.change == "joined" for one in newest)
    resolved = len(newest) - len(firing) - joined
    ended = ((joined, "joined another incident"), (resolved, "resolved"))
    counted += [f"{number} {words}" for number, words in ended if number]
    title = "; ".join(counted)
    listed = [slack.text(f"{_mark(one)} {headline(one)}", MAX_DIGEST_LINE) for one in newest[:MAX_DIGEST_LINES]]
    if (more := len(newest) - MAX_DIGEST_LINES) > 0:
        listed.append(slack.text(f"and {more} more", 100))
    shared = [one for one in several[0].links if all(one in other.links for other in several)]
    links = slack.join_mrkdwn(" · ", [slack.link(one.url, one.title) for one in shared], MAX_SECTION)
    blocks = [_header(f"{'🔴' if pages else '🟠' if firing else '✅'} {title}")]
    blocks += [
        {"type": "section", "text": _mrkdwn(slack.join_mrkdwn("\n", listed[at : at + LINES_IN_SECTION], MAX_SECTION))}
        for at in range(0, len(listed), LINES_IN_SECTION)
    ]
    blocks += [{"type": "context", "elements": [_mrkdwn(links)]}] if links else []
    message = {"text": slack.text(title, 300), "mrkdwn": False, "blocks": blocks}
    return JsonPost(_slack_url(target), msgspec.json.encode(message))


def wants(target: NotifyTarget, notice: Notice) -> bool:
    """Whether a target is to be told."""
    return notice.severity in target.severities and (target.resolved or notice.status == "firing")


def _webhook(target: WebhookTarget, notice: Notice) -> JsonPost:
    """The whole notice, its texts without characters that a terminal obeys or that turn a line around. Who is sent one
    twice knows it by the key."""
    headers = {"Idempotency-Key": notice.id, **_bearer(target.bearer_file)}
    return JsonPost(target.url, msgspec.json.encode(plain.each_text(msgspec.to_builtins(notice))), headers)


def _slack(target: SlackTarget, notice: Notice) -> JsonPost:
    message = {"text": slack.text(headline(notice), 300), "mrkdwn": False, "blocks": _blocks(notice)}
    return JsonPost(_slack_url(target), msgspec.json.encode(message))


def _slack_url(target: SlackTarget) -> str:
    """Raises SecretError."""
    url = secret(target.url_file)
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise SecretError(f"{target.url_file} contains no webhook URL")
    return url


def _mark(notice: Notice) -> str:
    if notice.change == "joined":
        return "➡️"
    return "✅" if notice.status == "resolved" else {"page": "🔴", "ticket": "🟠", "info": "🔵"}[notice.severity]


def _header(text: str) -> dict[str, Any]:
    clipped = plain.clip(text, 150)
    return {"type": "header", "text": {"type": "plain_text", "text": clipped, "emoji": False}}


def _blocks(notice: Notice) -> list[dict[str, Any]]:
    """Slack's blocks: headline, verdict, numbers, lever, where to read on."""
    blocks = [_header(f"{_mark(notice)} {plain.line(headline(notice))}")]
    if said := slack.join_mrkdwn("\n", [slack.text(line) for line in lines(notice)], MAX_SECTION):
        blocks.append({"type": "section", "text": _mrkdwn(said)})
    if notice.numbers:
        fields = [
            slack.join_mrkdwn("\n", [slack.bold(slack.text(one.title, 900)), slack.text(one.text, 900)], 2000)
            for one in notice.numbers[:MAX_FIELDS]
        ]
        blocks.append({"type": "section", "fields": [_mrkdwn(one) for one in fields]})
    if do := action(notice):
        parts = [slack.bold(slack.text(do, 1000)), slack.text(notice.actions[0].why, 1800)]
        blocks.append({"type": "section", "text": _mrkdwn(slack.join_mrkdwn("\n", parts, MAX_SECTION))})
    links = slack.join_mrkdwn(" · ", [slack.link(one.url, one.title) for one in notice.links], MAX_SECTION)
    below = filter(None, (slack.text(foot(notice), MAX_SECTION), links))
    return blocks + [{"type": "context", "elements": [_mrkdwn(one)]} for one in below]


def _mrkdwn(text: slack.Mrkdwn) -> dict[str, Any]:
    """verbatim: Slack makes no links and mentions of what is plain text."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


_PAGERDUTY = {"page": "critical", "ticket": "warning", "info": "info"}


def _pagerduty(target: PagerDutyTarget, notice: Notice) -> JsonPost:
    event: dict[str, Any] = {
        "routing_key": secret(target.key_file),
        "event_action": "resolve" if notice.status == "resolved" else "trigger",
        "dedup_key": f"kvitals-{notice.incident}",
    }
    if notice.status == "firing":
        event |= {
            "payload": {
                "summary": _plain(f"{headline(notice)}. {' '.join(lines(notice))}", 1024),
                "source": _plain(notice.where),
                "severity": _PAGERDUTY[notice.severity],
                "timestamp": _rfc3339(notice.began),
                "component": _plain(notice.entity.get("engine") or notice.entity.get("instance") or notice.where),
                "group": _plain(notice.entity.get("pool") or notice.entity.get("cluster") or ""),
                "class": _plain(notice.code or ", ".join(one.name for one in notice.alerts[:3])),
                "custom_details": _details(notice),
            },
            "links": [
                {"href": link.url, "text": _plain(link.title)}
                for link in notice.links
                if link.url.startswith(("http://", "https://"))
            ],
            "client": "kvitals",
        }
    return JsonPost(target.url, msgspec.json.encode(event))


def _details(notice: Notice) -> dict[str, Any]:
    """What somebody who was woken wants to read, by name."""
    found: dict[str, Any] = {
        "verdict": notice.verdict,
        **{one.title: one.text for one in notice.numbers},
        "do": [" ".join(filter(None, (one.title, one.setting))) for one in notice.actions],
        "explains": notice.explains,
        "could not tell": notice.unknown,
        "confidence": notice.confidence,
        "judged": notice.judged,
    }
    return {
        _plain(name): [_plain(one, MAX_DETAIL) for one in value]
        if isinstance(value, list)
        else _plain(value, MAX_DETAIL)
        for name, value in found.items()
        if value
    }


def _plain(text: str, most: int = 255) -> str:
    """PagerDuty shows text as it is, and refuses what is longer than documented."""
    return plain.clip(plain.line(text), most)


def _alertmanager(target: AlertmanagerTarget, notice: Notice) -> JsonPost:
    """An alert of the incident's severity, and the end of those of other severities that it may have had before."""
    annotations = {
        "summary": annotation.text(headline(notice), 1024),
        "description": annotation.text(" ".join(filter(None, (*lines(notice), action(notice)))), 4000),
        "judged": annotation.text(notice.judged, 1024),
        "code": annotation.text(notice.code, 64),
        **_annotations(notice),
    }
    labels = {name: plain.line(value) for name, value in notice.entity.items()}
    alerts = [
        {
            "labels": {"alertname": "kvitals-incident", "severity": one, OURS: notice.incident, **labels},
            "annotations": {name: text for name, text in annotations.items() if text},
            "startsAt": _rfc3339(notice.began),
            "endsAt": _rfc3339(notice.at + HOLD_SECONDS if goes_on else notice.at),
        }
        for one in SEVERITIES
        for goes_on in (notice.status == "firing" and one == notice.severity,)
    ]
    url = f"{target.url.removesuffix('/api/v2/alerts')}/api/v2/alerts"
    return JsonPost(url, msgspec.json.encode(alerts), _bearer(target.bearer_file))


def _annotations(notice: Notice) -> dict[str, str]:
    """The first runbook and the first board, by the names that everybody's templates know."""
    found: dict[str, str] = {}
    for title, name in (("Runbook", "runbook_url"), ("Board", "dashboard_url")):
        for link in notice.links:
            if link.title.startswith(title):
                found.setdefault(name, link.url)
    return found


_MAKERS: dict[type, Callable[[Any, Notice], JsonPost]] = {
    WebhookTarget: _webhook,
    SlackTarget: _slack,
    PagerDutyTarget: _pagerduty,
    AlertmanagerTarget: _alertmanager,
}


def _bearer(file: Path | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(file)}"} if file is not None else {}


def _rfc3339(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

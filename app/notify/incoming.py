"""The messages of an Alertmanager's webhook, and of others that write them alike, such as Grafana."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import unquote_plus

import msgspec
from msgspec import Struct

from kvitals.app.identity import NAMING, PLACE
from kvitals.rules.model import Severity
from kvitals.series.undecodable import UNDECODABLE

MAX_ALERTS = 200
"""Of one message that are looked at; the rest is counted."""
MAX_LABELS = 64
MAX_TEXT = 2000

OURS = "kvitals_incident"
"""The label of what we hand on to an Alertmanager: it may come back to us, and is not looked at again."""

_SEVERITIES: dict[str, Severity] = {
    "page": "page", "critical": "page", "crit": "page", "emergency": "page", "error": "page", "high": "page",
    "ticket": "ticket", "warning": "ticket", "warn": "ticket", "medium": "ticket",
    "info": "info", "none": "info", "low": "info", "informational": "info", "debug": "info",
}  # fmt: skip
_OUR_CODE = re.compile(r"[A-Z]{3}[0-9]{2}")
_SYMPTOMLESS = frozenset({"cause", "telemetry", "note"})


class IncomingError(Exception):
    """A body is no such message; the text says why."""


class Alert(Struct, frozen=True):
    """One alert as it stands in a message."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    starts: str = msgspec.field(name="startsAt", default="")
    ends: str = msgspec.field(name="endsAt", default="")
    url: str = msgspec.field(name="generatorURL", default="")
    fingerprint: str = ""

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "") or "alert without a name"

    @property
    def code(self) -> str:
        """The code of the alert's kvitals rule, empty for other alerts. Both labels count only in the form of a rule's
        code. Rules generated before 0.1 have `code` and no `kvitals_code`."""
        both = (self.labels.get(name, "") for name in ("kvitals_code", "code"))
        return next((code for code in both if _OUR_CODE.fullmatch(code)), "")

    @property
    def symptomatic(self) -> bool:
        """Whether any cause on the entity is of interest. A label `kind` may say that it is no symptom."""
        return self.labels.get("kind", "") not in _SYMPTOMLESS

    @property
    def severity(self) -> Severity:
        """What is not said, or in words that nobody agreed on, is a ticket: not silent, and no page."""
        return _SEVERITIES.get(self.labels.get("severity", "").lower(), "ticket")

    @property
    def key(self) -> str:
        """What tells it from others, at any time."""
        return self.fingerprint or digest(self.labels)

    @property
    def entity(self) -> dict[str, str]:
        """The labels that say whose it is: the place, and the engine by whatever name the alert has for it."""
        found = {name: self.labels[name] for name in PLACE if self.labels.get(name)}
        if engine := self.labels.get("engine"):
            return {**found, "engine": engine}
        if self.code:  # of a pool, a node or the fleet; `instance` is the agent's
            return found
        return found | {name: self.labels[name] for name in NAMING if self.labels.get(name)}

    def reads(self, metrics: re.Pattern[str]) -> bool:
        """Whether the alert's expression, which Prometheus puts into its URL, names one of some metrics."""
        return metrics.search(unquote_plus(self.url)) is not None

    def began(self, otherwise: float) -> float:
        """Seconds since the epoch."""
        return self.start if self.start is not None else otherwise

    @property
    def start(self) -> float | None:
        """Seconds since the epoch. A time of the year 1, which Go writes for no time, is none."""
        try:
            started = datetime.fromisoformat(self.starts).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
        return started if started > 0 else None


class Message(Struct, frozen=True):
    """One message: the alerts of a group."""

    alerts: list[Alert]
    url: str = msgspec.field(name="externalURL", default="")  # of the Alertmanager
    truncated: int = msgspec.field(name="truncatedAlerts", default=0)


_decoder = msgspec.json.Decoder(Message)


def read(body: bytes) -> Message:
    """The message in a body, with texts and numbers of things bounded. Raises IncomingError."""
    try:
        message = _decoder.decode(body)
    except UNDECODABLE as error:
        raise IncomingError(f"this is not a message from Alertmanager's webhook: {error}") from None
    beyond = max(0, len(message.alerts) - MAX_ALERTS)
    alerts = [_bounded(alert) for alert in message.alerts[:MAX_ALERTS]]
    return Message(alerts, message.url[:MAX_TEXT], max(0, message.truncated) + beyond)


def digest(labels: Mapping[str, str]) -> str:
    """A short name for a set of labels."""
    return hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:16]


def _bounded(alert: Alert) -> Alert:
    return Alert(
        alert.status,
        _short(alert.labels),
        _short(alert.annotations),
        alert.starts[:64],
        alert.ends[:64],
        alert.url[:MAX_TEXT],
        alert.fingerprint[:64],
    )


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {name[:200]: text[:MAX_TEXT] for name, text in list(texts.items())[:MAX_LABELS]}

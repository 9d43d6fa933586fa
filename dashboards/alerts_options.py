"""What differs between installations: how often one scrapes, and where pages, boards and receivers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from kvitals.diagnoser.sources.survey import FAST_SECONDS, SAMPLES_IN_WINDOW, SLOW_SECONDS
from kvitals.rules.compiled_signal import WindowDurations
from kvitals.rules.model import Severity

BASELINE = "1h"
AlertSet = Literal["core", "extended"]
PLACEHOLDER_HOST = "example.com"
RECEIVER_PATH = "/api/v1/notify"
"""Where `kvitals notify` takes Alertmanager's messages."""


@dataclass(frozen=True)
class Options:
    """URLs without a slash at their end. The defaults are placeholders: generate with your own."""

    scrape_seconds: float = 5.0
    runbooks: str = f"https://kvitals.{PLACEHOLDER_HOST}/runbooks"
    boards: str = f"https://grafana.{PLACEHOLDER_HOST}"
    receiver: str = f"http://127.0.0.1:9477{RECEIVER_PATH}"  # takes Alertmanager's messages
    slo_ttft_seconds: float = 2.0  # with agents the objectives are those that they export
    slo_itl_seconds: float = 0.2
    alerts: AlertSet = "core"  # what users feel and lost capacity; extended: every rule's alert as well
    page: str = "page"  # what alerts that page have as their label `severity`
    ticket: str = "ticket"

    def routing(self, code: str, severity: Severity) -> dict[str, str]:
        """The labels that an alert is routed by. `code` is what `kvitals_code` was called; it goes after 0.1."""
        named = {"page": self.page, "ticket": self.ticket, "info": "info"}
        return {"kvitals_code": code, "code": code, "severity": named[severity]}

    @property
    def fast_seconds(self) -> float:
        """`$window`: the agent's, or longer where too few samples would be in it."""
        return max(FAST_SECONDS, SAMPLES_IN_WINDOW * self.scrape_seconds)

    @property
    def slow_seconds(self) -> float:
        return max(SLOW_SECONDS, self.fast_seconds)

    @property
    def windows(self) -> WindowDurations:
        """What `$window` and `$baseline` stand for."""
        return WindowDurations(duration(self.fast_seconds), duration(self.slow_seconds), BASELINE)


def receiver_url(address: str) -> str:
    """The URL that takes Alertmanager's messages, of an address with or without its path."""
    return address if urlsplit(address).path.strip("/") else address.rstrip("/") + RECEIVER_PATH


def duration(seconds: float) -> str:
    """Whole seconds as Prometheus writes them: `90s`, `15m`, `1h`."""
    whole = round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"

"""Where alerts are taken in and handed on, in `kvitals.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from kvitals.config.checks import (
    MAX_SOURCES,
    NAME_OF_SOURCE,
    Seconds,
    check_seconds,
    host_and_port,
    normal_url,
    place_list,
)


class NotifyTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages about alerts are handed on to. The secret is in a file, where the URL is none."""

    name: str = ""  # in logs and in the file of dead letters; the kind and its place in the list where it is not said
    severities: tuple[Literal["page", "ticket", "info"], ...] = ("page", "ticket", "info")
    resolved: bool = True  # whether the end of an incident is told
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if self.name and not NAME_OF_SOURCE.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} must have at most 40 lower case letters, digits, _ and -")


class WebhookTarget(NotifyTarget, frozen=True, kw_only=True):
    """Takes a notice as JSON."""

    url: str
    bearer_file: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))


class SlackTarget(NotifyTarget, frozen=True, kw_only=True):
    """An incoming webhook of Slack, or of what takes the same, such as Mattermost."""

    url_file: Path  # holds the URL, which is the secret


class PagerDutyTarget(NotifyTarget, frozen=True, kw_only=True):
    """A service of PagerDuty, over its Events API v2."""

    key_file: Path  # holds the integration's routing key
    url: str = "https://events.pagerduty.com/v2/enqueue"

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "url", normal_url(self.url))


class AlertmanagerTarget(WebhookTarget, frozen=True, kw_only=True):
    """An Alertmanager, or what takes alerts as it does, at the URL's /api/v2/alerts."""


class NotifyTable(Struct, frozen=True, kw_only=True):
    """Alerts that are taken in, diagnosed and handed on. The table being there switches it on."""

    token_file: Path | None = None  # a bearer token with which messages are taken from other machines
    directory: Path | None = None  # of what waits; where the agent keeps what outlives a restart, where it is not said
    listen: str = "127.0.0.1:9479"  # of `kvitals notify`; a running agent takes messages at its own address
    repeat: Seconds = Seconds(4 * 3600)  # an incident that goes on is told again this much later, at the earliest
    give_up: Seconds = Seconds(24 * 3600)  # what could not be handed on for so long is a dead letter
    page: str = ""  # URL of the web page, for links
    webhook: tuple[WebhookTarget, ...] = ()
    slack: tuple[SlackTarget, ...] = ()
    pagerduty: tuple[PagerDutyTarget, ...] = ()
    alertmanager: tuple[AlertmanagerTarget, ...] = ()

    def __post_init__(self) -> None:
        host_and_port(self.listen)
        if self.page:
            msgspec.structs.force_setattr(self, "page", normal_url(self.page))
        check_seconds("repeat", self.repeat, 60, 30 * 24 * 3600)
        check_seconds("give_up", self.give_up, 60, 7 * 24 * 3600)
        places: dict[str, list[str]] = {}
        for place, name, _ in self._placed():
            places.setdefault(name, []).append(place)
        if not 1 <= sum(map(len, places.values())) <= MAX_SOURCES:
            raise ValueError(f"set 1 to {MAX_SOURCES} targets: webhook, slack, pagerduty, alertmanager")
        for name, several in places.items():
            if len(several) > 1:
                raise ValueError(
                    f"the targets {place_list(several)} have the same name {name!r}: give each its own name"
                )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to bind to; the empty host is all interfaces."""
        return host_and_port(self.listen)

    @property
    def targets(self) -> Iterator[tuple[str, NotifyTarget]]:
        """All of them by name."""
        return ((name, target) for _, name, target in self._placed())

    def _placed(self) -> Iterator[tuple[str, str, NotifyTarget]]:
        """The place in the file, the name and the target."""
        kinds = {
            "webhook": self.webhook, "slack": self.slack, "pagerduty": self.pagerduty,
            "alertmanager": self.alertmanager,
        }  # fmt: skip
        for kind, several in kinds.items():
            for number, one in enumerate(several, 1):
                yield f"{kind} {number}", one.name or f"{kind}-{number}", one

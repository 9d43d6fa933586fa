"""What is fast enough, and what is not to be reported, in `kvitals.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase

from msgspec import Struct, field

from kvitals.config.checks import TEXT, check_seconds, is_pattern, one_of

ENTITY_LABELS = ("cluster", "node", "pool", "engine")

_CODE = re.compile(r"[A-Z]{3}[0-9]{2}")


class SloTable(Struct, frozen=True, kw_only=True):
    """What is fast enough, in seconds."""

    ttft_p99_seconds: float = 2.0
    itl_p99_seconds: float = 0.2

    def __post_init__(self) -> None:
        _check_slo(self)


class SomeSlo(Struct, frozen=True, kw_only=True):
    """Some of the objectives, in seconds; None is for those that something more general says."""

    ttft_p99_seconds: float | None = None
    itl_p99_seconds: float | None = None

    def __post_init__(self) -> None:
        _check_slo(self)


class ObjectiveTable(SomeSlo, frozen=True, kw_only=True):
    """Objectives for some engines, by patterns on their model and role, or for one class of tenants on them."""

    model: str = "*"
    role: str = "*"
    class_: str = field(name="class", default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ttft_p99_seconds is None and self.itl_p99_seconds is None:
            raise ValueError("set ttft_p99_seconds, itl_p99_seconds or both")
        for name, value in (("model", self.model), ("role", self.role)):
            if not TEXT.fullmatch(value):
                raise ValueError(f"{name} must be one line of 1 to 200 characters")
        if self.class_ and (not TEXT.fullmatch(self.class_) or is_pattern(self.class_)):
            raise ValueError("class must be the name of one class, not a pattern: it becomes the label `class`")

    def covers(self, model: str, role: str) -> bool:
        """Whether it is for an engine; what is not known of the engine is an empty text."""
        return fnmatchcase(model, self.model) and fnmatchcase(role, self.role)


class MuteTable(Struct, frozen=True, kw_only=True):
    """A rule that is not to be reported, for an entity or everywhere, until a time or for good."""

    rule: str
    reason: str
    entity: dict[str, str] = {}
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.rule):
            raise ValueError(f"rule {self.rule!r} must be a code such as KVC05")
        if not self.reason.strip():
            raise ValueError("reason must explain the mute")
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError("until needs a time zone, such as 2026-12-01T00:00:00Z")
        for label in self.entity:
            one_of("entity", label, ENTITY_LABELS)

    def covers(self, rule: str, entity: Mapping[str, str], t: float) -> bool:
        """Whether it mutes a rule for an entity's labels at `t`, seconds since the epoch."""
        if rule != self.rule or (self.until is not None and t >= self.until.timestamp()):
            return False
        return all(entity.get(label, "") == value for label, value in self.entity.items())


def _check_slo(slo: SloTable | SomeSlo) -> None:
    for name, least, most in (("ttft_p99_seconds", 0.001, 3600.0), ("itl_p99_seconds", 0.0001, 60.0)):
        value = getattr(slo, name)
        if value is not None:
            check_seconds(name, value, least, most)

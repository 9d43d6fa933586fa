"""The inspection: what each target is, what its telemetry can tell, and what would make it tell more.

`kvitals check` renders it and computes nothing; `--json` is this document. `VERSION` changes its first number when
a reader of the old documents would break.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from kvitals.rules.finding import DocumentSource

VERSION = "1.0"

State = Literal["live", "zero", "stale", "missing", "off", "newer"]
"""Of a family on an engine: it moves; it has been 0 since the start; its samples are old; this version shows it by
default and this page does not; a flag brings it; a newer version has it."""


class FamilyState(Struct, frozen=True):
    family: str
    state: State
    raw: str  # the engine's own name, the preferred one where there are several
    why: str = ""  # the flag, the version, or the page's reason


class Switch(Struct, frozen=True):
    """A piece of telemetry that a flag switches."""

    flag: str
    on: bool | None  # None: not known
    brings: str
    cost: str


class Resolution(Struct, frozen=True):
    """How well a histogram tells whether an objective is met."""

    objective: str
    seconds: float
    on_edge: bool  # the objective is a bucket's bound, so the share within it is exact
    lower: float  # bounds of the bucket that the objective lies in; infinite above the last
    upper: float | None  # None: there is no bound above
    text: str


class TelemetryProblem(Struct, frozen=True):
    """Something about a target's telemetry. A defect makes numbers wrong or absent; the rest is good to know."""

    what: str
    remedy: str
    defect: bool


class Fact(Struct, frozen=True):
    fact: str
    value: float
    source: str


class Lack(Struct, frozen=True):
    what: str
    remedy: str


class Score(Struct, frozen=True):
    """How much of what a journey needs is there."""

    journey: str
    title: str
    have: int
    of: int
    lacks: list[Lack]


class InspectedTarget(Struct, frozen=True, kw_only=True):
    """One target, or one rank of it."""

    engine: str
    up: bool
    state: str  # what the last scrape came to
    system: str
    kind: str
    version: str
    version_source: str
    untested: bool  # newer than the map it is read with
    model: str
    role: str
    strings: dict[str, str]  # the configuration's strings
    facts: list[Fact]
    families: list[FamilyState]
    switches: list[Switch]
    resolutions: list[Resolution]
    problems: list[TelemetryProblem]
    scores: list[Score]


class Sense(Struct, frozen=True):
    """How a sense of the node fares."""

    sense: str
    state: str
    reason: str


class Inspection(Struct, frozen=True, kw_only=True):
    version: str = VERSION
    source: DocumentSource
    at: float
    targets: list[InspectedTarget]
    senses: list[Sense]
    ok: bool | None  # False: some target has a defect; None: no target could be read, or not all of the source
    warnings: list[str] = []  # what could not be read of the source


def schema() -> dict[str, Any]:
    """The JSON schema of `Inspection`."""
    return msgspec.json.schema(Inspection)

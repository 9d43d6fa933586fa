"""What a check finds."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Weight = Literal["error", "warning"]
"""An error shows something false or nothing at all; a warning can mislead."""

Kind = Literal["panel", "alert", "record", "variable", "annotation"]


class LintedQuery(Struct, frozen=True, kw_only=True):
    """A query of a document, and what stands around it that says what it is meant for."""

    place: str  # panel or rule, for people
    text: str
    kind: Kind = "panel"
    title: str = ""
    unit: str = ""  # Grafana's
    legend: str = ""
    severity: str = ""  # of an alert
    said: str = ""  # an alert's annotations, a panel's description
    thresholds: tuple[float, ...] = ()  # at which a panel changes its colour


class Document(Struct, frozen=True, kw_only=True):
    """A board or a file of rules."""

    name: str
    queries: list[LintedQuery]
    left_out: list[str] = []  # what could not be read, and why
    variables: frozenset[str] | None = None  # of a board


class Defect(Struct, frozen=True, kw_only=True):
    """One thing that is wrong with one query."""

    code: str
    weight: Weight
    document: str
    place: str
    query: str
    why: str
    fix: str = ""  # the corrected query, or empty
    advice: str = ""  # where no query mends it


class Unread(Struct, frozen=True, kw_only=True):
    """A query of which only the names were looked at."""

    document: str
    place: str
    query: str
    why: str


class Report(Struct, frozen=True, kw_only=True):
    """What came of it all."""

    version: str = "1.0"
    documents: int
    queries: int
    defects: list[Defect]
    unread: list[Unread] = []
    left_out: list[str] = []
    engines: dict[str, str] = {}  # system -> version that names were held against

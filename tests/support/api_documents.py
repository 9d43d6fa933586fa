"""What each route of the agent's API answers, as types: every field, with nothing left over.

The product's own types are used where a client decodes with them. The reports of the block ledger and the answers that
follow Prometheus are written down here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvitals.agent.requests.record import RequestRecord
from kvitals.app.agent_client import HistorySpan, SeriesAnswer, TailAnswer
from kvitals.rules.finding import Triage
from kvitals.series.history.event_log import HistoryEvent


class Curve(msgspec.Struct):
    capacity_blocks: list[int]
    token_hit_rate: list[float]
    error: list[float]
    references: int
    sample_rate: float


class BlameCell(msgspec.Struct):
    tenant: str
    by: str
    tokens: float


class Blame(msgspec.Struct):
    known: float | None
    error: float | None
    tokens: list[BlameCell]


class CachedEngine(msgspec.Struct):
    engine: str
    block_tokens: int | None
    pool_blocks: int | None
    live_blocks: int
    ghost_blocks: int
    confidence: float | None
    observed: float | None
    accesses: dict[str, int]
    unobserved: dict[str, int]
    lookup_tokens: float
    hit_tokens: float
    refaulted_tokens: float
    resident_tokens: dict[str, float]
    owner_tokens: dict[str, float]
    blame: Blame
    curve: Curve | None


class CachedTenant(msgspec.Struct):
    lookup_tokens: float
    hit_tokens: float
    attainable_tokens: float | None
    refaulted_tokens: float
    resident_tokens: float
    token_seconds: float
    curve: Curve | None


class CacheReport(msgspec.Struct):
    """/api/v1/cache"""

    engines: list[CachedEngine]
    tenants: dict[str, CachedTenant]
    curve: Curve | None
    duplicate_tokens: float
    tenant_names: dict[str, str] = {}


class Stage(msgspec.Struct):
    stage: int
    name: str
    began: float
    said: float
    before: bool


class Trigger(msgspec.Struct):
    kind: str
    tenant: str = ""
    share_of_rise: float | None = None
    from_tokens_per_second: float | None = None
    to_tokens_per_second: float | None = None
    from_blocks: int | None = None
    to_blocks: int | None = None


class Share(msgspec.Struct):
    tenant: str
    share: float
    tokens: float | None = None


class Baseline(msgspec.Struct):
    stored_tokens_per_second: float | None
    ttft_mean_seconds: float | None
    waiting: float | None
    running: float | None
    output_tokens_per_second: float | None


class Cascade(msgspec.Struct):
    id: str
    engine: str
    kind: str
    state: str
    began: float
    ended: float | None
    until: float
    stage: int
    stages: list[Stage]
    pressure_known: bool
    trigger: Trigger
    alarm: float | None
    alarmed_before: bool
    lead_seconds: dict[str, float]
    peak_refault_share: float
    refaulted_tokens: int
    prefill_seconds: float | None
    gpu_seconds: float | None
    blamed: Share | None
    caused: list[Share]
    suffered: list[Share]
    baseline: Baseline


class CascadeState(msgspec.Struct):
    engine: str
    state: str
    stage: int | None


class CascadeReport(msgspec.Struct):
    """/api/v1/cascades"""

    engines: list[CascadeState]
    cascades: list[Cascade]


class RequestList(msgspec.Struct):
    """/api/v1/requests"""

    requests: list[RequestRecord]
    kept: int


class PastFinding(msgspec.Struct):
    """One of /api/v1/history/findings; `finding` is a finding of the version that wrote it."""

    key: str
    code: str
    entity: dict[str, str]
    start: float
    end: float
    open: bool
    finding: dict[str, Any]


class InstantSeries(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class Vector(msgspec.Struct):
    """/api/v1/query"""

    resultType: str
    result: list[InstantSeries]


class Matrix(msgspec.Struct):
    """/api/v1/query_range"""

    resultType: str
    result: list[SeriesAnswer]


class Meaning(msgspec.Struct):
    type: str
    help: str
    unit: str


DOCUMENTS: dict[str, tuple[dict[str, str], Any]] = {
    "findings": ({}, Triage),
    "since-change": ({}, Triage),
    "query": ({"query": "kvitals_requests_running"}, Vector),
    "query_range": ({"query": "kvitals_requests_running", "start": "START", "end": "END", "step": "5"}, Matrix),
    "query_exemplars": ({"query": "kvitals_ttft_seconds_bucket", "start": "START", "end": "END"}, list[dict[str, Any]]),
    "labels": ({}, list[str]),
    "series": ({"match[]": "kvitals_requests_running"}, list[dict[str, str]]),
    "label/{name}/values": ({"name": "engine"}, list[str]),
    "metadata": ({}, dict[str, list[Meaning]]),
    "rules": ({}, dict[str, list[dict[str, Any]]]),
    "alerts": ({}, dict[str, list[dict[str, Any]]]),
    "status/buildinfo": ({}, dict[str, str]),
    "status/runtimeinfo": ({}, dict[str, Any]),
    "requests": ({"newest": "20"}, RequestList),
    "tail": ({}, TailAnswer),
    "cache": ({}, CacheReport),
    "cascades": ({}, CascadeReport),
    "history": ({}, HistorySpan),
    "history/findings": ({}, list[PastFinding]),
    "history/events": ({}, list[HistoryEvent]),
}
"""Route below /api/v1 -> the parameters of a question that has an answer, and the type of the answer's data."""

FOR_READERS = {"requests": {"requests[].outcome", "requests[].tenant_name"}, "tail": {"reports[].sentence"}}
"""Fields that are derived for people and that no client decodes."""


def unread(document: Any, kind: Any) -> set[str]:
    """The fields of a document that its type does not have, as paths. Raises msgspec.ValidationError."""
    return set(_unread(document, msgspec.to_builtins(msgspec.convert(document, kind)), ""))


def _unread(document: Any, read: Any, at: str) -> Iterator[str]:
    if isinstance(document, dict) and isinstance(read, dict):
        for key, value in document.items():
            path = f"{at}.{key}" if at else str(key)
            if key in read:
                yield from _unread(value, read[key], path)
            else:
                yield path
    elif isinstance(document, list) and isinstance(read, list):
        for value, other in zip(document, read, strict=True):
            yield from _unread(value, other, f"{at}[]")


def with_more_fields(value: Any) -> Any:
    """A decoded document as an agent of a newer version would send it: a field more in every object."""
    return _fields(value, lambda info: True, {"added_later": [1, {"x": "y"}]})


def with_fewer_fields(value: Any) -> Any:
    """The same of an older version, which has the required fields alone."""
    return _fields(value, lambda info: info.required, {})


def _fields(value: Any, kept: Any, more: dict[str, Any]) -> Any:
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.array_like:
            return msgspec.to_builtins(value)
        fields = [info for info in msgspec.structs.fields(value) if kept(info)]
        return {info.encode_name: _fields(getattr(value, info.name), kept, more) for info in fields} | more
    if isinstance(value, dict):
        return {key: _fields(one, kept, more) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_fields(one, kept, more) for one in value]
    return value

"""A request's record as a trace: its own span with one for each phase below it. Pure.

Where the tap saw the request, its span is the tap's own, which nobody else sends and which engines name as their
parent. Else it is a new one below that of the observer nearest to the client. Ids are made from the record, so that a
record that is sent twice is one trace.

A phase's span starts where the record says, unless that would be outside of the request or before the phase ahead of
it: different clocks may tell these. Then, or where a start is unknown, all phases are laid out in order and say so.
Durations are always as recorded. A phase that is unknown has no span, and is named on the request's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from kvitals.agent.requests.observation import OUTER, PHASES
from kvitals.agent.requests.record import UNATTRIBUTED, RequestPhase, RequestRecord, SpanRef
from kvitals.rules.span_map import load_span_maps
from kvitals.series.ascii_numbers import is_digits

SCOPE = "kvitals"
"""The instrumentation scope, by which rules/observers/spans/kvitals.yaml leaves out what comes back."""

REQUEST = "kvitals.request"
MAX_LINKS = 16
MAX_VALUES = 8
SAMPLED = TraceFlags(TraceFlags.SAMPLED)

_HEX = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}")

Attributes = dict[str, str | bool | int | float | tuple[str, ...]]


class SpanMaker:
    """Makes the spans of records."""

    def __init__(self, version: str, node: Mapping[str, str]) -> None:
        """`version` is that of kvitals; `node` has the node's labels."""
        labels = {f"kvitals.{name}": value for name, value in node.items()}
        self._resource = Resource({"service.name": "kvitals", "service.version": version, **labels})
        self._scope = InstrumentationScope(SCOPE, version)

    def spans(self, record: RequestRecord, kept: str) -> list[ReadableSpan]:
        """The request's span and those of its phases. `kept` says why it is sent."""
        start, end = _span_of_time(record)
        own = next((ref for ref in record.spans if ref.observer == "tap" and ref.span), None)
        trace = _trace(record)
        here = SpanContext(trace, _id(own.span) if own else _made(record, REQUEST), False, SAMPLED)
        request = self._span(
            REQUEST,
            here,
            start,
            end,
            parent=_parent(record, own, trace),
            attributes=_of_request(record, kept),
            links=_links(record),
            kind=SpanKind.SERVER if own else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR) if record.outcome in ("error", "refused") else Status(),
        )
        phases = [
            self._span(
                name_of(phase.name),
                SpanContext(trace, _made(record, phase.name), False, SAMPLED),
                begins,
                begins + length,
                parent=here,
                attributes=_of_phase(record, phase, is_laid_out),
            )
            for phase, begins, length, is_laid_out in place(record)
        ]
        return [request, *phases]

    def _span(
        self,
        name: str,
        context: SpanContext,
        start: int,
        end: int,
        *,
        parent: SpanContext | None,
        attributes: Attributes,
        links: tuple[Link, ...] = (),
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = Status(),  # noqa: B008 (it is immutable)
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            links=links,
            kind=kind,
            status=status,
            start_time=start,
            end_time=end,
            instrumentation_scope=self._scope,
        )


def name_of(phase: str) -> str:
    """The name of a phase's span."""
    return f"{SCOPE}.{phase}"


def place(record: RequestRecord) -> list[tuple[RequestPhase, int, int, bool]]:
    """Known phases with start and length in nanoseconds, within the request, and whether they were laid out."""
    first, last = _span_of_time(record)
    known = [(p, _nanoseconds(p.seconds)) for p in record.phases if p.name in PHASES and p.seconds is not None]
    starts = [_nanoseconds(phase.start) if phase.start is not None else None for phase, _ in known]
    if _fit(starts, [length for _, length in known], first, last):
        return [(phase, start or first, length, False) for (phase, length), start in zip(known, starts, strict=True)]
    found, at = [], first
    for phase, length in known:
        begins = max(first, min(at, last - length))
        found.append((phase, begins, min(length, last - begins), True))
        at = begins + length
    return found


def _fit(starts: list[int | None], lengths: list[int], first: int, last: int) -> bool:
    """Whether phases are where they are said to be: all known, in order, within the request.

    The gateway's time is before and behind all others, so it may overlap them.
    """
    if None in starts:
        return False
    known = [start for start in starts if start is not None]
    inside = all(first <= start and start + length <= last for start, length in zip(known, lengths, strict=True))
    return inside and known == sorted(known)


def _span_of_time(record: RequestRecord) -> tuple[int, int]:
    """When the request began and ended, in nanoseconds."""
    start = _nanoseconds(record.start)
    length = record.e2e if record.e2e is not None else max(0.0, record.end - record.start)
    return start, start + _nanoseconds(length)


def _nanoseconds(seconds: float | None) -> int:
    return max(0, round((seconds or 0.0) * 1e9))


def _trace(record: RequestRecord) -> int:
    """The given trace, or one of its own."""
    return _id(record.trace) or int.from_bytes(_digest(record, "trace", 16))


def _parent(record: RequestRecord, own: SpanRef | None, trace: int) -> SpanContext | None:
    """The span around the request's: of the tap's own its parent, else that of the outermost observer. Of several
    engines that nobody was seen around, such as a pair, it is the one that they have in common."""
    here = [ref for ref in record.spans if not ref.trace]
    around = [ref.span for ref in here if ref.observer in OUTER] or [ref.span for ref in here]
    if own is not None:
        around = [own.parent]
    elif len(around) > 1 and here[0].observer not in OUTER:
        around = list({ref.parent for ref in here})
        if len(around) > 1:
            return None
    span = _id(around[0]) if around else 0
    return SpanContext(trace, span, True, SAMPLED) if span and _id(record.trace) else None


def _links(record: RequestRecord) -> tuple[Link, ...]:
    """To spans of the same request in other traces."""
    others = (ref for ref in record.spans if ref.trace and _id(ref.trace) and _id(ref.span))
    found = (Link(SpanContext(_id(ref.trace), _id(ref.span), True, SAMPLED)) for ref in others)
    return tuple(link for link, _ in zip(found, range(MAX_LINKS), strict=False))


def _of_request(record: RequestRecord, kept: str) -> Attributes:
    provider = next((system for system in record.observers if system in _engine_systems()), "")
    unattributed = next((p.seconds for p in record.phases if p.name == UNATTRIBUTED), None)
    unknown = tuple(p.name for p in record.phases if p.seconds is None)
    engine = record.engines.get("unified") or record.engines.get("decode") or ""
    address, port = _address(engine)
    failed = record.error or (str(record.status) if record.status is not None and record.status >= 400 else "")
    attributes: dict[str, str | bool | int | float | tuple[str, ...] | None] = {
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.finish_reasons": (record.finish,) if record.finish else None,
        "gen_ai.response.time_to_first_chunk": record.ttft,
        "server.address": address,
        "server.port": port,
        "http.response.status_code": record.status,
        "error.type": failed,
        "kvitals.request.id": record.id,
        "kvitals.outcome": record.outcome,
        "kvitals.kept": kept,
        "kvitals.complete": record.complete,
        "kvitals.observers": record.observers[:MAX_VALUES] or None,
        "kvitals.tenant": record.tenant,
        "kvitals.session": record.session,
        "kvitals.lora": record.lora,
        "kvitals.external_tokens": record.external_tokens,
        "kvitals.itl.mean": record.itl,
        "kvitals.itl.max": record.itl_max,
        "kvitals.itl.p99": record.itl_p99,
        "kvitals.phase.unattributed": unattributed,
        "kvitals.phase.unknown": unknown or None,
    }
    for role, label in list(record.engines.items())[:MAX_VALUES]:
        attributes[f"kvitals.engine.{role}"] = label
    return {name: value for name, value in attributes.items() if value is not None and value != ""}


def _of_phase(record: RequestRecord, phase: RequestPhase, is_laid_out: bool) -> Attributes:
    found: Attributes = {"kvitals.phase.source": phase.source, "kvitals.laid_out": is_laid_out}
    if phase.why:
        found["kvitals.phase.why"] = phase.why
    role = {"prefill": "prefill", "transfer": "decode", "decode": "decode"}.get(phase.name, "unified")
    engine = record.engines.get(role) or record.engines.get("unified", "")
    if engine and phase.name != "gateway":
        found["kvitals.engine"] = engine
    return found


def _address(engine: str) -> tuple[str, int | None]:
    """Host and port of an engine that is called by its address, less its rank; nothing of one with another name."""
    host, colon, port = engine.partition("/")[0].rpartition(":")
    if not colon or not host or not is_digits(port) or len(port) > 5:
        return "", None
    return host.removeprefix("[").removesuffix("]"), int(port)


@lru_cache(maxsize=1)
def _engine_systems() -> frozenset[str]:
    return frozenset(one.system for one in load_span_maps() if one.is_engine)


def _id(text: str) -> int:
    """An id in hex as a number; 0 for none."""
    return int(text, 16) if _HEX.fullmatch(text) else 0


def _made(record: RequestRecord, what: str) -> int:
    return int.from_bytes(_digest(record, what, 8)) or 1


def _digest(record: RequestRecord, what: str, size: int) -> bytes:
    text = "\0".join((record.trace, record.id, repr(record.start), what))
    return blake2b(text.encode("utf-8", "replace"), digest_size=size).digest()

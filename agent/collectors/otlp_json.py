"""OTLP in JSON: a request to groups of spans.

Ids are hexadecimal here and whole numbers may be texts, as the protocol has it, so protobuf's own JSON is no use. Only
what a part may need is decoded: what it is not asked for, such as events' attributes, never becomes an object.
Resources, scopes and spans stay text until they are read one by one, so each has its limit of bytes, and a broken span
costs no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from kvitals.agent.collectors import otlp_messages as messages
from kvitals.agent.collectors import otlp_wire
from kvitals.agent.collectors.otlp_wire import (
    ENGINE_ATTRIBUTES,
    MAX_NAME,
    OtlpFormatError,
    SpanGroup,
    engine_of,
    within_limit,
)
from kvitals.agent.requests.spans import ERROR, MALFORMED, TOO_LARGE, SpanFields
from kvitals.series.ascii_numbers import ascii_float, ascii_int
from kvitals.series.slices import Steps
from kvitals.series.undecodable import UNDECODABLE

MAX_OBJECTS = 100_000
"""Objects and lists in a request, since each costs more in memory than on the wire. A span has about 30."""
MAX_SPAN_BYTES = 2 * otlp_wire.MAX_SPAN_BYTES
"""The same span is 1.8 times as long in JSON as in protobuf (one of Envoy AI Gateway)."""
MAX_GROUPS = 4096
"""Resources in a request, and scopes."""


_NULL = msgspec.Raw(b"null")


class _Array(Struct):
    values: list[_Value] = []


class _Value(Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: str | int | None = None
    double_value: float | str | None = None
    array_value: _Array | None = None


class _Attribute(Struct):
    key: str = ""
    value: _Value | None = None


class _Event(Struct, rename="camel"):
    name: str = ""
    time_unix_nano: str | int = 0


class _Status(Struct):
    code: int | str = 0


class _Span(Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    name: str = ""
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_Attribute] = []
    events: list[_Event] = []
    status: _Status | None = None


class _Scope(Struct):
    name: str = ""


class _ScopeSpans(Struct):
    scope: msgspec.Raw = _NULL
    spans: list[msgspec.Raw] = []


class _Resource(Struct):
    attributes: list[_Attribute] = []


class _ResourceSpans(Struct, rename="camel"):
    resource: msgspec.Raw = _NULL
    scope_spans: list[msgspec.Raw] = []


class _Request(Struct, rename="camel"):
    resource_spans: list[msgspec.Raw] = []


_decoder = msgspec.json.Decoder(_Request)
_resource_spans_decoder = msgspec.json.Decoder(_ResourceSpans)
_scope_spans_decoder = msgspec.json.Decoder(_ScopeSpans)
_resource_decoder = msgspec.json.Decoder(_Resource | None)
_scope_decoder = msgspec.json.Decoder(_Scope | None)
_span_decoder = msgspec.json.Decoder(_Span)


def groups(payload: bytes) -> Steps[list[SpanGroup]]:
    """The spans of a request in JSON. Raises OtlpFormatError."""
    if payload.count(b"{") + payload.count(b"[") > MAX_OBJECTS:
        raise OtlpFormatError(f"more than {MAX_OBJECTS} objects in one request: send smaller batches")
    result: list[SpanGroup] = []
    try:
        for group in _groups(payload):
            result.append(group)
            yield None
    except UNDECODABLE as error:
        raise OtlpFormatError(f"not an OTLP request for traces in JSON: {error}") from error
    return result


def _groups(payload: bytes) -> Iterator[SpanGroup]:
    resources = [_resource_spans_decoder.decode(one) for one in _bounded(_decoder.decode(payload).resource_spans)]
    _bounded([scope for resource in resources for scope in resource.scope_spans])
    for resource in resources:
        engine = engine_of(_engine_attributes(_resource_decoder.decode(within_limit(memoryview(resource.resource)))))
        for group in map(_scope_spans_decoder.decode, resource.scope_spans):
            scope = _scope_decoder.decode(within_limit(memoryview(group.scope)))
            yield SpanGroup(engine, scope.name if scope else "", _spans(group.spans))


def _bounded(texts: list[msgspec.Raw]) -> list[msgspec.Raw]:
    """The same resources or scopes, which are still text: too many are refused before any becomes an object."""
    if len(texts) > MAX_GROUPS:
        raise OtlpFormatError(f"more than {MAX_GROUPS} resources or scopes in one request: send smaller batches")
    return texts


def _engine_attributes(resource: _Resource | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for attribute in resource.attributes if resource else ():
        value = attribute.value
        if value is not None and attribute.key in ENGINE_ATTRIBUTES:
            text = str(value.string_value or value.int_value or "")
            found[attribute.key] = text[:MAX_NAME] if text.isprintable() else ""
    return found


def _spans(spans: Sequence[msgspec.Raw]) -> Iterator[SpanFields | str]:
    for one in spans:
        text = memoryview(one)
        try:
            yield _span(_span_decoder.decode(text)) if len(text) <= MAX_SPAN_BYTES else TOO_LARGE
        except (ValueError, TypeError, *UNDECODABLE):
            yield MALFORMED


def _span(said: _Span) -> SpanFields:
    code = said.status.code if said.status else 0
    made: SpanFields = messages.Span(
        trace_id=bytes.fromhex(said.trace_id),
        span_id=bytes.fromhex(said.span_id),
        parent_span_id=bytes.fromhex(said.parent_span_id),
        name=said.name,
        start_time_unix_nano=_whole(said.start_time_unix_nano),
        end_time_unix_nano=_whole(said.end_time_unix_nano),
        attributes={one.key: _value(one.value) for one in said.attributes if one.value},
        events=[messages.Event(name=one.name, time_unix_nano=_whole(one.time_unix_nano)) for one in said.events],
        status=messages.SpanStatus(code=ERROR if code in (ERROR, "STATUS_CODE_ERROR") else 0),
    )
    return made


def _whole(said: int | str) -> int:
    return ascii_int(said) if isinstance(said, str) else said


def _double(said: float | str) -> float:
    return ascii_float(said) if isinstance(said, str) else float(said)


def _value(said: _Value) -> Any:
    if said.string_value is not None:
        return messages.AnyValue(string_value=said.string_value)
    if said.int_value is not None:
        return messages.AnyValue(int_value=_whole(said.int_value))
    if said.double_value is not None:
        return messages.AnyValue(double_value=_double(said.double_value))
    if said.bool_value is not None:
        return messages.AnyValue(bool_value=said.bool_value)
    first = said.array_value.values[:1] if said.array_value else []
    scalar = [_value(one) for one in first if one.array_value is None]
    return messages.AnyValue(array_value=messages.ArrayValue(values=scalar)) if scalar else messages.AnyValue()

"""OTLP on the wire: requests in protobuf to groups of spans, and the answers.

The layers around the spans are read here, `MAX_FIELDS` at most, and one span at a time is unpacked (`otlp_messages`).
So a broken span costs no other, and millions of empty fields end in an error and not in millions of objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue

from kvitals.agent.collectors import otlp_messages as messages
from kvitals.agent.requests.spans import MALFORMED, TOO_LARGE, SpanFields
from kvitals.series.slices import Steps

MAX_SPAN_BYTES = 64 * 1024
MAX_OUTER_BYTES = 64 * 1024  # of a resource, of a scope
Outer = TypeVar("Outer", bytes, memoryview)
MAX_FIELDS = 25_000
"""Fields of one request outside its spans: resources, their attributes, scopes, and the spans themselves. Reading so
many takes 15 to 60 ms of CPU."""

FIELDS_A_STEP = 256
"""So many take about 0.5 ms."""

RETRY_SECONDS = 1
"""When a client may try again that was told to."""

RETRY_INFO: bytes = messages.RetryInfo(retry_delay=messages.Duration(seconds=RETRY_SECONDS)).SerializeToString()

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 3, 8, 12, 16
"""Codes of google.rpc.Status."""

GENERIC_SERVICES = frozenset(("sglang", "vllm", "dynamo", "unknown_service"))
"""Names of services that nobody chose for one of several engines."""


class OtlpFormatError(ValueError):
    """It is no OTLP request. The message says what it is instead, for whoever configured the exporter."""


class SpanGroup(NamedTuple):
    """Spans of one resource and scope."""

    engine: str  # what the resource calls the engine
    scope: str
    spans: Iterator[SpanFields | str]  # unpacked one by one; the reason for one that cannot be read


def groups(payload: bytes) -> Steps[list[SpanGroup]]:
    """The spans of a request in protobuf. Raises OtlpFormatError."""
    fields = _Fields()
    result: list[SpanGroup] = []
    try:
        for resource_spans in fields.of(payload, 1):
            yield None
            resource, scopes = yield from fields.first_and_many(resource_spans)
            engine = engine_of((yield from _attributes(fields.of(within_limit(resource), 1))))
            for scope_spans in scopes:
                yield None
                scope, spans = yield from fields.first_and_many(scope_spans)
                name = InstrumentationScope.FromString(within_limit(scope)).name
                result.append(SpanGroup(engine, name, _spans(spans)))
    except (DecodeError, IndexError) as error:
        raise OtlpFormatError(f"not an OTLP request for traces in protobuf: {error}") from error
    return result


class _Fields:
    """Reads the fields of one request's messages, `MAX_FIELDS` in all.

    Google's parser has no such bound: 4 MB of empty resources are two million objects in one call.
    """

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def of(self, message: bytes, wanted: int) -> Iterator[bytes]:
        """The values of a repeated field. Raises OtlpFormatError; IndexError where the message ends too early."""
        return (value for number, value in self._pairs(message) if number == wanted)

    def first_and_many(self, message: bytes) -> Steps[tuple[bytes, list[bytes]]]:
        """Field 1, which is there once, and field 2, which is repeated: a resource or scope, and what is of it."""
        one, many = b"", list[bytes]()
        for number, value in self._pairs(message):
            if number == 2:
                many.append(value)
                if len(many) % FIELDS_A_STEP == 0:
                    yield None
            elif number == 1:
                one = value
        return one, many

    def _pairs(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """The number and value of each field that has a length (protobuf.dev/programming-guides/encoding)."""
        at, end = 0, len(message)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise OtlpFormatError(
                    f"more than {MAX_FIELDS} resources, resource attributes, scopes and spans in one request: "
                    "send smaller batches"
                )
            key, at = _varint(message, at)
            if key & 7 == _LENGTH:
                size, at = _varint(message, at)
                if at + size > end:
                    raise IndexError("a field is longer than the message that contains it")
                yield key >> 3, message[at : at + size]
                at += size
            elif key & 7 == _VARINT:
                _, at = _varint(message, at)
            elif size := _FIXED.get(key & 7, 0):
                at += size
            else:
                raise IndexError(f"wire type {key & 7}")
        if at > end:
            raise IndexError("a field is longer than the message that contains it")


_VARINT, _LENGTH, _FIXED = 0, 2, {1: 8, 5: 4}
"""Wire types."""


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it. Raises IndexError."""
    byte = message[at]
    if byte < 0x80:
        return byte, at + 1
    number = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise IndexError("a number of more than ten bytes")


def engine_of(attributes: dict[str, str]) -> str:
    """What a resource calls the engine: its pod, the service where somebody named it, its process, or nothing."""
    pod, service = attributes.get("k8s.pod.name", ""), attributes.get("service.name", "")
    if pod:
        namespace = attributes.get("k8s.namespace.name", "")
        return f"{namespace}/{pod}" if namespace else pod
    if service and service.partition(":")[0] not in GENERIC_SERVICES:
        return service
    pid = attributes.get("process.pid") or attributes.get("vllm.process_id")
    return f"pid:{pid}" if pid else ""


ENGINE_ATTRIBUTES = frozenset(("k8s.pod.name", "k8s.namespace.name", "service.name", "process.pid", "vllm.process_id"))
MAX_NAME = 200


def answer(rejected: int, why: str) -> ExportTraceServiceResponse:
    """The answer to a request that was taken; `rejected` spans of it were not, and `why` says the reason."""
    made = ExportTraceServiceResponse()
    if rejected or why:
        made.partial_success.rejected_spans = rejected
        made.partial_success.error_message = why
    return made


def pack_answer(said: ExportTraceServiceResponse) -> bytes:
    """An answer in protobuf."""
    return bytes(said.SerializeToString())


def status(code: int, message: str, retry: bool = False) -> bytes:
    """A google.rpc.Status, as OTLP wants errors; `retry` tells when to try again."""
    made = messages.Status(code=code, message=message)
    if retry:
        made.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=RETRY_INFO)
    return bytes(made.SerializeToString())


def _spans(spans: Sequence[bytes]) -> Iterator[SpanFields | str]:
    for one in spans:
        try:
            yield messages.Span.FromString(one) if len(one) <= MAX_SPAN_BYTES else TOO_LARGE
        except DecodeError:
            yield MALFORMED


def _attributes(attributes: Iterable[bytes]) -> Steps[dict[str, str]]:
    """Those attributes of a resource that name an engine."""
    result: dict[str, str] = {}
    for number, attribute in enumerate(map(KeyValue.FromString, attributes), start=1):
        if attribute.key in ENGINE_ATTRIBUTES:
            which = attribute.value.WhichOneof("value")
            if which in ("string_value", "int_value"):
                text = str(getattr(attribute.value, which))
                result[attribute.key] = text[:MAX_NAME] if text.isprintable() else ""
        if number % FIELDS_A_STEP == 0:
            yield None
    return result


def within_limit(outer: Outer) -> Outer:
    """A resource or scope as it was sent. Raises OtlpFormatError where it is too large."""
    if len(outer) > MAX_OUTER_BYTES:
        raise OtlpFormatError(f"a resource or scope of more than {MAX_OUTER_BYTES // 1024} KB")
    return outer

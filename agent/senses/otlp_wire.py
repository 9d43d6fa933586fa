"""OTLP on the wire: requests in protobuf to groups of spans, and the answers.

A request's outer shell is read with messages of our own, in which everything within is bytes: so one span at a time is
unpacked, a broken one costs no other, and a request of empty spans can not become a hundred times its size in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

MAX_SPAN_BYTES = 64 * 1024
MAX_OUTER_BYTES = 64 * 1024  # of a resource, of a scope
MAX_GROUPS = 4096

RETRY_SECONDS = 1
"""When a client may try again that was told to."""

INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 3, 8, 12, 16
"""Codes of google.rpc.Status."""

GENERIC_SERVICES = frozenset(("sglang", "vllm", "dynamo", "unknown_service"))
"""Names of services that nobody chose for one of several engines."""


class MalformedError(ValueError):
    """It is no OTLP request. The message says what it is instead, for whoever configured the exporter."""


class Group(NamedTuple):
    """Spans of one resource and scope."""

    engine: str  # what the resource calls the engine
    scope: str
    size: int
    spans: Iterator[Span | None]  # unpacked one by one; None for one that can not be read


def groups(payload: bytes) -> list[Group]:
    """The spans of a request in protobuf. Raises MalformedError."""
    found: list[Group] = []
    try:
        for resource_bytes in _Request.FromString(payload).resource_spans:
            of_resource = _ResourceSpans.FromString(resource_bytes)
            engine = engine_of(_attributes(of_resource.resource))
            for scope_bytes in of_resource.scope_spans:
                if len(found) >= MAX_GROUPS:
                    raise MalformedError(f"more than {MAX_GROUPS} scopes in one request: send smaller batches")
                of_scope = _ScopeSpans.FromString(scope_bytes)
                scope = InstrumentationScope.FromString(_limited(of_scope.scope)).name
                found.append(Group(engine, scope, len(of_scope.spans), _spans(of_scope.spans)))
    except DecodeError as error:
        raise MalformedError(f"not an OTLP request for traces in protobuf: {error}") from error
    return found


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


def packed(said: ExportTraceServiceResponse) -> bytes:
    """An answer in protobuf."""
    return bytes(said.SerializeToString())


def status(code: int, message: str, retry: bool = False) -> bytes:
    """A google.rpc.Status, as OTLP wants errors; `retry` tells when to try again."""
    made = _Status(code=code, message=message)
    if retry:
        made.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=RETRY_INFO)
    return bytes(made.SerializeToString())


def _spans(spans: Sequence[bytes]) -> Iterator[Span | None]:
    for one in spans:
        try:
            yield Span.FromString(one) if len(one) <= MAX_SPAN_BYTES else None
        except DecodeError:
            yield None


def _attributes(resource: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for attribute in Resource.FromString(_limited(resource)).attributes:
        if attribute.key in ENGINE_ATTRIBUTES:
            which = attribute.value.WhichOneof("value")
            if which in ("string_value", "int_value"):
                text = str(getattr(attribute.value, which))
                found[attribute.key] = text[:MAX_NAME] if text.isprintable() else ""
    return found


def _limited(outer: bytes) -> bytes:
    if len(outer) > MAX_OUTER_BYTES:
        raise MalformedError(f"a resource or scope of more than {MAX_OUTER_BYTES // 1024} KB")
    return outer


def _messages() -> dict[str, Any]:
    """Messages with the numbers of OTLP's and of google.rpc's."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kvitals/otlp.proto", package="kvitals", syntax="proto3")
    one, many, number, text = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_INT32, field.TYPE_STRING
    shapes: dict[str, list[tuple[str, int, int, int]]] = {
        "Request": [("resource_spans", 1, field.TYPE_BYTES, many)],
        "ResourceSpans": [("resource", 1, field.TYPE_BYTES, one), ("scope_spans", 2, field.TYPE_BYTES, many)],
        "ScopeSpans": [("scope", 1, field.TYPE_BYTES, one), ("spans", 2, field.TYPE_BYTES, many)],
        "Duration": [("seconds", 1, field.TYPE_INT64, one)],
        "RetryInfo": [("retry_delay", 1, field.TYPE_BYTES, one)],
        "Any": [("type_url", 1, text, one), ("value", 2, field.TYPE_BYTES, one)],
        "Status": [("code", 1, number, one), ("message", 2, text, one), ("details", 3, field.TYPE_MESSAGE, many)],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for name_, number_, type_, label in fields:
            made = message.field.add(name=name_, number=number_, type=field.Type.ValueType(type_), label=label)
            if type_ == field.TYPE_MESSAGE:
                made.type_name = ".kvitals.Any"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kvitals.{name}")) for name in shapes}


_made = _messages()
_Request, _ResourceSpans, _ScopeSpans, _Status = (
    _made[name] for name in ("Request", "ResourceSpans", "ScopeSpans", "Status")
)
RETRY_INFO: bytes = _made["RetryInfo"](
    retry_delay=_made["Duration"](seconds=RETRY_SECONDS).SerializeToString()
).SerializeToString()

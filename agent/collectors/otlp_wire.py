"""OTLP on the wire: requests in protobuf to groups of spans, and the answers.

One span at a time is unpacked (`otlp_messages`): so a broken one costs no other, and a request of empty spans can not
become a hundred times its size in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from kvitals.agent.collectors import otlp_messages as messages
from kvitals.agent.requests.spans import SpanFields

MAX_SPAN_BYTES = 64 * 1024
MAX_OUTER_BYTES = 64 * 1024  # of a resource, of a scope
MAX_GROUPS = 4096

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
    size: int
    spans: Iterator[SpanFields | None]  # unpacked one by one; None for one that can not be read


def groups(payload: bytes) -> list[SpanGroup]:
    """The spans of a request in protobuf. Raises MalformedError."""
    found: list[SpanGroup] = []
    try:
        # A layer is let go before the next one is unpacked: each has all the bytes of those within.
        for of_resource in _resources(payload):
            engine, scopes = _resource(of_resource)
            for of_scope in scopes:
                if len(found) >= MAX_GROUPS:
                    raise OtlpFormatError(f"more than {MAX_GROUPS} scopes in one request: send smaller batches")
                scope, spans = _scope(of_scope)
                found.append(SpanGroup(engine, scope, len(spans), _spans(spans)))
    except DecodeError as error:
        raise OtlpFormatError(f"not an OTLP request for traces in protobuf: {error}") from error
    return found


def _resources(payload: bytes) -> list[bytes]:
    resources = messages.Request.FromString(payload).resource_spans
    if len(resources) > MAX_GROUPS:  # also of empty ones, which cost as much as others
        raise OtlpFormatError(f"more than {MAX_GROUPS} resources in one request: send smaller batches")
    return [*resources]


def _resource(of_resource: bytes) -> tuple[str, list[bytes]]:
    """What it calls the engine, and its scopes, of too many the first ones."""
    said = messages.ResourceSpans.FromString(of_resource)
    return engine_of(_attributes(said.resource)), said.scope_spans[: MAX_GROUPS + 1]


def _scope(of_scope: bytes) -> tuple[str, Sequence[bytes]]:
    """The scope's name, and its spans."""
    said = messages.ScopeSpans.FromString(of_scope)
    return InstrumentationScope.FromString(_limited(said.scope)).name, said.spans


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


def _spans(spans: Sequence[bytes]) -> Iterator[SpanFields | None]:
    for one in spans:
        try:
            yield messages.Span.FromString(one) if len(one) <= MAX_SPAN_BYTES else None
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
        raise OtlpFormatError(f"a resource or scope of more than {MAX_OUTER_BYTES // 1024} KB")
    return outer

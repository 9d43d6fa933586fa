"""Recorded spans, as exporters send them, and parts of them as the reader makes them."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kvitals.agent.collectors import otlp_wire
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.spans import SpanReader
from kvitals.series.slices import complete

FOLDER = Path(__file__).parents[2] / "fixtures" / "spans"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
IDS = ("traceId", "spanId", "parentSpanId")


class Plain:
    """Names that show what went in."""

    def pseudonym(self, raw: str) -> str:
        return f"t-{raw}" if raw else ""

    def session(self, raw: str) -> str:
        return f"s-{raw}" if raw else ""


def lines(name: str) -> list[bytes]:
    """The requests of a fixture in JSON."""
    return (FOLDER / f"{name}.jsonl").read_bytes().splitlines()


def protobuf(line: bytes | dict[str, Any]) -> bytes:
    """A request in JSON as one in protobuf, by protobuf's own reader of JSON."""
    said = line if isinstance(line, dict) else json.loads(line)
    return json_format.ParseDict(_base64(said), ExportTraceServiceRequest()).SerializeToString()


def ended(name: str) -> float:
    """A moment after the last span of a fixture, in seconds since the epoch."""
    return max(int(span["endTimeUnixNano"]) for line in lines(name) for span in _spans(json.loads(line))) / 1e9 + 1


def read(
    requests: list[bytes], seen: float, reader: SpanReader | None = None, decode: Any = otlp_wire.groups
) -> tuple[list[RequestPart], Counter[str]]:
    """The parts of requests, and what was dropped."""
    reader = reader or SpanReader(Plain(), ("tenant.id",))
    parts: list[RequestPart] = []
    dropped: dict[str, int] = {}
    for request in requests:
        for group in complete(decode(request)):
            reader.read(group.spans, group.scope, group.engine, seen, parts, dropped)
    return parts, Counter(dropped)


def parts_of(name: str) -> tuple[list[RequestPart], Counter[str]]:
    """The parts of a fixture."""
    return read([protobuf(line) for line in lines(name)], ended(name))


def request(*spans: dict[str, Any], scope: str = "", resource: dict[str, Any] | None = None) -> dict[str, Any]:
    """A request in JSON with some spans. `attributes` of a span may be a mapping."""
    made = [{**span, "attributes": attributes(span.get("attributes", {}))} for span in spans]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes(resource or {})},
                "scopeSpans": [{"scope": {"name": scope}, "spans": made}],
            }
        ]
    }


def span(name: str, seconds: float = 1.0, at: float = 1000.0, **attributes_: Any) -> dict[str, Any]:
    """A span that ended `at`; attributes with __ for dots."""
    return {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "name": name,
        "startTimeUnixNano": str(round((at - seconds) * 1e9)),
        "endTimeUnixNano": str(round(at * 1e9)),
        "attributes": {key.replace("__", "."): value for key, value in attributes_.items()},
    }


def attributes(plain: Any) -> list[dict[str, Any]]:
    if isinstance(plain, list):
        return plain
    return [{"key": key, "value": _value(value)} for key, value in plain.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else "NaN"}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": value}


def _spans(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for r in said["resourceSpans"] for s in r["scopeSpans"] for one in s["spans"]]


def _base64(said: Any) -> Any:
    """OTLP has ids in hexadecimal, protobuf's JSON as base64."""
    if isinstance(said, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key in IDS else _base64(value)
            for key, value in said.items()
        }
    return [_base64(one) for one in said] if isinstance(said, list) else said

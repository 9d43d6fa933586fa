"""Spans as exporters send them, by OpenTelemetry's GenAI conventions, with texts in them that must get nowhere."""

from __future__ import annotations

import os
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .planted import ANSWER, KEY, PROMPT, SESSION

SECONDS = 1.2
"""How long each request took."""


def export(tenants: list[str]) -> bytes:
    """A request with one span for each of these tenants, which ended now."""
    made = ExportTraceServiceRequest()
    of_resource = made.resource_spans.add()
    attribute = of_resource.resource.attributes.add(key="service.name")
    attribute.value.string_value = "chaos-gateway"
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = "chaos"
    now = time.time_ns()
    for tenant in tenants:
        span = of_scope.spans.add(
            trace_id=os.urandom(16),
            span_id=os.urandom(8),
            name="chat tiny",
            start_time_unix_nano=now - int(SECONDS * 1e9),
            end_time_unix_nano=now,
        )
        texts = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "gen_ai.input.messages": PROMPT,
            "gen_ai.prompt": PROMPT,
            "gen_ai.completion": ANSWER,
            "http.request.header.authorization": f"Bearer {KEY}",
            "session.id": SESSION,
            "tenant.id": tenant,
        }
        for key, text in texts.items():
            span.attributes.add(key=key).value.string_value = text
        span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = 100
        span.attributes.add(key="gen_ai.usage.output_tokens").value.int_value = 10
        event = span.events.add(time_unix_nano=now, name="gen_ai.content.prompt")
        event.attributes.add(key="gen_ai.prompt").value.string_value = PROMPT
    return bytes(made.SerializeToString())

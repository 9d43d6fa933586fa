"""An OTLP receiver that listens, and what is sent to it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
from span_fixtures import Plain, protobuf, request, span

from kvitals.agent.collectors import otlp_grpc, otlp_http
from kvitals.agent.collectors.otlp import OtlpSense
from kvitals.agent.requests.observation import RequestPart
from kvitals.config import Otlp

GRPC, HTTP = "grpc", "http"
EXPORT = f"/{otlp_grpc.TRACES}/Export"


@asynccontextmanager
async def listening(clock: Any = time.time, **settings: Any) -> AsyncIterator[OtlpSense]:
    ports = {"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    sense = OtlpSense(Otlp(**ports | settings), Plain(), ("tenant.id",), clock)
    assert await sense.open() == []
    try:
        yield sense
    finally:
        await sense.close()


def url(sense: OtlpSense, signal: str = "traces") -> str:
    return f"http://127.0.0.1:{sense.ports[HTTP]}/v1/{signal}"


async def post(
    sense: OtlpSense, body: Any, kind: str = otlp_http.PROTOBUF, signal: str = "traces", **headers: str
) -> tuple[int, bytes, Any]:
    sent = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url(sense, signal), data=body, headers=sent) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


async def call(sense: OtlpSense, body: bytes, method: str = EXPORT, **more: Any) -> bytes:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{sense.ports[GRPC]}") as channel:
        answer: bytes = await channel.unary_unary(method)(body, timeout=20, **more)
        return answer


def taken(sense: OtlpSense) -> tuple[list[RequestPart], Counter[str]]:
    """All parts, and what was dropped."""
    records = sense.read(1.0)
    dropped: Counter[str] = Counter()
    for record in records:
        dropped.update(record.dropped)
    return [part for record in records for part in record.parts], dropped


def good(spans: int = 1) -> bytes:
    """A request of spans that are kept, if they are of now."""
    many = [
        span("llm_request", at=time.time(), gen_ai__request__id=f"chatcmpl-rq-{i}") | {"spanId": f"{i + 1:016x}"}
        for i in range(spans)
    ]
    return protobuf(request(*many))

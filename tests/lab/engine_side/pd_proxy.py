"""A proxy before a prefill and a decode engine that pass their KV over NIXL; runs under the lab's own Python.

    python pd_proxy.py --port 8203 --prefill http://127.0.0.1:8201 --decode http://127.0.0.1:8202

Each request goes to the prefill engine for one token, then, with the `kv_transfer_params` that came back, to the decode
engine, whose stream is passed on; trace and request id go with both. Two things go wrong on request: a decode is put
off for `--hand-over` seconds, as a queue in front of the decode engine would, and tried again for `--retry` seconds
while it fails, as routers do; and the clients of the tenant `--hangs-up` are gone when their prefill is done, so that
no decode follows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

TENANT_HEADER = "X-Tenant"
CLIENT_CLOSED_REQUEST = 499
FORWARDED = ("traceparent", "tracestate", "X-Request-Id")
RETRY_EVERY_S = 1.0
TIMEOUT_S = 120.0

NOTHING_YET = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""The `kv_transfer_params` of a prefill: keep the KV for somebody else to fetch."""


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The request as the prefill engine gets it: one token, no stream."""
    kept = {name: value for name, value in body.items() if name not in ("stream_options", "max_completion_tokens")}
    return kept | {"max_tokens": 1, "min_tokens": 1, "stream": False, "kv_transfer_params": NOTHING_YET}


def has_failed(status: int, first: bytes) -> bool:
    """Whether an answer, by its status and its first piece, is a failure of the engine. A stream fails with a 200."""
    return status >= 500 or first.startswith((b'data: {"error"', b'{"error"'))


@dataclass(frozen=True)
class Proxy:
    session: aiohttp.ClientSession
    prefill: str
    decode: str
    hand_over_s: float
    retry_s: float
    hangs_up: str

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        tenant = request.headers.get(TENANT_HEADER, "")
        passed = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        url = f"{self.prefill}{request.path}"
        try:
            async with self.session.post(url, json=prefill_body(body), headers=passed) as prefilled:
                if prefilled.status != 200:
                    return web.Response(status=prefilled.status, body=await prefilled.read())
                transfer = (await prefilled.json()).get("kv_transfer_params")
        except aiohttp.ClientError as error:
            return web.json_response({"error": f"prefill: {error}"}, status=503)
        if tenant and tenant == self.hangs_up:
            return web.Response(status=CLIENT_CLOSED_REQUEST)
        await asyncio.sleep(self.hand_over_s)
        return await self._decode(request, body | {"kv_transfer_params": transfer}, passed)

    async def _decode(
        self, request: web.Request, body: dict[str, Any], passed: Mapping[str, str]
    ) -> web.StreamResponse:
        deadline = asyncio.get_running_loop().time() + self.retry_s
        while True:
            async with self._asked(f"{self.decode}{request.path}", body, passed) as (status, kind, first, rest):
                if has_failed(status, first) and asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(RETRY_EVERY_S)
                    continue
                answer = web.StreamResponse(status=status, headers={"Content-Type": kind})
                await answer.prepare(request)
                await answer.write(first)
                async for piece in rest:
                    await answer.write(piece)
                return answer

    @contextlib.asynccontextmanager
    async def _asked(
        self, url: str, body: dict[str, Any], passed: Mapping[str, str]
    ) -> AsyncIterator[tuple[int, str, bytes, AsyncIterator[bytes]]]:
        """Status, content type, first piece and the rest of an answer; 503 where there is nobody to give one."""
        try:
            async with self.session.post(url, json=body, headers=passed) as answer:
                pieces = answer.content.iter_any()
                first = await anext(pieces, b"")
                yield answer.status, answer.headers.get("Content-Type", ""), first, pieces
        except aiohttp.ClientConnectorError as error:
            yield 503, "text/plain", f"decode: {error}".encode(), _nothing()


async def _nothing() -> AsyncIterator[bytes]:
    for piece in tuple[bytes]():
        yield piece


async def _healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _application(args: argparse.Namespace) -> web.Application:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
    )
    proxy = Proxy(session, args.prefill, args.decode, args.hand_over, args.retry, args.hangs_up)
    app = web.Application()
    app.router.add_get("/health", _healthy)
    app.router.add_post("/v1/completions", proxy.complete)
    app.on_cleanup.append(lambda _: session.close())
    return app


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Prefill on one engine, decode on another.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", required=True, metavar="URL")
    parser.add_argument("--decode", required=True, metavar="URL")
    parser.add_argument("--hand-over", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--retry", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--hangs-up", default="", metavar="TENANT")
    return parser


if __name__ == "__main__":
    arguments = _parser().parse_args()
    web.run_app(_application(arguments), host="127.0.0.1", port=arguments.port, print=None, access_log=None)

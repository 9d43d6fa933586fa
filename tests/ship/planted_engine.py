"""Two engines that only play it, with secrets in all they have: vLLM with KV events, and SGLang with its server's info.

python -m vllm.entrypoints.openai.api_server --port PORT --api-key KEY ...     by a stub that calls `main`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq
from aiohttp import web

HOST = "127.0.0.1"
PAGES = Path(__file__).parents[1] / "fixtures" / "exposition"

MARK = "qzsecret"
"""In everything that must get nowhere at all."""
KEY = f"sk-{MARK}-0123456789abcdef"
BEARER = f"{MARK}-of-the-target"
PROMPT = f"{MARK}-prompt: my name is Ada"
ANSWER = f"{MARK}-answer"
SESSION = f"{MARK}-session"
TENANT = "qztenant"
"""In names of tenants: in plain they are for the API on loopback alone."""
TOKENS = [1_987_650_000 + number for number in range(32)]


def as_text() -> list[str]:
    """What token ids look like in text."""
    return [str(token) for token in TOKENS]


def as_bytes() -> list[bytes]:
    """And in binary, either way round."""
    return [struct.pack(order + "I", token) for token in TOKENS for order in "<>"]


def kv_events(number: int) -> bytes:
    """A step of vLLM 0.32 that stores one block."""
    stored = {
        "type": "BlockStored",
        **{"block_hashes": [number], "parent_block_hash": number - 1 if number else None, "token_ids": TOKENS},
        **{"block_size": len(TOKENS), "lora_id": None, "medium": "GPU", "session_id": SESSION},
        "extra_keys": [[f"{MARK}-cache-salt"]],
    }
    return msgspec.msgpack.encode([time.time(), [stored], 0])


def vllm(port: int, events: int) -> web.Application:
    """An engine whose page wants a token. It publishes a block each tenth of a second."""

    async def metrics(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {BEARER}":
            return web.Response(status=401, text=f"{MARK}: you sent the wrong token")
        page = (PAGES / "vllm-0.32-loaded.prom").read_text()
        return web.Response(text=page)

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        said = {"id": f"chatcmpl-{time.time_ns()}", "model": "tiny"}
        delta = [{"index": 0, "delta": {"content": ANSWER}, "finish_reason": None}]
        usage = {"prompt_tokens": 12, "completion_tokens": 1}
        for event in ({**said, "choices": delta}, {**said, "choices": [], "usage": usage}):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def publish(_: web.Application) -> Any:
        async def go() -> None:
            with zmq.Context() as context, context.socket(zmq.PUB) as socket:
                socket.setsockopt(zmq.LINGER, 0)
                socket.bind(f"tcp://{HOST}:{events}")
                number = 0
                while True:
                    socket.send_multipart((b"", number.to_bytes(8, "big"), kv_events(number)))
                    number += 1
                    await asyncio.sleep(0.1)

        task = asyncio.create_task(go())
        yield
        task.cancel()

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/version", lambda _: _json({"version": "0.32.0"}))
    app.router.add_get("/v1/models", lambda _: _json({"data": [{"id": "tiny"}]}))
    app.router.add_post("/v1/chat/completions", answer)
    app.cleanup_ctx.append(publish)
    return app


def sglang() -> web.Application:
    """An engine that tells its keys to whoever asks for its configuration."""
    info = json.loads((PAGES / "captured" / "sglang-0.5.23-server_info.json").read_text())
    info |= {"api_key": KEY, "admin_api_key": KEY, "ssl_keyfile_password": KEY}
    page = (PAGES / "captured" / "sglang-0.5.23-loaded.prom").read_text()
    app = web.Application()
    app.router.add_get("/metrics", lambda _: _text(page))
    app.router.add_get("/server_info", lambda _: _json(info))
    return app


async def _json(data: Any) -> web.Response:
    return web.json_response(data)


async def _text(text: str) -> web.Response:
    return web.Response(text=text)


async def _serve(port: int, other: int, events: int) -> None:
    for app, at in ((vllm(port, events), port), (sglang(), other)):
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, at).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sglang-port", type=int, required=True)
    parser.add_argument("--kv-events-config", type=json.loads, required=True)
    args, _ = parser.parse_known_args(sys.argv[1:])
    events = int(args.kv_events_config["endpoint"].rpartition(":")[2])
    asyncio.run(_serve(args.port, args.sglang_port, events))

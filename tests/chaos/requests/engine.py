"""An engine that only plays one: a recorded page, and answers as long as they are asked for.

    python -m tests.chaos.requests.engine PORT

`POST /v1/chat/completions?events=4&every=10&size=20` is answered by 4 server-sent events 10 ms apart, each with 20
characters of output, then the usage. Who does not read is not written to. With `interim=1000` that many interim answers
(103) come first.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from .planted import ANSWER

PAGE = Path(__file__).parents[2] / "fixtures" / "exposition" / "vllm-0.32-loaded.prom"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_numbers = itertools.count(1)  # of answers: an id that many share would be none
LAST = (
    b'data: {"id":"chatcmpl-%d","model":"tiny","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"chatcmpl-%d","model":"tiny","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":4}}\n\n'
    b"data: [DONE]\n\n"
)


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    """One connection, on which requests come one after the other."""

    def __init__(self, page: bytes) -> None:
        self._page = page
        self._buffer = b""
        self._answering: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), 0)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        if method == "GET":
            page = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n%s"
            self._transport.write(page % (len(self._page), self._page))
            return
        asked = {name: float(values[0]) for name, values in parse_qs(urlsplit(target).query).items()}
        self._answering = asyncio.ensure_future(self._answer(asked))

    async def _answer(self, asked: dict[str, float]) -> None:
        every = asked.get("every", 0.0) / 1000
        text = (ANSWER.encode() * (int(asked.get("size", 20)) // len(ANSWER) + 1))[: int(asked.get("size", 20))]
        number = next(_numbers)
        event = chunk(
            b'data: {"id":"chatcmpl-%d","model":"tiny","choices":[{"index":0,"delta":{"content":"%s"},'
            b'"finish_reason":null}]}\n\n' % (number, text)
        )
        left = int(asked.get("interim", 0))
        while left > 0:
            await self._may_write.wait()
            self._transport.write(INTERIM * min(100, left))
            left -= 100
            await asyncio.sleep(0)
        self._transport.write(HEAD)
        for sent in range(int(asked.get("events", 1))):
            if sent and every:
                await asyncio.sleep(every)
            await self._may_write.wait()
            self._transport.write(event)
        self._transport.write(chunk(LAST % (number, number)) + b"0\r\n\r\n")


async def serve(port: int) -> None:
    page = PAGE.read_bytes()
    server = await asyncio.get_running_loop().create_server(
        lambda: Engine(page), "127.0.0.1", port, backlog=1024, reuse_address=True
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))

"""A tap between a scripted upstream and clients, all on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.tap.client_connections import Bounds
from kvitals.agent.tap.context import ContextFields
from kvitals.agent.tap.exchange import TapPlace
from kvitals.agent.tap.server import Tap, TapSettings

PATIENCE = 5.0
"""Seconds after which a test gives up on something that should have come at once."""

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
"""The shortest answer of an upstream."""


class Names:
    """Pseudonyms that one can read."""

    def of_headers(self, headers: Mapping[str, str], peer: str) -> str:
        name = headers.get("x-tenant-id", "")
        return f"t-{name[::-1]}" if name and peer == "127.0.0.1" else ""

    def session(self, raw: str) -> str:
        return f"s-{raw[::-1]}" if raw else ""


@dataclass
class Call:
    """One connection to the upstream, as the script sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[bytes] = field(default_factory=list)  # heads
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the other side has closed

    async def request(self) -> bytes:
        """The head of the next request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        return head

    async def body(self, size: int) -> bytes:
        return await self.reader.readexactly(size)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_gone(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass
        self.gone.set()


Script = Callable[[Call], Awaitable[None]]


class Client:
    """A client's connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(mark)

    async def exactly(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """All until the connection ends."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    def leave(self) -> None:
        self.writer.transport.abort()


@dataclass
class Stage:
    """What a test works with."""

    tap: Tap
    calls: list[Call]
    parts: list[RequestPart]
    clients: list[Client] = field(default_factory=list)

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.tap.port, ssl=tls))
        self.clients.append(client)
        return client

    async def part(self, number: int = 1) -> RequestPart:
        """The part number `number`, once it is there."""
        await until(lambda: len(self.parts) >= number)
        return self.parts[number - 1]


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that should be so in a moment."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 (what is waited for is seen from outside)
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def staged(
    script: Script,
    wanted: ContextFields | None = None,
    max_connections: int = 100,
    place: TapPlace | None = None,
    tls: ssl.SSLContext | None = None,
    bounds: Bounds | None = None,
    drain: float = 0.2,
) -> AsyncIterator[Stage]:
    """A tap before an upstream that does what the script says with each connection."""
    calls: list[Call] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = Call(reader, writer)
        calls.append(call)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(call)
        writer.close()

    upstream = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]
    settings = TapSettings(
        upstream=f"http://127.0.0.1:{port}",
        listen=("127.0.0.1", 0),
        wanted=wanted or ContextFields(),
        place=place or TapPlace(engine="one"),
        max_connections=max_connections,
        drain=drain,
        tls=tls,
        bounds=bounds or Bounds(),
    )
    tap = Tap(settings, Names())
    stage = Stage(tap, calls, [])
    tap.books._deliver = stage.parts.append
    await tap.open()
    try:
        yield stage
    finally:
        for client in stage.clients:
            client.leave()
        await tap.close()
        upstream.close()
        for call in calls:
            call.writer.transport.abort()


def post(body: bytes = b"{}", *fields: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    """A request for work."""
    lines = (b"POST %s HTTP/1.1" % path, b"Host: engine", b"Content-Length: %d" % len(body), *fields)
    return b"\r\n".join((*lines, b"", body))


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """An event of a chat with some output, in a chunk of its own."""
    return chunk(
        b'data: {"id":"chatcmpl-1","model":"tiny","choices":[{"index":0,"delta":{"content":"%s"},'
        b'"finish_reason":null}]}\n\n' % text.encode()
    )


LAST = (
    chunk(
        b'data: {"id":"chatcmpl-1","model":"tiny","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
        b'data: {"id":"chatcmpl-1","model":"tiny","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":8}}}\n\ndata: [DONE]\n\n'
    )
    + b"0\r\n\r\n"
)

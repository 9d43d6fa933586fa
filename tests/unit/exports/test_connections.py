"""Connections on a listener: how many, from whom, and how long each may take."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import trustme
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from kvitals.agent import connections
from kvitals.agent.connections import GuardedRunner, GuardedSite, effective
from kvitals.agent.listeners import LISTENERS, PROCESSES, Listener

ROW = replace(LISTENERS["api"], connections=6, per_peer=4, first_byte=5.0, head=5.0, body=5.0, idle=5.0, max_head=4096)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
STREAMS = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """A site with bounds, on a free port."""

    def __init__(self, row: Listener, tls: ssl.SSLContext | None = None) -> None:
        self.row, self.tls = row, tls
        self.refused = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get("/", self._hello)
        app.router.add_get("/large", self._large)
        app.router.add_get("/wait", self._wait)
        app.router.add_post("/", self._echo)
        app.router.add_post("/unread", self._hello)
        runner = GuardedRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = GuardedSite(runner, self.row, "127.0.0.1", 0, tls=self.tls, refused=self._refuse)
        await site.start()
        self.port = site.port
        try:
            yield self
        finally:
            for writer in self.writers:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            await runner.cleanup()

    async def open(self, source: str = "127.0.0.1", said: bytes = b"", **more: Any) -> STREAMS:
        streams = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0), **more)
        self.writers.append(streams[1])
        if said:
            streams[1].write(said)
        await asyncio.sleep(0.02)
        return streams

    def _refuse(self) -> None:
        self.refused += 1

    async def _hello(self, _: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def _large(self, _: web.Request) -> web.Response:
        return web.Response(body=bytes(16 << 20))

    async def _wait(self, _: web.Request) -> web.Response:
        self.waiting.set()
        await self.go_on.wait()
        return web.Response(text="waited")

    async def _echo(self, request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))


async def status(streams: STREAMS) -> str:
    """The first line of an answer without its version; `closed` where there is none."""
    try:
        async with asyncio.timeout(20):
            line = await streams[0].readline()
    except ConnectionError:
        return "closed"
    return line.decode().rstrip().removeprefix("HTTP/1.1 ") or "closed"


async def answer(streams: STREAMS) -> str:
    """The status of an answer to GET, which is read whole."""
    streams[1].write(GET)
    try:
        head = await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), 20)
        await streams[0].readexactly(5)
    except (EOFError, ConnectionError):
        return "closed"
    return head.partition(b"\r\n")[0].decode().removeprefix("HTTP/1.1 ")


async def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest() -> None:
    async with Server(ROW).running() as server:
        opened = [await server.open() for _ in range(20)]
        assert await status(opened[0]) == "closed"
        assert await answer(opened[-1]) == "200 OK"
        assert server.refused == 0


async def test_one_address_cannot_take_the_places_of_others() -> None:
    async with Server(ROW).running() as server:
        other = await server.open("127.0.0.2")
        assert await answer(other) == "200 OK"
        for _ in range(100):
            await server.open()
        assert await answer(other) == "200 OK"
        assert await answer(await server.open("127.0.0.2")) == "200 OK"


async def test_a_connection_with_a_request_stays_and_the_next_one_is_refused() -> None:
    async with Server(replace(ROW, per_peer=2)).running() as server:
        working = [await server.open(said=GET.replace(b"/ ", b"/wait ")) for _ in range(2)]
        await server.waiting.wait()
        refused = await server.open(said=GET)
        assert await status(refused) == "503 Service Unavailable"
        assert b"2 of 2 from your address" in await refused[0].read()
        assert server.refused == 1
        assert await answer(await server.open("127.0.0.2")) == "200 OK"
        server.go_on.set()
        assert [await status(one) for one in working] == ["200 OK", "200 OK"]


async def test_bodies_that_never_arrive_leave_room_for_other_addresses() -> None:
    async with Server(ROW).running() as server:
        for _ in range(40):
            await server.open(said=POST)
        assert await answer(await server.open("127.0.0.2")) == "200 OK"


async def test_bodies_that_stall_give_way_also_where_several_addresses_have_all_places() -> None:
    async with Server(ROW).running() as server:
        stalled = [await server.open(f"127.0.0.{2 + n % 2}", POST + b"x") for n in range(6)]
        await asyncio.sleep(2 * connections.STALLED_SECONDS)
        assert await answer(await server.open("127.0.0.9")) == "200 OK"
        assert server.refused == 0
        assert await status(stalled[0]) == "503 Service Unavailable"
        assert b"send the whole body at once" in await stalled[0][0].read()


async def test_a_body_that_arrives_stays_and_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 4.0)  # a busy machine may pause this test
    async with Server(replace(ROW, connections=2, per_peer=2)).running() as server:
        moving = [await server.open(said=POST) for _ in range(2)]
        for _ in range(9):
            for _, writer in moving:
                writer.write(bytes(10_000))
            refused = await server.open("127.0.0.2")
            assert await status(refused) == "503 Service Unavailable"
        for _, writer in moving:
            writer.write(bytes(10_000))
        assert [await status(one) for one in moving] == ["200 OK", "200 OK"]


@pytest.mark.system
async def test_clients_that_do_not_read_give_way() -> None:
    async with Server(ROW).running() as server:
        for n in range(6):
            await server.open(f"127.0.0.{2 + n % 2}", GET.replace(b"/ ", b"/large "), limit=1024)
        await asyncio.sleep(connections.UNREAD_SECONDS + 2.2)  # a sweep notices the size, and one that it stays
        assert await answer(await server.open("127.0.0.9")) == "200 OK"


@pytest.mark.parametrize(
    ("times", "said", "ends"),
    [
        ({"first_byte": 0.3}, b"", "closed"),
        ({"head": 0.3}, GET[:20], "408 Request Timeout"),
        ({"body": 0.3}, POST + b"x", "408 Request Timeout"),
        ({"body": 0.3}, POST.replace(b"/ ", b"/unread "), "200 OK"),
    ],
)
async def test_each_phase_has_a_time(times: dict[str, float], said: bytes, ends: str) -> None:
    async with Server(replace(ROW, **times)).running() as server:
        one = await server.open(said=said)
        assert await status(one) == ends
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                await one[0].read()


async def test_a_head_byte_by_byte_ends_as_well() -> None:
    async with Server(replace(ROW, head=0.4)).running() as server:
        one = await server.open()

        async def drip() -> None:
            for byte in GET[:-1] * 100:
                one[1].write(bytes((byte,)))
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert await status(one) == "408 Request Timeout"
        dripping.cancel()


@pytest.mark.parametrize("after", [b"", GET], ids=["opened", "answered"])
async def test_line_ends_before_a_request_do_not_restart_its_clock(after: bytes) -> None:
    async with Server(replace(ROW, first_byte=0.5, idle=0.5)).running() as server:
        one = await server.open()
        if after:
            assert await answer(one) == "200 OK"

        async def drip() -> None:
            while True:
                one[1].write(b"\r\n")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await status(one) == "closed"
        dripping.cancel()


async def test_line_ends_before_a_request_are_skipped() -> None:
    async with Server(ROW).running() as server:
        one = await server.open(said=b"\r\n")
        one[1].write(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        assert await answer(one) == "200 OK"
        one[1].write(b"\r\n" * 3)
        assert await answer(one) == "200 OK"


async def test_line_ends_without_a_request_have_a_size() -> None:
    async with Server(ROW).running() as server:
        one = await server.open()
        ended = asyncio.create_task(status(one))
        sent = 0
        with contextlib.suppress(OSError):
            while not ended.done() and sent < 1 << 20:
                one[1].write(b"\r\n" * 500)
                sent += 1000
                await asyncio.sleep(0.001)
        assert await ended == "431 Request Header Fields Too Large"
        assert sent < 1 << 18


@pytest.mark.parametrize("head", [b"GET /?id=%s HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX-Long: %s\r\n"])
@pytest.mark.parametrize("row", [row for row in LISTENERS.values() if row.max_head], ids=lambda row: row.name)
async def test_a_long_line_within_the_head_reaches_the_application(head: bytes, row: Listener) -> None:
    async with Server(row).running() as server:
        said = head % (b"a" * (row.max_head - 200)) + b"Host: localhost\r\n\r\n"
        assert await answer(await server.open(said=said)) == "200 OK"


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "piece",
    [b"1;" + b"e" * 4000 + b"\r\nx\r\n", b"1;" + b"e" * 4000, b"1\r\nx\r\n" * 800, b"fff\r\n" + b"x" * 0xFFF + b"\r\n"],
    ids=["extensions", "one endless extension", "small chunks", "content"],
)
async def test_a_body_in_chunks_has_a_size_with_its_framing(piece: bytes) -> None:
    row = replace(ROW, max_body=1 << 16, max_framing=1 << 14)
    async with Server(row).running() as server:
        one = await server.open(said=CHUNKED)
        ended, sent, used = asyncio.create_task(status(one)), 0, time.process_time()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(20):
                while not ended.done() and sent < 1 << 28:
                    one[1].write(piece * 16)
                    sent += 16 * len(piece)
                    await one[1].drain()
                    await asyncio.sleep(0)
        assert await ended in ("413 Content Too Large", "400 Bad Request")
        assert sent < 1 << 25  # what the sockets' buffers take
        assert time.process_time() - used < 5
        assert await answer(await server.open()) == "200 OK"


async def test_each_request_of_a_connection_has_its_own_size() -> None:
    row = replace(ROW, max_body=1 << 16, max_framing=1 << 14)
    async with Server(row).running() as server:
        one = await server.open()
        for _ in range(5):
            one[1].write(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (1 << 16, bytes(1 << 16)))
            head = await asyncio.wait_for(one[0].readuntil(b"65536"), 20)
            assert b"200 OK" in head


async def test_an_idle_connection_ends_and_one_in_use_does_not() -> None:
    async with Server(replace(ROW, idle=0.6)).running() as server:
        idle, used = await server.open(), await server.open()
        assert await answer(idle) == await answer(used) == "200 OK"
        for _ in range(10):
            await asyncio.sleep(0.15)
            assert await answer(used) == "200 OK"
        assert await answer(idle) == "closed"


async def test_a_handler_may_take_longer_than_any_time_of_the_row() -> None:
    async with Server(replace(ROW, first_byte=0.1, head=0.1, body=0.1, idle=0.1)).running() as server:
        one = await server.open(said=GET.replace(b"/ ", b"/wait "))
        await asyncio.sleep(1.0)
        server.go_on.set()
        assert await status(one) == "200 OK"


@pytest.mark.system
async def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    async with Server(replace(ROW, body=0.5)).running() as server:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", server.port))
            await loop.sock_sendall(deaf, GET.replace(b"/ ", b"/large "))
            await asyncio.sleep(2.0)
            size = 0
            with contextlib.suppress(ConnectionError):
                while data := await asyncio.wait_for(loop.sock_recv(deaf, 1 << 20), 20):
                    size += len(data)
        assert size < 16 << 20


async def test_a_body_in_pieces_and_a_head_in_pieces_are_read() -> None:
    async with Server(replace(ROW, first_byte=0.5, head=0.8, body=0.5)).running() as server:
        one = await server.open()
        for piece in (POST[:10], POST[10:30], POST[30:], *([bytes(10_000)] * 10)):
            one[1].write(piece)
            await asyncio.sleep(0.15)
        assert await status(one) == "200 OK"


async def test_a_body_that_follows_its_head_at_once_does_not_count_as_head() -> None:
    async with Server(ROW).running() as server:
        one = await server.open(said=POST + bytes(100_000) + GET)
        assert await status(one) == "200 OK"
        rest = await one[0].readuntil(b"hello")
        assert b"100000" in rest and b"200 OK" in rest


@pytest.mark.parametrize("pieces", [1, 5])
async def test_a_long_head_is_refused(pieces: int) -> None:
    async with Server(ROW).running() as server:
        one = await server.open(said=b"GET / HTTP/1.1\r\n")
        for number in range(pieces):
            one[1].write(b"".join(b"X-%d-%d: %s\r\n" % (number, i, b"a" * 100) for i in range(50 // pieces)))
            await asyncio.sleep(0.02)
        assert await status(one) == "431 Request Header Fields Too Large"


@pytest.mark.parametrize("row", [LISTENERS["api"], LISTENERS["otlp_http"]], ids=lambda row: row.name)
async def test_a_refused_head_is_answered_in_the_form_of_other_errors(row: Listener) -> None:
    """Clients of Prometheus' API read an error as JSON, and text/plain as a server that is no Prometheus."""
    async with Server(row).running() as server:
        reader, _ = await server.open(said=b"GET / HTTP/1.1\r\nX: %s\r\n" % (b"a" * 2 * row.max_head))
        head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert f"Content-Length: {len(body)}".encode() in head
    if row.json_errors:
        assert b"Content-Type: application/json" in head
        error = json.loads(body)
        assert (error["status"], error["errorType"]) == ("error", "bad_data")
        assert f"{row.max_head} bytes" in error["error"] and "as a form" in error["error"]
    else:
        assert b"Content-Type: text/plain" in head


async def test_connections_count_before_their_handshake() -> None:
    ca = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(tls)
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    async with Server(replace(ROW, first_byte=1.0), tls).running() as server:
        opened = [await server.open() for _ in range(20)]
        assert [await status(one) for one in opened[:16]] == ["closed"] * 16
        encrypted = await server.open(ssl=trusting)
        assert await answer(encrypted) == "200 OK"
        assert [await status(one) for one in opened[16:]] == ["closed"] * 4  # no handshake in time
        garbage = await server.open(said=GET)
        assert await garbage[0].read() == b""
        assert await answer(encrypted) == "200 OK"
        assert await answer(await server.open(ssl=trusting)) == "200 OK"


def test_all_listeners_of_a_process_fit_under_the_usual_limit_of_open_files() -> None:
    for process, names in PROCESSES.items():
        if process != "kvitals tap":  # it raises its limit itself
            wanted = sum(LISTENERS[name].connections * LISTENERS[name].files for name in names)
            assert wanted + connections.RESERVED_FILES <= 1024, process


def test_fewer_open_files_are_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (640, 640))
    row = effective(LISTENERS["api"])
    assert (row.connections, row.per_peer) == (128, 96)
    assert effective(LISTENERS["replay"], 64).connections == connections.MIN_CONNECTIONS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert effective(LISTENERS["api"]) == LISTENERS["api"]


MALFORMED = {
    "no host": (b"GET / HTTP/1.1\r\n\r\n", "Missing 'Host' header"),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "Duplicate 'Host' header"),
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        "Content-Length can't be present with Transfer-Encoding",
    ),
    "control characters": (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[31m\r\n\r\n", "Invalid header value"),
    "long field name": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x" * 3000 + b" y\r\n\r\n", "Invalid header token"),
}


@pytest.mark.parametrize(("request_bytes", "reason"), MALFORMED.values(), ids=list(MALFORMED))
async def test_malformed_requests_log_one_short_line_a_minute(
    request_bytes: bytes, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("aiohttp.server")
    monkeypatch.setattr(logger, "filters", [connections._FewErrors()])
    async with Server(ROW).running() as server:
        for _ in range(3):
            assert await status(await server.open(said=request_bytes)) in (
                "400 Bad Request",
                "HTTP/1.0 400 Bad Request",
            )
        (record,) = caplog.records
        line = logging.Formatter("%(message)s").format(record)
        assert line.startswith("malformed request from 127.0.0.1 refused with 400: ")
        assert reason in line
        assert line.isprintable()
        assert len(line) < 400


@pytest.mark.parametrize(("request_bytes", "reason"), MALFORMED.values(), ids=list(MALFORMED))
async def test_a_malformed_request_is_answered_in_our_words(request_bytes: bytes, reason: str) -> None:
    """aiohttp quotes what it cannot read, over several lines."""
    async with Server(ROW).running() as server:
        reader, _ = await server.open(said=request_bytes)
        async with asyncio.timeout(20):
            text = (await reader.read()).decode()
        assert text.endswith(f"\r\n\r\n{connections.MALFORMED}\n")
        assert reason not in text


def test_an_error_of_a_handler_keeps_its_traceback_after_malformed_requests(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("aiohttp.server")
    monkeypatch.setattr(logger, "filters", [connections._FewErrors()])
    for error in (BadHttpMessage("odd"), ValueError("a fault of ours"), ValueError("the same again")):
        logger.error("Error handling request from %s", "127.0.0.1", exc_info=error)
    assert [record.exc_info is None for record in caplog.records] == [True, False]
    assert "a fault of ours" in caplog.text


@pytest.mark.parametrize("row", [ROW, replace(LISTENERS["notify"], first_byte=5.0)], ids=["json", "text"])
@pytest.mark.parametrize("line", [b"GET /", b"GET / HTTP/0.9", b"GET / HTTP/2.0", b"GET / HTTP/1.2", b"GET / HTTP/9.9"])
async def test_other_versions_than_1_0_and_1_1_are_refused(row: Listener, line: bytes) -> None:
    """HTTP/0.9 and HTTP/2.0 were answered with the page."""
    async with Server(row).running() as server:
        for before in (b"", GET):  # also as a later request of a connection
            reader, _ = await server.open(said=before + line + b"\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(20):
                text = (await reader.read()).decode()  # to the end of the connection
            statuses = re.findall(r"HTTP/1\.[01] ([0-9]{3}) ", text)
            assert statuses[-1] in ("505", "400"), text
            assert text.count("hello") <= len(before) // len(GET)

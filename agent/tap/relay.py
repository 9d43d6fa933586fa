"""Passes bytes between a client and the upstream: a pair of connections for each client's, and no routing.

A client's connection has one to the upstream, opened with its first request and closed with it, so that each side sees
of the other what it would see without the tap: idle connections end when the other side ends them, who leaves is gone
at once, who reads slowly is written to slowly. Nothing is buffered beyond a transport's own limit, and requests that a
client sends before it has its answer wait.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import time
from typing import cast

from kvitals.agent.connection_table import Waiting
from kvitals.agent.tap.books import Books, Entry
from kvitals.agent.tap.client_connections import Connections
from kvitals.agent.tap.exchange import Clock
from kvitals.agent.tap.http1 import (
    MAX_HEAD,
    BadMessageError,
    Body,
    HeadBuffer,
    RequestHead,
    Response,
    body_of_request,
    body_of_response,
    read_request,
    read_response,
)
from kvitals.agent.tap.openai_errors import error_answer
from kvitals.agent.tap.sockets import Upstream, hangup_poll, keep_alive, reason_of, reset, unread_bytes
from kvitals.agent.tap.turns import MAX_READ, LoopTurn

CONNECT_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
"""For a client's half of TLS."""
LINGER_SECONDS = 1.0
"""For a client to read why the tap ends its connection."""
PROGRESS_BYTES = 1024
"""Of a request's body, in the time that the tap waits for more of it. Less is not progress."""
MAX_INTERIM = 64
"""Interim responses to one request."""
UNREAD_SECONDS = 20.0
"""A client that took nothing for so long may give way to a new one."""
WRITE_BUFFER = 64 * 1024
"""Bytes that may wait for a slow reader before its other side is read no further."""

# All connections of a loop share one buffer: what is read into it is copied out before the next read.
_READ = memoryview(bytearray(MAX_READ))


class _Side(asyncio.BufferedProtocol):
    """The upstream's side of a pair."""

    def __init__(self, pair: Pair, turns: LoopTurn) -> None:
        self._pair = pair
        self._turns = turns

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ[: self._turns.read_share()]

    def buffer_updated(self, nbytes: int) -> None:
        self._pair.from_upstream(bytes(_READ[:nbytes]))

    def eof_received(self) -> None:
        """The upstream says no more, so neither side has anything left to say."""

    def connection_lost(self, error: Exception | None) -> None:
        self._pair.upstream_lost(error)

    def pause_writing(self) -> None:
        self._pair.hold("upstream full")

    def resume_writing(self) -> None:
        self._pair.release("upstream full")


class Pair(asyncio.BufferedProtocol):
    """A client's connection, and the one to the upstream that serves it."""

    def __init__(
        self, upstream: Upstream, books: Books, connections: Connections, tls: ssl.SSLContext | None = None
    ) -> None:
        """tls: how the tap proves itself to clients."""
        self.peer = ""
        self._upstream = upstream
        self._books = books
        self._connections = connections
        self._tls = tls
        self._shaking: asyncio.Task[None] | None = None  # hands, of TLS
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Transport | None = None  # the connection to the upstream
        self._connecting: asyncio.Task[None] | None = None
        self._held: set[str] = set()  # reasons not to read from the client
        self._ahead = HeadBuffer()  # what the client sent and is not passed on yet: part of a head, or later requests
        self._began: Clock | None = None  # when the first byte in `_ahead` came
        self._request: RequestHead | None = None  # under way
        self._request_body: Body | None = None
        self._entry: Entry | None = None
        self._unsent: list[Entry] = []  # of answers that are whole here and not yet with the kernel
        self._answer_head = HeadBuffer()  # of a response, so far
        self._answer_body: Body | None = None  # once its head is there
        self._interim = 0  # responses to this request before the final one
        self._keep = False  # whether the connections outlive the response
        self._used = False  # whether a response has come on them
        self._tunnel = False  # whether both sides have left HTTP
        self._draining = False  # whether the connection ends with its request
        self._lingering = False  # whether it has ended for the tap, and the client may not have read why
        self._since = self._loop.time()  # when the client last made progress
        self._arrived = 0  # bytes of the body since then
        self._written = 0  # bytes for the client
        self._taken = (0, 0)  # of these, what the kernel took, and what of that the client has not yet

    # -- the client's side ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast(asyncio.Transport, transport)
        self._client.set_write_buffer_limits(high=WRITE_BUFFER)
        keep_alive(self._client)
        self._leaving = hangup_poll(self._client)
        peer = self._client.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        # Checks of connections that came together do not fall together.
        every = self._connections.bounds.check_seconds
        self._timer = self._loop.call_later(every * (0.5 + random.random() / 2), self._check)  # noqa: S311
        if why := self._connections.join(self):
            self._books.refused["connections"] += 1
            if self._tls is None:
                self._to_client(error_answer(503, "connections", self._connections.refusal(why)))
            self._close()
        elif self._tls is not None:
            self._client.pause_reading()
            self._shaking = self._loop.create_task(self._shake_hands(self._tls))

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        """Begin TLS. It has its place in the table before, so that who never begins it is bound as others are."""
        plain = self._client
        try:
            transport = await self._loop.start_tls(
                plain, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # ssl.SSLError, and that there was none in time
            transport = None
        self._shaking = None
        if transport is None or transport.is_closing():
            plain.abort()
            self.connection_lost(None)  # asyncio calls it only after the handshake
            return
        self._client = transport
        self._client.set_write_buffer_limits(high=WRITE_BUFFER)
        if self._ahead:
            self._next_request()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ[: self._books.turns.read_share()]

    def buffer_updated(self, nbytes: int) -> None:
        self._from_client(bytes(_READ[:nbytes]))

    def _from_client(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._tunnel:
            self._to_upstream(data)
            return
        if self._request is not None and not self._ahead and not self._connecting and not self._request_done:
            data = self._pass_body(data)
        if not data:
            return
        if self._began is None:
            self._began = Clock(time.time(), time.perf_counter())
            if self._request is None:
                self._since = self._loop.time()
        self._ahead.add(data)
        if self._shaking is not None:  # asyncio passes on what came with the end of the handshake before it says so
            return
        if self._request is None:
            self._next_request()
        elif len(self._ahead) > MAX_HEAD:
            self.hold("too far ahead")

    def eof_received(self) -> None:
        """A client that says no more has left, as it has for uvicorn and nginx."""
        if self._request is not None:
            self._leave()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._connections.leave(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._entry is not None:
            self._entry.ended(left=not self._tunnel)  # either side may end a tunnel
        self._end_unsent(missed=True)
        self._forget_request()
        if self._server is not None:
            self._server.abort()

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause_reading()

    def resume_writing(self) -> None:
        if self._unsent:  # the last of it is with the kernel
            self._end_unsent()
            self._client.set_write_buffer_limits(high=WRITE_BUFFER)
        if self._server is not None:
            self._server.resume_reading()

    def _has_left(self) -> bool:
        """Whether the client has gone, though the loop may not have had the time to say so."""
        return self._client.is_closing() or bool(self._leaving.poll(0))

    def _leave(self) -> None:
        """The client has gone before the end of its request."""
        if self._entry is not None:
            self._entry.ended(left=not self._tunnel, missed=self._client.get_write_buffer_size() > 0)
            self._entry = None
        self._client.abort()

    # -- a request --------------------------------------------------------------------------------------

    def _next_request(self) -> None:
        """Begin with the next request in what the client has sent, if its head is all there."""
        try:
            raw = self._ahead.next_head()
            if not raw:
                return
            head = read_request(raw)
            body = body_of_request(head)
        except BadMessageError as error:
            self._refuse(error.status, "malformed", str(error))
            return
        began, self._began = self._began or Clock(time.time(), time.perf_counter()), None
        self._request, self._request_body = head, body
        self._since, self._arrived, self._interim = self._loop.time(), 0, 0
        self._connections.waits(self, Waiting.UPLOAD)
        self._entry = self._books.open(head, self.peer, began)
        if self._server is not None:
            self._send_request()
        else:
            self.hold("connecting")
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await self._loop.create_connection(
                    lambda: _Side(self, self._books.turns),
                    self._upstream.host,
                    self._upstream.port,
                    ssl=self._upstream.tls,
                )
        except OSError as error:  # TimeoutError and the failures of TLS too
            self._connecting = None
            self._books.failures["connect"] += 1
            message = f"cannot connect to {self._upstream.url} ({reason_of(error, CONNECT_SECONDS)}); is the engine up?"
            self._fail("upstream_unreachable", message)
            return
        self._connecting = None
        if self._client.is_closing():
            transport.abort()
            return
        self._server = transport
        self._server.set_write_buffer_limits(high=WRITE_BUFFER)
        keep_alive(self._server)
        self._send_request()
        self.release("connecting")

    def _send_request(self) -> None:
        assert self._request is not None and self._request_body is not None and self._entry is not None
        head = self._request.forwarded(self._entry.added, self._entry.removed)
        try:
            body = self._ahead.take(self._request_body)
        except BadMessageError as error:
            self._refuse(error.status, "malformed", str(error))
            return
        self._to_upstream(head + body)
        self._entry.connected()
        if self._request_body.done:
            self._connections.served(self)
        if self._ahead:
            self._began = Clock(time.time(), time.perf_counter())

    def _pass_body(self, data: bytes) -> bytes:
        """Pass on what of `data` is the request's body; returns what is not."""
        assert self._request_body is not None
        try:
            end, _ = self._request_body.take(data, 0)
        except BadMessageError as error:
            self._refuse(error.status, "malformed", str(error))
            return b""
        self._arrived += end
        if self._request_body.done:
            self._connections.served(self)
        elif self._arrived >= PROGRESS_BYTES:
            self._since, self._arrived = self._loop.time(), 0
            self._connections.waits(self, Waiting.UPLOAD)
        self._to_upstream(data[:end] if end < len(data) else data)
        return data[end:]

    @property
    def _request_done(self) -> bool:
        return self._request_body is None or self._request_body.done

    def _to_upstream(self, data: bytes) -> None:
        if self._server is not None and data:
            self._books.request_bytes += len(data)
            self._server.write(data)

    # -- the upstream's side ----------------------------------------------------------------------------

    def from_upstream(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._request_done:
            # `100 Continue`, or an answer before the request's end: both sides are at it.
            self._since = self._loop.time()
        if self._request is not None and self._has_left():
            self._leave()  # before this reached it: what is given to it now it does not get
        elif self._tunnel:
            self._to_client(data)
        elif self._request is None:
            self._close()  # it speaks out of turn
        elif self._answer_body is None:
            self._answer_head.add(data)
            self._on_head(now)
        else:
            self._on_body(data, now)

    def _on_head(self, now: float) -> None:
        """The heads that are all there: some interim ones, then the response's."""
        assert self._request is not None and self._entry is not None
        interim = list[bytes]()
        try:
            while True:
                raw = self._answer_head.next_head()
                if not raw:
                    self._to_client(b"".join(interim))
                    return
                head = read_response(raw)
                body = body_of_response(head, self._request.method)
                if not head.interim:
                    break
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise BadMessageError(f"more than {MAX_INTERIM} interim responses to one request")
                if self._request.minor:  # HTTP/1.0 knows none
                    interim.append(head.whole())
            if head.status == 101 and not self._request.upgrades:
                raise BadMessageError("the upstream switches protocols, and the request did not ask for it")
        except BadMessageError as error:
            self._books.failures["malformed"] += 1
            self._fail("upstream_malformed", f"{self._upstream.url} answers what is no HTTP/1.1: {error}")
            return
        rest = self._answer_head.take_all()
        if head.status == 101:
            self._entry.answered(head)
            self._tunnel = True
            self._connections.served(self)
            self._to_client(b"".join((*interim, head.whole(), rest)))
            self._to_upstream(self._ahead.take_all())
            return
        self._answer_body = body
        self._keep = head.persistent and self._request.persistent and not body.by_close and not self._draining
        self._on_body(rest, now, head, b"".join(interim))

    def _on_body(self, data: bytes, now: float, head: Response | None = None, interim: bytes = b"") -> None:
        """More of the response's body. head: of the response, and interim ones, where they are still to be sent."""
        assert self._answer_body is not None and self._entry is not None
        try:
            end, content = self._answer_body.take(data, 0)
        except BadMessageError as error:
            self._books.failures["malformed"] += 1
            if head is not None:
                self._fail("upstream_malformed", f"{self._upstream.url} answers what is no HTTP/1.1: {error}")
                return
            self._end_entry(error="upstream_malformed")
            self._close()
            return
        over = end < len(data)
        start = b"" if head is None else interim + head.forwarded(close=not self._keep)
        self._to_client(start + (data[:end] if over else data))  # before anything is made of it
        if head is not None:
            self._entry.answered(head)
        if content:
            self._entry.content(content, now)
        if self._answer_body.done:
            self._end_whole()
            self._used = True
            keep = self._keep and self._request_done and not over
            self._forget_request()
            if not keep:
                self._close()
                return
            self.release("too far ahead")
            self._since = self._loop.time()
            self._connections.waits(self, Waiting.IDLE)
            if self._ahead:
                self._next_request()

    def upstream_lost(self, error: Exception | None) -> None:
        """Its connection is gone. What the client has not got yet it will not get, and it shall know.

        Where it ended an idle connection while the next request was on its way, the client sees that as it is: those
        that keep connections know it and try again.
        """
        self._server = None
        if self._lingering:
            return
        whole = self._answer_body is not None and self._answer_body.by_close and error is None
        if self._request is not None and self._has_left():
            self._leave()
            return
        if self._request is None or self._tunnel or whole:
            self._end_whole()
        elif self._answer_body is None and not self._used and not self._client.is_closing():
            self._books.failures["closed"] += 1
            self._fail("upstream_closed", f"{self._upstream.url} closed the connection without an answer; see its log")
            return
        else:
            self._books.failures["closed"] += 1
            self._end_entry(error="upstream_closed")
            if self._answer_body is not None and self._answer_body.by_close:
                reset(self._client)  # it must not take what it got for the whole
                return
        self._close()

    def _to_client(self, data: bytes) -> None:
        if data and not self._client.is_closing():
            self._books.response_bytes += len(data)
            self._written += len(data)
            self._client.write(data)

    # -- ends -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more requests: end now where none is under way, else with it."""
        self._draining = True
        self._keep = False
        if self._request is None and not self._lingering:
            self._close()

    def abort(self) -> None:
        """End at once."""
        self._end_entry(error="tap_stopped")
        self._end_unsent(error="tap_stopped")
        self._client.abort()

    def hold(self, why: str) -> None:
        """Read no more from the client."""
        if not self._held:
            self._client.pause_reading()
        self._held.add(why)

    def release(self, why: str) -> None:
        """Read from the client again, unless there are other reasons not to."""
        if why in self._held:
            self._held.remove(why)
            if not self._held:
                self._client.resume_reading()
                if not self._request_done:  # it could not send until now
                    self._since = self._loop.time()

    # -- clients that do not keep their time ------------------------------------------------------------

    def progress_age(self) -> float:
        """Seconds since the client last made progress."""
        return self._loop.time() - self._since

    def end_stalled(self, limit: float) -> None:
        """End where the client has made no progress for `limit` seconds, or for less where its own bound is less."""
        why = self._waits_for()
        bounds = self._connections.bounds
        bound = {"first_byte": bounds.first_byte, "head": bounds.head, "body": bounds.body, "idle": bounds.idle}
        limit = min(limit, bound.get(why, bounds.unread))
        if not why or self.progress_age() < limit:
            return
        if why == "unread":
            self._books.refused[why] += 1
            self._end_entry(error="tap_unread")
            self._end_unsent(missed=True)
            self._client.abort()
        elif why == "idle":
            self._close()
        else:
            part = "head" if why == "head" else f"{PROGRESS_BYTES} bytes of the body"
            self._refuse(408, "slow", f"{part} did not arrive within {limit:g} s; the tap stopped waiting")

    def may_give_way(self) -> bool:
        return True  # the table has those alone that wait for their client

    def give_way(self) -> None:
        """End, so that another client can be served. The tap waits for this one and not for the upstream."""
        if self._request is None and not self._ahead:
            self._books.refused["gave_way"] += 1
            self._close()
        else:
            self._refuse(503, "gave_way", "all connections are in use, and this one waited for its client; try again")
        if self._client.get_write_buffer_size():
            self._client.abort()

    def _check(self) -> None:
        """Now and then: whether the client kept its time."""
        self.end_stalled(math.inf)
        self._connections.unread(self, self._waits_for() == "unread" and self.progress_age() >= UNREAD_SECONDS)
        self._timer = self._loop.call_later(self._connections.bounds.check_seconds, self._check)

    def _waits_for(self) -> str:
        """What the tap waits for that only the client can do; empty where it is the upstream's turn."""
        if self._lingering:
            return ""
        if self._client.get_write_buffer_size():
            taken = (self._written - self._client.get_write_buffer_size(), unread_bytes(self._client))
            if taken != self._taken:
                self._taken, self._since = taken, self._loop.time()
            return "unread"
        if self._request is None:
            return "head" if self._ahead else "idle" if self._used else "first_byte"
        return "" if self._tunnel or self._request_done or self._held else "body"

    def _refuse(self, status: int, why: str, message: str) -> None:
        """Turn a client away for what it sent or did not send."""
        self._books.refused[why] += 1
        said_something = self._request is not None or self._began is not None
        if self._answer_body is None and said_something:
            self._to_client(error_answer(status, why, message))
        self._end_entry(error=f"tap_{why}", status=status)
        if why in ("malformed", "slow"):
            self._linger()
        else:
            self._close()

    def _fail(self, error: str, message: str) -> None:
        """Tell the client that there is no answer, and why."""
        self._to_client(error_answer(502, error, message))
        self._end_entry(error=error, status=502)
        self._linger()

    def _linger(self) -> None:
        """Close, once the client has had the time to read why.

        Where the kernel holds bytes of the client when the tap closes, it resets the connection, and the client loses
        the answer. So the tap reads on for a moment and drops what it reads.
        """
        if self._client.is_closing() or not self._client.can_write_eof():
            self._close()
            return
        self._forget_request()
        self._ahead.clear()
        if self._server is not None:
            self._server.abort()
        self._lingering = True
        self._connections.waits(self, Waiting.NEW)
        self._client.write_eof()
        self._held.clear()
        self._client.resume_reading()
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_SECONDS, self._client.abort)

    def _end_entry(self, error: str = "", status: int = 0) -> None:
        if self._entry is not None:
            self._entry.ended(error=error, status=status)
            self._entry = None

    def _end_whole(self) -> None:
        """All of the answer was written. Its request ends when the kernel has it: who leaves before has left."""
        if self._entry is None:
            return
        if self._client.is_closing():  # so the last write found
            self._entry.ended(left=True, missed=True)
        elif self._client.get_write_buffer_size():
            self._unsent.append(self._entry)
            self._client.set_write_buffer_limits(high=0)  # resume_writing comes when all is written
        else:
            self._entry.ended()
        self._entry = None

    def _end_unsent(self, *, missed: bool = False, error: str = "") -> None:
        for entry in self._unsent:
            entry.ended(left=missed, missed=missed, error=error)
        self._unsent.clear()

    def _forget_request(self) -> None:
        self._request = self._request_body = self._answer_body = self._entry = None
        self._answer_head.clear()

    def _close(self) -> None:
        """Both sides; the client gets what was written to it, as long as it reads."""
        self._forget_request()
        self._client.close()
        if self._server is not None:
            self._server.abort()

"""Bounds on the connections of a listener: how many, from whom, and how long each may take for what.

    runner = GuardedRunner(app)                                # instead of aiohttp's AppRunner
    await runner.setup()
    site = GuardedSite(runner, LISTENERS["api"], host, port)   # instead of aiohttp's TCPSite
    await site.start()

A `ListenerGuard` makes a `Connection` for each accepted socket, between the transport and the protocol of an HTTP
server. It counts the connection before TLS, and one timer checks the times of all connections. A connection that waits
for its client, with half a body too or with an answer that the client does not read, may be closed to make room for
another one; one whose request is being answered may not.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from kvitals.agent.accept_queue import ACCEPTED_AT_ONCE, lengthen_queue
from kvitals.agent.connection_table import ConnectionTable, Waiting
from kvitals.agent.listeners import LISTENERS, PROCESSES, Listener
from kvitals.agent.refusals import answer_bytes, other_version

RESERVED_FILES = 256
"""Open files that a process keeps for all but connections of its listeners: scrapes, files, and sockets that were
accepted and are about to be refused."""
MIN_CONNECTIONS = 8

REFUSALS = 16
"""Connections that get a 503 at the same time. Those beyond it are closed without an answer."""
REFUSAL_SECONDS = 1.0
GAVE_WAY = (
    "all connections are in use, and this connection sent no byte of its body for a while; send the whole body at once"
)
MALFORMED = "this is not a request of HTTP/1.1: check the client and the proxies before it"
FAILED = "the request failed: the log has the reason"
LINGERING_SECONDS = 1.0
"""How long the rest of a body is read and dropped after its request is answered."""

STALLED_SECONDS = 0.1
"""An upload without progress for so long gives way to a new client."""
UNREAD_SECONDS = 1.0
"""So does a connection whose client has read nothing of its answer for so long."""

_LONGEST_HEAD = max(row.max_head for row in LISTENERS.values())
_SWEEP_SECONDS = 1.0
_END_OF_HEAD = b"\r\n\r\n"
_LINE_ENDS = b"\r\n"

LOG_SECONDS = 60.0
MAX_LOGGED_REASON = 200
"""Characters of a reason that may quote a client's request."""


class _FewErrors(logging.Filter):
    """Lets one line a minute through on malformed requests, and apart from it one traceback a minute on other errors.

    aiohttp's server logs a traceback for each malformed request, and clients send as many of those as they like.
    """

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[bool, float] = {}  # by whether it is about malformed requests

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        error = record.exc_info[1] if record.exc_info else None
        malformed = isinstance(error, HttpProcessingError)
        now = time.monotonic()
        if now < self._next.get(malformed, float("-inf")):
            return False
        self._next[malformed] = now + LOG_SECONDS
        if isinstance(error, HttpProcessingError):
            _make_one_line(record, error)
        return True


def _make_one_line(record: logging.LogRecord, error: HttpProcessingError) -> None:
    """Replace the traceback of a malformed request by its reason."""
    client = record.args[0] if isinstance(record.args, tuple) and record.args else "unknown address"
    reason = ascii(" ".join(error.message.split())[:MAX_LOGGED_REASON])
    record.msg = "malformed request from %s refused with %d: %s; check this client and the proxies in between"
    record.args = (client, error.code, reason)
    record.exc_info = record.exc_text = None


logging.getLogger("aiohttp.server").addFilter(_FewErrors())


class ConnectionPhase(Enum):
    """What a connection is doing."""

    OPENED = auto()  # no byte of a request so far; line ends before it do not count
    HEAD = auto()  # a head has begun
    READY = auto()  # the head is whole, its request starts in a moment
    REQUEST = auto()
    REST = auto()  # the request is answered, its body is not yet here
    IDLE = auto()
    UPGRADED = auto()  # a WebSocket
    ENDING = auto()  # it was refused, and is closed in a moment


_WAITING = {
    ConnectionPhase.OPENED: Waiting.NEW,
    ConnectionPhase.HEAD: Waiting.NEW,
    ConnectionPhase.REST: Waiting.UPLOAD,
    ConnectionPhase.IDLE: Waiting.IDLE,
    ConnectionPhase.ENDING: Waiting.NEW,
}
"""What a connection waits for in a phase; in the others a request is under way. Its body may still be incomplete."""


def effective(row: Listener, ports: int = 1) -> Listener:
    """The row with as many connections as this process's limit of open files allows.

    `ports`: listeners of this row in the process. The limit is shared by all listeners that the process may open.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return row
    wanted = max(
        sum(LISTENERS[name].connections * LISTENERS[name].files for name in names)
        for names in PROCESSES.values()
        if row.name in names
    )
    share = (soft - RESERVED_FILES) / (wanted * ports)
    if share >= 1:
        return row
    connections = max(MIN_CONNECTIONS, int(row.connections * share))
    return replace(row, connections=connections, per_peer=max(connections * row.per_peer // row.connections, 1))


class ListenerGuard:
    """The connections of one listener. It is the protocol factory for `loop.create_server`.

    make: the HTTP server's protocol for a connection. tls: the server's side of TLS; do not give it to `create_server`
    too, since a connection counts from the moment it is accepted. refused: called for each refused connection.
    """

    def __init__(
        self,
        row: Listener,
        make: Callable[[Connection], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
        refused: Callable[[], None] | None = None,
    ) -> None:
        self.row = row
        self.make = make
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self.connections: ConnectionTable[Connection] = ConnectionTable(
            row.connections, row.per_peer, {Waiting.UPLOAD: STALLED_SECONDS}
        )
        self.by_protocol: dict[object, Connection] = {}
        self.refusals = 0
        self._refused = refused
        self._sweep_every = min([_SWEEP_SECONDS, *(t / 4 for t in (row.first_byte, row.head, row.body, row.idle) if t)])
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> bool:
        """Count a connection in. False where there is no room and none can be made."""
        if self.connections.join(connection):
            self.connections.leave(connection)
            if self._refused is not None:
                self._refused()
            return False
        if self._timer is None:
            self._schedule()
        return True

    def release(self, connection: Connection) -> None:
        """The connection has ended. May be called twice."""
        self.connections.leave(connection)

    def refusal(self, connection: Connection) -> bytes:
        """The answer to a connection that was not admitted."""
        own = self.connections.of_peer(connection.peer)
        return answer_bytes(
            self.row,
            "503 Service Unavailable",
            f"too many connections: {len(self.connections)} of {self.row.connections}, {own} of {self.row.per_peer}"
            " from your address; close some, or try again later",
        )

    def _schedule(self) -> None:
        self._timer = self.loop.call_at(self.loop.time() + self._sweep_every, self._sweep)

    def _sweep(self) -> None:
        """Close what takes longer than the row allows."""
        assert self._timer is not None
        now = self.loop.time()
        # After a stall of the loop, data that arrived meanwhile is read first.
        if now - self._timer.when() < self._sweep_every:
            for connection in self.connections:
                connection.check(now)
        self._timer = None
        if self.connections:
            self._schedule()


class Connection(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, guard: ListenerGuard) -> None:
        self._guard = guard
        self.peer = ""
        self.phase = ConnectionPhase.OPENED
        self.since = guard.loop.time()
        self._raw: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None  # the raw one, or TLS over it
        self._inner: asyncio.Protocol | None = None
        self._wants_body: Callable[[], bool] = lambda: False
        self._head = bytearray()  # of the head that has begun
        self._received = 0  # bytes since the last request's end: line ends, head, body and its framing
        self._early = bytearray()  # decrypted before the handshake's task went on
        self._unsent, self._unsent_since = 0, self.since
        self._tls_task: asyncio.Task[None] | None = None

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        if not self._guard.admit(self):
            self._refuse(self._raw)
        elif self._guard.tls is not None:
            self._tls_task = self._guard.loop.create_task(self._handshake(self._raw, self._guard.tls))
        else:
            self._begin(self._raw)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            if self._tls_task is not None:
                self._early += data
            return
        if self._follow(data):
            self._inner.data_received(data)
            if self.phase is ConnectionPhase.REQUEST:
                self._follow_body()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.release(self)
        if self._inner is not None:
            self._guard.by_protocol.pop(self._inner, None)
            self._inner.connection_lost(exc)

    # What the server calls

    def begin(self, wants_body: Callable[[], bool]) -> None:
        """A request has begun. wants_body: whether bytes of its body are still to come."""
        if self.phase is ConnectionPhase.REST:  # the body of the request before it ended meanwhile
            self._received = 0
        self._enter(ConnectionPhase.REQUEST)
        self._wants_body = wants_body
        self._follow_body()

    def end(self) -> None:
        """The request is answered."""
        if self.phase is ConnectionPhase.REQUEST:
            self._enter(ConnectionPhase.REST if self._wants_body() else ConnectionPhase.IDLE)

    def upgrade(self, protocol: asyncio.Protocol) -> None:
        """Another protocol takes the connection over, and sees to its times itself."""
        self._guard.by_protocol.pop(self._inner, None)
        self._inner = protocol
        self._enter(ConnectionPhase.UPGRADED)

    # What the guard and its table call

    def progress_age(self) -> float:
        """Seconds in the current phase, or since the last bytes of a request."""
        return self._guard.loop.time() - self.since

    def may_give_way(self) -> bool:
        """Whether no answer is under way, or nobody reads it: the table has those alone that wait for their client."""
        return not self._unsent_bytes() or self._is_unread(self._guard.loop.time())

    def give_way(self) -> None:
        """End, so that another client can be served."""
        uploads = self.phase is ConnectionPhase.REQUEST and not self._unsent_bytes()
        self.close(answer_bytes(self._guard.row, "503 Service Unavailable", GAVE_WAY) if uploads else b"")

    def check(self, now: float) -> None:
        """Close the connection where a time of the row is over."""
        row, size = self._guard.row, self._unsent_bytes()
        if size != self._unsent:
            self._unsent, self._unsent_since = size, now
        self._guard.connections.unread(self, self._is_unread(now))
        if size:
            if row.body and now - self._unsent_since > row.body:
                self.close()
            return
        limit = {
            ConnectionPhase.OPENED: row.first_byte,
            ConnectionPhase.HEAD: row.head,
            ConnectionPhase.READY: row.head,  # the server has not taken it for a request, or refuses it
            ConnectionPhase.REST: row.body,
            ConnectionPhase.IDLE: row.idle,
        }.get(self.phase, 0.0)
        if self.phase is ConnectionPhase.REQUEST and self._transport is not None and self._transport.is_reading():
            limit = row.body if self._wants_body() else 0.0
        if limit and now - self.since > limit:
            self.close(self._timeout_answer())

    def _timeout_answer(self) -> bytes:
        """The answer to a client whose time for the phase is over; empty where it has not begun a request, or has its
        answer already."""
        row = self._guard.row
        if self.phase is ConnectionPhase.HEAD:
            return answer_bytes(row, "408 Request Timeout", f"the head is incomplete after {row.head:g} s")
        if self.phase is ConnectionPhase.REQUEST:  # handlers answer once they have the body
            return answer_bytes(
                row, "408 Request Timeout", f"no byte of the body for {row.body:g} s; send the whole body at once"
            )
        return b""

    def close(self, last: bytes = b"") -> None:
        """End the connection now, with these last bytes where they can be sent at once."""
        self._guard.release(self)
        if self._transport is not None and last:
            self._transport.write(last)
            self._transport.close()
        elif self._raw is not None:
            self._raw.abort()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._inner = self._guard.make(self)
        self._guard.by_protocol[self._inner] = self
        self._inner.connection_made(transport)

    async def _handshake(self, raw: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            over_tls = await self._guard.loop.start_tls(
                raw, self, tls, server_side=True, ssl_handshake_timeout=self._guard.row.first_byte or None
            )
        except OSError:  # no TLS, a certificate that is refused, or nothing in time
            over_tls = None
        except BaseException:
            self.close()
            raise
        if over_tls is None:
            self.close()
            return
        self._enter(ConnectionPhase.OPENED)
        self._begin(over_tls)
        early, self._early = bytes(self._early), bytearray()
        if early:
            self.data_received(early)

    def _is_unread(self, now: float) -> bool:
        """Whether the client has read nothing of its answer for a while."""
        return bool(self._unsent) and now - self._unsent_since >= UNREAD_SECONDS

    def _follow_body(self) -> None:
        """Note whether the request under way waits for more of its body."""
        if self._wants_body():
            self._guard.connections.waits(self, Waiting.UPLOAD)
        else:
            self._guard.connections.served(self)

    def _follow(self, data: bytes) -> bool:
        """Keep track of the bytes of a request. False where the server must not get them."""
        if self.phase in (ConnectionPhase.UPGRADED, ConnectionPhase.ENDING):
            return self.phase is ConnectionPhase.UPGRADED
        if self.phase is ConnectionPhase.REST and not self._wants_body():
            self._enter(ConnectionPhase.IDLE)
        self._received += len(data)
        row = self._guard.row
        if row.max_body and self._received > row.max_head + row.max_body + row.max_framing:
            self._end_long_request()
            return False
        if self.phase in (ConnectionPhase.OPENED, ConnectionPhase.IDLE):
            # Servers skip line ends before a request, so they must not restart its clock, nor come without end.
            begun = bool(data.lstrip(_LINE_ENDS))
            if not begun and self._received <= row.max_head:
                return True
            self._head.clear()
            self._enter(ConnectionPhase.HEAD)
        elif self.phase is ConnectionPhase.REQUEST:
            self.since = self._guard.loop.time()
        return self.phase is not ConnectionPhase.HEAD or self._follow_head(data)

    def _follow_head(self, data: bytes) -> bool:
        """Find where the head ends. False where it is too long."""
        limit = self._guard.row.max_head
        seen = max(len(self._head) - len(_END_OF_HEAD) + 1, 0)
        if not self._head:
            data = data.lstrip(_LINE_ENDS)
        self._head += data[: limit + 1 - len(self._head)]
        if self._head.find(_END_OF_HEAD, seen) >= 0:
            self._enter(ConnectionPhase.READY)
            self._head.clear()
        elif len(self._head) > limit or self._received > len(self._head) + limit:
            most = f"a head may have {limit} bytes: send fewer or shorter header fields, or send the query as a form"
            self._linger(answer_bytes(self._guard.row, "431 Request Header Fields Too Large", most))
            return False
        return True

    def _end_long_request(self) -> None:
        """End a request of more bytes than its head, its body and the framing of its body may have."""
        row = self._guard.row
        # Handlers answer once they have the body, so no byte of an answer is sent while they wait for it.
        waits = self.phase is ConnectionPhase.READY or (self.phase is ConnectionPhase.REQUEST and self._wants_body())
        most = f"a body may have {row.max_body} bytes, and its chunk framing {row.max_framing}"
        self._linger(answer_bytes(row, "413 Content Too Large", most) if waits else b"")

    def _linger(self, last: bytes) -> None:
        """Read no more, and keep the socket until the client had time to read its answer.

        A socket that is closed with bytes unread resets the connection, and the client loses the answer.
        """
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._enter(ConnectionPhase.ENDING)
        self._transport.pause_reading()
        self._transport.write(last)
        self._guard.loop.call_later(REFUSAL_SECONDS, self.close)

    def _enter(self, phase: ConnectionPhase) -> None:
        self.phase, self.since = phase, self._guard.loop.time()
        if phase in (ConnectionPhase.OPENED, ConnectionPhase.IDLE):
            self._received = 0
        if (waiting := _WAITING.get(phase)) is not None:
            self._guard.connections.waits(self, waiting)
        else:
            self._guard.connections.served(self)

    def _unsent_bytes(self) -> int:
        size = self._raw.get_write_buffer_size() if self._raw is not None else 0
        if self._transport is not None and self._transport is not self._raw:
            size += self._transport.get_write_buffer_size()
        return size

    def _refuse(self, raw: asyncio.Transport) -> None:
        """Answer with 503, and keep the socket until the client had time to read it."""
        guard = self._guard
        if guard.tls is not None or guard.refusals >= REFUSALS:
            raw.abort()
            return

        def done() -> None:
            guard.refusals -= 1
            raw.abort()

        guard.refusals += 1
        raw.write(guard.refusal(self))
        with suppress(OSError):  # the client has reset the connection
            raw.write_eof()
        guard.loop.call_later(REFUSAL_SECONDS, done)


class GuardedRunner(web.AppRunner):
    """Runs an aiohttp application of a `GuardedSite`.

    Bodies stay compressed. aiohttp otherwise unpacks every body on the event loop, also of requests that are refused:
    1 MB unpacks to 1 GB. The connection bounds the head as a whole, and the application answers each head within that:
    aiohttp's own limit of 8 KB per line has an answer in plain text that quotes the line.
    """

    __slots__ = ()

    def __init__(self, app: web.Application, *, shutdown_timeout: float = 60.0) -> None:
        """shutdown_timeout: seconds that requests have to end in when the server stops."""
        super().__init__(
            app,
            access_log=None,
            auto_decompress=False,
            lingering_time=LINGERING_SECONDS,
            max_line_size=_LONGEST_HEAD,
            max_field_size=_LONGEST_HEAD,
            shutdown_timeout=shutdown_timeout,
        )


class GuardedSite(web.BaseSite):
    """A TCP address that an aiohttp application is served on, within the bounds of a row."""

    __slots__ = ("_host", "_port", "_refused", "_row")

    def __init__(
        self,
        runner: GuardedRunner,
        row: Listener,
        host: str | None,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        refused: Callable[[], None] | None = None,
    ) -> None:
        """`host`: None for all interfaces. `port`: 0 for a free one."""
        super().__init__(runner, ssl_context=tls, backlog=ACCEPTED_AT_ONCE)
        self._row = row
        self._host = host
        self._port = port
        self._refused = refused

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._host or '0.0.0.0'}:{self._port}"  # noqa: S104

    @property
    def port(self) -> int:
        """The port that is bound."""
        assert isinstance(self._server, asyncio.Server)
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_listening(self) -> bool:
        """Whether new connections are accepted."""
        return isinstance(self._server, asyncio.Server) and self._server.is_serving()

    async def start(self) -> None:
        """Listen. Raises OSError where the address cannot be bound."""
        await super().start()
        server = self._runner.server
        assert isinstance(server, web.Server)

        def protocol(_: object) -> web.RequestHandler:
            return _Requests(server, loop=guard.loop, **server._kwargs)  # as the server makes its own

        guard = ListenerGuard(effective(self._row), protocol, self._ssl_context, self._refused)
        server.request_handler = _followed(server.request_handler, guard)
        self._server = await guard.loop.create_server(guard, self._host, self._port, backlog=self._backlog)
        lengthen_queue(self._server)


class _Requests(web.RequestHandler):
    """The requests of a connection. An answer to one that cannot be read or fails is ours: aiohttp's quotes it."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log the error and answer it."""
        super().handle_error(request, status, exc, message)
        answer = web.Response(status=status, text=f"{MALFORMED if status < 500 else FAILED}\n")
        answer.force_close()
        return answer


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _followed(handler: Handler, guard: ListenerGuard) -> Handler:
    """The server's handler of requests, which reports to the guard's connections when each begins and ends."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if (refused := other_version(guard.row, request)) is not None:
            return refused
        connection = guard.by_protocol.get(request.protocol)
        if connection is None:  # of another site of the same server
            return await handler(request)
        connection.begin(lambda: not request.content.is_eof())
        try:
            return await handler(request)
        finally:
            connection.end()

    return handle

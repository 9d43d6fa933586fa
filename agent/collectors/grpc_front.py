"""The connections and calls of a gRPC server: how many, from whom, and for how long each may be quiet.

    front = Front(row, path, tls, refused)   # path: the Unix socket of the gRPC server
    port = await front.open(host, port)

gRPC's core limits connections as a whole and not by address, so one client with idle connections would keep all others
out. A front accepts the connections, TLS included, and passes bytes to the core's Unix socket. Its connections are in a
`ConnectionTable`, as those of every other listener: where there is no room, the connection that has been quiet for
longest gives way. One connection costs three open files.

The core keeps header blocks of any length, ends at a path that is not UTF-8, and has one limit of calls for all. So the
front follows the frames (`kvitals.agent.collectors.http2_framing`): it ends connections with header blocks,
paths or control frames beyond their limits, and shares the calls and their reading among the clients
(`kvitals.agent.collectors.grpc_calls`, `kvitals.agent.collectors.grpc_turns`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from kvitals.agent.accept_queue import ACCEPTED_AT_ONCE, lengthen_queue
from kvitals.agent.collectors.grpc_calls import CallTable, OpenCall
from kvitals.agent.collectors.grpc_turns import CallTurns
from kvitals.agent.collectors.http2_framing import (
    CANCEL,
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    REFUSED_STREAM,
    RST_STREAM,
    CallHeads,
    FrameBudget,
    FrameHead,
    Framing,
    FramingError,
    cost_of,
    is_idle,
    reset,
)
from kvitals.agent.connection_table import ConnectionTable, Waiting
from kvitals.agent.listeners import Listener
from kvitals.agent.logger import Logger

log = Logger()

MAX_CALLS, MAX_CALLS_OF_PEER = 16, 12
"""At one time, of all connections and of those of one address. The core keeps each one's request until it is whole."""

ANSWER_SECONDS = 3.0
"""A call whose request came so long ago gives way: its client does not read the answer."""

END_COST = 100.0
"""Frames that a call which gives way costs its connection, so that one which only opens calls ends."""

LOG_SECONDS = 60.0
QUIET_SECONDS = 1.0
"""A connection that sent something within this time does not give way."""

_PATIENCE = {Waiting.NEW: QUIET_SECONDS, Waiting.IDLE: QUIET_SECONDS}
SWEEP_SECONDS = 1.0


class Front:
    """The public address of a gRPC server. On one event loop.

    tls: the server's side of TLS, where it has one. refused: called for each call that gives way or finds no room.
    """

    def __init__(
        self,
        row: Listener,
        path: Path,
        tls: ssl.SSLContext | None = None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.row = row
        self.path = path
        self.tls = tls
        self.refused = refused
        self.loop = asyncio.get_running_loop()
        self.calls: CallTable[_Connection] = CallTable(MAX_CALLS, MAX_CALLS_OF_PEER, ANSWER_SECONDS)
        self._logged, self._unlogged = float("-inf"), 0
        self.turns = CallTurns(self.loop)
        self._connections: ConnectionTable[_Connection] = ConnectionTable(row.connections, row.per_peer, _PATIENCE)
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, host: str | None, port: int) -> int:
        """Listen; returns the port. host: None for all interfaces. Raises OSError."""
        self._server = await self.loop.create_server(lambda: _Connection(self), host, port, backlog=ACCEPTED_AT_ONCE)
        lengthen_queue(self._server)
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def is_listening(self) -> bool:
        """Whether new connections are accepted."""
        return self._server is not None and self._server.is_serving()

    def accept_no_more(self) -> None:
        """Accept no further connection; those that there are go on."""
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """Accept no more, and end all connections."""
        self.accept_no_more()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._connections:
            connection.close()

    def admit(self, connection: _Connection) -> bool:
        """Count a connection in. False where there is no room and none can be made."""
        if self._connections.join(connection):
            self._connections.leave(connection)
            return False
        return True

    def sent(self, connection: _Connection) -> None:
        """The client sent something: of those that wait, its connection is the last to give way."""
        self._connections.waits(connection, Waiting.IDLE)

    def release(self, connection: _Connection) -> None:
        """The connection has ended. May be called twice."""
        self._connections.leave(connection)
        self.calls.leave(connection)
        self.turns.leave(connection)

    def broke(self, connection: _Connection, why: str) -> None:
        """A client broke the limits of HTTP/2. One line a minute reports it."""
        self._unlogged += 1
        if (now := self.loop.time()) - self._logged < LOG_SECONDS:
            return
        log.warning(
            "OTLP over gRPC: connection closed", peer=connection.peer, reason=why, closed_since_last=self._unlogged
        )
        self._logged, self._unlogged = now, 0

    def _sweep(self) -> None:
        """Close connections that sent nothing for too long."""
        for connection in self._connections:
            limit = self.row.idle if connection.has_sent else self.row.first_byte
            if connection.progress_age() > limit or connection.owes_for() > QUIET_SECONDS:
                connection.close()
        self._timer = self.loop.call_later(SWEEP_SECONDS, self._sweep)


class _Connection(asyncio.Protocol):
    """The client's side of one connection."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._core: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self._active = front.loop.time()  # when the client sent something last
        self.has_sent = False
        # What is still to be followed. Before the core is connected: Python 3.11.2 reads once although
        # connection_made paused reading.
        self._held = b""
        self._is_core_full = False
        self._is_in_handshake = front.tls is not None
        self.calls: dict[int, OpenCall] = {}
        self._latest = 0  # the highest stream so far
        self._last_head = FrameHead(0, HEADERS, 0, 0)
        self._budget = FrameBudget(self._active)
        self._heads = CallHeads()
        self._from_client = Framing(self._client_sent, PREFACE, self._head_sent, self._content_sent)
        self._from_core = Framing(self._core_sent)
        self._owed: list[tuple[int, int]] = []  # streams to be ended, and the code for the client
        self._owed_since = 0.0
        self._is_urgent = False  # what is owed must not wait
        self._is_feeding = False
        self._ends: list[bytes] = []  # frames for the client, once one fits between those of the core

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        if not self._front.admit(self):
            self.transport.abort()
            return
        if self._front.tls is None:
            self.transport.pause_reading()  # until the core is connected
        self._task = self._front.loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._active, self.has_sent = self._front.loop.time(), True
        self._front.sent(self)
        if self._core is not None:
            self._held += data
            self.follow()
        elif self.transport is not None:
            self._held += data
            if self._is_in_handshake:  # the reading of what is below TLS is TLS's
                return
            self.transport.resume_reading()  # so that the next line is not taken for a repetition
            self.transport.pause_reading()

    def core_data(self, data: bytes) -> None:
        """The core answers."""
        if self.transport is None:
            return
        self._from_core.feed(data)
        self.transport.write(data)
        self._send_ends()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def pause_writing(self) -> None:
        if self._core is not None:
            self._core.pause_reading()

    def resume_writing(self) -> None:
        if self._core is not None:
            self._core.resume_reading()

    def progress_age(self) -> float:
        """Seconds since the client sent something."""
        return self._front.loop.time() - self._active

    def may_give_way(self) -> bool:
        """Whether it may end now: how long it was quiet decides."""
        return True

    def give_way(self) -> None:
        """End, so that another client can be served."""
        self.close()

    def close(self) -> None:
        """End the connection now."""
        self._front.release(self)
        if self._task is not None:
            self._task.cancel()
        for side in (self.transport, self._core):
            if side is not None:
                side.abort()

    def end_call(self, stream: int) -> None:
        """End a call, for its client and for the core. Where the client is within a frame, the connection ends."""
        whole = self.calls[stream].is_whole
        self._front.calls.end(self, stream)
        self._owe(stream, CANCEL if whole else REFUSED_STREAM)
        self._is_urgent = True
        self._settle()

    def owes_for(self) -> float:
        """Seconds since a call was refused that could not be ended yet, since the client is within a frame."""
        return self._front.loop.time() - self._owed_since if self._owed else 0.0

    def _owe(self, stream: int, code: int) -> None:
        self._front.refused()
        if not self._owed:
            self._owed_since = self._front.loop.time()
        self._owed.append((stream, code))

    def _settle(self) -> None:
        """End the calls that are to be ended, once a frame fits between those of the client."""
        if not self._owed or self._is_feeding:
            return
        if self._core is None or (self._is_urgent and not self._from_client.is_between):
            self.close()
        elif self._from_client.is_between:
            self._core.write(b"".join(reset(stream, CANCEL) for stream, _ in self._owed))
            self._ends += [reset(stream, code) for stream, code in self._owed]
            ended = len(self._owed)
            self._owed.clear()
            self._is_urgent = False
            self._send_ends()
            try:
                self._budget.spend(self._front.loop.time(), END_COST * ended)
            except FramingError as error:
                self._break(error)

    def _break(self, error: FramingError) -> None:
        self._front.broke(self, str(error))
        self.close()

    def _send_ends(self) -> None:
        if self._ends and self._from_core.is_between and self.transport is not None:
            self.transport.write(b"".join(self._ends))
            self._ends.clear()

    def follow(self) -> None:
        """Follow what the client sent, in this turn of the loop or a later one, and read more where there is room."""
        if self._held and self._front.turns.may_read(self):
            self._pass_on()
        if self.transport is None or self.transport.is_closing():
            return
        if self._held or self._is_core_full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def core_is_full(self, is_full: bool) -> None:
        """Whether the core takes no more for now."""
        self._is_core_full = is_full
        self.follow()

    def _pass_on(self) -> None:
        """Give the core what the client sent, as far as it keeps to the limits and has its turn."""
        assert self._core is not None
        data, self._held = self._held, b""
        self._is_feeding = True
        try:
            followed = self._from_client.feed(data)
        except FramingError as error:
            self._break(error)
            return
        finally:
            self._is_feeding = False
        self._held = data[followed:]
        self._core.write(data[:followed])
        self._settle()

    def _client_sent(self, frame: FrameHead) -> None:
        call = self.calls.get(frame.stream)
        if is_idle(frame, call is not None and not call.is_whole):
            self._budget.spend(self._active)
        if frame.kind == HEADERS and frame.stream > self._latest:
            self._latest = frame.stream
            if frame.stream % 2 == 0:
                raise FramingError("a call has an even stream number, which only servers use")
            if not self._front.calls.begin(self, frame.stream, self._active):
                self._owe(frame.stream, REFUSED_STREAM)
        if frame.kind == RST_STREAM:
            self._front.calls.end(self, frame.stream)
        elif frame.kind == HEADERS:
            self._last_head = frame

    def _content_sent(self, frame: FrameHead, piece: bytes, is_last: bool) -> None:
        if (call := self.calls.get(frame.stream)) is not None:
            call.take(frame, piece, is_last, self._active)

    def _head_sent(self, block: bytes) -> bool:
        self._budget.spend(self._active, cost_of(block))
        self._heads.check(block)
        if self._last_head.flags & END_STREAM and (call := self.calls.get(self._last_head.stream)) is not None:
            call.end(self._active)
        return self._front.turns.read(self, len(block))

    def _core_sent(self, frame: FrameHead) -> None:
        if frame.kind == RST_STREAM or (frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM):
            self._front.calls.end(self, frame.stream)

    async def _connect(self) -> None:
        if self._front.tls is not None and not await self._handshake(self._front.tls):
            self.close()
            return
        await self._front.turns.connects(self.peer)
        try:
            core, _ = await self._front.loop.create_unix_connection(lambda: _CoreSide(self), str(self._front.path))
        except OSError:  # no open file is left, or the core has ended
            self.close()
            return
        self._core = core
        if self.transport is None or self.transport.is_closing():
            core.abort()
        else:
            self.follow()

    async def _handshake(self, tls: ssl.SSLContext) -> bool:
        """Set up TLS; returns whether it is. HTTP/2 is all that is offered."""
        assert self.transport is not None
        try:
            over_tls = await self._front.loop.start_tls(
                self.transport, self, tls, server_side=True, ssl_handshake_timeout=self._front.row.first_byte
            )
        except OSError:  # no TLS, or nothing in time
            return False
        if over_tls is None:
            return False
        self.transport = over_tls
        self._is_in_handshake = False
        over_tls.pause_reading()
        return True


class _CoreSide(asyncio.Protocol):
    """The core's side of one connection."""

    def __init__(self, client: _Connection) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.core_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client.transport is not None and not self._client.transport.is_closing():
            self._client.transport.close()  # after what is still to be sent, such as the core's last words

    def pause_writing(self) -> None:
        self._client.core_is_full(True)

    def resume_writing(self) -> None:
        self._client.core_is_full(False)

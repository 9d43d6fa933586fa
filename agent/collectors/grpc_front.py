"""The connections of a gRPC server: how many, from whom, and for how long each may be quiet.

    front = Front(row, path)           # path: the Unix socket of the gRPC server
    port = await front.open(host, port)

gRPC's core limits connections as a whole and not by address, so one client with idle connections would keep all others
out. A front accepts the connections and passes bytes to the core's Unix socket, TLS included. Its connections are in a
`ConnectionTable`, as those of every other listener: where there is no room, the connection that has been quiet for
longest gives way. One connection costs three open files.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from kvitals.agent.connection_table import ConnectionTable, Waiting
from kvitals.agent.listeners import Listener

QUIET_SECONDS = 1.0
"""A connection that sent something within this time does not give way."""

_PATIENCE = {Waiting.NEW: QUIET_SECONDS, Waiting.IDLE: QUIET_SECONDS}
SWEEP_SECONDS = 1.0
BACKLOG = 128


class Front:
    """The public address of a gRPC server. On one event loop."""

    def __init__(self, row: Listener, path: Path) -> None:
        self.row = row
        self.path = path
        self.loop = asyncio.get_running_loop()
        self._connections: ConnectionTable[_Connection] = ConnectionTable(row.connections, row.per_peer, _PATIENCE)
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, host: str | None, port: int) -> int:
        """Listen; returns the port. host: None for all interfaces. Raises OSError."""
        self._server = await self.loop.create_server(lambda: _Connection(self), host, port, backlog=BACKLOG)
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

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

    def _sweep(self) -> None:
        """Close connections that sent nothing for too long."""
        for connection in self._connections:
            limit = self.row.idle if connection.has_sent else self.row.first_byte
            if connection.progress_age() > limit:
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
        # What came before the core was connected: Python 3.11.2 reads once although connection_made paused reading.
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        if not self._front.admit(self):
            self.transport.abort()
            return
        self.transport.pause_reading()  # until the core is connected
        self._task = self._front.loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._active, self.has_sent = self._front.loop.time(), True
        self._front.sent(self)
        if self._core is not None:
            self._core.write(data)
        elif self.transport is not None:
            self._early += data
            self.transport.resume_reading()  # so that the next line is not taken for a repetition
            self.transport.pause_reading()

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
        """Whether it may end now. The front does not see calls, so how long it was quiet decides."""
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

    async def _connect(self) -> None:
        try:
            core, _ = await self._front.loop.create_unix_connection(lambda: _CoreSide(self), str(self._front.path))
        except OSError:  # no open file is left, or the core has ended
            self.close()
            return
        self._core = core
        if self.transport is None or self.transport.is_closing():
            core.abort()
        else:
            core.write(self._early)
            self.transport.resume_reading()


class _CoreSide(asyncio.Protocol):
    """The core's side of one connection."""

    def __init__(self, client: _Connection) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        if self._client.transport is not None:
            self._client.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._client.transport is not None and not self._client.transport.is_closing():
            self._client.transport.close()  # after what is still to be sent, such as the core's last words

    def pause_writing(self) -> None:
        if self._client.transport is not None:
            self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._client.transport is not None:
            self._client.transport.resume_reading()

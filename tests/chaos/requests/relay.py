"""A relay that does nothing but pass bytes on: what a process between client and engine costs on this machine now.

    python -m tests.chaos.requests.relay PORT UPSTREAM_PORT

The good client sends the same requests through it and through the tap. Both wait for the same cores, so the difference
is the tap's.
"""

from __future__ import annotations

import asyncio
import sys


class Half(asyncio.Protocol):
    """One side of a connection. What it receives goes to the other."""

    def __init__(self, other: Half | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.other is not None:
            self.other.joined(self)

    def joined(self, other: Half) -> None:
        """The other side is there: pass on what came meanwhile."""
        self.other = other
        for data in self._early:
            self.data_received(data)
        self._early = []

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self._early.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(port: int, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[object]] = set()

    class Front(Half):
        """The client's side."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            task = asyncio.ensure_future(loop.create_connection(lambda: Half(self), "127.0.0.1", upstream))
            connecting.add(task)
            task.add_done_callback(connecting.discard)

    server = await loop.create_server(Front, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))

"""A proxy that breaks what passes, between an agent and its engine, without any rights on the machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Literal

Fault = Literal["none", "delay", "silent", "cut"]
CUT_BYTES = 20_000


class Proxy:
    """Passes connections on to a port of loopback. `fault` may change at any time, also of open connections.

    delay: each piece of an answer comes `seconds` later. silent: nothing passes and nothing is closed, as where packets
    are lost. cut: the connection is reset after the first 20 kB of an answer.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.fault: Fault = "none"
        self.seconds = 0.0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        there_and_back = (self._pump(reader, back, answers=False), self._pump(there, writer, answers=True))
        tasks = [asyncio.ensure_future(one) for one in there_and_back]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for one in (writer, back):
            one.close()
            self._writers.discard(one)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(16_384):
                if self.fault == "silent":
                    continue
                if answers and self.fault == "delay":
                    await asyncio.sleep(self.seconds)
                writer.write(data)
                await writer.drain()
                passed += len(data)
                if answers and self.fault == "cut" and passed > CUT_BYTES:
                    _reset(writer)
                    return


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of an end."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

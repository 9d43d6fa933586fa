"""Clients of the tap and of the OTLP doors, good ones and others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from .planted import KEY, PROMPT, SESSION

HOST = "127.0.0.1"
PATIENCE = 30.0
PROTOBUF = {"Content-Type": "application/x-protobuf"}
_BODY = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}).encode()


def request(tenant: str, *, events: int = 4, every: int = 10, size: int = 20) -> bytes:
    """A request for work, with a key, a session and a prompt."""
    return (
        f"POST /v1/chat/completions?events={events}&every={every}&size={size} HTTP/1.1\r\nHost: engine\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {KEY}\r\nX-Tenant-Id: {tenant}\r\n"
        f"X-Session-Id: {SESSION}\r\nContent-Length: {len(_BODY)}\r\n\r\n"
    ).encode() + _BODY


class Connection:
    """A connection on which one request goes after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, said: bytes) -> bytes:
        """The answer, whole. Raises OSError or EOFError where it is not."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(HOST, self._port)
            reader, writer = self._streams
            writer.write(said)
            answer = await reader.readuntil(b"\r\n\r\n")
            if b"transfer-encoding: chunked" in answer.lower():
                return answer + await reader.readuntil(b"\r\n0\r\n\r\n")
            self.close()
            return answer + await reader.read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@dataclass
class Reader:
    """A client that asks, and reads only when it is told to."""

    port: int
    small: bool = True  # its kernel keeps little for it
    _socket: socket.socket = field(init=False)

    async def ask(self, said: bytes) -> None:
        self._socket = socket.socket()
        if self.small:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, (HOST, self.port))
        if said:
            await loop.sock_sendall(self._socket, said)

    async def send(self, data: bytes) -> bool:
        """Whether the other side still takes it."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError:
            return False
        return True

    async def rest(self) -> tuple[bytes, str]:
        """What comes until the connection ends, and how it ended: `closed`, `reset` or `open`."""
        said, loop = b"", asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PATIENCE):
                while data := await loop.sock_recv(self._socket, 1 << 16):
                    said += data
        except TimeoutError:
            return said, "open"
        except OSError:
            return said, "reset"
        return said, "closed"

    def waiting(self) -> bytes | None:
        """What there is to read now; None where the connection has ended."""
        try:
            return self._socket.recv(1 << 16) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


async def export(session: aiohttp.ClientSession, port: int, payload: bytes) -> int:
    """Send spans over HTTP as an exporter does: again, as long as it is told to come later. Returns how often."""
    for times in range(1000):
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            url = f"http://{HOST}:{port}/v1/traces"
            async with session.post(url, data=payload, headers=PROTOBUF) as answer:
                if answer.status == 200:
                    return times
                if answer.status not in (429, 502, 503, 504):
                    raise RuntimeError(f"spans were refused: {answer.status} {await answer.text()}")
        await asyncio.sleep(0.5)
    raise RuntimeError("spans were not taken in 1000 times")


async def page(session: aiohttp.ClientSession, port: int, path: str = "/metrics") -> tuple[str, float]:
    """A page of the agent or the tap, and how long it took in seconds."""
    began = time.perf_counter()
    async with session.get(f"http://{HOST}:{port}{path}") as answer:
        return await answer.text(), time.perf_counter() - began


def told(answer: bytes) -> str:
    """What a JSON error says."""
    with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
        said: Any = json.loads(answer.partition(b"\r\n\r\n")[2] or answer)
        error = said.get("error", said)
        return str(error["message"] if isinstance(error, dict) else error)
    return answer[:120].decode(errors="replace")

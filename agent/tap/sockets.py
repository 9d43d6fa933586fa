"""What the tap asks of a connection's socket, beside what asyncio's transports offer."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
from array import array
from dataclasses import dataclass

KEEPALIVE_SECONDS = 60

ABORTIVE = struct.pack("ii", 1, 0)
"""SO_LINGER that resets a connection when it is closed."""
_HANGUP = getattr(select, "POLLRDHUP", 0)  # Linux; poll reports a reset in any case


@dataclass(frozen=True)
class Upstream:
    """Where requests go."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def reason_of(error: OSError, seconds: float) -> str:
    """Why there is no connection, in words. seconds: how long the tap waited for it."""
    if isinstance(error, TimeoutError):
        return f"no answer in {seconds:g} s"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    return error.strerror or type(error).__name__


def hangup_poll(transport: asyncio.Transport) -> select.poll:
    """A poll that reports whether the other end has closed, without reading from the socket."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket"), _HANGUP)
    return poll


def unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds and the other end has not taken; 0 where the system does not report it."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(termios, "TIOCOUTQ"):
        return 0
    held = array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, held)
    except OSError:
        return 0
    return held[0]


def reset(transport: asyncio.Transport) -> None:
    """End a connection with a reset, so that the other end cannot take what it got for the whole."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTIVE)
    transport.abort()


def keep_alive(transport: asyncio.Transport) -> None:
    """Find out when the other end has vanished without closing."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)

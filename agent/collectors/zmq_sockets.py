"""ZeroMQ sockets with limits, and what ZeroMQ leaves to its user: messages that are too long, and orderly ends."""

from __future__ import annotations

import contextlib
import errno
import socket as sockets
import time
from collections.abc import Iterator

import zmq

from kvitals.agent.connection_table import share_of

MAX_MESSAGE_BYTES = 8 << 20
"""Of one frame. A step that reports a prompt of a million tokens has 5 MB."""

FRAMES = 3
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5000, 15_000
RECONNECT_MS, MAX_RECONNECT_MS = 100, 5000
HANDSHAKE_MS = 5000
"""A connection that is not a publisher's by then is closed."""

CLOSE_SECONDS = 2.0
QUIET_MS = 20
"""Without an event of its connections, after which a closed address has no more of them."""

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


def is_out_of_files(error: zmq.ZMQError) -> bool:
    """Whether the process has no file descriptor left."""
    return error.errno in OUT_OF_FILES


@contextlib.contextmanager
def _accepted_socket(descriptor: int, endpoint: str) -> Iterator[sockets.socket | None]:
    """A connection that ZeroMQ accepted; None where it has ended.

    ZeroMQ may have closed it before, and the number may be another file's by now: only a connection to this address is
    given.
    """
    try:
        connection = sockets.socket(fileno=descriptor)
    except OSError:
        yield None
        return
    try:
        is_ours = connection.getsockname()[1] == int(endpoint.rpartition(":")[2])
    except (OSError, ValueError, IndexError):
        is_ours = False
    try:
        yield connection if is_ours else None
    finally:
        connection.detach()


def peer_of(descriptor: int, endpoint: str) -> str:
    """The share that an accepted connection counts against; empty where it has ended, or has no address."""
    with _accepted_socket(descriptor, endpoint) as connection, contextlib.suppress(OSError):
        if connection is not None:
            return share_of(str(connection.getpeername()[0]))
    return ""


def shut_down(descriptor: int, endpoint: str) -> None:
    """End a connection that ZeroMQ accepted; ZeroMQ notices and closes the descriptor."""
    with _accepted_socket(descriptor, endpoint) as connection, contextlib.suppress(OSError):
        if connection is not None:
            connection.shutdown(sockets.SHUT_RDWR)


def bounded_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, queued: int) -> zmq.Socket[bytes]:
    """A socket with limits. It notices a peer that is gone without a word, and connects again by itself."""
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, queued),
        (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        (zmq.RECONNECT_IVL, RECONNECT_MS),
        (zmq.RECONNECT_IVL_MAX, MAX_RECONNECT_MS),
        (zmq.IPV6, 1),
    ):
        socket.setsockopt(option, value)
    return socket


def close_both(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], bound: str = "") -> None:
    """Close a socket and its monitor. bound: the address where the socket accepts connections.

    ZeroMQ's own thread waits for room in the monitor's queue with a lock that the end of the monitor takes as well. So
    nothing is accepted any more and the queue is empty before the monitor ends.
    """
    with contextlib.suppress(zmq.ZMQError):
        if bound:
            socket.unbind(bound)
    until = time.monotonic() + CLOSE_SECONDS
    while monitor.poll(QUIET_MS if bound else 0) and time.monotonic() < until:
        monitor.recv_multipart()
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close(linger=0)


def next_message(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """The next message, without the parts that none of ours has; None where there is none."""
    try:
        frames = [socket.recv(zmq.NOBLOCK)]
    except zmq.Again:
        return None
    while socket.getsockopt(zmq.RCVMORE):
        part = socket.recv(zmq.NOBLOCK)
        if len(frames) <= FRAMES + 1:
            frames.append(part)
    return frames

"""The kernel's queue of connections that wait to be accepted.

A burst that is longer than the queue loses connections at random, and the kernels of their clients try again after 1 s
and 3 s: a client that came with the burst waits that long. asyncio accepts as many connections in one iteration of its
loop as the queue has places, so a long queue also holds up the connections that there are. The two are set apart here.
"""

from __future__ import annotations

import asyncio
import os
import socket

ACCEPTED_AT_ONCE = 64
"""In one iteration of the loop: the `backlog` of `create_server`."""

PLACES = 4096
"""As many as Linux allows by default (`net.core.somaxconn`)."""


def lengthen_queue(server: asyncio.Server) -> None:
    """Let more connections wait than are accepted at once."""
    for listening in server.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as own:
            own.listen(PLACES)

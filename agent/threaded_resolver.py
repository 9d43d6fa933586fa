"""Host names for the HTTP client, each looked up in a thread of its own."""

from __future__ import annotations

import socket
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from kvitals.agent.workers import Worker

RESOLVE_SECONDS = 5.0
MAX_RESOLVING = 64
"""Host names that are looked up at the same time, each in a thread of its own."""


class ThreadedResolver(AbstractResolver):
    """Looks host names up, each in a daemon thread of its own, so that a name server that hangs stops no other."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, int], Worker] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises OSError."""
        key = host, int(family)
        if key not in self._workers and len(self._workers) >= MAX_RESOLVING:
            self._workers = {one: worker for one, worker in self._workers.items() if worker.hung_seconds}
            if len(self._workers) >= MAX_RESOLVING:
                raise OSError(None, f"{MAX_RESOLVING} host names have not been resolved yet")
        worker = self._workers.setdefault(key, Worker(f"resolve {host[:40]}"))
        flags = socket.AI_ADDRCONFIG
        found = await worker.run(
            lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=flags), RESOLVE_SECONDS
        )
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=_numeric(address), port=address[1], family=kind, proto=proto, flags=numeric
            )
            for kind, _, proto, _, address in found
            if isinstance(address[0], str)
        ]

    async def close(self) -> None:
        self._workers.clear()


def _numeric(address: tuple[Any, ...]) -> str:
    """The host of a socket address; a link-local IPv6 address needs its scope."""
    if len(address) == 4 and address[3]:
        return socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
    return str(address[0])

"""The tap as a whole: it listens, relays, keeps books, and tells of itself on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from kvitals.agent.accept_queue import ACCEPTED_AT_ONCE, lengthen_queue
from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.descriptors import MOST, raise_limit
from kvitals.agent.exports.host_names import refuse_others
from kvitals.agent.exports.metrics_page import CONTENT_TYPE
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.tap.books import Books
from kvitals.agent.tap.client_connections import Bounds, Connections
from kvitals.agent.tap.context import ContextFields, RequestPseudonyms
from kvitals.agent.tap.delivery import PartDelivery
from kvitals.agent.tap.exchange import TapPlace
from kvitals.agent.tap.page import render
from kvitals.agent.tap.relay import Pair
from kvitals.agent.tap.sockets import Upstream

SPARE_FILES = 256
"""Open files beside those of connections: what is accepted and refused, the metrics page, the agent, what is loaded."""
CLOSE_SECONDS = 2.0
"""To hand over the last parts."""

Address = tuple[str, int]


@dataclass(frozen=True)
class TapSettings:
    """How a tap is run."""

    upstream: str  # its URL
    listen: Address = ("127.0.0.1", 8100)
    admin: Address | None = None  # of the metrics page
    agent: str = ""  # its URL; empty: parts go nowhere
    token_file: Path | None = None
    tls: ssl.SSLContext | None = None  # towards clients; the metrics page has none
    place: TapPlace = field(default_factory=TapPlace)
    wanted: ContextFields = field(default_factory=ContextFields)
    max_connections: int = 4096
    bounds: Bounds = field(default_factory=Bounds)
    drain: float = 30.0  # seconds that requests under way have to end when the tap is stopped


class Tap:
    """A running tap, from `open` to `close`."""

    def __init__(self, settings: TapSettings, names: RequestPseudonyms) -> None:
        """Raises ValueError where the upstream's URL has more than host and port."""
        self.settings = settings
        self.upstream = upstream_of(settings.upstream)
        self.delivery = PartDelivery(settings.agent, settings.token_file)
        self.books = Books(settings.place, settings.wanted, names, self.delivery.add)
        self.connections: Connections | None = None
        self._server: asyncio.Server | None = None
        self._runner: GuardedRunner | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def open(self) -> None:
        """Begin to listen. Raises OSError where it can not."""
        most = allow_files(self.settings.max_connections)
        self.connections = connections = Connections(self.books, most, self.settings.bounds)
        loop = asyncio.get_running_loop()
        try:
            if self.settings.admin is not None:
                await self._open_admin(self.settings.admin)
            self._server = await loop.create_server(
                lambda: Pair(self.upstream, self.books, connections, self.settings.tls),
                *self.settings.listen,
                backlog=ACCEPTED_AT_ONCE,
            )
            lengthen_queue(self._server)
            await self.delivery.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Take no more connections, let requests under way end for a while, and hand over the last parts."""
        if self._server is not None:
            self._server.close()
        if self.connections is not None:
            await self.connections.end(self.settings.drain)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.delivery.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _open_admin(self, address: Address) -> None:
        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=render(self.books, self.delivery), headers={"Content-Type": CONTENT_TYPE})

        app = web.Application(middlewares=refuse_others(address[0]))
        app.router.add_get("/metrics", metrics)
        self._runner = GuardedRunner(app)
        await self._runner.setup()
        await GuardedSite(self._runner, LISTENERS["tap_metrics"], *address).start()


def upstream_of(url: str) -> Upstream:
    """Where a URL leads. Raises ValueError where it has a path: requests keep theirs."""
    parts = urlsplit(url)
    if parts.path not in ("", "/"):
        raise ValueError(f"{url} has a path; the tap keeps the path of each request, so name the upstream as HOST:PORT")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Upstream(parts.hostname or "", parts.port or (443 if tls else 80), tls)


def allow_files(connections: int) -> int:
    """Raise this process's limit of open files; returns how many of so many connections it allows."""
    return min(connections, (raise_limit(max(MOST, 2 * connections + SPARE_FILES)) - SPARE_FILES) // 2)

"""Bounds on the connections of the web page's server, which is uvicorn within Streamlit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from streamlit.web.server.starlette import starlette_server
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvitals.agent.connections import Connection, ListenerGuard, effective
from kvitals.agent.listeners import LISTENERS


def bound_connections() -> None:
    """Let uvicorn accept connections through a guard. To be called before Streamlit's server starts."""
    options: Callable[[], dict[str, Any]] = starlette_server._get_uvicorn_config_kwargs
    guards: list[ListenerGuard] = []  # one, made on the server's loop

    def accept(**of_server: Any) -> asyncio.Protocol:
        if not guards:
            guards.append(
                ListenerGuard(effective(LISTENERS["web"]), lambda connection: _Protocol(connection, of_server))
            )
        return guards[0]()

    starlette_server._get_uvicorn_config_kwargs = lambda: options() | {"http": accept}


class _Protocol(H11Protocol):
    """Uvicorn's protocol, which reports to its connection when requests begin and end."""

    def __init__(self, connection: Connection, of_server: dict[str, Any]) -> None:
        super().__init__(**of_server)
        app = self.app

        async def followed(scope: Any, receive: Any, send: Any) -> None:
            connection.begin(lambda: self.cycle is not None and self.cycle.more_body)
            try:
                await app(scope, receive, send)
            finally:
                connection.end()

        self.app = followed
        self._connection = connection

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._connection.upgrade(self.transport.get_protocol())  # type: ignore[arg-type]
        self.transport.set_protocol(self._connection)

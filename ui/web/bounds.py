"""Bounds on connections, callers, sessions and uploads of the web page's server, which is uvicorn within Streamlit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import h11
from starlette.exceptions import HTTPException
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec
from streamlit.web.server.starlette import starlette_server
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvitals.agent.connections import Connection, ListenerGuard, effective
from kvitals.agent.listeners import LISTENERS, MIB
from kvitals.app.page_settings import read
from kvitals.ui.web.callers import refuse_strangers
from kvitals.ui.web.sessions import bound_sessions

UPLOADS_AT_ONCE = 4
"""Uploads that arrive at the same time, of all sessions. Until they are whole they are temporary files."""
OF_SESSION, OF_ALL = 2, 8
"""Uploads of the largest size that Streamlit holds in memory, of one session and of all."""


def bound_connections() -> None:
    """Let uvicorn accept connections through a guard, and pass on only requests and WebSockets of allowed callers, and
    as many sessions as there may be.

    To be called before Streamlit's server starts.
    """
    options: Callable[[], dict[str, Any]] = starlette_server._get_uvicorn_config_kwargs
    settings = read()
    row = replace(LISTENERS["web"], max_body=settings.upload_megabytes * MIB)
    guards: list[ListenerGuard] = []  # one, made on the server's loop

    def accept(**of_server: Any) -> asyncio.Protocol:
        if not guards:
            config = of_server["config"]  # both protocols take the application from here: HTTP's, and WebSocket's
            config.loaded_app = refuse_strangers(bound_sessions(config.loaded_app, row), settings.hosts)
            guards.append(ListenerGuard(effective(row), lambda connection: _Protocol(connection, of_server)))
        return guards[0]()

    starlette_server._get_uvicorn_config_kwargs = lambda: options() | {"http": accept}


class _Protocol(H11Protocol):
    """Uvicorn's protocol, which reports to its connection when requests begin and end."""

    def __init__(self, connection: Connection, of_server: dict[str, Any]) -> None:
        super().__init__(**of_server)
        app = _bounded_uploads(self.app)

        async def followed(scope: Any, receive: Any, send: Any) -> None:
            connection.begin(lambda: self.cycle is not None and self.cycle.more_body)
            try:
                await (_refused if _has_two_lengths(scope) else app)(scope, receive, send)
            finally:
                connection.end()

        self.app = followed
        self._connection = connection

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._connection.upgrade(self.transport.get_protocol())  # type: ignore[arg-type]
        self.transport.set_protocol(self._connection)


def _has_two_lengths(scope: Any) -> bool:
    """Whether a request states the length of its body in two ways. A proxy in front may follow the other one, and take
    for a body what is the next request here (RFC 9112, section 6.1)."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


async def _refused(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


_uploads = 0  # that arrive now


def _bounded_uploads(app: Any) -> Any:
    """The application, which is asked for `UPLOADS_AT_ONCE` uploads at a time; the next ones get 503."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        global _uploads
        if scope["type"] != "http" or scope["method"] != "PUT":
            await app(scope, receive, send)
            return
        if _uploads >= UPLOADS_AT_ONCE:
            # The connection stays open: closed with the body unread it is reset, and the client loses the answer.
            headers = [(b"content-length", b"0"), (b"retry-after", b"5")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        _uploads += 1
        try:
            await app(scope, receive, send)
        finally:
            _uploads -= 1

    return bounded


def bound_uploads() -> None:
    """Let Streamlit refuse files beyond what it may hold in memory. To be called before its server starts."""
    largest = read().upload_megabytes * MIB
    add = MemoryUploadedFileManager.add_file

    def add_file(manager: MemoryUploadedFileManager, session_id: str, file: UploadedFileRec) -> None:
        held = {name: sum(len(one.data) for one in files.values()) for name, files in manager.file_storage.items()}
        own, total = held.get(session_id, 0) + len(file.data), sum(held.values()) + len(file.data)
        if own > OF_SESSION * largest or total > OF_ALL * largest:
            raise HTTPException(507, "too many uploads are stored: remove one, or reload the page")
        add(manager, session_id, file)

    MemoryUploadedFileManager.add_file = add_file  # type: ignore[assignment, method-assign]

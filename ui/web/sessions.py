"""How many sessions the web page has at the same time: each is a WebSocket, and holds some 3 MB."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.responses import PlainTextResponse
from streamlit.runtime.memory_session_storage import MemorySessionStorage

from kvitals.agent.listeners import Listener

FULL = "503: the session limit is reached: {limit}. Close unused tabs of this page, and reload in a minute.\n"
KEPT = 8
"""Sessions whose WebSocket ended that Streamlit keeps for two minutes, in case the browser comes back."""


def keep_few_sessions() -> None:
    """Let Streamlit keep `KEPT` sessions that ended, and not 128. To be called before its server starts."""
    begin = MemorySessionStorage.__init__

    def few(storage: MemorySessionStorage, maxsize: int = KEPT, **options: Any) -> None:
        begin(storage, min(maxsize, KEPT), **options)

    MemorySessionStorage.__init__ = few  # type: ignore[assignment, method-assign]


def bound_sessions(app: Any, row: Listener) -> Any:
    """The application for as many sessions as its listener has, and for the share of one address of these. A WebSocket,
    or a page, beyond gets 503 with what to do."""
    peers: Counter[str] = Counter()

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        peer = (scope.get("client") or ("",))[0]
        limit = _limit(row, peers, peer) if scope["type"] == "websocket" or _is_page(scope) else ""
        if limit:
            await PlainTextResponse(FULL.format(limit=limit), 503, {"retry-after": "60"})(scope, receive, send)
        elif scope["type"] != "websocket":
            await app(scope, receive, send)
        else:
            peers[peer] += 1
            try:
                await app(scope, receive, send)
            finally:
                peers[peer] -= 1
                if not peers[peer]:
                    del peers[peer]

    return bounded


def _limit(row: Listener, peers: Counter[str], peer: str) -> str:
    """The limit that one more session would exceed; empty where there is room."""
    if sum(peers.values()) >= row.sessions:
        return f"it has {row.sessions}"
    if peers[peer] >= row.sessions_per_peer:
        return f"this address has {row.sessions_per_peer} of {row.sessions}"
    return ""


def _is_page(scope: Any) -> bool:
    """Whether a person opens a page, whose session comes next."""
    wanted = dict(scope.get("headers", ())).get(b"accept", b"")
    return scope["type"] == "http" and scope["method"] == "GET" and b"text/html" in wanted

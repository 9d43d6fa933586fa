"""Sessions of the web page: as many as there may be, and no more of one address than its share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streamlit.runtime.memory_session_storage import MemorySessionStorage

from kvitals.agent.listeners import LISTENERS
from kvitals.ui.web import sessions
from kvitals.ui.web.sessions import KEPT, bound_sessions

ROW = replace(LISTENERS["web"], sessions=4, sessions_per_peer=3)
HTML = [(b"accept", b"text/html,*/*;q=0.8")]


class Browsers:
    """Clients of an application that serves each WebSocket until it is let go."""

    def __init__(self) -> None:
        self.served: list[asyncio.Event] = []
        self.app = bound_sessions(self._serve, ROW)
        self._tasks: list[asyncio.Task[None]] = []

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            self.served.append(event := asyncio.Event())
            await event.wait()
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"page"})

    async def ask(self, kind: str, peer: str, headers: Any = ()) -> tuple[int, str]:
        """Status and text of the answer; (101, "") of a WebSocket that is served."""
        sent: list[dict[str, Any]] = []
        scope = {"type": kind, "method": "GET", "path": "/", "client": (peer, 1), "headers": headers}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        task = asyncio.create_task(self.app(scope, None, send))
        self._tasks.append(task)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not sent:
            return 101, ""
        await task
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()

    async def close(self, number: int) -> None:
        self.served[number].set()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_session_beyond_the_limit_is_refused_with_what_to_do() -> None:
    browsers = Browsers()
    assert [await browsers.ask("websocket", f"10.0.0.{n}") for n in range(4)] == 4 * [(101, "")]
    for kind in ("websocket", "http"):
        status, text = await browsers.ask(kind, "10.0.0.9", HTML)
        assert status == 503
        assert "it has 4" in text and "reload" in text
    await browsers.close(0)
    assert await browsers.ask("websocket", "10.0.0.9") == (101, "")


async def test_one_address_has_a_share() -> None:
    browsers = Browsers()
    assert [await browsers.ask("websocket", "10.0.0.1") for _ in range(3)] == 3 * [(101, "")]
    status, text = await browsers.ask("websocket", "10.0.0.1")
    assert (status, "this address has 3 of 4" in text) == (503, True)
    assert await browsers.ask("http", "10.0.0.2", HTML) == (200, "page")
    assert await browsers.ask("websocket", "10.0.0.2") == (101, "")


async def test_what_sessions_read_is_served_when_there_are_no_more() -> None:
    browsers = Browsers()
    for n in range(4):
        await browsers.ask("websocket", f"10.0.0.{n}")
    assert await browsers.ask("http", "10.0.0.1", [(b"accept", b"*/*")]) == (200, "page")


def test_few_sessions_that_ended_are_kept(monkeypatch: Any) -> None:
    begin: Callable[..., None] = MemorySessionStorage.__init__
    monkeypatch.setattr(sessions.MemorySessionStorage, "__init__", begin)
    sessions.keep_few_sessions()
    assert MemorySessionStorage(ttl_seconds=10)._cache.maxsize == KEPT  # type: ignore[attr-defined]
    assert MemorySessionStorage()._cache.maxsize == KEPT  # type: ignore[attr-defined]


def test_the_page_has_a_bound() -> None:
    row = LISTENERS["web"]
    assert 0 < row.sessions_per_peer < row.sessions <= 32

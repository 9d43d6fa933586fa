"""Connections to the web page's own server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from kvitals.app import page_process
from kvitals.app.demo import DEMO
from kvitals.app.page_settings import PageSettings
from tests.processes import free_port

START_SECONDS = 90.0


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[tuple[int, int]]:
    """The server's port and process id."""
    port, settings = free_port(), PageSettings(recording=str(DEMO))
    process = await asyncio.create_subprocess_exec(
        *page_process.command(port, settings),
        env=page_process.environment(settings),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while await health(port) != "ok":  # noqa: ASYNC110 (it is another process)
                await asyncio.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        await process.wait()


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def health(port: int) -> str:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.get(f"http://127.0.0.1:{port}/_stcore/health") as answer,
        ):
            return await answer.text()
    except aiohttp.ClientError as error:
        return repr(error)


async def test_idle_connections_leave_the_page_and_its_sessions_alone() -> None:
    async with page() as (port, pid), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/_stcore/stream"
        async with session.ws_connect(url, origin=f"http://127.0.0.1:{port}", protocols=("streamlit",)) as own:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1000)]
            assert await health(port) == "ok"
            assert open_files(pid) < 300
            await own.ping()
            assert not own.closed
            for _, writer in idle:
                writer.close()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url, origin="http://elsewhere.example", protocols=("streamlit",))
        assert refused.value.status == 403

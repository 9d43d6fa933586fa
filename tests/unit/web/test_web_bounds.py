"""Connections to the web page's own server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from kvitals.agent.listeners import LISTENERS
from kvitals.app import page_process
from kvitals.app.page_settings import PageSettings
from tests.support.processes import free_port

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "tests" / "captures" / "requests" / "stages.kvcap"
START_SECONDS = 240.0


class Server(NamedTuple):
    """The page's own server: its port and process id."""

    port: int
    pid: int


@pytest.fixture(scope="module")
def page() -> Iterator[Server]:
    """A page of a small recording, that takes uploads of 1 MB."""
    port, settings = free_port(), PageSettings(recording=str(RECORDING), upload_megabytes=1)
    process = subprocess.Popen(
        page_process.command(port, settings),
        env=page_process.environment(settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        asyncio.run(started(port))
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait()


async def started(port: int) -> None:
    async with asyncio.timeout(START_SECONDS):
        while await health(port) != "ok":  # noqa: ASYNC110 (it is another process)
            await asyncio.sleep(0.2)


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


async def test_idle_connections_leave_the_page_and_its_sessions_alone(page: Server) -> None:
    port = page.port
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/_stcore/stream"
        async with session.ws_connect(url, origin=f"http://127.0.0.1:{port}", protocols=("streamlit",)) as own:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(1000)]
            assert await health(port) == "ok"
            assert open_files(page.pid) < 300
            await own.ping()
            assert not own.closed
            for _, writer in idle:
                writer.close()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url, origin="http://elsewhere.example", protocols=("streamlit",))
        assert refused.value.status == 403


async def test_a_request_with_two_lengths_is_the_last_of_its_connection(page: Server) -> None:
    """It was answered with 405, and then the request after it, which a proxy may have taken for its body, with 200."""
    host = f"Host: 127.0.0.1:{page.port}\r\n"
    for method in ("POST", "GET", "PUT"):
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        first = f"{method} / HTTP/1.1\r\n{host}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        writer.write(f"{first}GET /smuggled HTTP/1.1\r\n{host}\r\n".encode())
        async with asyncio.timeout(30):
            answers = await reader.read()
        writer.close()
        assert answers.startswith(b"HTTP/1.1 400 ")
        assert answers.count(b"HTTP/1.1 ") == 1


async def test_sessions_beyond_the_share_of_an_address_are_refused(page: Server) -> None:
    """150 of them took 400 MB."""
    root, row = f"http://127.0.0.1:{page.port}", LISTENERS["web"]
    async with aiohttp.ClientSession() as session:

        async def open_one() -> aiohttp.ClientWebSocketResponse | int:
            try:
                return await session.ws_connect(f"{root}/_stcore/stream", origin=root, protocols=("streamlit",))
            except aiohttp.WSServerHandshakeError as error:
                return error.status

        opened = [await open_one() for _ in range(row.sessions_per_peer + 6)]
        refused = [one for one in opened if isinstance(one, int)]
        assert refused == 6 * [503]
        async with session.get(root, headers={"Accept": "text/html"}) as answer:
            assert (answer.status, "Close unused tabs" in await answer.text()) == (503, True)
        assert await health(page.port) == "ok"
        for one in opened:
            if not isinstance(one, int):
                await one.close()
    async with aiohttp.ClientSession() as session, session.get(root, headers={"Accept": "text/html"}) as answer:
        assert answer.status == 200


async def session_of(own: aiohttp.ClientWebSocketResponse) -> str:
    """The id of the session behind a WebSocket, as its first messages have it."""
    while True:
        message = ForwardMsg()
        message.ParseFromString(await own.receive_bytes(timeout=30))
        if message.new_session.initialize.session_id:
            return message.new_session.initialize.session_id


async def answer_to_a_late_body(port: int, target: str, cookie: str, token: str) -> bytes:
    """What a client reads whose body follows its head by a moment, in two parts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"PUT {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
    writer.write(f"{head}Cookie: {cookie}\r\nX-Xsrftoken: {token}\r\nContent-Length: 20\r\n\r\n".encode())
    for _ in range(2):
        await asyncio.sleep(0.5)
        writer.write(bytes(10))
        await writer.drain()
    await asyncio.sleep(0.5)
    answer = await reader.read(4096)
    writer.close()
    return answer


@pytest.mark.system
async def test_uploads_are_bounded_in_size_in_number_and_while_they_arrive(page: Server) -> None:
    port, jar = page.port, aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        root = f"http://127.0.0.1:{port}"
        async with session.get(f"{root}/_stcore/health") as answer:
            token = answer.cookies["_streamlit_xsrf"].value
        async with session.ws_connect(
            f"{root}/_stcore/stream", origin=root, protocols=("streamlit", token), max_msg_size=0
        ) as own:
            await own.send_bytes(BackMsg(rerun_script=ClientState()).SerializeToString())
            name = await session_of(own)

            async def upload(number: int, body: Any, **fields: str) -> int:
                headers = {"X-Xsrftoken": token, "Origin": root, **fields}
                url = f"{root}/_stcore/upload_file/{name}/{number}"
                try:
                    async with session.put(url, data=body, headers=headers) as answer:
                        return answer.status
                except aiohttp.ClientError:
                    return 0

            def form(size: int) -> aiohttp.FormData:
                data = aiohttp.FormData()
                data.add_field("file", bytes(size), filename="a.kvcap")
                return data

            async def slow() -> AsyncIterator[bytes]:
                yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
                while True:
                    yield b"x"
                    await asyncio.sleep(0.1)

            assert await upload(1, form(2 << 20)) == 413
            most = (1 << 20) - 4096  # less the form around it
            assert [await upload(number, form(most)) for number in (2, 3, 4)] == [204, 204, 507]
            pending = [
                asyncio.create_task(upload(10 + number, slow(), **{"Content-Type": "multipart/form-data; boundary=b"}))
                for number in range(4)
            ]
            await asyncio.sleep(2.0)
            assert await upload(5, form(100)) == 503
            target = f"/_stcore/upload_file/{name}/6"
            assert b" 503 " in await answer_to_a_late_body(port, target, f"_streamlit_xsrf={token}", token)
            for one in pending:
                one.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            assert await health(port) == "ok"

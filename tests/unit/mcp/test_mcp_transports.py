"""The official client over standard input and over HTTP: the verdict of `kvitals triage`, and who is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from kvitals.app.demo import HEAVY_TENANT, incidents
from kvitals.app.errors import UsageError
from kvitals.app.offered_sources import OfferedSources
from kvitals.app.pipeline import Setup
from kvitals.config import Config
from kvitals.rules.loader import load
from kvitals.ui.cli import mcp as command
from kvitals.ui.cli.failures import failure_text
from kvitals.ui.cli.main import parser
from kvitals.ui.mcp.mcp_http import PATH, serve_http
from kvitals.ui.mcp.mcp_server import mcp_server
from tests.support.processes import HOST, free_port
from tests.unit.mcp.test_mcp_tools import CHARACTERS_A_TOKEN, DIAGNOSIS

SHIPPED = HEAVY_TENANT.parent
INCIDENTS = Path(__file__).parents[2] / "captures" / "incidents"
SOURCE = "few_slots.kvcap"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}},
}
JSON_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@cache
def setup() -> Setup:
    return Setup(load(), Config())


def offered(*places: Path) -> OfferedSources:
    return OfferedSources([str(place) for place in places], setup())


@asynccontextmanager
async def url_of_server(sources: OfferedSources, token_file: Path | None = None) -> AsyncIterator[str]:
    port = free_port()
    async with serve_http(mcp_server(sources, failure_text), (HOST, port), (), token_file):
        yield f"http://{HOST}:{port}{PATH}"


async def diagnosis(client: Client, source: str) -> tuple[str, int]:
    """The first cause, and the characters of the answers that it took."""
    first, characters = "", 0
    for tool in DIAGNOSIS:
        result = await client.call_tool(tool, {"source": source})
        characters += len(json.dumps(result.structured_content, ensure_ascii=False)) if result.structured_content else 0
        characters += sum(len(getattr(one, "text", "")) for one in result.content)
        if tool == "triage":
            assert not result.is_error, result.content
            causes = result.structured_content["causes"]
            first = causes[0]["code"] if causes else ""
    return first, characters


async def test_the_client_over_standard_input_gets_the_verdict() -> None:
    arguments = ["-m", "kvitals.ui.cli.main", "mcp", str(SHIPPED / SOURCE)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        listed = await client.list_tools()
        assert {tool.name for tool in listed.tools} >= {"triage", "explain", "evidence", "whatif", "check"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed.tools)
        first, characters = await diagnosis(client, SOURCE)
    assert first == "SCH01"
    assert characters / CHARACTERS_A_TOKEN < 2000


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_client_over_http_gets_the_verdict(mode: str) -> None:
    async with (
        url_of_server(offered(SHIPPED / SOURCE)) as url,
        Client(streamable_http_client(url), mode=mode) as client,
    ):
        first, characters = await diagnosis(client, SOURCE)
    assert first == "SCH01"
    assert characters / CHARACTERS_A_TOKEN < 2000


@pytest.mark.system
async def test_every_recorded_incident_has_the_verdict_of_triage_over_http() -> None:
    files = [*incidents(), *sorted(INCIDENTS.glob("*.kvcap"))]
    assert len(files) > 100
    sources = offered(*files)
    wrong: dict[str, Any] = {}
    async with url_of_server(sources) as url, Client(streamable_http_client(url)) as client:
        for path in files:
            first, characters = await diagnosis(client, path.name)
            document = sources.latest(path.name)
            leading = [one for one in document.leading if one not in document.symptoms]
            expected = leading[0].code if leading else ""
            if first != expected or characters / CHARACTERS_A_TOKEN >= 2000:
                wrong[path.name] = (first, expected, characters)
    assert wrong == {}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 400),
    ],
)
async def test_other_hosts_and_pages_of_other_sites_are_refused(headers: dict[str, str], status: int) -> None:
    async with (
        url_of_server(offered(SHIPPED / SOURCE)) as url,
        aiohttp.ClientSession() as session,
        session.post(url, json=INITIALIZE, headers={**JSON_HEADERS, **headers}) as response,
    ):
        assert response.status == status
        await response.read()


async def test_the_token_is_asked_for_where_one_is_set(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret-of-the-bot\n")
    token_file.chmod(0o600)
    async with url_of_server(offered(SHIPPED / SOURCE), token_file) as url, aiohttp.ClientSession() as session:
        statuses = []
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secret-of-the-bot"}):
            async with session.post(url, json=INITIALIZE, headers={**JSON_HEADERS, **sent}) as response:
                statuses.append(response.status)
                await response.read()
    assert statuses == [401, 401, 200]


async def test_a_body_beyond_the_limit_and_other_methods_are_refused() -> None:
    async with url_of_server(offered(SHIPPED / SOURCE)) as url, aiohttp.ClientSession() as session:
        async with session.post(url, data=b" " * (300 << 10), headers=JSON_HEADERS) as response:
            assert response.status == 413
        async with session.get(url) as response:
            assert response.status == 405
        async with session.delete(url) as response:
            assert response.status == 405
        async with session.post(url, data=b"{", headers=JSON_HEADERS) as response:
            assert response.status == 400


async def test_calls_beyond_the_limit_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitals.ui.mcp.mcp_server.MAX_CALLS", 1)
    async with url_of_server(offered(SHIPPED / SOURCE)) as url, Client(streamable_http_client(url)) as client:
        results = await asyncio.gather(*(client.call_tool("triage", {"source": SOURCE}) for _ in range(4)))
    assert {result.is_error for result in results} == {False, True}


@pytest.mark.parametrize("address", ["0.0.0.0:9480", "10.0.0.1:9480", ":9480"])
def test_an_address_of_other_machines_is_refused(address: str) -> None:
    args = parser("mcp").parse_args(["mcp", str(SHIPPED / SOURCE), "--http", address])
    with pytest.raises(UsageError, match="give an address of this machine"):
        command.do(args)


@pytest.mark.parametrize("ends", ["end of input", "SIGINT", "SIGTERM"])
async def test_it_ends_while_a_source_does_not_answer(ends: str) -> None:
    """It went on until the tool was done, and after SIGINT for good."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    asked = asyncio.Event()
    engine = await asyncio.start_server(silent, HOST, 0)
    port = engine.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvitals.ui.cli.main", "mcp", f"http://{HOST}:{port}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        await process.stdout.readline()
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "triage", "arguments": {}}}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in (ready, call)))
        await asyncio.wait_for(asked.wait(), 30.0)
        if ends == "end of input":
            process.stdin.close()
        else:
            process.send_signal(getattr(signal, ends))
        await asyncio.wait_for(process.wait(), 5.0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        engine.close()
        await asyncio.sleep(0.05)  # until its connections are closed

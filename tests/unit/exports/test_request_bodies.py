"""Bodies that clients send to the API and to the intake of alerts: compressed, broken, too large, too slow."""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from kvitals.agent.connections import GuardedRunner, GuardedSite
from kvitals.agent.exports import api as query_api
from kvitals.agent.exports import requests_api
from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.exports.requests_api import Requests
from kvitals.agent.inbound import server_tls
from kvitals.agent.listeners import LISTENERS
from kvitals.agent.requests.store import Store
from kvitals.app.notify import intake
from kvitals.app.notify.service import Notifier
from kvitals.config import NotifyTable, WebhookTarget
from kvitals.series.window import Window
from tests.unit.notify.notify_stage import diagnosing

POSTS = {
    "/api/v1/query": "application/x-www-form-urlencoded",
    "/api/v1/parts": "application/x-msgpack",
    "/api/v1/notify": "application/json",
}
BOMB_MB = 900
CPU_SECONDS = 0.5
"""Unpacking the bomb takes several times that."""


@asynccontextmanager
async def serving(
    tmp_path: Path, tls: bool = False
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the API with all that it takes; over TLS it requires a token."""
    token = tmp_path / "token"
    token.write_text("secret")
    requests = Requests(store=Store, take=lambda _: True)
    app = build_app(
        ApiParts(Window(60, 10), {}, findings=lambda: b"{}", ready=lambda: True, requests=requests, token_file=token)
    )
    table = NotifyTable(directory=tmp_path / "notify", webhook=(WebhookTarget(url="http://127.0.0.1:1"),))
    intake.add_notify(app, Notifier(table, diagnosing(None)), None, guarded=True)
    ca = trustme.CA()
    pem = tmp_path / "tls.pem"
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    runner = GuardedRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = GuardedSite(
        runner, LISTENERS["remote" if tls else "api"], "127.0.0.1", 0, tls=server_tls(pem, pem) if tls else None
    )
    await site.start()
    trust = None
    if tls:
        trust = ssl.create_default_context()
        ca.configure_trust(trust)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=trust)
    try:
        yield reader, writer
    finally:
        writer.close()
        await runner.cleanup()


def bomb(encoding: str) -> bytes:
    """The head of a stream that unpacks to `BOMB_MB` of zeros, of less than 1 MB."""
    packer = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    first, second = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    packed = first + second * (BOMB_MB - 1)
    assert len(packed) < 1 << 20
    return packed


def head(path: str, *fields: str, length: int | None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {POSTS[path]}", *fields]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and text of an answer."""
    async with asyncio.timeout(20):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), (await reader.readexactly(int(fields["content-length"]))).decode()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("path", POSTS)
async def test_a_compressed_body_is_refused_and_not_unpacked(path: str, encoding: str, tmp_path: Path) -> None:
    body = bomb(encoding)
    async with serving(tmp_path) as (reader, writer):
        begun = time.process_time()
        writer.write(head(path, f"Content-Encoding: {encoding}", "Connection: close", length=len(body)) + body)
        status, text = await answer(reader)
        await reader.read()  # the server has dropped the rest of the body
        spent = time.process_time() - begun
    assert status == 415
    assert "send the body without Content-Encoding" in text
    assert spent < CPU_SECONDS


async def test_a_compressed_body_costs_nothing_before_the_token_is_checked(tmp_path: Path) -> None:
    body = bomb("deflate")
    async with serving(tmp_path, tls=True) as (reader, writer):
        begun = time.process_time()
        writer.write(head("/api/v1/query", "Content-Encoding: deflate", "Connection: close", length=len(body)) + body)
        status, _ = await answer(reader)
        await reader.read()
        spent = time.process_time() - begun
    assert status == 401
    assert spent < CPU_SECONDS


@pytest.mark.parametrize("path", POSTS)
async def test_a_corrupt_compressed_body_is_refused_with_a_reason(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as (reader, writer):
        with capture_logs() as logged:
            writer.write(head(path, "Content-Encoding: gzip", length=8) + b"not gzip")
            status, text = await answer(reader)
    assert status == 415
    assert "compressed body (gzip) not accepted" in text
    assert logged == []


@pytest.mark.parametrize("path", POSTS)
async def test_a_client_that_leaves_within_a_body_logs_nothing(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as (reader, writer):
        with capture_logs() as logged:
            writer.write(head(path, length=100) + b"query=")
            await asyncio.sleep(0.1)
            writer.write_eof()
            assert await reader.read() == b""
            await asyncio.sleep(0.05)
    assert logged == []
    assert caplog.text == ""


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_announced_too_large_is_413_at_once(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as (reader, writer):
        writer.write(head(path, length=10**18))
        status, text = await answer(reader)
    assert status == 413
    assert "the limit is 1048576 bytes" in text


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_stops_is_408(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_api, "_BODY_SECONDS", 0.2)
    monkeypatch.setattr(requests_api, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(intake, "BODY_SECONDS", 0.2)
    async with serving(tmp_path) as (reader, writer):
        writer.write(head(path, length=100) + b"query=")
        status, text = await answer(reader)
        assert status == 408
        assert "body incomplete after 0.2 s: 6 bytes arrived" in text
        async with asyncio.timeout(8):  # the connection ends soon after the answer
            assert await reader.read() == b""

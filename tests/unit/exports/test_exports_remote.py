"""The door for other machines: TLS, a token, certificates of clients."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from kvitals.agent.exports.api import ApiParts, build_app
from kvitals.agent.inbound import server_tls
from kvitals.config import Config, ConfigError, build
from kvitals.series.window import Window

BASE = {"listen": "127.0.0.1:0", "cert_file": "tls.crt", "key_file": "tls.key"}


@asynccontextmanager
async def served(
    tmp_path: Path, token: Path | None, clients: trustme.CA | None
) -> AsyncIterator[tuple[str, trustme.CA]]:
    """The API over TLS on loopback; its URL and the authority that signed its certificate."""
    ca = trustme.CA()
    cert = ca.issue_cert("127.0.0.1")
    cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / "tls.pem")
    trusted = None
    if clients is not None:
        trusted = tmp_path / "clients.pem"
        clients.cert_pem.write_to_path(trusted)
    app = build_app(ApiParts(Window(60, 10), {}, findings=lambda: b"{}", ready=lambda: True, token_file=token))
    runner = web.AppRunner(app)
    await runner.setup()
    tls = server_tls(tmp_path / "tls.pem", tmp_path / "tls.pem", trusted)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"https://127.0.0.1:{port}/api/v1/findings", ca
    finally:
        await runner.cleanup()


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


async def test_without_the_token_nobody_is_let_in_and_it_may_be_replaced(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with served(tmp_path, token, None) as (url, ca), aiohttp.ClientSession() as session:

        async def asked(sent: str | None) -> int:
            headers = {} if sent is None else {"Authorization": f"Bearer {sent}"}
            async with session.get(url, ssl=trusting(ca), headers=headers) as answer:
                return answer.status

        assert [await asked(None), await asked("wrong"), await asked("first")] == [401, 401, 200]
        token.write_text("second")
        assert [await asked("first"), await asked("second")] == [401, 200]
        token.unlink()
        assert await asked("second") == 401


async def test_a_client_must_show_a_certificate_where_that_is_asked_for(tmp_path: Path) -> None:
    clients = trustme.CA()
    async with served(tmp_path, None, clients) as (url, ca), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=trusting(ca))
        known = trusting(ca)
        clients.issue_cert("prometheus.example").configure_cert(known)
        async with session.get(url, ssl=known) as answer:
            assert answer.status == 200
        stranger = trusting(ca)
        trustme.CA().issue_cert("prometheus.example").configure_cert(stranger)
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=stranger)


def test_the_table_must_say_who_may_call() -> None:
    assert build({"remote": BASE | {"token_file": "t"}}).remote is not None
    assert Config().remote is None
    with pytest.raises(ConfigError, match="restrict the callers"):
        build({"remote": BASE})
    with pytest.raises(ConfigError, match="key_file"):
        build({"remote": {"listen": ":9443", "cert_file": "tls.crt", "token_file": "t"}})

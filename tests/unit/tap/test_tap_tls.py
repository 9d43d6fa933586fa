"""TLS towards the tap's clients."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from tap_stage import LAST, STREAM, Call, event, post, staged

from kvitals.app.errors import UsageError
from kvitals.ui.cli.tap import _tls

AUTHORITY = trustme.CA()


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    issued = AUTHORITY.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    return tmp_path / "tls.crt", tmp_path / "tls.key"


async def test_a_stream_passes_over_tls_event_by_event(files: tuple[Path, Path]) -> None:
    second = asyncio.Event()

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await second.wait()
        await call.say(event("b") + LAST)
        await call.until_gone()

    async with staged(script, tls=_tls(*files)) as stage:
        client = await stage.client(trusting())
        await client.send(post())
        assert await client.exactly(len(STREAM + event("a"))) == STREAM + event("a")
        second.set()
        assert await client.exactly(len(event("b") + LAST)) == event("b") + LAST
        part = await stage.part()
    assert part.status == 200 and part.output_tokens == 3 and not part.aborted


async def test_a_client_that_leaves_over_tls_is_gone_upstream(files: tuple[Path, Path]) -> None:
    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event("a"))
        await call.until_gone()

    async with staged(script, tls=_tls(*files)) as stage:
        client = await stage.client(trusting())
        await client.send(post())
        await client.exactly(len(STREAM + event("a")))
        client.leave()
        part = await stage.part()
        await asyncio.wait_for(stage.calls[0].gone.wait(), 5)
    assert part.aborted


async def test_who_does_not_speak_tls_reaches_nobody(files: tuple[Path, Path]) -> None:
    async def script(call: Call) -> None:
        await call.request()

    async with staged(script, tls=_tls(*files)) as stage:
        client = await stage.client()
        await client.send(post())
        assert b"200 OK" not in await client.rest()
        with pytest.raises(ssl.SSLCertVerificationError):
            await stage.client(ssl.create_default_context())
        assert not stage.calls


def test_half_of_a_pair_and_files_that_are_none_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert _tls(None, None) is None
    with pytest.raises(UsageError, match="belong together"):
        _tls(files[0], None)
    (tmp_path / "no.pem").write_text("no certificate")
    for cert, key in ((tmp_path / "no.pem", files[1]), (tmp_path / "missing", files[1])):
        with pytest.raises(UsageError, match="cannot load this certificate and key"):
            _tls(cert, key)

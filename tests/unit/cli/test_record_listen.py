"""`kvitals record --listen`: what a tap sends is written down, and told meanwhile."""

import asyncio
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest

from kvitals.agent.records import decode
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.app.demo import HEAVY_TENANT
from kvitals.series.recordings import CaptureReader
from kvitals.ui.cli.main import main
from tests.support.command import answer
from tests.support.loops import for_each
from tests.support.processes import free_port

PATIENCE_S = 30.0


def sent(now: float) -> PartsRecord:
    part = RequestPart(
        observer="tap", system="kvitals", seen=now, ids=("request:r-1",), start=now - 1, end=now, status=200
    )
    return PartsRecord(t=now, source="tap", parts=(part,))


async def answered(session: aiohttp.ClientSession, url: str, **post: object) -> int:
    """The status of a post, as soon as somebody listens."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with session.post(url, **post) as response:  # type: ignore[arg-type]
                    return response.status
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.1)


async def test_parts_that_are_sent_are_written_down_and_a_stop_keeps_them(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "x.kvcap"
    command = [
        "-m",
        "kvitals.ui.cli.main",
        "record",
        "http://127.0.0.1:9",
        f"--out={out}",
        f"--listen=127.0.0.1:{port}",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--for=5m", "--every=200ms", stderr=asyncio.subprocess.DEVNULL
    )
    root = f"http://127.0.0.1:{port}/api/v1"
    body = msgspec.msgpack.encode(sent(time.time()))
    try:
        async with aiohttp.ClientSession() as session:
            status = await answered(
                session, f"{root}/parts", data=body, headers={"Content-Type": "application/x-msgpack"}
            )
            assert status == 202
            async with asyncio.timeout(PATIENCE_S):
                told: list[object] = []
                while not told:  # the look after it was sent writes it down
                    async with session.get(f"{root}/query?query=kvitals_requests_open>0") as response:
                        told = (await response.json())["data"]["result"]
                    await asyncio.sleep(0.1)
    finally:
        process.terminate()
        code = await process.wait()
    assert code == 0
    with CaptureReader.open(out) as reader:
        parts = [p for r in map(decode, reader) if isinstance(r, PartsRecord) for p in r.parts]
        assert reader.damage is None
    assert [part.ids for part in parts] == [("request:r-1",)]


@for_each("listen", ["nowhere", "127.0.0.1:99999"])
def test_an_invalid_address_is_refused(listen: str, tmp_path: Path) -> None:
    refused = answer(["record", "http://127.0.0.1:9", f"--out={tmp_path / 'x.kvcap'}", "--listen", listen])
    assert refused.code == 2
    assert "--listen" in refused.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--replay", "FILE", "--serve", "--listen", "127.0.0.1:0"), "--listen is for a new recording; leave it out"),
        (("--replay", "FILE", "--out", "x.kvcap"), "--out is for a new recording"),
        (("--replay", "FILE", "--for", "5s"), "--for is for a new recording"),
        (("--replay", "FILE", "--every", "2s"), "--every is for a new recording"),
        (("--replay", "FILE", "--serve", "--slo", "ttft=1s"), "--slo is for verdicts; leave it out with --serve"),
        (("--replay", "FILE", "--port", "9500"), "--port needs --serve"),
        (("http://127.0.0.1:9", "--serve", "--out", "x.kvcap"), "--serve needs --replay FILE.kvcap"),
    ],
)
def test_an_option_without_effect_is_refused(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["record", *(str(HEAVY_TENANT) if word == "FILE" else word for word in words)])
    assert stop.value.code == 2
    assert says in capsys.readouterr().err

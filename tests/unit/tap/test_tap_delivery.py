"""Parts on their way to the agent, also to one that is away, slow or of another mind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from tap_stage import until

from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.agent.tap import delivery
from kvitals.agent.tap.delivery import MAX_BATCH, MAX_WAITING, PartDelivery


@dataclass
class Agent:
    url: str = ""
    status: int = 202
    records: list[PartsRecord] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        assert request.content_type == "application/x-msgpack"
        if self.status == 202:
            self.records.append(msgspec.msgpack.decode(await request.read(), type=PartsRecord))
        return web.Response(status=self.status)

    @property
    def names(self) -> list[str]:
        return [part.name for record in self.records for part in record.parts]


@contextlib.asynccontextmanager
async def listening(port: int = 0) -> AsyncIterator[Agent]:
    agent = Agent()
    app = web.Application()
    app.router.add_post("/api/v1/parts", agent.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    agent.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield agent
    finally:
        await runner.cleanup()


def part(name: object) -> RequestPart:
    return RequestPart(observer="tap", system="kvitals", seen=1.0, name=str(name))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(delivery, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(delivery, "LAST_RETRY_SECONDS", 0.02)


async def test_parts_arrive_in_order_and_in_batches() -> None:
    async with listening() as agent:
        to = PartDelivery(agent.url)
        await to.open()
        for number in range(MAX_BATCH + 3):
            to.add(part(number))
        await until(lambda: to.waiting == 0)
        to.add(part("last"))
        await to.close()
    assert agent.names == [*map(str, range(MAX_BATCH + 3)), "last"]
    assert [len(record.parts) for record in agent.records] == [MAX_BATCH, 3, 1]
    assert all(record.source == "tap" and record.dropped == {} for record in agent.records)
    assert (to.delivered, to.dropped) == (MAX_BATCH + 4, {})


async def test_a_full_batch_waits_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "GATHER_SECONDS", 1000.0)
    async with listening() as agent:
        to = PartDelivery(agent.url)
        for number in range(5 * MAX_BATCH):
            to.add(part(number))
        await to.open()
        await until(lambda: to.waiting == 0)
        await to.close()
    assert len(agent.names) == 5 * MAX_BATCH


async def test_parts_wait_for_an_agent_that_is_away_and_the_oldest_give_way() -> None:
    async with listening() as agent:
        port = int(agent.url.rpartition(":")[2])
    to = PartDelivery(agent.url)
    with capture_logs() as logs:
        await to.open()
        for number in range(MAX_WAITING + 7):
            to.add(part(number))
        assert to.waiting == MAX_WAITING
        await until(lambda: not to.reaches_agent)
        assert to.waiting <= MAX_WAITING
        async with listening(port) as back:
            await until(lambda: to.waiting == 0)
            await to.close()
    assert back.names == list(map(str, range(7, MAX_WAITING + 7)))
    assert to.dropped == {"full": 7}
    assert sum(record.dropped.get("full", 0) for record in back.records) == 7
    assert [line["log_level"] for line in logs] == ["warning", "info"]


async def test_a_fault_while_sending_ends_nothing_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that sends ended, so that no part came to the agent until the tap was restarted."""
    post, faults = PartDelivery._post, [KeyError("a fault"), RecursionError()]

    async def faulty(self: PartDelivery, body: bytes) -> int:
        if faults:
            raise faults.pop()
        return await post(self, body)

    monkeypatch.setattr(PartDelivery, "_post", faulty)
    monkeypatch.setattr(delivery, "FIRST_RETRY_SECONDS", 0.1)
    async with listening() as agent:
        to = PartDelivery(agent.url)
        await to.open()
        to.add(part("one"))
        await until(lambda: agent.names == ["one"])
        await to.close()


async def test_what_the_agent_will_never_take_is_dropped_and_told() -> None:
    async with listening() as agent:
        agent.status = 413
        to = PartDelivery(agent.url)
        await to.open()
        to.add(part("bad"))
        await until(lambda: to.waiting == 0 and to.dropped["refused"] == 1)
        agent.status = 202
        to.add(part("good"))
        await until(lambda: bool(agent.records))
        await to.close()
    assert agent.names == ["good"]
    assert agent.records[0].dropped == {"refused": 1}


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
async def test_what_it_may_take_later_is_kept(status: int) -> None:
    async with listening() as agent:
        agent.status = status
        to = PartDelivery(agent.url)
        await to.open()
        to.add(part("one"))
        await until(lambda: len(agent.tokens) >= 2)
        agent.status = 202
        await until(lambda: bool(agent.records))
        await to.close()
    assert agent.names == ["one"] and to.dropped == {}


async def test_a_token_that_can_not_be_read_is_told_with_its_file(tmp_path: Path) -> None:
    async with listening() as agent:
        to = PartDelivery(agent.url, tmp_path / "token")
        with capture_logs() as logs:
            await to.open()
            to.add(part("a"))
            await until(lambda: not to.reaches_agent)
            await to.close()
    assert [line["why"] for line in logs] == [f"{tmp_path / 'token'} cannot be read: No such file or directory"]
    assert agent.tokens == []


async def test_the_token_is_read_anew_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with listening() as agent:
        to = PartDelivery(agent.url, file)
        await to.open()
        to.add(part("one"))
        await until(lambda: not to.reaches_agent)  # there is no file yet
        assert agent.tokens == []
        file.write_text("first\n")
        await until(lambda: agent.names == ["one"])
        file.write_text("second\n")
        to.add(part("two"))
        await until(lambda: agent.names == ["one", "two"])
        await to.close()
    assert agent.tokens == ["Bearer first", "Bearer second"]


async def test_an_agent_that_hangs_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts, and nobody answers
        to = PartDelivery(f"http://127.0.0.1:{server.getsockname()[1]}")
        await to.open()
        to.add(part("one"))
        await until(lambda: not to.reaches_agent)
        async with asyncio.timeout(2):
            await to.close()
    assert to.waiting == 1


async def test_with_no_agent_nothing_is_kept() -> None:
    to = PartDelivery("")
    await to.open()
    to.add(part("one"))
    assert to.waiting == 0
    await to.close()

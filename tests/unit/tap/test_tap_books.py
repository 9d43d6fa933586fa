"""The tap's books: what fails in them stops no traffic; what they count; how it is shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from tap_stage import LAST, STREAM, Call, Names, event, post, staged, until

from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.tap import books, response_reader
from kvitals.agent.tap.exchange import Observation, measured_as
from kvitals.agent.tap.http1 import read_request
from kvitals.agent.tap.page import render
from tests.goldens.names import inventory

SECRET = "my secret prompt"


class Broken(Names):
    def of_headers(self, headers: Mapping[str, str], peer: str) -> str:
        raise RuntimeError(SECRET)


async def chat(call: Call) -> None:
    while True:
        await call.request()
        await call.body(2)
        await call.say(STREAM + event(SECRET) + event("b") + LAST)


async def exchange(stage: object, client: object) -> bytes:
    await client.send(post(b"{}", b"Connection: close"))  # type: ignore[attr-defined]
    return await client.rest()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("where", ["context", "answered", "feed", "ended", "deliver", "counter"])
async def test_whatever_fails_in_the_books_traffic_goes_on(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    async with staged(chat) as stage:
        own = stage.tap.books
        if where == "context":
            own._names = Broken()
        elif where == "feed":
            monkeypatch.setattr(response_reader.Events, "feed", fail)
        elif where == "deliver":
            own._deliver = fail
        elif where == "counter":
            own.requests = None  # type: ignore[assignment]
        else:
            monkeypatch.setattr(Observation, where, fail)
        with capture_logs() as logs:
            for _ in range(2):
                got = await exchange(stage, await stage.client())
                assert got.endswith(event(SECRET) + event("b") + LAST)
        assert own.broken >= 2
        assert own.under_way == {}
        (line,) = logs  # said once a minute at most
        assert line["kind"] in ("RuntimeError", "TypeError") and SECRET not in str(logs)
        assert not stage.parts or where not in ("context", "ended", "deliver")


async def test_without_its_books_a_request_has_no_ids_added() -> None:
    async with staged(chat) as stage:
        stage.tap.books._names = Broken()
        await exchange(stage, await stage.client())
        assert stage.calls[0].requests == [
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
        ]


async def test_no_text_gets_into_a_part() -> None:
    async with staged(chat) as stage:
        client = await stage.client()
        await client.send(post(b"{}", b"x-tenant-id: acme", b"Authorization: Bearer sk-1", b"Connection: close"))
        await client.rest()
        part = await stage.part()
    said = str(part)
    assert part.tenant == "t-emca"
    assert SECRET not in said and "acme" not in said and "sk-1" not in said


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("POST /v1/chat/completions HTTP/1.1", "/chat/completions"),
        ("POST /v1/completions?x=1 HTTP/1.1", "/completions"),
        ("POST /openai/deployments/acme/chat/completions/ HTTP/1.1", "/chat/completions"),
        ("POST /v1/messages HTTP/1.1", "/messages"),
        ("POST /v1/messages/count_tokens HTTP/1.1", ""),
        ("POST /generate HTTP/1.1", "/generate"),
        ("GET /v1/completions HTTP/1.1", ""),
        ("POST /tokenize HTTP/1.1", ""),
        ("GET /metrics HTTP/1.1", ""),
    ],
)
def test_what_is_measured(line: str, name: str) -> None:
    assert measured_as(read_request(f"{line}\r\nHost: x\r\n\r\n".encode())) == name


async def test_other_requests_are_counted_and_make_no_part() -> None:
    async def script(call: Call) -> None:
        while True:
            await call.request()
            await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with staged(script) as stage:
        client = await stage.client()
        await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.until(b"\r\n\r\n")
        assert stage.tap.books.requests == {("", "200"): 1}
        assert stage.parts == []


async def test_the_oldest_request_under_way() -> None:
    hold = asyncio.Event()

    async def script(call: Call) -> None:
        await call.request()
        await call.body(2)
        await hold.wait()
        await call.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await call.until_gone()

    async with staged(script) as stage:
        own = stage.tap.books
        assert own.oldest_seconds == 0.0
        first, second = await stage.client(), await stage.client()
        await first.send(post())
        await until(lambda: len(own.under_way) == 1)
        began = time.perf_counter()
        await second.send(post())
        await until(lambda: len(own.under_way) == 2)
        assert own.oldest_seconds >= time.perf_counter() - began
        first.leave()
        await until(lambda: len(own.under_way) == 1)
        assert own.oldest_seconds < time.perf_counter() - began
        hold.set()
        await until(lambda: not own.under_way)
        assert sorted(own.requests.items()) == [
            (("/chat/completions", "200"), 1),
            (("/chat/completions", "aborted"), 1),
        ]


async def test_the_page_is_read_by_prometheus() -> None:
    async with staged(chat) as stage:
        await exchange(stage, await stage.client())
        page = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(render(stage.tap.books, stage.tap.delivery).decode())
            for sample in family.samples
        }
        assert page["kvitals_tap_requests_total", "/chat/completions", "200"] == 1
        assert page["kvitals_tap_requests_in_flight",] == 0
        assert page["kvitals_tap_bytes_total", "response"] > len(LAST)
        assert page["kvitals_tap_parts_dropped_total", "full"] == 0
        assert page["kvitals_tap_bookkeeping_failures_total",] == 0


async def test_the_agents_map_of_the_tap_knows_what_the_page_has() -> None:
    async with staged(chat) as stage:
        page = render(stage.tap.books, stage.tap.delivery).decode()
    told = [tuple(line.split()[2:]) for line in page.splitlines() if line.startswith("# TYPE ")]
    assert sorted(told) == sorted((name.name, name.type) for name in inventory("kvitals_tap"))


async def test_the_page_is_served_on_a_port_of_its_own() -> None:
    async with staged(chat) as stage:
        await stage.tap._open_admin(("127.0.0.1", 0))
        assert stage.tap._runner is not None
        port = stage.tap._runner.addresses[0][1]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.status == 200 and "kvitals_tap_connections 0" in await answer.text()


async def test_where_the_tap_stands_is_in_its_parts() -> None:
    async with staged(chat, place=books.TapPlace(engine="10.0.0.1:8000", role="prefill")) as stage:
        await exchange(stage, await stage.client())
        part: RequestPart = await stage.part()
    assert (part.engine, part.role) == ("10.0.0.1:8000", "prefill")

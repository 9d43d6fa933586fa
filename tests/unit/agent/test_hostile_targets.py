"""Hostile targets beside a good one: the good one is scraped on time with right values, and memory stays bounded."""

import asyncio
import contextlib
import gzip
import math
import os
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from kvitals.agent.collectors.page_parser import ExpositionError, PageParser
from kvitals.agent.collectors.page_reading import MAX_LABEL
from kvitals.agent.collectors.scrape import ScrapeSense
from kvitals.agent.collectors.scrape import ScrapeTarget as Scraped
from kvitals.agent.families import MAX_RANKS, MAX_UNKNOWN
from kvitals.agent.node import Node
from kvitals.agent.node_context import MAX_SERIES, MAX_TARGET_SERIES
from kvitals.agent.records import ScrapeRecord, decode, encode
from kvitals.config import AgentTable, Config, TargetTable
from kvitals.series.promql import Vector, evaluate
from kvitals.series.slices import in_slices
from kvitals.series.window import Window

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"
PAGE = (FIXTURES / "vllm-0.32-loaded.prom").read_bytes()
GOOD = "http://127.0.0.1:1/metrics"
BAD = "http://127.0.0.1:2/metrics"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
TIMEOUT = 0.4

Writes = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Writes) -> AsyncIterator[str]:
    """A server that answers each request so; yields its URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def good(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(PAGE) + PAGE)


def sending(data: bytes) -> Writes:
    """These bytes, and then the connection stays open."""

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return send


def over_and_over(head: bytes, data: bytes, pause: float = 0.0) -> Writes:
    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(pause)

    return send


async def hanging_up(writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(PAGE) + PAGE[:1000])
    await writer.drain()
    writer.close()


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LINE = b'vllm:x{a="%s"} 1\n' % (b"a" * 240)
CHUNK = b"%x\r\n%s\r\n" % (len(LINE), LINE)
BOMB = gzip.compress(LINE * 2**17)  # 32 MB
HOSTILE: dict[str, tuple[Writes, set[str]]] = {
    "one byte at a time": (over_and_over(OK + b"Content-Length: 99999\r\n\r\n", b"#", 0.02), {"timeout"}),
    "one byte at a time, chunked": (over_and_over(CHUNKED, b"1\r\n#\r\n", 0.02), {"timeout"}),
    "headers one at a time": (over_and_over(OK, b"X-A: b\r\n", 0.02), {"timeout"}),
    "half open: no answer at all": (sending(b""), {"timeout"}),
    "half open: headers and then nothing": (sending(OK + b"Content-Length: 100\r\n\r\n"), {"timeout"}),
    "endless": (over_and_over(OK + b"\r\n", LINE * 200), {"too_large", "timeout"}),
    "endless, chunked": (over_and_over(CHUNKED, CHUNK * 80), {"too_large", "timeout"}),
    "endless short lines": (over_and_over(OK + b"\r\n", b"vllm:x 1\n" * 5000, 0.01), {"too_many_lines", "timeout"}),
    "endless headers": (over_and_over(OK, b"X-A: " + b"a" * 4000 + b"\r\n"), {"not_http", "too_long", "timeout"}),
    "gzip bomb": (
        sending(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB), {"bad_compression"}
    ),
    "promises more than there is": (hanging_up, {"truncated"}),
    "promises less than there is": (sending(OK + b"Content-Length: 1000\r\n\r\n" + PAGE), {"truncated", "not_http"}),
    "promises an absurd length": (sending(OK + b"Content-Length: 99999999999999\r\n\r\n"), {"too_large"}),
    "promises a negative length": (sending(OK + b"Content-Length: -5\r\n\r\n"), {"not_http"}),
    "two lengths": (sending(OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"), {"not_http", "malformed"}),
    "redirect to itself": (
        sending(b"HTTP/1.1 301 Moved\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n"), {"http_error"}
    ),
    "redirect to a file": (
        sending(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"), {"http_error"}
    ),
    "a web page": (
        sending(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"), {"not_metrics"}
    ),
    "an image": (
        sending(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 8\r\n\r\n\x89PNG\r\n\x1a\n"),
        {"not_metrics", "bad_encoding"},
    ),
    "binary": (sending(OK + b"Content-Length: 2048\r\n\r\n" + bytes(range(256)) * 8), {"not_metrics", "truncated"}),
    "HTTP/0.9": (sending(PAGE), {"not_http"}),
    "garbage": (sending(b"\x00\xff\x00\xff" * 1000), {"not_http"}),
    "a mail server": (sending(b"220 mail.example ESMTP\r\n"), {"not_http"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_good_target_beside_a_hostile_one(kind: str) -> None:
    answer, reasons = HOSTILE[kind]
    async with serving(answer) as bad_url, serving(good) as good_url:
        config = Config(
            agent=AgentTable(timeout=TIMEOUT, discover=False),  # type: ignore[arg-type]
            targets=(TargetTable(url=bad_url), TargetTable(url=good_url)),
        )
        node = Node(config)
        await node.open()
        try:
            for _ in range(2):
                began = time.time()
                records = await asyncio.wait_for(node.read(), 20 * TIMEOUT)
                for record in records:
                    node.ingest_recorded(record)
                sent = [r.t for r in records if r.target.startswith(good_url) and r.sense == "scrape"]
                assert 0 <= sent[0] - began < TIMEOUT  # nobody is waited for before it is asked
            up = {labels["engine"]: value for labels, value in ask(node.window, "kvitals_target_up")}
            host = good_url.removeprefix("http://")
            assert {engine.startswith(host): value for engine, value in up.items()} == {True: 1.0, False: 0.0}
            [(labels, _)] = [x for x in ask(node.window, "kvitals_target_state") if not x[0]["engine"].startswith(host)]
            assert labels["reason"] in reasons
            [(_, running)] = ask(node.window, "kvitals_requests_running")
            assert running == 7.0
            assert len(node.watched.problems()) == 1 and bad_url in node.watched.problems()[0]
        finally:
            await node.close()


def ask(window: Window, query: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
    found = evaluate(query, window, time.time() + 1 if at is None else at)
    assert isinstance(found, Vector)
    return [(dict(labels), value) for labels, value in found]


# What a target may make up


class Pair:
    """A good and a hostile target in a window with the agent's limits, a scrape of both every five seconds."""

    def __init__(self) -> None:
        self.window = Window(1800.0, MAX_SERIES, MAX_TARGET_SERIES)
        self.sense = ScrapeSense(self.window)
        self.sense.add(Scraped(url=GOOD))
        self.sense.add(Scraped(url=BAD))
        self.at = 1000.0

    def scrape(self, page: bytes, good: bytes = PAGE) -> str:
        """What came of the hostile page."""
        self.at += 5.0
        outcome = self.sense.feed(ScrapeRecord(t=self.at, target=BAD, body=page, status=200))
        beside = self.sense.feed(ScrapeRecord(t=self.at, target=GOOD, body=good, status=200))
        assert outcome is not None and beside is not None and beside.ok
        return outcome.reason

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        return ask(self.window, query, self.at)

    def dropped(self) -> float:
        return max(v for x, v in self.ask('kvitals_scrape_dropped_total{reason="series_cap"}') if "2" in x["engine"])


def finished(labels: str) -> bytes:
    return f"vllm:request_success_total{{{labels}}} 1\n".encode()


def test_a_million_series_are_refused_without_parsing_them_all() -> None:
    pair = Pair()
    assert pair.scrape(b"".join(b'vllm:x{a="%d"} 1\n' % i for i in range(100_000))) == "too_many_samples"
    assert pair.scrape(b"".join(b"vllm:x%d 1\n" % i for i in range(10_000))) == "too_many_names"
    assert pair.scrape(b"".join(b"vllm:x%d 1\n" % i for i in range(1_000_000))) == "too_many_lines"
    assert [v for _, v in pair.ask("kvitals_target_up")] == [1.0, 0.0]


def test_labels_of_a_megabyte_are_refused() -> None:
    assert Pair().scrape(finished(f'engine="0",model_name="{"a" * 2**20}"')) == "line_too_long"


def test_long_labels_are_not_kept() -> None:
    """A line may be long, as one with the names of all adapters is; what stays in memory for half an hour may not."""
    pair = Pair()
    for i in range(3):
        long = f"{i}" + "a" * MAX_LABEL
        lines = [f'engine="0",model_name="{long}",finished_reason="stop"', f'engine="{long}",finished_reason="stop"']
        assert pair.scrape(b"".join(map(finished, lines)) + b"vllm:" + long.encode() + b" 1\n") == "ok"
    longest = max(len(v) for x, _ in pair.ask('{__name__=~".+"}') for v in x.values())
    assert longest <= MAX_LABEL
    assert pair.dropped() >= 6


def churned(scrape: int, series: int) -> bytes:
    return b"".join(
        finished(f'engine="0",model_name="m",finished_reason="{scrape}-{i}",') for i in range(series)
    )  # fmt: skip


def test_series_that_are_new_at_every_scrape_stay_within_the_target_s_share() -> None:
    pair = Pair()
    for i in range(8):
        assert pair.scrape(churned(i, 5000)) == "ok"
    assert pair.window.series < MAX_TARGET_SERIES + 2000
    assert pair.dropped() >= 8 * 5000 - MAX_TARGET_SERIES
    # The good target gets new columns all the same, as after an upgrade that brings names.
    before = len(pair.ask('{__name__=~"kvitals_.+", engine=~".*:1/0"}'))
    adapters = PAGE + b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 1.5\n'
    pair.scrape(churned(9, 5000), good=adapters)
    assert len(pair.ask('{__name__=~"kvitals_.+", engine=~".*:1/0"}')) > before
    assert [v for _, v in pair.ask("kvitals_requests_running")] == [7.0]


def test_what_went_out_of_hand_recovers_after_the_retention() -> None:
    pair = Pair()
    for i in range(6):
        pair.scrape(churned(i, 5000))
    pair.at += 2000.0
    for _ in range(20):
        pair.scrape(PAGE)
    assert len(pair.ask('kvitals_requests_running{engine=~".*:2/0"}')) == 1
    assert pair.window.series < 2000


@pytest.mark.parametrize("churn", [0, 1000])
def test_engines_on_one_page_are_limited(churn: int) -> None:
    pair = Pair()
    for i in range(4):
        ranks = range(i * churn, i * churn + 1000)
        assert pair.scrape(b"".join(finished(f'engine="{rank}",finished_reason="stop"') for rank in ranks)) == "ok"
    everyone = {x["engine"] for x, _ in ask(pair.window, "count_over_time(kvitals_target_up[1h])", pair.at)}
    assert len(everyone) <= MAX_RANKS + 2
    assert pair.ask("max(kvitals_target_up)") == [({}, 1.0)]
    assert pair.dropped() >= 4 * (1000 - MAX_RANKS)


def test_another_program_on_the_port_is_a_restart() -> None:
    pair = Pair()
    sglang = (FIXTURES / "captured" / "sglang-0.5.23-loaded.prom").read_bytes()
    for _ in range(2):
        pair.scrape(PAGE)
    pair.sense.translator(BAD).learn("version endpoint", {}, {"version": "0.32.0"})
    for _ in range(2):
        pair.scrape(sglang)
    assert [v for _, v in pair.ask('kvitals_engine_restarts_total{engine=~".*:2/0"}')] == [1.0]
    [(info, _)] = pair.ask('kvitals_engine_info{engine=~".*:2/0"}')
    assert info["system"] == "sglang" and info["version"] != "0.32.0"
    assert not pair.ask('kvitals_estimated_flops_per_gpu_total{engine=~".*:2/0"}')  # only vLLM has it


def test_unknown_names_are_told_up_to_a_number() -> None:
    pair = Pair()
    for i in range(4):
        pair.scrape(b"".join(b"vllm:x%d_%d 1\n" % (i, j) for j in range(200)))
    told = ask(pair.window, 'count(count_over_time(kvitals_name_unknown{engine=~".*:2.*"}[1h]))', pair.at)
    assert told == [({}, float(MAX_UNKNOWN))]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pages() -> Iterator[bytes]:
    """Pages that each bring other labels, names, ranks and sizes."""
    for i in range(24):
        labels = ",".join(f'l{i}_{k}="{k}"' for k in range(30))
        yield b"".join(
            (
                churned(i, 1500),
                *(finished(f'engine="{i * 300 + j}",finished_reason="stop"') for j in range(300)),
                *(finished(f'engine="0",{labels},finished_reason="{j}"') for j in range(300)),
                *(finished(f'engine="0",model_name="{i}-{j}-{"m" * 400}"') for j in range(300)),
                *(b"vllm:y%d_%d 1\n" % (i, j) for j in range(500)),
                b"vllm:z 1\n" * 500,
            )
        )


def test_memory_stays_bounded_while_everything_changes() -> None:
    pair = Pair()
    sizes = []
    for page in pages():
        assert pair.scrape(page) == "ok"
        sizes.append(resident())
    assert sizes[-1] - sizes[14] < 30e6  # the share of columns is used up by then
    assert [v for _, v in pair.ask("kvitals_requests_running")] == [7.0]


ANSWERS = {
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 40_000,
    "deep in place": b'{"version":"1","data":[],"a":' + b"[" * 100_000,
    "huge numbers": b'{"version":"1","data":[{"max_model_len":1' + b"0" * 400 + b'}],"max_total_num_tokens":1e999}',
    "endless text": b'{"version":"' + b"9" * 200_000 + b'"}',
    "half a surrogate": b'{"version":"\\ud800","data":[{"max_model_len":-1}]}',
    "no UTF-8": b'{"version":"\xff\xfe"}',
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_what_is_asked_beside_the_page_is_hostile_too(kind: str) -> None:
    body = ANSWERS[kind]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                sent = PAGE if request.startswith(b"GET /metrics") else body
                writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(sent) + sent)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, ScrapeSense(Window(100.0, 10_000)) as sense:
        key = sense.add(Scraped(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        for _ in range(3):
            for record in await sense.read(key):
                sense.feed(record)
        assert sense.translator(key).status.last.ok
        told = sense.translator(key).strings().values()
        assert told and all(len(text) <= MAX_LABEL for strings in told for text in strings.values())


def test_damaged_records_of_a_recording_are_left_out() -> None:
    record = encode(ScrapeRecord(t=1.0, target=BAD, body=PAGE, status=200))
    deep = b"\x84\xa4type\xa6scrape\xa1t\x01\xa6target\xa1x\xa1z" + b"\x91" * 100_000 + b"\xc0"
    for payload in (deep, record.payload[:-1], b"", b"\xc1"):
        assert decode(msgspec.structs.replace(record, payload=payload)) is None
    for t in (2.0, math.nan, math.inf):  # one that is not the record's
        assert decode(msgspec.structs.replace(record, t=t)) is None
    assert decode(record) is not None


async def test_records_of_a_recording_are_hostile_too() -> None:
    """What a capture holds takes the same path, so the same limits hold."""
    node = Node(Config())
    node.expect({"targets": [{"url": BAD}]})
    node.ingest_recorded(encode(ScrapeRecord(t=1.0, target=BAD, body=b"x" * 2**25, status=200)))
    [(labels, _)] = ask(node.window, "kvitals_target_state", 1.0)
    assert labels["reason"] == "too_large"


LABELS = b",".join(b'l%d="v"' % number for number in range(63))
MB = 1 << 20


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"\n" * (16 * MB), "too_many_lines"),
        (b"\r\n" * (8 * MB), "too_many_lines"),
        (b"# HELP a b\n" * (16 * MB // 11), "too_many_lines"),
        (b"#" * (16 * MB - 1) + b"\n", "line_too_long"),
        (b"a" + b"{" * (16 * MB - 2) + b"\n", "line_too_long"),
        ((b"a" + b"{" * 1000 + b"\n") * 16_000, "not_metrics"),
        ((b'a{b="' + b"\\\\" * 30_000 + b'"} 1\n') * 270, ""),
        pytest.param(
            b"".join(b'm{%s,x="%d"} 1\n' % (LABELS, number) for number in range(30_000)),
            "too_many_labels",
            marks=pytest.mark.system,
        ),
    ],
    ids=["line feeds", "blank lines", "help", "one comment", "one line of braces", "braces", "escapes", "labels"],
)
def test_a_large_page_costs_memory_and_time_in_proportion_to_its_size(page: bytes, reason: str) -> None:
    parser, found = PageParser(), ""
    tracemalloc.start()
    try:
        parser.parse(page)
    except ExpositionError as error:
        found = error.reason
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found == reason
    assert peak < 8 * len(page)


def test_the_time_for_the_largest_pages_is_bounded() -> None:
    began = time.process_time()
    for page in (b"\n" * (16 * MB), b"\n" * 200_000, b"# TYPE a gauge\n" * 200_000):
        with contextlib.suppress(ExpositionError):
            PageParser().parse(page)
    assert time.process_time() - began < 20.0


@pytest.mark.parametrize(("size", "joined"), [(1 << 20, 0), (8 << 20, 1)])
async def test_a_large_body_is_put_together_in_a_thread(
    size: int, joined: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (b"#" * 63 + b"\n") * (size // 64)

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size + body)

    threads = []
    to_thread = asyncio.to_thread

    async def noted(work: Callable[..., object], *given: object) -> object:
        threads.append(work)
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    async with serving(answer) as address, ScrapeSense(Window(3600, 1000)) as sense:
        (record, *_) = await sense.read(sense.add(Scraped(url=address, timeout=60)))
    assert isinstance(record, ScrapeRecord)
    assert record.body == body
    assert len(threads) == joined


async def test_a_page_of_too_many_lines_is_read_no_further_than_to_these() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % (16 * MB) + b"\n" * (2 * MB))
        await asyncio.sleep(30)

    async with serving(answer) as address, ScrapeSense(Window(3600, 1000)) as sense:
        (record, *_) = await asyncio.wait_for(sense.read(sense.add(Scraped(url=address, timeout=60))), 10)
    assert isinstance(record, ScrapeRecord)
    assert (record.reason, record.body) == ("too_many_lines", b"")
    assert "more than 200000 lines" in record.message


async def test_a_large_page_is_parsed_in_a_thread() -> None:
    head = b"# TYPE vllm:num_requests_running gauge\n"
    page = head + b"".join(b'vllm:num_requests_running{engine="%d"} 0\n' % number for number in range(45_000))

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % len(page) + page)

    async with serving(answer) as address, ScrapeSense(Window(3600, 1000)) as sense:
        key = sense.add(Scraped(url=address, timeout=60))
        (record, *_) = await sense.read(key)
        threads = []

        async def run(work: Callable[[], object], *_: object) -> object:
            threads.append(work)
            return await asyncio.to_thread(work)

        outcome = await in_slices(sense.feed_steps(record), run)
        assert outcome is not None and outcome.ok and outcome.samples == 45_000
        assert len(threads) == 2  # the page is parsed, then its names are looked up in the engine's map

"""The scrape sense against real servers on loopback, most of them hostile: always a record, soon, with a reason."""

import asyncio
import gzip
import ssl
import subprocess
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvitals.agent.collectors.page_parser import PageLimits
from kvitals.agent.collectors.scrape import MESSAGES, ScrapeSense, ScrapeTarget
from kvitals.agent.families import Translator
from kvitals.agent.records import OK, FactsRecord, ScrapeRecord
from kvitals.series.types import Matcher, MatchOp
from kvitals.series.window import Window

FIXTURES = Path(__file__).parents[2] / "fixtures" / "exposition"
PAGE = (FIXTURES / "vllm-0.32-loaded.prom").read_bytes()
TEXT = "text/plain; version=0.0.4; charset=utf-8"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server whose handler sees each connection; yields its host:port."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=tls)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()


def answering(*answers: bytes, seen: list[bytes] | None = None) -> Handler:
    """Answers each request on any connection with the next of `answers`; the last one stays."""
    left = list(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            if seen is not None:
                seen.append(request)
            writer.write(left.pop(0) if len(left) > 1 else left[0])
            await writer.drain()

    return handle


def http(body: bytes, status: str = "200 OK", content_type: str = TEXT, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


async def scrape(url: str, limits: PageLimits = PageLimits(page_bytes=2**20), **options) -> ScrapeRecord:  # noqa: B008
    async with ScrapeSense(Window(100.0, 10_000), limits=limits) as sense:
        key = sense.add(ScrapeTarget(url=url, **{"timeout": 2.0} | options))
        [record] = await sense.read(key)
        assert isinstance(record, ScrapeRecord)
        if not record.ok:
            assert record.reason in MESSAGES and record.message.endswith((".", "?")), record.message
            assert not record.body
        return record


async def outcome(answer: bytes, limits: PageLimits = PageLimits(page_bytes=2**20)) -> str:  # noqa: B008
    """What a page comes to after parsing."""
    async with serving(answering(answer)) as address, ScrapeSense(Window(100.0, 10_000), limits=limits) as sense:
        key = sense.add(ScrapeTarget(url=address, timeout=2.0))
        [record] = await sense.read(key)
        result = sense.feed(record)
        assert result is not None
        assert result.ok or result.message
        return result.reason


async def test_a_good_page():
    async with serving(answering(http(PAGE))) as address:
        record = await scrape(address)
    assert record.reason == OK and record.ok
    assert record.body == PAGE and record.status == 200 and record.content_type == TEXT
    assert record.target == f"http://{address}/metrics"
    assert 0 < record.duration < 2 and abs(record.t - time.time()) < 10


async def test_a_dead_port():
    async with serving(answering(http(PAGE))) as address:
        pass
    assert (await scrape(address)).reason == "refused"


async def test_a_host_that_does_not_exist():
    assert (await scrape("http://no-such-host.invalid:1")).reason in ("unresolved", "timeout")


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        ("401 Unauthorized", "token"),
        ("403 Forbidden", "token"),
        ("404 Not Found", "/metrics"),
        ("500 Internal Server Error", "500"),
        ("503 Service Unavailable", "not ready"),
    ],
)
async def test_http_errors(status, hint):
    async with serving(answering(http(b"x" * 100, status))) as address:
        record = await scrape(address)
    assert record.reason == "http_error" and record.status == int(status[:3])
    assert hint in record.message


async def test_redirects_are_not_followed():
    seen: list[bytes] = []
    answer = http(b"", "302 Found", headers="Location: http://127.0.0.1:1/secret\r\n")
    async with serving(answering(answer, seen=seen)) as address:
        record = await scrape(address)
    assert record.reason == "http_error" and "final URL" in record.message
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("body", "content_type", "reason"),
    [
        (b"<html><body>Welcome</body></html>", "text/html", "not_metrics"),
        (b'{"detail":"Not Found"}', "application/json", "not_metrics"),
        (b"", TEXT, "empty"),
        (PAGE[:30_000], TEXT, "truncated"),
        (b'vllm:x{a="\xff\xfe"} 1\n', TEXT, "bad_encoding"),
        (PAGE + b"vllm:x{ 1\n", TEXT, "malformed"),
        (b"node_load1 1\n", TEXT, "no_engine"),
        (PAGE, TEXT, "ok"),
        (PAGE, "", "ok"),
        (PAGE, "application/octet-stream", "ok"),
    ],
)
async def test_pages_of_all_kinds(body, content_type, reason):
    assert await outcome(http(body, content_type=content_type)) == reason


async def test_a_huge_page_is_cut_early():
    sent = 0

    async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        for _ in range(800):  # 50 MB
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with serving(huge) as address:
        record = await scrape(address)
    assert record.reason == "too_large"
    assert sent < 20 * 2**20


async def test_a_huge_page_that_says_so_is_not_read():
    async with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 52428800\r\n\r\n")) as address:
        record = await scrape(address)
    assert record.reason == "too_large" and record.duration < 1


@pytest.mark.parametrize("headers", [b"Content-Length: 70000\r\n", b"Transfer-Encoding: chunked\r\n"])
async def test_a_trickle_ends_at_the_timeout(headers):
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n")
        while True:
            writer.write(b"1\r\na\r\n" if b"chunked" in headers else b"a")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with serving(trickle) as address:
        began = time.monotonic()
        record = await scrape(address, timeout=0.5)
    assert record.reason == "timeout" and "0.5 s" in record.message
    assert time.monotonic() - began < 2


async def test_silence_ends_at_the_timeout():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as address:
        assert (await scrape(address, timeout=0.3)).reason == "timeout"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
    ],
)
async def test_an_answer_that_breaks_off(answer):
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async with serving(cut) as address:
        assert (await scrape(address)).reason == "truncated"


async def test_a_body_longer_than_announced_is_cut_where_it_was_announced():
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n" + PAGE
    assert await outcome(short) in ("truncated", "not_http")


async def test_a_connection_that_is_closed_at_once():
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with serving(slam) as address:
        assert (await scrape(address)).reason == "disconnected"


@pytest.mark.parametrize("junk", [b"220 mail.example ESMTP\r\n", b"\x00\x01\x02\x03" * 100, b"HTTP/9.9 banana\r\n\r\n"])
async def test_what_is_not_http(junk):
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(junk)
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")

    async with serving(other) as address:
        assert (await scrape(address)).reason == "not_http"


async def test_headers_without_end():
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-A: " + b"a" * 4000 + b"\r\n")
            await writer.drain()

    async with serving(endless) as address:
        assert (await scrape(address)).reason in ("not_http", "too_long", "timeout")


# Compression


async def test_gzip_and_deflate_are_read():
    for encoding, packed in (("gzip", gzip.compress(PAGE)), ("deflate", zlib.compress(PAGE))):
        answer = http(packed, headers=f"Content-Encoding: {encoding}\r\n")
        async with serving(answering(answer)) as address:
            assert (await scrape(address)).body == PAGE


async def test_a_gzip_bomb_is_cut_at_the_cap():
    bomb = gzip.compress(b"\0" * 100 * 2**20, compresslevel=9)
    assert len(bomb) < 2**20
    async with serving(answering(http(bomb, headers="Content-Encoding: gzip\r\n"))) as address:
        record = await scrape(address)
    assert record.reason == "too_large" and record.duration < 1


@pytest.mark.parametrize(
    ("body", "encoding", "reason"),
    [
        (gzip.compress(PAGE)[:-20], "gzip", "truncated"),
        (PAGE, "gzip", "bad_compression"),
        (PAGE, "br", "bad_compression"),
        (PAGE, "gzip, gzip", "bad_compression"),
    ],
)
async def test_broken_compression(body, encoding, reason):
    async with serving(answering(http(body, headers=f"Content-Encoding: {encoding}\r\n"))) as address:
        assert (await scrape(address)).reason == reason


async def test_compression_is_not_asked_of_an_engine_on_this_machine():
    seen: list[bytes] = []
    async with serving(answering(http(PAGE), seen=seen)) as address:
        await scrape(address)
    assert b"Accept-Encoding: identity" in seen[0] and b"text/plain" in seen[0]


# Authentication and TLS


async def test_the_token_is_sent_and_kept_out_of_records_and_keys():
    seen: list[bytes] = []
    async with serving(answering(http(PAGE), seen=seen)) as address:
        record = await scrape(address, token="s3cret")
        assert b"Authorization: Bearer s3cret" in seen[0]
        assert "s3cret" not in repr(record)
        record = await scrape(f"http://user:s3cret@{address}/metrics")
        assert b"Authorization: Basic" in seen[1]
        assert "s3cret" not in repr(record) and "user" not in record.target


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


async def test_tls(certificate):
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with serving(answering(http(PAGE)), context) as address:
        assert (await scrape(f"https://{address}")).reason == "tls"
        assert (await scrape(f"https://{address}", ca_file=str(cert))).ok
        assert (await scrape(f"https://{address}", insecure=True)).ok
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cert)
    async with serving(answering(http(PAGE)), context) as address:
        own = {"cert_file": str(cert), "key_file": str(key)}
        assert not (await scrape(f"https://{address}", ca_file=str(cert))).ok
        assert (await scrape(f"https://{address}", ca_file=str(cert), **own)).ok
        assert (await scrape(f"https://{address}", insecure=True, **own)).ok
    async with serving(answering(http(PAGE))) as address:
        assert (await scrape(f"https://{address}", timeout=0.5)).reason in ("tls", "disconnected", "timeout")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "", "http://h:99999"])
def test_urls_that_are_none_are_refused(url):
    with pytest.raises(ValueError, match=r".+"):
        ScrapeSense(Window(1.0, 1)).add(ScrapeTarget(url=url))


async def test_ipv6_addresses_are_named_as_in_urls():
    async with ScrapeSense(Window(100.0, 100)) as sense:
        key = sense.add(ScrapeTarget(url="http://[::1]:1"))
        for record in await sense.read(key):
            sense.feed(record)
        assert sense.translator(key).status.engines == ["[::1]:1"]


# Version and models


def engine(version: bytes, models: bytes, seen: list[str]) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            seen.append(path)
            writer.write({"/metrics": http(PAGE), "/version": version, "/v1/models": models}[path])
            await writer.drain()

    return handle


async def rounds(sense: ScrapeSense, key: str, n: int) -> None:
    for _ in range(n):
        for record in await sense.read(key):
            sense.feed(record)


MODELS = b'{"data":[{"id":"a","max_model_len":4096},{"id":"lora","parent":"a","max_model_len":null}]}'


async def test_version_and_context_length_are_asked_once():
    seen: list[str] = []
    window = Window(100.0, 10_000)
    handler = engine(http(b'{"version":"0.32.0"}'), http(MODELS), seen)
    async with serving(handler) as address, ScrapeSense(window) as sense:
        key = sense.add(ScrapeTarget(url=address))
        await rounds(sense, key, 4)
        assert seen == ["/metrics", "/metrics", "/v1/models", "/version", "/metrics", "/metrics"]
        reading = sense.translator(key).reading
        assert reading is not None and (reading.version, reading.version_source) == ("0.32.0", "version endpoint")
        wanted = {"__name__": "kvitals_engine_fact", "fact": "max_context_tokens"}
        [frame] = window.select([Matcher(k, MatchOp.EQ, v) for k, v in wanted.items()], 0, 1e12)
        assert frame.values[-1].tolist() == [4096.0]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_server_info_of_old_versions_is_elsewhere(path):
    seen: list[str] = []
    page = b'# TYPE sglang:token_usage gauge\nsglang:token_usage{model_name="m"} 0.5\n'

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
            seen.append(asked)
            known = {"/metrics": http(page), path: http(b'{"version":"0.5.2","page_size":64,"api_key":"s3cret"}')}
            writer.write(known.get(asked, http(b"", "404 Not Found")))
            await writer.drain()

    window = Window(100.0, 10_000)
    async with serving(handle) as address, ScrapeSense(window) as sense:
        key = sense.add(ScrapeTarget(url=address))
        await rounds(sense, key, 4)
        assert seen.count("/server_info") == 1 and seen.count("/get_server_info") == (path == "/get_server_info")
        reading = sense.translator(key).reading
        assert reading is not None and reading.version == "0.5.2"
        wanted = {"__name__": "kvitals_engine_fact", "fact": "block_tokens"}
        [frame] = window.select([Matcher(k, MatchOp.EQ, v) for k, v in wanted.items()], 0, 1e12)
        assert frame.values[-1].tolist() == [64.0]


@pytest.mark.parametrize("answer", [http(b"", "404 Not Found"), http(b"[]"), http(b'{"version": 3}'), http(b"\xff")])
async def test_odd_answers_to_what_was_asked_are_answers(answer):
    seen: list[str] = []
    async with serving(engine(answer, answer, seen)) as address, ScrapeSense(Window(100.0, 10_000)) as sense:
        key = sense.add(ScrapeTarget(url=address))
        await rounds(sense, key, 4)
        assert seen.count("/version") == 1
        reading = sense.translator(key).reading
        assert reading is not None and reading.version == "0.32"


async def test_the_path_of_a_proxy_is_kept():
    seen: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode())
            writer.write(http(PAGE) if seen[-1].endswith("metrics") else http(b"{}"))
            await writer.drain()

    async with serving(proxy) as address, ScrapeSense(Window(100.0, 10_000)) as sense:
        key = sense.add(ScrapeTarget(url=f"http://{address}/engines/a/metrics"))
        await rounds(sense, key, 2)
    assert seen[2:] == ["/engines/a/v1/models", "/engines/a/version"]


# Replay and faults


async def test_records_can_be_fed_to_another_sense_with_their_own_time():
    async with serving(answering(http(PAGE))) as address, ScrapeSense(Window(100.0, 10_000)) as sense:
        key = sense.add(ScrapeTarget(url=address))
        records = [*await sense.read(key), *await sense.read(key)]
    window = Window(1000.0, 10_000)
    replay = ScrapeSense(window)
    replay.add(ScrapeTarget(url=f"http://{address}"))
    for i, record in enumerate(records):
        assert isinstance(record, ScrapeRecord)
        copied = ScrapeRecord(t=100.0 + i, target=record.target, body=record.body, status=200)
        assert replay.feed(copied) is not None
    replay.feed(FactsRecord(t=102.0, target=key, source="version endpoint", info={"version": "0.32.1"}))
    [frame] = window.select([Matcher("__name__", MatchOp.EQ, "kvitals_requests_running")], 0, 1e12)
    assert frame.times.tolist() == [100.0, 101.0]
    assert replay.feed(ScrapeRecord(t=1.0, target="unknown", body=PAGE)) is None


async def test_a_fault_of_ours_degrades_one_target_and_recovers(monkeypatch):
    sense = ScrapeSense(Window(100.0, 10_000))
    keys = [sense.add(ScrapeTarget(url=f"http://127.0.0.1:{port}")) for port in (1, 2)]
    original = Translator._write
    broken = sense.translator(keys[0])

    def fail(self, *arguments):
        if self is broken:
            raise RuntimeError("boom")
        return original(self, *arguments)

    monkeypatch.setattr(Translator, "_write", fail)
    with capture_logs() as logs:
        results = [sense.feed(ScrapeRecord(t=1.0, target=key, body=PAGE)) for key in keys]
    assert [r.reason for r in results if r] == ["internal", "ok"]
    assert logs[0]["log_level"] == "error"
    monkeypatch.undo()
    results = [sense.feed(ScrapeRecord(t=2.0, target=key, body=PAGE)) for key in keys]
    assert [r.reason for r in results if r] == ["ok", "ok"]


async def test_targets_can_be_removed():
    window = Window(100.0, 10_000)
    sense = ScrapeSense(window)
    key = sense.add(ScrapeTarget(url="http://127.0.0.1:1"))
    assert sense.add(ScrapeTarget(url="127.0.0.1:1/metrics")) == key and sense.keys == [key]
    sense.feed(ScrapeRecord(t=1.0, target=key, body=PAGE))
    assert window.series > 400
    sense.remove(key)
    assert window.series == 0 and sense.keys == []


async def test_cancelling_is_passed_on():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as address, ScrapeSense(Window(100.0, 100)) as sense:
        key = sense.add(ScrapeTarget(url=address))
        task = asyncio.create_task(sense.read(key))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def flooding(start: bytes, piece: bytes) -> Handler:
    """Answers with `piece` again and again, until the client leaves."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while True:
            writer.write(piece)
            await writer.drain()

    return handle


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 4000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", (b"1;" + b"e" * 4000 + b"\r\n\n\r\n") * 16),
    ],
    ids=["interim answers", "chunk extensions"],
)
async def test_an_answer_ends_where_it_has_too_many_bytes_that_are_no_page(start: bytes, piece: bytes):
    began = time.process_time()
    async with serving(flooding(start, piece)) as address:
        record = await scrape(address)
    assert record.reason == "too_long" and "bytes" in record.message
    assert time.process_time() - began < 1


async def test_interim_answers_before_a_page_are_read():
    async with serving(answering(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 5 + http(PAGE * 4))) as address:
        record = await scrape(address)
    assert record.ok and record.body == PAGE * 4


async def test_each_answer_of_a_connection_has_its_own_bytes():
    page = PAGE * (2**19 // len(PAGE))
    async with (
        serving(answering(http(page))) as address,
        ScrapeSense(Window(100.0, 10_000), limits=PageLimits(page_bytes=2**19)) as sense,
    ):
        key = sense.add(ScrapeTarget(url=address, timeout=5.0))
        for _ in range(5):
            assert (await sense.read(key))[0].reason == OK

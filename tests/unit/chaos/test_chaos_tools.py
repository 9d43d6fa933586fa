"""What the attacks on the request side are made of, and the small forms of those that need no process."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from kvitals.agent.collectors import otlp_json, otlp_wire
from kvitals.agent.collectors.file_tail import Tail, TailBudget
from kvitals.agent.collectors.otlp_wire import OtlpFormatError
from kvitals.agent.requests.lines import NOT_JSON, LineReader
from kvitals.agent.requests.observation import RequestPart
from kvitals.agent.requests.spans import SpanReader
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import TenantsTable
from kvitals.rules.log_map import shipped_log_map
from kvitals.series.recordings import CaptureWriter, Record
from kvitals.series.slices import complete
from tests.chaos.requests import attacks, good, http2, planted, spans
from tests.chaos.requests.pages import Page

TENANTS = TenantNames(TenantsTable(), b"k" * 32)
MARK = planted.MARK.encode()


def test_the_search_finds_what_was_planted_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "clean").write_bytes(b"t-abc" * 1000)
    assert planted.found_in(tmp_path) == []
    edge = planted.CHUNK - 4  # across two pieces that are read
    (tmp_path / "edge").write_bytes(b"x" * edge + MARK.upper() + b"y")
    (tmp_path / f"{planted.tenant(7)}.txt").touch()
    with CaptureWriter(tmp_path / "a.kvcap", version="0") as writer:
        writer.write(Record(1.0, "parts", "", planted.PROMPT.encode()))
    found = [one.partition(":")[0] for one in planted.found_in(tmp_path)]
    assert found == ["a.kvcap", "edge", f"{planted.tenant(7)}.txt"]


def test_a_capture_is_unpacked_to_be_searched(tmp_path: Path) -> None:
    file = tmp_path / "a.kvcap"
    text = "".join(chr(97 + number * 7 % 26) for number in range(5000))
    with CaptureWriter(file, version="0") as writer:
        writer.write(Record(1.0, "parts", "", (text[:4000] + planted.MARK[:4]).encode()))
        writer.write(Record(1.0, "parts", "", (text[:4000] + planted.MARK).encode()))
    assert MARK not in file.read_bytes()
    assert len(planted.found_in(tmp_path)) == 1


def test_a_page_is_read() -> None:
    page = Page(
        '# HELP a_total x\na_total{tenant="t\\"1",engine="e"} 2\na_total{tenant="t2"} 3\na_totals 9\nb 1e3\n'
        'kvitals_sense_state{sense="otlp",state="failed",reason="not_listening"} 1\n'
        'kvitals_sense_state{sense="gpu",state="not_applicable",reason="x"} 1\n'
    )
    assert page.total("a_total") == 5
    assert page.by("tenant", "a_total") == {'t\\"1': 2, "t2": 3}
    assert page.total("b") == 1000 and page.total("c") == 0
    assert page.complaints == ["otlp not_listening"]


def parts_of(payload: bytes) -> list[RequestPart]:
    """What the OTLP sense makes of a request, in either of its forms. Raises MalformedError."""
    reader, parts = SpanReader(TENANTS, ("tenant.id",)), list[RequestPart]()
    decode = otlp_json.groups if payload[:1] == b"{" else otlp_wire.groups
    for group in complete(decode(payload)):
        reader.read(list(islice(group.spans, 500)), group.scope, group.engine, time.time(), parts, {})
    return parts


@pytest.mark.parametrize("name", list(attacks.garbage()))
def test_garbage_is_refused_or_read_and_no_text_of_it_is_kept(name: str) -> None:
    try:
        parts = parts_of(attacks.garbage()[name])
    except OtlpFormatError as error:
        assert planted.MARK not in str(error)
    else:
        assert MARK not in msgspec.msgpack.encode(parts)


def test_spans_give_parts_without_their_texts() -> None:
    payload = spans.export([planted.tenant(number) for number in range(50)])
    parts = parts_of(payload)
    assert payload.count(planted.PROMPT.encode()) == 150 and planted.KEY.encode() in payload
    assert len({part.tenant for part in parts}) == 50 and all(part.session for part in parts)
    assert MARK not in msgspec.msgpack.encode(parts)


def test_a_flood_is_counted_line_by_line_and_no_text_of_it_is_kept(tmp_path: Path) -> None:
    flood = attacks.Flood(tmp_path / "flood.jsonl")
    flood.file.touch()
    tail, reader = Tail(flood.file, ()), LineReader(shipped_log_map("litellm"), TENANTS)
    flood.write(22 << 20)
    flood.without_newline(5 << 20)
    made = []
    for _ in range(2):
        tail.look(time.monotonic())
        made += [None if line is None else reader.read(line, time.time()) for line in tail.lines(TailBudget(1 << 30))]
        flood.rotate()
        flood.write(100_000)
    tail.close()
    parts = [one for one in made if isinstance(one, RequestPart)]
    told = (len(parts), made.count(None), made.count(NOT_JSON))
    written = flood.written
    unread = sum(1 for line in flood.file.read_bytes().splitlines() if line)  # written after the last look
    assert told == (written.good - unread, written.too_long, written.not_json)
    assert planted.found_in(tmp_path)
    assert MARK not in msgspec.msgpack.encode(parts)


def test_a_line_of_a_log_gives_a_part_without_its_tenant() -> None:
    made = LineReader(shipped_log_map("nginx"), TENANTS).read(good.log_line(planted.tenant(1)).strip(), time.time())
    assert isinstance(made, RequestPart) and made.tenant == TENANTS.pseudonym(planted.tenant(1))
    assert MARK not in msgspec.msgpack.encode(made)


def test_a_bomb_is_small_and_grows() -> None:
    packed = http2.zeros(10)
    assert len(packed) < 11_000
    assert attacks.gzip.decompress(packed) == bytes(10 << 20)

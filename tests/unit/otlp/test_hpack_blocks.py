"""Header blocks of HTTP/2: the examples of RFC 7541, appendix C, and what is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.collectors import hpack_blocks
from kvitals.agent.collectors.hpack_blocks import HeaderBlocks
from kvitals.agent.collectors.http2_framing import FRAMES_AT_ONCE, MAX_HEADER_BYTES, FramingError, block_cost

REQUESTS = (
    {":method": "GET", ":scheme": "http", ":path": "/", ":authority": "www.example.com"},
    {
        ":method": "GET",
        ":scheme": "http",
        ":path": "/",
        ":authority": "www.example.com",
        "cache-control": "no-cache",
    },
    {
        ":method": "GET",
        ":scheme": "https",
        ":path": "/index.html",
        ":authority": "www.example.com",
        "custom-key": "custom-value",
    },
)


def fields(blocks: HeaderBlocks, block: str) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in blocks._fields(bytes.fromhex(block))}


@pytest.mark.parametrize(
    "sent",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
)
def test_requests_of_the_rfc(sent: tuple[str, ...]) -> None:
    blocks = HeaderBlocks()
    assert tuple(fields(blocks, block) for block in sent) == REQUESTS
    assert blocks._table_bytes == 164


def test_entries_leave_a_table_that_is_full() -> None:
    blocks = HeaderBlocks()
    for number in range(200):
        blocks.check(b"\x40\x01a\x04%04d" % number)
    assert len(blocks._table) == 4096 // (1 + 4 + 32)
    assert fields(blocks, "be") == {"a": "0199"}
    blocks.check(b"\x20")
    assert not blocks._table


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\x3f\xe2\x1f",
        b"\x40\x05a",
        b"\x40\x81\xff\x01b",
        b"\x40\x84\xff\xff\xff\xff\x01b",
        b"\x44\x7f" + b"\xff" * 9,
        b"\x44\x7f\xc9\x01/" + b"x" * 327,
        b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 8000,
    ],
)
def test_what_is_refused(block: bytes) -> None:
    with pytest.raises(FramingError):
        HeaderBlocks().check(block)


@given(st.lists(st.binary(max_size=60)))
def test_any_bytes_are_followed_or_refused(sent: list[bytes]) -> None:
    blocks = HeaderBlocks()
    for block in sent:
        try:
            blocks.check(block)
        except FramingError:
            continue
        assert blocks._table_bytes <= 4096


def test_a_client_cannot_have_many_long_blocks_unpacked() -> None:
    zeros = bytes(MAX_HEADER_BYTES // 5 * 5)  # five bits each
    began = time.process_time()
    assert set(hpack_blocks._unpacked(zeros)) == {ord("0")}
    assert time.process_time() - began < 0.05  # 0.003 s where nothing else runs
    assert block_cost(bytes(MAX_HEADER_BYTES)) > FRAMES_AT_ONCE / 2
    assert block_cost(bytes(500)) == 0

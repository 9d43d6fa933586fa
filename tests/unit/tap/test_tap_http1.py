"""The reader of HTTP/1.1: linear in the bytes that arrive, and the same for every split of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvitals.agent.tap.http1 import (
    MAX_HEAD,
    MAX_TRAILERS,
    BadMessageError,
    Body,
    ChunkedBody,
    HeadBuffer,
    RequestHead,
    body_of_request,
    body_of_response,
    read_request,
    read_response,
)

CPU_SECONDS = 0.5

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\n%s\r\n\r\n"


def outcome(do: Callable[[], object]) -> object:
    """What a call returns, or the status of the error that it raises."""
    try:
        return do()
    except BadMessageError as error:
        return error.status


# -- time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_request, read_response])
@pytest.mark.parametrize(
    "field",
    [
        b"X: " + b" " * 63_000 + b"\x01",
        b"X: " + b"\t " * 31_000 + b"\x01",
        b"X: " + b"a " * 31_000 + b"\x7f",
        b"X:" * 31_000,
        b"x" * 63_000,
        b" " * 63_000,
        b"X: y\r\n" * 10_000 + b"X: y",
        b":\r\n" * 20_000 + b":",
        b"Connection: " + b"," * 63_000,
        b"Transfer-Encoding: " + b"chunked," * 7_800,
    ],
)
def test_a_head_takes_time_linear_in_its_bytes(read: Callable[[bytes], object], field: bytes) -> None:
    template = REQUEST if read is read_request else RESPONSE
    began = time.process_time()
    for _ in range(5):
        head = outcome(lambda: read(template % field))
        if isinstance(head, RequestHead):
            outcome(partial(body_of_request, head))
            assert head.forwarded()
    assert time.process_time() - began < CPU_SECONDS


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nX: " + b" " * 63_000, b"\r" * 5 + b"x", b"x" * 64_000, b"x\n" * 31_000, b"x\r\n" * 21_000],
)
def test_a_head_that_arrives_byte_by_byte_takes_linear_time(data: bytes) -> None:
    buffer, began = HeadBuffer(), time.process_time()
    for byte in data:
        buffer.add(bytes((byte,)))
        outcome(buffer.next_head)
    assert time.process_time() - began < CPU_SECONDS


@pytest.mark.parametrize("size", [1, 7, 16 << 10])
@pytest.mark.parametrize(
    "data",
    [
        b"1\r\nx\r\n" * 20_000,
        b"1;" + b" " * 4000 + b"\r\nx\r\n",
        b"1;" + b"a" * 4000 + b"\r\nx\r\n",
        b"0\r\n" + b"X: " + b" " * 4000 + b"\x01\r\n",
        b"0\r\n" + b"a:\r\n" * 4_090 + b"\r\n",
        b"ffffffff\r\n" + b"x" * 100_000,
        b"0" * 100_000,
    ],
)
def test_chunks_and_trailers_take_time_linear_in_their_bytes(data: bytes, size: int) -> None:
    body, began = ChunkedBody(), time.process_time()
    outcome(lambda: [body.take(data[at : at + size], 0) for at in range(0, len(data), size)])
    assert time.process_time() - began < 2 * CPU_SECONDS


def test_many_heads_in_one_read_take_linear_time() -> None:
    one = RESPONSE.replace(b"200", b"100") % b"A: b"
    buffer, began = HeadBuffer(), time.process_time()
    buffer.add(one * 5000)
    assert sum(bool(buffer.next_head()) for _ in range(5000)) == 5000 and not buffer
    assert time.process_time() - began < CPU_SECONDS


# -- splits -----------------------------------------------------------------------------------------------

TOKENS = [
    *(b"GET ", b"/ ", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\n\n", b":", b" ", b"\t", b","),
    *(
        b"Host: x\r\n",
        b"Content-Length: ",
        b"Transfer-Encoding: ",
        b"chunked",
        b"gzip",
        b"\x00",
        b"\xff",
        b"Connection:",
    ),
    *(
        b"0\r\n\r\n",
        b"1\r\nx\r\n",
        b"5;a=b\r\nhello\r\n",
        b"0",
        b"1",
        b"f",
        b"5",
        b"HTTP/1.1 200 OK\r\n",
        b"PRI * HTTP/2.0",
    ),
    *(b"GET / HTTP/1.1\r\nHost: x\r\n", b"x" * 5000, b" " * 4090, b"X: y\r\n" * 260),
]
messages = st.lists(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=4)), max_size=12).map(b"".join)
cuts = st.lists(st.integers(0, 40), max_size=30)


def pieces(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    found, at = [], 0
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return [piece for piece in (*found, data[at:]) if piece]


def follow(body: Body, data: list[bytes]) -> tuple[object, bytes, bool]:
    """Bytes taken, or the error's status; the content, and whether it is whole."""
    taken, content = 0, b""
    for piece in data:
        end = outcome(partial(body.take, piece, 0))
        if not isinstance(end, tuple):
            return end, b"", False
        taken, content = taken + end[0], content + end[1]
        if end[0] < len(piece) or body.done:
            break
    return taken, content, body.done


def heads(data: list[bytes]) -> list[object]:
    """The heads of requests and responses that are found, up to an error's status."""
    buffer, found = HeadBuffer(), list[object]()
    for piece in data:
        buffer.add(piece)
        while head := outcome(buffer.next_head):
            found.append(head)
            if not isinstance(head, bytes):
                return found
    return [*found, len(buffer)]


@given(messages, cuts)
@example(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", [1] * 30)
@example(b"PRI * HTTP/2.0\r\n\r\n", [1] * 30)
@example(b"x\n\n" + b"y" * MAX_HEAD + b"\r\n\r\n", [2, 1])
@example(b"x" * MAX_HEAD + b"\r\n\r\n", [40, MAX_HEAD - 40])
def test_heads_are_found_in_every_split(data: bytes, sizes: list[int]) -> None:
    whole = heads([data])
    assert heads(pieces(data, sizes)) == whole
    for head in whole:
        if isinstance(head, bytes):
            for read in (read_request, read_response):
                outcome(partial(read, head))


@given(messages, cuts)
@example(b"1\r\nx\r\n0\r\nA: b\r\n\r\nrest", [1] * 30)
@example(b"5\r\nhelloX\r\n", [8, 1])
@example(b"0\r\n" + b"a: " + b"b" * MAX_TRAILERS, [30])
@example(b"1" + b" " * 4100 + b"\r\nx\r\n", [4000])
def test_chunked_bodies_end_in_the_same_place_in_every_split(data: bytes, sizes: list[int]) -> None:
    assert follow(ChunkedBody(), pieces(data, sizes)) == follow(ChunkedBody(), [data] if data else [])


@given(messages)
def test_any_head_is_read_or_refused(data: bytes) -> None:
    request = outcome(lambda: read_request(b"POST / HTTP/1.1\r\nHost: x\r\n" + data.strip(b"\r\n") + b"\r\n\r\n"))
    if isinstance(request, RequestHead):
        outcome(lambda: body_of_request(request))
        assert request.forwarded().endswith(b"\r\n\r\n")
    response = outcome(lambda: read_response(b"HTTP/1.1 200\r\n" + data.strip(b"\r\n") + b"\r\n\r\n"))
    if not isinstance(response, int):
        outcome(lambda: body_of_response(response, b"GET"))  # type: ignore[arg-type]

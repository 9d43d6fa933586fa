"""The tap's reader of HTTP/1.1 beside h11, in both directions.

Of one input both read the first message: ours in pieces of random sizes, h11 in one. What one accepts and the other
refuses is a finding, except for the differences that are listed here. What both accept has the same fields, the same
body, and ends at the same byte.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import h11

from kvitals.agent.tap.http1 import (
    BadMessageError,
    Body,
    Head,
    HeadBuffer,
    Response,
    body_of_request,
    body_of_response,
    read_request,
    read_response,
)

MAX_BYTES = 20_000
"""h11 takes quadratic time for blanks in a field."""

STRICTER = (
    "control character",  # h11 takes all but NUL and blanks
    "CR and LF",  # h11 takes a bare LF, and a bare CR at a line's end
    "longer than",  # our bounds on heads, chunk lines and trailers
    "more than 256 fields",
    "exactly one number",  # h11 takes lists of the same number, and 20 digits
    "unclear",  # h11 lets Transfer-Encoding win over Content-Length, and takes it in HTTP/1.0
    "opens no connections",  # CONNECT
    "belongs in the head",  # trailers that frame a message
)
"""What we refuse and h11 takes, by our message."""

_FIRST_LINE = re.compile(rb"[!-~]{1,32} [!-~]+ HTTP/1\.[01]|HTTP/1\.[01] [1-9][0-9]{2}( .*)?", re.DOTALL)
_LONG_SIZE = re.compile(rb"[0-9A-Fa-f]{13}|[0-9A-Fa-f][ \t]*;[^\r\n]*[\x00-\x08\x0b-\x1f\x7f]")
_BLANK_SIZE = re.compile(rb"[0-9A-Fa-f][ \t]+;")


@dataclass
class Read:
    """What a reader made of the first message."""

    head: bytes = b""  # our own bytes of it
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    left: bytes | None = None  # what follows the message, where it is complete
    refused: str = ""


def requests(data: bytes) -> None:
    """Requests as the tap reads them from a client."""
    ours = _ours(data, read_request, body_of_request)
    theirs = _theirs(data[1:], h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20))
    _compare(data[1:], ours, theirs)


def responses(data: bytes) -> None:
    """Responses as the tap reads them from the upstream."""
    method = b"HEAD" if data[:1] > b"\xc0" else b"GET"
    ours = _ours(data, read_response, lambda head: body_of_response(head, method))
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    _compare(data[1:], ours, _theirs(data[1:], client))


def _pieces(data: bytes) -> list[bytes]:
    """The message after the first byte, in pieces whose sizes the first byte chooses."""
    rng, message = random.Random(data[:1]), data[1:MAX_BYTES]
    most, found, at = rng.choice((1, 3, 40, MAX_BYTES)), list[bytes](), 0
    while at < len(message):
        size = rng.randint(1, most)
        found.append(message[at : at + size])
        at += size
    return found


def _ours(data: bytes, read: Callable[[bytes], Head], body_of: Callable[[Head], Body]) -> Read:
    found, buffer, body = Read(), HeadBuffer(), None
    content, waiting = [], b""
    try:
        for piece in _pieces(data):
            if body is None:
                buffer.add(piece)
                while (raw := buffer.next_head()) and body is None:
                    head = read(raw)
                    found_body = body_of(head)
                    if isinstance(head, Response) and head.status == 101:
                        return found
                    if not (isinstance(head, Response) and head.interim):
                        found.head, body = raw, found_body
                        found.fields = [(one.name, one.value) for one in head.fields]
                        break
                if body is None:
                    continue
                piece = buffer.take_all()
            elif body.done:
                waiting += piece
                continue
            end, some = body.take(piece, 0)
            content.append(some)
            waiting = piece[end:]
    except BadMessageError as error:
        found.refused = str(error)
    found.body = b"".join(content)
    if body is not None and body.done:
        found.left = waiting
    return found


def _theirs(message: bytes, connection: h11.Connection) -> Read:
    found = Read()
    try:
        connection.receive_data(message[: MAX_BYTES - 1])
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request | h11.Response):
                found.head = b"head"
                found.fields = list(event.headers)
            elif isinstance(event, h11.Data):
                found.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.left = connection.trailing_data[0]
                break
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                break
    except h11.RemoteProtocolError as error:
        found.refused = str(error)
    return found


def _compare(message: bytes, ours: Read, theirs: Read) -> None:
    if theirs.refused:
        assert ours.refused or not ours.head or _looser(message, ours), f"only h11 refuses: {theirs.refused}"
    elif ours.refused:
        assert _stricter(message, ours), f"only the tap refuses: {ours.refused}"
    elif theirs.head and not ours.head:
        assert re.search(rb"(?<!\r)\n", message) or b" 101" in message, "only h11 finds a head"
    else:
        assert bool(ours.head) == bool(theirs.head), "only the tap finds a head"
        assert ours.fields == _as_lists(theirs.fields), "other fields"
        assert ours.body == theirs.body, "another body"
        assert ours.left == theirs.left, "another end"


def _as_lists(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in fields]


def _looser(message: bytes, ours: Read) -> bool:
    """Whether h11 refuses for one of the reasons for which the tap does not.

    Targets with bytes beyond ASCII; codings of a response beside `chunked`, which pass unopened; blanks between a
    chunk's size and its extension, which RFC 9112 allows.
    """
    first = ours.head.partition(b"\r\n")[0]
    codings = [value.lower() for name, value in ours.fields if name == b"transfer-encoding"]
    return not first.isascii() or (codings and codings != [b"chunked"]) or bool(_BLANK_SIZE.search(message))


def _stricter(message: bytes, ours: Read) -> bool:
    if "first line" in ours.refused or "the status" in ours.refused:
        lines = [line for line in message.split(b"\r\n") if b"HTTP/" in line]
        return not all(_FIRST_LINE.fullmatch(line) for line in lines)
    if "its size" in ours.refused:
        return bool(_LONG_SIZE.search(message))
    if "not a field" in ours.refused:
        return bool(re.search(rb"\n[ \t]", message))  # a folded line
    if "Host" in ours.refused:
        return b"HTTP/1.0" in message  # two of them
    return any(reason in ours.refused for reason in STRICTER)


REQUEST_SEEDS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: engine:8000\r\nContent-Length: 5\r\nExpect: x\r\n\r\nhelloGET",
    b"POST /a?b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n"
    b"GET",
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX:  " + b" " * 600 + b"y\t\r\nx-y:\r\n\r\n",
)
RESPONSE_SEEDS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}rest",
    b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\ndata: 0123456789 01234567\n\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
)
TOKENS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\n\n",
        b"\x00",
        b"\x01",
        b"\x0b",
        b"\x7f",
        b"\xff",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
    ),
    *(b"Content-Length: ", b"Transfer-Encoding: ", b"chunked", b"Host: y\r\n", b"Connection: close\r\n", b"identity"),
    *(b"0\r\n", b"0\r\n\r\n", b"1\r\nx\r\n", b"00", b"f", b"0x1", b"+1", b"99999999999999999", b"1, 1", b" folded"),
    *(
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"CONNECT ",
        b"GET ",
        b"200",
        b"100",
        b"999",
        b"099",
        b" " * 3000,
        b"X: y\r\n",
    ),
)


def request_seeds() -> list[bytes]:
    """Requests, with the byte that chooses the pieces."""
    return [bytes((number,)) + one for number, one in enumerate(REQUEST_SEEDS)]


def response_seeds() -> list[bytes]:
    """Responses, likewise."""
    return [bytes((number,)) + one for number, one in enumerate(RESPONSE_SEEDS)]

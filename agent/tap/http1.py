"""HTTP/1.1 as far as an observer needs it: heads, and where a body ends. Does no I/O.

Heads keep their lines as received, so the tap forwards the bytes that arrived. Bodies are followed and not re-framed:
chunk boundaries, extensions and trailers pass unchanged. What two readers can read in two ways (two lengths, two hosts,
a bare line feed, a folded line) is refused, so that a request cannot hide in another request's body.

Every step is linear in the bytes that arrive, in any split. There are no regular expressions here: `partition`, `strip`
and `translate` visit each byte once, whatever the bytes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from kvitals.agent.listeners import LISTENERS

MAX_HEAD = 64 * 1024
"""Bytes of a request's or response's head, all its fields together."""
MAX_FIELDS = 256
MAX_CHUNK_LINE = 4096
MAX_TRAILERS = 16 * 1024
MAX_EXTENSIONS = LISTENERS["tap"].max_framing
"""Bytes of a body's chunk lines beyond `_CHUNK_LINE` for each chunk and two for each byte of content: extensions carry
nothing that anybody reads, so a sender could keep the tap busy with them without end."""
MAX_METHOD = 32
MAX_LENGTH_DIGITS = 15
MAX_CHUNK_DIGITS = 12

_DIGITS = b"0123456789"
_HEX = _DIGITS + b"abcdefABCDEF"
_TOKEN = b"!#$%&'*+-.^_`|~" + _DIGITS + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TARGET = bytes((*range(0x21, 0x7F), *range(0x80, 0x100)))
_TEXT = b"\t " + _TARGET
_HEAD = _TEXT + b"\r\n"
_BLANK = b" \t"
_CHUNK_LINE = 16
"""Bytes of a chunk's first line that need no reason."""
_STEP = 16 * 1024
"""Bytes that are copied at most to find what of them belongs to a body."""

# Of one connection and not of the message (RFC 9110, 7.6.1). Transfer-Encoding is too, but bodies are not re-framed, so
# what it says stays true; TE and Trailer speak of trailers, which go on.
HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"upgrade"))

# Further fields that `Connection` may name. Any other name in it is ignored: a client could else have the tap remove
# what a gateway in front of the tap added, such as Authorization or a tenant's name. A list of the fields to protect
# would never be complete, because every gateway adds its own.
NOMINABLE = frozenset((b"te", b"http2-settings"))

# Fields that a server may merge from the trailers into the head, where they would change what was already decided.
NO_TRAILERS = frozenset((b"content-length", b"transfer-encoding", b"host", b"trailer"))


class BadMessageError(Exception):
    """The bytes are not HTTP that one can rely on. `status` is what a client gets for it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Field(NamedTuple):
    """One line of a head."""

    name: bytes  # in lower case
    value: bytes
    line: bytes  # as received, without its end


@dataclass(frozen=True)
class Head:
    """A head's fields in order."""

    minor: int  # of the HTTP version
    fields: tuple[Field, ...]

    def values(self, name: bytes) -> list[bytes]:
        """All values of a field, in order."""
        return [field.value for field in self.fields if field.name == name]

    def members(self, name: bytes) -> list[bytes]:
        """The members of a field that is a list, in lower case."""
        parts = (part.strip().lower() for value in self.values(name) for part in value.split(b","))
        return [part for part in parts if part]

    @cached_property
    def connection(self) -> frozenset[bytes]:
        """What the head says of its connection."""
        return frozenset(self.members(b"connection"))

    @property
    def persistent(self) -> bool:
        """Whether another message may follow on the connection."""
        return self.minor == 1 and b"close" not in self.connection


@dataclass(frozen=True)
class RequestHead(Head):
    """The head of a request."""

    method: bytes = b""
    target: bytes = b""

    @property
    def path(self) -> bytes:
        """The target's path, without the query."""
        return self.target.partition(b"?")[0]

    @cached_property
    def upgrades(self) -> bool:
        """Whether it asks for a WebSocket. Other protocols are not offered to the upstream."""
        return self.members(b"upgrade") == [b"websocket"] and b"upgrade" in self.connection

    def forwarded(self, added: tuple[bytes, ...] = (), removed: frozenset[bytes] = frozenset()) -> bytes:
        """The head for the upstream, with lines added and fields removed."""
        if self.upgrades:
            added = (*added, b"Connection: Upgrade", b"Upgrade: websocket")
        elif self.minor == 0 or not self.persistent:
            added = (*added, b"Connection: close")
        start = b"%s %s HTTP/1.%d" % (self.method, self.target, self.minor)
        return _joined(start, self, added, removed)


@dataclass(frozen=True)
class Response(Head):
    """The head of a response."""

    status: int = 0
    start: bytes = b""  # the line as it came

    @property
    def interim(self) -> bool:
        """Whether the response is still to come (100 Continue, 103 Early Hints)."""
        return self.status < 200 and self.status != 101

    def forwarded(self, close: bool) -> bytes:
        """The head for the client."""
        return _joined(self.start, self, (b"Connection: close",) if close else ())

    def whole(self) -> bytes:
        """The head as it came, with what it says of the connection: for one that changes it."""
        return b"".join((self.start, b"\r\n", *(field.line + b"\r\n" for field in self.fields), b"\r\n"))


def _joined(start: bytes, head: Head, added: tuple[bytes, ...], removed: frozenset[bytes] = frozenset()) -> bytes:
    left_out = HOP_BY_HOP | (head.connection & NOMINABLE) | removed
    lines = [field.line for field in head.fields if field.name not in left_out]
    return b"\r\n".join((start, *lines, *added, b"", b""))


class HeadBuffer:
    """Bytes that wait to be read as heads. Each byte is searched once, in whatever pieces it arrives."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0  # bytes of `_data` in which no head ends

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        """Append bytes as they arrive."""
        self._data += data

    def next_head(self) -> bytes:
        """Remove and return the next head with its empty line; b"" while it is incomplete.

        Raises BadMessageError where these bytes cannot become a head.
        """
        data, since = self._data, max(self._searched - 3, 0)
        if data.startswith((b"\r", b"\n")):
            raise BadMessageError("a message begins with its first line, not with an empty one")
        if data.startswith(b"PRI * HTTP/2.0"):
            raise BadMessageError("the tap speaks HTTP/1.1; configure the client for HTTP/1.1", 505)
        at = data.find(b"\r\n\r\n", since, MAX_HEAD)
        if at >= 0:
            head = bytes(data[: at + 4])
            del data[: at + 4]
            self._searched = 0
            return head
        if data.find(b"\n\n", since, MAX_HEAD) >= 0:
            raise BadMessageError(_BARE)
        if len(data) >= MAX_HEAD:
            raise BadMessageError(f"the head is longer than {MAX_HEAD} bytes; send fewer or shorter fields", 431)
        self._searched = len(data)
        return b""

    def take(self, body: Body) -> bytes:
        """Remove and return what belongs to `body`. Raises BadMessageError.

        Copies `_STEP` bytes beyond the body at most, so that a buffer full of short requests is not copied for each.
        """
        taken = []
        while self._data and not body.done:
            some = bytes(self._data[:_STEP])
            end, _ = body.take(some, 0)
            del self._data[:end]
            taken.append(some[:end])
        return b"".join(taken)

    def take_all(self) -> bytes:
        """Remove and return everything."""
        data = bytes(self._data)
        self.clear()
        return data

    def clear(self) -> None:
        """Remove everything."""
        self._data.clear()
        self._searched = 0


_BARE = "every line of a head ends with CR and LF, and neither appears alone"


def read_request(head: bytes) -> RequestHead:
    """Parse a request's head, its last empty line included. Raises BadMessageError."""
    start, fields = _fields(head)
    method, _, rest = start.partition(b" ")
    target, _, version = rest.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not target or not _only(method, _TOKEN, MAX_METHOD):
        raise BadMessageError("the first line is not a request of HTTP/1.0 or 1.1")
    if not _only(target, _TARGET):
        raise BadMessageError("the request's target contains a control character")
    if method == b"CONNECT":
        raise BadMessageError("the tap forwards to one upstream; it does not connect to other hosts", 405)
    found = RequestHead(minor=version[-1] - ord("0"), fields=fields, method=method, target=target)
    hosts = len(found.values(b"host"))
    if hosts > 1 or (not hosts and found.minor):
        raise BadMessageError(f"the head has {hosts} Host fields; a request has exactly one")
    return found


def read_response(head: bytes) -> Response:
    """Parse a response's head, its last empty line included. Raises BadMessageError."""
    start, fields = _fields(head)
    version, status, end = start[:9], start[9:12], start[12:13]
    if version not in (b"HTTP/1.1 ", b"HTTP/1.0 ") or not _only(status, _DIGITS, 3) or end not in (b"", b" "):
        raise BadMessageError("the first line is not a response of HTTP/1.0 or 1.1", 502)
    if len(status) < 3 or status < b"100":
        raise BadMessageError("the status is not a number from 100 to 999", 502)
    return Response(minor=version[7] - ord("0"), fields=fields, status=int(status), start=start)


def _fields(head: bytes) -> tuple[bytes, tuple[Field, ...]]:
    text = head[:-4]
    lines = text.count(b"\r\n")
    if text.count(b"\r") != lines or text.count(b"\n") != lines:
        raise BadMessageError(_BARE)
    if lines > MAX_FIELDS:
        raise BadMessageError(f"the head has more than {MAX_FIELDS} fields", 431)
    if text.translate(None, _HEAD):
        raise BadMessageError("the head contains a control character")
    start, *rest = text.split(b"\r\n")
    return start, tuple(map(_field, rest))


def _field(line: bytes) -> Field:
    """A line without its end, free of control characters, as a field. Raises BadMessageError."""
    name, colon, value = line.partition(b":")
    if not colon or not _only(name, _TOKEN):
        raise BadMessageError("a line of the head is not a field: a name without blanks, a colon, a value")
    return Field(name.lower(), value.strip(_BLANK), line)


def _only(text: bytes, alphabet: bytes, most: int = MAX_HEAD) -> bool:
    """Whether a text has 1 to `most` bytes, all of them in the alphabet."""
    return 0 < len(text) <= most and not text.translate(None, alphabet)


class Body(Protocol):
    """Follows a body through the bytes of a connection."""

    done: bool
    """Whether all of it was seen."""
    by_close: bool
    """Whether it ends with its connection."""

    def take(self, data: bytes, at: int) -> tuple[int, bytes]:
        """Where this body ends in `data` from `at` on, and what it carries up to there, without framing.

        Raises BadMessageError.
        """


class SizedBody:
    """A body of a known length."""

    by_close = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def take(self, data: bytes, at: int) -> tuple[int, bytes]:
        end = min(at + self._left, len(data))
        self._left -= end - at
        self.done = self._left == 0
        return end, data[at:end]


class UntilClose:
    """A body that ends when its connection does."""

    by_close = True
    done = False

    def take(self, data: bytes, at: int) -> tuple[int, bytes]:
        return len(data), data[at:]


class ChunkedBody:
    """A body in chunks, with its trailers."""

    by_close = False

    def __init__(self) -> None:
        self.done = False
        self._left = 0  # bytes of the current chunk that are still to come
        self._line_end = b""  # what is still to come of the line's end after a chunk
        self._in_trailers = False
        self._trailers = 0  # bytes of them so far
        self._extensions = 0  # bytes of chunk lines beyond what the content so far allows
        self._line = bytearray()  # a chunk's first line or a trailer, so far

    def take(self, data: bytes, at: int) -> tuple[int, bytes]:
        pieces, size = [], len(data)
        while at < size and not self.done:
            if self._left:
                end = min(at + self._left, size)
                pieces.append(data[at:end])
                self._left -= end - at
                self._line_end = b"\r\n"
            elif self._line_end:
                end = min(at + len(self._line_end), size)
                if not self._line_end.startswith(data[at:end]):
                    raise BadMessageError("a chunk is longer than its size")
                self._line_end = self._line_end[end - at :]
            elif (end := self._take_whole(data, at, pieces)) == at:
                end = self._take_line(data, at)
            at = end
        return at, pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_whole(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Take the chunks that are there as a whole; returns where they end.

        Only for speed: a stream's chunks arrive so, and a flood of small ones must not hold the loop up.
        """
        if self._in_trailers or self._line:
            return at
        while True:
            line_end = data.find(b"\r\n", at, at + MAX_CHUNK_DIGITS + 2)
            if line_end <= at or (digits := data[at:line_end]).translate(None, _HEX):
                return at
            begin = line_end + 2
            end = begin + int(digits, 16)
            if end == begin or data[end : end + 2] != b"\r\n":
                return at
            pieces.append(data[begin:end])
            at = end + 2

    def _take_line(self, data: bytes, at: int) -> int:
        """Take what there is of a line; returns where it ends."""
        end = data.find(b"\n", at, at + MAX_CHUNK_LINE - len(self._line)) + 1
        if not end:
            self._line += data[at : at + MAX_CHUNK_LINE]
            if len(self._line) >= MAX_CHUNK_LINE:
                raise BadMessageError(f"a line between chunks is longer than {MAX_CHUNK_LINE} bytes")
            return len(data)
        line = data[at:end]
        if self._line:
            line = bytes(self._line) + line
            self._line.clear()
        if line[-2:] != b"\r\n":
            raise BadMessageError("every line between chunks ends with CR and LF")
        if self._in_trailers:
            self._on_trailer(line[:-2])
        else:
            self._left = _chunk_size(line[:-2])
            self._in_trailers = not self._left
            self._extensions = max(self._extensions + len(line) - _CHUNK_LINE - 2 * self._left, 0)
            if self._extensions > MAX_EXTENSIONS:
                raise BadMessageError(f"the chunk extensions are longer than {MAX_EXTENSIONS} bytes")
        return end

    def _on_trailer(self, line: bytes) -> None:
        self._trailers += len(line) + 2
        self.done = not line
        if self._trailers > MAX_TRAILERS:
            raise BadMessageError(f"the trailers are longer than {MAX_TRAILERS} bytes")
        if line and (line.translate(None, _TEXT) or _field(line).name in NO_TRAILERS):
            raise BadMessageError("a trailer contains a control character, or a field that belongs in the head")


def _chunk_size(line: bytes) -> int:
    """The size in a chunk's first line, without that line's end. Raises BadMessageError."""
    size, _, extension = line.partition(b";")
    size = size.rstrip(_BLANK)
    if not _only(size, _HEX, MAX_CHUNK_DIGITS) or extension.translate(None, _TEXT):
        raise BadMessageError("a chunk does not begin with its size")
    return int(size, 16)


def body_of_request(head: RequestHead) -> Body:
    """Find how the request's body ends. Raises BadMessageError where that can be read in two ways."""
    coding, length = head.values(b"transfer-encoding"), _length(head)
    if not coding:
        return SizedBody(length or 0)
    if length is not None or head.minor == 0:
        raise BadMessageError("Transfer-Encoding beside Content-Length, or in HTTP/1.0: where the body ends is unclear")
    codings = _codings(coding)
    if codings != [b"chunked"]:
        raise BadMessageError("chunked is the only Transfer-Encoding of a request that the tap forwards", 501)
    return ChunkedBody()


def body_of_response(head: Response, method: bytes) -> Body:
    """Find how the response's body ends. Raises BadMessageError where that can be read in two ways."""
    coding, length = head.values(b"transfer-encoding"), _length(head)
    if coding and (length is not None or head.minor == 0):
        raise BadMessageError(
            "Transfer-Encoding beside Content-Length, or in HTTP/1.0: where the body ends is unclear", 502
        )
    codings = _codings(coding)
    if method == b"HEAD" or head.status < 200 or head.status in (204, 304):
        return SizedBody(0)
    if codings:
        return ChunkedBody() if codings[-1] == b"chunked" else UntilClose()
    return UntilClose() if length is None else SizedBody(length)


def _codings(values: list[bytes]) -> list[bytes]:
    """The transfer codings in order. Raises BadMessageError where `chunked` is not the last one, or one is empty."""
    codings = [part.strip(_BLANK).lower() for value in values for part in value.split(b",")]
    if not all(codings) or b"chunked" in codings[:-1]:
        raise BadMessageError(
            "Transfer-Encoding has an empty member, or one after chunked: where the body ends is unclear"
        )
    return codings


def _length(head: Head) -> int | None:
    lengths = head.values(b"content-length")
    if not lengths:
        return None
    if len(lengths) > 1 or not _only(lengths[0], _DIGITS, MAX_LENGTH_DIGITS):
        raise BadMessageError("Content-Length is not exactly one number")
    return int(lengths[0])

"""HTTP/1.1 as far as an observer needs it: heads, and where a body ends. Does no I/O.

Heads keep their lines as they came, so that what is passed on is what was said. Bodies are followed and not re-framed:
chunk boundaries, extensions and trailers go on as they are. What two readers could read in two ways (both lengths, a
bare line feed, a folded line) is refused, so that a request can not hide in another's body.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

MAX_HEAD = 64 * 1024
"""Bytes of a request's or response's head, all its fields together."""
MAX_FIELDS = 256
MAX_CHUNK_LINE = 4096
MAX_TRAILERS = 16 * 1024

_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r\n")

# Of one connection and not of the message (RFC 9110, 7.6.1). Transfer-Encoding is too, but bodies are not re-framed, so
# what it says stays true; TE and Trailer speak of trailers, which go on.
HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"upgrade"))


class BadMessageError(Exception):
    """What came is no HTTP that one can rely on. `status` is what a client gets for it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Field:
    """One line of a head."""

    name: bytes  # in lower case
    value: bytes
    line: bytes  # as it came, without its end


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
class Request(Head):
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
    # What frames the body is never of the connection alone, whatever `Connection` names.
    left_out = (HOP_BY_HOP | head.connection | removed) - {b"content-length", b"transfer-encoding", b"host"}
    lines = [field.line for field in head.fields if field.name not in left_out]
    return b"\r\n".join((start, *lines, *added, b"", b""))


def end_of_head(data: bytes | bytearray) -> int:
    """Where the body begins, or 0 where the head is not complete. Raises BadMessageError where it never will be."""
    if data.startswith(b"PRI * HTTP/2.0"):
        raise BadMessageError("the tap speaks HTTP/1.1; let the client do so too", 505)
    at = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if at >= 0:
        return at + 4
    if b"\n\n" in data[:MAX_HEAD]:
        raise BadMessageError("lines of a head end with CR and LF")
    if len(data) >= MAX_HEAD:
        raise BadMessageError(f"the head is longer than {MAX_HEAD} bytes; send fewer or shorter fields", 431)
    return 0


def read_request(head: bytes) -> Request:
    """A request's head, its last empty line included. Raises BadMessageError."""
    start, fields = _fields(head)
    match = _REQUEST.fullmatch(start)
    if match is None:
        raise BadMessageError("the first line is no request of HTTP/1.0 or 1.1")
    if match[1] == b"CONNECT":
        raise BadMessageError("the tap stands before one upstream; it opens no connections to others", 405)
    return Request(minor=int(match[3]), fields=fields, method=match[1], target=match[2])


def read_response(head: bytes) -> Response:
    """A response's head, its last empty line included. Raises BadMessageError."""
    start, fields = _fields(head)
    match = _STATUS.fullmatch(start)
    if match is None:
        raise BadMessageError("the first line is no response of HTTP/1.0 or 1.1", 502)
    return Response(minor=int(match[1]), fields=fields, status=int(match[2]), start=start)


def _fields(head: bytes) -> tuple[bytes, tuple[Field, ...]]:
    start, *lines = head[:-4].split(b"\r\n")
    if len(lines) > MAX_FIELDS:
        raise BadMessageError(f"the head has more than {MAX_FIELDS} fields", 431)
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadMessageError("a line of the head is no field; names have no blanks, values no control characters")
        fields.append(Field(match[1].lower(), match[2].rstrip(b" \t"), line))
    return start, tuple(fields)


class Body(Protocol):
    """Follows a body through the bytes of a connection."""

    done: bool
    """Whether all of it was seen."""
    by_close: bool
    """Whether it ends with its connection."""

    def take(self, data: bytes, at: int) -> tuple[int, bytes]:
        """What of `data` from `at` on is this body's: where that ends, and what it carries, without framing.

        Raises BadMessageError.
        """


class Sized:
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


class Chunked:
    """A body in chunks, with its trailers."""

    by_close = False

    def __init__(self) -> None:
        self.done = False
        self._left = 0  # bytes of the chunk that is under way
        self._after_data = False
        self._trailers = -1  # bytes of them so far; -1 before the last chunk
        self._line = b""  # so far

    def take(self, data: bytes, at: int) -> tuple[int, bytes]:
        pieces = []
        while at < len(data) and not self.done:
            if self._left:
                end = min(at + self._left, len(data))
                pieces.append(data[at:end])
                self._left -= end - at
                self._after_data = True
            else:
                newline = data.find(b"\n", at, at + MAX_CHUNK_LINE)
                end = newline + 1 or min(len(data), at + MAX_CHUNK_LINE)
                self._line += data[at:end]
                if newline >= 0:
                    line, self._line = self._line, b""
                    self._on_line(line)
                elif len(self._line) >= MAX_CHUNK_LINE:
                    raise BadMessageError(f"a line between chunks is longer than {MAX_CHUNK_LINE} bytes")
            at = end
        return at, pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _on_line(self, line: bytes) -> None:
        if self._trailers >= 0:
            self._trailers += len(line)
            if self._trailers > MAX_TRAILERS or not (line == b"\r\n" or _FIELD.fullmatch(line.removesuffix(b"\r\n"))):
                raise BadMessageError(f"the trailers are no fields, or more than {MAX_TRAILERS} bytes")
            self.done = line == b"\r\n"
        elif self._after_data:
            if line != b"\r\n":
                raise BadMessageError("a chunk is longer than it says")
            self._after_data = False
        else:
            match = _CHUNK.fullmatch(line)
            if match is None:
                raise BadMessageError("a chunk does not begin with its size")
            self._left = int(match[1], 16)
            if not self._left:
                self._trailers = 0


def body_of_request(head: Request) -> Body:
    """Where the request's body ends. Raises BadMessageError where that can be read in two ways."""
    coding, length = head.members(b"transfer-encoding"), _length(head)
    if coding and (length is not None or head.minor == 0):
        raise BadMessageError("Transfer-Encoding beside Content-Length, or in HTTP/1.0: where the body ends is unclear")
    if coding and coding != [b"chunked"]:
        raise BadMessageError("the only Transfer-Encoding of a request that the tap passes on is chunked", 501)
    return Chunked() if coding else Sized(length or 0)


def body_of_response(head: Response, method: bytes) -> Body:
    """Where the response's body ends. Raises BadMessageError where that can be read in two ways."""
    if method == b"HEAD" or head.status in (204, 304):
        return Sized(0)
    coding, length = head.members(b"transfer-encoding"), _length(head)
    if coding and length is not None:
        raise BadMessageError("Transfer-Encoding beside Content-Length: where the body ends is unclear", 502)
    if coding and coding[-1] == b"chunked":
        return Chunked()
    return UntilClose() if coding or length is None else Sized(length)


def _length(head: Head) -> int | None:
    lengths = set(head.values(b"content-length"))
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(next(iter(lengths))):
        raise BadMessageError("Content-Length is no one number")
    return int(lengths.pop())

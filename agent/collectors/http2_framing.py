"""The frames of an HTTP/2 connection: their heads, and of their content the header blocks alone.

    framing = Framing(saw, PREFACE)   # saw: called for each frame's head; it may raise FramingError
    framing.feed(data)                # returns how much was followed; raises FramingError: end the connection then

A server's library keeps a header block until it is whole, whatever its length, and works for each frame of any kind. So
whoever passes bytes to such a library bounds both before. gRPC's ends for good at a path that is not UTF-8, so calls'
paths are read before (`CallHeads`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hpack import Decoder, HPACKError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

DATA, HEADERS, RST_STREAM, CONTINUATION = 0, 1, 3, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32
CANCEL, REFUSED_STREAM = 8, 7

MAX_HEADER_BYTES = 16 * 1024
"""Of one header block: HEADERS with all its CONTINUATION frames, as packed by the client. It is read in 6 ms of CPU
time at most."""

MAX_LIST_BYTES = 32 * 1024
"""Of the headers of one block, unpacked, as HTTP/2 counts them."""

USUAL_BLOCK_BYTES, BYTES_PER_FRAME = 512, 16
"""What of a header block is beyond the first number costs a client one frame of its budget for so many bytes: two of
the largest blocks a second."""

MAX_CONTINUATIONS = 16
MAX_OTHER_BYTES = 16 * 1024
"""Of a frame that is neither DATA nor part of a header block."""

FEW_BYTES = 1024
"""A DATA frame with less costs the library more than it moves. Clients of gRPC fill frames of 16 KB, and pad none."""

FRAMES_PER_SECOND, FRAMES_AT_ONCE = 2_000.0, 1_000.0
"""Frames of a client that carry no request: all but HEADERS, CONTINUATION, and DATA of a call under way
that is large or ends it, without padding. At once are so few that 24 connections, the share of one address, take 50 ms
of the loop with them."""

_HEAD = 9


class FramingError(Exception):
    """The peer does what no client does; the message says what."""


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """The head of one frame. length: bytes that follow it."""

    length: int
    kind: int
    flags: int
    stream: int


class Framing:
    """One direction of a connection."""

    def __init__(
        self,
        saw: Callable[[FrameHead], None],
        preface: bytes = b"",
        read: Callable[[bytes], bool] | None = None,
        content: Callable[[FrameHead, bytes, bool], None] | None = None,
    ) -> None:
        """read: called with each whole header block, returns whether to go on; it may raise FramingError. content:
        called with each piece of DATA frames, and whether it is the last one of its frame."""
        self._saw = saw
        self._read = read
        self._take = content
        self._content: bytearray | None = None  # of the frame with headers that is under way
        self._fragments = bytearray()  # of the header block that is under way
        self._frame = FrameHead(0, 0, 0, 0)
        self._preface = preface
        self._head = b""  # of a frame whose head is incomplete
        self._left = 0  # bytes of the current frame that are still to come
        self._block = 0  # the stream whose header block is incomplete
        self._block_bytes = self._block_frames = 0
        self._goes_on = True

    @property
    def is_between(self) -> bool:
        """Whether another frame may be put in here."""
        return not (self._preface or self._head or self._left or self._block)

    def feed(self, data: bytes) -> int:
        """Follow the next bytes, up to a header block after which `read` does not go on. Returns how many were
        followed; the others are to come again. Raises FramingError."""
        at = self._skip_preface(data) if self._preface else 0
        self._goes_on = True
        while at < len(data) and self._goes_on:
            if self._left:
                taken = min(self._left, len(data) - at)
                self._follow(data[at : at + taken])
                at += taken
                continue
            head = self._head + data[at : at + _HEAD - len(self._head)]
            at += len(head) - len(self._head)
            if len(head) < _HEAD:
                self._head = head
                return at
            self._head = b""
            stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
            frame = FrameHead(int.from_bytes(head[:3]), head[3], head[4], stream)
            self._frame, self._left = frame, frame.length
            self._follow_header_block(frame)
            self._saw(frame)
            if self._read is not None and frame.kind in (HEADERS, CONTINUATION):
                self._content = bytearray()
            if not self._left:
                self._follow(b"")
        return at

    def _follow(self, piece: bytes) -> None:
        """The next bytes of the current frame's content, or none of an empty frame."""
        self._left -= len(piece)
        if self._take is not None and self._frame.kind == DATA:
            self._take(self._frame, piece, not self._left)
        if self._content is not None:
            self._content += piece
            if not self._left:
                self._end_fragment()

    def _end_fragment(self) -> None:
        """A frame is whole: of those with headers its fragment joins the block, which is read with the last one."""
        if self._content is None or self._read is None:
            return
        content, self._content = self._content, None
        if self._frame.kind == HEADERS:
            content = _fragment(content, self._frame.flags)
        self._fragments += content
        if self._frame.flags & END_HEADERS:
            block, self._fragments = bytes(self._fragments), bytearray()
            self._goes_on = self._read(block)

    def _skip_preface(self, data: bytes) -> int:
        size = min(len(self._preface), len(data))
        if data[:size] != self._preface[:size]:
            raise FramingError("it does not begin with the HTTP/2 preface")
        self._preface = self._preface[size:]
        return size

    def _follow_header_block(self, frame: FrameHead) -> None:
        if (frame.kind == CONTINUATION) != bool(self._block) or (self._block and frame.stream != self._block):
            raise FramingError(
                "another frame interrupts a header block, or a continuation has no header block before it"
            )
        if frame.kind not in (HEADERS, CONTINUATION):
            if frame.kind != DATA and frame.length > MAX_OTHER_BYTES:
                raise FramingError(f"a control frame has {frame.length} bytes, more than {MAX_OTHER_BYTES}")
            return
        if frame.kind == HEADERS:
            self._block_bytes = self._block_frames = 0
        else:
            self._block_frames += 1
        self._block_bytes += frame.length
        if self._block_bytes > MAX_HEADER_BYTES or self._block_frames > MAX_CONTINUATIONS:
            raise FramingError(
                f"a header block is longer than {MAX_HEADER_BYTES} bytes or {MAX_CONTINUATIONS} CONTINUATION frames"
            )
        self._block = 0 if frame.flags & END_HEADERS else frame.stream


def _fragment(content: bytearray, flags: int) -> bytearray:
    """The header fragment of a HEADERS frame, without padding and priority (RFC 9113, 6.2). Raises FramingError."""
    start = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
    padding = content[0] if flags & PADDED and content else 0
    if start + padding > len(content):
        raise FramingError("a HEADERS frame is shorter than its padding")
    return content[start : len(content) - padding]


class CallHeads:
    """The heads of one client's calls, which share a table of headers (RFC 7541)."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_LIST_BYTES)

    def check(self, block: bytes) -> None:
        """Raises FramingError where a head cannot be read, or its path is not printable ASCII."""
        try:
            headers = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise FramingError(f"a header block cannot be unpacked ({type(error).__name__})") from error
        if any(name == b":path" and not _is_printable(value) for name, value in headers):
            raise FramingError("the path of a call has other characters than printable ASCII")


def _is_printable(value: bytes) -> bool:
    return value.isascii() and value.decode("ascii").isprintable()


class FrameBudget:
    """How many frames without a request a client may send. Times in seconds of any clock that does not go back."""

    def __init__(self, now: float) -> None:
        self._left, self._at = FRAMES_AT_ONCE, now

    def spend(self, now: float, frames: float = 1.0) -> None:
        """Take off frames. Raises FramingError where there were too many."""
        self._left = min(self._left + (now - self._at) * FRAMES_PER_SECOND, FRAMES_AT_ONCE) - frames
        self._at = now
        if self._left < 0:
            raise FramingError(f"more than {FRAMES_PER_SECOND:.0f} frames per second carry no request")


def is_idle(frame: FrameHead, is_expected: bool) -> bool:
    """Whether a frame of a client carries no request. is_expected: its stream has a call whose request is not whole."""
    if frame.kind == DATA:
        is_small = frame.length < FEW_BYTES and not frame.flags & END_STREAM
        return is_small or bool(frame.flags & PADDED) or not is_expected
    return frame.kind not in (HEADERS, CONTINUATION)


def reset(stream: int, code: int) -> bytes:
    """A frame that ends a stream."""
    return (4).to_bytes(3) + bytes((RST_STREAM, 0)) + stream.to_bytes(4) + code.to_bytes(4)


def cost_of(block: bytes) -> float:
    """What a header block costs of a `FrameBudget`."""
    return max(len(block) - USUAL_BLOCK_BYTES, 0) / BYTES_PER_FRAME

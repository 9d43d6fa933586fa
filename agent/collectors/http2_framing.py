"""The frames of an HTTP/2 connection: their heads, and of their content the header blocks only.

    framing = Framing(saw, PREFACE, whole)   # saw: called for each frame's head, whole: for each header block that is
    framing.feed(data)                       # complete. Both may raise FramingError; the connection is to be ended then

A server's library keeps a header block until it is whole, whatever its length, and works for each frame of any kind. So
whoever passes bytes to such a library bounds both before.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

DATA, HEADERS, RST_STREAM, CONTINUATION = 0, 1, 3, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32
CANCEL, REFUSED_STREAM = 8, 7

MAX_HEADER_BYTES = 16 * 1024
"""Of one header block: HEADERS with all its CONTINUATION frames, as packed by the client."""

MAX_CONTINUATIONS = 16
MAX_OTHER_BYTES = 16 * 1024
"""Of a frame that is neither DATA nor part of a header block."""

FEW_BYTES = 256
"""A DATA frame with less costs the library more than it moves."""

FRAMES_PER_SECOND, FRAMES_AT_ONCE = 2_000.0, 1_000.0
"""Frames of a client that carry no request: all but HEADERS, CONTINUATION, and DATA that is large or ends a stream. At
once are so few that 24 connections, the share of one address, take 50 ms of the loop with them."""

FREE_BLOCK_BYTES, BLOCK_BYTES_PER_FRAME = 512, 16
"""Of a header block: what costs nothing, and what counts as one frame beyond it."""

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
        self, saw: Callable[[FrameHead], None], preface: bytes = b"", whole: Callable[[bytes], None] | None = None
    ) -> None:
        self._saw = saw
        self._whole = whole
        self._frame = FrameHead(0, 0, 0, 0)  # the current one
        self._content = b""  # of the current frame, where it is part of a header block
        self._fragments = b""  # of the frames of the header block before the current one
        self._preface = preface
        self._head = b""  # of a frame whose head is incomplete
        self._left = 0  # bytes of the current frame that are still to come
        self._block = 0  # the stream whose header block is incomplete
        self._block_bytes = self._block_frames = 0

    @property
    def is_between(self) -> bool:
        """Whether another frame may be put in here."""
        return not (self._preface or self._head or self._left or self._block)

    def feed(self, data: bytes) -> None:
        """Follow the next bytes. Raises FramingError."""
        at = self._skip_preface(data) if self._preface else 0
        while at < len(data):
            if self._left:
                taken = min(self._left, len(data) - at)
                self._keep(data[at : at + taken])
                self._left -= taken
                at += taken
                if not self._left:
                    self._end_frame()
                continue
            head = self._head + data[at : at + _HEAD - len(self._head)]
            at += len(head) - len(self._head)
            if len(head) < _HEAD:
                self._head = head
                return
            self._head = b""
            stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
            frame = FrameHead(int.from_bytes(head[:3]), head[3], head[4], stream)
            self._left, self._frame = frame.length, frame
            self._follow_header_block(frame)
            self._saw(frame)
            if not self._left:
                self._end_frame()

    def _keep(self, content: bytes) -> None:
        if self._whole is not None and self._frame.kind in (HEADERS, CONTINUATION):
            self._content += content

    def _end_frame(self) -> None:
        """The current frame is complete, and with it perhaps a header block."""
        frame, content, self._content = self._frame, self._content, b""
        if self._whole is None or frame.kind not in (HEADERS, CONTINUATION):
            return
        self._fragments += _fragment(frame, content) if frame.kind == HEADERS else content
        if frame.flags & END_HEADERS:
            block, self._fragments = self._fragments, b""
            self._whole(block)

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


def _fragment(frame: FrameHead, content: bytes) -> bytes:
    """What a HEADERS frame holds of the header block. Raises FramingError."""
    begin = (1 if frame.flags & PADDED else 0) + (5 if frame.flags & PRIORITY else 0)
    end = len(content) - (content[0] if frame.flags & PADDED and content else 0)
    if begin > end:
        raise FramingError("a frame has more padding than content")
    return content[begin:end]


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


def block_cost(block: bytes) -> float:
    """How many frames without a request a header block counts as: to unpack a long one takes as long as many frames."""
    return max(0, len(block) - FREE_BLOCK_BYTES) / BLOCK_BYTES_PER_FRAME


def is_idle(frame: FrameHead) -> bool:
    """Whether a frame of a client carries no request."""
    if frame.kind == DATA:
        return frame.length < FEW_BYTES and not frame.flags & END_STREAM
    return frame.kind not in (HEADERS, CONTINUATION)


def reset(stream: int, code: int) -> bytes:
    """A frame that ends a stream."""
    return (4).to_bytes(3) + bytes((RST_STREAM, 0)) + stream.to_bytes(4) + code.to_bytes(4)

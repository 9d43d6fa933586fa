"""Header blocks of an HTTP/2 client, unpacked (RFC 7541) and checked before a gRPC library reads them.

    blocks = HeaderBlocks()      # one for each connection: a block refers to those before it
    blocks.check(block)          # raises FramingError; the connection is to be ended then

The library's server decodes the path of each call in the task that accepts calls, so a path that is not UTF-8 ends the
server for everybody. It also writes a log line for each value that is not text, and for each long path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kvitals.agent.collectors.http2_framing import FramingError

MAX_TABLE_BYTES = 4096
"""Of the headers that a client may refer to, the default of HTTP/2. The library does not offer more."""

MAX_UNPACKED_BYTES = 64 * 1024
MAX_PATH_BYTES = 256
"""Those that are served have 70 bytes at most."""

_ENTRY_BYTES = 32
"""What RFC 7541 adds for each entry of a table."""

_PATH = b":path"
_STATIC: tuple[tuple[bytes, bytes], ...] = tuple(
    (name.encode(), value.encode())
    for name, _, value in (
        line.partition("=")
        for line in """:authority
:method=GET
:method=POST
:path=/
:path=/index.html
:scheme=http
:scheme=https
:status=200
:status=204
:status=206
:status=304
:status=400
:status=404
:status=500
accept-charset
accept-encoding=gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate""".splitlines()
    )
)
"""RFC 7541, appendix A."""

_CODE_BITS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABABABBBACCBBBABCBAABCC"
    "CCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRSVVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSV"
    "WVVWWWWWXWWWWWVZ"
)
"""RFC 7541, appendix B: the length of each byte's code, then of the end's, where A stands for 5 bits. The codes
themselves follow: those of one length are in the order of the bytes, after all shorter ones."""

_END = 256


class HeaderBlocks:
    """The header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table: deque[tuple[bytes, bytes]] = deque()  # the newest first
        self._table_bytes, self._most_bytes = 0, MAX_TABLE_BYTES

    def check(self, block: bytes) -> None:
        """Follow a block. Raises FramingError where it is broken, or holds what the library must not read."""
        left = MAX_UNPACKED_BYTES
        for name, value in self._fields(block):
            left -= len(name) + len(value) + _ENTRY_BYTES
            if left < 0:
                raise FramingError(f"a header block has more than {MAX_UNPACKED_BYTES} bytes unpacked")
            if name == _PATH and len(value) > MAX_PATH_BYTES:
                raise FramingError(f"a path has {len(value)} bytes, more than {MAX_PATH_BYTES}")
            try:
                name.decode()
                if not name.endswith(b"-bin"):
                    value.decode()
            except UnicodeDecodeError as error:
                raise FramingError("a header or path is not UTF-8") from error

    def _fields(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Names and values. Raises FramingError."""
        at = 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _number(block, at, 0x7F)
                    yield self._entry(index)
                elif first & 0xE0 == 0x20:
                    size, at = _number(block, at, 0x1F)
                    self._resize(size)
                else:
                    index, at = _number(block, at, 0x3F if first & 0x40 else 0x0F)
                    name, at = (self._entry(index)[0], at) if index else _text(block, at)
                    value, at = _text(block, at)
                    if first & 0x40:
                        self._add(name, value)
                    yield name, value
        except IndexError as error:
            raise FramingError("a header block is cut off, or refers to a header that is not there") from error

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index == 0:
            raise FramingError("a header block refers to no header")
        return _STATIC[index - 1] if index <= len(_STATIC) else self._table[index - len(_STATIC) - 1]

    def _resize(self, size: int) -> None:
        if size > MAX_TABLE_BYTES:
            raise FramingError(f"a table of headers has {size} bytes, more than {MAX_TABLE_BYTES}")
        self._most_bytes = size
        self._shrink()

    def _add(self, name: bytes, value: bytes) -> None:
        self._table.appendleft((name, value))
        self._table_bytes += len(name) + len(value) + _ENTRY_BYTES
        self._shrink()

    def _shrink(self) -> None:
        while self._table_bytes > self._most_bytes:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_BYTES


def _number(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """The number whose first bits are those of `prefix`, and the position after it. Raises IndexError, FramingError."""
    number = block[at] & prefix
    at += 1
    if number < prefix:
        return number, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise FramingError("a number in a header block has more than 28 bits")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """The text, and the position after it. Raises IndexError, FramingError."""
    is_packed = block[at] & 0x80
    size, at = _number(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise IndexError(end)
    text = block[at:end]
    return (_unpacked(text) if is_packed else text), end


_Code = tuple[int, int]
"""The length of a code, or of a code's beginning, and its bits."""
_Step = tuple[int, bytes] | None


def _machine() -> tuple[list[_Step], frozenset[int]]:
    """What four bits do, and the states in which a text may end.

    A state is a beginning of a code; 0 is between two codes. At 16 times a state plus the bits: the next state and the
    bytes that are complete; None where the end's code is, which no text holds.
    """
    states: dict[_Code, int] = {}
    codes: dict[_Code, int] = {}
    code, last = 0, 0
    for symbol in sorted(range(_END + 1), key=lambda each: (_CODE_BITS[each], each)):
        length = ord(_CODE_BITS[symbol]) - ord("A") + 5
        code <<= length - last
        last = length
        codes[length, code] = symbol
        for bits in range(length):
            states.setdefault((bits, code >> (length - bits)), len(states))
        code += 1
    steps = [_step(states, codes, start, bits) for start in states for bits in range(16)]
    return steps, frozenset(states[bits, (1 << bits) - 1] for bits in range(8))


def _step(states: dict[_Code, int], codes: dict[_Code, int], start: _Code, bits: int) -> _Step:
    length, code = start
    complete = b""
    for shift in (3, 2, 1, 0):
        length, code = length + 1, code << 1 | bits >> shift & 1
        symbol = codes.get((length, code))
        if symbol == _END:
            return None
        if symbol is not None:
            complete += bytes((symbol,))
            length = code = 0
    return states[length, code], complete


_STEPS, _ENDS = _machine()


def _unpacked(text: bytes) -> bytes:
    """A text in Huffman's code. Raises FramingError."""
    state, out = 0, bytearray()
    for byte in text:
        for bits in (byte >> 4, byte & 15):
            step = _STEPS[state << 4 | bits]
            if step is None:
                raise FramingError("a header holds the code of the end")
            state = step[0]
            out += step[1]
    if state not in _ENDS:
        raise FramingError("a header ends within a code")
    return bytes(out)

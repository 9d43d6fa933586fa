"""The capture container `NAME.kvcap`: timed records of bytes, packed tightly, readable when damaged.

A file is a header (JSON, so that `head -c 300` shows what it is) and a row of frames:

    file    = MAGIC, u16 major, u16 minor, u32 length, u32 crc of the header, header, frame*
    frame   = u32 kind, u32 packed length, u32 raw length, u32 crc of the packed bytes, u32 crc of these four,
              packed bytes
    CHUNK   = zstd( (u32 length, msgpack [t, sense, target, payload])* )
    END     = u32 number of records: the recording was closed, not cut off

Integers are little-endian. Records keep the order in which they were written. A chunk is independent of the
others and is closed after `CHUNK_SECONDS` of record time or `CHUNK_BYTES`: pages that repeat inside it cost
little more than what changed in them. A frame of another kind is skipped, so a minor version can add some.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import msgspec
import zstandard

from kvitals.series.files import open_regular, sync_directory
from kvitals.series.undecodable import UNDECODABLE

A_RECORDING = "give a file that `kvitals record` wrote (.kvcap)"
"""What to do about a file that cannot be read as a recording."""
MAGIC = b"\x89KVCAP\r\n"
MAJOR, MINOR = 1, 0
CHUNK_SECONDS = 30.0
CHUNK_BYTES = 16 << 20
MAX_RECORD_BYTES = 16 << 20
MAX_HEADER_BYTES = 1 << 20

_LEVEL = 6  # 9 ms for 90 pages of 65 kB, a tenth smaller than level 3
_WINDOW_LOG = 24  # a whole chunk
_CHUNK, _END = 0x4B4E4843, 0x444E4543  # "CHNK", "CEND"
_PREAMBLE = struct.Struct("<HHII")
_FRAME = struct.Struct("<IIIII")
_FRAME_SIZES = struct.Struct("<IIII")
_U32 = struct.Struct("<I")
_U32_MASK = 0xFFFFFFFF


class CaptureError(Exception):
    """A capture that cannot be written, or should not be read. The message says what to do."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one sense received at `t` (seconds since the epoch), after redaction, in wire form."""

    t: float
    sense: str
    target: str
    payload: bytes


class Header(msgspec.Struct, frozen=True):
    """Who made a capture and when (`created`: seconds since the epoch). `meta` is the maker's own."""

    kvitals: str
    created: float
    meta: dict[str, Any] = {}


@dataclass(frozen=True)
class RecordingLimits:
    """The most that a reader takes from a file, in bytes after decompression."""

    chunk: int = 64 << 20
    record: int = MAX_RECORD_BYTES
    total: int = 8 << 30


DamageKind = Literal["unended", "cut", "corrupt", "miscounted", "continued"]
"""No end mark behind whole chunks, cut off inside a chunk, bytes that are wrong, another number of records than the end
mark states, data behind the end mark."""


@dataclass(frozen=True)
class Damage:
    """Why a reader did not read all that a recording had. text: one sentence for a person, without a full stop."""

    kind: DamageKind
    text: str


class CaptureWriter:
    """Writes a new capture. Not thread-safe; closing a chunk compresses it (about 1.5 ms a MB).

    Whole frames are appended and handed to the system at once, so a crash loses the open chunk and no more.
    """

    def __init__(self, path: Path, *, version: str, meta: Mapping[str, Any] | None = None) -> None:
        """Create `path`. `version` is that of kvitals, `meta` anything that JSON can say.

        Raises CaptureError when the file exists, cannot be created, or `meta` is too large or no JSON.
        """
        header = _header(Header(version, time.time(), dict(meta or {})))
        try:
            self._file = path.open("xb", buffering=0)
        except FileExistsError:
            raise CaptureError(f"{path} exists already: choose another name, or remove it first") from None
        except OSError as error:
            raise CaptureError(f"cannot create {path}: {error.strerror}") from error
        self._name = str(path)
        self._size = 0
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_since = 0.0
        self._records = 0
        self._append(header)

    def write(self, record: Record) -> None:
        """Add a record. Raises CaptureError when it is too large, has no time, or cannot be written.

        After a failure to write the file is closed, and holds whole chunks only.
        """
        if not math.isfinite(record.t):
            raise CaptureError(f"a record of collector {record.sense} has an unusable time: {record.t}")
        packed = msgspec.msgpack.encode(record)
        if len(packed) > MAX_RECORD_BYTES:
            raise CaptureError(_too_large(f"a record of {record.sense}", len(packed), MAX_RECORD_BYTES))
        too_large = self._open_bytes + len(packed) > CHUNK_BYTES
        if self._open and (too_large or abs(record.t - self._open_since) >= CHUNK_SECONDS):
            self.flush()
        if not self._open:
            self._open_since = record.t
        self._open += [_U32.pack(len(packed)), packed]
        self._open_bytes += _U32.size + len(packed)
        self._records += 1

    def flush(self) -> None:
        """Close the open chunk: what was written so far survives a crash of this process."""
        if not self._open:
            return
        raw = b"".join(self._open)
        self._open, self._open_bytes = [], 0
        self._append(_frame(_CHUNK, _compress(raw), len(raw)))

    def close(self) -> None:
        """Flush, mark the end and sync to disk. May be called twice."""
        if self._file.closed:
            return
        try:
            self.flush()
            self._append(_frame(_END, _U32.pack(self._records & _U32_MASK), _U32.size))
            os.fsync(self._file.fileno())
            sync_directory(Path(self._name).parent)
        except OSError as error:
            raise CaptureError(f"cannot save {self._name}: {error.strerror}") from error
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        """Write all of `data`, or none of it and close the file."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except (OSError, ValueError) as error:
            self._give_up()
            reason = error.strerror if isinstance(error, OSError) else "it was closed"
            raise CaptureError(f"cannot write {self._name}: {reason}; its earlier content stays readable") from error
        self._size += len(data)

    def _give_up(self) -> None:
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            self._file.close()


class CaptureReader:
    """Reads a capture once, from front to back, holding one chunk at a time.

    with CaptureReader.open(path) as capture:
        for record in capture: ...
        if capture.damage: print(capture.damage.text)

    Damage ends the iteration after what is whole; `damage` then states it, and is None for a clean end.
    Whatever looks like an attack (sizes over the limits) raises CaptureError.
    """

    def __init__(self, stream: BinaryIO, name: str = "the capture", limits: RecordingLimits | None = None) -> None:
        """Read the header. Raises CaptureError for what is no capture or needs a newer kvitals."""
        self._stream = stream
        self._name = name
        self._limits = limits or RecordingLimits()
        self._total = 0
        self._records = 0
        self.damage: Damage | None = None
        self.header = self._read_header()

    @classmethod
    def open(cls, path: Path, limits: RecordingLimits | None = None) -> Self:
        """Raises CaptureError, also when the file cannot be read."""
        try:
            stream = open_regular(path)
        except OSError as error:
            raise CaptureError(f"cannot read {path}: {error.strerror}; {A_RECORDING}") from error
        try:
            return cls(stream, str(path), limits)
        except BaseException:
            stream.close()
            raise

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        """The records that follow. Raises CaptureError when a limit is exceeded."""
        try:
            for raw in self._chunks():
                yield from self._unpack(raw)
        except _DamageError as error:
            self.damage = Damage(error.kind, f"the recording {error}")

    def _read_header(self) -> Header:
        """MAGIC to header JSON."""
        magic = self._read(len(MAGIC))
        if not magic:
            raise CaptureError(f"{self._name} is empty: was `kvitals record` ended before its first cycle?")
        if magic != MAGIC:
            raise CaptureError(f"{self._name} is not a kvitals recording; {A_RECORDING}")
        try:
            major, _minor, length, crc = _PREAMBLE.unpack(self._exactly(_PREAMBLE.size))
            if major > MAJOR:
                raise CaptureError(
                    f"{self._name} has recording format {major}, but this kvitals reads formats up to {MAJOR}: "
                    "upgrade kvitals to read it"
                )
            if major < 1:
                raise _DamageError("corrupt", f"format {major} does not exist")
            if length > MAX_HEADER_BYTES:
                raise CaptureError(_too_large(f"the header of {self._name}", length, MAX_HEADER_BYTES))
            body = self._exactly(length)
            if zlib.crc32(body) != crc:
                raise _DamageError("corrupt", "its checksum does not match")
            return msgspec.json.decode(body, type=Header)
        except (_DamageError, *UNDECODABLE) as error:
            why = "it is cut off" if isinstance(error, _DamageError) and error.kind == "cut" else error
            raise CaptureError(
                f"{self._name} cannot be read: its header is damaged ({why}). Copy the file again from where it was "
                "recorded"
            ) from error

    def _chunks(self) -> Iterator[bytes]:
        """Decompressed chunks up to the end mark. Raises _DamageError, or CaptureError at a limit."""
        while True:
            kind, packed, raw_length = self._read_frame()
            if kind == _END:
                self._check_end(packed)
                return
            if kind == _CHUNK:
                self._total += raw_length
                if self._total > self._limits.total:
                    raise self._refusal("all records", self._total, self._limits.total)
                raw, why = _decompress(packed, raw_length)
                if why:
                    raise self._corrupt(why)
                yield raw

    def _check_end(self, mark: bytes) -> None:
        """Raises _DamageError where the end mark and what was read do not agree."""
        if mark != _U32.pack(self._records & _U32_MASK):
            stated = f"{_U32.unpack(mark)[0]} records" if len(mark) == _U32.size else "no number of records"
            raise _DamageError(
                "miscounted",
                f"has {self._records} records, but its end mark states {stated}: a part is missing or extra",
            )
        if self._read(1):
            raise _DamageError("continued", "continues after its end mark: the rest of the file was not read")

    def _read_frame(self) -> tuple[int, bytes, int]:
        """Kind, packed bytes, raw length."""
        first = self._read(1)
        if not first:
            raise _DamageError(
                "unended",
                "ends without its end mark, as when the recorder is killed: "
                f"up to {CHUNK_SECONDS:.0f} s after its last record may be missing",
            )
        head = first + self._exactly(_FRAME.size - 1)
        kind, packed_length, raw_length, crc, head_crc = _FRAME.unpack(head)
        if zlib.crc32(head[: _FRAME_SIZES.size]) != head_crc:
            raise self._corrupt("the head of a chunk does not match its checksum")
        largest = max(packed_length, raw_length)
        if largest > self._limits.chunk:
            raise self._refusal("a chunk", largest, self._limits.chunk)
        packed = self._exactly(packed_length)
        if zlib.crc32(packed) != crc:
            raise self._corrupt("a chunk does not match its checksum")
        return kind, packed, raw_length

    def _unpack(self, raw: bytes) -> Iterator[Record]:
        view, at = memoryview(raw), 0
        while at < len(raw):
            if at + _U32.size > len(raw):
                raise self._corrupt("a record is cut off inside its chunk")
            (length,) = _U32.unpack_from(raw, at)
            at += _U32.size
            if length > self._limits.record:
                raise self._refusal("a record", length, self._limits.record)
            if at + length > len(raw):
                raise self._corrupt("a record is cut off inside its chunk")
            record = self._record(view[at : at + length])
            at += length
            self._records += 1
            yield record

    def _record(self, packed: memoryview) -> Record:
        try:
            record = _DECODER.decode(packed)
        except UNDECODABLE as error:
            raise self._corrupt(f"a record cannot be decoded: {error}") from error
        if not math.isfinite(record.t):
            raise self._corrupt("a record has no usable time")
        return record

    def _corrupt(self, why: str) -> _DamageError:
        return _DamageError("corrupt", f"is damaged after {self._records} records: {why}; nothing after them was read")

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise _DamageError(
                "cut",
                f"is cut off inside a chunk after {self._records} records, as in an incomplete copy: "
                "what follows them is missing",
            )
        return data

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            raise CaptureError(f"cannot read {self._name}: {error.strerror}") from error

    def _refusal(self, what: str, size: int, limit: int) -> CaptureError:
        return CaptureError(f"{_too_large(f'{what} of {self._name}', size, limit)}; do not trust this file")


class _DamageError(Exception):
    """What is wrong with the file from here on."""

    def __init__(self, kind: DamageKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _too_large(what: str, size: int, limit: int) -> str:
    return f"{what} has {size} bytes, but at most {limit} are allowed"


def _header(header: Header) -> bytes:
    try:
        body = msgspec.json.encode(header)
    except (TypeError, ValueError, *UNDECODABLE) as error:
        raise CaptureError(f"the capture's meta cannot be written as JSON: {error}") from error
    if len(body) > MAX_HEADER_BYTES:
        raise CaptureError(_too_large("the capture's meta", len(body), MAX_HEADER_BYTES))
    return MAGIC + _PREAMBLE.pack(MAJOR, MINOR, len(body), zlib.crc32(body)) + body


def _frame(kind: int, packed: bytes, raw_length: int) -> bytes:
    head = _FRAME_SIZES.pack(kind, len(packed), raw_length, zlib.crc32(packed))
    return head + _U32.pack(zlib.crc32(head)) + packed


def _compress(raw: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(raw), window_log=_WINDOW_LOG, write_content_size=False
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(raw)


def _decompress(packed: bytes, raw_length: int) -> tuple[bytes, str]:
    """A chunk, or why there is none. Never more than `raw_length` bytes, whatever the zstd frame claims."""
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << (_WINDOW_LOG + 1))
        with decompressor.stream_reader(packed) as stream:
            raw = stream.read(raw_length + 1)
    except zstandard.ZstdError as error:
        return b"", f"a chunk cannot be decompressed: {error}"
    return (raw, "") if len(raw) == raw_length else (b"", "a chunk does not have its stated size")


_DECODER = msgspec.msgpack.Decoder(Record)

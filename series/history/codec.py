"""Chunks: many samples of a few series as few bytes, exactly.

A chunk is float64[T, S], `STALE` where there is no sample. Each column is written as what it is:

    constant   its one value
    whole      whole numbers: the first one, then zigzag differences in 1, 2, 4 or 8 bytes
    real       the bits, each XORed with those before

Numbers of one width stand in byte planes, all first bytes before all second ones, and zstd, with its checksum, does
the rest. Buckets of a histogram count what the buckets below them count, so where it helps a column's differences are
written as what they have beyond those of the column on its left (`_NEIGHBOURS`).

Every bit comes back: NaN, infinities, -0 and stale markers included.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import zstandard

from kvitals.series.types import STALE, Bools, Floats, is_stale

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_CELLS = 1 << 24
"""Of one chunk. What says that it has more is damaged."""

_LEVEL = 9  # a tenth smaller than level 3, and chunks are written once an hour
_CONSTANT, _REAL = 0, 16  # any other kind is a width in bytes
_WIDTHS = (1, 2, 4, 8)
_KINDS = (_CONSTANT, *_WIDTHS, _REAL)
_GAPS = 1 << 7  # beside the kind: the column has cells without a sample
_NEIGHBOURS = 1  # flag of a chunk
_EXACT = float(1 << 53)
_HEADER = struct.Struct("<BII")


class DamagedError(Exception):
    """Bytes that are not what was written."""


def encode(values: Floats) -> bytes:
    """float64[T, S] as bytes; T and S are at least 1."""
    rows, columns = values.shape
    stale = is_stale(values)
    gaps = stale.any(axis=0)
    filled = _filled(values, stale) if gaps.any() else np.ascontiguousarray(values)
    bits: Ints = filled.view(np.int64)
    constant = (bits == bits[0]).all(axis=0)
    whole, numbers = _whole(filled)
    kinds = np.full(columns, _REAL, dtype=np.uint8)
    kinds[constant] = _CONSTANT
    counted = np.flatnonzero(whole & ~constant)
    steps = np.diff(numbers[:, counted], axis=0)
    beyond = _beyond_neighbours(steps)
    flags = _NEIGHBOURS if np.count_nonzero(beyond) < np.count_nonzero(steps) else 0
    zigzag = _zigzag(beyond if flags else steps)
    kinds[counted] = _widths(zigzag)
    real = kinds == _REAL
    firsts = np.where(real | constant, bits[0], numbers[0])
    codes = np.where(gaps, kinds | _GAPS, kinds).astype(np.uint8)
    parts = [
        _HEADER.pack(flags, rows, columns),
        codes.tobytes(),
        _planes(firsts.view(np.uint64)[:, None], 8),
        np.packbits(stale[:, gaps].T, axis=1).tobytes(),
    ]
    parts += [_planes(zigzag[:, kinds[counted] == width].T, width) for width in _WIDTHS]
    exact = np.ascontiguousarray(bits[:, real]).view(np.uint64)
    parts.append(_planes((exact[1:] ^ exact[:-1]).T, 8))
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(b"".join(parts))


def decode(data: bytes) -> Floats:
    """float64[T, S] again. Raises DamagedError."""
    cursor = _Cursor(decompress(data, 9 * MAX_CELLS))
    flags, rows, columns = _HEADER.unpack(cursor.take(_HEADER.size))
    if not 0 < rows * columns <= MAX_CELLS:
        raise DamagedError(f"a chunk of {rows} rows and {columns} columns")
    codes = np.frombuffer(cursor.take(columns), np.uint8)
    gaps = codes & _GAPS > 0
    kinds = codes & np.uint8(_GAPS - 1)
    if not np.isin(kinds, _KINDS).all():  # of what is not read there would be whatever the memory held before
        raise DamagedError("a column of an unknown kind")
    real = kinds == _REAL
    firsts = _from_planes(cursor, columns, 1, 8)[:, 0]
    mask = _mask(cursor, rows, int(gaps.sum()))
    bits = np.empty((rows, columns), dtype=np.uint64)
    bits[:] = firsts
    counted = np.flatnonzero(~real & (kinds != _CONSTANT))
    steps = np.empty((rows - 1, len(counted)), dtype=np.int64)
    for width in _WIDTHS:
        mine = kinds[counted] == width
        steps[:, mine] = _unzigzag(_from_planes(cursor, int(mine.sum()), rows - 1, width)).T
    if flags & _NEIGHBOURS:
        steps = np.cumsum(steps, axis=1)
    numbers = np.vstack([firsts[counted].view(np.int64)[None, :], steps]).cumsum(axis=0)
    bits[:, counted] = numbers.astype(np.float64).view(np.uint64)
    exact = _from_planes(cursor, int(real.sum()), rows - 1, 8).T
    bits[1:, real] = exact
    bits[:, real] = np.bitwise_xor.accumulate(bits[:, real], axis=0)
    cursor.end()
    values: Floats = bits.view(np.float64)
    if gaps.any():
        some = values[:, gaps]
        some[mask] = STALE
        values[:, gaps] = some
    return values


def encode_times(times: Ints) -> bytes:
    """Increasing milliseconds as bytes."""
    steps = np.diff(times, prepend=np.int64(0))
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(
        _planes(_zigzag(np.diff(steps, prepend=np.int64(0)))[None, :], 8)
    )


def decode_times(data: bytes, rows: int) -> Ints:
    """The times again. Raises DamagedError."""
    if not 0 < rows <= MAX_CELLS:
        raise DamagedError(f"an axis of {rows} rows")
    cursor = _Cursor(decompress(data, 8 * rows))
    found: Ints = _unzigzag(_from_planes(cursor, 1, rows, 8))[0].cumsum().cumsum()
    cursor.end()
    return found


def compress(data: bytes, level: int = _LEVEL) -> bytes:
    """Any bytes, smaller."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(data)


def decompress(data: bytes, most: int) -> bytes:
    """The bytes that were packed, at most so many. Raises DamagedError."""
    if not isinstance(data, bytes):  # a damaged row may have anything there
        raise DamagedError("no bytes where there were some")
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > most:
            raise DamagedError(f"{size} bytes where {most} can be")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=most)
    except zstandard.ZstdError as error:
        raise DamagedError(str(error)) from error


def planes(values: npt.NDArray[np.generic]) -> bytes:
    """Numbers of any type as byte planes."""
    flat = np.ascontiguousarray(values)
    return flat.view(np.uint8).reshape(flat.size, flat.itemsize).T.tobytes()


def from_planes(data: bytes, kind: type[np.generic], count: int) -> npt.NDArray[np.generic]:
    """Numbers of byte planes again. Raises DamagedError where there are too few bytes."""
    width = np.dtype(kind).itemsize
    if len(data) != width * count:
        raise DamagedError(f"{len(data)} bytes for {count} numbers")
    turned = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(width, count).T)
    return turned.view(kind).reshape(count)


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise DamagedError("it ends too early")
        self._at += size
        return part

    def end(self) -> None:
        if self._at != len(self._data):
            raise DamagedError("more data follows where it should end")


def _filled(values: Floats, stale: Bools) -> Floats:
    """`values` with the sample before in place of a missing one, the first one where there is none before."""
    rows = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(stale, -1, rows), axis=0)
    first = np.argmax(~stale, axis=0)
    filled = np.take_along_axis(values, np.where(last < 0, first, last), axis=0)
    return np.ascontiguousarray(filled)


def _whole(values: Floats) -> tuple[Bools, Ints]:
    """Which columns hold whole numbers alone, and the numbers of those."""
    with np.errstate(invalid="ignore"):
        numbers = np.where(np.abs(values) <= _EXACT, values, 0.0).astype(np.int64)
    same = numbers.astype(np.float64).view(np.uint64) == values.view(np.uint64)
    return same.all(axis=0), numbers


def _beyond_neighbours(steps: Ints) -> Ints:
    return np.diff(steps, axis=1, prepend=np.int64(0)) if steps.size else steps


def _zigzag(values: Ints) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _unzigzag(values: npt.NDArray[np.uint64]) -> Ints:
    half: npt.NDArray[np.uint64] = values >> np.uint64(1)
    return half.view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)


def _widths(zigzag: npt.NDArray[np.uint64]) -> Bytes:
    """Bytes that the numbers of each column need."""
    largest = zigzag.max(axis=0, initial=0)
    widths = np.full(zigzag.shape[1], 8, dtype=np.uint8)
    for width in (4, 2, 1):
        widths[largest < np.uint64(1 << 8 * width)] = width
    return widths


def _planes(values: npt.NDArray[np.uint64], width: int) -> bytes:
    """uint64[S, T], of which `width` bytes count, as planes of S * T bytes."""
    if not values.size:
        return b""
    flat = np.ascontiguousarray(values).view(np.uint8).reshape(values.size, 8)
    return flat[:, :width].T.tobytes()


def _from_planes(cursor: _Cursor, columns: int, rows: int, width: int) -> npt.NDArray[np.uint64]:
    """uint64[S, T] again."""
    raw = np.frombuffer(cursor.take(width * columns * rows), np.uint8).reshape(width, columns * rows)
    whole = np.zeros((columns * rows, 8), dtype=np.uint8)
    whole[:, :width] = raw.T
    return whole.view(np.uint64).reshape(columns, rows)


def _mask(cursor: _Cursor, rows: int, columns: int) -> Bools:
    width = (rows + 7) // 8
    raw = np.frombuffer(cursor.take(width * columns), np.uint8).reshape(columns, width)
    return np.unpackbits(raw, axis=1, count=rows).astype(bool).T

"""Rows of numbers in the order in which they come: added at the end, dropped at the beginning, never moved.

The rows lie in blocks of an eighth of all. A block is dropped once all of its rows are, so adding a row copies nothing
but the row, and there are two blocks at most beyond the rows that are kept. Rows that somebody selected stay valid.

Not safe for concurrent use; a `RowSpan` may be read in any thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvitals.series.types import STALE, Floats

Columns = npt.NDArray[np.intp]

SHARE = 8
"""Of all rows, what a block holds."""
LEAST_ROWS = 32
BLOCK_BYTES = 4 << 20
"""A block of wide rows holds fewer, at least one."""


@dataclass(frozen=True)
class RowSpan:
    """Some rows that follow each other. pieces: float64[T, columns], with fewer columns than `width` or more."""

    pieces: tuple[Floats, ...]
    width: int

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def take(self, columns: Columns | slice) -> Floats:
        """Some columns below `width`: float64[T, S]; `STALE` where a row does not have the column. May be a view."""
        pieces = self.pieces
        is_whole = bool(pieces) and all(piece.shape[1] >= self.width for piece in pieces)
        if is_whole and len(pieces) == 1:
            return pieces[0][:, columns] if isinstance(columns, slice) else pieces[0].take(columns, axis=1)
        found: Floats = np.empty((len(self), _count(columns)))
        at = 0
        for piece in pieces:
            into = found[at : at + len(piece)]
            if not is_whole:
                _copy_there(piece, columns, into)
            elif isinstance(columns, slice):
                into[:] = piece[:, columns]
            else:
                piece.take(columns, 1, into, "clip")
            at += len(piece)
        return found

    def last(self, columns: Columns | slice) -> Floats:
        """Of the last row, which there must be: float64[S]."""
        found: Floats = RowSpan((self.pieces[-1][-1:],), self.width).take(columns)[0]
        return found


class RowBlocks:
    """The rows that are kept."""

    def __init__(self) -> None:
        self._blocks: deque[Floats] = deque()  # float64[rows, columns]
        self._first, self._end = 0, 0  # in the first block, and in the last
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self._blocks)

    @property
    def last(self) -> Floats:
        """The last row, to be written to. There must be one."""
        row: Floats = self._blocks[-1][self._end - 1]
        return row

    def replace_last(self, row: Floats) -> None:
        """Another row in the last one's place. There must be one."""
        self._end -= 1
        self._rows -= 1
        self.append(row)

    def append(self, row: Floats) -> None:
        """Add a row. It may have other columns than those before: more, or without the last ones."""
        if not self._blocks or self._end == len(self._blocks[-1]) or row.size != self._blocks[-1].shape[1]:
            self._close()
            most = max(1, BLOCK_BYTES // max(row.nbytes, 1))
            self._blocks.append(np.empty((min(max(self._rows // SHARE, LEAST_ROWS), most), row.size)))
            self._end = 0
        self._blocks[-1][self._end] = row
        self._end += 1
        self._rows += 1

    def drop(self, rows: int) -> None:
        """Drop the first rows, at most all."""
        self._rows -= rows
        self._first += rows
        while len(self._blocks) > 1 and self._first >= len(self._blocks[0]):
            self._first -= len(self._blocks.popleft())
        if not self._rows:
            self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._blocks.clear()
        self._first = self._end = self._rows = 0

    def span(self, low: int, high: int, width: int) -> RowSpan:
        """The rows from `low` up to `high`, counted from the first. width: columns that may be asked for."""
        pieces, at, low, high = [], 0, low + self._first, high + self._first
        for block in self._blocks:
            size = len(block)
            if low < at + size and at < high:
                pieces.append(block[max(low - at, 0) : high - at])
            at += size
        return RowSpan(tuple(pieces), width)

    def _close(self) -> None:
        """End the last block where it is, so that all blocks but the last are full."""
        if self._blocks and self._end < len(self._blocks[-1]):
            self._blocks[-1] = self._blocks[-1][: self._end].copy()


def _count(columns: Columns | slice) -> int:
    return columns.stop - columns.start if isinstance(columns, slice) else columns.size


def _copy_there(piece: Floats, columns: Columns | slice, into: Floats) -> None:
    """Likewise, where the rows do not have all of the columns."""
    wanted = np.arange(columns.start, columns.stop) if isinstance(columns, slice) else columns
    there = wanted < piece.shape[1]
    into[:] = STALE
    into[:, there] = piece[:, wanted[there]]

"""Ticks: the rows that came since the last commit, as what changed in them; and what a log of them holds.

    data = zstd( u32 groups, groups * (u32 id, u32 rows, u32 changes), times i64*, changes of each row u32*,
                 series u32*, values f64* )

Times, series and values stand in byte planes. A generation of ticks begins with every value that there is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from series.history.codec import DamagedError, Ints, from_planes, packed, planes, unpacked
from series.types import STALE, Floats

Ids = npt.NDArray[np.uint32]

MAX_TICK_BYTES = 64 << 20
_LEVEL = 3
_COUNT = struct.Struct("<I")
_GROUP = struct.Struct("<III")


@dataclass(frozen=True)
class Changes:
    """Rows of one group: in row `rows[i]`, of those at `times` (milliseconds), `series[i]` has `values[i]` from then
    on; `STALE` where it has none any more."""

    group: int
    times: Ints
    rows: Ints
    series: Ids
    values: Floats


def pack(parts: Sequence[Changes]) -> bytes:
    """A tick as bytes."""
    heads = [_GROUP.pack(p.group, len(p.times), len(p.series)) for p in parts]
    counts = [np.bincount(p.rows, minlength=len(p.times)).astype(np.uint32) for p in parts]
    body = (
        _COUNT.pack(len(parts)),
        *heads,
        planes(np.concatenate([p.times for p in parts])),
        planes(np.concatenate(counts)),
        planes(np.concatenate([np.diff(p.series, prepend=np.uint32(0)) for p in parts])),
        planes(np.concatenate([p.values for p in parts])),
    )
    return packed(b"".join(body), _LEVEL)


def unpack(data: bytes, group: int | None = None) -> list[Changes]:
    """The tick again, of one group or of all. Raises DamagedError."""
    raw = unpacked(data, MAX_TICK_BYTES)
    heads = _heads(raw)
    at = _COUNT.size + _GROUP.size * len(heads)
    rows, changes = sum(h[1] for h in heads), sum(h[2] for h in heads)
    columns: list[npt.NDArray[Any]] = []
    for kind, count in ((np.int64, rows), (np.uint32, rows), (np.uint32, changes), (np.float64, changes)):
        size = np.dtype(kind).itemsize * count
        columns.append(from_planes(raw[at : at + size], kind, count))
        at += size
    if at != len(raw):
        raise DamagedError("a tick that does not add up")
    times, counts, series, values = columns
    return list(_parts(heads, group, times, counts, series, values))


def groups_of(data: bytes) -> set[int]:
    """The groups of which a tick has rows. Raises DamagedError."""
    return {head[0] for head in _heads(unpacked(data, MAX_TICK_BYTES))}


def _heads(raw: bytes) -> list[tuple[int, int, int]]:
    if len(raw) < _COUNT.size:
        raise DamagedError("a tick without a head")
    (groups,) = _COUNT.unpack_from(raw)
    if _COUNT.size + _GROUP.size * groups > len(raw):
        raise DamagedError("a tick without its heads")
    return [_GROUP.unpack_from(raw, _COUNT.size + _GROUP.size * i) for i in range(groups)]


def _parts(
    heads: list[tuple[int, int, int]], group: int | None, times: Ints, counts: Ids, series: Ids, values: Floats
) -> Iterator[Changes]:
    row = change = 0
    for number, rows, changes in heads:
        of_rows, of_changes = slice(row, row + rows), slice(change, change + changes)
        row, change = row + rows, change + changes
        if group not in (None, number):
            continue
        if int(counts[of_rows].sum()) != changes:
            raise DamagedError("a tick that does not add up")
        places = np.repeat(np.arange(rows), counts[of_rows])
        ids = np.cumsum(series[of_changes], dtype=np.uint32)
        yield Changes(number, times[of_rows], places, ids, values[of_changes])


def gathered(ticks: Iterable[bytes], group: int | None = None, wanted: Ids | None = None) -> dict[int, Changes]:
    """The rows of a whole generation by group: of one group or all, of the series in `wanted` (ordered) or all.

    Raises DamagedError.
    """
    found: dict[int, list[Changes]] = {}
    heights: dict[int, int] = {}
    for data in ticks:
        for part in unpack(data, group):
            height = heights.get(part.group, 0)
            rows, series, values = part.rows + height, part.series, part.values
            if wanted is not None:
                kept = _among(series, wanted)
                rows, series, values = rows[kept], series[kept], values[kept]
            heights[part.group] = height + len(part.times)
            found.setdefault(part.group, []).append(Changes(part.group, part.times, rows, series, values))
    return {key: _together(parts) for key, parts in found.items()}


def _among(series: Ids, wanted: Ids) -> npt.NDArray[np.bool_]:
    if not len(wanted):
        return np.zeros(len(series), dtype=bool)
    places = np.minimum(wanted.searchsorted(series), len(wanted) - 1)
    among: npt.NDArray[np.bool_] = wanted[places] == series
    return among


def _together(parts: list[Changes]) -> Changes:
    names = ("times", "rows", "series", "values")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Changes(parts[0].group, **joined)


class Columns:
    """Changes as columns of values."""

    def __init__(self, changes: Changes) -> None:
        order = np.argsort(changes.series, kind="stable")  # the changes of one series stay in order of their rows
        self._height = len(changes.times)
        self._rows, self._values = changes.rows[order], changes.values[order]
        self.series, self._starts = np.unique(changes.series[order], return_index=True)
        """The series that have changes, in order."""
        self._ends = np.append(self._starts[1:], len(order))

    def of(self, series: Ids) -> Floats:
        """float64[rows, series] of some of the series: each value goes on until the next change of it."""
        values = np.full((self._height, len(series)), STALE)
        for column, place in enumerate(self.series.searchsorted(series).tolist()):
            some = slice(self._starts[place], self._ends[place])
            rows = self._rows[some]
            values[rows[0] :, column] = np.repeat(self._values[some], np.diff(rows, append=self._height))
        return values

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


def unpack(data: bytes) -> list[Changes]:
    """The tick again. Raises DamagedError."""
    raw = unpacked(data, MAX_TICK_BYTES)
    if len(raw) < _COUNT.size:
        raise DamagedError("a tick without a head")
    (groups,) = _COUNT.unpack_from(raw)
    at = _COUNT.size + _GROUP.size * groups
    heads = [_GROUP.unpack_from(raw, _COUNT.size + _GROUP.size * i) for i in range(groups)] if at <= len(raw) else []
    if len(heads) != groups:
        raise DamagedError("a tick without its heads")
    rows, changes = sum(h[1] for h in heads), sum(h[2] for h in heads)
    columns: list[npt.NDArray[Any]] = []
    for kind, count in ((np.int64, rows), (np.uint32, rows), (np.uint32, changes), (np.float64, changes)):
        size = np.dtype(kind).itemsize * count
        columns.append(from_planes(raw[at : at + size], kind, count))
        at += size
    if at != len(raw) or int(columns[1].sum()) != changes:
        raise DamagedError("a tick that does not add up")
    times, counts, series, values = columns
    return list(_parts(heads, times, counts, series, values))


def _parts(
    heads: list[tuple[int, int, int]], times: Ints, counts: Ids, series: Ids, values: Floats
) -> Iterator[Changes]:
    row = change = 0
    for group, rows, changes in heads:
        of_rows, of_changes = slice(row, row + rows), slice(change, change + changes)
        if int(counts[of_rows].sum()) != changes:
            raise DamagedError("a tick that does not add up")
        places = np.repeat(np.arange(rows), counts[of_rows])
        ids = np.cumsum(series[of_changes], dtype=np.uint32)
        yield Changes(group, times[of_rows], places, ids, values[of_changes])
        row, change = row + rows, change + changes


def gathered(ticks: Iterable[bytes], group: int | None = None, wanted: Ids | None = None) -> dict[int, Changes]:
    """The rows of a whole generation by group: of one group or all, of the series in `wanted` (ordered) or all.

    Raises DamagedError.
    """
    found: dict[int, list[Changes]] = {}
    heights: dict[int, int] = {}
    for data in ticks:
        for part in unpack(data):
            if group is not None and part.group != group:
                continue
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


def laid_out(changes: Changes, series: Ids) -> Floats:
    """float64[rows, series] of some series, in that order: each value goes on until the next change of it."""
    order = np.argsort(series)
    kept = np.flatnonzero(_among(changes.series, series[order]))
    columns = order[series[order].searchsorted(changes.series[kept])]
    height = len(changes.times)
    source = np.zeros((height + 1, len(series)), dtype=np.intp)  # where each cell's value is, 0: nowhere
    source[changes.rows[kept] + 1, columns] = kept + 1
    np.maximum.accumulate(source, axis=0, out=source)  # changes stand in order of their rows
    values: Floats = np.concatenate([[STALE], changes.values])[source[1:]]
    return values

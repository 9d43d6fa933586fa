"""Thinning: of rows that are a day old one a minute stays, so that what was counted still adds up.

Of each minute the last row with a sample stays, at its own time. So do the rows on both sides of

    a counter's fall    `increase` over what is left counts to the top before a restart, and from there on
    a gap               of the group as a whole, as when a target was down: it begins and ends where it did

What is lost: the course within a minute. A gauge's average and quantiles are those of one sample a minute. So that its
extremes are not lost, a gauge has two more series from there on, `NAME:max1m` and `NAME:min1m`: the largest and the
smallest sample since the row before. A series that is there for less than a minute, in a group that goes on, may be
lost as a whole; so may what a counter counted in its last minute, where it ends alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvitals.series.history import blocks as segments
from kvitals.series.history import sums
from kvitals.series.history.blocks import MAX_COLUMNS, Segment, SeriesChunk
from kvitals.series.history.codec import Ints
from kvitals.series.history.schema import labels_of, transaction
from kvitals.series.history.wal_codec import Ids
from kvitals.series.types import STALE, Bools, Floats, is_stale

STEP_MS = 60_000
SPAN_MS = 12 * 3600 * 1000
"""Of the segments that are made into one."""
MAXIMA, MINIMA = ":max1m", ":min1m"

Kind = Literal["counter", "gauge", "other"]
KindOf = Callable[[str], Kind]
"""What the series of a name are. Counters keep their falls, gauges their extremes, others neither."""

_CELLS = 1 << 18  # that are looked at together


def due(connection: sqlite3.Connection, before: int) -> list[Segment]:
    """The next segments of one group to be thinned together: whole, older than `before` (milliseconds), and so many
    that a smaller one does not come of it than need be. Empty where there are none yet."""
    waiting: dict[int, list[Segment]] = {}
    for one in segments.where(connection, "step_ms = 0 AND end_ms < ? ORDER BY last_generation", (before,)):
        mine = waiting.setdefault(one.group, [])
        if mine and abs(one.end - mine[0].start) > SPAN_MS:
            return mine
        mine.append(one)
    return next((mine for mine in waiting.values() if mine[0].end < before - SPAN_MS), [])


def thin(connection: sqlite3.Connection, found: Sequence[Segment], kind_of: KindOf) -> None:
    """Replace segments of one group by one with fewer rows. Raises sqlite3.Error, DamagedError."""
    with transaction(connection):
        if not all(segments.where(connection, "id = ?", (one.id,)) for one in found):
            return  # somebody pruned meanwhile
        shown = CountedRows.of(connection, found)
        names = {row[0]: row[1] for row in connection.execute("SELECT id, name FROM names")}
        kinds = {number: kind_of(name) for number, name in names.items()}
        if len(shown.times):
            kept = _kept(connection, shown, {number for number, kind in kinds.items() if kind == "counter"})
            gauges = {number: names[number] for number, kind in kinds.items() if kind == "gauge"}
            chunks = _chunks(connection, shown, kept, gauges)
            generations = found[0].first_generation, max(one.last_generation for one in found)
            segments.write(connection, found[0].group, generations, STEP_MS, shown.times[kept], chunks)
        segments.delete(connection, found)


@dataclass(frozen=True)
class CountedRows:
    """The rows of segments of one group that count, in order of time: where the clock was set back, those of a later
    generation hide the others."""

    segments: Sequence[Segment]  # in order of their generations
    rows: Sequence[Ints]  # of each segment, those that count
    times: Ints  # of all of them
    order: Ints  # from the rows one segment after the other to the order of time

    @staticmethod
    def of(connection: sqlite3.Connection, found: Sequence[Segment]) -> CountedRows:
        """Raises DamagedError."""
        axes = [segments.times_of(connection, one) for one in found]
        rows = visible(axes)
        times = np.concatenate([axis[kept] for axis, kept in zip(axes, rows, strict=True)])
        order = np.argsort(times, kind="stable")
        return CountedRows(found, rows, times[order], order)


def visible(axes: Sequence[Ints]) -> list[Ints]:
    """Of axes in order of their generations, the rows that lie in the span of no later one."""
    found = []
    for number, axis in enumerate(axes):
        here = np.ones(len(axis), dtype=bool)
        for later in axes[number + 1 :]:
            if later[0] <= axis[-1] and axis[0] <= later[-1]:
                here &= (axis < later[0]) | (axis > later[-1])
        found.append(np.flatnonzero(here))
    return found


def _matrix(connection: sqlite3.Connection, shown: CountedRows, name: int, series: Ids) -> Floats:
    """float64[rows, series] over all of the segments."""
    blocks = []
    for segment, rows in zip(shown.segments, shown.rows, strict=True):
        block = np.full((len(rows), len(series)), STALE)
        for ids, data in segments.chunks_of(connection, segment, name):
            mine = np.flatnonzero(np.isin(series, ids))
            if len(mine):
                values = segments.values_of(data, segment.rows, len(ids))
                place = np.argsort(ids)
                block[:, mine] = values[rows][:, place[ids[place].searchsorted(series[mine])]]
        blocks.append(block)
    whole: Floats = np.concatenate(blocks)[shown.order]
    return whole


def _groups(connection: sqlite3.Connection, shown: CountedRows) -> Iterator[tuple[int, Ids]]:
    """Names and their series, so many at a time, in the order in which the chunks have them."""
    found: dict[int, dict[int, None]] = {}
    for segment in shown.segments:
        rows = connection.execute(
            f"SELECT name, series, {sums.sound(connection, 'chunks')} FROM chunks"  # noqa: S608
            " WHERE id >= ? AND id < ? ORDER BY id",
            segments.chunk_range(segment),
        )
        for name, series, is_sound in rows:
            found.setdefault(name, {}).update(dict.fromkeys(segments.series_of(series, is_sound).tolist()))
    together = max(1, min(MAX_COLUMNS, _CELLS // len(shown.times)))
    for name, some in found.items():
        series = np.array(list(some), dtype=np.uint32)
        for first in range(0, len(series), together):
            yield name, series[first : first + together]


def _kept(connection: sqlite3.Connection, shown: CountedRows, counters: set[int]) -> Ints:
    """The rows that stay."""
    sampled = np.zeros(len(shown.times), dtype=bool)
    falls = np.zeros(len(shown.times), dtype=bool)
    for name, series in _groups(connection, shown):
        values = _matrix(connection, shown, name, series)
        stale = is_stale(values)
        sampled |= ~stale.all(axis=1)
        if name in counters:
            falls |= _beside_falls(values, stale)
    kept = np.logical_or(_last_of_each(shown.times // STEP_MS, sampled), falls)
    changes = np.flatnonzero(sampled[1:] != sampled[:-1])
    ends = np.array([0, len(kept) - 1])
    return np.union1d(np.flatnonzero(kept), np.concatenate([changes, changes + 1, ends]))


def _last_of_each(minutes: Ints, sampled: Bools) -> Bools:
    """The last row of each minute that has a sample."""
    rows = np.flatnonzero(sampled)
    last = np.zeros(len(minutes), dtype=bool)
    if len(rows):
        ends = np.append(minutes[rows][1:] != minutes[rows][:-1], True)
        last[rows[ends]] = True
    return last


def _beside_falls(values: Floats, stale: Bools) -> Bools:
    """Rows of the last sample before a column falls, and of the one that is lower."""
    rows = np.arange(len(values))[:, None]
    before = np.maximum.accumulate(np.where(stale, -1, rows), axis=0)
    before = np.vstack([np.full((1, values.shape[1]), -1), before[:-1]])
    top = np.take_along_axis(values, np.maximum(before, 0), axis=0)
    with np.errstate(invalid="ignore"):
        falls = ~stale & (before >= 0) & (values < top)
    beside: Bools = np.logical_or.reduce(falls, axis=1)
    beside[before[falls]] = True
    return beside


def _chunks(
    connection: sqlite3.Connection, shown: CountedRows, kept: Ints, gauges: dict[int, str]
) -> Iterator[SeriesChunk]:
    for name, series in _groups(connection, shown):
        values = _matrix(connection, shown, name, series)
        yield from _seen(name, series, values[kept])
        if name in gauges:
            stale = is_stale(values)
            for suffix, empty, extreme in ((MAXIMA, -np.inf, np.fmax), (MINIMA, np.inf, np.fmin)):
                found = _extremes(np.where(stale, empty, values), kept, extreme)
                found[_no_sample(stale, kept)] = STALE
                yield from _seen(*_renamed(connection, gauges[name] + suffix, series), found)


def _extremes(values: Floats, kept: Ints, extreme: np.ufunc) -> Floats:
    """The extreme of the rows up to each kept one, from behind the one before."""
    starts = np.concatenate([[0], kept[:-1] + 1])
    found: Floats = extreme.reduceat(values, starts, axis=0)
    return found


def _no_sample(stale: Bools, kept: Ints) -> Bools:
    starts = np.concatenate([[0], kept[:-1] + 1])
    none: Bools = np.logical_and.reduceat(stale, starts, axis=0)
    return none


def _seen(name: int, series: Ids, values: Floats) -> Iterator[SeriesChunk]:
    """A chunk of the series that have a sample left."""
    seen = ~is_stale(values).all(axis=0)
    if seen.any():
        yield SeriesChunk(name, series[seen], np.ascontiguousarray(values[:, seen]))


def _renamed(connection: sqlite3.Connection, name: str, series: Ids) -> tuple[int, Ids]:
    """The ids of a name and of the same series under it. Raises DamagedError."""
    connection.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (name,))
    (number,) = connection.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
    found = []
    for one in series.tolist():
        labels, last = connection.execute("SELECT labels, last_ms FROM series WHERE id = ?", (one,)).fetchone()
        labels_of(labels)
        key = (number, labels)
        connection.execute("INSERT OR IGNORE INTO series (name, labels, last_ms) VALUES (?, ?, ?)", (*key, last))
        found.append(connection.execute("SELECT id FROM series WHERE name = ? AND labels = ?", key).fetchone()[0])
    return number, np.array(found, dtype=np.uint32)

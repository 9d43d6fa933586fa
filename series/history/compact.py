"""Sealing: a generation that is over goes from the log of ticks into segments, one group at a time."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator

import numpy as np

from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.history import blocks, schema, wal, wal_codec
from kvitals.series.history.blocks import MAX_COLUMNS, SeriesChunk
from kvitals.series.history.codec import DamagedError
from kvitals.series.history.damage import Loss, Losses
from kvitals.series.history.schema import transaction
from kvitals.series.history.wal_codec import ChangeColumns, Ids
from kvitals.series.types import is_stale


class Sealer:
    """Seals what is over."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._generation = 0
        self._left: list[int] = []  # groups of it
        self._met = Losses()  # in it
        self.losses: list[Loss] = []
        """What could not be read and was set aside."""

    def step(self, writing: int) -> bool:
        """Seal one group of the oldest generation before the one that is being written. False: nothing to do.

        Raises sqlite3.Error.
        """
        oldest = wal.oldest_generation(self._connection)
        if oldest is None or oldest >= writing:
            return False
        if oldest != self._generation:
            self._generation, self._left = oldest, self._waiting(oldest)
        if self._left:
            _seal(self._connection, oldest, self._left[0])
            self._left.pop(0)
        if not self._left:
            with transaction(self._connection):
                self.losses += wal.set_aside(self._connection, oldest, self._met)
                wal.forget(self._connection, oldest)
        return True

    def _waiting(self, generation: int) -> list[int]:
        self._met = Losses()
        ticks = wal.read(self._connection, generation, self._met)
        groups = {group for tick in ticks for group in np.unique(tick.groups).tolist()}
        return sorted(
            groups - {group for group, last in wal.last_sealed(self._connection).items() if last >= generation}
        )


def _seal(connection: sqlite3.Connection, generation: int, group: int) -> None:
    changes = wal_codec.gather_rows(wal.read(connection, generation, Losses()), group)[group]
    with transaction(connection):
        chunks = _chunks(connection, wal_codec.ChangeColumns(changes))
        blocks.write(connection, group, (generation, generation), 0, changes.times, chunks)


def _chunks(connection: sqlite3.Connection, columns: ChangeColumns) -> Iterator[SeriesChunk]:
    """A name's series side by side, the buckets of one histogram in order, as many as go into a chunk."""
    for name, series in _by_name(connection, columns.series).items():
        for first in range(0, len(series), MAX_COLUMNS):
            some = series[first : first + MAX_COLUMNS]
            values = columns.of(some)
            seen = ~is_stale(values).all(axis=0)
            if seen.any():
                yield SeriesChunk(name, some[seen], np.ascontiguousarray(values[:, seen]))


def _by_name(connection: sqlite3.Connection, series: Ids) -> dict[int, Ids]:
    """Ids by name, in the order in which they compress best."""
    found: dict[int, list[tuple[tuple[str, float], int]]] = {}
    for number in series.tolist():
        row = connection.execute("SELECT name, labels FROM series WHERE id = ?", (number,)).fetchone()
        if row is not None:
            found.setdefault(row[0], []).append((_place(row[1]), number))
    return {name: np.array([n for _, n in sorted(some)], dtype=np.uint32) for name, some in sorted(found.items())}


def _place(text: str) -> tuple[str, float]:
    """By what the series of a name are sorted. Values stay where the labels are damaged."""
    try:
        labels = schema.labels_of(text)
    except DamagedError:
        return text, math.inf
    bound = bucket_bound(labels.pop("le", ""))
    return json.dumps(labels), math.inf if bound is None else bound

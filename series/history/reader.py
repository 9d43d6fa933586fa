"""History read as a `SeriesSource`, while somebody writes it or not, from any thread of any process."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvitals.series.history import blocks, damage_check, newest_row, schema, sums, wal
from kvitals.series.history.codec import DamagedError
from kvitals.series.history.damage import EVER, Loss, Losses
from kvitals.series.history.select import Looking
from kvitals.series.history.wal_codec import Ids
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher

MAX_SAMPLES = 5_000_000
"""Cells of the frames of one selection; 8 bytes each, twice for a moment where a series has no sample."""
MAX_LABELS = 100_000
"""Label sets that are remembered between selections."""
_CLOSE_MS = 0.01  # what a time in milliseconds may be off by as a float


@dataclass
class _Known:
    """The series of one name, by id."""

    last: int = 0
    labels: dict[int, Labels] = field(default_factory=dict)


class HistoryReader:
    """Reads a history file. `losses` are the parts that could not be read and were left out.

    Its methods raise HistoryError where the file can not be read, PromQLError where too much is asked for.
    """

    def __init__(
        self, path: Path, *, max_samples: int = MAX_SAMPLES, suspect: Callable[[], None] = lambda: None
    ) -> None:
        """`suspect` is called where the file itself is found damaged."""
        self.path = path
        self.losses = Losses()
        self._max_samples = max_samples
        self._suspect = suspect
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._series: dict[int, _Known] = {}
        self._restored: dict[str, dict[int, tuple[Any, ...]]] = {}
        """By table and id: what a row is in a sound copy, where another one is damaged."""

    def close(self) -> None:
        """Let go of the file. It is opened again where that is needed."""
        with self._lock:
            self._close()

    def select(
        self,
        matchers: Sequence[Matcher],
        start: float,
        end: float,
        cells: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> list[Frame]:
        """One frame for each group that has a matching series with a sample in start <= t <= end.

        cells: the most that the frames may have together, 8 bytes each. check: called before each part is read; what
        it raises ends the selection.
        """
        with self.reading() as connection:
            check()
            wanted = self._wanted(connection, matchers)
            if not wanted:
                return []
            most = self._max_samples if cells is None else min(cells, self._max_samples)
            looking = Looking(connection, wanted, *milliseconds(start, end), most, check)
            try:
                return looking.frames(self._labels(wanted))
            finally:
                self._met(looking.losses)

    def labels(self, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
        """The matching series of which some part lies in start <= t <= end, to the hour or so."""
        with self.reading() as connection:
            wanted = self._wanted(connection, matchers)
            labels = self._labels(wanted)
            first, last = milliseconds(start, end)
            if first <= -EVER and last >= EVER:
                return set(labels.values())
            looking = Looking(connection, wanted, first, last, 0)
            seen = looking.seen()
            self._met(looking.losses)
            return {labels[number] for number in labels.keys() & seen}

    def span(self) -> tuple[float, float] | None:
        """The times of the first and of the last row; None where there is none."""
        with self.reading() as connection:
            there = [span for span in (blocks.span(connection), wal.span(connection)) if span is not None]
        return (min(s[0] for s in there) / 1000, max(s[1] for s in there) / 1000) if there else None

    def group_names(self) -> dict[int, str]:
        """The groups that there ever were, by number."""
        with self.reading() as connection:
            return {group: name for group, (name,) in self._dictionary(connection, "groups").items()}

    def groups(
        self, start: float, end: float, wanted: Callable[[str], bool] = lambda _: True
    ) -> Iterator[tuple[str, Frame]]:
        """All rows in start <= t <= end, one group after the other: its name, and all of its series. wanted: whether a
        group is read, by its name."""
        for group, name in self.group_names().items():
            if not wanted(name):
                continue
            with self.reading() as connection:
                series = self._wanted(connection, ())
                if not series:
                    return
                looking = Looking(connection, series, *milliseconds(start, end), self._max_samples)
                frames = looking.frames(self._labels(series), group)
                self._met(looking.losses)
            for frame in frames:
                yield name, frame

    def inspect(self, start: float, end: float, *, thorough: bool = True) -> Losses:
        """As `damage_check.inspect`, with what this reader met before; times in seconds since the epoch."""
        first, last = milliseconds(start, end)
        with self.reading() as connection:
            self._met(damage_check.inspect(connection, first, last, thorough=thorough))
        return self.losses.between(first, last)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection on which all that is read is of one moment. Raises HistoryError."""
        with self._lock:
            try:
                connection = self._opened()
                with schema.snapshot(connection):
                    yield connection
            except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a message about a damaged schema
                self._close()
                if schema.is_corrupt(error):
                    self._suspect()
                raise schema.failure(error, self.path) from error

    def _opened(self) -> sqlite3.Connection:
        inode = self.path.stat().st_ino if self.path.exists() else 0
        if self._connection is None or inode != self._inode:
            self._close()
            committed = newest_row.read(self.path)
            if text := newest_row.deleted_text(self.path):
                raise schema.HistoryError("missing", f"{text}: the agent (`kvitals run`) keeps a new one")
            self._connection, self._inode = schema.open_for_reading(self.path), inode
            with schema.snapshot(self._connection):
                self._read_dictionaries(self._connection)
                self._met(newest_row.lost_rows(self._connection, committed))
        return self._connection

    def _read_dictionaries(self, connection: sqlite3.Connection) -> None:
        """Look which names and series have a damaged copy, and which segments are damaged."""
        self._restored = {}
        for table in damage_check.DICTIONARIES:
            self._restored[table], losses = damage_check.sound_copies(connection, table)
            self._met(losses)
        self._met(sums.changed_rows(connection, ["segments"]))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._series = {}

    def _wanted(self, connection: sqlite3.Connection, matchers: Sequence[Matcher]) -> dict[int, Ids]:
        """The ids of the matching series by the id of their name."""
        of_name = [m for m in matchers if m.name == METRIC_NAME]
        rest = [m.tester() for m in matchers if m.name != METRIC_NAME]
        if sum(len(known.labels) for known in self._series.values()) > MAX_LABELS:
            self._series = {}
        found: dict[int, Ids] = {}
        for number, (name,) in self._dictionary(connection, "names").items():
            if all(m.matches({METRIC_NAME: name}) for m in of_name):
                known = self._known(connection, number, name)
                ids = sorted(n for n, labels in known.items() if all(test(labels) for test in rest))
                if ids:
                    found[number] = np.array(ids, dtype=np.uint32)
        return found

    def _known(self, connection: sqlite3.Connection, number: int, name: str) -> Mapping[int, Labels]:
        """The series of a name. What is known once stays so: ids are not given out again."""
        known = self._series.setdefault(number, _Known())
        rows = connection.execute("SELECT id, labels FROM series WHERE name = ? AND id > ?", (number, known.last))
        found = {one: text for one, text in rows.fetchall() if not self._is_doubtful("series", one)}
        for one, (of_name, text) in self._restored.get("series", {}).items():
            if of_name == number and one > known.last:
                found[one] = text
        for one, text in sorted(found.items()):
            known.last = max(known.last, one)
            try:
                known.labels[one] = Labels({**schema.labels_of(text), METRIC_NAME: name})
            except DamagedError as error:
                self._met([Loss("series", str(one), -EVER, EVER, 0, str(error))])
        return known.labels

    def _dictionary(self, connection: sqlite3.Connection, table: str) -> dict[int, tuple[Any, ...]]:
        """The rows of names or groups by id; none that is damaged."""
        rows = connection.execute(f"SELECT id, name FROM {table}").fetchall()  # noqa: S608
        found = {number: (name,) for number, name in rows if not self._is_doubtful(table, number)}
        return {**found, **self._restored.get(table, {})}

    def _is_doubtful(self, table: str, number: int) -> bool:
        return number in self._restored.get(table, ()) or (table, str(number)) in self.losses.parts

    def _met(self, losses: Iterable[Loss]) -> None:
        """Damaged parts were met."""
        before = len(self.losses)
        self.losses.update(losses)
        if len(self.losses) > before:
            self._suspect()

    def _labels(self, wanted: Mapping[int, Ids]) -> dict[int, Labels]:
        return {n: self._series[name].labels[n] for name, ids in wanted.items() for n in ids.tolist()}


def milliseconds(start: float, end: float) -> tuple[int, int]:
    """Seconds as the whole milliseconds within."""
    first = math.ceil(start * 1000 - _CLOSE_MS) if math.isfinite(start) else -EVER
    last = math.floor(end * 1000 + _CLOSE_MS) if math.isfinite(end) else EVER
    return max(first, -EVER), min(last, EVER)

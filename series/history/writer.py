"""The writer: takes ticks from a queue and commits them, in a thread of its own; nothing that fails here stops others.

While a tick can not be written (a full disk, no permission) it is dropped and counted, `status` says why and what to
do, and the next one is tried. Damaged rows are set aside within the file and counted; where the file itself is damaged
it is set aside under another name, and a new one is begun. Between ticks the thread seals, thins and prunes, a little
at a time.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from kvitals.series.files import FileInUseError, lock_file, make_directory
from kvitals.series.history import (
    blocks,
    compact,
    damage_check,
    downsample,
    event_log,
    newest_row,
    retention,
    schema,
    set_aside_files,
    sums,
    wal,
)
from kvitals.series.history.blocks import Segment
from kvitals.series.history.codec import DamagedError
from kvitals.series.history.damage import Loss, Losses
from kvitals.series.history.downsample import KindOf
from kvitals.series.history.new_rows import Tick
from kvitals.series.history.retention import RetentionLimits
from kvitals.series.history.schema import FILE, LOCK, HistoryError

State = Literal["off", "starting", "ok", "damaged", "paused", "failed"]

MAX_WAITING = 24
"""Ticks. With more the disk is too slow, and new ones are dropped."""
ODD_FAILURES, ODD_SECONDS = 3, 600.0
"""After so many failures of no known kind within so many seconds the file's content is taken for damaged."""

STEADY_SECONDS = 3600.0
"""What is old is believed of a clock that was not set for so long."""

_CHORES_SECONDS = 60.0
_RETRY_SECONDS = 10.0
_CLOCK_SECONDS = 60.0
_ROOM_AGAIN = 1.25


@dataclass(frozen=True)
class HistoryStatus:
    """How history fares. Times in seconds since the epoch."""

    state: State = "starting"
    reason: str = ""  # one word, for damaged, paused and failed
    message: str = ""  # why, and what to do
    committed: float | None = None  # everything until then is on the disk
    oldest: float | None = None
    bytes: int = 0
    series: int = 0
    write_seconds: float | None = None  # of the last commit
    dropped: Mapping[str, int] = field(default_factory=dict)  # ticks, by reason
    set_aside: str = ""  # the name of the file that was set aside last


@dataclass(frozen=True)
class HistorySettings:
    """directory: where the file is. least_free: bytes of the disk that are left to others."""

    directory: Path
    kept: RetentionLimits = field(default_factory=RetentionLimits)
    least_free: int = 1 << 30


class History:
    """A history that is being written. `offer` and `status` are for any thread."""

    def __init__(
        self, settings: HistorySettings, kind_of: KindOf, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """`tell` is called, from the writer's thread, with what a person should read: once for each change."""
        self.path = settings.directory / FILE
        self.status = HistoryStatus()
        self._settings = settings
        self._kind_of = kind_of
        self._tell = tell
        self._queue: queue.Queue[Tick | None] = queue.Queue(MAX_WAITING)
        self._dropped: Counter[str] = Counter()
        self._telling = threading.Lock()  # `offer` says of what it drops, beside the writer's thread
        self._suspected = threading.Event()
        self._file: _File | None = None
        self._lock: int | None = None
        self._clock = _Clock()
        self._losses = Losses()  # that are in the file
        self._aside: set[tuple[str, str]] = set()  # of them, those that were set aside when it was looked last
        self._odd: deque[float] = deque(maxlen=ODD_FAILURES)
        self._tried = 0.0
        self._chores = 0.0
        self._room = True
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def offer(self, tick: Tick) -> bool:
        """Have a tick written soon. False where it is dropped, since too many wait."""
        try:
            self._queue.put_nowait(tick)
        except queue.Full:
            self._drop("slow_disk")
            return False
        return True

    def suspect(self) -> None:
        """Somebody found the file damaged: look whether it is."""
        self._suspected.set()

    def close(self, seconds: float = 10.0) -> None:
        """Write what waits and end; returns after so many seconds in any case."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)

    def _run(self) -> None:
        self._attempt(self._open)
        while True:
            try:
                tick = self._queue.get(timeout=1.0)
            except queue.Empty:
                self._attempt(self._idle)
                continue
            if tick is None:
                break
            self._take(tick)
            if self._queue.empty():
                self._attempt(self._idle)
        self._close()

    def _take(self, tick: Tick) -> None:
        """Write a tick; where a damaged file was set aside, into the new one."""
        if not self._attempt(lambda: self._write(tick)) and (
            self._file is None or not self._attempt(lambda: self._write(tick))
        ):
            self._drop(self.status.reason)

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Do something with the file; whether it went well. What went wrong is in `status` afterwards."""
        try:
            work()
        except HistoryError as error:
            if error.reason == "corrupt":
                self._set_aside(str(error))
            else:
                self._failed(error)
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            if not isinstance(error, OSError) and schema.is_corrupt(error):
                self._set_aside(str(error))
            else:
                self._failed(schema.failure(error, self.path))
        except Exception as error:
            # Whatever it is, it is history's: the agent goes on, and so does history with the next tick.
            self._odd.append(time.monotonic())
            if len(self._odd) == ODD_FAILURES and self._odd[-1] - self._odd[0] < ODD_SECONDS:
                self._odd.clear()
                self._set_aside(f"{type(error).__name__}: {error}")
            else:
                self._failed(HistoryError("internal", f"history failed: {type(error).__name__}: {error}"))
        else:
            return True
        return False

    def _open(self) -> None:
        self._tried = time.monotonic()
        make_directory(self._settings.directory)
        if self._lock is None:
            self._lock = _locked(self._settings.directory / LOCK)
        committed = self._newest_row()
        connection = schema.open_for_writing(self.path)
        self._losses = Losses()
        self._losses.update(sums.set_aside_before(connection))
        self._lost(newest_row.note_lost_rows(connection, committed))
        self._lost(damage_check.repair(connection, thorough=False))
        self._file = _File(self.path, connection)
        self._say(oldest=_seconds(retention.oldest_ms(self._file.connection)))

    def _newest_row(self) -> newest_row.NewestRow | str | None:
        """What was committed last to the history that is there; of one that somebody deleted, say so once."""
        committed = newest_row.read(self.path) if self.path.exists() else None
        if text := newest_row.deleted_text(self.path):
            self._tell(f"history: {text}; a new one is started")
        if committed is None:
            newest_row.forget(self.path)
        return committed

    def _write(self, tick: Tick) -> None:
        self._clock.look()
        self._look_for_room()
        if self._file is None or self._file.is_gone():
            self._reopen()
        assert self._file is not None
        began = time.monotonic()
        left_out = self._file.log.left_out
        self._file.write(tick)
        self._count("series", self._file.log.left_out - left_out)
        oldest = self.status.oldest if self.status.oldest is not None else tick.t
        self._say(
            **self._condition(), committed=tick.t, oldest=oldest, bytes=schema.size_of(self.path),
            series=self._file.log.known, write_seconds=time.monotonic() - began,
        )  # fmt: skip

    def _idle(self) -> None:
        """One of the things that can wait."""
        if self._file is None:
            if time.monotonic() - self._tried >= _RETRY_SECONDS:
                self._look_for_room()
                self._open()
            return
        if self._suspected.is_set():
            self._suspected.clear()
            self._look_for_damage()
            if self._file is None:
                return
        more = self._file.sealer.step(self._file.log.generation)
        self._lost(self._file.sealer.losses)
        if more:
            return
        if time.monotonic() - self._chores >= _CHORES_SECONDS:
            self._chores = time.monotonic()
            self._keep_house()

    def _look_for_damage(self) -> None:
        """Set aside the file where it is damaged itself, or what is damaged in it. All of it is read anew: a connection
        that writes knows pages as they were."""
        with contextlib.closing(schema.open_for_reading(self.path)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            losses = Losses() if found != "ok" else damage_check.inspect(connection)
        if found != "ok":
            self._set_aside(found)
        elif losses.parts.keys() - self._losses.parts.keys():
            self._reopen()
            assert self._file is not None
            self._lost(damage_check.repair(self._file.connection, thorough=True))
            self._lost(losses)

    def _keep_house(self) -> None:
        assert self._file is not None
        connection, kept = self._file.connection, self._settings.kept
        if self._clock.steady_seconds >= STEADY_SECONDS:
            now = time.time() * 1000
            due = downsample.due(connection, round(now - kept.full * 1000))
            if due:
                self._thin(due)
            if retention.prune(connection, round(now - kept.thinned * 1000)):
                self._chores = 0.0
            retention.forget_series(connection, round(now - kept.thinned * 1000), self._file.log.in_use)
        if retention.shrink(connection, kept.most):
            self._chores = 0.0  # there may be more
        aside = Losses()
        aside.update(sums.set_aside_before(connection))
        if self._aside - aside.parts.keys():  # somebody, or their age, took some out
            self._losses = damage_check.inspect(connection, thorough=False)
        self._aside = set(aside.parts)
        self._file.log.recount()
        self._say(oldest=_seconds(retention.oldest_ms(connection)), bytes=schema.size_of(self.path))

    def _thin(self, due: list[Segment]) -> None:
        assert self._file is not None
        try:
            downsample.thin(self._file.connection, due, self._kind_of)
        except DamagedError:
            self._lost(blocks.set_aside(self._file.connection, due))  # the rest is thinned next time
        self._chores = 0.0  # there may be more

    def _lost(self, losses: Iterable[Loss]) -> None:
        """Count what is damaged, once, and say so."""
        new = [one for one in losses if (one.table, one.key) not in self._losses.parts]
        if not new:
            return
        self._losses.update(new)
        self._count("damaged", sum(one.rows for one in new))
        self._tell(f"history: {self._losses.message}")
        if self.status.state in ("ok", "damaged"):
            self._say(**self._condition())
        else:
            self._say()

    def _condition(self) -> dict[str, object]:
        """The state while it is written."""
        if self._losses:
            return {"state": "damaged", "reason": "damaged_rows", "message": self._losses.message}
        return {"state": "ok", "reason": "", "message": ""}

    def _look_for_room(self) -> None:
        """Raises HistoryError where too little of the disk is free."""
        least = self._settings.least_free
        directory = next(p for p in (self._settings.directory, *self._settings.directory.parents) if p.exists())
        found = os.statvfs(directory)
        free = found.f_bavail * found.f_frsize
        if free < least * (1.0 if self._room else _ROOM_AGAIN):
            self._room = False
            raise HistoryError(
                "disk_low",
                f"the disk of {directory} has {free >> 20} MB free, but history keeps {least >> 20} MB free for "
                "other programs: free space there, and history then continues by itself",
            )
        self._room = True

    def _failed(self, error: HistoryError) -> None:
        state: State = "paused" if error.reason == "disk_low" else "failed"
        if self.status.reason != error.reason:
            self._tell(f"history: {error}")
        self._say(state=state, reason=error.reason, message=str(error))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _set_aside(self, why: str) -> None:
        """Give the damaged file another name, and begin anew."""
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            newest_row.forget(self.path)
        name = set_aside_files.set_aside(self.path)
        self._tell(f"history: {self.path} is damaged ({why}); it is set aside as {name}, and a new one is started")
        self._say(set_aside=name, oldest=None, committed=None)
        self._attempt(self._open)

    def _reopen(self) -> None:
        if self._file is not None:  # it is gone, or is not what this connection knows
            self._file.close()
            self._file = None
            self._say(oldest=None, committed=None)
        self._open()

    def _drop(self, reason: str) -> None:
        self._count(reason, 1)
        self._say()

    def _count(self, reason: str, more: int) -> None:
        with self._telling:
            self._dropped[reason] += more

    def _say(self, **changes: object) -> None:
        with self._telling:
            dropped = {reason: count for reason, count in self._dropped.items() if count}
            before = self.status
            self.status = replace(before, dropped=MappingProxyType(dropped), **changes)  # type: ignore[arg-type]
        if before.state in ("paused", "failed") and self.status.state in ("ok", "damaged"):
            self._tell("history: goes on")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            os.close(self._lock)


class _File:
    """An open file and its log."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self.connection = connection
        self.log = wal.Log(connection)
        self.sealer = compact.Sealer(connection)
        self._newest = newest_row.NewestRowFile(path, connection)
        self._commits = 0
        self._inode = path.stat().st_ino
        with schema.transaction(connection):
            event_log.close_episodes(connection)

    def write(self, tick: Tick) -> None:
        """Commit a tick. Raises sqlite3.Error, and then nothing of it was written."""
        before = self.log.seq
        self.log.write(tick)
        if self.log.seq != before:
            self._newest.write(newest_row.NewestRow(self.log.seq, round(tick.t * 1000)))
        self._commits += 1
        if self._commits >= wal.BLOCK_TICKS:
            self._commits = 0
            schema.empty_log(self.connection)

    def is_gone(self) -> bool:
        """Whether somebody removed it, or put another in its place."""
        try:
            return self._path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def close(self) -> None:
        self._newest.close()
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()


class _Clock:
    """For how long the clock was not set, as far as can be told."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()
        self._since = time.monotonic()

    def look(self) -> None:
        ahead = time.time() - time.monotonic()
        if abs(ahead - self._ahead) > _CLOCK_SECONDS:
            self._ahead, self._since = ahead, time.monotonic()

    @property
    def steady_seconds(self) -> float:
        self.look()
        return time.monotonic() - self._since


def _locked(path: Path) -> int:
    """Hold the lock of a directory, until the process ends. Raises HistoryError, OSError."""
    try:
        return lock_file(path)
    except FileInUseError:
        raise HistoryError(
            "in_use", f"another agent writes its history in {path.parent}: give this agent another directory"
        ) from None


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000

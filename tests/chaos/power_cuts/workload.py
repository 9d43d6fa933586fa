"""python -m tests.chaos.power_cuts.workload FOLDER ROWS: writes history, spool and state, and reports what is kept.

A report is one line with one `writev`, which no fault is injected into: `kept KIND NUMBER`, after the product said so.
With `--faults` what cannot be kept is reported as `refused KIND NUMBER`. At the end all has to go on: `recovered`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvitals.app.notify.notice import Notice
from kvitals.app.notify.queue import MessageOutcome, Spool, SpoolError
from kvitals.app.state import StateKeeper
from kvitals.diagnoser.judgement import Memory
from kvitals.series.history import wal
from kvitals.series.history.new_rows import GroupRows, Tick
from kvitals.series.history.retention import RetentionLimits
from kvitals.series.history.writer import History, HistorySettings
from kvitals.series.types import Labels

START = 1_800_000_000.0
STEP = 5.0
SERIES = 12
WAIT_SECONDS = 30.0
STATE = "state.json"
HISTORY = "history"
SPOOL = "notify"
TARGET = "webhook-1"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("--series", type=int, default=SERIES)
    parser.add_argument("--faults", action="store_true")
    args = parser.parse_args()
    wal.GENERATION_TICKS = 7  # so that generations are sealed within a short run
    Workload(args.folder, args.rows, args.series, args.faults).run()


class Workload:
    """A run of an agent in small: three times begun and ended, since that is when files are made and taken over."""

    def __init__(self, folder: Path, rows: int, series: int, faults: bool) -> None:
        self._folder = folder
        self._rows = rows
        self._labels = [Labels({"__name__": "value", "n": str(n)}) for n in range(series)]
        self._faults = faults

    def run(self) -> None:
        lives = 3 if not self._faults else 1
        for life in range(lives):
            numbers = range(life * self._rows // lives, (life + 1) * self._rows // lives)
            self._live(numbers, last=life == lives - 1)

    def _live(self, numbers: range, last: bool) -> None:
        self._history = History(
            HistorySettings(self._folder / HISTORY, RetentionLimits(), 0), lambda _: "gauge", self._note
        )
        self._history.start()
        self._state = StateKeeper(self._folder / STATE, self._note)
        self._state.open(START)
        self._spool = Spool(self._folder / SPOOL)
        for number in numbers:
            for act, kind in ((self._keep_row, "history"), (self._keep_message, "spool"), (self._keep_state, "state")):
                if act(number):
                    report(f"kept {kind} {number}")
                elif self._faults:
                    report(f"refused {kind} {number}")
                else:
                    raise SystemExit(f"{kind} {number} was not kept: {self._history.status}")
        if last:
            for act, kind in ((self._keep_row, "history"), (self._keep_message, "spool"), (self._keep_state, "state")):
                report(f"{'recovered' if self._until(act, numbers[-1] + 1) else 'LOST'} {kind} {numbers[-1] + 1}")
        self._history.close()
        self._state.close()
        self._spool.close()

    def _until(self, act: Callable[[int], bool], number: int) -> bool:
        """Whether it is kept again once the disk is well; history tries to open its file again after some seconds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not act(number):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def _keep_row(self, number: int) -> bool:
        values = np.random.default_rng(number).random((1, len(self._labels)))
        values[0, 0] = number
        t = START + number * STEP
        dropped = sum(self._history.status.dropped.values())
        self._history.offer(Tick(t, [GroupRows("group", np.array([t]), values, self._labels)]))
        return self._wait(
            lambda: self._history.status.committed == t, lambda: sum(self._history.status.dropped.values()) > dropped
        )

    def _keep_message(self, number: int) -> bool:
        """A message is taken, and the one before is dealt with and sent."""
        try:
            if self._spool._db is None:
                self._spool.open()
            self._spool.put(b"message %d" % number, START)
        except SpoolError as error:
            self._note(f"spool: {error}")
            return False
        try:
            self._hand_on(number)
        except SpoolError as error:
            self._note(f"spool: {error}")
        return True

    def _hand_on(self, number: int) -> None:
        waiting = self._spool.next()
        if waiting is None or waiting.body == b"message %d" % number:
            return
        if number % 5 == 0:
            self._spool.bury_message(waiting, "not understood", START)
            self._spool.done(waiting.id, MessageOutcome(), START)
            return
        notice = Notice(
            id=waiting.body.decode(), incident="i", status="firing", change="new", severity="info", title="t",
            where="w", entity={}, began=START, at=START, judged="", alerts=[],
        )  # fmt: skip
        self._spool.done(waiting.id, MessageOutcome(notices=[(TARGET, notice)]), START)
        due = self._spool.due(TARGET, START)
        if due is not None and number % 2:
            report(f"sent {due.notice.id.removeprefix('message ')}")
            self._spool.sent(due)

    def _keep_state(self, number: int) -> bool:
        """State is reported as kept once it is read back from where it was saved."""
        failed = self._state.problem
        before = self._state._saved
        self._state.save({"code": Memory(true_since=float(number), last_true=START)})
        return self._wait(
            lambda: self._state._saved not in (None, before), lambda: self._state.problem not in ("", failed)
        )

    def _wait(self, kept: Callable[[], bool], refused: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if kept():
                return True
            if refused():
                return kept()
            time.sleep(0.0005)
        return False

    def _note(self, line: str) -> None:
        report(f"said {line}")


def report(line: str) -> None:
    """To whoever records, at once."""
    os.writev(1, [f"{line}\n".encode()])


if __name__ == "__main__":
    main()

"""What is there after a cut, read and written with the product's own code, beside what was reported as kept."""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from kvitals.app.notify.queue import DEAD, FILE, Spool
from kvitals.app.state import StateKeeper
from kvitals.series.history import schema
from kvitals.series.history.new_rows import GroupRows, Tick
from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.retention import RetentionLimits
from kvitals.series.history.writer import History, HistorySettings
from kvitals.series.types import Labels, Matcher, MatchOp

from .workload import HISTORY, SPOOL, START, STATE, STEP, TARGET, WAIT_SECONDS

LATER = START + 90 * STEP


@dataclass
class Promised:
    """What was reported so far."""

    kept: dict[str, set[int]] = field(default_factory=lambda: {"history": set(), "spool": set(), "state": set()})
    sent: set[int] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    def add(self, lines: Iterable[str]) -> None:
        """Take in reports of the workload."""
        for line in lines:
            words = line.split()
            if words[0] in ("kept", "recovered"):
                self.kept[words[1]].add(int(words[2]))
            elif words[0] == "sent":
                self.sent.add(int(words[1]))
            elif words[0] == "LOST":
                self.lost.append(line)


def broken(folder: Path, promised: Promised) -> list[str]:
    """What of it does not hold: what is lost, what does not open, what cannot be written to any more."""
    with contextlib.redirect_stdout(io.StringIO()):  # what is set aside is logged
        return [*_history(folder / HISTORY, promised), *_spool(folder / SPOOL, promised), *_state(folder, promised)]


def _history(folder: Path, promised: Promised) -> list[str]:
    history = History(HistorySettings(folder, RetentionLimits(), 0), lambda _: "gauge")
    history.start()
    history.offer(
        Tick(LATER, [GroupRows("group", np.array([LATER]), np.array([[-1.0]]), [Labels({"__name__": "new"})])])
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while history.status.committed != LATER and time.monotonic() < deadline:
        time.sleep(0.002)
    status = history.status
    found = [] if status.committed == LATER else [f"history does not go on: {status}"]
    if status.set_aside:
        found.append(f"history is damaged: {status}")
    reader = HistoryReader(folder / schema.FILE)
    try:
        frames = reader.select([Matcher("n", MatchOp.EQ, "0")], -math.inf, math.inf)
        there = {int(v) for frame in frames for v in frame.values[:, 0].tolist() if not math.isnan(v)}
        reader.inspect(-math.inf, math.inf)
    finally:
        reader.close()
        history.close()
    if reader.losses:
        found.append(f"history: {reader.losses.document()}")
    if missing := promised.kept["history"] - there:
        found.append(f"history lost rows {sorted(missing)}")
    return found


def _spool(folder: Path, promised: Promised) -> list[str]:
    spool = Spool(folder)
    spool.open()
    try:
        there = set(_messages(spool, folder))
        spool.put(b"{}", LATER)
    finally:
        spool.close()
    found = [f"spool lost messages {sorted(lost)}"] if (lost := promised.kept["spool"] - promised.sent - there) else []
    return found + (["spool is damaged"] if (folder / f"{FILE}.damaged").exists() else [])


def _messages(spool: Spool, folder: Path) -> Iterable[int]:
    """Numbers of the messages that wait, are to be sent, or are dead letters."""
    while (waiting := spool.next()) is not None:
        yield int(waiting.body.split()[1])
        spool.bury_message(waiting, "checked", LATER)
        spool._writing  # noqa: B018
        with spool._writing() as db:
            db.execute("DELETE FROM message WHERE id = ?", (waiting.id,))
    while (delivery := spool.due(TARGET, LATER)) is not None:
        yield int(delivery.notice.id.split()[1])
        spool.sent(delivery)
    if (folder / DEAD).exists():
        for line in (folder / DEAD).read_bytes().splitlines():
            with contextlib.suppress(ValueError, msgspec.DecodeError):  # a part of a line that was never reported
                letter = json.loads(line)
                yield int(letter["message"].split()[1])


def _state(folder: Path, promised: Promised) -> list[str]:
    said: list[str] = []
    keeper = StateKeeper(folder / STATE, said.append)
    memory = keeper.open(START + 1.0)
    number = int(memory["code"].true_since or 0) if "code" in memory else -1
    keeper.save({})
    keeper.close()
    if said:
        return said
    newest = max(promised.kept["state"], default=-1)
    return [f"state is of {number}, and {newest} was reported as kept"] if number < newest else []

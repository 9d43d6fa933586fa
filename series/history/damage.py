"""What of a history is damaged: which part, from when to when, how many rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

EVER = 1 << 60
"""Milliseconds: the time of what is lost is unknown where it begins before `-EVER` and ends after `EVER`."""


@dataclass(frozen=True)
class Loss:
    """A damaged part. table, key: its row in the file. start, end: milliseconds since the epoch. rows: ticks (all
    samples of a few seconds) that are lost, or of which some samples are."""

    table: str
    key: str
    start: int
    end: int
    rows: int
    why: str

    @property
    def has_time(self) -> bool:
        """Whether it is known when the lost rows were."""
        return self.start > -EVER and self.end < EVER

    def overlaps(self, start: int, end: int) -> bool:
        """Whether some of it may lie in start <= t <= end (milliseconds)."""
        return self.start <= end and self.end >= start


@dataclass
class Losses:
    """Damaged parts, each once, however often it was met."""

    parts: dict[tuple[str, str], Loss] = field(default_factory=dict)

    def add(self, loss: Loss) -> None:
        """Note a damaged part."""
        self.parts.setdefault((loss.table, loss.key), loss)

    def update(self, losses: Iterable[Loss]) -> None:
        """Note several."""
        for loss in losses:
            self.add(loss)

    def __iter__(self) -> Iterator[Loss]:
        return iter(sorted(self.parts.values(), key=lambda one: (one.start, one.table, one.key)))

    def __len__(self) -> int:
        return len(self.parts)

    def between(self, start: int, end: int) -> Losses:
        """Those that may lie in start <= t <= end (milliseconds)."""
        return Losses({key: one for key, one in self.parts.items() if one.overlaps(start, end)})

    @property
    def rows(self) -> int:
        """Ticks that are lost or concerned, all together."""
        return sum(one.rows for one in self.parts.values())

    @property
    def span(self) -> tuple[float, float] | None:
        """From when to when, in seconds since the epoch; None where that is unknown of one of them."""
        known = [one for one in self.parts.values() if one.has_time]
        if not known or len(known) < len(self.parts):
            return None
        return min(one.start for one in known) / 1000, max(one.end for one in known) / 1000

    @property
    def message(self) -> str:
        """What is lost, why, and what to do."""
        return f"{self.summary}: check the disk and the memory. `kvitals history check` lists what is lost"

    @property
    def summary(self) -> str:
        """What is lost, in a part of a sentence."""
        parts = "1 part is" if len(self.parts) == 1 else f"{len(self.parts):,} parts are"
        when = f" between {time_text(self.span[0])} and {time_text(self.span[1])}" if self.span else ""
        return f"{parts} damaged" + (f", {self.rows:,} rows{when}" if self.rows else when)

    def document(self) -> list[dict[str, Any]]:
        """The parts as JSON has them."""
        return [
            {
                "part": one.table, "key": one.key, "from": one.start / 1000 if one.has_time else None,
                "to": one.end / 1000 if one.has_time else None, "rows": one.rows, "why": one.why,
            }
            for one in self
        ]  # fmt: skip


TITLES: Mapping[str, str] = {
    "ticks": "rows of the last hour",
    "segments": "all families of one target",
    "chunks": "one family of one target",
    "names": "the name of a family",
    "groups": "the name of a target",
    "series": "the labels of a series",
    "events": "an event",
    "episodes": "a finding",
    "batches": "requests",
    "sums": "the checksums of the rows: no row can be checked",
    "wal": "the newest rows",
    "file": "the file's structure",
}
"""What the parts are, for people."""


def time_text(moment: float) -> str:
    """A moment, in seconds since the epoch, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))

"""The one reader of recordings: their records in order, and what could not be read of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvitals.agent.records import COLLECTORS, Record, RecordDecoder
from kvitals.app.sources.losses import SourceLoss
from kvitals.series.recordings import CaptureReader
from kvitals.series.recordings import Record as RecordedRecord
from kvitals.series.window import RESTART_SECONDS

MAX_SPAN_SECONDS = 25 * 3600.0
"""Of the records of one recording: a moment is judged every 5 s, also in gaps, at 2 ms each."""
STEP_BACK_SECONDS = 1.0
"""A record that is so much older than an earlier one of its collector and target: the clock was set back, or chunks are
in another order."""
IN_ORDER = frozenset({"scrape", "host", "gpu"})
"""Collectors whose records of a target are written in the order of their times."""
SILENT_SECONDS, SILENT_INTERVALS = 10.0, 3.0
"""A target without a scrape for longer than both at a recording's end is not judged by what it was before."""
MAX_LISTED = 3
"""Collectors and targets that a warning names."""


class RecordingError(Exception):
    """Nothing can be judged in this recording, and why."""


class RecordingReader:
    """The records of a recording, to its end or to where it cannot be read any further.

    with open_recording(path) as reader:
        for record in reader.decoded(): ...
        reader.losses()

    Iterated itself, it yields the records as they are kept, and their losses are those that `read_span` reports.
    """

    def __init__(self, capture: CaptureReader) -> None:
        self._capture = capture
        self.meta: Mapping[str, Any] = capture.header.meta
        self.first, self.last = math.nan, math.nan
        """Times of the first and the last record that was read, seconds since the epoch; NaN before the first one."""
        self.earliest, self.latest = math.inf, -math.inf
        self._latest: dict[tuple[str, str], float] = {}
        self._scrapes: dict[str, tuple[float, int]] = {}  # by target: the first one's time, how many
        self._back: tuple[float, float] | None = None  # where times went back to, and from where
        self._stopped = False
        self._decoder = RecordDecoder()

    def decoded(self) -> Iterator[Record]:
        """The records that can be decoded; the others are counted. Raises CaptureError."""
        for recorded in self:
            record = self.decode(recorded)
            if record is not None:
                yield record

    def decode(self, recorded: RecordedRecord) -> Record | None:
        """One of the records; None for one that cannot be decoded, which is counted."""
        return self._decoder.decode(recorded)

    def __iter__(self) -> Iterator[RecordedRecord]:
        """Raises CaptureError for what looks like an attack."""
        for record in self._capture:
            if math.isnan(self.first):
                self.first = record.t
            if record.sense in IN_ORDER and not self._check_order(record):
                self._stopped = True
                return
            self.last = record.t
            self.earliest, self.latest = min(self.earliest, record.t), max(self.latest, record.t)
            yield record

    def losses(self) -> tuple[SourceLoss, ...]:
        """What was not read so far."""
        return (*self._damage(), *self._steps_back(), *self._undecodable(), *self._silent())

    def _damage(self) -> Iterator[SourceLoss]:
        damage = self._capture.damage
        if damage is not None:
            anywhere = damage.kind == "miscounted" or math.isnan(self.last)
            yield SourceLoss(damage.text, -math.inf if anywhere else self.last, hides=damage.kind != "unended")

    def _steps_back(self) -> Iterator[SourceLoss]:
        if self._back is not None:
            to, since = self._back
            rest = "nothing after that was read" if self._stopped else "some records of that time were not used"
            at = max(since - self.first, 0.0)
            yield SourceLoss(
                f"the times of the recording go back by {since - to:.0f} s at +{at:.0f} s, because the clock was set "
                f"back or chunks are in another order: {rest}",
                min(to, self.last),
            )

    def _undecodable(self) -> Iterator[SourceLoss]:
        decoder = self._decoder
        if not decoder.undecodable:
            return
        names = [_name(*key) for key, _ in decoder.undecodable.most_common(MAX_LISTED)]
        names += ["others"] if len(decoder.undecodable) > MAX_LISTED else []
        count = decoder.undecodable.total()
        records = "1 record" if count == 1 else f"{count} records"
        why = "they are damaged, or a newer kvitals wrote them" if decoder.lost_known else "a newer kvitals wrote them"
        yield SourceLoss(
            f"{records} of the recording cannot be decoded, the first at +{decoder.since - self.first:.0f} s "
            f"({', '.join(dict.fromkeys(names))}): {why}",
            decoder.since,
            hides=decoder.lost_known,
        )

    def _silent(self) -> Iterator[SourceLoss]:
        """Targets whose scrapes end before the recording does. A page that cannot be read is a scrape, too."""
        ends = []
        for target, (first, count) in self._scrapes.items():
            last = self._latest["scrape", target]
            interval = (last - first) / max(count - 1, 1)
            if self.latest - last > max(SILENT_SECONDS, SILENT_INTERVALS * interval):
                ends.append((last, target))
        if ends:
            names = [_name("scrape", target) for _, target in sorted(ends)[:MAX_LISTED]]
            names += ["others"] if len(ends) > MAX_LISTED else []
            since = min(ends)[0]
            yield SourceLoss(
                f"the recording has no {', no '.join(names)} after +{since - self.first:.0f} s, and it ends at "
                f"+{self.latest - self.first:.0f} s",
                since,
            )

    def _check_order(self, record: RecordedRecord) -> bool:
        """Whether the record can be used; a step back is remembered. The window begins anew after a large one."""
        stream = record.sense, record.target
        latest = self._latest.get(stream, -math.inf)
        if record.sense == "scrape":
            first, count = self._scrapes.get(record.target, (record.t, 0))
            self._scrapes[record.target] = first, count + 1
        if record.t >= latest - STEP_BACK_SECONDS:
            self._latest[stream] = max(latest, record.t)
            return True
        if self._back is None or record.t < self._back[0]:
            self._back = record.t, latest
        return record.t >= latest - RESTART_SECONDS


def _name(sense: str, target: str) -> str:
    """Whose records cannot be decoded. A text that is no address is not repeated: it comes from outside."""
    collector = sense if sense in COLLECTORS else "others"
    is_address = target and all(letter.isalnum() or letter in "-._:/[]%" for letter in target)
    return f"{collector} of {target}" if is_address else collector


@contextmanager
def open_recording(path: Path) -> Iterator[RecordingReader]:
    """Raises CaptureError, also where the file cannot be read."""
    with CaptureReader.open(path) as capture:
        yield RecordingReader(capture)


@dataclass(frozen=True)
class RecordingSpan:
    """First and last time of a recording, seconds since the epoch, and what cannot be read of it."""

    first: float
    last: float
    losses: tuple[SourceLoss, ...]


def read_span(path: Path) -> RecordingSpan:
    """Read a recording once, for its times and for what cannot be read. Every view of a recording begins here.

    Raises CaptureError, and RecordingError where there is no record or they span more than `MAX_SPAN_SECONDS`.
    """
    with open_recording(path) as reader:
        for recorded in reader:
            reader.decode(recorded)
            if reader.latest - reader.earliest > MAX_SPAN_SECONDS:
                raise RecordingError(
                    f"{path.name} spans more than {MAX_SPAN_SECONDS / 3600:.0f} h, the longest that kvitals "
                    f"evaluates: record in parts (kvitals record --for 1d), and check the clock of the node "
                    f"that recorded it"
                )
        losses = reader.losses()
    if math.isnan(reader.first):
        raise RecordingError(no_record(path, losses))
    return RecordingSpan(reader.first, reader.last, losses)


def no_record(path: Path, losses: Sequence[SourceLoss]) -> str:
    """That a recording has no record that can be read, and why."""
    return f"{path.name} has no record that can be read" + "".join(f": {loss.text}" for loss in losses)


def span_of(path: Path) -> tuple[float, float]:
    """First and last time of a recording. Raises as `read_span` does."""
    span = read_span(path)
    return span.first, span.last

"""How soon an agent's verdict is right after an abrupt fault: `python -m tests.captures.onset [PART]`.

Every recording of an incident or a drawn incident with a known onset is judged as a running agent judges it: each 5 s,
over 60 s, with history. Two things are added to a recording, because it begins about ten seconds before the onset and
ends about thirty after it. Its calm beginning is repeated until two minutes and a quarter lie before the onset, so that
the agent has watched for more than a minute, and its first window of 60 s is full. Its last ten seconds are repeated
until it lasts 42 s after the onset. Counters go on through a repetition: each copy adds what they grew by. Copies have
metrics pages only, neither request records nor what the host reports.

Rules and diagnoser are tuned on one part of the recordings. The other part is held out: two fifths of the kinds of
incident, chosen by a hash of their names on 2026-11-23 before anything was tuned for this measurement. It is judged for
a figure, and no miss of it is looked into.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvitals.agent.records import FactsRecord, Record, ScrapeRecord, decode
from kvitals.app.pipeline import FAST_SECONDS, SLOW_SECONDS, STEP_SECONDS, Pipeline, Setup
from kvitals.app.sources.recording import with_window
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.finding import DocumentSource, Triage
from kvitals.series.recordings import CaptureReader
from tests.captures.looks import setup_of, truth
from tests.lab.draw import play, score
from tests.lab.incidents import judging
from tests.lab.incidents.recording import CAPTURES

MOMENTS_S = (20.0, 40.0)
CALM_S, LASTS_S = 135.0, 42.0
WATCHED_S = 75.0
"""Before the onset: what the agent remembers from then on. It is longer than `for` of most rules, as an agent was there
for a while before a fault."""
REPEATED_S = 10.0
_SAMPLE = re.compile(rb"^([\w:]+(?:_total|_count|_sum|_bucket)(?:\{.*\})?) ([^ \n]+)", re.M)


@dataclass(frozen=True)
class Onset:
    """A recording whose fault began at a known moment. began: seconds since the epoch."""

    capture: Path
    began: float
    setup: Setup
    codes: tuple[str, ...]
    """Of which the first cause is one; empty: nothing is wrong."""

    @property
    def held_out(self) -> bool:
        """Whether nothing was tuned on it. All seeds of an incident are in one part; each drawn one is by itself."""
        stem = self.capture.stem
        kind = stem if stem.startswith("drawn-") else stem.rpartition("-")[0]
        return hashlib.sha256(kind.encode()).digest()[0] % 5 < 2

    def is_right(self, document: Triage) -> bool:
        """Whether the first finding is one of the codes; of a healthy one, whether there is nothing to do."""
        first = [f.code for f in judging.in_order(document)][:1]
        return document.healthy is not False if not self.codes else bool(first) and first[0] in self.codes


def labelled() -> list[Onset]:
    """The labelled incidents."""
    found = []
    for capture in judging.runs(CAPTURES):
        label = judging.incident_of(capture).label
        if label.healthy != "any":
            began = float(max([truth(capture)["began"], *(act[2] for act in truth(capture)["acts"])]))
            found.append(Onset(capture, began, setup_of(capture), tuple(label.first)))
    return found


def drawn() -> list[Onset]:
    """The drawn incidents that are in order or breached. A wedged engine's fault begins with the act."""
    found = []
    for capture in score.read(play.RESULTS):
        played = msgspec.json.decode(capture.with_suffix(".json").read_bytes(), type=play.Played)
        if played.truth.state in ("breached", "in order"):
            found.append(Onset(capture, played.began, play.setup_of(played), played.truth.codes))
    return found


def documents(onset: Onset) -> dict[float, Triage]:
    """By the seconds after the onset: what the agent reports then."""
    pipeline = Pipeline(with_window(onset.setup, 240.0), DocumentSource("capture", onset.capture.stem))
    with CaptureReader.open(onset.capture) as reader:
        pipeline.node.expect(reader.header.meta)
        recorded = [known for record in reader if (known := decode(record)) is not None]
    records = iter(lengthened(recorded, onset.began, span_of(onset.capture)))
    found: dict[float, Triage] = {}
    record = next(records, None)
    for i in range(round((WATCHED_S + max(MOMENTS_S)) / STEP_SECONDS) + 1):
        after = i * STEP_SECONDS - WATCHED_S
        while record is not None and record.t <= onset.began + after:
            pipeline.node.ingest(record)
            record = next(records, None)
        pipeline.observe_span(EvaluationSpan(onset.began + after, FAST_SECONDS, SLOW_SECONDS))
        if after in MOMENTS_S:
            found[after] = pipeline.triage()
    return found


def lengthened(records: Sequence[Record], began: float, extent: tuple[float, float]) -> Iterator[Record]:
    """The records with their beginning and their end repeated, in order."""
    first, last = extent
    calm = [r for r in records if isinstance(r, ScrapeRecord) and r.t < began - 0.5]
    tail = [r for r in records if isinstance(r, ScrapeRecord) and r.t >= last - REPEATED_S]
    yield from (
        msgspec.structs.replace(r, t=began - CALM_S - 1) for r in records if isinstance(r, FactsRecord) and r.t < began
    )
    length = began - first
    copies = int(CALM_S / length) if calm and length >= 5.0 else 0
    grown = _grown(calm)
    for i in range(copies):
        yield from (_moved(r, (i - copies) * length, grown, i) for r in calm)
    yield from (_moved(r, 0.0, grown, copies) if isinstance(r, ScrapeRecord) else r for r in records)
    more = _grown(tail)
    for i in range(1, 1 + max(0, -int((last - began - LASTS_S) // REPEATED_S))):
        yield from (_moved(_moved(r, 0.0, grown, copies), i * REPEATED_S, more, i) for r in tail)


Growth = Mapping[tuple[str, bytes], float]
"""By target and series: what a counter grew by."""


def _grown(pages: Sequence[ScrapeRecord]) -> Growth:
    ends: dict[str, list[ScrapeRecord]] = {}
    for page in pages:
        if page.ok:
            ends.setdefault(page.target, []).append(page)
    found: dict[tuple[str, bytes], float] = {}
    for target, several in ends.items():
        before = dict(_SAMPLE.findall(several[0].body))
        for name, value in _SAMPLE.findall(several[-1].body):
            # One row lies between the last page of a copy and the first of the next: it grows as between two pages.
            share = len(several) / max(len(several) - 1, 1)
            found[target, name] = max(0.0, round((float(value) - float(before.get(name, 0))) * share, 6))
    return found


def _moved(page: ScrapeRecord, seconds: float, grown: Growth, times: int) -> ScrapeRecord:
    def further(sample: re.Match[bytes]) -> bytes:
        value = float(sample[2]) + times * grown.get((page.target, sample[1]), 0.0)
        return sample[1] + b" " + repr(value).encode()

    body = _SAMPLE.sub(further, page.body) if times else page.body
    return msgspec.structs.replace(page, t=page.t + seconds, body=body)


def share(name: str, values: Sequence[bool]) -> str:
    low, high = score.wilson(sum(values), len(values)) if values else (0.0, 1.0)
    return f"{name}: {sum(values)} of {len(values)} ({low:.0%} to {high:.0%})"


def told(document: Triage) -> str:
    """The first findings of a document, and what of it is true but too early to count."""
    first = " ".join([f.code for f in judging.in_order(document)][:4]) or "nothing"
    early = [f.code for f in document.unknown if f.since is not None]
    return f"{first} (healthy: {document.healthy}{'; early: ' + ' '.join(early) if early else ''})"


def judged(onset: Onset) -> dict[float, tuple[bool, str]]:
    """By the seconds after the onset: whether the agent's verdict is right then, and what it names."""
    return {after: (onset.is_right(document), told(document)) for after, document in documents(onset).items()}


def main(arguments: Sequence[str]) -> int:
    """Print the shares of one part, with what is named where that is wrong: of held-out ones the shares alone."""
    parser = argparse.ArgumentParser(prog="python -m tests.captures.onset")
    parser.add_argument("part", nargs="?", choices=("tuned", "held-out", "all"), default="tuned")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="recordings of that part")
    asked = parser.parse_args(arguments)
    onsets = [
        one
        for one in [*labelled(), *drawn()]
        if asked.part in ("all", "held-out" if one.held_out else "tuned")
        and (not asked.only or one.capture.stem in asked.only)
    ]
    with ProcessPoolExecutor(2) as workers:
        outcomes = list(zip(onsets, workers.map(judged, onsets), strict=True))
    for one, verdicts in outcomes:
        for moment, (is_right, said) in verdicts.items():
            if not is_right and not one.held_out:
                print(f"{one.capture.stem} at {moment:.0f} s: {said}; right is {' '.join(one.codes) or 'nothing'}")
    for moment in MOMENTS_S:
        print(share(f"first cause right at {moment:.0f} s", [v[moment][0] for one, v in outcomes if one.codes]))
        print(share(f"no trouble reported at {moment:.0f} s", [v[moment][0] for one, v in outcomes if not one.codes]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

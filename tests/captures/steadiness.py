"""How steady verdicts are: `python -m tests.captures.steadiness [NAME ...]` on every recorded incident.

Two courses of each, from when the incident had settled to the end of the recording. As the agent judges: every 5 s,
with all that was before. And as `kvitals triage` looks at a live engine: twelve seconds and nothing before them, every
3 s. A change is a first cause other than the one of the window before; a flip-flop is a change back to what was told
before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvitals.app.demo import incidents as demos
from kvitals.app.pipeline import Pipeline
from kvitals.app.sources.recording import verdicts
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Triage
from tests.captures.looks import COLD_S, cold_look, setup_of, truth

FOLDER = Path(__file__).parent / "incidents"
SETTLE_S = 10.0
"""After the load is on; a phase of a recording that ships ramps up as long."""
EVERY_S = 3.0
NOTHING = "-"


@dataclass(frozen=True)
class Steadiness:
    """What was told first in each window of one recording, in order."""

    name: str
    warm: tuple[str, ...]
    cold: tuple[str, ...]


def steadiness(capture: Path) -> Steadiness:
    """The courses of one recording."""
    start = settled(truth(capture))
    warm = tuple(first(document) for t, document in verdicts(capture, setup_of(capture)) if t >= start)
    return Steadiness(capture.stem, warm, tuple(first(cold(capture, at).triage()) for at in moments(capture)))


def settled(said: dict[str, Any]) -> float:
    """When the incident has begun: its load is on, and what is to stay dead is dead."""
    acts = [act[2] for act in said.get("acts", ())]
    began = said["began"] if "began" in said else said["phases"][-1]["start"]
    return float(max([began, *acts]) + SETTLE_S)


def moments(capture: Path) -> list[float]:
    """When live triages of an incident end, the first of them twelve seconds after it settled."""
    _, last = span_of(capture)
    at = settled(truth(capture)) + COLD_S
    return [at + i * EVERY_S for i in range(int((last - at) / EVERY_S) + 1)] if at <= last else [last]


def cold(capture: Path, at: float) -> Pipeline:
    """A live triage of twelve seconds, under the recording's own objectives."""
    return cold_look(capture, setup_of(capture), at)


def first(document: Triage) -> str:
    """What is told first, with where it is so: causes as ranked, what can not be read, symptoms without a cause."""
    weighty = [f for f in (*document.causes, *document.telemetry) if f.severity != "info"]
    alone = [s for s in document.symptoms if s.severity != "info" and not s.explained_by]
    told = [*weighty, *alone]
    return f"{told[0].code} {told[0].entity.title}" if told else NOTHING


def changes(course: Sequence[str]) -> int:
    """How often the next window says something else."""
    return sum(one != other for one, other in pairwise(course))


def flips(course: Sequence[str]) -> int:
    """How often what was told before comes back after something else was told."""
    seen: set[str] = set()
    found = 0
    for before, now in pairwise(course):
        seen.add(before)
        found += now != before and now in seen
    return found


def row(one: Steadiness) -> str:
    courses = [told for told in (one.warm, one.cold) if changes(told)]
    numbers = "".join(f"{len(told):8}{changes(told):9}{flips(told):7}" for told in (one.warm, one.cold))
    return f"{one.name:28}{numbers}" + "".join(f"\n    {_shortened(told)}" for told in courses)


def _shortened(course: Sequence[str]) -> str:
    """A course in which what stays is told once."""
    kept: list[list[Any]] = []
    for told in course:
        if kept and kept[-1][0] == told:
            kept[-1][1] += 1
        else:
            kept.append([told, 1])
    return ", ".join(f"{told} x{times}" for told, times in kept)


def recorded() -> list[Path]:
    """Recordings that are whole: their truth is written last."""
    files = [*demos(), *sorted(FOLDER.glob("*.kvcap"))]
    return [file for file in files if file.with_suffix(".truth.json").exists()]


def main(names: Sequence[str]) -> int:
    """Exit code 1 where a first cause flip-flops."""
    chosen = [file for file in recorded() if not names or file.stem in names]
    print(f"{'':28}{'windows':>8}{'changes':>9}{'flips':>7}{'cold':>8}{'changes':>9}{'flips':>7}")
    found = []
    with ProcessPoolExecutor(2) as workers:
        for one in workers.map(steadiness, chosen):
            found.append(one)
            print(row(one), flush=True)
    for title, courses in (("as the agent", [o.warm for o in found]), ("twelve seconds", [o.cold for o in found])):
        windows, pairs = sum(map(len, courses)), sum(max(len(c) - 1, 0) for c in courses)
        total, back = sum(map(changes, courses)), sum(map(flips, courses))
        steady = sum(not changes(c) for c in courses)
        print(
            f"{title}: {windows} windows of {len(courses)} recordings, {total} changes and {back} flip-flops in {pairs}"
            f" pairs; {steady} without any change"
        )
    return 1 if any(flips(o.warm) + flips(o.cold) for o in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

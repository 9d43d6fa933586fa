"""What the product says of a recorded incident, held against its label.

Two kinds of looks, as a user would have them. `kvitals triage FILE --from` the moment when the incident had begun knows
what was before it. A live triage does not: it is given the records of its seconds alone, twelve by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvitals.app.pipeline import Setup
from kvitals.app.sources.recording import Moments, judge_recording
from kvitals.app.sources.recording_reader import span_of
from kvitals.rules.finding import Finding, Triage
from tests.captures.looks import COLD_S, cold_look, setup, truth

from .incident import Incident, Label, load

SETTLE_S = 3.0
"""The load of the incident has then replaced the one before."""
ADJACENT_S = (0.0, 3.0, 6.0, 9.0)
"""Cold looks end so long before the recording does: a steady incident has one first cause in all of them."""
LENGTHS_S = (4, 6, 8, 10, 12, 15, 18, 22)
"""How long a cold look from the beginning of the incident on may have to be."""
FIRST = 3


@dataclass(frozen=True)
class Score:
    """One verdict beside its label."""

    told: tuple[str, ...]
    """What is more than information, in the order it is told."""
    healthy: bool | None
    first: bool
    in_three: bool
    missing: tuple[str, ...]
    """Codes that were to be told too, and are not."""
    extra: tuple[str, ...]
    """Causes that are not of this incident."""
    forbidden: tuple[str, ...]
    health: bool
    contradictions: tuple[str, ...] = ()
    """Levers of one verdict that ask for opposite settings of one flag."""

    @property
    def right(self) -> bool:
        return self.first and self.health and not self.missing and not self.extra and not self.forbidden


@dataclass(frozen=True)
class Outcome:
    """All that came of one run."""

    incident: Incident
    score: Score
    cold: Score
    steady: bool
    """Whether adjacent cold windows have one first cause."""
    firsts: tuple[str, ...]
    seconds: float | None
    """The shortest look from the beginning on of which the first cause is right, as it is of all longer ones."""


def incident_of(capture: Path) -> Incident:
    said = truth(capture)
    return load(said["incident"], said["seed"])


def score(document: Triage, label: Label) -> Score:
    told = tuple(dict.fromkeys(f.code for f in in_order(document)))
    every = {f.code for f in (*document.causes, *document.telemetry, *document.symptoms, *document.notes)}
    causes = [f.code for f in document.causes]
    weighty = [f.code for f in document.causes if f.severity != "info"]
    known = {*label.first, *label.also, *label.accept}
    return Score(
        told=told,
        healthy=document.healthy,
        first=(not weighty and not told) if not label.first else told[:1] != () and told[0] in label.first,
        in_three=not told if not label.first else bool(set(told[:FIRST]) & set(label.first)),
        missing=tuple(code for code in label.also if code not in every),
        extra=tuple(dict.fromkeys(code for code in weighty if code not in known)),
        forbidden=tuple(dict.fromkeys(code for code in causes if code in label.forbid)),
        health=label.healthy == "any" or document.healthy is (label.healthy == "yes"),
        contradictions=contradictions(document),
    )


def in_order(document: Triage) -> list[Finding]:
    """Causes as ranked; then what is wrong with the telemetry; then symptoms that nothing explains.

    Where the label names a cause that is for information only, it still counts as told.
    """
    symptoms = [s for s in document.symptoms if s.severity != "info" and not s.explained_by]
    telemetry = [t for t in document.telemetry if t.severity != "info"]
    causes = (
        list(document.causes)
        if symptoms or telemetry or document.healthy is False
        else [c for c in document.causes if c.severity != "info"]
    )
    return [*causes, *telemetry, *symptoms]


def contradictions(document: Triage) -> tuple[str, ...]:
    """Flags for which two offered levers want different things, on one engine."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for cause in document.causes:
        for lever in cause.levers:
            if lever.setting is not None and lever.setting.to:
                wanted.setdefault((cause.entity.title, lever.setting.flag), set()).add(lever.setting.to)
    return tuple(f"{flag}: {', '.join(sorted(values))}" for (_, flag), values in wanted.items() if len(values) > 1)


def under(incident: Incident) -> Setup:
    """The rules that ship, under the incident's objectives."""
    slo = incident.scenario.slo
    return setup(slo.ttft_p99, slo.itl_p99)


def beginning(capture: Path) -> float:
    """When the incident had begun: its load is on, and what is to stay dead is dead. A restart is a part of it."""
    said = truth(capture)
    done = [act[2] for act in said["acts"] if act[0] != "restart"]
    if len(done) < len(said["acts"]):
        return float(said["began"])
    return float(max([said["began"], *done]) + SETTLE_S)


def judge(capture: Path) -> Outcome:
    """The verdict on a recording, how steady it is and how soon it came."""
    one = incident_of(capture)
    looks = [cold(capture, before) for before in _windows(capture)]
    firsts = tuple(look.told[0] if look.told else "-" for look in looks)
    return Outcome(
        incident=one,
        score=warm(capture),
        cold=looks[0],
        steady=len(set(firsts)) == 1,
        firsts=firsts,
        seconds=_seconds(capture, one),
    )


def warm(capture: Path) -> Score:
    """At the end of the recording, of the incident, with what was before it as history."""
    one = incident_of(capture)
    _, last = span_of(capture)
    document = judge_recording(capture, under(one), Moments(at=last, start=beginning(capture))).document
    return score(document, one.label)


def cold(capture: Path, before: float = 0.0) -> Score:
    """Twelve seconds that end so long before the recording does."""
    _, last = span_of(capture)
    return _cold(capture, incident_of(capture), last - before - COLD_S, last - before)


def _windows(capture: Path) -> Sequence[float]:
    """Those of the adjacent windows that lie within the incident."""
    _, last = span_of(capture)
    inside = [before for before in ADJACENT_S if last - before - COLD_S >= beginning(capture) - SETTLE_S]
    return inside or ADJACENT_S[:1]


def _cold(capture: Path, one: Incident, start: float, at: float) -> Score:
    """A live triage that began to look at `start`."""
    return score(cold_look(capture, under(one), at, at - start).triage(), one.label)


def _seconds(capture: Path, one: Incident) -> float | None:
    _, last = span_of(capture)
    start = beginning(capture) - SETTLE_S
    found: float | None = None
    for seconds in (length for length in LENGTHS_S if start + length <= last):
        right = _cold(capture, one, start, start + seconds).first
        found = (float(seconds) if found is None else found) if right else None
    return found


def runs(folder: Path) -> Sequence[Path]:
    """Recordings that are whole: the truth is written last."""
    return sorted(file for file in folder.glob("*.kvcap") if file.with_suffix(".truth.json").exists())

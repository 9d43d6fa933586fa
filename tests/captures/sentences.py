"""Sentences of verdicts, held against the numbers of the same document.

`python -m tests.captures.sentences [NAME ...]` checks every recording, or those named. Every number that a conclusion
says is looked up again in the finding's measures and in the series drawn as its evidence, every comparison that is told
is compared again, and what the verdict counts is counted again from the raw histogram.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from kvitals.app.pipeline import Pipeline
from kvitals.app.sources.recording_reader import span_of
from kvitals.diagnoser.text import render
from kvitals.rules.finding import Finding, Measure, Triage
from kvitals.rules.loader import PLACEHOLDER, SIGNAL_PREFIX, Knowledge
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from tests.captures.looks import cold_look, setup_of
from tests.captures.steadiness import recorded
from tests.support.recordings import judge

_NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
_UNIT = r" ?(?:%|ms|s\b|min|h\b|days|/s|tokens|requests|blocks|[kMGT]?B\b)?"
_COMPARED = re.compile(
    rf"is (?P<left>{_NUMBER})(?P<unit>{_UNIT}), (?P<how>not above|not below|above|below|at least|at most) "
    rf"(?:[^,()]+ \()?(?P<right>{_NUMBER})(?P<unit_right>{_UNIT})"
)
_TIMES = {"ms": 1e-3, "min": 60.0, "h": 3600.0, "days": 86_400.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_PART = re.compile(rf"\b(?P<part>{_NUMBER}) of (?:the |its )?(?P<whole>{_NUMBER})\b")
_LASTED = re.compile(r"first tokens in time in (?P<seconds>[\d.,]+ (?:s|min|h))")
_STRETCH = re.compile(r"\d\d:\d\d:\d\d to (?:\S+ )?\d\d:\d\d:\d\d UTC")
"""The time of the look-ups that a prediction replays, in its method: its figures are of that time."""
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "above": lambda left, right: left > right,
    "below": lambda left, right: left < right,
    "not above": lambda left, right: left <= right,
    "not below": lambda left, right: left >= right,
    "at least": lambda left, right: left >= right,
    "at most": lambda left, right: left <= right,
}
_IN_TIME = re.compile(r"(?P<kept>[\d,]+) of (?P<seen>[\d,]+) first tokens in time")


QUOTIENTS = re.compile(r"change|_per_|_seen_ratio$|^reuse_gap_share$|^kv_share_at_p95$")
"""Signals that are written in percent and are no part of a whole: one thing over another, or a change."""


def wrong(pipeline: Pipeline) -> list[str]:
    """The sentences of the last document that its own numbers do not bear out."""
    document, knowledge = pipeline.triage(), pipeline.judge.knowledge
    findings = [*document.causes, *document.symptoms, *document.telemetry, *document.notes]
    found = [f"{f.code}: {text}" for f in findings for text in _of(f, knowledge)]
    found += [f"ruled out {r.code}: {text}" for r in document.ruled_out for text in _compared(r.because)]
    found += [f"unfounded: {f.code} has no sentence" for f in findings if not f.conclusion]
    return [*found, *_counted(pipeline, document), *_timed(document), *_alternatives(pipeline, document)]


def _of(finding: Finding, knowledge: Knowledge) -> Iterator[str]:
    measures = {measure.signal: measure for measure in finding.measures}
    for name, told in _told(knowledge.rules[finding.code].conclusion, measures):
        if told not in finding.conclusion:
            yield f"{name} is {told}, and the sentence is “{finding.conclusion}”"
    for measure in finding.measures:
        if measure.unit == "ratio" and not QUOTIENTS.search(measure.signal) and not 0 <= (measure.value or 0) <= 1:
            yield f"{measure.signal} is a share of {measure.text}"
    yield from _objective(finding, measures)
    for evidence in finding.evidence:
        shown = measures.get(evidence.query.removeprefix(SIGNAL_PREFIX))
        if shown is None or shown.value is None or not evidence.lines:
            continue
        last = evidence.lines[0].points[-1].value
        if last != pytest.approx(shown.value, rel=1e-6):
            yield f"{shown.signal} is {shown.value} in the sentence and {last} at the end of its series"
        if evidence.text != render(shown.value, shown.unit):
            yield f"{shown.signal} is {shown.text} in the sentence and {evidence.text} as evidence"
    yield from _compared(finding.conclusion)
    yield from _parts(finding.conclusion)
    if re.search(r"\bunknown\b", finding.conclusion) and "state of this engine is unknown" not in finding.conclusion:
        yield f"a number is unknown in “{finding.conclusion}”"
    for lever in finding.levers:
        for predicted in lever.predicted:
            measured = measures.get(predicted.metric)
            if measured is None or measured.value is None or _STRETCH.search(predicted.method):
                continue
            if predicted.from_ != pytest.approx(measured.value):
                yield f"{lever.lever} predicts from {predicted.from_}, and {predicted.metric} is {measured.value}"


def _parts(text: str) -> Iterator[str]:
    """Parts that are told to be more than the whole."""
    for one in _PART.finditer(text):
        if _plain(one["part"]) > _plain(one["whole"]):
            yield f"“{one[0]}” is more than all"


def _timed(document: Triage) -> Iterator[str]:
    """Times and durations of the verdict that are not those of the document."""
    window, regime = document.window, document.regime
    if window.end - window.start != pytest.approx(window.seconds, abs=0.01):
        yield f"the window is of {window.seconds} s, and begins at {window.start} and ends at {window.end}"
    if (lasted := _LASTED.search(document.verdict)) and lasted["seconds"] != render(window.seconds, "seconds"):
        yield f"the window is of {window.seconds} s, and the verdict is “{document.verdict}”"
    if regime is not None:
        if datetime.fromtimestamp(regime.since, UTC).strftime("%H:%M:%S") not in regime.sentence:
            yield f"the regime began at {regime.since}, and its sentence is “{regime.sentence}”"
        if not regime.before_start < regime.since <= window.start + 0.01 < window.end:
            yield f"the regime {regime} is not before the window from {window.start}"
    for finding in (*document.causes, *document.symptoms, *document.telemetry, *document.notes):
        if finding.since is not None and finding.since > window.end:
            yield f"{finding.code} is true since {finding.since}, after the window"


def _alternatives(pipeline: Pipeline, document: Triage) -> Iterator[str]:
    """Conditions that a conclusion names as true and that are not, decided again by the document's judge."""
    for judgement in pipeline.judgements:
        if judgement.outcome == "fired" and judgement.verdict is not None and judgement.short is None:
            why = pipeline.judge.why_true(judgement)
            entity = dict(judgement.entity)
            told = [
                finding.conclusion
                for finding in (*document.causes, *document.symptoms, *document.telemetry, *document.notes)
                if finding.code == judgement.rule.code and finding.entity.labels == entity
            ]
            if why and told and not any(why in conclusion for conclusion in told):
                yield f"{judgement.rule.code}: “{why}” is not in “{told[0]}”"


def _plain(number: str) -> float:
    return float(number.replace(",", ""))


def _compared(text: str) -> Iterator[str]:
    """Comparisons in a text that do not hold between the numbers that it tells."""
    for one in _COMPARED.finditer(text):
        left, right = (
            _plain(one[number]) * _TIMES.get(one[unit].strip(), 1.0)
            for number, unit in (("left", "unit"), ("right", "unit_right"))
        )
        if not _HOLDS[one["how"]](left, right):
            yield f"“{one[0]}” does not hold"


def _objective(finding: Finding, measures: Mapping[str, Measure]) -> Iterator[str]:
    """A breach that its own numbers do not show, and that does not say that it is over."""
    for code, taken, allowed in (
        ("LAT01", "ttft_p99_seconds", "slo_ttft_seconds"),
        ("LAT02", "itl_p99_seconds", "slo_itl_seconds"),
    ):
        if finding.code != code or taken not in measures or "Last true at" in finding.conclusion:
            continue
        value, limit = measures[taken].value, measures[allowed].value
        if value is not None and limit is not None and value <= limit:
            yield f"{taken} is {measures[taken].text}, and the objective {measures[allowed].text}"


def _counted(pipeline: Pipeline, document: Triage) -> Iterator[str]:
    """Whether as many first tokens came, and none late, as the verdict says."""
    said = _IN_TIME.search(document.verdict)
    if said is None or document.verdict[: said.start()].endswith("% of "):
        return
    kept, seen = (int(said[name].replace(",", "")) for name in ("kept", "seen"))
    kept_by = {j.entity["engine"] for j in pipeline.judgements if j.rule.code == "LAT01" and j.outcome == "clear"}
    by_system: dict[str, set[str]] = {}  # a frontend and the engines behind it count the same requests
    for row in document.engines:
        by_system.setdefault(row.about.get("system", ""), set()).update(kept_by & {row.entity.title})
    objective = max(slo.seconds for slo in document.slo if slo.name.startswith("ttft")) if document.slo else None
    counted = {
        system: (
            _grown(pipeline, document, "kvitals_ttft_seconds_count", None, engines),
            _grown(pipeline, document, "kvitals_ttft_seconds_bucket", objective, engines),
        )
        for system, engines in by_system.items()
    }
    came = max(every for every, _ in counted.values())
    late = sum(every - in_time for every, in_time in counted.values())
    # PromQL extrapolates to the ends of the window, by at most a tenth here, and rounds.
    if kept != seen or abs(seen - came) > 0.2 * came + 2:
        yield f"{came:g} first tokens were counted in the window, and the verdict is “{document.verdict}”"
    if objective is not None and late > 0:
        yield f"{late:g} first tokens were late, and the verdict is “{document.verdict}”"


def _grown(pipeline: Pipeline, document: Triage, name: str, bound: float | None, engines: Collection[str]) -> float:
    """What a counter of some engines grew by in the window; of a histogram's bucket, of the largest within `bound`."""
    families = pipeline.judge.signals.source.families
    grown: dict[str, dict[float, float]] = {}
    for frame in families.select([Matcher(METRIC_NAME, MatchOp.EQ, name)], document.window.start, document.window.end):
        for column, labels in enumerate(frame.labels):
            values = frame.values[:, column]
            values = values[values == values]
            edge = float(labels.get("le", "0"))
            if labels.get("engine") in engines and len(values) and (bound is None or edge <= bound):
                one = grown.setdefault(labels.get("engine", ""), {})
                steps = np.diff(values)  # one below 0 is a restart
                one[edge] = one.get(edge, 0.0) + float(np.where(steps < 0, values[1:], steps).sum())
    return sum(edges[max(edges)] for edges in grown.values())


def _told(template: str, measures: Mapping[str, Measure]) -> Iterator[tuple[str, str]]:
    """The signals of a rule's sentences with their values as text; a sentence with an unknown number is left out."""
    known = {name for name, measure in measures.items() if measure.value is not None}

    def whole(found: re.Match[str]) -> str:
        return found[0] if known.issuperset(set(PLACEHOLDER.findall(found[0])) & measures.keys()) else ""

    template = re.sub(r" \([^()]*\)", whole, template)
    for sentence in re.split(r"(?<=[.;]) +(?=[A-Z{])", template.strip()):
        names = [name for name in PLACEHOLDER.findall(sentence) if name in measures]
        if all(measures[name].value is not None for name in names):
            yield from ((name, render(measures[name].value, measures[name].unit)) for name in names)


def of_capture(capture: Path) -> tuple[str, int, list[str]]:
    """A recording, how many sentences its documents have, and what is wrong with them: the cold one of its last twelve
    seconds, and the one of `kvitals triage FILE`."""
    _, last = span_of(capture)
    under = setup_of(capture)
    several = [cold_look(capture, under, last), judge(capture, under).pipeline]
    found = [text for pipeline in several for text in wrong(pipeline)]
    documents = [pipeline.triage() for pipeline in several]
    return capture.stem, sum(1 + len(d.causes) + len(d.symptoms) + len(d.notes) for d in documents), found


def main(names: Sequence[str]) -> int:
    captures = [capture for capture in recorded() if not names or capture.stem in names]
    with ProcessPoolExecutor() as workers:
        outcomes = list(workers.map(of_capture, captures))
    for name, _, found in outcomes:
        print(*(f"{name}: {text}" for text in found), sep="\n", end="\n" if found else "")
    print(f"{sum(count for _, count, _ in outcomes)} sentences of {len(outcomes)} recordings")
    return 1 if any(found for _, _, found in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sentences of verdicts, held against the numbers of the same document.

`python -m tests.captures.sentences [NAME ...]` checks every recording, or those named. Every number that a conclusion
says is looked up again in the finding's measures and in the series drawn as its evidence, every comparison that is told
is compared again, and what the verdict counts is counted again from the raw histogram.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from kvitals.app.pipeline import Pipeline
from kvitals.app.sources.recording import span_of
from kvitals.diagnoser.text import render
from kvitals.rules.finding import Finding, Triage
from kvitals.rules.loader import PLACEHOLDER, SIGNAL_PREFIX, Knowledge
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp
from tests.captures.looks import cold_look, setup_of
from tests.captures.steadiness import recorded

_COMPARED = re.compile(
    r"is (?P<left>-?[\d.,]+)(?P<unit> ?[^\s,.]*), (?P<how>not above|not below|above|below|at least|at most)"
    r" (?P<right>-?[\d.,]*\d)(?P=unit)(?!\w)"
)
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "above": lambda left, right: left > right,
    "below": lambda left, right: left < right,
    "not above": lambda left, right: left <= right,
    "not below": lambda left, right: left >= right,
    "at least": lambda left, right: left >= right,
    "at most": lambda left, right: left <= right,
}
_IN_TIME = re.compile(r"(?P<kept>[\d,]+) of (?P<seen>[\d,]+) first tokens in time")


def wrong(pipeline: Pipeline) -> list[str]:
    """The sentences of the last document that its own numbers do not bear out."""
    document, knowledge = pipeline.triage(), pipeline.judge.knowledge
    findings = [*document.causes, *document.symptoms, *document.telemetry, *document.notes]
    found = [f"{f.code}: {text}" for f in findings for text in _of(f, knowledge)]
    found += [f"ruled out {r.code}: {text}" for r in document.ruled_out for text in _compared(r.because)]
    found += [f"unfounded: {f.code} has no sentence" for f in findings if not f.conclusion]
    return [*found, *_counted(pipeline, document)]


def _of(finding: Finding, knowledge: Knowledge) -> Iterator[str]:
    measures = {measure.signal: measure for measure in finding.measures}
    for name in PLACEHOLDER.findall(knowledge.rules[finding.code].conclusion):
        if name not in knowledge.signals:
            continue
        measure = measures[name]
        told = render(measure.value, measure.unit) if measure.value is not None else None
        if told is not None and told not in finding.conclusion:
            yield f"{name} is {told}, and the sentence is “{finding.conclusion}”"
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


def _compared(text: str) -> Iterator[str]:
    """Comparisons in a text that do not hold between the numbers that it tells."""
    for one in _COMPARED.finditer(text):
        left, right = (float(one[side].replace(",", "")) for side in ("left", "right"))
        if not _HOLDS[one["how"]](left, right):
            yield f"“{one[0]}” does not hold"


def _counted(pipeline: Pipeline, document: Triage) -> Iterator[str]:
    """Whether as many first tokens came, and none late, as the verdict says."""
    said = _IN_TIME.search(document.verdict)
    if said is None or document.verdict[: said.start()].endswith("% of "):
        return
    kept, seen = (int(said[name].replace(",", "")) for name in ("kept", "seen"))
    came = _grown(pipeline, document, "kvitals_ttft_seconds_count", None)
    objective = max(slo.seconds for slo in document.slo if slo.name.startswith("ttft")) if document.slo else None
    late = came - _grown(pipeline, document, "kvitals_ttft_seconds_bucket", objective)
    # PromQL extrapolates to the ends of the window, by at most a tenth here, and rounds.
    if kept != seen or abs(seen - came) > 0.2 * came + 2:
        yield f"{came:g} first tokens were counted in the window, and the verdict is “{document.verdict}”"
    if objective is not None and late > 0:
        yield f"{late:g} first tokens were late, and the verdict is “{document.verdict}”"


def _grown(pipeline: Pipeline, document: Triage, name: str, bound: float | None) -> float:
    """What a counter grew by in the window, over all its series; of a histogram's bucket, of the largest within it."""
    families = pipeline.judge.signals.source.families
    grown: dict[str, dict[float, float]] = {}
    for frame in families.select([Matcher(METRIC_NAME, MatchOp.EQ, name)], document.window.start, document.window.end):
        for column, labels in enumerate(frame.labels):
            values = frame.values[:, column]
            values = values[values == values]
            edge = float(labels.get("le", "0"))
            if len(values) and (bound is None or edge <= bound):
                one = grown.setdefault(labels.get("engine", ""), {})
                one[edge] = one.get(edge, 0.0) + float(values[-1] - values[0])
    return sum(edges[max(edges)] for edges in grown.values())


def of_capture(capture: Path) -> tuple[str, int, list[str]]:
    """A recording, how many sentences its cold document has, and what is wrong with them."""
    _, last = span_of(capture)
    pipeline = cold_look(capture, setup_of(capture), last)
    document = pipeline.triage()
    found = wrong(pipeline)
    return capture.stem, 1 + sum(map(len, (document.causes, document.symptoms, document.notes))), found


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

"""Levers that were offered on recorded incidents, checked: `python -m tests.captures.levers_offered [NAME ...]`.

Each document's levers are held against the window that it was made from, by PromQL and not by what chose them: none is
in force or set as it would be, all are possible on the engine and its version, none contradict each other, each moves
some of what is amiss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kvitals.app.pipeline import Pipeline
from kvitals.rules.authoring import explained_codes
from kvitals.rules.finding import Finding, LeverAdvice, Triage
from kvitals.rules.loader import Knowledge, parameters
from kvitals.rules.model import SCOPES
from kvitals.rules.versions import in_range
from kvitals.series.promql import evaluate, expand, parse
from kvitals.series.types import Labels
from tests.captures.steadiness import cold, moments, recorded


def wrong(pipeline: Pipeline) -> list[str]:
    """What is wrong with the levers of the last document."""
    document = pipeline.triage()
    found = [f"{f.code} {a.lever}: {text}" for f in told(document) for a in f.levers for text in _one(pipeline, f, a)]
    return found + list(_together(document, pipeline.judge.knowledge))


def told(document: Triage) -> list[Finding]:
    return [*document.causes, *document.symptoms, *document.telemetry, *document.notes]


def _one(pipeline: Pipeline, finding: Finding, advice: LeverAdvice) -> Iterator[str]:
    knowledge = pipeline.judge.knowledge
    rule, lever = knowledge.rules[finding.code], knowledge.levers[advice.lever]
    use = next(use for use in rule.levers if use.lever == lever.name)
    if lever.in_force and _is_so(pipeline, finding, lever.in_force):
        yield "is in force"
    for condition in (lever.possible, use.when):
        if condition and not _is_so(pipeline, finding, condition):
            yield f"is not possible: {condition}"
    if advice.setting is not None and advice.setting.now and advice.setting.now == advice.setting.to:
        yield f"{advice.setting.flag} is {advice.setting.to} already"
    if lever.direction and advice.setting is not None and advice.setting.now and advice.setting.to.isdecimal():
        rises = float(advice.setting.to) > float(advice.setting.now)
        if rises != (lever.direction == "up"):
            yield f"sets {advice.setting.to}, now {advice.setting.now}: {lever.direction} is its direction"
    yield from _fits_engine(pipeline, finding, advice)
    fired = {one.code for one in told(pipeline.triage())}
    amiss = {
        q
        for code in explained_codes(rule, knowledge) | {rule.code}
        if code in fired
        for q in knowledge.rules[code].about
    }
    if amiss and not amiss & set(lever.moves):
        yield f"moves {lever.moves}, amiss is {sorted(amiss)}"


def _fits_engine(pipeline: Pipeline, finding: Finding, advice: LeverAdvice) -> Iterator[str]:
    """What is told of a setting is for the engine's system and version; without one it is done elsewhere."""
    lever = pipeline.judge.knowledge.levers[advice.lever]
    told_of = evaluate(parse("kvitals_engine_info"), pipeline.node.window, pipeline.triage().window.end)
    assert not isinstance(told_of, float)
    infos = [
        labels for labels in told_of.labels if labels.keep(list(finding.entity.labels)) == Labels(finding.entity.labels)
    ]
    systems = {labels.get("system", "") for labels in infos} - {""}
    if advice.setting is None and lever.settings and not lever.outside and systems:
        yield f"there is no setting for {', '.join(systems)}"
    if advice.setting is not None and not any(
        setting.flag == advice.setting.flag
        and setting.system == labels.get("system")
        and (not labels.get("version") or in_range(labels.get("version", ""), setting.versions))
        for setting in lever.settings
        for labels in infos
    ):
        yield f"{advice.setting.flag} is not of {[(i.get('system'), i.get('version')) for i in infos]}"


def _together(document: Triage, knowledge: Knowledge) -> Iterator[str]:
    """Contradictions between levers of one entity, or of one and what it is part of."""
    offered = [(finding, advice) for finding in told(document) for advice in finding.levers]
    for i, (finding, advice) in enumerate(offered):
        for other, against in offered[:i]:
            if not _meet(finding, other):
                continue
            pair = f"{finding.code} {advice.lever} and {other.code} {against.lever} on {finding.entity.title}"
            one, two = knowledge.levers[advice.lever], knowledge.levers[against.lever]
            if one.name in two.contradicts or two.name in one.contradicts:
                yield f"{pair} contradict each other"
            mine, its = advice.setting, against.setting
            if mine and its and mine.flag == its.flag and mine.to != its.to and _number(mine.to) and _number(its.to):
                yield f"{pair} set {mine.flag} to {mine.to} and to {its.to}"


def _meet(one: Finding, other: Finding) -> bool:
    """Whether one is of the other's entity, or of a part of it; a pool's engines are not told by their labels."""
    if "pool" in (one.entity.kind, other.entity.kind) and one.entity.kind != other.entity.kind:
        return True
    mine, its = one.entity.labels.items(), other.entity.labels.items()
    return mine <= its or its <= mine


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _is_so(pipeline: Pipeline, finding: Finding, text: str) -> bool:
    """Whether an expression has a value for a finding's entity."""
    rule, span = pipeline.judge.knowledge.rules[finding.code], pipeline.span
    assert span is not None
    names = SCOPES[rule.scope]
    values = {**parameters(rule), **span.windows.values("fast", rule.scope)}
    result = evaluate(parse(expand(text, values)), pipeline.judge.signals.source, span.at)
    if isinstance(result, float):
        return True
    return any(labels.keep(names) == Labels(finding.entity.labels) for labels in result.labels)


def of_capture(capture: Path) -> tuple[str, int, list[str]]:
    """A recording's name, how many levers were offered in its last cold look, and what is wrong with them."""
    pipeline = cold(capture, moments(capture)[-1])
    return capture.stem, sum(len(f.levers) for f in told(pipeline.triage())), wrong(pipeline)


def main(names: Sequence[str]) -> int:
    """Exit code 1 where a lever should not have been offered."""
    chosen = [file for file in recorded() if not names or file.stem in names]
    offered, bad = 0, 0
    with ProcessPoolExecutor(2) as workers:
        for name, levers, found in workers.map(of_capture, chosen):
            offered, bad = offered + levers, bad + len(found)
            for text in found:
                print(f"{name}: {text}", flush=True)
    print(f"{offered} levers offered in {len(chosen)} recordings, {bad} that should not have been")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

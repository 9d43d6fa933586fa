"""The last regime of a recording: the time since its last change of level, and the verdict on what was before."""

from __future__ import annotations

from collections.abc import Sequence

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.findings import Mute
from kvitals.diagnoser.regimes import LevelChange, level_changes
from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.diagnoser.steps import Ask, row_gap
from kvitals.diagnoser.triage import Brief, brief
from kvitals.rules.finding import Regime
from kvitals.series.promql import evaluate_range
from kvitals.series.types import SeriesSource

MAX_SECONDS = 60.0
"""Of a regime that are judged: the fast window of an agent."""


def last_regime(judge: Judge, mutes: Sequence[Mute], first: float, at: float) -> Regime | None:
    """Since when the verdict at `at` holds, where the level of load or latency changed then; None where it did not, or
    where the time since then is too short to judge.

    Adjacent regimes with the same verdict are one: a queue that grows in steps is the same trouble. first: when the
    recording begins; both in seconds since the epoch.
    """
    source = judge.signals.source.families
    gap = row_gap(source, first, at)
    changes = level_changes(_ask(source), first, at, gap) if gap is not None else []
    if not changes:
        return None
    now = _brief(judge, mutes, changes[-1].at, at)
    if now.healthy is None:
        return None
    for i in range(len(changes) - 1, -1, -1):
        start = changes[i - 1].at if i else first
        before = _brief(judge, mutes, start, changes[i].until)
        if not _alike(before, now):
            return _regime(changes[i], before, start)
    return None


def _ask(source: SeriesSource) -> Ask:
    return lambda expr, start, end, step: evaluate_range(expr, source, start, end, step)


def _brief(judge: Judge, mutes: Sequence[Mute], start: float, end: float) -> Brief:
    """The verdict on the end of a regime alone."""
    span = EvaluationSpan(end, round(min(end - start, MAX_SECONDS)), cold=True)
    alone, judgements = judge.judge_alone(span)
    return brief(alone, judgements, span, mutes)


def _alike(before: Brief, now: Brief) -> bool:
    """Whether two regimes have one verdict. Where nothing is wrong, one with too little data to judge is no other. A
    symptom that had no known cause before and has one now is the same trouble."""
    if now.healthy:
        return before.healthy is not False
    if before.healthy is not False:
        return False
    unexplained = not any(finding.kind == "cause" for finding in before.open)
    return before.verdict == now.verdict or (unexplained and not _felt(before).isdisjoint(_felt(now)))


def _felt(of: Brief) -> set[str]:
    """The ids of the open symptoms that ask for something."""
    return {finding.id for finding in of.open if finding.kind == "symptom" and finding.severity != "info"}


def _regime(change: LevelChange, before: Brief, start: float) -> Regime:
    return Regime(
        since=round(change.at, 3),
        changed=[str(change)],
        before=before.verdict,
        before_healthy=before.healthy,
        before_start=round(start, 3),
    )

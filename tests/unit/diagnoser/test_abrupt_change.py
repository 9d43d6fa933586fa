"""After an abrupt change a symptom counts before its `for` is over, once the seconds since then show it too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvitals.diagnoser.cases.notation import WrittenSeries
from kvitals.diagnoser.cases.running import Bench
from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.diagnoser.triage import headline
from kvitals.rules.loader import load

KNOWLEDGE = load()
_ALONE = Bench(KNOWLEDGE).alone("LAT01")
ALONE = replace(_ALONE, signals={**_ALONE.signals, "ttft_requests": KNOWLEDGE.signals["ttft_requests"]})
START, STEP, BEFORE = 1_700_000_000.0, 5.0, 30
CHANGE = START + BEFORE * STEP


def requests(late: str) -> dict[str, str]:
    """An engine with ten first tokens per sample. late: how many of them take 4 s after the change, in a case file's
    notation; all of the others take less than 1 s, and the objective is 2 s."""
    late_before = f"0x{BEFORE}"
    return {
        'kvitals_target_up{engine="e"}': f"1x{BEFORE + 30}",
        'kvitals_slo_seconds{engine="e",slo="ttft_p99",class=""}': f"2x{BEFORE + 30}",
        'kvitals_ttft_seconds_bucket{engine="e",le="1"}': f"0+10x{BEFORE} {late}",
        'kvitals_ttft_seconds_bucket{engine="e",le="5"}': f"0+10x{BEFORE + 30}",
        'kvitals_ttft_seconds_bucket{engine="e",le="+Inf"}': f"0+10x{BEFORE + 30}",
        'kvitals_ttft_seconds_count{engine="e"}': f"0+10x{BEFORE + 30}",
        'kvitals_requests_running{engine="e"}': f"{late_before} 4x29",
    }


LASTING = requests(f"{10 * BEFORE}x29")
HICCUP = requests(f"{10 * BEFORE} {10 * BEFORE + 10}+10x28")


def course(series: dict[str, str], *, glances: bool = True) -> list[tuple[float, Judgement, str]]:
    """Seconds since the change, what is judged then, and the verdict; each 5 s as an agent does."""
    source = WrittenSeries(series, START, STEP)
    judge = Judge(ALONE, Signals(ALONE, source), glances=glances)
    found = []
    for number in range(BEFORE + 20):
        span = EvaluationSpan(START + number * STEP)
        judgements = judge.judge(span)
        found.append((span.at - CHANGE, judgements[0], headline(judge, judgements, span)))
    return [one for one in found if one[0] > 0]


def first_fired(found: list[tuple[float, Judgement, str]]) -> float:
    return next(after for after, judgement, _ in found if judgement.outcome == "fired")


def test_a_lasting_change_counts_within_twenty_seconds() -> None:
    assert first_fired(course(LASTING)) <= 20
    assert first_fired(course(LASTING, glances=False)) > 30


def test_it_stays_one_episode_when_its_time_is_over() -> None:
    since = {judgement.since for after, judgement, _ in course(LASTING) if judgement.outcome == "fired"}
    slow = {judgement.since for _, judgement, _ in course(LASTING, glances=False) if judgement.outcome == "fired"}
    assert len(since) == 1
    assert since == slow


def test_a_hiccup_counts_no_earlier_than_by_its_time() -> None:
    assert first_fired(course(HICCUP)) == first_fired(course(HICCUP, glances=False))


@pytest.mark.parametrize("series", [LASTING, HICCUP], ids=["lasting", "hiccup"])
def test_no_verdict_is_no_trouble_while_the_objective_is_breached(series: dict[str, str]) -> None:
    verdicts = [verdict for _, judgement, verdict in course(series) if judgement.is_true]
    assert verdicts
    assert [verdict for verdict in verdicts if verdict.startswith("No trouble")] == []

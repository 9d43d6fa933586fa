"""Eviction cascades: stages in the order of their times, and what looks like one and is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kvitals.kvcache.cascade import EVICTION, LATENCY, PREFILL, PRESSURE, THROUGHPUT, Cascade, CascadeSecond, Detector

FULL = CascadeSecond(0.0, stored=20, removed=20, requests=10, ttft=1.0, late=0, waiting=0, running=4, output=200)
"""A second of a full cache that is well: what comes in pushes out what nobody wants."""

BURST = replace(FULL, stored=100, removed=100)
LOST = replace(BURST, refaulted=20, absent=1.0)
SLOW = replace(LOST, ttft=5.0, waiting=3)
STUCK = replace(SLOW, running=8, output=100)


def fed(*stretches: tuple[CascadeSecond, int], detector: Detector | None = None) -> Detector:
    """A detector after rows: each as often as it says."""
    detector = detector or Detector()
    t = 1000.0
    for row, times in stretches:
        for _ in range(times):
            detector.feed(replace(row, t=t))
            t += 1
    return detector


def only(detector: Detector) -> Cascade:
    found = [*detector.ended, *([detector.open] if detector.open else [])]
    assert len(found) == 1
    return found[0]


def test_a_full_cache_that_is_well_is_none() -> None:
    detector = fed((FULL, 600))
    assert (detector.stage, detector.ended, detector.pressure) == (0, [], None)
    assert not detector.is_cold


def test_few_blocks_wanted_again_are_none() -> None:
    assert fed((replace(FULL, refaulted=0.8), 600)).stage == 0


def test_a_scan_presses_and_is_none() -> None:
    detector = fed((FULL, 60), (BURST, 60))
    assert detector.stage == PRESSURE
    detector = fed((FULL, 60), (BURST, 60), (FULL, 60))
    assert (detector.stage, detector.ended) == (0, [])


def test_a_warm_up_is_none() -> None:
    filling = replace(FULL, stored=100, removed=0, ttft=5.0, waiting=3)
    detector = fed((FULL, 60), (replace(filling, cleared=True), 1), (filling, 60))
    assert (detector.stage, detector.ended, detector.is_cold) == (0, [], True)


def test_a_restart_ends_one() -> None:
    detector = fed((FULL, 60), (LOST, 30), (replace(FULL, cleared=True, removed=0), 1), (replace(FULL, removed=0), 30))
    cascade = only(detector)
    assert (cascade.cut, cascade.ended, detector.stage) == (True, 1090.0, 0)


def test_the_stages_come_in_the_order_of_their_times() -> None:
    detector = fed((FULL, 60), (BURST, 10), (LOST, 20), (SLOW, 20), (STUCK, 30))
    cascade = only(detector)
    assert list(cascade.stages) == [PRESSURE, EVICTION, PREFILL, LATENCY, THROUGHPUT]
    assert all(a.began <= b.began for a, b in pairwise(cascade.stages.values()))
    began = [onset.began for onset in cascade.stages.values()]
    for found, true in zip(began, (1060, 1069, 1070, 1090, 1110), strict=True):
        assert true - 1 <= found <= true + 8
    assert all(onset.said >= onset.began for onset in cascade.stages.values())
    assert not any(onset.before for onset in cascade.stages.values())
    assert detector.stage == THROUGHPUT


def test_what_was_so_before_is_marked() -> None:
    detector = fed((FULL, 60), (replace(BURST, ttft=5.0), 30), (LOST, 1), (SLOW, 20))
    onset = only(detector).stages[LATENCY]
    assert onset.before
    assert onset.began == only(detector).stages[PREFILL].began


def test_latency_without_what_leads_to_it_is_none() -> None:
    assert fed((FULL, 60), (replace(FULL, ttft=9.0, waiting=8), 60)).stage == 0


def test_less_output_since_less_is_asked_is_no_stage() -> None:
    idle = replace(SLOW, running=1, waiting=0, output=50)
    assert THROUGHPUT not in only(fed((FULL, 60), (SLOW, 30), (idle, 30))).stages


def test_it_ends_when_nothing_is_wanted_again_for_a_while() -> None:
    detector = fed((FULL, 60), (LOST, 30), (FULL, 5), (LOST, 10), (FULL, 40))
    cascade = only(detector)
    assert cascade.ended == pytest.approx(1105, abs=6)
    assert detector.stage == 0
    assert cascade.refaulted == pytest.approx(40 * 20, rel=0.05)


def test_two_that_lie_apart_are_two() -> None:
    assert len(fed((FULL, 60), (LOST, 30), (FULL, 60), (LOST, 30), (FULL, 60)).ended) == 2


def test_without_a_baseline_what_needs_one_is_not_said() -> None:
    cascade = only(fed((STUCK, 30)))
    assert list(cascade.stages) == [EVICTION, PREFILL]
    assert cascade.baseline.stored is None


def test_a_missed_objective_needs_no_baseline() -> None:
    cascade = only(fed((STUCK, 30), (replace(STUCK, late=5), 30)))
    assert LATENCY in cascade.stages
    assert cascade.alarm is not None


def test_a_warning_leads_the_alarm() -> None:
    cascade = only(fed((FULL, 60), (BURST, 10), (LOST, 20), (replace(SLOW, late=5), 20)))
    assert cascade.warned < cascade.called < 1090 <= (cascade.alarm or 0)


def test_an_alarm_that_was_there_before_has_no_lead() -> None:
    cascade = only(fed((replace(FULL, late=5), 60), (replace(LOST, late=5), 30)))
    assert cascade.alarmed_before
    assert cascade.alarm is None


def test_a_load_that_stays_becomes_usual() -> None:
    detector = fed((FULL, 60), (BURST, 640), (BURST, 60))
    assert detector.stage == 0
    assert detector.baseline.stored == pytest.approx(100)


def test_unknown_pace_leaves_the_later_stages_unknown() -> None:
    bare = CascadeSecond(0.0, stored=20, removed=20)
    cascade = only(fed((bare, 60), (replace(bare, stored=100, removed=100, refaulted=20), 60)))
    assert list(cascade.stages) == [PRESSURE, EVICTION, PREFILL]

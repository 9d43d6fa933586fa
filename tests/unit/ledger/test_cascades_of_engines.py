"""Cascades of engines: fed from what ledgers count, told as series and as JSON, with who and what set them off."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvitals.agent.ledger.block_table import EngineStep
from kvitals.agent.ledger.cascade_facts import EnginePace
from kvitals.agent.ledger.cascade_tracker import CascadeReport, EngineCascades
from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.event import GPU
from kvitals.agent.ledger.parties import Party
from kvitals.agent.ledger.tally import Tally
from kvitals.agent.requests.record import RequestRecord
from kvitals.kvcache.cascade import Baseline, Cascade, Onset
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

START = 10_000.0


@dataclass
class Counted:
    """The part of a ledger that cascades read."""

    tallies: dict[str, Tally] = field(default_factory=lambda: {GPU: Tally()})
    cleared: dict[str, int] = field(default_factory=dict)
    pool: int | None = 1000
    share: float | None = 1.0
    block_tokens: int = 16


@dataclass
class Stage:
    """An engine whose counters go on as a test says."""

    ledger: Counted = field(default_factory=Counted)
    window: Window = field(default_factory=lambda: Window(600, 1000))
    t: float = START

    def __post_init__(self) -> None:
        self.cascades = EngineCascades(self.window, "e")

    def go(self, seconds: int, stored: int, refaulted: int = 0, *, step: int = 1, tenant: str = "") -> None:
        tally = self.ledger.tallies[GPU]
        for _ in range(0, seconds, step):
            self.t += step
            tally.stored += stored * step
            tally.removed[True] += stored * step
            tally.refaulted += refaulted * step
            tally.refaults.total += refaulted * step * 2.0
            if tenant:
                self.cascades.look(look(self.t, stored * step, tenant))
            self.cascades.advance(self.t, self)  # type: ignore[arg-type]

    def series(self) -> dict[str, float]:
        return {name: value for name, _, value in self.cascades.gauges(self.t)}


def look(at: float, blocks: int, tenant: str, refaults: dict[EngineStep, int] | None = None) -> SettledLookup:
    party = Party(tenant)
    party.settle()
    return SettledLookup(
        at=at, blocks=blocks, hits=0, chain=None, tokens=16, prompt=16 * blocks, output=None, party=party,
        source="inferred", confidence=1.0, refaults=refaults or {},
    )  # fmt: skip


def burst() -> Stage:
    stage = Stage()
    stage.go(60, 20, tenant="t-light")
    stage.go(30, 100, 20, tenant="t-heavy")
    return stage


def test_a_burst_is_told_as_series() -> None:
    series = burst().series()
    assert series["kvitals_cascade_stage"] == 3
    assert series["kvitals_cascade_refaulted_tokens"] == pytest.approx(30 * 20 * 16, rel=0.1)
    assert "kvitals_cascade_prefill_seconds" not in series  # nobody says how fast it is


def test_rows_that_come_seldom_say_the_same() -> None:
    stage = Stage()
    stage.go(60, 20, step=5)
    stage.go(30, 100, 20, step=5)
    assert stage.series()["kvitals_cascade_stage"] == 3


def test_the_tenant_whose_stores_rose_set_it_off() -> None:
    (told,) = burst().cascades.report()
    assert told["trigger"]["kind"] == "tenant"
    assert told["trigger"]["tenant"] == "t-heavy"
    assert told["baseline"]["stored_tokens_per_second"] == 20 * 16


def test_a_pool_that_shrank_set_it_off() -> None:
    stage = Stage()
    stage.go(60, 20)
    stage.ledger.pool = 500
    stage.go(30, 100, 20)
    assert stage.cascades.report()[0]["trigger"] == {"kind": "capacity", "from_blocks": 1000, "to_blocks": 500}


def test_who_lost_and_to_whom_is_filled_in_later() -> None:
    stage = burst()
    heavy, step = Party("t-heavy"), EngineStep(stage.t)
    heavy.settle()
    step.stores[heavy, heavy] = 10
    stage.cascades.look(look(stage.t - 5, 8, "t-light", {step: 8}))
    stage.go(2, 20)
    (told,) = stage.cascades.report()
    assert told["blamed"] == {"tenant": "t-heavy", "share": 1.0}
    assert told["suffered"] == [{"tenant": "t-light", "tokens": 128.0, "share": 1.0}]


def test_a_ledger_that_knows_little_says_nothing() -> None:
    stage = Stage()
    stage.ledger.share = 0.2
    stage.go(90, 100, 20)
    assert stage.series() == {}
    assert stage.cascades.state == "unknown"


def test_a_silence_ends_it() -> None:
    stage = burst()
    stage.t += 500
    stage.go(5, 20)
    (told,) = stage.cascades.report()
    assert (told["state"], stage.cascades.state) == ("cut", "calm")


def test_details_leave_some_time_after_the_end() -> None:
    stage = burst()
    stage.go(60, 20)
    assert stage.cascades.report()[0]["state"] == "ended"
    assert "kvitals_cascade_refaulted_tokens" in stage.series()
    stage.go(1000, 20)
    assert set(stage.series()) == {"kvitals_cascade_stage"}


def test_only_the_latest_are_kept() -> None:
    stage = Stage()
    for _ in range(55):
        stage.cascades.told.append(CascadeReport("x", Cascade({2: Onset(1.0, 2.0)}, Baseline()), 16, (None, None)))
    assert len(stage.cascades.report()) == 50


def test_records_stand_in_for_a_page_without_first_tokens() -> None:
    stage = Stage()
    for second in range(60):
        for _ in range(10):
            stage.cascades.request(RequestRecord(id="r", start=0, end=START + second, complete=True, ttft=0.1), stage.t)
        stage.go(1, 20)
    for second in range(30):
        for _ in range(10):
            stage.cascades.request(RequestRecord(id="r", start=0, end=START + second, complete=True, ttft=0.9), stage.t)
        stage.go(1, 100, 20)
    assert stage.series()["kvitals_cascade_stage"] == 4


def page(window: Window, t: float, **values: float) -> None:
    group = window.group("page")
    columns = [group.column(Labels({METRIC_NAME: name, "engine": "e"})) for name in values]
    group.append(t, [c for c in columns if c is not None], list(values.values()))


def test_the_pace_is_what_pages_differ_by() -> None:
    window = Window(600, 100)
    pace = EnginePace(window, "e")
    page(window, 100, kvitals_ttft_seconds_count=10, kvitals_ttft_seconds_sum=1, kvitals_generation_tokens_total=100)
    assert pace.at(100).requests is None
    page(window, 105, kvitals_ttft_seconds_count=60, kvitals_ttft_seconds_sum=11, kvitals_generation_tokens_total=600)
    now = pace.at(105)
    assert (now.requests, now.ttft, now.output) == (10, 2, 100)
    assert pace.at(108).requests == 10
    assert pace.at(200).requests is None


def test_a_restart_has_no_pace_for_a_moment() -> None:
    window = Window(600, 100)
    pace = EnginePace(window, "e")
    page(window, 100, kvitals_ttft_seconds_count=10)
    pace.at(100)
    page(window, 105, kvitals_ttft_seconds_count=2)
    assert pace.at(105).requests is None


def test_first_tokens_beyond_the_objective_are_counted_by_buckets() -> None:
    window = Window(600, 100)
    pace = EnginePace(window, "e")
    group = window.group("page")
    said = {
        Labels({METRIC_NAME: "kvitals_slo_seconds", "engine": "e", "slo": "ttft_p99"}): 2.0,
        Labels({METRIC_NAME: "kvitals_slo_seconds", "engine": "e", "slo": "ttft_p99", "class": "batch"}): 60.0,
        **{
            Labels({METRIC_NAME: "kvitals_ttft_seconds_bucket", "engine": "e", "le": le}): 0.0
            for le in ("1", "3", "+Inf")
        },
        Labels({METRIC_NAME: "kvitals_ttft_seconds_count", "engine": "e"}): 0.0,
    }
    columns = [group.column(labels) for labels in said]
    group.append(100, [c for c in columns if c is not None], list(said.values()))
    pace.at(100)
    group.append(110, [c for c in columns if c is not None], [2.0, 60.0, 50, 90, 100, 100])
    assert pace.at(110).late == pytest.approx((100 - 70) / 10)

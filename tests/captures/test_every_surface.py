"""Five recordings at their end: command, API document, page and findings have the same figures."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvitals.app import cache as caches
from kvitals.app import request_sources, timeseries_sources
from kvitals.app.lookups import agent_lookups, recorded_lookups
from kvitals.app.pipeline import Setup
from kvitals.app.sources.live import AgentClient
from kvitals.app.sources.recording import RecordingVerdict, judge_recording
from kvitals.config import Config
from kvitals.diagnoser.operating_point import OperatingPoint
from kvitals.diagnoser.replays import warm_rows
from kvitals.diagnoser.text import render
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules.loader import load
from kvitals.series.promql import evaluate, parse
from kvitals.ui.cli import knee
from kvitals.ui.web.sources.recording import Recording
from tests.support import recordings
from tests.support.loops import some_of
from tests.support.served import served

FOLDER = Path(__file__).parent
RECORDINGS = [
    "ledger/thrash",
    "ledger/sglang",
    "incidents/uneven-1",
    "incidents/sglang_slots-1",
    "requests/tenants",
]
WITH_EVENTS = RECORDINGS[:2]
SLOWEST = request_sources.RequestQuery(slowest=20)


@cache
def setup() -> Setup:
    return Setup(load(), Config())


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.kvcap"


def judged(name: str) -> RecordingVerdict:
    return recordings.judged(name, step=15.0)


@cache
def blocks_of(name: str) -> caches.CacheReport:
    """What `kvitals cache FILE` says."""
    return caches.of_recording(path_of(name), setup())


@cache
def requests_of(name: str) -> request_sources.RequestAnswer:
    """What `kvitals trace FILE` says."""
    return request_sources.of_recording(path_of(name), SLOWEST, setup().config)


@cache
def page(name: str) -> Recording:
    source = Recording(path_of(name), name, setup())
    assert source._done.wait(600)
    return source


def as_json(document: object) -> object:
    """A document as it leaves: tuples are lists, structs are objects."""
    return msgspec.json.decode(msgspec.json.encode(document))


def differing(one: object, other: object, where: str = "") -> list[str]:
    """Where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys(), key=str)
        return [line for key in keys for line in differing(one.get(key), other.get(key), f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for i, (a, b) in pairs for line in differing(a, b, f"{where}[{i}]")]
    return [] if one == other else [f"{where}: {one!r:.80} and {other!r:.80}"]


@pytest.mark.parametrize("name", some_of(RECORDINGS, 2))
def test_a_demo_agent_answers_what_the_commands_say_of_the_file(name: str) -> None:
    """Rows 8 to 10: curve, tenants' holdings and tail of requests at a recording's end."""
    blocks, known = blocks_of(name), requests_of(name)
    with served(judged(name).pipeline) as url:
        there, asked = caches.of_agent(url), request_sources.of_agent(url, SLOWEST)
        document = AgentClient(url).findings()
    assert there is not None
    wrong = differing(as_json(blocks.cache), {k: v for k, v in there.cache.items() if k != "tenant_names"})
    wrong += differing(as_json(blocks.cascades), there.cascades)
    wrong += differing(as_json(known.tails), as_json(asked.tails), "tail")
    wrong += differing(as_json(known.requests), as_json(asked.requests), "requests")
    wrong += differing(as_json(judged(name).document), as_json(document), "triage")
    assert wrong == []


@pytest.mark.parametrize("name", some_of(RECORDINGS, 2))
def test_the_page_shows_what_the_commands_say_of_the_file(name: str) -> None:
    blocks, known = blocks_of(name), requests_of(name)
    shown, asked = page(name).blocks(), page(name).requests(SLOWEST)
    wrong = differing(as_json(blocks.cache), as_json(shown.cache))
    wrong += differing(as_json(blocks.cascades), as_json(shown.cascades))
    wrong += differing(as_json(known.tails), as_json(asked.tails), "tail")
    wrong += differing(as_json(known.requests), as_json(asked.requests), "requests")
    assert wrong == []


@pytest.mark.parametrize("name", some_of(WITH_EVENTS, 2))
def test_what_if_replays_the_same_lookups_everywhere(name: str) -> None:
    of_file = recorded_lookups(path_of(name))
    with served(judged(name).pipeline) as url:
        of_agent = agent_lookups(url)
    shown = page(name).lookups()
    for other in (of_agent, shown):
        assert (len(other.accesses), other.accesses.references, other.today) == (
            len(of_file.accesses),
            of_file.accesses.references,
            of_file.today,
        )


@pytest.mark.parametrize("name", some_of(WITH_EVENTS, 2))
def test_a_lever_is_predicted_by_the_replay_of_what_if(name: str) -> None:
    """Row 6: what a larger cache finds, in triage and in `kvitals whatif`."""
    known = recorded_lookups(path_of(name))
    assert known.today is not None
    told = [
        (known.today + int(lever.setting.to) - int(lever.setting.now), one)  # the setting counts vLLM's null block, too
        for finding in judged(name).document.causes
        for lever in finding.levers
        if lever.setting is not None and lever.setting.flag == "--num-gpu-blocks-override"
        for one in lever.predicted
        if one.metric == "prefix_hit_ratio"
    ]
    assert told or name != "ledger/thrash"
    for size, one in told:
        sizes = (known.today, size)
        warm, _ = warm_rows(known.accesses, max(sizes))
        now, then = (row.token_hit_rate for row in what_if(known.accesses, ReplayPlan(sizes, warm=warm)))
        assert f"{render(now, 'ratio')} becomes {render(then, 'ratio')}" in one.method
        assert one.to - one.from_ == pytest.approx(then - now)


def test_what_arrives_late_is_not_counted_twice() -> None:
    """Row 15: of 1,005 requests that both sides counted, the request side's window is not above the engine's."""
    seen, counted = (families("ledger/thrash", f"sum by (engine) ({family})") for family in (
        "kvitals_observed_requests_total", "kvitals_requests_finished_total"))  # fmt: skip
    assert seen == counted
    document = judged("ledger/thrash").document
    assert "TEL06" not in {one.code for one in (*document.telemetry, *document.notes)}
    assert families("ledger/thrash", "kvitals:requests_seen_ratio")["engine"] == pytest.approx(1.0, abs=0.03)


@cache
def points(name: str) -> list[OperatingPoint]:
    """What `kvitals knee FILE` says of each engine."""
    with timeseries_sources.of_recording(path_of(name), setup()) as of:
        found = knee.points(of, setup(), argparse.Namespace(step=None, slo=[]))
    return [one for one in found if one.entity.get("engine")]


def families(name: str, query: str) -> dict[str, float]:
    """A family of the agent at the recording's end, by engine."""
    pipeline = judged(name).pipeline
    assert pipeline.span is not None
    found = evaluate(parse(query), pipeline, pipeline.span.at)
    assert not isinstance(found, float)
    return {labels["engine"]: value for labels, value in found}


@pytest.mark.parametrize("name", some_of(RECORDINGS, 2))
def test_knee_and_agent_compute_of_the_same_steps(name: str) -> None:
    """Row 13: Little's gap, and the load up to which an objective was seen to hold."""
    gap, held = (families(name, q) for q in ("kvitals_littles_gap_ratio", 'kvitals_c_max_held{slo="itl_p99"}'))
    assert points(name)
    for point in points(name):
        engine = point.entity["engine"]
        assert gap.get(engine) == point.littles_gap
        assert held.get(engine) == next((x.holds_to for x in point.limits if x.objective == "itl_p99"), None)


@pytest.mark.parametrize("name", some_of(RECORDINGS, 2))
def test_a_load_that_knee_names_is_one_of_its_chart(name: str) -> None:
    for point in points(name):
        for limit in point.limits:
            assert limit.holds_to is None or limit.holds_to <= max(one.highest for one in point.bins)
        shown = "\n".join(line.plain for line in knee.chart(point, Console(width=120)))
        assert point.now is None or not point.bins or f"now {point.now:.1f}" in shown


def test_more_slots_leave_the_wait_of_deferred_requests() -> None:
    """Row 16: 3.25 s in the queue beside 2.15 deferred requests is not 0 with more slots."""
    name = "incidents/pd_decode_slots-1"
    (deferred,) = families(name, "kvitals:waiting_deferred_avg and kvitals:waiting_deferred_avg > 0").values()
    rate = max(families(name, "kvitals:finished_per_second").values())
    told = [
        one.to
        for finding in judged(name).document.causes
        for lever in finding.levers
        if lever.lever == "raise-max-num-seqs"
        for one in lever.predicted
        if one.metric == "queue_mean_seconds" and one.from_ > 1.0
    ]
    assert told
    assert min(told) >= 0.99 * deferred / rate


def test_triage_names_the_cascade_that_cache_says_is_over() -> None:
    """Row 2: the cascade was, with its end, in triage as in `kvitals cache`."""
    name = "ledger/thrash"
    (last,) = blocks_of(name).cascades["cascades"]
    (out,) = [one for one in judged(name).document.ruled_out if one.code == "KVC05"]
    end = datetime.fromtimestamp(last["ended"], UTC)
    assert out.because.endswith(f"the last cascade reached stage {last['stage']} and ended at {end:%H:%M:%S} UTC")


def test_every_measure_names_the_window_that_it_is_of() -> None:
    """Row 4: figures of 60 s and of 15 min stand in one document."""
    path = FOLDER / "changes/slots_raised.kvcap"
    document = judge_recording(path, setup(), step=15.0).document
    assert not document.window.cold
    wrong = [
        f"{finding.code} {one.signal}: {one.window}"
        for finding in (*document.causes, *document.symptoms, *document.telemetry, *document.notes)
        for one in finding.measures
        if "$window" in (signal := load().signals[one.signal]).expr
        and one.window != (document.window.seconds if signal.window == "fast" else 900.0)
    ]
    assert wrong == []

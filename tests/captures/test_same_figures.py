"""One figure per fact: what several surfaces show of a recording at one moment is the same number."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitals.app.cache import of_recording as cache_of
from kvitals.app.lookups import recorded_lookups
from kvitals.app.sources.recording import RecordingVerdict
from kvitals.dashboards.queries import RECORDED_STEP, WINDOW, Queries, readable
from kvitals.diagnoser.signals import duration
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules.loader import load
from kvitals.rules.model import SCOPES
from kvitals.series.promql import evaluate
from tests.support import recordings

FOLDER = Path(__file__).parent
RECORDINGS = [
    "ledger/thrash",
    "incidents/uneven-1",
    "incidents/pd_decode_slots-1",
    "incidents/sglang_slots-1",
    "requests/tenants",
]
STEP = f"{WINDOW}:{RECORDED_STEP}"
WITH_EVENTS = ["ledger/thrash", "ledger/full", "ledger/sglang"]


def judged(name: str) -> RecordingVerdict:
    return recordings.judged(name, step=15.0)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_measure_of_a_finding_is_what_its_board_shows(name: str) -> None:
    """Every signal over the window of triage that a finding names, asked as its board asks: at one moment, and over
    time as the worst minute of what is asked at one moment."""
    pipeline, document, queries, wrong = judged(name).pipeline, judged(name).document, Queries(load()), []
    compared = 0
    for finding in (*document.causes, *document.symptoms):
        for measure in finding.measures:
            signal = load().signals[measure.signal]
            if measure.value is None or signal.window != "fast" or "kvitals:" in signal.expr:
                continue
            now = queries.signal(measure.signal, now=True).expr
            over_time = queries.signal(measure.signal).expr
            at_once = over_time.removeprefix("max_over_time(").removeprefix("min_over_time(").removesuffix(f"[{STEP}])")
            if now != at_once and not now.startswith(f"{at_once}\nor ") and not now.startswith(f"{at_once} or "):
                wrong.append(f"{finding.code} {measure.signal}: {over_time} over time, {now} at one moment")
            asked = readable(now, duration(document.window.seconds))
            shown = evaluate(asked, pipeline, document.window.end)
            assert not isinstance(shown, float)
            rows = {labels.keep(SCOPES[signal.scope]): value for labels, value in shown}
            mine = [value for labels, value in rows.items() if dict(labels) == finding.entity.labels]
            compared += 1
            if mine != [pytest.approx(measure.value, rel=1e-6)]:
                wrong.append(f"{finding.code} {measure.signal}: {measure.value} in triage, {mine} on the board")
    assert wrong == []
    assert compared


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_the_hit_rate_of_the_cache_is_that_of_the_replay(name: str) -> None:
    path = FOLDER / f"{name}.kvcap"
    (engine,) = cache_of(path, recordings.setup()).cache["engines"]
    known = recorded_lookups(path)
    assert known.today == engine["pool_blocks"]
    accesses = known.accesses.take((known.accesses.hit >= 0).nonzero()[0])
    recorded = int(accesses.hit.sum()) * accesses.block_size / int(accesses.tokens.sum())
    assert engine["hit_tokens"] / engine["lookup_tokens"] == pytest.approx(recorded, abs=0.005)


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_the_curve_at_the_sizes_that_it_is_read_at_is_the_replay(name: str) -> None:
    path = FOLDER / f"{name}.kvcap"
    (engine,) = cache_of(path, recordings.setup()).cache["engines"]
    known, curve = recorded_lookups(path), engine["curve"]
    assert known.today is not None
    for size in (known.today, 2 * known.today):
        (row,) = what_if(known.accesses, ReplayPlan(capacities=(size,)))
        there = curve["token_hit_rate"][curve["capacity_blocks"].index(size)]
        assert there == pytest.approx(row.token_hit_rate, abs=0.005), size

"""Every signal has one value: by the agent's evaluator, by its recording rule and by its board's query.

The evaluator judges each replay every minute. A real Prometheus holds the same families, and the signals of earlier
minutes as its recording rules would have stored them. Recording rule and board query are then asked at the same
moments. A minute is the step of a board's subqueries, so that signals over other signals read the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.queries import WINDOW, Queries
from kvitals.dashboards.recording_rules import definition
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import SCOPES
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher, MatchOp
from tests.boards.sources import Replayed
from tests.oracle.oracle_server import Prometheus, labels_of, prometheus

STEP = 60.0
MOST_MOMENTS = 4
"""Moments that are compared of each replay, its last ones."""

RELATIVE = 1e-9
LEAST_SIGNALS = 200
"""Signals with a value in at least one replay; recordings that are taken away make the proof smaller."""

Values = dict[float, dict[Labels, float]]
"""Moment -> entity -> value. Seconds since the epoch."""

_SIGNALS = (Matcher(METRIC_NAME, MatchOp.RE, "kvitals:.+"),)


@dataclass(frozen=True)
class Judged:
    """What the evaluator says of one replay: signal -> values at the compared moments."""

    name: str
    moments: list[float]
    values: dict[str, Values]
    stored: list[Frame]


@pytest.fixture(scope="module")
def judged(replayed: dict[str, Replayed], knowledge: Knowledge) -> list[Judged]:
    return [judge(one, knowledge) for one in replayed.values()]


@pytest.fixture(scope="module")
def server(
    replayed: dict[str, Replayed], judged: list[Judged], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    try:
        with prometheus(tmp_path_factory.mktemp("equivalence")) as running:
            families = [frame for one in replayed.values() for frame in one.frames()]
            running.write(families + [frame for one in judged for frame in one.stored])
            yield running
    except RuntimeError as error:
        pytest.fail(str(error))


def judge(replay: Replayed, knowledge: Knowledge) -> Judged:
    """Judges a replay at every full minute that it covers, and where there is none at its end."""
    window = replay.pipeline.node.window
    signals = Signals(knowledge, window, retention=2 * 3600.0)
    minutes = [STEP * i for i in range(math.ceil(window.oldest / STEP), math.floor(replay.end / STEP) + 1)]
    moments = minutes or [math.ceil(replay.end * 1000) / 1000]
    compared = moments[-MOST_MOMENTS:]
    values: dict[str, Values] = {}
    for at in moments:
        known = signals.observe(EvaluationSpan(at))
        for name, one in known.items() if at in compared else ():
            values.setdefault(name, {})[at] = one.values
    frames = signals.store.select(_SIGNALS, 0.0, replay.end + STEP)
    stored = [Frame(f.times, f.values, [labels.with_(cluster=replay.name) for labels in f.labels]) for f in frames]
    return Judged(replay.name, compared, values, stored)


def asked(server: Prometheus, query: str, one: Judged, scope: tuple[str, ...]) -> Values:
    """A query's values at the compared moments, of the replay's own cluster. NaN: too few samples."""
    start, end = one.moments[0], one.moments[-1]
    answer = server.ask("query_range", query=query, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{STEP:g}")
    assert answer["status"] == "success", f"{query}: {answer['error']}"
    found: Values = {at: {} for at in one.moments}
    for series in answer["data"]["result"]:
        labels = labels_of(series["metric"])
        if labels.get("cluster", one.name) != one.name:
            continue
        for at, value in series["values"]:
            found[round(float(at), 3)][labels.keep(scope).drop("cluster")] = float(value)
    return found


def differences(mine: Values, theirs: Values, whose: str) -> Iterator[str]:
    for at, values in mine.items():
        other = theirs[at]
        for entity in values.keys() | other.keys():
            a, b = values.get(entity, math.nan), other.get(entity, math.nan)
            if not (math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))):
                yield f"{dict(entity)} at {at:.0f}: the evaluator {a!r}, {whose} {b!r}"


def compared(knowledge: Knowledge, judged: list[Judged], server: Prometheus, kind: str) -> dict[str, list[str]]:
    """The differences between the evaluator and a kind of query, by signal."""
    queries, options = Queries(knowledge), Options()
    found: dict[str, list[str]] = {}
    for name, signal in knowledge.signals.items():
        for one in judged:
            text = definition(signal, options) if kind == "rule" else _board(queries, name, one.name)
            theirs = asked(server, text, one, SCOPES[signal.scope])
            found.setdefault(name, []).extend(
                f"{one.name}: {line}" for line in differences(one.values[name], theirs, f"its {kind}")
            )
    return {name: lines for name, lines in found.items() if lines}


def _board(queries: Queries, name: str, cluster: str) -> str:
    expr = queries.signal(name, now=True).expr.replace("$cluster", cluster)
    return expr.replace("$engine", ".*").replace("$tenant", ".*").replace(WINDOW, "1m")


def report(found: dict[str, list[str]]) -> str:
    return f"{len(found)} signals differ\n" + "\n".join(f"{name}: {lines[0]}" for name, lines in found.items())


def test_a_recording_rule_has_the_value_of_the_evaluator(
    knowledge: Knowledge, judged: list[Judged], server: Prometheus
) -> None:
    found = compared(knowledge, judged, server, "rule")
    assert not found, report(found)


def test_a_board_shows_the_value_of_the_evaluator(
    knowledge: Knowledge, judged: list[Judged], server: Prometheus
) -> None:
    found = compared(knowledge, judged, server, "board")
    assert not found, report(found)


def test_most_signals_have_a_value_in_some_replay(judged: list[Judged]) -> None:
    known: set[Any] = {name for one in judged for name, at in one.values.items() if any(at.values())}
    assert len(known) >= LEAST_SIGNALS, f"{len(known)} signals are compared"

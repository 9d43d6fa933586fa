"""From signals and rules to board queries, and what refuses to be built."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dashboards import generate
from dashboards.panels import JUST_ABOVE_ZERO, Line, PanelError, Question, Row, lay_out, steps
from dashboards.queries import Judged, Queries, UnknownSeriesError, readable
from rules.loader import Knowledge, load
from rules.model import Signal
from series.promql import Vector, evaluate
from series.types import METRIC_NAME, Frame, Labels, Matcher

KNOWLEDGE = load()
NOW = 1_000_000.0


@pytest.fixture
def knowledge() -> Knowledge:
    return copy.deepcopy(KNOWLEDGE)


@pytest.fixture
def queries(knowledge: Knowledge) -> Queries:
    return Queries(knowledge)


class Source:
    """A minute of counters that grow at a steady rate, and of gauges that stay (rate 0, value start)."""

    def __init__(self, *series: tuple[dict[str, str], float, float]) -> None:
        times = np.arange(NOW - 120, NOW + 1, 5.0)
        columns = [start + rate * (times - times[0]) for _, start, rate in series]
        labels = [Labels({"engine": "a", **found}) for found, _, _ in series]
        self.frame = Frame(times, np.array(columns).T.reshape(len(times), len(series)), labels)

    def select(self, matchers: list[Matcher], start: float, end: float) -> list[Frame]:
        kept = [i for i, labels in enumerate(self.frame.labels) if all(m.matches(labels) for m in matchers)]
        rows = (self.frame.times >= start) & (self.frame.times <= end)
        values = np.ascontiguousarray(self.frame.values[rows][:, kept])
        return [Frame(self.frame.times[rows], values, [self.frame.labels[i] for i in kept])] if kept else []


def value(queries_expr: str, source: Source) -> list[float]:
    found = evaluate(readable(queries_expr), source, NOW)
    assert isinstance(found, Vector)
    return [float(v) for v in found.values]


def named(name: str, **labels: str) -> dict[str, str]:
    return {METRIC_NAME: name, **labels}


def test_a_changed_signal_changes_the_board(knowledge: Knowledge) -> None:
    before = generate.generate(knowledge)
    signal = knowledge.signals["kv_usage_p90"]
    knowledge.signals["kv_usage_p90"] = msgspec.structs.replace(signal, expr=signal.expr.replace("0.9", "0.95"))
    assert generate.generate(knowledge) != before


def test_a_changed_limit_of_a_rule_changes_the_colours(knowledge: Knowledge) -> None:
    rule = knowledge.rules["KVC01"]
    high = msgspec.structs.replace(rule.params["kv_high"], default=0.8)
    knowledge.rules["KVC01"] = msgspec.structs.replace(rule, params={**rule.params, "kv_high": high})
    judged = Queries(knowledge).judged("KVC01", "kv_usage_p90", "kv_high")
    assert steps(judged) == [{"color": "blue", "value": None}, {"color": "red", "value": 0.8}]


def test_a_series_that_no_family_defines_is_refused(queries: Queries, knowledge: Knowledge) -> None:
    with pytest.raises(UnknownSeriesError, match="kvitals_made_up"):
        queries.family("sum by ($scope) (rate(kvitals_made_up_total[$window]))", "count")
    with pytest.raises(UnknownSeriesError, match="no signal `made_up`"):
        queries.signal("made_up")
    with pytest.raises(UnknownSeriesError, match="no signal `made_up`"):
        queries.family("kvitals:made_up > 1", "count")
    with pytest.raises(UnknownSeriesError, match="no rule XXX01"):
        queries.firing("XXX01")
    knowledge.signals["kv_usage_p90"] = Signal(expr="max by ($scope) (kvitals_gone)", unit="ratio", meaning="x")
    with pytest.raises(UnknownSeriesError, match="kvitals_gone"):
        generate.generate(knowledge)


def test_a_histogram_is_named_by_its_parts_only(queries: Queries) -> None:
    with pytest.raises(UnknownSeriesError, match="kvitals_ttft_seconds"):
        queries.family("sum by ($scope) (kvitals_ttft_seconds)", "seconds")


def test_a_comparison_that_the_rule_does_not_make_is_refused(queries: Queries) -> None:
    with pytest.raises(UnknownSeriesError, match="KVC01 does not compare target_up"):
        queries.judged("KVC01", "target_up")


@pytest.mark.parametrize(
    ("op", "limit", "expected"),
    [
        (">", 0.9, [("blue", None), ("red", 0.9)]),
        (">", 0.0, [("blue", None), ("red", JUST_ABOVE_ZERO)]),
        ("<", 0.5, [("red", None), ("blue", 0.5)]),
        ("==", 0.0, [("red", None), ("blue", 1.0)]),
    ],
)
def test_colours_follow_the_rules_comparison(op: str, limit: float, expected: list[tuple[str, float]]) -> None:
    found = steps(Judged("KVC01", "title", "page", op, limit, ""))
    assert [(s["color"], s["value"]) for s in found] == expected


def test_zero_too_little_and_nothing_are_three_things(queries: Queries) -> None:
    expr = queries.signal("prefix_hit_ratio").expr
    query, hit = named("kvitals_prefix_query_tokens_total"), named("kvitals_prefix_hit_tokens_total")
    assert value(expr, Source((query, 0, 100), (hit, 0, 80))) == [pytest.approx(0.8)]
    assert value(expr, Source((query, 0, 100), (hit, 0, 0))) == [0.0]
    (too_little,) = value(expr, Source((query, 0, 1), (hit, 0, 0)))
    assert np.isnan(too_little)
    assert value(expr, Source((named("kvitals_target_up"), 1, 0))) == []


def test_a_rule_is_counted_over_engines(queries: Queries) -> None:
    expr = queries.firing("TEL01").expr
    up, down = named("kvitals_target_up", engine="a"), named("kvitals_target_up", engine="b")
    assert value(expr, Source((up, 1, 0), (down, 0, 0))) == [1.0]
    assert value(expr, Source((up, 1, 0), (down, 1, 0))) == [0.0]
    assert value(expr, Source((named("kvitals_requests_running"), 1, 0))) == []


def test_every_signal_and_every_rule_can_be_on_a_board(queries: Queries) -> None:
    for name in KNOWLEDGE.signals:
        readable(queries.signal(name).expr)
    for code in KNOWLEDGE.rules:
        readable(queries.firing(code).expr)


def test_slow_signals_keep_their_window(queries: Queries) -> None:
    assert "[15m]" in queries.signal("restarts").expr
    assert "[$__rate_interval]" in queries.signal("kv_usage_p90").expr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": "KV usage"}, "a panel's title is a question"),
        ({"unit": "", "lines": "no unit"}, "has no unit"),
        ({"lines": "legend"}, "the legend names \\['gpu'\\]"),
        ({"lines": "objective"}, "an objective by which no rule judges"),
    ],
)
def test_a_panel_that_hides_something_is_refused(queries: Queries, changes: dict[str, str], message: str) -> None:
    usage = queries.signal("kv_usage_p90")
    lines = {
        "no unit": Line(queries.family("max by ($scope) (kvitals_target_up)", ""), "{{engine}}"),
        "legend": Line(usage, "{{engine}} {{gpu}}"),
        "objective": Line(usage, "{{engine}}", "objective"),
        "": Line(usage, "{{engine}}"),
    }
    title = changes.get("title", "How full is it?")
    question = Question(title, (lines[changes.get("lines", "")],), unit=changes.get("unit", ""))
    with pytest.raises(PanelError, match=message):
        lay_out([Row("Row", (question,))], queries)


def test_panels_that_do_not_fit_go_on_the_next_line(queries: Queries) -> None:
    wide = Question("How full is it?", (Line(queries.signal("kv_usage_p90"), "{{engine}}"),), width=10)
    placed = lay_out([Row("Row", (wide,) * 3), Row("Next", ())], queries)
    places = [(p.gridPos.x, p.gridPos.y) for p in placed]
    assert places == [(0, 0), (0, 1), (10, 1), (0, 9), (0, 17)]


def test_the_generator_runs_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert generate.main(["--check"]) == 0

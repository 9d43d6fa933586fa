"""From signals and rules to board queries, and what refuses to be built."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvitals.dashboards import boards, generate
from kvitals.dashboards.alerts_files import with_agents
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.boards.board import Board, BoardRow, build
from kvitals.dashboards.panels import (
    JUST_ABOVE_ZERO,
    MAX_QUERIES,
    Heat,
    LinePanel,
    PanelError,
    PanelLine,
    TablePanel,
    answer,
    make,
    steps,
)
from kvitals.dashboards.queries import (
    MAX_QUERY,
    ConditionQuery,
    ExpressionQuery,
    Holds,
    JudgedBy,
    Queries,
    SignalQuery,
    UnknownSeriesError,
    readable,
)
from kvitals.rules.loader import Knowledge, load
from kvitals.rules.model import Signal
from kvitals.series.promql import Vector, evaluate
from kvitals.series.types import METRIC_NAME, Frame, Labels, Matcher

KNOWLEDGE = load()
NOW = 1_000_000.0
RUNBOOKS = "https://runbooks"


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


def test_a_changed_signal_changes_what_is_recorded_and_no_board_has_a_second_definition(knowledge: Knowledge) -> None:
    before, recorded = boards.files(knowledge, RUNBOOKS), with_agents(knowledge, Options())[0]
    signal = knowledge.signals["kv_usage_p90"]
    knowledge.signals["kv_usage_p90"] = msgspec.structs.replace(signal, expr=signal.expr.replace("0.9", "0.95"))
    assert boards.files(knowledge, RUNBOOKS) == before
    assert with_agents(knowledge, Options())[0] != recorded


def test_a_changed_meaning_of_a_signal_changes_the_board(knowledge: Knowledge) -> None:
    before = boards.files(knowledge, RUNBOOKS)
    signal = knowledge.signals["kv_usage_p90"]
    knowledge.signals["kv_usage_p90"] = msgspec.structs.replace(signal, meaning="Another.")
    assert boards.files(knowledge, RUNBOOKS) != before


def test_a_changed_limit_of_a_rule_changes_the_colours(knowledge: Knowledge) -> None:
    rule = knowledge.rules["KVC01"]
    high = msgspec.structs.replace(rule.params["kv_high"], default=0.8)
    knowledge.rules["KVC01"] = msgspec.structs.replace(rule, params={**rule.params, "kv_high": high})
    judged = Queries(knowledge).judged(ConditionQuery("KVC01", "kv_usage_p90", "kv_high"))
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
        boards.files(knowledge, RUNBOOKS)


@pytest.mark.parametrize(
    "text",
    [
        "sum by ($scope, made_up) (rate(kvitals_requests_finished_total[$window]))",
        'sum by ($scope) (rate(kvitals_requests_finished_total{made_up="x"}[$window]))',
        'sum by ($scope, reason) (kvitals_requests_running{reason="x"})',
    ],
)
def test_a_label_that_the_family_does_not_have_is_refused(queries: Queries, text: str) -> None:
    with pytest.raises(UnknownSeriesError, match="no label"):
        queries.family(text, "count")


def test_labels_that_a_query_makes_itself_are_known(queries: Queries) -> None:
    made = 'label_replace(kvitals_requests_running, "made_up", "$1", "engine", "(.*)")'
    assert "made_up" in queries.family(f"sum by (made_up) ({made})", "count").expr


def test_a_histogram_is_named_by_its_parts_only(queries: Queries) -> None:
    with pytest.raises(UnknownSeriesError, match="kvitals_ttft_seconds"):
        queries.family("sum by ($scope) (kvitals_ttft_seconds)", "seconds")


def test_a_comparison_that_the_rule_does_not_make_is_refused(queries: Queries) -> None:
    with pytest.raises(UnknownSeriesError, match="KVC01 does not compare target_up"):
        queries.judged(ConditionQuery("KVC01", "target_up"))


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
    found = steps(JudgedBy("KVC01", "title", "page", op, limit, ""))
    assert [(s["color"], s["value"]) for s in found] == expected


def test_zero_too_little_and_nothing_are_three_things(queries: Queries) -> None:
    expr = queries.signal("prefix_hit_ratio", now=True).expr
    query, recorded = named("kvitals_prefix_query_tokens_total"), named("kvitals:prefix_hit_ratio")
    assert value(expr, Source((query, 0, 100), (recorded, 0.8, 0))) == [pytest.approx(0.8)]
    assert value(expr, Source((query, 0, 100), (recorded, 0, 0))) == [0.0]
    (too_little,) = value(expr, Source((query, 0, 1)))
    assert np.isnan(too_little)
    assert value(expr, Source((named("kvitals_target_up"), 1, 0))) == []


def test_a_rule_is_counted_over_engines(queries: Queries) -> None:
    expr = queries.firing("TEL01").expr
    known = named("kvitals_target_up", engine="a"), 1.0, 0.0
    up, down = named("kvitals:target_up", engine="a"), named("kvitals:target_up", engine="b")
    assert value(expr, Source(known, (up, 1, 0), (down, 0, 0))) == [1.0]
    assert value(expr, Source(known, (up, 1, 0), (down, 1, 0))) == [0.0]
    assert value(expr, Source((named("kvitals_requests_running"), 1, 0))) == []


def test_every_signal_and_every_rule_can_be_on_a_board(queries: Queries) -> None:
    for name in KNOWLEDGE.signals:
        readable(queries.signal(name).expr)
        readable(queries.signal(name, now=True).expr)
    for code in KNOWLEDGE.rules:
        readable(queries.firing(code).expr)


def test_a_point_of_a_longer_range_is_the_worst_minute_of_its_step(queries: Queries) -> None:
    selected = '{cluster=~"$cluster", engine=~"$engine|"}'
    assert (
        queries.signal("ttft_p99_seconds").expr == f"max_over_time(kvitals:ttft_p99_seconds{selected}[$__interval:1m])"
    )
    assert (
        queries.signal("prefix_hit_ratio").expr == f"min_over_time(kvitals:prefix_hit_ratio{selected}[$__interval:1m])"
    )
    assert queries.signal("slots").expr == f"kvitals:slots{selected}"  # has no worse end
    assert queries.family("sum by ($scope) (rate(kvitals_generation_tokens_total[$window]))", "count").expr.endswith(
        "[$__interval]))"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": "How full is it?"}, "a panel's title names a metric"),
        ({"title": "KV cache usage of each of the engines, in blocks"}, "is too long for a panel of 8 columns"),
        ({"lines": "no unit"}, "has no unit"),
        ({"lines": "legend"}, "the legend names \\['gpu'\\]"),
        ({"lines": "objective"}, "an objective that no rule reads"),
        ({"lines": "many"}, "more than 26 queries"),
    ],
)
def test_a_panel_that_hides_something_is_refused(queries: Queries, changes: dict[str, str], message: str) -> None:
    usage = SignalQuery("kv_usage_p90")
    lines = {
        "no unit": (PanelLine(ExpressionQuery("max by ($scope) (kvitals_target_up)", ""), "{{engine}}"),),
        "legend": (PanelLine(usage, "{{engine}} {{gpu}}"),),
        "objective": (PanelLine(usage, "{{engine}}", "objective"),),
        "many": (PanelLine(usage, "{{engine}}"),) * (MAX_QUERIES + 1),
        "": (PanelLine(usage, "{{engine}}"),),
    }
    question = LinePanel(
        title=changes.get("title", "KV usage"), question="How full is it?", lines=lines[changes.get("lines", "")]
    )
    with pytest.raises(PanelError, match=message):
        make(answer(question, queries), queries, 1, 0, 0, RUNBOOKS)


def test_a_heat_map_without_buckets_is_refused(queries: Queries) -> None:
    heat = Heat(
        title="Title", question="How full is it?", lines=(PanelLine(SignalQuery("kv_usage_p90"), "{{engine}}"),)
    )
    with pytest.raises(PanelError, match="no buckets"):
        make(answer(heat, queries), queries, 1, 0, 0, RUNBOOKS)


def test_panels_that_do_not_fit_go_on_the_next_line(queries: Queries) -> None:
    wide = LinePanel(
        title="Title",
        question="How full is it?",
        lines=(PanelLine(SignalQuery("kv_usage_p90"), "{{engine}}"),),
        width=10,
    )
    made = build(Board("b", "B", "d", (BoardRow("Row", (wide,) * 3), BoardRow("Next", (wide,)))), queries, RUNBOOKS)
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in made["panels"]]
    assert places == [(0, 0), (0, 1), (10, 1), (0, 9), (0, 17), (0, 18)]


def test_the_tenant_is_chosen_where_single_tenants_are_shown_and_not_where_they_are_compared(queries: Queries) -> None:
    assert 'tenant=~"$tenant"' in queries.family("sum by (tenant) (kvitals_tenant_requests_total)", "count").expr
    assert "$tenant" not in queries.signal("tenant_hit_ratio_best").expr


def test_what_is_of_a_node_is_shown_whatever_engine_is_chosen(queries: Queries) -> None:
    expr = queries.family("max by ($scope, gpu) (kvitals_gpu_power_watts)", "count", "node").expr
    one = expr.replace("$engine", "a|b").replace("$cluster", ".*")
    found = evaluate(
        readable(one), Source(({METRIC_NAME: "kvitals_gpu_power_watts", "engine": "", "gpu": "g"}, 5, 0)), NOW
    )
    assert isinstance(found, Vector)
    assert list(found.values) == [5.0]


def test_every_query_is_one_that_a_person_can_edit(queries: Queries) -> None:
    for name in KNOWLEDGE.signals:
        assert len(queries.signal(name).expr) <= MAX_QUERY, name
        assert len(queries.signal(name, now=True).expr) <= MAX_QUERY, name
    for code in KNOWLEDGE.rules:
        assert len(queries.firing(code).expr) <= MAX_QUERY, code


def test_a_query_knows_whether_it_needs_an_agent(queries: Queries) -> None:
    assert not queries.signal("kv_usage_p90").needs_agent
    assert queries.signal("cascade_stage").needs_agent
    pages, agents = "kvitals_requests_running", "kvitals_scrape_age_seconds"
    assert not queries.family(f"{pages} or {agents}", "count").needs_agent
    assert queries.family(f"{pages} and {agents}", "count").needs_agent
    assert queries.firing("KVC03").needs_agent
    assert not queries.firing("TEL01").needs_agent


def test_a_panel_says_what_needs_an_agent(queries: Queries) -> None:
    lines = (
        PanelLine(SignalQuery("running_avg"), "{{engine}} running"),
        PanelLine(SignalQuery("cascade_stage"), "{{engine}} stage"),
    )
    some = make(
        answer(LinePanel(title="Title", question="How many run?", lines=lines), queries), queries, 1, 0, 0, RUNBOOKS
    )
    assert "Only agents report: {{engine}} stage." in some["description"]
    whole = make(
        answer(LinePanel(title="Title", question="Which stage?", lines=lines[1:]), queries), queries, 1, 0, 0, RUNBOOKS
    )
    assert "Needs an agent" in whole["description"]


def test_a_table_names_its_columns_and_colours_where_a_rule_judges(queries: Queries) -> None:
    table = TablePanel(
        title="Title",
        question="Which?",
        lines=(PanelLine(SignalQuery("running_avg"), "running"), PanelLine(SignalQuery("kv_usage_p90"), "KV")),
        judges=(None, ConditionQuery("KVC01", "kv_usage_p90", "kv_high")),
    )
    made = make(answer(table, queries), queries, 1, 0, 0, RUNBOOKS)
    renamed = made["transformations"][1]["options"]["renameByName"]
    assert renamed == {"Value #A": "running", "Value #B": "KV"}
    colored = {o["matcher"]["options"]: [p["id"] for p in o["properties"]] for o in made["fieldConfig"]["overrides"]}
    assert colored == {"running": ["unit"], "KV": ["unit", "thresholds", "custom.cellOptions"]}
    assert [link["url"] for link in made["links"]] == ["https://runbooks/KVC01.html"]
    assert all(target["instant"] and target["format"] == "table" for target in made["targets"])


def test_a_rule_is_asked_for_by_its_code(queries: Queries) -> None:
    assert queries.ask(Holds("TEL01")) == queries.firing("TEL01")


def test_the_generator_runs_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert generate.main(["--check"]) == 0

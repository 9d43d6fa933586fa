"""What the lint finds in boards and rules with known defects, what it proposes, and that it finds nothing in ours."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvitals.dashboards.generate import GENERATED
from kvitals.dashboards.lint.defect import Defect, Document, LintedQuery
from kvitals.dashboards.lint.lint import lint
from kvitals.dashboards.lint.metrics import Metrics, _default_bounds
from kvitals.dashboards.lint.pages import read_page
from kvitals.dashboards.lint.reading import read_path
from kvitals.dashboards.lint.variables import OpenedQuery
from kvitals.rules.loader import Knowledge, load

INPUTS = Path(__file__).parent / "inputs"
EXPOSITION = Path(__file__).parents[2] / "fixtures" / "exposition"
EXPECTED = yaml.safe_load((INPUTS / "expected.yaml").read_text())
REFERENCE = {
    "comparison-without-bool", "counter-without-total", "lifetime-average", "counter-since-start", "budget-at-one",
    "last-event-gauge", "unknown-metric", "rewritten-name", "dead-metric", "quantile-without-le",
    "quantile-of-each-series", "mean-of-quantiles", "roles-mixed", "sum-rate-as-time", "never-true",
    "limit-between-buckets", "words-contradict", "rate-of-gauge",
}  # fmt: skip
"""What was found in public boards and rules."""


@lru_cache(maxsize=1)
def knowledge() -> Knowledge:
    return load()


def found(
    *queries: LintedQuery, versions: dict[str, str] | None = None, metrics: Metrics | None = None
) -> list[Defect]:
    document = Document(name="one", queries=list(queries))
    return lint([document], metrics or Metrics(knowledge(), versions or {})).defects


def panel(text: str, **more: Any) -> LintedQuery:
    return LintedQuery(place="panel", text=text, **more)


def alert(text: str, **more: Any) -> LintedQuery:
    return LintedQuery(place="alert", text=text, kind="alert", **more)


def codes(*queries: LintedQuery, **more: Any) -> list[str]:
    return [one.code for one in found(*queries, **more)]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_defect_is_found_with_its_place_and_its_correction(name: str) -> None:
    documents, _ = read_path(INPUTS / name)
    report = lint(documents, Metrics(knowledge()))
    told = [
        {"place": one.place, "code": one.code, "weight": one.weight, **({"fix": one.fix} if one.fix else {})}
        for one in report.defects
    ]
    assert told == EXPECTED[name]
    assert all(one.why and (one.fix or one.advice) for one in report.defects)


def test_what_was_found_in_public_ones_is_among_them() -> None:
    assert {one["code"] for several in EXPECTED.values() for one in several} >= REFERENCE


@pytest.mark.parametrize("name", EXPECTED)
def test_a_corrected_document_has_none_of_it(name: str) -> None:
    documents, _ = read_path(INPUTS / name)
    fixes = {(one["place"], one["code"]): one["fix"] for one in EXPECTED[name] if "fix" in one}
    for document in documents:
        for query in document.queries:
            for (place, code), fix in fixes.items():
                if place == query.place:
                    corrected = LintedQuery(**{**{f: getattr(query, f) for f in query.__struct_fields__}, "text": fix})
                    others = [one for one in document.queries if one is not query]
                    report = lint([Document(name="corrected", queries=[*others, corrected])], Metrics(knowledge()))
                    assert code not in [one.code for one in report.defects if one.place == place], fix


def test_there_is_none_in_ours() -> None:
    documents = [found for part in ("boards", "prometheus") for found in read_path(GENERATED / part)[0]]
    report = lint(documents, Metrics(knowledge()))
    assert [(one.document, one.place, one.code, one.why) for one in report.defects] == []
    assert report.queries > 1000 and len(report.unread) <= 6


def test_templates_are_said_to_be_unread() -> None:
    report = lint(read_path(INPUTS / "alerts.yaml")[0], Metrics(knowledge()))
    assert [(one.place, "Helm" in one.why) for one in report.unread] == [("alert Templated", True)]


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("vllm:gpu_cache_usage_perc", "0.9.0", []),
        ("vllm:gpu_cache_usage_perc", "0.12.1", ["dead-metric"]),
        ("vllm:kv_cache_usage_perc", "0.9.0", ["dead-metric"]),
        ("vllm:time_per_output_token_seconds_sum", "0.20", ["dead-metric"]),
        ("vllm:avg_generation_throughput_toks_per_s", "0.6.6", []),
        ("ray_vllm:num_requests_running", "0.20", []),
    ],
)
def test_names_are_held_against_the_version_in_use(name: str, version: str, expected: list[str]) -> None:
    assert codes(panel(name), versions={"vllm": version}) == expected


def test_an_engine_newer_than_the_map_may_have_new_names() -> None:
    (defect,) = found(panel("vllm:something_quite_new"), versions={"vllm": "9.9"})
    assert (defect.code, defect.weight) == ("unknown-metric", "warning")


@pytest.mark.parametrize(
    "text",
    [
        "sum(rate(vllm:request_success_total[5m])) / sum(rate(vllm:prompt_tokens_total[5m]))",
        "vllm:request_success_total",  # a total is a total
        "count(vllm:request_success_total)",
        "absent(vllm:request_success_total) > 0",
        "changes(DCGM_FI_DEV_XID_ERRORS[5m]) > 0",
        "max by (pod) (histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
        "avg by (pod) (histogram_quantile(0.9, sum by (le, pod) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))))",
        "histogram_quantile(0.9, sum without (instance) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
        "vllm:num_requests_running / (vllm:num_requests_waiting > 0)",  # a guard against division by zero
        'vllm:kv_cache_usage_perc > 0.9 and on () sum(up{job="vllm"}) > 3',
        "1 - (vllm:kv_cache_usage_perc > bool 0.5)",
        "deriv(vllm:kv_cache_usage_perc[5m])",
        "clamp_min(idelta(vllm:prompt_tokens_total[5m]), 0)",
        'rate(vllm:e2e_request_latency_seconds_bucket{le="+Inf"}[5m])',
        "my_app_sum / my_other_count",
        "process_cpu_seconds_total",
    ],
)
def test_what_is_sound_is_left_alone(text: str) -> None:
    assert codes(panel(text)) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("increase(vllm:kv_cache_usage_perc[5m])", "rate-of-gauge"),
        ("my_latency_sum / my_latency_count", "lifetime-average"),
        ("100 * (vllm:prefix_cache_hits_total / vllm:prefix_cache_queries_total)", "lifetime-average"),
        ("sum(histogram_quantile(0.9, sum by (le, pod) (rate(x_bucket[5m]))))", "mean-of-quantiles"),
        ('avg(some_latency{quantile="0.99"})', "mean-of-quantiles"),
        ("histogram_quantile(0.9, sum without (le) (rate(x_bucket[5m])))", "quantile-without-le"),
        ("histogram_quantile(0.9, max by (le) (rate(x_bucket[5m])))", "quantile-of-extremes"),
        ("max(vllm:kv_cache_usage_perc) * 100 > 100", "never-true"),
        ("avg_over_time(vllm:kv_cache_usage_perc[5m]) < 80", "always-true"),
        ("1 - (rate(vllm:request_success_total[1m]) > 0)", "comparison-without-bool"),
        ("rate(vllm:time_to_first_token_seconds[5m])", "histogram-without-part"),
        ('vllm:time_to_first_token_seconds_bucket{le="1"}', "bucket-not-there"),  # the page says 1.0
        ("kvitals_no_such_family", "unknown-metric"),
    ],
)
def test_one_defect_each(text: str, code: str) -> None:
    assert codes(panel(text)) == [code]


def test_a_page_brings_buckets_of_its_own(tmp_path: Path) -> None:
    page = tmp_path / "page.prom"
    page.write_text(
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        'vllm:time_to_first_token_seconds_bucket{le="0.3"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 2\n'
        "# TYPE ours gauge\nours 1\n"
    )
    told = read_page(page)
    metrics = Metrics(knowledge(), {}, told.types, told.bounds)
    quantile = "histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))"
    assert codes(alert(f"{quantile} > 0.2"), metrics=metrics) == ["limit-between-buckets"]
    assert codes(alert(f"{quantile} > 0.5"), metrics=metrics) == ["never-true"]
    assert codes(panel("rate(ours[5m])"), metrics=metrics) == ["rate-of-gauge"]


def test_the_default_buckets_are_those_of_pages() -> None:
    on_pages: dict[str, set[float]] = {}
    for file in (*EXPOSITION.glob("vllm-0.32-*.prom"), *EXPOSITION.glob("sglang-0.5.23-*.prom")):
        for name, bounds in read_page(file).bounds.items():
            on_pages.setdefault(name, set()).update(bounds)
    assert {name: set(bounds) for name, bounds in _default_bounds().items()} == {
        name: on_pages[name] for name in _default_bounds()
    }


@pytest.mark.parametrize(
    "text",
    [
        "rate(vllm:prompt_tokens_total[$__rate_interval])",
        'sum by ($group) (vllm:num_requests_running{model_name=~"$model"})',
        "topk($n, vllm:num_requests_running)",
        "rate(vllm:prompt_tokens_total[[[interval]]])",
        "max_over_time(vllm:num_requests_running[${window:raw}] offset $shift)",
        "increase(vllm:prompt_tokens_total[$__range]) / $__range_s",
    ],
)
def test_variables_come_back_as_they_were(text: str) -> None:
    opened = OpenedQuery(text)
    written = opened.written(opened.expr)
    assert written.replace(" ", "") == text.replace(" ", "")


def test_colours_beside_the_buckets() -> None:
    text = "histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))"
    assert codes(panel(text, unit="s", thresholds=(100.0,))) == ["limit-above-buckets"]
    assert codes(panel(f"{text} * 1000", unit="ms", thresholds=(100.0,))) == []  # 0.1 s
    assert codes(panel(f"{text} * 1000", unit="ms", thresholds=(120.0,))) == ["limit-between-buckets"]
    assert codes(panel(text, unit="s", thresholds=(0.12,))) == ["limit-between-buckets"]


def test_only_colours_that_show_count(tmp_path: Path) -> None:
    text = "histogram_quantile(0.9, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))"

    def thresholds(value: float, **defaults: Any) -> tuple[float, ...]:
        steps = {"thresholds": {"steps": [{"value": None}, {"value": value}]}, **defaults}
        panel = {"type": "timeseries", "targets": [{"expr": text}], "fieldConfig": {"defaults": steps}}
        path = tmp_path / "board.json"
        path.write_text(json.dumps({"panels": [panel]}))
        return read_path(path)[0][0].queries[0].thresholds

    assert thresholds(70) == () == thresholds(70, color={"mode": "palette-classic"})
    assert thresholds(70, color={"mode": "thresholds"}) == (70.0,)
    assert thresholds(70, custom={"thresholdsStyle": {"mode": "line"}}) == (70.0,)
    assert thresholds(80, color={"mode": "thresholds"}) == (80.0,)  # test_lint_shown.py: Grafana's default
    assert thresholds(80) == ()


def test_old_boards_and_new_ones(tmp_path: Path) -> None:
    target = {"expr": "rate(vllm:num_requests_waiting[5m])"}
    shapes = {
        "old": {"rows": [{"panels": [{"title": "a", "targets": [target]}]}]},
        "wrapped": {"dashboard": {"panels": [{"title": "a", "targets": [target]}]}},
        "nested": {"panels": [{"type": "row", "title": "r", "panels": [{"title": "a", "targets": [target]}]}]},
        "other": {"panels": [{"title": "a", "datasource": {"type": "loki"}, "targets": [target]}]},
    }
    for name, shape in shapes.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(shape))
        report = lint(read_path(path)[0], Metrics(knowledge()))
        assert len(report.defects) == (name != "other"), name


@pytest.mark.parametrize(
    ("text", "code", "weight", "fix"),
    [
        (
            'sum(rate(vllm:request_success_total{finish_reason="abort"}[5m]))', "label-not-there", "error",
            'sum(rate(vllm:request_success_total{finished_reason="abort"}[5m]))',
        ),
        (
            "sum by (finish_reason) (rate(vllm:request_success_total[5m]))", "label-not-there", "error",
            "sum by (finished_reason) (rate(vllm:request_success_total[5m]))",
        ),
        (
            'vllm:num_requests_waiting{model="a"}', "label-not-there", "warning",
            'vllm:num_requests_waiting{model_name="a"}',
        ),
        (
            "rate(sum(vllm:prompt_tokens_total)[5m:15s])", "rate-of-sum", "error",
            "sum(rate(vllm:prompt_tokens_total[5m]))",
        ),
        (
            "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[1m]))",
            "windows-differ", "warning",
            "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))",
        ),
        ("sum(rate(vllm:prompt_tokens_total[5m])", "not-promql", "error", ""),
        ("rate(sum(vllm:prompt_tokens_total))", "not-promql", "error", ""),
    ],
)  # fmt: skip
def test_slips_that_show_nothing_or_something_else(text: str, code: str, weight: str, fix: str) -> None:
    (one,) = found(panel(text))
    assert (one.code, one.weight, one.fix) == (code, weight, fix)
    assert fix == "" or codes(panel(fix)) == []


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_waiting{model_name="a",engine="0",pod="p",model!="x",pool="a"}',
        "sum by (pod, namespace, finished_reason) (rate(vllm:request_success_total[5m]))",
        "rate(vllm:prompt_tokens_total[5m]) / rate(vllm:prompt_tokens_total[1h])",
        "max_over_time(sum(rate(vllm:prompt_tokens_total[1m]))[1h:1m])",
        "sgn(vllm:num_requests_waiting)",  # outside of what is parsed here, but PromQL
        "sum(rate(vllm:prompt_tokens_total{{ .Values.matchers }}[5m])",  # a template completes it
    ],
)
def test_what_is_no_slip(text: str) -> None:
    assert codes(panel(text)) == []


def test_a_variable_that_the_board_does_not_have(tmp_path: Path) -> None:
    targets = [
        {"expr": 'vllm:num_requests_waiting{pod="$pod", instance=~"${instance:regex}"}'},
        {"expr": 'label_replace(rate(vllm:prompt_tokens_total{pod="$pod"}[$__rate_interval]), "a", "$1", "b", "(.+)")'},
    ]
    board = {
        "panels": [{"title": "p", "targets": targets}],
        "templating": {"list": [{"name": "pod", "type": "custom"}]},
    }
    path = tmp_path / "board.json"
    path.write_text(json.dumps(board))
    (one,) = lint(read_path(path)[0], Metrics(knowledge())).defects
    assert (one.code, one.weight) == ("undefined-variable", "error")
    assert "$instance" in one.why

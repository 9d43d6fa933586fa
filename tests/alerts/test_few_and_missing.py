"""One slow request is no trend; what an agent does not report is no symptom. By promtool, on the rules that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards.alerts_burn import BURNS, OBJECTIVES
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool

ENGINE = 'cluster="c",pool="p",node="n",engine="e"'


def check(code: str, series: dict[str, str], at: str, expected: int, folder: Path, interval: str = "5s") -> None:
    """Whether a rule's alert fires so many times."""
    groups = promtool._needed(code)
    (folder / "rules.yaml").write_text(dump({"groups": groups}))
    asked = f'count(ALERTS{{kvitals_code="{code}",alertstate="firing"}})'
    samples: list[Any] = [{"labels": "{}", "value": expected}] if expected else []
    one = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": asked, "eval_time": at, "exp_samples": samples}],
    }
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": interval,
        "group_eval_order": [group["name"] for group in groups],
        "tests": [one],
    }
    path = folder / "one.test.yaml"
    path.write_text(dump(test))
    passed, said = promtool.run([path])
    assert passed, said


def requests(a_minute: float, late: str) -> dict[str, str]:
    """First tokens of an engine with an objective of 2 s: `late` is the course of those that are in time."""
    whole = f"0+{a_minute / 12:g}x120"
    return {
        f"kvitals_target_up{{{ENGINE}}}": "1x120",
        f'kvitals_engine_info{{{ENGINE},kind="engine",system="vllm"}}': "1x120",
        f'kvitals_slo_seconds{{{ENGINE},slo="ttft_p99",source="s"}}': "2x120",
        f"kvitals_requests_running{{{ENGINE}}}": "4x120",
        f"kvitals_ttft_seconds_count{{{ENGINE}}}": whole,
        f"kvitals_ttft_seconds_sum{{{ENGINE}}}": whole,
        f'kvitals_ttft_seconds_bucket{{{ENGINE},le="2"}}': late,
        f'kvitals_ttft_seconds_bucket{{{ENGINE},le="10"}}': whole,
        f'kvitals_ttft_seconds_bucket{{{ENGINE},le="+Inf"}}': whole,
    }


@pytest.mark.parametrize(
    ("a_minute", "in_time", "fires"),
    [
        pytest.param(24, "0+2x60 121+2x59", 0, id="one slow request at 24 a minute"),
        pytest.param(24, "0+2x60 120 120+2x58", 1, id="four slow requests at 24 a minute"),
        pytest.param(24, "0+1.4x120", 1, id="one of three slow at 24 a minute"),
        pytest.param(72, "0+6x60 365+6x59", 0, id="one slow request at 72 a minute"),
        pytest.param(72, "0+6x60 362+6x59", 1, id="four slow requests at 72 a minute"),
        pytest.param(1200, "0+100x120", 0, id="none slow"),
        pytest.param(1200, "0+98x120", 1, id="one in fifty slow"),
    ],
)
def test_late_first_tokens(a_minute: float, in_time: str, fires: int, tmp_path: Path) -> None:
    check("LAT01", requests(a_minute, in_time), "5m45s", fires, tmp_path)


@pytest.mark.parametrize(
    ("series", "at", "fires"),
    [
        pytest.param(requests(1200, "0+100x60 0+100x59"), "7m", 0, id="a counter reset, none slow"),
        pytest.param(requests(1200, "0+98x60 0+98x59"), "7m", 1, id="a counter reset, one in fifty slow"),
        pytest.param(requests(1200, "0+98x60 stale"), "5m30s", 1, id="slow when the series goes stale"),
        pytest.param(requests(1200, "0+98x60 stale"), "9m", 0, id="stale for minutes"),
        pytest.param(requests(24, "0+2x30 _x6 74+2x80"), "5m45s", 0, id="a gap of half a minute"),
    ],
)
def test_first_tokens_where_series_end_or_begin_again(
    series: dict[str, str], at: str, fires: int, tmp_path: Path
) -> None:
    check("LAT01", _in_step(series), at, fires, tmp_path)


def _in_step(series: dict[str, str]) -> dict[str, str]:
    """The whole count resets, ends and pauses where the bucket of requests in time does."""
    (course,) = (values for name, values in series.items() if 'le="2"' in name)
    whole = next(values for name, values in series.items() if 'le="10"' in name)
    step = whole.partition("+")[2].partition("x")[0]
    late = course.partition("+")[2].partition("x")[0]
    return {
        name: course.replace(f"+{late}x", f"+{step}x") if values == whole else values for name, values in series.items()
    }


def engine(**courses: str) -> dict[str, str]:
    """An engine by the courses of its families, a sample every 5 s."""
    about = {
        f"kvitals_target_up{{{ENGINE}}}": "1x240",
        f'kvitals_engine_info{{{ENGINE},kind="engine",system="vllm"}}': "1x240",
        f'kvitals_slo_seconds{{{ENGINE},slo="ttft_p99",source="s"}}': "2x240",
    }
    return about | {f"kvitals_{name}{{{ENGINE}}}": course for name, course in courses.items()}


def queue(waiting: str) -> dict[str, str]:
    """An engine that finishes two requests a second, with a queue."""
    finished = {f'kvitals_requests_finished_total{{{ENGINE},reason="stop"}}': "0+10x240"}
    return finished | engine(
        requests_running="8x240",
        requests_waiting=waiting,
        ttft_seconds_count="0+10x240",
        generation_tokens_total="0+500x240",
    )


@pytest.mark.parametrize(
    ("waiting", "at", "fires"),
    [
        pytest.param("0x100 60 50 40 30 20 10 0x130", "9m", 0, id="a burst that drains in half a minute"),
        pytest.param("0x100 0+4x140", "12m", 1, id="a queue that grows on"),
    ],
)
def test_a_burst_is_no_growing_queue(waiting: str, at: str, fires: int, tmp_path: Path) -> None:
    check("SCH10", queue(waiting), at, fires, tmp_path)


@pytest.mark.parametrize(
    ("tokens", "fires"),
    [
        pytest.param("0+500x240", 0, id="at work"),
        pytest.param("0+500x100 50000x140", 1, id="wedged with requests on it"),
    ],
)
def test_a_wedged_engine_pages(tokens: str, fires: int, tmp_path: Path) -> None:
    flow = tokens.replace("500x", "10x").replace("50000x", "1000x")
    series = engine(
        requests_running="8x240", requests_waiting="3x240", generation_tokens_total=tokens, ttft_seconds_count=flow,
        step_tokens_count=flow, step_tokens_sum=tokens, prompt_tokens_total=tokens,
    )  # fmt: skip
    check("ENG01", series, "14m", fires, tmp_path)


def test_a_burn_needs_two_late_requests_in_its_short_window() -> None:
    _, alerting = promtool.shipped()
    burns = [rule for group in alerting["groups"] for rule in group["rules"] if "burn" in rule["labels"]]
    assert len(burns) == len(BURNS) * len(OBJECTIVES)
    for rule in burns:
        least = float(rule["expr"].partition(">= ")[2].split()[0])
        assert least * float(rule["labels"]["burn"]) / 100 >= 2, rule["expr"]


def pool(agent: str, *engines: str) -> dict[str, str]:
    """Engines of a pool with requests that wait, and their agent. A sample every 30 s."""
    found = {'kvitals_collector_success{cluster="c",node="n",collector="scrape"}': agent}
    for i, up in enumerate(engines):
        labels = f'{{cluster="c",pool="p",node="n",engine="e{i}"}}'
        one = up.replace("1x", "{}x")
        found |= {f"kvitals_target_up{labels}": up, f"kvitals_requests_running{labels}": one.format(*[4] * 9)}
        found |= {f"kvitals_requests_waiting{labels}": one.format(*[9] * 9)}
        found |= {f"kvitals_kv_usage_ratio{labels}": one.format(*["0.9"] * 9)}
    return found


@pytest.mark.parametrize("code", ["SCL06", "SCL08"])
@pytest.mark.parametrize(
    ("agent", "engines", "fires"),
    [
        pytest.param("1x80", ("1x80", "1x40 stale"), 1, id="an engine was taken away"),
        pytest.param("1x40 stale", ("1x40 stale", "1x40 stale"), 0, id="the agent is not scraped"),
        pytest.param("1x40 stale _x3 1x40", ("1x40 stale _x3 1x40",) * 2, 0, id="the agent is back"),
    ],
)
def test_what_an_agent_does_not_report_is_no_symptom(
    code: str, agent: str, engines: tuple[str, ...], fires: int, tmp_path: Path
) -> None:
    check(code, pool(agent, *engines), "22m30s", fires, tmp_path, "30s")

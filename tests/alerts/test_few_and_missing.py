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

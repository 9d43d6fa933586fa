"""Burn rates and what stopped being told, by promtool: when they fire, and when they must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards.alerts_burn import RATES
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool

UP = 'kvitals_target_up{cluster="c",pool="p",node="n",engine="e"}'
OTHER = 'kvitals_target_up{cluster="c",pool="p",node="n",engine="f"}'
SLO = 'kvitals_slo_seconds{engine="e",slo="ttft_p99"}'
NEEDED = {"kvitals:slo_ttft_seconds", "kvitals:slo_itl_seconds", "kvitals:target_up", "kvitals:traffic"}


def buckets(course: str, late: str) -> dict[str, str]:
    """First tokens of an engine: `course` in all, `late` of them after the objective of 2 s. Per minute, promtool's."""
    whole = f"0+{course}"
    return {
        SLO: f"2+0x{course.partition('x')[2]}",
        'kvitals_ttft_seconds_bucket{engine="e",le="2"}': late,
        'kvitals_ttft_seconds_bucket{engine="e",le="10"}': whole,
        'kvitals_ttft_seconds_bucket{engine="e",le="+Inf"}': whole,
    }


def firing(series: dict[str, str], at: str, asked: str, interval: str, folder: Path, expected: list[Any]) -> None:
    recording, alerting = promtool.shipped()
    kept = [
        {**group, "rules": [r for r in group["rules"] if group["name"] == RATES or r["record"] in NEEDED]}
        for group in recording["groups"]
    ]
    groups = [group for group in kept if group["rules"]]
    rules = [
        r for g in alerting["groups"] for r in g["rules"] if "burn" in r["labels"] or r["alert"].startswith("TEL01-")
    ]
    groups.append({"name": "alerts", "rules": rules})
    (folder / "rules.yaml").write_text(dump({"groups": groups}))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [
            {
                "interval": interval,
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": asked, "eval_time": at, "exp_samples": expected}],
            }
        ],
    }
    path = folder / "one.test.yaml"
    path.write_text(dump(test))
    passed, said = promtool.run([path])
    assert passed, said


def burns(*factors: str) -> list[Any]:
    return [{"labels": f'{{burn="{factor}"}}', "value": 1} for factor in factors]


@pytest.mark.parametrize(
    ("series", "at", "expected"),
    [
        # One in five late: one pages after some minutes, the other where it lasts.
        (buckets("60x30", "0+48x30"), "12m", burns("14.4")),
        (buckets("60x60", "0+48x60"), "55m", burns("14.4", "6")),
        # One in a hundred and twenty late is what the objective allows.
        (buckets("120x60", "0+119x60"), "55m", []),
        # Seven in a hundred: too slow for the first, fast enough for the second.
        (buckets("100x90", "0+93x90"), "80m", burns("6")),
        # It is over: the hour was bad, the last five minutes are not, the last half hour still is.
        (buckets("60x60", "0+48x20 1008+60x39"), "35m", burns("6")),
        (buckets("60x60", "0+48x20 1008+60x39"), "58m", []),
        # Fewer requests than a percentile can be told of.
        (buckets("0.5x60", "0+0.25x60"), "30m", []),
    ],
)  # fmt: skip
def test_budget_of_late_requests(series: dict[str, str], at: str, expected: list[Any], tmp_path: Path) -> None:
    asked = 'count by (burn) (ALERTS{alertname="LAT01-ttft-slo-breach-burn",alertstate="firing"})'
    firing(series, at, asked, "1m", tmp_path, expected)


@pytest.mark.parametrize(
    ("late", "expected"),
    [("0+80.5x600", burns("1", "3")), ("0+82x600", burns("1")), ("0+83x600", [])],
    ids=["3.4 %", "1.6 %", "0.4 %"],
)
def test_slow_burns_are_tickets(late: str, expected: list[Any], tmp_path: Path) -> None:
    """Of 5,000 requests an hour, over ten hours; windows that reach back further hold what there is."""
    asked = 'count by (burn) (ALERTS{alertname="LAT01-ttft-slo-breach-burn",alertstate="firing"})'
    firing(buckets("83.333x600", late), "10h", asked, "1m", tmp_path, expected)


def named(name: str, labels: str) -> list[Any]:
    return [{"labels": f'{{alertname="TEL01-{name}",{labels}}}', "value": 1}]


@pytest.mark.parametrize(
    ("series", "at", "expected"),
    [
        ({UP: "1x10 stale", OTHER: "1x60"}, "14m", named("engine-gone", 'engine="e",pool="p"')),
        ({UP: "1x10 stale", OTHER: "1x60"}, "40m", []),  # told to leave, by then
        ({UP: "1x60", OTHER: "1x60"}, "40m", []),
        ({UP: "1x10 0x50", OTHER: "1x60"}, "40m", []),  # a page that can not be read is another alert
        ({UP: "1x10 0x50"}, "14m", named("pool-gone", 'pool="p"')),
        ({"up": "1x60"}, "14m", named("nothing-told", "")),
    ],
)
def test_what_stopped_being_told(series: dict[str, str], at: str, expected: list[Any], tmp_path: Path) -> None:
    told = ", ".join(f"TEL01-{name}" for name in ("engine-gone", "pool-gone", "nothing-told"))
    pattern = told.replace(", ", "|")
    asked = f'count by (alertname, engine, pool) (ALERTS{{alertname=~"{pattern}",alertstate="firing"}})'
    firing(series, at, asked, "1m", tmp_path, expected)

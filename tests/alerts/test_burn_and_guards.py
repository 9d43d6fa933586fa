"""Burn rates and what stopped being told, by promtool: when they fire, and when they must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvitals.dashboards.alerts_burn import RATES
from kvitals.dashboards.alerts_guards import IN_FLIGHT, SCRAPES, SELDOM, SERVING, SOURCES
from kvitals.dashboards.alerts_yaml import dump
from tests.alerts import promtool

SLO = 'kvitals_slo_seconds{engine="e",slo="ttft_p99"}'
NEEDED = {
    IN_FLIGHT,
    SERVING,
    SOURCES,
    SCRAPES,
    SELDOM,
    "kvitals_target_up",
    "kvitals_requests_running",
    "kvitals:slo_ttft_seconds",
    "kvitals:slo_itl_seconds",
    "kvitals:target_up",
    "kvitals:traffic",
}


def buckets(course: str, late: str) -> dict[str, str]:
    """First tokens of an engine: `course` in all, `late` of them after the objective of 2 s. Per minute, promtool's."""
    whole = f"0+{course}"
    return {
        SLO: f"2+0x{course.partition('x')[2]}",
        'kvitals_ttft_seconds_bucket{engine="e",le="2"}': late,
        'kvitals_ttft_seconds_bucket{engine="e",le="10"}': whole,
        'kvitals_ttft_seconds_bucket{engine="e",le="+Inf"}': whole,
    }


def firing(
    series: dict[str, str], at: str, asked: str, interval: str, folder: Path, expected: list[Any], raw: bool = False
) -> None:
    """raw: by the rules over engines' own metrics."""
    recording, alerting = promtool.shipped_raw() if raw else promtool.shipped()
    kept = [
        {**group, "rules": [r for r in group["rules"] if group["name"] == RATES or r["record"] in NEEDED]}
        for group in recording["groups"]
    ]
    groups = [group for group in kept if group["rules"]]
    guards = ("TEL01-", "TEL12-several-sources")
    rules = [
        r for g in alerting["groups"] for r in g["rules"] if "burn" in r["labels"] or r["alert"].startswith(guards)
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
        (buckets("60x60", "0+48x60"), "55m", burns("14.4")),  # six hours of a young engine are the same minutes
        (buckets("60x90", "0+48x90"), "80m", burns("14.4", "6")),
        # One in a hundred and twenty late is what the objective allows.
        (buckets("120x60", "0+119x60"), "55m", []),
        # Seven in a hundred: too slow for the first, fast enough for the second.
        (buckets("100x90", "0+93x90"), "80m", burns("6")),
        # It is over: the hour was bad, the last five minutes are not, the last half hour still is.
        (buckets("60x170", "0+60x40 2448+48x89 6780+60x40"), "140m", burns("3", "6")),
        (buckets("60x170", "0+60x40 2448+48x89 6780+60x40"), "165m", burns("3")),
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


FLEET = [f'{{cluster="c",pool="p",node="n",engine="e{i}"}}' for i in range(6)]
AGENT = 'kvitals_collector_success{cluster="c",node="n",collector="scrape"}'
GONE = ("engine-gone", "pool-gone", "agent-gone", "all-gone")


def life(*engines: tuple[str, str], agent: str = "1x120") -> dict[str, str]:
    """Samples of each engine: whether its page answers, and what runs on it. A sample every 30 s."""
    found = {AGENT: agent} if agent else {}
    for labels, (up, running) in zip(FLEET, engines, strict=False):
        found |= {f"kvitals_target_up{labels}": up, f"kvitals_requests_running{labels}": running}
        found |= {f"kvitals_requests_waiting{labels}": running.replace("4", "0")}
    return found


def renamed(series: dict[str, str]) -> dict[str, str]:
    """The same engines in a pool of another name."""
    return {name.replace('pool="p"', 'pool="q"'): values for name, values in series.items() if "pool" in name}


def twice(series: dict[str, str]) -> dict[str, str]:
    """The same series as a second scrape job has them."""
    return {name.replace("{", '{job="second",'): values for name, values in series.items()}


BUSY, IDLE = ("1x120", "4x120"), ("1x120", "0x120")
ROLLED = (("1x40 stale", "4x40 stale"), ("_x37 1x83", "_x37 4x83"))
"""An engine that requests run on to its end, and the one that takes its place, which is there 90 s before."""


@pytest.mark.parametrize(
    ("series", "at", "expected"),
    [
        pytest.param(life(BUSY, BUSY), "20m", [], id="healthy"),
        pytest.param(life(BUSY, ("1x20 stale", "0x20 stale")), "14m", [], id="idle, then gone"),
        pytest.param(life(BUSY, ("1x20 stale", "4x10 2x4 0x4 stale")), "14m", [], id="scale-in after draining"),
        pytest.param(life(BUSY, ("1x20 stale", "4x20 stale")), "13m", ["engine-gone"], id="gone with traffic"),
        pytest.param(life(*[BUSY] * 5, ("1x20 0x100", "4x20 stale")), "14m", ["engine-gone"], id="one of six dead"),
        pytest.param(life(*[BUSY] * 5, ("1x20 0x100", "4x20 stale")), "50m", ["engine-gone"], id="dead for 40 minutes"),
        pytest.param(life(*[BUSY] * 5, ("1x20 0x20 1x80", "4x20 _x20 4x80")), "25m", [], id="back again"),
        pytest.param(life(BUSY, ("1x20 0x100", "0x20 stale")), "14m", [], id="idle and unreachable is a ticket"),
        pytest.param(
            life(("1x20 stale", "4x8 0x12 stale"), ("_x16 1x104", "_x16 0x4 4x100")), "14m", [], id="rollout"
        ),
        pytest.param(life(BUSY, *ROLLED), "22m", [], id="a rollout without draining"),
        pytest.param(life(BUSY, *ROLLED), "50m", [], id="long after a rollout without draining"),
        pytest.param(
            life(BUSY, *ROLLED, ("1x60 stale", "4x60 stale")), "33m", ["engine-gone"], id="gone soon after a rollout"
        ),
        pytest.param(
            life(BUSY, ("1x20 stale", "4x20 stale"), ("_x30 1x90", "_x30 4x90")), "18m", [], id="replaced after a crash"
        ),
        pytest.param(life(*[("1x20 stale", "4x4 0x16 stale")] * 3), "14m", [], id="scale-to-zero"),
        pytest.param(life(*[("1x20 stale", "4x4 0x16 stale")] * 3), "90m", [], id="scaled to zero for long"),
        pytest.param(life(*[("1x20 0x100", "4x20 stale")] * 3), "12m30s", ["pool-gone"], id="a pool dies"),
        pytest.param(life(*[("1x20 0x100", "4x20 stale")] * 3), "45m", ["pool-gone"], id="a pool is dead for long"),
        pytest.param(
            life(*[("1x20 stale _x4 1x90", "4x20 stale _x4 4x90")] * 3, agent="1x20 stale _x4 1x90"),
            "12m30s", [], id="a gap of everything of 3 minutes",
        ),
        pytest.param(
            life(*[("1x20 stale", "4x20 stale")] * 3, agent="1x20 stale"),
            "18m", ["agent-gone", "all-gone"], id="everything is gone",
        ),
        pytest.param(
            life(*[("1x20 stale", "4x20 stale")] * 3, agent="1x20 stale _x4 1x90"), "13m", [],
            id="the agent's scrape is down",
        ),
        pytest.param(
            life(*[("1x20 stale", "4x20 stale")] * 3) | renamed(life(*[("_x20 1x100", "_x20 4x100")] * 3)), "14m", [],
            id="the pool's label changes",
        ),
        pytest.param(
            life(BUSY, BUSY) | twice(life(BUSY, BUSY)), "20m", [], id="a double scrape",
        ),
        pytest.param(
            life(*[BUSY] * 5, ("1x20 0x100", "4x20 stale")) | twice(life(*[BUSY] * 5, ("1x20 0x100", "4x20 stale"))),
            "14m", ["engine-gone"], id="one of six dead, scraped twice",
        ),
    ],
)  # fmt: skip
def test_who_is_woken_when_engines_end(series: dict[str, str], at: str, expected: list[str], tmp_path: Path) -> None:
    pattern = "|".join(f"TEL01-{name}" for name in GONE)
    asked = f'group by (alertname) (ALERTS{{alertname=~"{pattern}",alertstate="firing"}})'
    firing(series, at, asked, "30s", tmp_path, [{"labels": f'{{alertname="TEL01-{n}"}}', "value": 1} for n in expected])


def test_a_dead_engine_is_one_page(tmp_path: Path) -> None:
    series = life(*[BUSY] * 5, ("1x20 0x100", "4x20 stale"))
    asked = 'count(ALERTS{alertstate="firing",severity="page"})'
    firing(series, "14m", asked, "30s", tmp_path, [{"labels": "{}", "value": 1}])


def test_a_prometheus_that_sees_no_engine_is_a_ticket(tmp_path: Path) -> None:
    asked = 'group by (alertname, severity) (ALERTS{alertstate="firing"})'
    told = [{"labels": '{alertname="TEL01-nothing-told",severity="ticket"}', "value": 1}]
    firing({"up": "1x60"}, "14m", asked, "1m", tmp_path, told)


def workload(wanted: str, there: str, updated: str = "", name: str = "p", kind: str = "deployment") -> dict[str, str]:
    """What kube-state-metrics reports of a workload, a sample every 30 s, and an engine of pool `p`."""
    labels = f'{{cluster="c",namespace="serving",{kind}="{name}",job="kube-state-metrics"}}'
    metrics = {
        "deployment": ("spec_replicas", "status_replicas_available", "status_replicas_updated"),
        "statefulset": ("replicas", "status_replicas_ready", "status_replicas_updated"),
    }[kind]
    values = (wanted, there, updated or wanted)
    return life(BUSY) | {f"kube_{kind}_{m}{labels}": v for m, v in zip(metrics, values, strict=True)}


def in_namespace(name: str, series: dict[str, str], instance: str = "a") -> dict[str, str]:
    """The same workload elsewhere, or as another kube-state-metrics reports it."""
    labels = f'namespace="{name}",instance="{instance}"'
    return {key.replace('namespace="serving"', labels): values for key, values in series.items()}


def test_a_pool_may_be_named_by_namespace_and_workload(tmp_path: Path) -> None:
    """As the relabelling in docs/prometheus.md does."""
    series = {name.replace('pool="p"', 'pool="serving/p"'): v for name, v in workload("6x120", "6x20 5x100").items()}
    asked = 'group by (pool) (ALERTS{alertname="TEL01-below-replicas",alertstate="firing"})'
    firing(series, "45m", asked, "30s", tmp_path, [{"labels": '{pool="serving/p"}', "value": 1}])


@pytest.mark.parametrize(
    ("series", "at", "fires"),
    [
        pytest.param(workload("6x120", "6x20 5x100"), "45m", True, id="five of six for half an hour"),
        pytest.param(workload("6x120", "6x20 5x100", kind="statefulset"), "45m", True, id="of a StatefulSet"),
        pytest.param(workload("6x120", "6x20 5x20 6x80"), "45m", False, id="five of six for ten minutes"),
        pytest.param(workload("3x20 6x100", "3x40 6x80"), "25m", False, id="a scale-out that takes ten minutes"),
        pytest.param(
            workload("6x120", "6x10 5x110", "6x10 1x10 2x10 3x10 4x10 5x10 6x70"), "45m", False, id="a slow rollout"
        ),
        pytest.param(workload("6x20 0x100", "6x20 0x100"), "45m", False, id="scaled to zero"),
        pytest.param(
            workload("6x120", "6x20 5x100") | life(*[BUSY] * 5, ("1x20 0x100", "4x20 stale")),
            "45m",
            False,
            id="the missing engine pages already",
        ),
        pytest.param(workload("6x120", "6x20 5x100", name="web"), "45m", False, id="no pool of ours"),
        pytest.param(workload("_x60 3x60", "_x60 0x60"), "34m", False, id="created anew, its pods load"),
        pytest.param(
            in_namespace("serving", workload("1x60 3x4 stale", "1x64 stale"), instance="a")
            | in_namespace("serving", workload("_x65 3x55", "_x65 1x55"), instance="b"),
            "34m",
            False,
            id="kube-state-metrics is replaced during a scale-out",
        ),
        pytest.param(
            workload("6x120", "6x120") | in_namespace("staging", workload("6x120", "6x20 5x100")),
            "45m",
            False,
            id="another namespace has a workload of that name",
        ),
    ],
)
def test_fewer_replicas_than_wanted(series: dict[str, str], at: str, fires: bool, tmp_path: Path) -> None:
    asked = 'group by (alertname, pool, severity) (ALERTS{alertname="TEL01-below-replicas",alertstate="firing"})'
    labels = '{alertname="TEL01-below-replicas",pool="p",severity="page"}'
    firing(series, at, asked, "30s", tmp_path, [{"labels": labels, "value": 1}] if fires else [])


def page(*sources: str) -> dict[str, str]:
    """Two engines by their own metrics, the first of which each of these targets has."""
    labels = 'model_name="m",engine="0"'
    found = {f'vllm:num_requests_running{{instance="a:8000",{source},{labels}}}': "4x60" for source in sources}
    return found | {f'vllm:num_requests_running{{instance="b:8000",job="vllm",{labels}}}': "4x60"}


@pytest.mark.parametrize(
    ("series", "raw", "fires"),
    [
        pytest.param(life(BUSY, BUSY), False, False, id="agents"),
        pytest.param(life(BUSY) | twice(life(BUSY)), False, True, id="agents, a double scrape"),
        pytest.param(page('job="vllm"'), True, False, id="engines"),
        pytest.param(page('job="one",tenant="x"', 'job="one",tenant="y"'), True, True, id="engines of two tenants"),
    ],
)
def test_several_sources_under_one_name(series: dict[str, str], raw: bool, fires: bool, tmp_path: Path) -> None:
    """Their figures are added, and one that stops is hidden by the other: no rule could see it."""
    asked = 'count(ALERTS{alertname="TEL12-several-sources",alertstate="firing"})'
    interval = "1m" if raw else "30s"
    firing(series, "20m", asked, interval, tmp_path, [{"labels": "{}", "value": 1}] if fires else [], raw)

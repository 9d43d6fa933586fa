"""What is recorded how often, and what is computed once for many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kvitals.dashboards.alerts_files import Groups, with_agents, without_agents
from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.board_files import shipped_boards
from kvitals.dashboards.recording_cost import LATENCY, needed_often, shared_rates
from kvitals.dashboards.recording_rules import SLOW
from kvitals.rules.loader import SIGNAL_PREFIX, load
from kvitals.series.promql import Range, names, parse

OPTIONS = Options(scrape_seconds=15.0, alerts="extended")
SCALED_ON = {"kvitals:drain_seconds", "kvitals:kv_usage_p90", "kvitals:cascade_stage"}

each_flavour = pytest.mark.parametrize(
    "make",
    [lambda: with_agents(load(), OPTIONS), lambda: without_agents(load(), OPTIONS)[:2]],
    ids=["agents", "engines"],
)
Make = Callable[[], tuple[Groups, Groups]]


def intervals(groups: Groups) -> dict[str, str]:
    """Of each recorded name, the interval of its group where that is longer than the server's; else empty."""
    often = ("", duration(OPTIONS.scrape_seconds))
    every = {rule["record"]: group.get("interval", "") for group in groups["groups"] for rule in group["rules"]}
    return {name: "" if interval in often else interval for name, interval in every.items()}


def rules(groups: Groups) -> list[dict[str, Any]]:
    return [rule for group in groups["groups"] for rule in group["rules"]]


@each_flavour
def test_what_alerts_and_autoscalers_read_is_as_fresh_as_an_evaluation(make: Make) -> None:
    recording, alerts = make()
    every = intervals(recording)
    slow = {rule["record"] for group in recording["groups"] if group["name"] == SLOW for rule in group["rules"]}
    read = {name for rule in rules(alerts) for name in names(parse(rule["expr"])) if "burn" not in rule["labels"]}
    signals = {name for name in read | SCALED_ON if name.startswith(SIGNAL_PREFIX)} & every.keys()
    assert len(signals) > 30
    assert {name: every[name] for name in signals - slow if every[name]} == {}


@each_flavour
def test_a_range_of_a_signal_has_the_samples_that_its_threshold_counts_on(make: Make) -> None:
    """`count_over_time(...[15m]) >= 20` is never true of a signal that is recorded once a minute."""
    recording, _ = make()
    every = intervals(recording)
    slow = {rule["record"] for group in recording["groups"] if group["name"] == SLOW for rule in group["rules"]}
    ranged = {
        node.selector.name
        for rule in rules(recording)
        if ":rate" not in rule["record"]
        for node in parse(rule["expr"]).walk()
        if isinstance(node, Range) and node.selector.name.startswith(SIGNAL_PREFIX)
    }
    assert len(ranged) > 5
    assert {name for name in ranged - slow if every.get(name)} == set()


@each_flavour
def test_what_nobody_waits_for_is_recorded_once_a_minute(make: Make) -> None:
    """And what boards draw is not: a board in an incident cannot wait."""
    every = intervals(make()[0])
    minute = {name for name, interval in every.items() if interval == "1m" and name.startswith(SIGNAL_PREFIX)}
    assert len(minute) > 80
    drawn = json.dumps(list(shipped_boards().values()))
    slow = {f"{SIGNAL_PREFIX}{name}" for name, signal in load().signals.items() if signal.window == "slow"}
    assert {name for name in minute - slow if re.search(rf"{name}\b(?!:)", drawn)} == set()


@each_flavour
def test_a_rate_that_many_read_is_calculated_once(make: Make) -> None:
    recording, alerts = make()
    for name, expr in shared_rates(OPTIONS).items():
        assert [rule["record"] for rule in rules(recording) if expr in rule["expr"]] == [name]
        assert not [rule["alert"] for rule in rules(alerts) if expr in rule["expr"]]
        assert sum(name in rule["expr"] for rule in [*rules(recording), *rules(alerts)]) >= 3
    first = next(group["rules"] for group in recording["groups"] if group["name"] == LATENCY)[:2]
    assert {rule["record"] for rule in first} == shared_rates(OPTIONS).keys()


@each_flavour
def test_most_readers_of_shared_rates_are_as_fresh_as_these(make: Make) -> None:
    """Signals at every evaluation that read them are in their group, behind them."""
    for group in make()[0]["groups"]:
        if not group.get("interval") and group["name"] != LATENCY:
            assert not [r for r in group["rules"] if any(name in r["expr"] for name in shared_rates(OPTIONS))], group


def test_what_a_needed_signal_is_made_of_is_needed_too() -> None:
    recording = [
        {"record": "kvitals:a", "expr": "kvitals:b + kvitals_x"},
        {"record": "kvitals:b", "expr": "kvitals_y"},
        {"record": "kvitals:c", "expr": "kvitals_z"},
        {"record": "kvitals:d", "expr": "max_over_time(kvitals:e[5m])"},
        {"record": "kvitals:e", "expr": "kvitals_z"},
    ]
    assert needed_often(recording, ["kvitals:a > 1"]) == {"kvitals:a", "kvitals:b", "kvitals:e"}

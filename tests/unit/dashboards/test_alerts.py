"""What the generated rules are: complete, linked to what exists, silent on what is not known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import yaml

from kvitals.dashboards import boards
from kvitals.dashboards.alertmanager import configuration, held_back
from kvitals.dashboards.alerts import DEAD_CAPACITY, alertable, severity
from kvitals.dashboards.alerts_burn import BURNS, OBJECTIVES, RATES
from kvitals.dashboards.alerts_conditions import expression, negative, positive
from kvitals.dashboards.alerts_files import with_agents, without_agents
from kvitals.dashboards.alerts_guards import GROUP, SCRAPES, SOURCES
from kvitals.dashboards.alerts_options import Options, receiver_url
from kvitals.dashboards.board_files import family_metrics, shipped_boards
from kvitals.dashboards.generate import GENERATED
from kvitals.dashboards.recording_cost import ONCE_A_MINUTE
from kvitals.dashboards.recording_raw import FAMILIES, HISTOGRAMS, PageCoverage
from kvitals.dashboards.recording_rules import DERIVED, in_order, reads, record
from kvitals.dashboards.runbooks import files as runbooks
from kvitals.rules.condition import parse_condition
from kvitals.rules.loader import Knowledge, family_of, load
from kvitals.series.promql import Selector, names, parse

OPTIONS = Options(runbooks="https://r.test/books", boards="https://g.test", alerts="extended")


@lru_cache(maxsize=1)
def knowledge() -> Knowledge:
    return load()


@lru_cache(maxsize=1)
def flavours() -> dict[str, tuple[Any, Any]]:
    return {"agents": with_agents(knowledge(), OPTIONS), "engines": without_agents(knowledge(), OPTIONS)[:2]}


MAX_TEMPLATE_QUERIES, MAX_QUERIES_OF_AN_ALERT = 80, 6
"""In the texts of the core set, which is a third of what all alerts once had (285), and in those of one alert."""


def rules(groups: Any) -> list[dict[str, Any]]:
    return [rule for group in groups["groups"] for rule in group["rules"]]


each_flavour = pytest.mark.parametrize("flavour", ["agents", "engines"])


@each_flavour
def test_every_expression_is_in_our_own_promql(flavour: str) -> None:
    recording, alerting = flavours()[flavour]
    for rule in [*rules(recording), *rules(alerting)]:
        parse(rule["expr"])


def test_without_agents_signals_and_alerts_are_those_of_agents() -> None:
    """Only families and the engines' identity differ: these are recorded of the engines' pages."""
    (ours, our_alerts), (raw, raw_alerts) = flavours()["agents"], flavours()["engines"]
    signals = {rule["record"]: rule for rule in rules(ours)}
    above = [
        rule
        for rule in rules(raw)
        if rule["record"].startswith("kvitals:") and rule["record"] not in (SCRAPES, SOURCES)
    ]
    assert above and all(rule == signals[rule["record"]] for rule in above)
    alerts = rules(our_alerts)
    assert rules(raw_alerts) and all(rule in alerts for rule in rules(raw_alerts))


def test_families_are_recorded_as_often_as_pages_are_scraped() -> None:
    recording, _, _ = without_agents(knowledge(), replace(OPTIONS, scrape_seconds=15.0))
    groups = {group["name"]: group for group in recording["groups"]}
    assert {groups[name]["interval"] for name in (FAMILIES, HISTOGRAMS)} == {"15s"}


def test_what_rules_of_engines_read_is_recorded_or_on_a_page() -> None:
    """Every family that a signal, an alert or a board reads has a normalising rule where a page reports it."""
    recording, alerting = flavours()["engines"]
    recorded = {rule["record"] for rule in rules(recording)}
    coverage = PageCoverage(knowledge())
    read = {name for rule in [*rules(recording), *rules(alerting)] for name in names(parse(rule["expr"]))}
    read |= family_metrics(shipped_boards().values(), knowledge())
    ours = {name for name in read if family_of(name, knowledge().families) and coverage.reports(Selector(name))}
    assert len(ours) > 90
    assert ours <= recorded


def test_agents_record_every_signal() -> None:
    recorded = {rule["record"] for rule in rules(flavours()["agents"][0])}
    assert {f"kvitals:{name}" for name in knowledge().signals} <= recorded


def test_a_signal_comes_after_those_that_it_reads() -> None:
    order = in_order(knowledge())
    for name in order:
        assert all(order.index(read) < order.index(name) for read in reads(name, knowledge()))
    groups = flavours()["agents"][0]["groups"]
    names = [group["name"] for group in groups]
    assert names[names.index(DERIVED) + 1 :] == [DERIVED + ONCE_A_MINUTE, GROUP, RATES]  # the last two read families


def test_every_page_and_ticket_has_an_alert_and_nothing_else_has() -> None:
    made = {rule["labels"]["code"] for rule in rules(flavours()["agents"][1])}
    assert made == {code for code, rule in knowledge().rules.items() if alertable(rule)}


@each_flavour
def test_alerts_say_whose_and_where_to_read_on(flavour: str) -> None:
    pages = runbooks(knowledge())
    uids = {board["uid"] for board in boards.built(knowledge(), OPTIONS.runbooks).values()}
    for rule in rules(flavours()[flavour][1]):
        said = rule["annotations"]
        assert {"code", "severity", "kind", "stage", "scope"} <= rule["labels"].keys()
        page = re.fullmatch(r"https://r\.test/books/(\w+)\.html", said["runbook_url"])
        assert page and f"runbooks/{page[1]}.md" in pages
        board = re.match(r"https://g\.test/d/([\w-]+)\?", said["dashboard_url"])
        assert board and board[1] in uids, said["dashboard_url"]
        assert said["description"].replace("{{ end }}", "").endswith(".")


@each_flavour
def test_names_are_unique_but_for_burn_rates(flavour: str) -> None:
    names = [rule["alert"] for rule in rules(flavours()[flavour][1]) if "burn" not in rule["labels"]]
    assert len(names) == len(set(names))
    burning = [rule for rule in rules(flavours()[flavour][1]) if "burn" in rule["labels"]]
    assert len(burning) == len(BURNS) * len(OBJECTIVES)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("kvitals:a > 1 unless kvitals:b > 2", "kvitals:a > 1 and kvitals:b <= 2"),
        ("kvitals:a > 1 unless (kvitals:b > 2 and kvitals:c == 3)",
         "kvitals:a > 1 and (kvitals:b <= 2 or (kvitals:c < 3 or kvitals:c > 3))"),
        ("kvitals:a > 1 unless (kvitals:b > 2 unless kvitals:c > 3)",
         "kvitals:a > 1 and (kvitals:b <= 2 or kvitals:c > 3)"),
        ("kvitals:a != 1", "kvitals:a < 1 or kvitals:a > 1"),
        ("kvitals:a > 1 or kvitals:b > 2", "kvitals:a > 1 or kvitals:b > 2"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_not_taken_for_false(text: str, known: str) -> None:
    assert positive(parse_condition(text)) == parse(known)


def test_a_negation_twice_is_the_condition() -> None:
    condition = parse_condition("kvitals:a > 1 and kvitals:b <= 2 or kvitals:c < 3")
    assert negative(parse_condition(str(negative(condition)))) == positive(parse_condition(str(positive(condition))))


def test_no_expression_of_an_alert_takes_missing_signals_for_something() -> None:
    """`unless` and `absent` are left to what the rule applies to, which is told by labels."""
    for rule in knowledge().rules.values():
        if alertable(rule):
            text = expression(rule, OPTIONS)
            for negated in re.findall(r"unless on \([a-z, ]+\) (\S+)", text):
                assert negated.startswith(("kvitals_engine_info{", "kvitals:traffic"))
            assert "absent" not in text


def test_a_leave_level_holds_only_while_it_fires() -> None:
    text = expression(knowledge().rules["LAT01"], OPTIONS)
    assert 'ALERTS{alertname="LAT01-ttft-slo-breach", alertstate="firing"}' in text
    assert "0.9 * kvitals:slo_ttft_seconds" in text


def test_a_longer_scrape_interval_makes_longer_windows() -> None:
    recorded = record(knowledge(), replace(OPTIONS, scrape_seconds=30))
    texts = " ".join(rule["expr"] for group in recorded.groups.values() for rule in group)
    assert "[4m]" in texts
    assert "[1m]" not in texts


def test_engines_alone_tell_why_a_rule_has_no_alert() -> None:
    left_out = without_agents(knowledge(), OPTIONS)[2]
    made = {rule["labels"]["code"] for rule in rules(flavours()["engines"][1])}
    assert not made & left_out.keys()
    assert {"KVC05", "GPU05", "TEN03"} <= left_out.keys()
    assert {"LAT01", "KVC01", "SCH10", "ENG01", "TEL01"} <= made


def test_what_engines_alone_read_is_recorded() -> None:
    recording, alerting = flavours()["engines"]
    recorded = {rule["record"] for rule in rules(recording)}
    for rule in rules(alerting):
        needed = {name for name in re.findall(r"kvitals:\w+", rule["expr"]) if not name.endswith("_bucket")}
        if " or " not in rule["expr"]:
            assert needed <= recorded, rule["alert"]


def test_nothing_is_held_back_in_a_circle() -> None:
    edges = held_back(knowledge())

    def reach(code: str, seen: frozenset[str]) -> None:
        assert code not in seen, seen
        for target in edges.get(code, ()):
            reach(target, seen | {code})

    for code in edges:
        reach(code, frozenset())


def test_no_ticket_holds_back_a_page() -> None:
    every = configuration(knowledge(), OPTIONS)["inhibit_rules"]
    tickets = {f'kvitals_code="{code}"' for code, rule in knowledge().rules.items() if severity(rule) == "ticket"}
    holding = [rule for rule in every if tickets.intersection(rule["source_matchers"])]
    assert holding and all('severity="ticket"' in rule["target_matchers"] for rule in holding)


def test_every_route_leads_to_a_receiver() -> None:
    made = configuration(knowledge(), OPTIONS)
    receivers = {receiver["name"] for receiver in made["receivers"]}
    assert {made["route"]["receiver"], *(route["receiver"] for route in made["route"]["routes"])} <= receivers


def test_windows_of_burn_rates_are_long_and_short() -> None:
    order = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"]
    assert all(order.index(burn.short) < order.index(burn.long) for burn in BURNS)
    assert all(one.factor > other.factor for one, other in pairwise(BURNS))


@pytest.mark.parametrize("flavour", ["agents", "engines"])
def test_pages_are_for_what_users_feel_and_for_lost_capacity(flavour: str) -> None:
    alerts = [rule for group in flavours()[flavour][1]["groups"] for rule in group["rules"]]
    paging = {(rule["labels"]["kind"], rule["alert"]) for rule in alerts if rule["labels"]["severity"] == "page"}
    assert {name for kind, name in paging if kind == "cause"} == {
        knowledge().rules[code].slug for code in DEAD_CAPACITY
    }
    assert {name.rpartition("-")[0] for kind, name in paging if kind == "telemetry"} <= {
        "TEL01-engine", "TEL01-pool", "TEL01-agent", "TEL01-all", "TEL01-below",
    }  # fmt: skip
    assert any(kind == "symptom" for kind, _ in paging)


def test_severities_are_those_that_are_configured() -> None:
    options = Options(page="critical", ticket="warning")
    _, alerts = with_agents(knowledge(), options)
    found = {rule["labels"]["severity"] for group in alerts["groups"] for rule in group["rules"]}
    assert found == {"critical", "warning"}
    routes = configuration(knowledge(), options)["route"]["routes"]
    assert [route["matchers"][1] for route in routes] == ['severity="critical"', 'severity="warning"']


def test_alerts_have_a_code_that_others_do_not_have() -> None:
    for recording_and_alerts in flavours().values():
        for rule in (rule for group in recording_and_alerts[1]["groups"] for rule in group["rules"]):
            assert rule["labels"]["kvitals_code"] == rule["labels"]["code"]
    written = json.dumps(configuration(knowledge(), Options()))
    assert not re.search(r"(?<!kvitals_)code[!=]", written)


@pytest.mark.parametrize(("make", "most"), [(with_agents, 30), (without_agents, 30)])
def test_the_core_set_is_what_a_team_can_know_by_heart(make: Any, most: int) -> None:
    core, whole = (make(knowledge(), Options(alerts=which))[1] for which in ("core", "extended"))
    names = {rule["alert"] for rule in rules(core)}
    assert 20 <= len(rules(core)) <= most
    assert names < {rule["alert"] for rule in rules(whole)}
    paging = {rule["alert"] for rule in rules(whole) if rule["labels"]["severity"] == "page"}
    assert paging <= names


@pytest.mark.parametrize("make", [with_agents, without_agents])
def test_texts_of_alerts_ask_a_server_few_queries(make: Any) -> None:
    """Prometheus runs the queries of a firing alert's texts at each evaluation."""
    asked = {
        rule["alert"]: sum(text.count("| query }}") for text in rule["annotations"].values())
        for rule in rules(make(knowledge(), Options())[1])
    }
    assert 0 < sum(asked.values()) <= MAX_TEMPLATE_QUERIES, asked
    assert max(asked.values()) <= MAX_QUERIES_OF_AN_ALERT, asked


def test_the_core_set_is_what_is_shipped() -> None:
    """A team that loads the checked-in files gets no more alerts than it can know."""
    for flavour in ("agents", "engines"):
        shipped = yaml.safe_load((GENERATED / "prometheus" / flavour / "alerts.yaml").read_text())
        assert 20 <= len(rules(shipped)) <= 30


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://127.0.0.1:9477", "http://127.0.0.1:9477/api/v1/notify"),
        ("https://kvitals.example.org/", "https://kvitals.example.org/api/v1/notify"),
        ("https://proxy.example.org/kvitals/hook", "https://proxy.example.org/kvitals/hook"),
    ],
)
def test_the_address_of_notify_is_enough_for_alertmanager(address: str, url: str) -> None:
    """`--receiver http://127.0.0.1:9477` was written as it stands: each message would have got a 404."""
    assert receiver_url(address) == url

"""Requests as families: what is counted for whom, and that series stay few."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kvitals.agent.requests import request_families
from kvitals.agent.requests.record import RequestRecord, SpanRef
from kvitals.agent.requests.request_families import RequestFamilies
from kvitals.rules.loader import load
from kvitals.series.promql import evaluate
from kvitals.series.window import Window
from tests.unit.requests.parts import llm, one, tap

T = 1_000_000.0


def record(tenant: str = "t-a", t: float = T, **more: object) -> RequestRecord:
    return one(tap(1, t, tenant=tenant, **more), llm(1, t))


class Counted:
    """Families and the window that they write."""

    def __init__(self, top: int = 3) -> None:
        self.window = Window(3600, 200_000)
        self.families = RequestFamilies(self.window, {"node": "n"}, self.labels_of, top)
        self.t = T

    @staticmethod
    def labels_of(engine: str) -> dict[str, str] | None:
        return {"cluster": "c", "node": "elsewhere"} if engine == "10.0.0.1:8000" else None

    def row(self, seconds: float = 1.0) -> None:
        self.t += seconds
        self.families.row(self.t, 1, self.t - 3, {"late": 2})

    def value(self, query: str) -> dict[tuple[tuple[str, str], ...], float]:
        found = evaluate(query, self.window, self.t)
        assert not isinstance(found, float)
        return {tuple(sorted(labels.items())): value for labels, value in found}

    def total(self, query: str) -> float:
        return sum(self.value(query).values())

    def tenants(self) -> set[str]:
        query = "count by (tenant) (kvitals_tenant_requests_total)"
        return {dict(labels).get("tenant", "") for labels in self.value(query)}


def test_a_tenants_numbers_begin_at_zero_so_that_they_can_rise() -> None:
    counted = Counted()
    counted.families.add(record())
    counted.row()
    assert counted.total("kvitals_tenant_requests_total") == 0
    counted.row()
    series = 'kvitals_tenant_requests_total{tenant="t-a",engine="10.0.0.1:8000",outcome="success"}'
    assert counted.total(series) == 1
    assert counted.total("kvitals_tenant_prompt_tokens_total") == 137
    assert counted.total("kvitals_tenant_cached_tokens_total") == 64
    assert counted.total("kvitals_tenant_output_tokens_total") == 16
    assert counted.total('kvitals_tenant_ttft_seconds_bucket{le="0.2"}') == 0
    assert counted.total('kvitals_tenant_ttft_seconds_bucket{le="0.35"}') == 1
    assert counted.total("kvitals_tenant_e2e_seconds_sum") == pytest.approx(0.45)
    assert counted.total("kvitals_tenant_queue_seconds_count") == 1
    assert counted.total('kvitals_request_parts_dropped_total{reason="late"}') == 2


def test_series_of_an_engine_have_its_labels_and_the_others_this_nodes() -> None:
    counted = Counted()
    counted.families.add(record())
    counted.row()
    counted.row()
    (labels,) = counted.value('kvitals_observed_requests_total{role="unified"}')
    assert dict(labels)["node"] == "elsewhere"
    (labels,) = counted.value("kvitals_requests_open")
    assert dict(labels)["node"] == "n"
    phases = counted.value("kvitals_request_phase_seconds_sum")
    found = {dict(labels)["phase"]: value for labels, value in phases.items()}
    assert found["prefill"] == pytest.approx(0.2084)
    assert found["gateway"] == pytest.approx(0.004)
    assert sum(found.values()) == pytest.approx(0.45)


def test_series_come_in_the_order_of_the_requests_so_that_sums_repeat_to_the_digit() -> None:
    tenants = [f"t-{number}" for number in range(20)]
    counted = Counted(top=20)
    for tenant in tenants:
        counted.families.add(record(tenant))
    counted.row()
    found = evaluate("kvitals_tenant_cached_tokens_total", counted.window, counted.t)
    assert not isinstance(found, float)
    assert [labels["tenant"] for labels, _ in found] == tenants


def handed_over(*spans: tuple[str, str]) -> RequestRecord:
    """A request of a prefill and a decode engine, with its spans' observers and traces."""
    refs = tuple(SpanRef(observer, f"{n:016x}", trace) for n, (observer, trace) in enumerate(spans))
    engines = {"prefill": "10.0.0.2:8000", "decode": "10.0.0.1:8000"}
    return RequestRecord(id="r", start=T, end=T + 1, complete=True, engines=engines, spans=refs)


def test_a_handover_that_changes_the_trace_is_counted_by_the_decode_engine() -> None:
    counted = Counted()
    other = "b" * 32
    counted.families.add(handed_over(("router", other), ("engine", ""), ("engine", "")))
    counted.families.add(handed_over(("engine", ""), ("engine", other)))
    counted.families.add(handed_over(("router", other), ("engine", "")))  # one side's span is missing
    counted.families.add(record())
    counted.row()
    counted.row()
    series = counted.value("kvitals_handover_traces_total")
    assert {dict(labels)["state"]: value for labels, value in series.items()} == {"shared": 1, "broken": 1}
    assert {dict(labels)["engine"] for labels in series} == {"10.0.0.1:8000"}


def test_what_is_unknown_is_not_counted_as_nothing() -> None:
    counted = Counted()
    counted.families.add(one(llm(1, T, prompt_tokens=100)))
    counted.families.add(record(cached_tokens=None))
    counted.families.add(record(cached_tokens=0))
    counted.row()
    counted.row()
    assert counted.total("kvitals_tenant_cached_tokens_total") == 0
    assert counted.total("kvitals_tenant_cache_told_tokens_total") == 137
    assert counted.tenants() == {"", "t-a"}


def test_cached_tokens_of_an_unknown_prompt_are_no_share_of_it() -> None:
    """They were added to the cached tokens and not to the prompt tokens that these are a share of."""
    counted = Counted()
    counted.families.add(record(prompt_tokens=100, cached_tokens=50))
    counted.families.add(one(llm(1, T, prompt_tokens=None, cached_tokens=100)))
    counted.row()
    counted.row()
    assert counted.total("kvitals_tenant_cached_tokens_total") == 50
    assert counted.total("kvitals_tenant_cache_told_tokens_total") == 100


def test_how_requests_end() -> None:
    counted = Counted()
    too_long = [
        {"status": 413},
        {"status": 400, "error": "context_length_exceeded"},
        {"status": 400, "error": "litellm.exceptions.ContextWindowExceededError"},
    ]
    failed: list[dict[str, Any]] = [{"status": 404}, {"status": 500}, {"error": "x"}]
    for changes in ({}, {"aborted": True}, {"status": 503}, *failed, *too_long):
        counted.families.add(record(**changes))
    counted.row()
    counted.row()
    found = counted.value("sum by (outcome) (kvitals_tenant_requests_total)")
    outcomes = {dict(labels)["outcome"]: value for labels, value in found.items()}
    assert outcomes == {"success": 1, "aborted": 1, "refused": 1, "too_long": 3, "invalid": 1, "error": 2}


def test_of_a_hundred_thousand_tenants_a_few_have_series_and_nothing_is_lost() -> None:
    counted = Counted(top=50)
    chance = random.Random(1)
    made = record()
    for n in range(100_000):
        tenant = f"t-{n}" if chance.random() < 0.9 else "t-heavy"
        counted.families.add(msgspec.structs.replace(made, tenant=tenant))
        if n % 5000 == 0:
            counted.row(20)
    counted.row(400)
    counted.row()
    assert counted.total("last_over_time(kvitals_tenant_requests_total[1h])") == 100_000
    assert "t-heavy" in counted.tenants()
    assert len(counted.tenants()) <= 50 + 2
    assert counted.window.series < 50 * 100
    assert len(counted.families._candidates) <= request_families.MAX_CANDIDATES


def test_who_has_clearly_more_traffic_takes_the_place_of_the_least_busy() -> None:
    counted = Counted(top=2)
    for tenant, requests in (("t-a", 10), ("t-b", 2), ("t-c", 3), ("t-d", 9)):
        for _ in range(requests):
            counted.families.add(record(tenant))
    counted.row()
    counted.row()
    assert counted.tenants() == {"t-a", "t-b", "other"}
    counted.row(request_families.EPOCH_SECONDS)
    counted.families.add(record("t-d", counted.t))
    counted.row()
    counted.row()
    assert counted.tenants() == {"t-a", "t-d", "other"}
    assert counted.total('kvitals_tenant_requests_total{tenant="other"}') == 12
    assert counted.total('kvitals_tenant_requests_total{tenant="t-d"}') == 1


def test_a_tenant_that_is_gone_gives_up_its_series() -> None:
    counted = Counted()
    counted.families.add(record("t-a"))
    counted.row()
    counted.row()
    counted.row(request_families.IDLE_SECONDS + 10)
    counted.row()
    assert counted.tenants() == set()
    assert counted.total("kvitals_tenants") == 0


def test_rows_are_at_most_one_a_second() -> None:
    counted = Counted()
    counted.row()
    assert not counted.families.due(counted.t + 0.5)
    assert counted.families.due(counted.t + 1)
    assert counted.families.due(counted.t - 100)


def test_the_last_request_of_a_bucket_is_its_exemplar() -> None:
    counted = Counted()
    counted.families.add(record(t=T))
    found = {labels["__name__"]: (labels, exemplar) for labels, exemplar in counted.families.exemplars()}
    labels, exemplar = found["kvitals_tenant_ttft_seconds_bucket"]
    assert (labels["le"], labels["tenant"]) == ("0.35", "t-a")
    assert (exemplar.trace, exemplar.value, exemplar.t) == (f"{1:032x}", 0.2339, T)


def test_each_series_is_of_a_family_with_its_labels() -> None:
    counted = Counted()
    counted.families.add(record())
    counted.row()
    known = load().families
    identity = {"__name__", "cluster", "node", "engine", "le"}
    for frame in counted.window.select((), 0, 2 * T):
        for labels in frame.labels:
            family = next(f for f in (labels.name, labels.name.rpartition("_")[0]) if f in known)
            assert labels.keys() - identity <= set(known[family].labels), labels

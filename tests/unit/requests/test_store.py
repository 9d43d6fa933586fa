"""What is kept of requests."""

from __future__ import annotations

from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.store import Store
from tests.unit.requests.parts import one, tap

T = 1_000_000.0


def record(n: int, e2e: float = 0.5, t: float = T, tenant: str = "t-a") -> RequestRecord:
    return one(tap(n, t, start=t - e2e, tenant=tenant))


def test_the_newest_are_kept_and_for_longer_the_slowest() -> None:
    store = Store(most=10, slowest=2)
    for n in range(100):
        store.add(record(n, e2e=5.0 if n == 3 else 0.001 * (n + 1), t=T + n))
    assert len(store) == 10
    assert [r.id for r in store.newest(3)] == ["req-99", "req-98", "req-97"]
    assert store.slowest(1)[0].id == "req-3"
    assert store.find("req-3")[0].e2e == 5.0
    assert store.find("req-5") == []
    assert store.slowest(5, since=T + 99)[0].id == "req-99"


def test_a_record_that_is_kept_twice_is_told_once() -> None:
    store = Store()
    store.add(record(1))
    assert len(store.slowest(10)) == len(store.find("req-1")) == len(store.newest(10)) == 1


def test_by_tenant() -> None:
    store = Store()
    for n in range(6):
        store.add(record(n, tenant="" if n % 2 else "t-a"))
    assert [r.id for r in store.newest(10, "")] == ["req-5", "req-3", "req-1"]
    assert {r.tenant for r in store.slowest(10, "t-a")} == {"t-a"}


def test_hours_of_requests_take_no_more_room() -> None:
    store = Store(most=100)
    for minute in range(600):
        for n in range(50):
            store.add(record(n, t=T + minute * 60))
    assert sum(1 for _ in store) <= 100 + 60 * 20

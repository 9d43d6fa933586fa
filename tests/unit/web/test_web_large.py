"""A large fleet: what a page draws does not grow with engines, findings and tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from kvitals.app.cache import CacheReport
from kvitals.rules.finding import EngineRow, Entity, Finding, Triage
from kvitals.ui.web import source_registry
from kvitals.ui.web.sources.base import ChartLine, Extent, PastEvents
from kvitals.ui.web.views import finding, fleet, tenants, triage
from tests.unit.web import documents
from tests.unit.web.looking import run, words

ENGINES, TENANTS = 1_000, 10_000
CASCADE = "demo:eviction_cascade"


@dataclass
class Large:
    """A source that knows a thousand engines and ten thousand tenants."""

    document: Triage
    known: CacheReport
    kind: str = "agent"
    name: str = "large"
    live: bool = True

    def empty_pages(self) -> frozenset[str]:
        return frozenset()

    def findings(self, _: object) -> Triage:
        return self.document

    def extent(self) -> Extent:
        return Extent(documents.END - 600.0, documents.END)

    def series(self, query: str, start: float, end: float) -> list[ChartLine]:
        return [ChartLine({"engine": f"e{i}"}, [(start, 1.0), (end, float(i))]) for i in range(200)]

    def past(self, start: float, end: float) -> PastEvents:
        return PastEvents()

    def blocks(self) -> CacheReport:
        return self.known

    def requests(self, _: object) -> Any:
        return source_registry.open_source(CASCADE).requests(_)  # type: ignore[arg-type]


def of_each(code: str, **changes: Any) -> list[Finding]:
    return [
        documents.finding(code, "one", "Something", f"On {i}.", id=f"{code}-{i}",
                          entity=Entity("engine", {"engine": f"e{i}"}, f"e{i}"), **changes)
        for i in range(ENGINES)
    ]  # fmt: skip


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Large:
    symptoms = of_each("LAT01", kind="symptom")
    pool = documents.finding("POOL1", "pool", "The pool", "All.", id="pool", explained=[f.id for f in symptoms])
    coverage = documents.document().coverage
    engines = [{"engine": f"e{i}", "pool": f"p{i % 7}"} for i in range(ENGINES)]
    document = documents.document(
        healthy=False, verdict="Large.", causes=[pool, *of_each("KVC01")], symptoms=symptoms, unknown=of_each("SCH01")
    )
    rows = [
        EngineRow(entity=Entity("engine", one, one["engine"]), about={}, healthy=False, verdict="Large.",
                  severity="page" if i == ENGINES - 1 else "ticket", findings=[f"KVC01-{i}"], figures={}, course=[])
        for i, one in enumerate(engines)
    ]  # fmt: skip
    document = replace(document, coverage=replace(coverage, engines=engines), engines=rows)
    open_source = source_registry.open_source
    real = open_source(CASCADE).blocks()
    sums = next(iter(real.cache["tenants"].values()))
    many = {f"t{i}": sums | {"lookup_tokens": 1.0 + i} for i in range(TENANTS)}
    found = Large(document, CacheReport(real.cache | {"tenants": many}, real.cascades))
    monkeypatch.setattr(source_registry, "open_source", lambda place: open_source(place) if place == CASCADE else found)
    return found


def test_triage_of_many_engines_is_short(large: Large) -> None:
    app = run()
    said = words(app)
    cards = [m.value for m in app.markdown if m.value.startswith("## ")]
    assert len(cards) <= triage.MAX_CARDS + 2, "cards, the page's own title and that of a group"
    assert f"Further causes: {ENGINES + 1 - triage.MAX_CARDS} findings" in said
    assert f"and {ENGINES - finding.MAX_EXPLAINED} more: Export lists all" in said
    assert f"Not checked: {ENGINES} checks without data" in said
    assert f"and {ENGINES - triage.MAX_ENGINES} more engines: see Fleet" in said
    assert len(app.main) < 50


def test_the_fleet_shows_the_worst(large: Large) -> None:
    app = run("fleet")
    assert len(app.dataframe[0].value) == fleet.TOP
    assert next(iter(app.dataframe[0].value["engine"])) == f"e{ENGINES - 1}", "the only one with a page"
    assert list(app.dataframe[0].value["engine"])[1:4] == ["e0", "e1", "e2"]
    assert f"the first {fleet.TOP} of {ENGINES:,}" in words(app)
    app.text_input(key="fleet-word").set_value("p3 e10").run()
    assert set(app.dataframe[0].value["pool"]) == {"p3"}
    assert next(m.value for m in app.metric) == f"{ENGINES:,}"


def test_tenants_are_those_with_most_look_ups(large: Large) -> None:
    app = run("tenants")
    table = app.dataframe[0].value
    assert len(table) == tenants.TOP
    assert next(iter(table["tenant"])) == f"t{TENANTS - 1}"
    assert f"of {TENANTS:,}; all: kvitals cache --json" in words(app)

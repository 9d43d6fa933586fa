"""How sources of parts fare is told from their records, so that a replay tells the same."""

from __future__ import annotations

from kvitals.agent.collectors.parts_in import MAX_REASONS, MAX_SOURCES, PartsIn
from kvitals.agent.requests.observation import PartsRecord, RequestPart
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from kvitals.series.window import Window

PART = RequestPart(observer="engine", system="vllm", seen=1.0)


def fed(*records: PartsRecord) -> Window:
    window = Window(600, 10_000)
    parts_in = PartsIn(window, {"node": "n"})
    for record in records:
        parts_in.feed(record)
    return window


def record(t: float, parts: int = 0, source: str = "otlp", **more: object) -> PartsRecord:
    return PartsRecord(t=t, source=source, parts=(PART,) * parts, **more)  # type: ignore[arg-type]


def series(window: Window, name: str) -> dict[tuple[str, ...], list[float]]:
    """The samples of a family, by what its series' labels say besides."""
    found: dict[tuple[str, ...], list[float]] = {}
    for frame in window.select((Matcher(METRIC_NAME, MatchOp.EQ, name),), 0, 1e12):
        for labels, column in zip(frame.labels, frame.values.T, strict=True):
            key = tuple(value for label, value in labels.items() if label not in (METRIC_NAME, "node", "sense"))
            found[key] = [float(value) for value in column if not is_stale(value)]
    return found


def test_counters_begin_at_0_so_that_the_first_parts_count() -> None:
    told = {"detail": 1, "time": 5}
    window = fed(record(10.0, 3, dropped={"detail": 2}), record(11.0, 4, dropped=told), record(12.0))
    assert series(window, "kvitals_parts_total") == {("otlp",): [0, 7, 7]}
    assert series(window, "kvitals_parts_dropped_total") == {("detail", "otlp"): [0, 3], ("time", "otlp"): [0, 5]}


def test_many_records_are_one_row_a_second() -> None:
    window = fed(*(record(10.0 + i / 100, 1, waiting=i % 7) for i in range(250)))
    assert series(window, "kvitals_parts_total") == {("otlp",): [0, 101, 201]}
    assert series(window, "kvitals_parts_waiting") == {("otlp",): [0, 6, 6]}


def test_a_state_is_told_at_once_and_ends_with_the_next() -> None:
    window = fed(
        record(10.0),
        record(10.1, state="failed", reason="not_listening", message="do this"),
        record(10.2),
        record(11.5),
    )
    states = series(window, "kvitals_sense_state")
    assert {frozenset(key) for key in states} == {frozenset(("ok",)), frozenset(("failed", "not_listening"))}
    assert [len(values) for key, values in states.items() if "failed" in key] == [1]


def test_sources_and_reasons_are_bounded() -> None:
    many = [record(10.0 + i, 1, source=f"s{i}") for i in range(MAX_SOURCES + 10)]
    assert len(series(fed(*many), "kvitals_parts_total")) == MAX_SOURCES
    reasons = [record(10.0 + i, dropped={f"r{i}" * 100: 1}) for i in range(MAX_REASONS + 10)]
    found = series(fed(*reasons, record(1000.0)), "kvitals_parts_dropped_total")
    assert len(found) == MAX_REASONS + 1
    assert max(len(label) for key in found for label in key) <= 64


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    window = fed(record(1000.0, 1), record(1001.0, 1), record(500.0, 1), record(501.0, 1))
    assert max(values[-1] for values in series(window, "kvitals_parts_total").values()) == 4


def test_what_a_source_said_last_is_told_though_it_says_no_more() -> None:
    window = Window(600, 10_000)
    parts_in = PartsIn(window, {})
    parts_in.feed(record(10.0, 200, source="tap"))
    parts_in.advance(10.5)
    assert series(window, "kvitals_parts_total") == {("tap",): [0]}
    for t in (11.0, 12.0, 13.0):
        parts_in.advance(t)
    assert series(window, "kvitals_parts_total") == {("tap",): [0, 200]}

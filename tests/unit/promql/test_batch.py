"""What is read at once is what each expression reads by itself, whatever the window holds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.series.promql import ExpressionBatch, Moment, PromQLError, Vector, parse
from kvitals.series.promql.windows import RANGE_FUNCTIONS
from kvitals.series.types import Labels
from kvitals.series.window import Window

NOW = 100.0
QUERIES = [
    "m",
    "m offset 20s",
    'm{x="a"} + on () group_left () sum(n)',
    "absent(nothing)",
    "sum by (g) (rate(m[30s])) / sum by (g) (increase(m[30s]))",
    "quantile_over_time(0.5, m[30s]) > 1",
    "predict_linear(m[30s], 10)",
    "max_over_time(sum by (g) (m)[30s:10s])",
    "rate(nothing[30s])",
    "rate(m[30s] offset 15s)",
    "timestamp(n)",
    'rate({__name__=~"m|n"}[30s])',
    *(f"{func}(m[30s])" for func in sorted(RANGE_FUNCTIONS)),
    *(f"{func}(n[50s])" for func in sorted(RANGE_FUNCTIONS)),
]


def window(groups: list[list[list[float | None]]]) -> Window:
    """Groups of rows, every group at times of its own. Each row: values of the series a, b, ..., None: no sample."""
    made = Window(1000.0, 1000)
    for g, rows in enumerate(groups):
        group = made.group(f"g{g}")
        for i, row in enumerate(rows):
            for s, value in enumerate(row):
                labels = Labels({"__name__": "mn"[s % 2], "x": "abcd"[s], "g": str(g)})
                column = group.column(labels)
                assert column is not None
                if value is None:
                    group.end([column])
                else:
                    group.append(NOW - 60.0 + g + i * 5.0 + s * 0.001, [column], [value])
    return made


def result(moment: Moment, query: str) -> Any:
    try:
        found = moment.evaluate(parse(query))
    except PromQLError as error:
        return str(error)
    assert isinstance(found, Vector)
    return [(str(labels), float(value).hex()) for labels, value in found]


def alike(source: Window, queries: list[str] = QUERIES) -> None:
    batch = ExpressionBatch([parse(query) for query in queries], lambda name: source)
    for at in (NOW, NOW + 3.0, NOW + 400.0):
        together = Moment(source, at)
        together.prepare(batch)
        for query in queries:
            alone = result(Moment(source, at), query)
            assert result(together, query) == alone, f"{query} at {at}"


# Sums of whole numbers have no rounding, whatever the order in which they are added up.
values = st.one_of(st.none(), st.integers(0, 1000).map(float), st.just(float("nan")), st.just(float("inf")))
group = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(values, min_size=n, max_size=n), max_size=12))


@settings(max_examples=25)
@given(st.lists(group, min_size=1, max_size=3))
def test_values_are_those_of_each_alone(groups: list[list[list[float | None]]]) -> None:
    alike(window(groups))


@pytest.mark.parametrize("func", ["sum_over_time", "avg_over_time", "stddev_over_time", "rate", "increase", "deriv"])
def test_a_series_has_the_same_digits_alone_and_beside_others(func: str) -> None:
    numbers = np.random.default_rng(1).random(400).cumsum()

    def values(width: int) -> str:
        made = Window(1000.0, 1000)
        group = made.group("g")
        columns = [group.column(Labels({"__name__": "m", "x": str(x)})) or 0 for x in range(width)]
        for i, number in enumerate(numbers):
            group.append(NOW - 60.0 + i * 0.15, columns, [number] * width)
        (first, *_) = result(Moment(made, NOW), f"{func}(m[60s])")
        return str(first[1])

    assert values(1) == values(3)


def test_series_that_come_later_are_read_too() -> None:
    source = window([[[1.0, 2.0], [3.0, 4.0]]])
    batch = ExpressionBatch([parse("sum(m)")], lambda name: source)
    moment = Moment(source, NOW)
    moment.prepare(batch)
    assert result(moment, "sum(m)") == [("{}", (3.0).hex())]
    group = source.group("later")
    group.append(NOW, [group.column(Labels({"__name__": "m", "x": "later"})) or 0], [10.0])
    moment = Moment(source, NOW)
    moment.prepare(batch)
    assert result(moment, "sum(m)") == [("{}", (13.0).hex())]
    source.drop_group("g0")
    moment = Moment(source, NOW)
    moment.prepare(batch)
    assert result(moment, "sum(m)") == [("{}", (10.0).hex())]


def test_a_series_in_two_groups_is_one() -> None:
    source = window([[[1.0], [2.0]]])
    labels = Labels({"__name__": "m", "x": "a", "g": "0"})
    group = source.group("moved to")
    group.append(NOW - 20.0, [group.column(labels) or 0], [5.0])
    alike(source)


def test_what_one_expression_may_not_does_not_hinder_others() -> None:
    source = window([[[1.0, 2.0], [3.0, 5.0]]])
    alike(source, ['rate({__name__=~"m|n",g="0"}[1m])', "sum(m)", 'sum(rate({g="0",x="a"}[1m]))'])


@pytest.mark.parametrize("cells", [0, 1])
def test_much_at_once_is_read_one_by_one(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitals.series.promql.batch.MAX_CELLS", cells)
    alike(window([[[1.0, 2.0], [3.0, 5.0]]]))


def test_it_asks_the_window_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    source = window([[[1.0, 2.0], [3.0, 5.0]]])
    queries = ["sum(rate(m[1m]))", "sum(increase(m[1m]))", "max(rate(n[1m]))", "m", "n"]
    batch = ExpressionBatch([parse(query) for query in queries], lambda name: source)
    moment = Moment(source, NOW)
    moment.prepare(batch)
    monkeypatch.setattr(source, "select", None)
    monkeypatch.setattr(source, "newest", None)
    found = [result(moment, query) for query in queries]
    assert all(found)
    assert np.isfinite([float.fromhex(value) for one in found for _, value in one]).all()  # type: ignore[attr-defined]

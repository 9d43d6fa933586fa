"""The memory of queries: what one holds at its peak, and what is kept after it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from kvitals.agent.exports.api import LIMITS
from kvitals.series.promql import PromQLError, evaluate
from kvitals.series.promql.batch import ExpressionBatch
from kvitals.series.promql.grid import QueryBudget
from kvitals.series.promql.parse import parse
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

END = 1_001_790.0


def window(series: int, rows: int, text: str = "", names: int = 50) -> Window:
    """Series of so many metrics, with a sample each 5 s until `END`. text: the value of a label of each."""
    made = Window(3600, 200_000, 200_000)
    group = made.group("engine")
    columns = [
        column
        for number in range(series)
        if (column := group.column(Labels({METRIC_NAME: f"m{number % names}", "i": str(number), "text": text})))
        is not None
    ]
    for row in range(rows):
        group.append(END - 5.0 * (rows - row), columns, [float(row)] * series)
    return made


@pytest.fixture
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    tracemalloc.start()
    yield tracemalloc.get_traced_memory
    tracemalloc.stop()


EVERY = '{__name__=~".+"}'


@pytest.mark.parametrize(
    "query",
    [
        f"max_over_time(topk(100, {EVERY})[30m:1s])",
        f"max_over_time(({EVERY} or {EVERY})[30m:1s])",
        f'group by (i) (group by (i, a) (last_over_time(label_replace({EVERY}, "a", "$1", "i", "(.*)")[30m:1s])))',
    ],
)
@pytest.mark.parametrize("series", [300, 1300, 2600])
def test_a_query_is_answered_within_80_mb_or_refused(
    traced: Callable[[], tuple[int, int]], series: int, query: str
) -> None:
    source = window(series, 4)
    before, _ = traced()
    tracemalloc.reset_peak()
    try:
        evaluate(query, source, END, limits=LIMITS)
    except PromQLError as error:
        assert "too many samples" in str(error)
        assert series > 300
    assert traced()[1] - before < 80 << 20


def test_long_label_values_are_not_kept_after_the_query(traced: Callable[[], tuple[int, int]]) -> None:
    source = window(1000, 2, text="x" * 9000)
    before, _ = traced()
    for number in range(20):
        copied = f'label_join({EVERY}, "a{number}", "", "i", "text")'
        evaluate(f"count(group by (i, a{number}) ({copied}))", source, END, limits=LIMITS)
    assert traced()[0] - before < 80 << 20  # each makes 9 MB of text


def test_a_subquery_takes_its_values_and_those_that_it_selects(traced: Callable[[], tuple[int, int]]) -> None:
    """Times and copies of both took 31 MB, each time a rule was judged."""
    source, query = window(5000, 180), f"avg_over_time((label_join({EVERY}, 'x', '', 'i') > 0)[15m:5s])"
    evaluate(query, source, END, limits=LIMITS)
    before, _ = traced()
    tracemalloc.reset_peak()
    evaluate(query, source, END, limits=LIMITS)
    cells = 5000 * 180
    assert traced()[1] - before < 2.5 * 8 * cells


def test_a_subquery_of_one_selector_takes_what_it_selects(traced: Callable[[], tuple[int, int]]) -> None:
    source = window(5000, 180, names=1)
    evaluate("m0", source, END, limits=LIMITS)
    before, _ = traced()
    tracemalloc.reset_peak()
    evaluate("avg_over_time((m0 > bool 0)[15m:5s])", source, END, limits=LIMITS)
    assert traced()[1] - before < 1.8 * 8 * 5000 * 180


@pytest.mark.parametrize("cells", [1, 400, 5000])
@pytest.mark.parametrize(
    "query",
    [
        "avg_over_time((m0 > 5)[5m:20s])",
        "max_over_time((-m0 * 2 > bool -9)[5m:20s] offset 1m)",
        "quantile_over_time(0.5, m0[3m:7s])",
        "last_over_time(m0[3m:7s])",
        "count_over_time((m0 > 1e9)[3m:7s])",
        "sum_over_time((2 * m9)[3m:7s])",
    ],
)
def test_a_subquery_in_parts_has_the_same_values(cells: int, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = window(300, 60, names=3)
    other = source.group("other")
    more = [other.column(Labels({METRIC_NAME: "m0", "i": f"o{n}"})) for n in range(20)]
    for row in range(20):
        other.append(END - 13.0 * (20 - row), [one for one in more if one is not None], [float(row)] * 20)
    whole = evaluate(query, source, END, limits=LIMITS)
    monkeypatch.setattr("kvitals.series.promql.windows.PART_CELLS", cells)
    parts = evaluate(query, source, END, limits=LIMITS)
    assert list(parts) == list(whole)


def test_functions_of_a_batch_are_given_some_series_at_a_time(traced: Callable[[], tuple[int, int]]) -> None:
    """Each function of 900,000 samples took 12 MB beside the samples, at an interval of 1 s."""
    source = window(1000, 900)
    exprs = [parse(f"{func}(m{n}[80m])") for n in range(50) for func in ("avg_over_time", "rate")]
    batch = ExpressionBatch(exprs, lambda _: source)
    budget = QueryBudget(10**9, 10**6, float("inf"))
    before, _ = traced()
    tracemalloc.reset_peak()
    batch.fill({}, round(END * 1000), 300_000, budget)
    assert traced()[1] - before < 1.5 * 8 * 900_000

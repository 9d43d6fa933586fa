"""Evaluation over small frames, the expected numbers worked out by hand. The semantics at large are compared
with a real Prometheus in tests/oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from kvitals.series.promql import Moment, PromQLError, QueryLimits, Vector, evaluate, evaluate_range, parse, windows
from kvitals.series.types import METRIC_NAME, STALE, Frame, Labels, Matcher
from tests.support.loops import for_each

NAN, INF = math.nan, math.inf


def labels(name: str, **others: str) -> Labels:
    return Labels({METRIC_NAME: name, **others})


class Memory:
    """Frames in memory; counts what it is asked for."""

    def __init__(self, *frames: Frame) -> None:
        self.frames = frames
        self.asked: list[tuple[float, float]] = []

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        self.asked.append((start, end))
        found = []
        for frame in self.frames:
            columns = [i for i, x in enumerate(frame.labels) if all(m.matches(x) for m in matchers)]
            rows = (frame.times >= start) & (frame.times <= end)
            if columns and rows.any():
                names = [frame.labels[i] for i in columns]
                found.append(Frame(frame.times[rows], frame.values[rows][:, columns], names))
        return found


def frame(times: Sequence[float], **columns: Sequence[float]) -> Frame:
    """Column `a` is the series m{s="a"}."""
    values = np.array(list(columns.values()), dtype=np.float64).T
    return Frame(np.array(times, dtype=np.float64), values, [labels("m", s=s) for s in columns])


def ask(query: str, source: Memory, at: float) -> dict[str, float] | float:
    result = evaluate(parse(query), source, at)
    if isinstance(result, float):
        return result
    return {str(x): v for x, v in result}


TICKS = Memory(frame([0, 10, 20, 30, 40], a=[0, 10, 20, 5, 15], b=[1, 1, 1, 1, 1], c=[3, STALE, STALE, 6, STALE]))


@for_each(
    "query, expected",
    [
        # 15 - 0 + 20 (before the reset) in 40 s, whose ends are the window's.
        ("rate(m{s='a'}[40s])", {'{s="a"}': 35 / 40}),
        ("increase(m{s='a'}[40s])", {'{s="a"}': 35}),
        # 25 in the 20 s from 20 to 40 -> 15 - 20 + 20; to the start of the window there are 5 s more.
        ("increase(m{s='a'}[25s])", {'{s="a"}': 15 / 20 * 25}),
        ("delta(m{s='a'}[40s])", {'{s="a"}': 15}),
        ("irate(m{s='a'}[40s])", {'{s="a"}': 1}),
        ("idelta(m{s='a'}[15s] offset 10s)", {'{s="a"}': -15}),
        ("resets(m[40s])", {'{s="a"}': 1, '{s="b"}': 0, '{s="c"}': 0}),
        ("changes(m[40s])", {'{s="a"}': 4, '{s="b"}': 0, '{s="c"}': 1}),
        ("sum_over_time(m[40s])", {'{s="a"}': 50, '{s="b"}': 5, '{s="c"}': 9}),
        ("avg_over_time(m[40s])", {'{s="a"}': 10, '{s="b"}': 1, '{s="c"}': 4.5}),
        ("count_over_time(m[40s])", {'{s="a"}': 5, '{s="b"}': 5, '{s="c"}': 2}),
        ("min_over_time(m[20s])", {'{s="a"}': 5, '{s="b"}': 1, '{s="c"}': 6}),
        ("max_over_time(m[9s])", {'{s="a"}': 15, '{s="b"}': 1}),
        ("last_over_time(m{s='c'}[40s])", {'m{s="c"}': 6}),
        ("present_over_time(m{s='c'}[40s])", {'{s="c"}': 1}),
        ("stddev_over_time(m{s='c'}[40s])", {'{s="c"}': 1.5}),
        ("quantile_over_time(0.25, m{s!='b'}[40s])", {'{s="a"}': 5, '{s="c"}': 3.75}),
        ("deriv(m{s=~'b|c'}[40s])", {'{s="b"}': 0, '{s="c"}': 0.1}),
        ("predict_linear(m{s='c'}[40s], 50)", {'{s="c"}': 12}),
        ("rate(m{s='c'}[9s])", {}),
        ("m", {'m{s="a"}': 15, 'm{s="b"}': 1}),
        ("m{s='c'} offset 10s", {'m{s="c"}': 6}),
        ("m{s='c'} offset 15s", {}),
        ("timestamp(m{s='c'} offset 5s)", {'{s="c"}': 30}),
        ("max_over_time(m{s='a'}[40s:7s])", {'{s="a"}': 20}),
        ("count_over_time(m{s='a'}[40s:7s])", {'{s="a"}': 6}),
        ("sum(m) + 1", {"{}": 17}),
        ("m > 3", {'m{s="a"}': 15}),
        ("3 < m", {'m{s="a"}': 15}),
        ("m >= bool 15", {'{s="a"}': 1, '{s="b"}': 0}),
        ("m / on () group_left () sum(m)", {'{s="a"}': 15 / 16, '{s="b"}': 1 / 16}),
        ("m - m{s='a'}", {'{s="a"}': 0}),
        ("m and m offset 10s > 2", {'m{s="a"}': 15}),
        ("m unless m > 2", {'m{s="b"}': 1}),
        ("m > 2 or m offset 10s", {'m{s="a"}': 15, 'm{s="b"}': 1, 'm{s="c"}': 6}),
        ("topk(1, m)", {'m{s="a"}': 15}),
        ("bottomk by (s) (1, m)", {'m{s="a"}': 15, 'm{s="b"}': 1}),
        ("quantile(0.5, m)", {"{}": 8}),
        ("stddev(m)", {"{}": 7}),
        ("group(m)", {"{}": 1}),
        ("count without (s) (m)", {"{}": 2}),
        ("absent(x{a='b', c=~'d'})", {'{a="b"}': 1}),
        ("absent(m)", {}),
        ("label_replace(m{s='a'}, 't', 'x$1', 's', '(.)')", {'m{s="a", t="xa"}': 15}),
        ("label_join(m{s='a'}, 't', '-', 's', 's')", {'m{s="a", t="a-a"}': 15}),
        ("clamp(m, 2, 3)", {'{s="a"}': 3, '{s="b"}': 2}),
        ("clamp(m, 3, 2)", {}),
        ("round(m / 4, 0.5)", {'{s="a"}': 4, '{s="b"}': 0.5}),
        ("-m{s='a'}", {'{s="a"}': -15}),
        ("scalar(m{s='a'}) + time()", 55),
        ("scalar(m)", NAN),
        ("vector(time())", {"{}": 40}),
        ("1 + 2 * 3 ^ 2 % 4", 3),
        ("1 > bool 2", 0),
    ],
)
def test_by_hand(query: str, expected: dict[str, float] | float) -> None:
    actual = ask(query, TICKS, 40.0)
    assert actual == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_order_is_stable() -> None:
    for query, order in (("m", "ab"), ("sort(m)", "ba"), ("sort_desc(m)", "ab"), ("topk(2, m)", "ab")):
        result = evaluate(query, TICKS, 40.0)
        assert isinstance(result, Vector)
        assert len(result) == 2
        assert "".join(x["s"] for x in result.labels) == order


def test_stale_nan_and_missing_are_three_things() -> None:
    source = Memory(frame([0, 10, 20], nan=[1, 2, NAN], ended=[1, 2, STALE], late=[STALE, STALE, 7]))
    assert ask("m", source, 20) == pytest.approx({'m{s="nan"}': NAN, 'm{s="late"}': 7}, nan_ok=True)
    assert ask("count_over_time(m[20s])", source, 20) == {'{s="nan"}': 3, '{s="ended"}': 2, '{s="late"}': 1}
    assert ask("sum_over_time(m{s='ended'}[20s])", source, 20) == {'{s="ended"}': 3}
    assert ask("max_over_time(m{s='nan'}[20s])", source, 20) == {'{s="nan"}': 2}


def test_edges_of_windows_are_closed_and_in_milliseconds() -> None:
    # 0.1 + 0.2 is not 0.3 in doubles; in milliseconds it is.
    source = Memory(frame([0.1, 0.1 + 0.2, 100.3], a=[1, 2, 3]))
    assert ask("count_over_time(m[100s])", source, 100.3) == {'{s="a"}': 2}
    assert ask("m offset 100s", source, 100.3) == {'m{s="a"}': 2}
    assert ask("m", source, 100.3 + 300) == {'m{s="a"}': 3}
    assert ask("m", source, 100.3 + 300.001) == {}
    short = evaluate("m", source, 100.3 + 10, lookback=9.0)
    assert isinstance(short, Vector)
    assert not short.labels


def test_a_series_in_several_frames_is_one_series() -> None:
    first = frame([0, 10, 20], a=[1, 2, 3], b=[1, 1, 1])
    second = frame([20, 30, 40], a=[4, 5, 6], c=[9, 9, 9])
    source = Memory(first, second)
    assert ask("count_over_time(m[1m])", source, 40) == {'{s="a"}': 5, '{s="b"}': 3, '{s="c"}': 3}
    assert ask("increase(m{s='a'}[40s])", source, 40) == {'{s="a"}': 5}
    assert ask("m", source, 40) == {'m{s="a"}': 6, 'm{s="b"}': 1, 'm{s="c"}': 9}


def test_frames_with_different_times_are_stacked_alike() -> None:
    frames = [
        frame([5, 15, 25, 35], a=[1, 2, 3, 4], b=[1, STALE, 0, 4]),
        frame([2, 12, 22, 32, 39], c=[0, 5, 1, 2, 3]),
    ]
    together = ask("rate(m[40s])", Memory(*frames), 40)
    alone: dict[str, float] = {}
    for one in frames:
        alone |= ask("rate(m[40s])", Memory(one), 40)  # type: ignore[arg-type]
    assert together == pytest.approx(alone)
    for query in ("deriv(m[30s])", "changes(m[30s])", "avg_over_time(m[31s])", "irate(m[1m])", "timestamp(m)"):
        both = ask(query, Memory(*frames), 40)
        assert isinstance(both, dict)
        assert len(both) == 3


def test_range_and_instant_agree() -> None:
    source = Memory(
        frame([0, 7, 15, 22, 30, 45, 60], a=[0, 3, 1, NAN, 6, 8, 2], b=[STALE, 1, STALE, 2, 2, 9, 12]),
        frame([1, 11, 21, 31, 41, 51, 61], c=[5, 4, 3, 2, 1, 2, 3]),
    )
    for query in (
        *(f"{f}(m[20s])" for f in ("rate", "increase", "irate", "delta", "resets", "changes", "deriv")),
        *(f"{f}_over_time(m[20s])" for f in ("avg", "min", "max", "sum", "stddev", "last", "count")),
        "sum(m)",
        "m / on (s) m offset 10s",
        "m > 2 or m offset 5s",
        "quantile_over_time(scalar(count(m)) / 4, m[15s])",
        "max_over_time(sum(m)[30s:10s])",
        "time() - timestamp(m)",
        "topk(2, m)",
    ):
        by_step: dict[float, dict[str, float]] = {float(t): {} for t in range(0, 70, 5)}
        for series in evaluate_range(query, source, 0, 69, 5):
            for t, value in zip(series.times.tolist(), series.values.tolist(), strict=True):
                by_step[t][str(series.labels)] = value
        for t, values in by_step.items():
            expected = ask(query, source, t)
            assert values == pytest.approx(expected, nan_ok=True, abs=1e-12), (query, t)


@pytest.mark.parametrize("cells", [1, 30, 100_000])
def test_lines_through_many_windows_are_those_through_each(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """They are laid side by side, as many as the limit takes: with gaps, of other lengths, and empty ones between."""
    monkeypatch.setattr(windows, "MAX_CELLS", cells)
    chance = np.random.default_rng(3)
    times = np.delete(np.arange(0.0, 400.0, 5.0), [*range(20, 34), 50])
    held = chance.normal(1e6, 10.0, (len(times), 3))
    held[chance.random(held.shape) < 0.2] = STALE
    held[:, 2] = 7.0
    source = Memory(Frame(times, held, [labels("m", s=s) for s in "abc"]))
    for query in ("deriv(m[40s])", "predict_linear(m[40s], 60)"):
        found = evaluate_range(query, source, 0, 400, 7)
        told = {
            (one.labels, t): v for one in found for t, v in zip(one.times.tolist(), one.values.tolist(), strict=True)
        }
        alone = {}
        for t in range(0, 401, 7):
            here = evaluate(query, source, t)
            assert isinstance(here, Vector)
            alone |= {(one, float(t)): value for one, value in here}
        assert told.keys() == alone.keys() and len(told) > 100
        assert list(told.values()) == pytest.approx([alone[key] for key in told], rel=1e-9, abs=1e-9)


def test_range_of_a_scalar_and_of_nothing() -> None:
    (series,) = evaluate_range("time() * 2", TICKS, 0, 20, 10)
    assert series.labels == Labels()
    assert series.values.tolist() == [0, 20, 40]
    assert evaluate_range("nothing", TICKS, 0, 20, 10) == []


def test_a_constant_series_has_exactly_no_deviation() -> None:
    source = Memory(frame(range(7), a=[0.1] * 7, b=[1e15 + 0.3] * 7))
    assert ask("stddev_over_time(m[1m]) == 0", source, 6) == {'{s="a"}': 0, '{s="b"}': 0}
    assert ask("avg_over_time(m{s='a'}[1m]) == 0.1", source, 6) == {'{s="a"}': 0.1}
    assert ask("deriv(m[1m]) == 0", source, 6) == {'{s="a"}': 0, '{s="b"}': 0}


def histogram(**buckets: Sequence[float]) -> Memory:
    names = [labels("h", le={"inf": "+Inf"}.get(le, le.strip("x").replace("_", "."))) for le in buckets]
    values = np.array(list(buckets.values()), dtype=np.float64).T
    return Memory(Frame(np.arange(len(values), dtype=np.float64), values, names))


@pytest.mark.parametrize(
    ("q", "counts", "expected"),
    [
        (0.5, [2, 6, 8, 8], 1.5),  # the 4th of 8 is half-way between 1 and 2
        (0.125, [2, 6, 8, 8], 0.5),  # from 0 in the first bucket
        (1, [2, 6, 8, 9], 4),  # in +Inf: the highest bound
        (0.5, [2, 6, 3, 8], 1.5),  # falling counts are lifted
        (0.5, [0, 0, 0, 0], NAN),
        (-1, [1, 2, 3, 4], -INF),
        (2, [1, 2, 3, 4], INF),
        (NAN, [1, 2, 3, 4], NAN),
        (0.5, [2, STALE, 8, 8], 2.0),  # a missing bucket: from 1 to 4
        (0.5, [2, 6, 8, STALE], NAN),  # no +Inf
    ],
)
def test_histogram_quantile(q: float, counts: list[float], expected: float) -> None:
    source = histogram(x1=[counts[0]], x2=[counts[1]], x4=[counts[2]], inf=[counts[3]])
    query = f"histogram_quantile({'NaN' if math.isnan(q) else q}, h)"
    assert ask(query, source, 0) == pytest.approx({"{}": expected}, nan_ok=True)


def test_ambiguity_is_reported() -> None:
    source = Memory(
        Frame(
            np.array([0.0]),
            np.array([[1.0, 2.0, 3.0]]),
            [labels("a", x="1"), labels("b", x="1"), labels("c", x="1", y="2")],
        )
    )
    for query, says in (
        (
            "-{__name__=~'a|b'}",
            'vector cannot contain metrics with the same labelset: more than one series has {x="1"}',
        ),
        ("count_over_time({__name__=~'a|b'}[1m:1s])", "same labelset"),
        ("abs({__name__=~'a|b'})", "same labelset"),
        ("c + on (x) {__name__=~'a|b'}", 'duplicate series for the match group {x="1"} on the right side of +'),
        ("{__name__=~'a|b'} < on (x) c", "many-to-one matching must be explicit (group_left/group_right)"),
        ("c + on (x) group_right () {__name__=~'a|b'}", "same labelset"),
        ("topk(NaN, c)", "the count of topk must be a whole number, not nan"),
        ("c[5m]", "only scalars and instant vectors have a value, not c[5m]"),
        ("'x'", "only scalars and instant vectors"),
    ):
        with pytest.raises(PromQLError) as caught:
            result = evaluate(query, source, 0, subquery_step=1)
            raise AssertionError(f"{query} gives {result}")
        assert says in str(caught.value)


def test_limits() -> None:
    wide = Memory(frame(range(100), **{f"s{i}": range(100) for i in range(20)}))
    for query, limits, says in (
        ("m", QueryLimits(series=19), "finds 20 series, but only 19 are allowed: add matchers"),
        ("sum_over_time(m[1m])", QueryLimits(samples=1000), "touches too many samples"),
        ("max_over_time(vector(1)[1y:1s])", QueryLimits(), "touches too many samples"),
        ("m", QueryLimits(seconds=-1), "took too long"),
        ("m == on () group_left () m", QueryLimits(series=20), "duplicate series"),
    ):
        with pytest.raises(PromQLError, match=says.replace("(", r"\(")):
            evaluate(query, wide, 99, limits=limits)
    with pytest.raises(PromQLError, match="more than 11000 steps"):
        evaluate_range("m", wide, 0, 11_000, 1)
    with pytest.raises(PromQLError, match="start <= end"):
        evaluate_range("m", wide, 10, 0, 1)


def test_only_what_is_needed_is_selected() -> None:
    source = Memory(frame([0, 1000], a=[1, 1]))
    evaluate("rate(m[1m] offset 2m) + sum_over_time(m[5m:1m]) + m", source, 1000)
    expected = [(1000 - 180, 880), (720 - 300, 960), (700, 1000)]
    assert source.asked == [pytest.approx(window, abs=0.001) for window in expected]


def test_steps_of_a_subquery_are_multiples_of_its_step() -> None:
    source = Memory(frame([0], a=[1]))
    assert ask("min_over_time(vector(time())[50s:20s])", source, 95) == {"{}": 60}
    assert ask("max_over_time(vector(time())[50s:20s] offset 10s)", source, 95) == {"{}": 80}
    result = evaluate("count_over_time(vector(1)[5m:])", source, 600, subquery_step=30.0)
    assert isinstance(result, Vector)
    assert result.values.tolist() == [11]


def test_expressions_of_one_moment_share_what_they_have_in_common() -> None:
    queries = [
        "sum by (s) (rate(m[30s])) / sum by (s) (increase(m[30s]))",
        "sum by (s) (rate(m[30s])) > 0",
        "m + m",
        "clamp_min(sum by (s) (rate(m[30s])), 0)",
        "quantile_over_time(0.5, m[30s])",
        "max_over_time(sum by (s) (m)[20s:10s])",
        "1 / vector(0)",
        "1 / vector(-0)",
        "m / 0",
        "m / -0",
    ]
    source = Memory(*TICKS.frames)
    moment = Moment(source, 40)
    for query in queries:
        alone, together = evaluate(query, TICKS, 40), moment.evaluate(query)
        assert isinstance(alone, Vector) and isinstance(together, Vector)
        assert together.labels == alone.labels
        np.testing.assert_array_equal(together.values, alone.values)
    assert len(source.asked) == 3  # m[30s], m, and m at the steps of the subquery

"""The window: what was appended comes out, for as long as the retention, whatever the clock and the series do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvitals.series.promql import Vector, evaluate
from kvitals.series.types import STALE, Labels, Matcher, MatchOp, SeriesSource, is_stale, label_sets
from kvitals.series.window import MAX_ROWS_PER_SECOND, RESTART_SECONDS, Window


def series(name: str, **labels: str) -> Labels:
    return Labels({"__name__": name, **labels})


def named(name: str) -> list[Matcher]:
    return [Matcher("__name__", MatchOp.EQ, name)]


def cells(window: Window, name: str, start: float = -1e9, end: float = 1e9) -> dict[Labels, list[tuple[float, float]]]:
    """Samples by series, stale cells left out."""
    found = {}
    for frame in window.select(named(name), start, end):
        for column, labels in enumerate(frame.labels):
            kept = ~is_stale(frame.values[:, column])
            found[labels] = list(zip(frame.times[kept].tolist(), frame.values[kept, column].tolist(), strict=True))
    return found


class WithoutNewest:
    """A window as any other source of series."""

    def __init__(self, window: Window) -> None:
        self.select = window.select


def newest(source: SeriesSource, at: float) -> dict[Labels, tuple[float, float]]:
    """What an instant query finds in the 20 seconds before: value and time."""
    values, times = (evaluate(query, source, at, lookback=20.0) for query in ("m", "timestamp(m)"))
    assert isinstance(values, Vector) and isinstance(times, Vector)
    when = dict(times)
    return {labels: (value, when[labels.drop("__name__")]) for labels, value in values}


def test_a_value_stands_until_it_changes():
    window = Window(100.0, 10)
    group = window.group("g")
    a, b = group.column(series("m", x="a")), group.column(series("m", x="b"))
    group.append(1.0, [a, b], [1.0, 10.0])
    group.append(2.0, [b], [20.0])
    group.append(3.0)
    assert cells(window, "m") == {
        series("m", x="a"): [(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)],
        series("m", x="b"): [(1.0, 10.0), (2.0, 20.0), (3.0, 20.0)],
    }


def test_a_series_has_no_samples_before_it_began():
    window = Window(100.0, 10)
    group = window.group("g")
    group.append(1.0, [group.column(series("m", x="a"))], [1.0])
    group.append(2.0, [group.column(series("m", x="b"))], [2.0])
    assert cells(window, "m")[series("m", x="b")] == [(2.0, 2.0)]


def test_many_series_widen_the_group():
    window = Window(100.0, 1000)
    group = window.group("g")
    for i in range(500):
        group.append(float(i), [group.column(series("m", x=str(i)))], [float(i)])
    found = cells(window, "m")
    assert len(found) == 500
    assert found[series("m", x="410")] == [(float(t), 410.0) for t in range(410, 500)]


def test_a_gap_row_has_no_samples_and_changes_nothing():
    window = Window(100.0, 10)
    group = window.group("g")
    column = group.column(series("m"))
    group.append(1.0, [column], [1.0])
    group.append_gap(2.0)
    group.append(3.0)
    assert cells(window, "m")[series("m")] == [(1.0, 1.0), (3.0, 1.0)]
    [frame] = window.select(named("m"), 0, 10)
    assert frame.times.tolist() == [1.0, 2.0, 3.0]
    assert is_stale(frame.values).ravel().tolist() == [False, True, False]


def test_gaps_of_single_series():
    window = Window(100.0, 10)
    group = window.group("g")
    a, b = group.column(series("m", x="a")), group.column(series("m", x="b"))
    group.append(1.0, [a, b], [1.0, 1.0])
    group.append(2.0, [a, b], [2.0, 2.0], gaps=[b])
    group.append(3.0)
    assert cells(window, "m")[series("m", x="b")] == [(1.0, 1.0), (3.0, 2.0)]


def test_a_series_that_ended_is_stale_and_can_come_back():
    window = Window(100.0, 10)
    group = window.group("g")
    column = group.column(series("m"))
    group.append(1.0, [column], [1.0])
    group.end([column])
    group.append(2.0)
    assert group.column(series("m")) == column
    group.append(3.0, [column], [3.0])
    assert cells(window, "m")[series("m")] == [(1.0, 1.0), (3.0, 3.0)]


def test_rows_expire():
    window = Window(10.0, 10)
    group = window.group("g")
    column = group.column(series("m"))
    for t in range(1000):
        group.append(float(t), [column], [float(t)])
    times = [t for t, _ in cells(window, "m")[series("m")]]
    assert times[-1] == 999.0 and times == sorted(times)
    assert 989.0 in times
    assert window.nbytes < 200_000  # of 64 columns; a thousand rows would be half a megabyte


def test_rows_that_come_too_fast_push_out_the_oldest():
    window = Window(100.0, 10)
    group = window.group("g")
    for i in range(5000):
        group.append(i / 1000)
    assert group.rows <= 1.5 * 100.0 * MAX_ROWS_PER_SECOND


def test_columns_of_series_that_are_long_gone_are_used_again():
    window = Window(10.0, 5)
    group = window.group("g")
    for i in range(200):
        column = group.column(series("m", x=str(i // 20)))
        assert column is not None and column <= 5
        group.append(float(i), [column], [float(i)])
        if i % 20 == 19:
            group.end([column])
    assert window.refused_series == 0
    found = cells(window, "m", 190.0)
    assert found == {series("m", x="9"): [(float(t), float(t)) for t in range(190, 200)]}


def test_the_cap_is_over_all_groups_and_refusals_are_counted():
    window = Window(100.0, 3)
    a, b = window.group("a"), window.group("b")
    assert [g.column(series("m", x=str(i))) is None for i, g in enumerate((a, b, a, b, a))] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert (window.series, window.refused_series) == (3, 2)
    assert a.column(series("m", x="0")) is not None  # known ones are served
    window.drop_group("a")
    assert window.series == 1
    assert b.column(series("m", x="9")) is not None


def test_times_that_do_not_increase_are_refused_but_values_count():
    window = Window(100.0, 10)
    group = window.group("g")
    column = group.column(series("m"))
    assert group.append(100.0, [column], [1.0])
    assert not group.append(100.0, [column], [2.0])
    assert not group.append(99.0, [column], [3.0])
    assert not group.append_gap(100.0 - RESTART_SECONDS)
    assert group.append(101.0)
    assert cells(window, "m")[series("m")] == [(100.0, 1.0), (101.0, 3.0)]
    assert (window.refused_rows, window.restarts) == (3, 0)


def test_a_clock_that_was_set_back_begins_the_group_anew():
    window = Window(1000.0, 10)
    group = window.group("g")
    column = group.column(series("m"))
    for t in (5000.0, 5001.0):
        group.append(t, [column], [t])
    held = window.select(named("m"), 0, 1e9)[0]
    assert group.append(4000.0)
    assert cells(window, "m")[series("m")] == [(4000.0, 5001.0)]
    assert window.restarts == 1
    assert held.values.ravel().tolist() == [5000.0, 5001.0]


def test_what_was_selected_stays_as_it_was():
    window = Window(10.0, 100)
    group = window.group("g")
    columns = [group.column(series("m", x=str(i))) for i in range(5)]
    held = []
    for t in range(300):
        group.append(float(t), columns, [float(t + i) for i in range(5)])
        if t % 7 == 0:
            [frame] = window.select(named("m"), t - 5, t)
            held.append((frame, frame.times.copy(), frame.values.copy()))
        if t == 150:
            for i in range(90):
                group.column(series("n", x=str(i)))
    for frame, times, values in held:
        assert np.array_equal(frame.times, times) and np.array_equal(frame.values, values)


def test_selected_arrays_cannot_be_written():
    window = Window(10.0, 10)
    group = window.group("g")
    group.append(1.0, [group.column(series("m"))], [1.0])
    [frame] = window.select(named("m"), 0, 2)
    with pytest.raises(ValueError, match="read-only"):
        frame.values[0, 0] = 2.0
    with pytest.raises(ValueError, match="read-only"):
        frame.times[0] = 2.0
    group.append(2.0)  # the window itself can go on


def test_select_by_any_matcher():
    window = Window(10.0, 100)
    for g in "ab":
        group = window.group(g)
        labels = [series(n, le=le, engine=g) for n in ("x_bucket", "y") for le in ("1", "2")]
        group.append(1.0, [group.column(label) for label in labels], [1.0] * 4)

    def select(*matchers: tuple[str, str, str]) -> set[tuple[str, str, str]]:
        frames = window.select([Matcher(n, MatchOp(op), v) for n, op, v in matchers], 0, 10)
        return {(label.name, label["engine"], label["le"]) for frame in frames for label in frame.labels}

    assert len(select()) == 8
    assert select(("__name__", "=", "y"), ("le", "=", "1")) == {("y", "a", "1"), ("y", "b", "1")}
    assert select(("__name__", "=~", "x.*"), ("engine", "!=", "a")) == {("x_bucket", "b", "1"), ("x_bucket", "b", "2")}
    assert select(("engine", "!~", "a|b")) == set()
    assert select(("absent", "=", "")) == select()
    assert select(("__name__", "=", "nothing")) == set()


def test_series_without_a_sample_in_the_range_are_left_out():
    window = Window(100.0, 10)
    group = window.group("g")
    a, b = group.column(series("m", x="a")), group.column(series("m", x="b"))
    group.append(1.0, [a], [1.0])
    group.append(2.0, [b], [2.0])
    group.end([a])
    group.append(3.0)
    assert cells(window, "m", 2.5).keys() == {series("m", x="b")}
    assert cells(window, "m", 0, 1.5).keys() == {series("m", x="a")}
    assert window.select(named("m"), 3.5, 9) == []


@pytest.mark.parametrize("matchers", [(), tuple(named("b")), tuple(named("none"))])
def test_label_sets_are_those_of_what_is_selected(matchers):
    """Series that begin late, end early, come back or have a gap; rows without any sample; two groups."""
    window = Window(1000, 100)
    for name in ("one", "two"):
        group = window.group(name)
        steady, early, late, other = (group.column(series(n, i=f"{name}{i}")) for i, n in enumerate("aabb"))
        group.append(10, [steady, early], [1.0, 1.0])
        group.append(20, [], [], gaps=[steady])
        group.end([early])
        group.append(30, [late], [1.0])
        group.append_gap(40)
        group.append(50, [other], [1.0], gaps=[late, other])
    for start in range(0, 65, 5):
        for end in range(start, 65, 5):
            selected = {labels for frame in window.select(matchers, start, end) for labels in frame.labels}
            assert window.label_sets(matchers, start, end) == selected, (start, end)
            assert label_sets(WithoutNewest(window), matchers, start, end) == selected


def test_relabel_takes_the_past_along():
    window = Window(100.0, 10)
    group = window.group("g")
    column = group.column(series("up", engine="h:1"))
    group.append(1.0, [column], [0.0])
    group.relabel(column, series("up", engine="h:1/0"))
    group.append(2.0, [column], [1.0])
    assert cells(window, "up") == {series("up", engine="h:1/0"): [(1.0, 0.0), (2.0, 1.0)]}
    other = group.column(series("up", engine="x"))
    with pytest.raises(ValueError, match="another series"):
        group.relabel(other, series("up", engine="h:1/0"))


def test_a_nan_is_a_value():
    window = Window(100.0, 10)
    group = window.group("g")
    group.append(1.0, [group.column(series("m"))], [float("nan")])
    [frame] = window.select(named("m"), 0, 2)
    assert not is_stale(frame.values).any()


@given(st.floats(max_value=0) | st.just(0.0), st.integers(max_value=0))
def test_nonsense_is_refused(retention, most):
    with pytest.raises(ValueError, match="positive"):
        Window(retention, 1)
    with pytest.raises(ValueError, match="positive"):
        Window(1.0, most)


def test_a_group_out_of_hand_leaves_room_for_the_others():
    window = Window(100.0, 10, group_series=4)
    wild, tame = window.group("wild"), window.group("tame")
    for t in range(20):  # other series in every row
        columns = [c for i in range(3) if (c := wild.column(series("m", t=str(t), i=str(i)))) is not None]
        wild.append(float(t), columns, [1.0] * len(columns))
        wild.end(columns)
    assert wild.series == 4 and window.refused_series > 50
    assert all(tame.column(series("m", i=str(i))) is not None for i in range(4))
    wild.append(200.0)
    assert wild.column(series("m", t="new")) is not None  # what ended is reclaimed after the retention


def test_refusing_a_series_does_not_look_at_all_that_ended_each_time(monkeypatch):
    window = Window(100.0, 10, group_series=4)
    group = window.group("g")
    columns = [group.column(series("m", i=str(i))) for i in range(4)]
    group.append(1.0, columns, [1.0] * 4)
    group.end(columns)
    group.append(2.0)
    looked = 0

    class Ended(dict):
        def items(self):
            nonlocal looked
            looked += 1
            return super().items()

    group._ended = Ended(group._ended)
    assert [group.column(series("n", i=str(i))) for i in range(50)] == [None] * 50
    assert looked == 1


class Model(RuleBasedStateMachine):
    """Random use against a plain dictionary of samples."""

    @initialize()
    def begin(self) -> None:
        self.window = Window(retention=50.0, max_series=12)
        self.group = self.window.group("g")
        self.now: dict[Labels, float] = {}
        self.rows: list[tuple[float, dict[Labels, float]]] = []
        self.t = 1000.0

    @rule(changes=st.dictionaries(st.integers(0, 20), st.floats(0, 100), max_size=5), dt=st.floats(0.5, 30))
    def append(self, changes: dict[int, float], dt: float) -> None:
        self.t += dt
        columns, values = [], []
        for number, value in changes.items():
            labels = series("m", x=str(number))
            column = self.group.column(labels)
            if column is not None:
                columns.append(column)
                values.append(value)
                self.now[labels] = value
        assert self.group.append(self.t, columns, values)
        self.rows.append((self.t, dict(self.now)))

    @rule(dt=st.floats(0.5, 30))
    def gap(self, dt: float) -> None:
        self.t += dt
        assert self.group.append_gap(self.t)
        self.rows.append((self.t, {}))

    @precondition(lambda self: self.now)
    @rule(data=st.data())
    def end(self, data) -> None:
        labels = data.draw(st.sampled_from(sorted(self.now, key=str)))
        column = self.group.column(labels)
        assert column is not None
        self.group.end([column])
        del self.now[labels]

    @rule()
    def step_back(self) -> None:
        self.t -= RESTART_SECONDS + 1
        if self.group.append(self.t) and self.rows and self.t <= self.rows[-1][0]:
            self.rows.clear()
        self.rows.append((self.t, dict(self.now)))

    @invariant()
    def same_samples(self) -> None:
        start = self.t - 50.0
        expected: dict[Labels, list[tuple[float, float]]] = {}
        for t, row in self.rows:
            for labels, value in row.items():
                if start <= t:
                    expected.setdefault(labels, []).append((t, value))
        assert cells(self.window, "m", start, self.t) == expected
        for at in (self.t, self.t - 7.0, self.t + 7.0):
            assert newest(self.window, at) == newest(WithoutNewest(self.window), at)
        assert self.window.series <= 12


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestModel = Model.TestCase


def test_stale_is_the_marker_of_prometheus():
    assert np.array([STALE]).view(np.uint64)[0] == 0x7FF0000000000002

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.exports import wire
from kvitals.series.promql import PromQLError, Series
from kvitals.series.types import STALE, Frame, Labels


@given(st.floats(allow_nan=False))
def test_values_read_back_as_they_were(number: float) -> None:
    text = wire.value(number)
    assert float(text) == number
    assert math.copysign(1, float(text)) == math.copysign(1, number)
    assert ("e" in text) == (0 < abs(number) < 1e-6 or 1e21 <= abs(number) < math.inf)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.0, "-0"),
        (0.00001, "0.00001"),
        (1e-7, "1e-07"),
        (1e16, "10000000000000000"),
        (1e21, "1e+21"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_values(number: float, text: str) -> None:
    assert wire.value(number) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5", 1.5),
        ("-1", -1.0),
        ("1e3", 1000.0),
        ("1700000000.12345", 1700000000.123),
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:01.5+01:00", 1.5),
        ("1970-01-01T00:00:00.123456789Z", 0.123),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert wire.read_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "x", "nan", "inf", "1_0", " 1", "1e99", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z"],
)
def test_no_times(text: str) -> None:
    with pytest.raises(ValueError, match="to a valid timestamp"):
        wire.read_time(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15", 15), ("0.5", 0.5), ("1h30m", 5400), ("1y1w1d", 32227200), ("5m10s500ms", 310.5), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert wire.read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1.5s", "1m1h", "1x", "-5m", "nan", "9" * 99 + "y", "1" * 5000 + "s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="to a valid duration"):
        wire.read_duration(text)


@given(st.text(max_size=30))
def test_any_text(text: str) -> None:
    for read in (wire.read_time, wire.read_duration):
        try:
            assert math.isfinite(read(text))
        except ValueError as error:
            assert "cannot parse" in str(error)


def test_raw_samples_are_joined_and_without_gaps() -> None:
    one, two = Labels({"a": "1"}), Labels({"a": "2"})
    late = Frame(np.array([30.0]), np.array([[5.0]]), [one])
    early = Frame(np.array([10.0, 20.0]), np.array([[1.0, 2.0], [STALE, math.nan]]), [one, two])
    first, second = wire.raw_samples([late, early])
    assert (first.labels, first.times.tolist(), first.values.tolist()) == (one, [10, 30], [1, 5])
    assert (second.labels, second.times.tolist()) == (two, [10, 20])


def test_an_answer_has_a_most_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_POINTS", 5)
    times = np.arange(3.0)
    with pytest.raises(PromQLError, match="6 points, 5 are allowed"):
        wire.matrix([Series(Labels(), times, times)] * 2)

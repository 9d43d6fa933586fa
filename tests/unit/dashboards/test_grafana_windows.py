"""The windows of boards as Grafana computes them are those of the rules: a panel is coloured where a rule judges."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvitals.dashboards import boards
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.board_files import panels_of
from kvitals.rules.loader import load
from tests.support import grafana

KNOWLEDGE = load()
PIXELS = 400
"""Of a panel of 8 columns on a laptop."""


def targets(scrape: float) -> list[dict[str, Any]]:
    made = boards.built(KNOWLEDGE, "https://kvitals.example.com/runbooks", Options(scrape_seconds=scrape).fast_seconds)
    found = [target for board in made.values() for panel in panels_of(board) for target in panel["targets"]]
    marks = [mark["target"] for board in made.values() for mark in board["annotations"]["list"]]
    return found + [{**mark, "instant": False} for mark in marks]


@pytest.mark.parametrize(
    ("step", "least", "window"),
    [(15, 15, 60), (60, 60, 240), (15, 60, 240), (60, 15, 75), (300, 15, 315), (20, 5, 25), (5, 5, 20)],
)
def test_the_arithmetic_is_grafanas(step: float, least: float, window: float) -> None:
    assert grafana.rate_interval(step, least) == window


@pytest.mark.parametrize(("shown", "least", "step"), [(1800, 15, 15), (6 * 3600, 15, 60), (86400, 15, 300), (60, 1, 1)])
def test_a_step_is_rounded_as_grafana_does(shown: float, least: float, step: float) -> None:
    assert grafana.step(shown, PIXELS, least) == step


@pytest.mark.parametrize("scrape", [1.0, 5.0, 7.0, 15.0, 30.0])
def test_the_window_of_a_board_is_that_of_the_rules(scrape: float) -> None:
    window = Options(scrape_seconds=scrape).fast_seconds
    asked = targets(scrape)
    assert len(asked) > 290  # of one set of boards
    for target in asked:
        least = grafana.seconds(target["interval"])
        assert least == window or "$__" not in target["expr"], target["expr"]
        if target["instant"]:
            assert "$__" not in target["expr"]


@pytest.mark.parametrize("shown", [300, 1800, 3600, 6 * 3600, 86400, 7 * 86400])
def test_no_sample_falls_between_two_windows(shown: float) -> None:
    for target in targets(5.0):
        least = grafana.seconds(target["interval"])
        step = grafana.step(shown, PIXELS, least)
        assert "$__rate_interval" not in target["expr"]
        assert step >= Options().fast_seconds  # which is the window of `$__interval`
        for window, resolution in re.findall(r"kvitals:[^\[\]]*\[([^:\[\]]+):([^\]]+)\]", target["expr"]):
            assert window in ("$__interval", "15m")
            assert grafana.seconds(resolution) <= Options().fast_seconds


@pytest.mark.parametrize(
    ("values", "text"),
    [(("a-1:8000",), "a-1:8000"), (("a.b", "c"), r"(a\\.b|c)"), ((), ".*")],
)
def test_a_variable_of_several_values_is_a_pattern(values: tuple[str, ...], text: str) -> None:
    assert grafana.chosen(*values, all_value=".*") == text

"""Evidence as charts, and how the page's process is started."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from kvitals.app import page_process
from kvitals.app.escaping import plain
from kvitals.app.page_settings import PageSettings
from kvitals.rules.finding import EvidenceLine, Measure, Point
from kvitals.ui.web import charts, graphs, tables
from kvitals.ui.web.charts import chart, line_name
from tests.unit.web.documents import END, ENGINE, evidence, line


def spec(*lines: EvidenceLine, unit: str = "seconds") -> dict[str, Any]:
    drawn = chart(evidence("title", "query", unit, "text", *lines), ENGINE)
    assert drawn is not None
    return drawn


def test_one_line_needs_no_legend() -> None:
    encoding = spec(line(0, 8))["encoding"]
    assert "color" not in encoding
    assert encoding["x"]["scale"] == {"type": "utc"}


def test_several_lines_differ_by_more_than_colour() -> None:
    encoding = spec(line(0, 8, reason="capacity"), line(0, 1, reason="deferred"))["encoding"]
    assert encoding["color"]["sort"] == ["capacity", "deferred"]
    assert encoding["strokeDash"]["field"] == "line"


def test_all_that_is_drawn_is_of_the_rows() -> None:
    row = {"lane": "a", "start": 1.0, "end": 3.0, "color": "page", "label": "x", "text": "", "where": "", "from": ""}
    for found in (spec(line(0, 8)), graphs.lanes([row], ["a"], 0.0, 10.0)):
        assert found["data"]["values"]
        assert "datasets" not in found
        assert not any("data" in layer for layer in found.get("layer", []))


def test_no_name_turns_a_chart_or_a_table_around(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(charts.st, "vega_lite_chart", lambda found, **_: drawn.append(found))
    monkeypatch.setattr(tables.st, "dataframe", lambda found, **_: drawn.append(found))
    charts.show({"data": {"values": [{"line": "a\u202eb\u200b\x1b"}]}, "title": "\u2066c"}, key="chart")
    tables.show([{"model": "a\u202eb\u200b\x1b"}], "table")
    tables.show([{"model": "\u2066c", "figure": Measure("x", 1.0, "s", "1\u202e s")}], "figures")
    drawn[2] = drawn[2].to_html()
    said = repr(drawn)
    assert "a\ufffdb\ufffd\ufffd" in said and said.count("\ufffdc") == 2
    assert not plain.ODD.search(str(drawn).replace("\n", "")), said


@pytest.mark.parametrize(
    ("unit", "top", "label"),
    [
        ("seconds", 0.2, "ms"),
        ("seconds", 8, "' s'"),
        ("ratio", 0.9, "%"),
        ("bytes", 1e9, "B"),
        ("bool", 1, "yes"),
    ],
)
def test_values_carry_their_unit(unit: str, top: float, label: str) -> None:
    assert label in spec(line(0, top), unit=unit)["encoding"]["y"]["axis"]["labelExpr"]


def test_a_single_point_and_no_finite_value_are_no_chart() -> None:
    for points in ([], [Point(END, 1.0)], [Point(END, math.inf), Point(END + 1, math.nan)]):
        assert chart(evidence("t", "q", "count", "x", EvidenceLine({}, points)), ENGINE) is None


def test_a_line_is_named_by_what_its_entity_does_not_say() -> None:
    assert line_name(line(0, 1, reason="capacity"), ENGINE) == "capacity"
    assert line_name(line(0, 1), ENGINE) == ENGINE.title
    assert len(line_name(line(0, 1, family="f" * 99), ENGINE)) == 32


def test_the_process_listens_on_the_loopback_interface_and_reports_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMLIT_SERVER_ADDRESS", "0.0.0.0")
    command = page_process.command(8501, PageSettings(api="http://127.0.0.1:9477"))
    assert command[:5] == [sys.executable, "-P", "-m", "kvitals.ui.web.launch", "run"]
    assert Path(command[5]).is_file()
    assert "--server.address=127.0.0.1" in command
    assert "--server.port=8501" in command
    assert "--browser.gatherUsageStats=false" in command
    assert "--server.maxUploadSize=64" in command
    environment = page_process.environment(PageSettings(api="http://127.0.0.1:9477"))
    assert json.loads(environment["KVITALS_WEB"])["api"] == "http://127.0.0.1:9477"
    assert "STREAMLIT_SERVER_ADDRESS" not in environment
    assert environment["STREAMLIT_THEME_BASE_FONT_SIZE"] == "15"

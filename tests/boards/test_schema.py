"""Every board against Grafana's own published types, and that a board that is wrong would be found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kvitals.dashboards.board_files import panels_of
from tests.boards.grafana_schema import violations

Break = Callable[[dict[str, Any]], Any]


def first(board: dict[str, Any], kind: str) -> dict[str, Any]:
    panels = [*panels_of(board), *board["panels"]]
    found: dict[str, Any] = next(panel for panel in panels if panel["type"] == kind)
    return found


def test_every_board_is_what_grafanas_types_say(built: dict[str, dict[str, Any]]) -> None:
    assert {path: found for path, board in built.items() if (found := violations(board))} == {}


FAULTS: dict[str, Break] = {
    "a title that is no text": lambda b: b.update(title=7),
    "a key that Grafana does not know": lambda b: b.update(colour="red"),
    "no schema version": lambda b: b.pop("schemaVersion"),
    "a variable of an unknown type": lambda b: b["templating"]["list"][0].update(type="dropdown"),
    "a mark without a colour": lambda b: b["annotations"]["list"][0].pop("iconColor"),
    "a link without a title": lambda b: b["links"][0].pop("title"),
    "a panel of an unknown kind": lambda b: first(b, "timeseries").update(type="graph"),
    "a place that is no number": lambda b: first(b, "timeseries")["gridPos"].update(w="wide"),
    "a tooltip mode that does not exist": lambda b: first(b, "timeseries")["options"]["tooltip"].update(mode="all"),
    "a style that lines do not have": lambda b: first(b, "timeseries")["fieldConfig"]["defaults"]["custom"].update(
        dotted=True
    ),
    "a threshold without a colour": lambda b: first(b, "timeseries")["fieldConfig"]["defaults"]["thresholds"]["steps"][
        0
    ].pop("color"),
    "a heat map without its colours": lambda b: first(b, "heatmap")["options"].pop("color"),
    "a query without refId": lambda b: first(b, "timeseries")["targets"][0].pop("refId"),
    "a row that is not told to be open": lambda b: first(b, "row").pop("collapsed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(built: dict[str, dict[str, Any]], fault: str) -> None:
    board = copy.deepcopy(built["boards/overview.json"])
    FAULTS[fault](board)
    assert len(violations(board)) >= 1

"""What a board is, and how it becomes Grafana's: rows of panels, laid out, with marks and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.grafana import board, mark, row
from kvitals.dashboards.panels import BoardPanel, Built, answer, make
from kvitals.dashboards.queries import Queries

GRID_WIDTH = 24
ALERTS = 'ALERTS{alertstate="firing", code!=""}'
"""What Prometheus itself says of the alerts that are generated from the rules. An agent has no such series."""


@dataclass(frozen=True)
class BoardRow:
    title: str
    panels: tuple[BoardPanel, ...]


@dataclass(frozen=True)
class Board:
    """`name` is that of its file and, with `kvitals-` in front, its uid."""

    name: str
    title: str
    description: str
    rows: tuple[BoardRow, ...]

    @property
    def uid(self) -> str:
        return f"kvitals-{self.name}"


def build(of_board: Board, queries: Queries, runbooks: str) -> dict[str, Any]:
    """The board as Grafana imports it."""
    rows = [(one.title, [answer(panel, queries) for panel in one.panels]) for one in of_board.rows]
    panels = _lay_out(rows, queries, runbooks)
    return board(of_board.uid, f"kvitals / {of_board.title}", of_board.description, panels, _marks(queries))


def _lay_out(rows: list[tuple[str, list[Built]]], queries: Queries, runbooks: str) -> list[dict[str, Any]]:
    """Rows from top to bottom, panels from left to right and on to the next line where they do not fit."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows:
        placed.append(row(title, len(placed) + 1, y))
        y, x, tallest = y + 1, 0, 0
        for built in panels:
            if x + built.panel.width > GRID_WIDTH:
                y, x, tallest = y + tallest, 0, 0
            placed.append(make(built, queries, len(placed) + 1, x, y, runbooks))
            x, tallest = x + built.panel.width, max(tallest, built.panel.height)
        y += tallest
    return placed


def _marks(queries: Queries) -> list[dict[str, Any]]:
    """Restarts, deployments, findings and cascades on every panel, as far as they are reported."""
    asked = (
        (
            "Restarts",
            "sum by ($scope) (increase(kvitals_engine_restarts_total[$window])) > 0"
            " or sum by ($scope) (resets(kvitals_generation_tokens_total[$window])) > 0",
            "blue",
            "{{engine}} restarted",
        ),
        (
            "Versions",
            "group by ($scope, version) (kvitals_engine_info)"
            " unless on ($scope, version) group by ($scope, version) (kvitals_engine_info offset 1m)",
            "purple",
            "{{engine}} is {{version}} now",
        ),
        (
            "Configurations",
            "max by (cluster, node) (changes(kvitals_config_loaded_timestamp_seconds[$window])) > 0",
            "purple",
            "the agent of {{node}} has a different configuration",
        ),
        ("Cascades", "max by ($scope) (kvitals_cascade_stage) >= 2", "orange", "{{engine}}: eviction cascade"),
    )
    found = [
        mark(name, queries.family(text, "count").expr, color, title, queries.least_step)
        for name, text, color, title in asked
    ]
    fired = mark("Findings", ALERTS, "red", "{{code}} {{alertname}}", queries.least_step, tags="engine,node,severity")
    return [*found, fired]

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
    """Panels under a headline. closed: whether Grafana asks for them only when somebody opens the row."""

    title: str
    panels: tuple[BoardPanel, ...]
    closed: bool = False


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
    rows = [(one, [answer(panel, queries) for panel in one.panels]) for one in of_board.rows]
    panels = _lay_out(rows, queries, runbooks)
    return board(of_board.uid, f"kvitals / {of_board.title}", of_board.description, panels, _marks(queries))


def _lay_out(rows: list[tuple[BoardRow, list[Built]]], queries: Queries, runbooks: str) -> list[dict[str, Any]]:
    """Rows from top to bottom, panels from left to right and on to the next line where they do not fit. The panels of
    a closed row are in it and take no room."""
    placed: list[dict[str, Any]] = []
    id_ = y = 0
    for of_row, panels in rows:
        id_ += 1
        headline = row(of_row.title, id_, y, closed=of_row.closed)
        placed.append(headline)
        inside = headline["panels"] if of_row.closed else placed
        y, below, x, tallest = y + 1, y + 1, 0, 0
        for built in panels:
            if x + built.panel.width > GRID_WIDTH:
                below, x, tallest = below + tallest, 0, 0
            id_ += 1
            inside.append(make(built, queries, id_, x, below, runbooks))
            x, tallest = x + built.panel.width, max(tallest, built.panel.height)
        y = y if of_row.closed else below + tallest
    return placed


def _marks(queries: Queries) -> list[dict[str, Any]]:
    """Restarts, deployments, findings and cascades on every panel, as far as they are reported."""
    asked = (
        (
            "Restarts",
            "kvitals:restarts > (kvitals:restarts offset 1m)",
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
        mark(name, queries.family(text, "count").expr, color, title, queries.window)
        for name, text, color, title in asked
    ]
    fired = mark("Findings", ALERTS, "red", "{{code}} {{alertname}}", queries.window, tags="engine,node,severity")
    return [*found, fired]

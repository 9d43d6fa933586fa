"""What a board is, and how it becomes Grafana's: rows of panels, laid out, with marks and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitals.dashboards.grafana import AGENT, Flavour, board, mark, row
from kvitals.dashboards.panels import BoardPanel, Built, answer, make
from kvitals.dashboards.queries import NotToldError, Queries

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


@dataclass(frozen=True)
class LeftOut:
    """A panel that a flavour can not have, and the families that nobody tells there."""

    title: str
    families: str


def left_out(of_board: Board, queries: Queries) -> list[LeftOut]:
    """The panels that these queries can not fill."""
    return [found for one in of_board.rows for p in one.panels if isinstance(found := _answered(p, queries), LeftOut)]


def build(of_board: Board, flavour: Flavour, queries: Queries, runbooks: str) -> dict[str, Any] | None:
    """The board as Grafana imports it; None where no panel is left in this flavour."""
    found = [(one.title, [_answered(p, queries) for p in one.panels]) for one in of_board.rows]
    rows = [(title, [b for b in answered if isinstance(b, Built)]) for title, answered in found]
    rows = [(title, panels) for title, panels in rows if panels]
    if not rows:
        return None
    missing = [a for _, answered in found for a in answered if isinstance(a, LeftOut)]
    panels = _lay_out(rows, missing, queries, runbooks)
    title = f"kvitals / {of_board.title}" + ("" if flavour is AGENT else " (engines' own metrics)")
    return board(flavour, of_board.uid + flavour.suffix, title, of_board.description, panels, _marks(queries))


def _answered(panel: BoardPanel, queries: Queries) -> Built | LeftOut:
    try:
        return answer(panel, queries)
    except NotToldError as error:
        return LeftOut(panel.title, str(error))


def _lay_out(
    rows: list[tuple[str, list[Built]]], missing: list[LeftOut], queries: Queries, runbooks: str
) -> list[dict[str, Any]]:
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
    if missing:
        placed.append(_said(missing, len(placed) + 1, y))
    return placed


def _said(missing: list[LeftOut], id_: int, y: int) -> dict[str, Any]:
    """What this flavour can not show, in words."""
    lines = [f"* {one.title}" for one in missing]
    return {
        "type": "text",
        "id": id_,
        "title": "What do only agents tell?",
        "description": "These panels need a kvitals agent: what they read is on no engine's page.",
        "gridPos": {"h": 3 + len(lines) * 2 // 3, "w": GRID_WIDTH, "x": 0, "y": y},
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"mode": "markdown", "content": "\n".join(lines)},
    }


def _marks(queries: Queries) -> list[dict[str, Any]]:
    """Restarts, deployments, findings and cascades on every panel, as far as they are told."""
    asked = (
        (
            "Restarts",
            "sum by ($scope) (increase(kvitals_engine_restarts_total[$window])) > 0",
            "blue",
            "{{engine}} restarted",
        ),
        (
            "Counters that began anew",
            "sum by ($scope) (resets(kvitals_generation_tokens_total[$window])) > 0",
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
            "the agent of {{node}} has another configuration",
        ),
        ("Cascades", "max by ($scope) (kvitals_cascade_stage) >= 2", "orange", "{{engine}}: eviction cascade"),
    )
    found = []
    for name, text, color, title in asked:
        if (queries.raw is None) is (name == "Counters that began anew"):
            continue
        try:
            query = queries.family(text, "count")
        except NotToldError:
            continue
        found.append(mark(name, query.expr, color, title))
    return [*found, mark("Findings", ALERTS, "red", "{{code}} {{alertname}}", tags="engine,node,severity")]

"""The nine boards, over families: those of agents, or those that rules record of engines' own metrics."""

from __future__ import annotations

from typing import Any

from kvitals.dashboards.boards import (
    disaggregation,
    efficiency,
    engines,
    gpu,
    kv,
    overview,
    status,
    telemetry,
    tenants,
)
from kvitals.dashboards.boards.board import Board, build
from kvitals.dashboards.grafana import encode
from kvitals.dashboards.queries import Queries, readable
from kvitals.diagnoser.sources.survey import FAST_SECONDS
from kvitals.rules.loader import Knowledge, family_of
from kvitals.series.promql import names


def boards(knowledge: Knowledge) -> tuple[Board, ...]:
    """The boards from the one that one opens first to the one that says whether to believe the others."""
    return (
        status.board(knowledge),
        overview.BOARD,
        engines.BOARD,
        kv.BOARD,
        disaggregation.BOARD,
        tenants.BOARD,
        gpu.BOARD,
        efficiency.BOARD,
        telemetry.BOARD,
    )


def built(knowledge: Knowledge, runbooks: str, window: float = FAST_SECONDS) -> dict[str, dict[str, Any]]:
    """Every board by the path of its file. `runbooks`: URL under which the rules' pages are served; `window`: that of
    the rules, in seconds."""
    queries = Queries(knowledge, window)
    return {f"boards/{board.name}.json": build(board, queries, runbooks) for board in boards(knowledge)}


def boards_by_family(knowledge: Knowledge) -> dict[str, list[str]]:
    """Families -> the titles of the boards that read them, directly or by signals."""
    found: dict[str, list[str]] = {}
    for title, read in _metrics_by_board(knowledge).items():
        for family in {family_of(name, knowledge.families) for name in read} - {None}:
            found.setdefault(str(family), []).append(title)
    return found


def _metrics_by_board(knowledge: Knowledge) -> dict[str, set[str]]:
    """The metrics of families that each board reads, by its title."""
    read: dict[str, set[str]] = {}
    for board in built(knowledge, "").values():
        asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
        asked += [mark["target"]["expr"] for mark in board["annotations"]["list"]]
        known = (name for expr in asked for name in names(readable(expr)) if family_of(name, knowledge.families))
        read.setdefault(board["title"], set()).update(known)
    return read


def files(knowledge: Knowledge, runbooks: str, window: float = FAST_SECONDS) -> dict[str, str]:
    """The same as the texts of the files."""
    return {path: encode(found) for path, found in built(knowledge, runbooks, window).items()}

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
from kvitals.dashboards.queries import Queries
from kvitals.diagnoser.sources.survey import FAST_SECONDS
from kvitals.rules.loader import Knowledge


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


def files(knowledge: Knowledge, runbooks: str, window: float = FAST_SECONDS) -> dict[str, str]:
    """The same as the texts of the files."""
    return {path: encode(found) for path, found in built(knowledge, runbooks, window).items()}

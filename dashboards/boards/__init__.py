"""The nine boards, in two flavours: over the families of agents, and over engines' own metrics without agents."""

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
from kvitals.dashboards.grafana import AGENT, encode, raw_flavour
from kvitals.dashboards.queries import Queries
from kvitals.dashboards.raw import PRESENCE, RawTranslator
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


def built(knowledge: Knowledge, runbooks: str) -> dict[str, dict[str, Any]]:
    """Every board by the path of its file. `runbooks`: URL under which the rules' pages are served."""
    raw = RawTranslator(knowledge)
    flavours = (
        (AGENT, Queries(knowledge)),
        (raw_flavour(raw.raw_names(PRESENCE)), Queries(knowledge, raw)),
    )
    return {
        f"boards/{flavour.name}/{board.name}.json": found
        for flavour, queries in flavours
        for board in boards(knowledge)
        if (found := build(board, flavour, queries, runbooks)) is not None
    }


def files(knowledge: Knowledge, runbooks: str) -> dict[str, str]:
    """The same as the texts of the files."""
    return {path: encode(found) for path, found in built(knowledge, runbooks).items()}

"""What happened to one engine, and to each engine of a fleet, over time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import streamlit as st

from kvitals.rules.finding import EngineRow
from kvitals.ui.web import data, graphs
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import literal
from kvitals.ui.web.sources.base import Happening, PageWindow
from kvitals.ui.web.views.timeline import lane_row

MAX_ENGINES = 60
"""Rows of the heat map; more are counted."""

_RANK = {"page": 0, "ticket": 1, "info": 2}


def show(place: str, window: PageWindow, engine: str) -> list[Happening]:
    """Draw the findings and events of one engine as lanes; returns them."""
    try:
        told = data.past(place, window.start, window.end)
    except UnansweredError:
        return []
    own = [one for one in told.happened if one.entity == engine]
    rows = [_lane(one, one.code if one.kind == "finding" else "events", window) for one in own]
    order = list(dict.fromkeys(str(row["lane"]) for row in rows))
    if rows:
        graphs.show(graphs.lanes(rows, order, window.start, window.end), key="engine-lanes")
    return own


def heat_map(place: str, window: PageWindow, engines: Sequence[EngineRow]) -> None:
    """Engines by time, coloured by the worst severity of their findings."""
    try:
        told = data.past(place, window.start, window.end)
    except UnansweredError:
        return
    order = [row.entity.title for row in engines[:MAX_ENGINES]]
    rows = heat_rows(told.happened, order, window)
    if not rows:
        st.caption("No finding on one of these engines in this window.")
        return
    graphs.show(graphs.heat(rows, order, window.start, window.end), key="heat-map")
    more = f" · {len(engines) - MAX_ENGINES:,} more engines are in the table" if len(engines) > MAX_ENGINES else ""
    st.caption(f"Engines over time, the worst severity on top; diamonds: restarts and changes; UTC{more}")
    if told.why_not_all:
        st.caption(literal(told.why_not_all))


def heat_rows(happened: Sequence[Happening], order: Sequence[str], window: PageWindow) -> list[dict[str, Any]]:
    """A row for each finding and event of these engines, the worst last: it is drawn on top."""
    own = [one for one in happened if one.entity in order and one.kind in ("finding", "event")]
    own.sort(key=lambda one: -_RANK.get(one.severity, 3))
    return [_lane(one, one.entity, window) for one in own]


def _lane(one: Happening, lane: str, window: PageWindow) -> dict[str, Any]:
    return lane_row(lane, one.severity if one.kind == "finding" else "event", one, window)


def natural(name: str) -> tuple[Any, ...]:
    """A key that sorts engine-9 before engine-10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def severity_order(row: EngineRow) -> tuple[int, int]:
    """The worst engine first."""
    return (_RANK.get(row.severity or "", 9), -len(row.findings))

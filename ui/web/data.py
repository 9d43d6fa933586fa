"""What pages ask for, kept for a moment, so that several viewers and their refreshes ask once.

Sources are named by their place, and windows by value, since these are the keys of what is kept.
"""

from __future__ import annotations

import streamlit as st

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.ledger import Known as Lookups
from kvitals.app.requests import RequestAnswer, RequestQuery
from kvitals.rules.finding import Triage
from kvitals.ui.web import commands, source_registry
from kvitals.ui.web.sources.base import ChartLine, Extent, PageWindow, PastEvents

LIVE_SECONDS = 4.0
"""How long an answer counts as new. Pages ask every `EVERY_SECONDS`."""

EVERY_SECONDS = 5


@st.cache_data(ttl=LIVE_SECONDS, max_entries=32, show_spinner=False)
def findings(place: str, look: PageWindow | None) -> Triage:
    """The triage document of a window."""
    return source_registry.open_source(place).findings(look)


@st.cache_data(ttl=600, max_entries=32, show_spinner=False)
def past_findings(place: str, look: PageWindow) -> Triage:
    """The triage document of a window that is over, which does not change."""
    return source_registry.open_source(place).findings(look)


@st.cache_data(ttl=LIVE_SECONDS, max_entries=32, show_spinner=False)
def extent(place: str) -> Extent:
    """What there is of a source."""
    return source_registry.open_source(place).extent()


@st.cache_data(ttl=LIVE_SECONDS, max_entries=256, show_spinner=False)
def series(place: str, query: str, start: float, end: float) -> list[ChartLine]:
    """A query's series over a stretch of time."""
    return source_registry.open_source(place).series(query, start, end)


@st.cache_data(ttl=LIVE_SECONDS, max_entries=16, show_spinner=False)
def past(place: str, start: float, end: float) -> PastEvents:
    """What happened in a stretch of time."""
    return source_registry.open_source(place).past(start, end)


@st.cache_data(ttl=LIVE_SECONDS, max_entries=8, show_spinner=False)
def blocks(place: str) -> Blocks:
    """What caches hold, and eviction cascades."""
    return source_registry.open_source(place).blocks()


@st.cache_data(ttl=LIVE_SECONDS, max_entries=64, show_spinner=False)
def requests(place: str, asked: RequestQuery) -> RequestAnswer:
    """Single requests, and why the slow ones are slow."""
    return source_registry.open_source(place).requests(asked)


@st.cache_resource(ttl=60, max_entries=2, show_spinner=False)
def lookups(place: str) -> Lookups:
    """The look-ups that can be replayed with other caches."""
    return source_registry.open_source(place).lookups()


@st.cache_data(ttl=600, max_entries=8, show_spinner=False)
def command(arguments: tuple[str, ...]) -> commands.CommandOutput:
    """What takes the command line some seconds."""
    return commands.run(arguments)


def triage(place: str, look: PageWindow | None) -> Triage:
    """The document that everything on a page goes by."""
    return findings(place, None) if look is None else past_findings(place, look)


def window(place: str, look: PageWindow | None) -> PageWindow:
    """The stretch of time that charts show: the one that was picked, or all of a recording, or the last minutes."""
    if look is not None:
        return look
    there = extent(place)
    if source_registry.open_source(place).live:
        end = round(there.end / LIVE_SECONDS) * LIVE_SECONDS  # viewers who ask within a moment ask the same
        return PageWindow(max(there.start, end - MINUTES * 60.0), end)
    return PageWindow(there.start, there.end)


MINUTES = 15
"""Of a live source that are drawn where nothing was picked."""

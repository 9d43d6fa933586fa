"""Links between the pages: each names its source, its window and what is picked, and can be opened in another tab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvitals.app.engine_twin import advised_settings
from kvitals.diagnoser.replays import tells_of_hits
from kvitals.rules.finding import Finding, Triage
from kvitals.ui.web import data, source_registry, state
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import literal
from kvitals.ui.web.sources.base import PageWindow

LEAST_SECONDS = 60.0
"""The shortest window of a link to the timeline."""

BEFORE_SHARE = 0.5
"""Of the time since the onset, shown before it."""

_PAGES = "pages"


def register(pages: Mapping[str, Any]) -> None:
    """The pages that links lead to, by path."""
    st.session_state[_PAGES] = dict(pages)


def link(label: str, path: str, icon: str, *, window: PageWindow | None = None, **picked: str) -> None:
    """A link to a page, with the window and what it picks there. `window` None: the window of this page."""
    page = st.session_state.get(_PAGES, {}).get(path)
    if page is None:  # a view is drawn outside of the app
        return
    told = state.link_parameters(window or state.picked_window(), picked)
    st.page_link(page, label=literal(label), icon=f":material/{icon}:", query_params=told)


def onset(finding: Finding, triage: Triage, earliest: float) -> PageWindow:
    """The window that shows how a finding began: some time before its onset, up to the end of the document's window.
    `earliest`: the first moment of the source."""
    end = triage.window.end
    since = min(finding.since if finding.since is not None else triage.window.start, end)
    start = since - BEFORE_SHARE * (end - since)
    return PageWindow(max(min(start, end - LEAST_SECONDS), min(earliest, since, end - state.LEAST_SECONDS)), end)


def of_finding(finding: Finding, triage: Triage) -> None:
    """From a finding to everything that it is about."""
    labels = finding.entity.labels
    with st.container(horizontal=True, gap="small", key=f"links-{finding.id}"):
        here = state.page()
        link("Onset", "timeline", "timeline", window=onset(finding, triage, _earliest(triage)))
        engine = finding.entity.title if finding.entity.kind == "engine" else ""
        if engine and here != "engine":
            link("Engine", "engine", "developer_board", engine=engine)
        link("Tenants", "tenants", "groups", tenant=labels.get("tenant", ""))
        link("Requests", "requests", "swap_vert")
        link(f"Rule {finding.code}", "rules", "menu_book", rule=finding.code)
        if lever := lever_to_try(finding, triage):
            link("What if", "what-if", "science", lever=lever, engine=engine)


def _earliest(triage: Triage) -> float:
    try:
        return data.extent(state.place()).start
    except UnansweredError:  # the page shows the last answer of a source that is gone
        return triage.window.start


def lever_to_try(finding: Finding, triage: Triage) -> str:
    """The first lever that the page What if can tell about; empty: there is none."""
    return _replayed(finding) or _simulated(finding, triage)


def _replayed(finding: Finding) -> str:
    """The first lever whose hit rate is predicted and can be replayed; empty: there is none."""
    known = source_registry.knowledge().levers
    predicted = (one.lever for one in finding.levers if tells_of_hits(one) and one.lever in known)
    return next((lever for lever in predicted if known[lever].replay is not None), "")


def _simulated(finding: Finding, triage: Triage) -> str:
    """The first lever whose setting the twin of the engine simulates; empty: there is none."""
    of = (finding.code, finding.entity)
    return next((one.lever for one in advised_settings(triage) if (one.code, one.engine) == of), "")

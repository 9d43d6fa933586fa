"""One engine: its verdict, its figures, its findings, and its signals over time."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvitals.app.escaping.plain import line as one_line
from kvitals.diagnoser.text import plain
from kvitals.rules.finding import EngineRow, Finding, Triage
from kvitals.rules.loader import SIGNAL_PREFIX
from kvitals.ui.web import data, graphs, header, links, source_registry, state
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import inline_code, literal
from kvitals.ui.web.sources.base import ChartLine, Happening, PageWindow
from kvitals.ui.web.views import happenings, timeline

SIGNALS = (
    *("ttft_p99_seconds", "itl_p99_seconds", "waiting_avg", "running_avg", "kv_usage_p90", "prefix_hit_ratio"),
    "generation_tokens_per_second",
)
MAX_FINDINGS = 12
_STATE = {
    True: ":material/check_circle: Healthy",
    False: ":material/error: Unhealthy",
    None: ":material/help: Unknown",
}


def show(place: str, look: PageWindow | None) -> None:
    """The engine that a link names, else the first one with a finding."""
    triage = data.triage(place, look)
    rows = {row.entity.title: row for row in triage.engines}
    if not rows:
        header.show_empty(
            "No engine was seen", "Add an engine to the agent, or select a recording.", "kvitals run http://HOST:8000"
        )
        return
    row = rows[_pick(list(rows), triage)]
    st.markdown(f"**{_STATE[row.healthy]}** {literal(row.verdict)}")
    about = [f"{literal(name)} {inline_code(value)}" for name, value in row.about.items() if value]
    if about:
        st.caption(" · ".join(about))
    measures = [(plain(name), one.text, one.meaning) for name, one in row.figures.items() if one.value is not None]
    header.figures(measures, key="engine-figures")
    for finding in _findings(row, triage):
        _finding(finding, triage)
    window = data.window(place, look)
    own = happenings.show(place, window, engine=row.entity.title)
    _signals(place, window, row, own, triage)


def _pick(names: list[str], triage: Triage) -> str:
    """The engine of the link; afterwards the one that the viewer selects."""
    pick = state.take_pick("engine")
    if (wanted := pick or state.focus("engine")) in names:
        st.session_state["engine"] = wanted
    if st.session_state.get("engine") not in names:
        troubled = (row.entity.title for row in triage.engines if row.healthy is False)
        st.session_state["engine"] = next(troubled, names[0])

    def picked() -> None:
        state.keep("engine", str(st.session_state["engine"]))

    chosen = str(st.selectbox("Engine", names, format_func=one_line, key="engine", on_change=picked))
    header.pick_hint("engine", pick, names, chosen)
    return chosen


def _findings(row: EngineRow, triage: Triage) -> list[Finding]:
    """In the order of the document's row, causes first."""
    fired = {f.id: f for f in (*triage.causes, *triage.symptoms, *triage.telemetry)}
    return [fired[one] for one in row.findings if one in fired][:MAX_FINDINGS]


def _finding(finding: Finding, triage: Triage) -> None:
    with st.container(border=True, key=f"card-{finding.severity}-{finding.id}"):
        st.markdown(f"{inline_code(finding.code)} **{literal(finding.title)}**: {literal(finding.conclusion)}")
        links.of_finding(finding, triage)


def _signals(place: str, window: PageWindow, row: EngineRow, happened: Sequence[Happening], triage: Triage) -> None:
    marks = timeline.moments(happened, triage, window)
    known = source_registry.knowledge().signals
    engine = row.entity
    for name in SIGNALS:
        if name not in known:
            continue
        try:
            lines = data.series(place, f"{SIGNAL_PREFIX}{name}", window.start, window.end)
        except UnansweredError as error:
            header.failure(error.failure, key="signals-failure")
            return
        mine = (one for one in lines if engine.labels.items() <= one.labels.items())
        own = [ChartLine({"engine": engine.title}, one.points) for one in mine]
        limit = timeline.objective(name, triage)
        drawn = graphs.lines(own, known[name].unit, window.start, window.end, marks=marks, objective=limit)
        if drawn is not None:
            st.caption(f"**{literal(plain(name))}**")
            graphs.show(drawn, key=f"engine-{name}")

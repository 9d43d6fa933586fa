"""The verdict on a window, with its causes, their proof and what to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import tzinfo

import streamlit as st

from kvitals.rules.finding import Finding, RuledOut, SloInForce, Triage, encode
from kvitals.series.files import read_regular
from kvitals.ui.web import data, export, header, source_registry, state
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import count, inline_code, literal, moment, span
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views import incident
from kvitals.ui.web.views.finding import card

MAX_CARDS, MAX_LINES, MAX_ENGINES = 12, 200, 12
"""Of a large fleet; the worst are first. Others are one line each, then counted."""

WHOLE = 3
"""Cards whose proof and levers are there at once; of others they are a click away."""

_STATE = {
    True: ("healthy", ":material/check_circle:", "Healthy"),
    False: ("unhealthy", ":material/error:", "Unhealthy"),
    None: ("unknown", ":material/help:", "Unknown"),
}
_OBJECTIVE = {"ttft_p99": "time to first token p99", "itl_p99": "gap between tokens p99"}

MAX_DOWNLOAD_BYTES = 512 << 20


def show(place: str, look: PageWindow | None) -> None:
    """Ask the source and draw its answer; while the source does not answer, the last answer, marked as such."""
    try:
        answer = data.triage(place, look)
    except UnansweredError as error:
        last = _last(place, look)
        with st.container():
            header.failure(error.failure)
            if last is not None:
                st.markdown(f":material/history: Below is the last answer, from {moment(last.window.end)}.")
        if last is not None:
            document(last, place)
        return
    st.session_state["last"] = (place, look, answer)
    # An element that comes and goes must not move those after it, or all of them are drawn anew.
    st.container()
    document(answer, place)


def _last(place: str, look: PageWindow | None) -> Triage | None:
    """The last answer of the same source about the same window."""
    asked, of, answer = st.session_state.get("last", ("", None, None))
    return answer if (asked, of) == (place, look) and isinstance(answer, Triage) else None


def document(triage: Triage, place: str) -> None:
    """The whole document, in the order in which a person asks."""
    zone = state.zone()
    _verdict(triage, zone)
    _exports(triage, place)
    others = [one for one in triage.telemetry if one not in triage.lost]
    _group("Engines that cannot be read", triage.lost, zone, triage, WHOLE)
    causes = triage.leading_causes
    for number, cause in enumerate(causes[:MAX_CARDS], 1):
        rank = number if len(causes) > 1 else None
        card(cause, zone, triage, number=rank, explained=triage.explained(cause), whole=number <= WHOLE)
    _plain("Further causes", causes[MAX_CARDS:], "further")
    left = WHOLE - len(causes) - len(triage.lost)
    _group("Problems of the telemetry", others, zone, triage, left)
    _group("Symptoms without a known cause", triage.unexplained_symptoms, zone, triage, left - len(others))
    _ruled_out(triage.ruled_out)
    _unknown(triage)
    _plain("Noted", triage.notes, "noted")
    _plain("Muted", triage.muted, "muted")
    _coverage(triage)


def _verdict(triage: Triage, zone: tzinfo | None) -> None:
    name, icon, word = _STATE[triage.healthy]
    with st.container(key=f"verdict-{name}"):
        st.markdown(f"**{icon} {word}**")
        st.markdown(f"# {literal(triage.verdict)}")
        incident.show(triage, zone)
        if triage.regime is not None:
            st.caption(literal(triage.regime.sentence))
        window = f"window of {span(triage.window.seconds)} up to {moment(triage.window.end, zone)}"
        if triage.window.cold:
            window += ", little or no data before it"
        kind = "recording" if triage.source.kind == "capture" else triage.source.kind
        st.caption(f"{kind} {inline_code(triage.source.name)} · {literal(window)}")
        for warning in triage.coverage.warnings[:MAX_ENGINES]:
            st.markdown(f":material/warning: {literal(warning)}")
        if triage.slo:
            st.caption("judged by " + " · ".join(_objective(s) for s in triage.slo))
        age = time.time() - triage.window.end
        if triage.source.kind == "prometheus" and age > header.OLD_SECONDS:
            st.caption(f":material/history: evaluated {span(age)} ago")
        is_now = state.picked_window() is None
        if triage.source.kind in ("agent", "live") and is_now and age > header.OLD_SECONDS:
            st.markdown(f":material/history: **This answer is {span(age)} old.** The agent has stopped scraping.")


def _exports(triage: Triage, place: str) -> None:
    """The whole answer to take along: for a ticket, for a program, and what it was made from."""
    stem = f"kvitals-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(triage.window.end))}"
    link = state.link()
    with st.container(horizontal=True, key="exports"), st.popover("Export", icon=":material/download:"):
        st.download_button(
            "Markdown, for a ticket",
            lambda: export.document(triage, link),
            file_name=f"{stem}.md",
            mime="text/markdown",
            icon=":material/confirmation_number:",
            on_click="ignore",
            key="export-markdown",
        )
        st.download_button(
            "JSON, for a program",
            lambda: encode(triage),
            file_name=f"{stem}.json",
            mime="application/json",
            icon=":material/data_object:",
            on_click="ignore",
            key="export-json",
        )
        _capture(place)


def _capture(place: str) -> None:
    """The recording itself; of what is live, how to make one."""
    path = source_registry.file_of(place)
    if path is None:
        st.caption("To keep the data behind this diagnosis, record it:")
        st.code("kvitals record http://HOST:8000 --out incident.kvcap --for 60s", language=None, wrap_lines=True)
        return
    st.download_button(
        "The recording (.kvcap)",
        lambda: read_regular(path, MAX_DOWNLOAD_BYTES),
        file_name=path.name if not place.startswith(source_registry.UPLOAD) else "incident.kvcap",
        mime="application/octet-stream",
        icon=":material/save:",
        on_click="ignore",
        key="export-capture",
    )


def _objective(slo: SloInForce) -> str:
    time_ = f"{slo.seconds:g} s" if slo.seconds >= 1 else f"{1000 * slo.seconds:g} ms"
    return literal(f"{_OBJECTIVE.get(slo.name, slo.name)} ≤ {time_} ({slo.source})")


def _group(title: str, findings: Sequence[Finding], zone: tzinfo | None, triage: Triage, whole: int) -> None:
    """Findings beside the causes, the first so many as whole cards."""
    with st.container():
        if findings:
            st.markdown(f"## {title}")
        for number, finding in enumerate(findings[:MAX_CARDS], 1):
            card(finding, zone, triage, whole=number <= whole)
        _plain("Further ones", findings[MAX_CARDS:], f"further-{title}")


def _ruled_out(ruled_out: Sequence[RuledOut]) -> None:
    lines = [_line(r.code, r.title, r.entity, r.because) for r in ruled_out[:MAX_LINES]]
    _list(f"Ruled out: {count(len(ruled_out), 'other cause')}", lines, len(ruled_out), "ruled-out")


def _unknown(triage: Triage) -> None:
    wants = [
        f"- {count(len(one.codes), 'check')} without **{literal(one.what)}**  \n:gray[to get it: {literal(one.brings)}]"
        for one in triage.lacking
    ]
    lines = [_line(f.code, f.title, f.entity.title, f.reason) for f in triage.unknown[:MAX_LINES]]
    label = f"Not checked: {count(len(triage.unknown), 'check')} without data"
    _list(label, ["\n".join(wants), *lines] if wants else lines, len(triage.unknown) + bool(wants), "unknown")


def _plain(title: str, findings: Sequence[Finding], key: str) -> None:
    lines = [
        _line(f.code, f.title, f.entity.title, f.conclusion)
        + (f"  \n:gray[muted: {literal(f.muted)}]" if f.muted else "")
        for f in findings[:MAX_LINES]
    ]
    _list(f"{title}: {count(len(findings), 'finding')}", lines, len(findings), key)


def _list(label: str, lines: Sequence[str], number: int, key: str) -> None:
    """Lines behind a click: the first of so many. One element, since each takes the browser its time."""
    with st.container():
        if not lines:
            return
        with st.expander(label, key=key):
            st.markdown("\n\n".join(lines))
            if number > len(lines):
                st.caption(f"and {number - len(lines):,} more: Export lists all")


def _line(code: str, title: str, entity: str, text: str) -> str:
    return f"{inline_code(code)} **{literal(title)}** on {literal(entity)}: {literal(text)}"


def _coverage(triage: Triage) -> None:
    c = triage.coverage
    with st.container(key="coverage"):
        st.caption(c.summary)
        for code, error in c.crashed.items():
            st.markdown(
                f":material/bug_report: rule {inline_code(code)} failed, the others were evaluated: {literal(error)}"
            )
        for engine in c.engines[:MAX_ENGINES]:
            told = [f"{literal(k)} {inline_code(v)}" for k, v in engine.items() if v]
            st.caption(" · ".join(told))
        if len(c.engines) > MAX_ENGINES:
            st.caption(f"and {len(c.engines) - MAX_ENGINES:,} more engines: see Fleet")
        if not c.engines:
            st.caption("No engine was seen.")

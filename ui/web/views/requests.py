"""Why slow requests are slow, and what the time of single ones went into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import streamlit as st

from kvitals.agent.requests.record import RequestRecord
from kvitals.agent.requests.slow_tail import IN_WORDS, TailReport
from kvitals.app.escaping.plain import line as one_line
from kvitals.app.request_sources import NamedRequest, RequestAnswer, RequestQuery
from kvitals.ui.formats import GROUP_WORDS, TIME_WORDS, seconds
from kvitals.ui.web import data, graphs, header, links, state, tables
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.page_text import count, inline_code, literal, moment
from kvitals.ui.web.sources.base import PageWindow

SHOWN = 20
MAX_ID = 200
LEAST_SHARE = 0.005
_WHICH = {"slowest": "Slowest", "newest": "Newest"}


def show(place: str, look: PageWindow | None) -> None:
    """The tail by phase, then a waterfall of each."""
    if wanted := state.take_pick("request"):
        st.session_state["request-id"] = wanted
    with st.container(horizontal=True, vertical_alignment="bottom", key="which"):
        which = st.segmented_control(
            "Which", list(_WHICH), default="slowest", format_func=_WHICH.__getitem__, key="which-requests"
        )
        name = st.text_input("or one request by its id or trace id", max_chars=MAX_ID, key="request-id").strip()
    state.keep("request", name)
    asked = (
        RequestQuery(name=name)
        if name
        else RequestQuery(newest=SHOWN)
        if which == "newest"
        else RequestQuery(slowest=SHOWN)
    )
    found = data.requests(place, asked)
    requests = [t for t in found.requests if name or look is None or look.start <= t.record.end <= look.end]
    if not requests:
        _none(name, look, bool(found.requests))
        return
    if not name and which != "newest":
        for report in found.tails:
            _tail(report, found)
    st.markdown(f"### {count(len(requests), 'request')}: what the time went into")
    graphs.draw(_waterfalls([told.record for told in requests]), key="waterfalls")
    st.caption("Phases one after another, as the request's source reports them; gray is unattributed time.")
    _one(requests)


def _one(requests: list[NamedRequest]) -> None:
    """All data of one request, by its number in the chart."""
    chosen = st.selectbox(
        "All data of one request",
        range(len(requests)),
        format_func=lambda i: f"{i + 1}. {one_line(requests[i].record.id)}, {seconds(requests[i].record.e2e)}",
        key="one-request",
    )
    _request(requests[chosen])


def _none(name: str, look: PageWindow | None, elsewhere: bool) -> None:
    if name:
        header.show_empty(
            "No such request", f"No request {name} is stored. The request may be too old, or may not have ended."
        )
    elif elsewhere and look is not None:
        header.show_empty(
            "No stored request ended in this window",
            "kvitals keeps the slowest requests of a longer time, and these ended at other times. Go back to now.",
        )
    else:
        header.show_empty(
            "No requests are known",
            "Spans, a request log or the tap report requests (docs/requests.md). The newest ones "
            "come some"
            " seconds after their end.",
            "kvitals tap --upstream http://127.0.0.1:8000",
        )


def _tail(report: TailReport, found: RequestAnswer) -> None:
    title = f"### Slow {TIME_WORDS[report.of]}"
    if report.why_unknown:
        st.markdown(f"{title}: cause unknown")
        st.caption(literal(report.why_unknown))
        return
    st.markdown(title)
    st.markdown(literal(_named(report.sentence, found)))
    rows = [
        {"part": phase.name, "share": phase.share, "seconds": phase.seconds}
        for phase in report.phases
        if phase.share is not None and abs(phase.share) >= LEAST_SHARE
    ]
    if rows:
        graphs.draw(_excess(rows), key=f"tail-{report.of}")
    with st.expander("Which requests, and which tenants they waited behind", key=f"who-{report.of}"):
        for line in _who(report, found):
            st.markdown(f"- {line}")


def _named(text: str, found: RequestAnswer) -> str:
    for tenant, name in found.tenant_names.items():
        text = text.replace(tenant, name)
    return text


def _who(report: TailReport, found: RequestAnswer) -> list[str]:
    told = []
    for group, of in report.groups.items():
        for one in of[:3]:
            value = found.tenant_names.get(one.value, one.value) if group == "tenant" else one.value
            told.append(
                f"{literal(GROUP_WORDS.get(group, group))} {inline_code(value)}: {one.tail} of the slow ones "
                f"({one.share:.0%}), {one.all} of all"
            )
    if report.why_not_behind:
        told.append(f"waited behind: unknown, {literal(report.why_not_behind)}")
    for occupant in report.behind.occupants[:4] if report.behind is not None else ():
        who = found.tenant_names.get(occupant.tenant, occupant.tenant)
        told.append(f"waited behind {inline_code(who)}: {occupant.share:.0%} of the time occupied in front of them")
    return told or ["nothing stands out among these requests"]


def _excess(rows: list[dict[str, Any]]) -> alt.Chart:
    told = [{**row, "name": IN_WORDS.get(row["part"], row["part"])} for row in rows]
    chart: alt.Chart = (
        alt.Chart(graphs.values(told), height=26 * len(told) + graphs.AXIS + graphs.TITLE, padding=graphs.PADDING)
        .mark_bar(height=16)
        .encode(
            x=alt.X("share:Q", title="share of their extra time", axis=value_axis("ratio", [{"value": 1}])),
            y=alt.Y("name:N", sort="-x", title=None, axis=graphs.names(160)),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=list(graphs.PHASES), range=list(graphs.PHASES.values())),
                legend=None,
            ),
            tooltip=[
                alt.Tooltip("name:N", title="phase"),
                alt.Tooltip("share:Q", format=".0%"),
                alt.Tooltip("seconds:Q", title="seconds longer", format=".3f"),
            ],
        )
    )
    return chart


def _waterfalls(records: list[RequestRecord]) -> alt.Chart:
    """A bar a request, its phases from left to right."""
    height = 24 * len(records) + graphs.AXIS + graphs.TITLE + graphs.LEGEND
    rows, order = [], []
    for number, record in enumerate(records, 1):
        lane = f"{number}. {graphs.brief(record.id, 18)}"
        order.append(lane)
        at = 0.0
        for place, phase in enumerate(record.phases):
            length = phase.seconds or 0.0
            rows.append({"lane": lane, "phase": phase.name, "start": at, "end": at + length, "at": place,
                         "words": seconds(phase.seconds), "source": phase.source, "why": phase.why})  # fmt: skip
            at += length
    chart: alt.Chart = (
        alt.Chart(
            graphs.values(rows),
            height=height,
            padding=graphs.PADDING,
        )
        .mark_bar(height=15)
        .encode(
            x=alt.X("start:Q", title="seconds", axis=value_axis("seconds", [{"value": row["end"]} for row in rows])),
            x2="end:Q",
            y=alt.Y("lane:N", sort=order, title=None, axis=graphs.names(150)),
            color=alt.Color(
                "phase:N",
                scale=alt.Scale(domain=list(graphs.PHASES), range=list(graphs.PHASES.values())),
                legend=alt.Legend(title=None, orient="top", direction="horizontal", columns=7),
            ),
            tooltip=[
                alt.Tooltip("phase:N"),
                alt.Tooltip("words:N", title="took"),
                alt.Tooltip("source:N", title="source of the number"),
                alt.Tooltip("why:N"),
            ],
        )
    )
    return chart


def _request(told: NamedRequest) -> None:
    record = told.record
    first = f", first token {seconds(record.ttft)}" if record.ttft is not None else ""
    label = f"{inline_code(record.id)} {record.outcome}, {seconds(record.e2e)}{first}"
    with st.container(border=True, key="request"):
        st.markdown(label)
        who = told.tenant_name or record.tenant or "unknown"
        engines = ", ".join(f"{role} {engine}" for role, engine in sorted(record.engines.items())) or "unknown"
        st.caption(literal(f"{moment(record.start, state.zone())} · trace {record.trace or 'unknown'}"))
        st.markdown(literal(f"tenant {who} · engine {engines} · model {record.model or 'unknown'}"))
        st.markdown(literal(f"tokens: {_tokens(record)}"))
        if record.error or record.finish:
            st.markdown(literal(f"ended: {' '.join(t for t in (record.finish, record.error) if t)}"))
        with st.container(horizontal=True, gap="small", key="request-links"):
            links.link("This request", "requests", "swap_vert", request=record.id)
            if record.tenant:
                links.link("Tenant", "tenants", "groups", tenant=record.tenant)
            for engine in dict.fromkeys(record.engines.values()):
                links.link(engine, "engine", "developer_board", engine=engine)
        phases = [_phase(phase.name, phase.seconds, phase.source, phase.why) for phase in record.phases]
        tables.show(phases, f"phases-{record.id}-{record.start:.3f}")
        if not record.complete:
            st.caption("A part of this request is missing.")


def _phase(name: str, took: float | None, source: str, why: str) -> Mapping[str, str]:
    return {"phase": name, "took": seconds(took), "known": source, "why": why}


def _tokens(record: RequestRecord) -> str:
    counts = {"prompt": record.prompt_tokens, "cached": record.cached_tokens, "output": record.output_tokens}
    return ", ".join(f"{name} {'unknown' if value is None else value}" for name, value in counts.items())

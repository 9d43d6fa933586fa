"""One time axis for verdicts, findings, cascades, restarts, changes and signals; the window is picked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import streamlit as st

from kvitals.diagnoser.text import plain
from kvitals.rules.finding import Triage
from kvitals.rules.loader import SIGNAL_PREFIX
from kvitals.rules.model import Signal
from kvitals.ui.web import data, graphs, header, source_registry, state
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import count, inline_code, literal
from kvitals.ui.web.sources.base import ChartLine, Happening, PageWindow

USUAL = (
    "ttft_p99_seconds",
    "itl_p99_seconds",
    "waiting_avg",
    "running_avg",
    "kv_usage_p90",
    "preemptions_per_request",
    "prefix_hit_ratio",
    "refault_share",
)
SHOWN, MAX_SIGNALS = 6, 12
"""Signals at first, and at most: each is a chart, which takes a browser a tenth of a second."""
MAX_LANES = 24
MAX_MARKS = 20
"""Of restarts and changes on the charts of signals, the latest; the lanes have all."""

_RANK = {"page": 0, "ticket": 1, "info": 2}


def show(place: str, look: PageWindow | None) -> None:
    """The axis, then the signals under it."""
    window = data.window(place, look)
    zone = state.zone()
    _pick(place, look)
    told = data.past(place, window.start, window.end)
    lanes, rows, left_out = _lanes(told.happened, _stages(place), window)
    with st.container(key="axis"):
        if rows:
            graphs.show(graphs.lanes(rows, lanes, window.start, window.end), key="lanes")
            st.caption(
                "bars: the verdict, findings coloured by severity, stages of a cascade; diamonds: events; times "
                "in UTC" + (f" · {count(left_out, 'lane')} with less severe findings not shown" if left_out else "")
            )
        else:
            header.show_empty("No events in this window", "No finding, restart or change was observed in this window.")
        if told.why_not_all:
            st.caption(literal(told.why_not_all))
    _signals(place, window, told.happened)
    _list(told.happened, zone)


def _pick(place: str, look: PageWindow | None) -> None:
    with st.container(border=True, key="pick"):
        st.markdown("**Select a window, and every page shows it**")
        header.picker(data.extent(place), look, key="timeline")
        if look is not None:
            name = "now" if source_registry.open_source(place).live else "the end"
            st.button(f"Back to {name}", key="timeline-back", icon=":material/undo:", on_click=_back)


def _back() -> None:
    state.pick(None)


def _stages(place: str) -> list[Mapping[str, Any]]:
    """Cascades, where blocks are known."""
    try:
        return list(data.blocks(place).cascades.get("cascades", []))
    except UnansweredError:
        return []


def _lanes(
    happened: Sequence[Happening], cascades: Sequence[Mapping[str, Any]], window: PageWindow
) -> tuple[list[str], list[dict[str, Any]], int]:
    """Names of the lanes from top to bottom, what is in them, and how many were left out."""
    verdicts = [lane_row("verdict", one.severity, one, window) for one in happened if one.kind == "verdict"]
    findings = sorted(
        (one for one in happened if one.kind == "finding"),
        key=lambda one: (_RANK.get(one.severity, 3), one.start, one.code),
    )
    several = len({one.entity for one in findings}) > 1
    names = list(dict.fromkeys(_lane(one) for one in findings))
    kept = names[:MAX_LANES]
    shown = [one for one in findings if _lane(one) in kept]
    rows = [*verdicts, *(_named(lane_row(_lane(one), one.severity, one, window), several) for one in shown)]
    stages = [row for cascade in cascades for row in _stage_rows(cascade, window)]
    events = [lane_row("events", "event", one, window) for one in happened if one.kind == "event"]
    lanes = (["verdict"] if verdicts else []) + kept
    lanes += list(dict.fromkeys(str(row["lane"]) for row in stages)) + (["events"] if events else [])
    rows = [row for row in [*rows, *stages, *events] if row["end"] >= window.start and row["start"] <= window.end]
    return lanes, rows, len(names) - len(kept)


def _lane(one: Happening) -> str:
    """A finding's lane: its code, which the axis shows, and its entity. Engines do not share one."""
    return f"{one.code} {one.entity}".strip()


def _named(row: dict[str, Any], several: bool) -> dict[str, Any]:
    """With the entity in the words of the bar, where there are several entities."""
    return row | {"label": f"{row['where']}: {row['label']}"} if several and row["where"] else row


def lane_row(lane: str, color: str, one: Happening, window: PageWindow) -> dict[str, Any]:
    """A happening as a bar or mark of `graphs.lanes`."""
    end = one.end if one.end is not None else one.start
    title = one.title if not one.text or one.kind == "finding" else f"{one.title}: {one.text}"
    return {
        "lane": lane,
        "color": color,
        "start": max(one.start, window.start) if one.end is not None else one.start,
        "end": min(end, window.end) if one.end is not None else end,
        "label": title,
        "text": one.text,
        "where": one.entity,
        "from": f"{_clock(one.start)} to {_clock(end)}" if one.end is not None else _clock(one.start),
    }


def _stage_rows(cascade: Mapping[str, Any], window: PageWindow) -> list[dict[str, Any]]:
    """A stage lasts until the next one begins to hold, which it outlasts: all go on to the cascade's end."""
    ended = cascade["ended"] or window.end
    return [
        {
            "lane": f"stage {stage['stage']}",
            "color": "stage",
            "start": stage["began"],
            "end": ended,
            "label": stage["name"],
            "text": "held before the cascade began" if stage["before"] else "",
            "where": cascade["engine"],
            "from": f"{_clock(stage['began'])} to {_clock(ended)}",
        }
        for stage in cascade["stages"]
    ]


def _signals(place: str, window: PageWindow, happened: Sequence[Happening]) -> None:
    known = source_registry.knowledge().signals
    triage = document(place)
    marks = moments(happened, triage, window)
    chosen = st.multiselect(
        "Signals",
        sorted(known),
        default=_telling(known, triage),
        max_selections=MAX_SIGNALS,
        format_func=plain,
        key=f"signals-{place}",
    )
    empty = []
    for name in chosen:
        try:
            found = data.series(place, f"{SIGNAL_PREFIX}{name}", window.start, window.end)
        except UnansweredError as error:
            header.failure(error.failure, key="signals-failure")
            return
        if not _signal(name, known[name], found, window, marks, objective(name, triage)):
            empty.append(plain(name))
    if empty:
        st.caption(f"no value in this window: {literal(', '.join(empty))}")


def moments(happened: Sequence[Happening], triage: Triage | None, window: PageWindow) -> list[graphs.Mark]:
    """The marks of every chart: restarts and changes, and the onset of the document's first finding."""
    marks = [graphs.Mark(one.start, f"{one.title} {one.text}".strip(), "event") for one in happened
             if one.kind == "event"][-MAX_MARKS:]  # fmt: skip
    lead = triage.leading[0] if triage is not None and triage.leading else None
    if lead is not None and lead.since is not None:
        marks.append(graphs.Mark(lead.since, f"onset of {lead.code} {lead.title}", "unhealthy"))
    return [one for one in marks if window.start <= one.t <= window.end]


def objective(signal: str, triage: Triage | None) -> float | None:
    """The objective of a signal, in seconds; None where there is none."""
    return next((one.seconds for one in (triage.slo if triage else ()) if signal == f"{one.name}_seconds"), None)


def _signal(
    name: str,
    signal: Signal,
    found: list[ChartLine],
    window: PageWindow,
    marks: Sequence[graphs.Mark],
    limit: float | None,
) -> bool:
    drawn = graphs.lines(found, signal.unit, window.start, window.end, marks=marks, objective=limit)
    if drawn is None:
        return False
    with st.container(key=f"signal-{name}", gap=None):
        more = f", {graphs.MAX_SHOWN} largest of {len(found)}" if len(found) > graphs.MAX_SHOWN else ""
        st.caption(f"**{literal(name.replace('_', ' '))}** {literal(_short(signal.meaning) + more)}")
        graphs.show(drawn, key=f"line-{name}")
    return True


def _short(meaning: str) -> str:
    first = " ".join(meaning.split()).split(". ")[0].rstrip(".")
    return graphs.brief(first, 120)


def _telling(known: Mapping[str, Signal], triage: Triage | None) -> list[str]:
    """What the findings of the moment rest on, then the usual."""
    found = [] if triage is None else [*triage.causes, *triage.symptoms]
    queries = [item.query.strip() for finding in found for item in finding.evidence]
    names = [query.removeprefix(SIGNAL_PREFIX) for query in queries if query.startswith(SIGNAL_PREFIX)]
    return [name for name in dict.fromkeys([*USUAL[:3], *names, *USUAL]) if name in known][:SHOWN]


def document(place: str) -> Triage | None:
    """The document of the window that is shown; None: there is none."""
    try:
        return data.triage(place, state.picked_window())
    except UnansweredError:
        return None


def _list(happened: Sequence[Happening], zone: Any) -> None:
    """The same as text, for readers who cannot see the chart. One element, since each takes time to draw."""
    with st.expander(f"As a list: {count(len(happened), 'entry', 'entries')}", key="happened"):
        st.markdown("\n\n".join(_entry(one) for one in sorted(happened, key=lambda one: one.start)[-300:]))


def _entry(one: Happening) -> str:
    until = f" to {_clock(one.end)}" if one.end is not None else ""
    code = f"{inline_code(one.code)} " if one.code else ""
    text = f": {literal(one.text)}" if one.text else ""
    where = f" on {literal(one.entity)}" if one.entity else ""
    return f"{literal(_clock(one.start) + until)} {code}**{literal(one.title)}**{where}{text}"


def _clock(t: float) -> str:
    return f"{datetime.fromtimestamp(t, UTC):%H:%M:%S}"

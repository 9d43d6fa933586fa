"""How tenants fare: what each finds and could find, who pushed out whose blocks, who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import streamlit as st

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.request_sources import RequestQuery
from kvitals.ui.formats import short
from kvitals.ui.web import data, graphs, header, links, state, tables
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import count, literal
from kvitals.ui.web.sources.base import ChartLine, PageWindow
from kvitals.ui.web.views.blocks import tenant_of

TOP = 200
DRAWN = 15
MATRIX = 12
LINKED = 5
"""Requests of a tenant's tail with a link of their own."""

TTFT = "topk(8, histogram_quantile(0.99, sum by (tenant, le) (rate(kvitals_tenant_ttft_seconds_bucket[1m]))))"
RATE = "topk(8, sum by (tenant) (rate(kvitals_tenant_requests_total[1m])))"
FAIRNESS = "kvitals_cache_fairness"
INDICES = {
    "jain": ("Jain", "1 where all fare alike, 1/n where one has everything"),
    "gini": ("Gini", "0 where all fare alike"),
    "max_min": ("worst over best", "1 where all fare alike"),
    "long_tail": ("below half", "share of tenants that find less than half of what they could"),
}


def show(place: str, look: PageWindow | None) -> None:
    """The table first, then charts, blame, and the tail of one tenant."""
    window = data.window(place, look)
    known, failed = _blocks(place)
    series = _series(place, window)
    rows = _rows(known)
    if failed is not None and not series:
        raise failed
    if not rows and not series:
        header.show_empty(
            "No tenant is known",
            "The tenant of a request comes from a header, an attribute of spans, or a request log; the tap,"
            " OpenTelemetry or a log reports it (docs/tenants.md). Figures of caches by tenant also need KV events.",
            "kvitals tap --upstream http://127.0.0.1:8000",
        )
        return
    if rows:
        if look is not None:
            st.caption(
                "Hits, losses and blame count all that the source has seen. The time range applies to charts below."
            )
        _fairness(place, window)
        _table(rows)
        _reached(rows)
        _blame(known)
    for title, found, unit in series:
        drawn = graphs.lines(_renamed(found, known), unit, window.start, window.end, height=150)
        if drawn is not None:
            st.markdown(f"### {title}")
            graphs.show(drawn, key=f"tenant-{unit}")
    _tail(place, rows, series, known)


def _blocks(place: str) -> tuple[Blocks, UnansweredError | None]:
    """What caches hold, or why that is not known: tenants may be known without."""
    try:
        return data.blocks(place), None
    except UnansweredError as error:
        return Blocks(), error


def _series(place: str, window: PageWindow) -> list[tuple[str, list[ChartLine], str]]:
    asked = (("Time to first token, p99", TTFT, "seconds"), ("Requests a second", RATE, "per_second"))
    try:
        found = [(title, data.series(place, query, window.start, window.end), unit) for title, query, unit in asked]
    except UnansweredError:
        return []
    return [one for one in found if one[1]]


def _renamed(found: list[ChartLine], known: Blocks) -> list[ChartLine]:
    return [ChartLine({"tenant": tenant_of(line.labels.get("tenant", ""), known)}, line.points) for line in found]


def _rows(known: Blocks) -> list[dict[str, Any]]:
    """A row a tenant, who looked up most first."""
    tenants: Mapping[str, Any] = known.cache.get("tenants") or {}
    cost: dict[str, float] = {}
    for engine in known.cache.get("engines") or []:
        for cell in engine["blame"]["tokens"]:
            if cell["by"] != cell["tenant"]:
                cost[cell["by"]] = cost.get(cell["by"], 0.0) + cell["tokens"]
    asked = {name: sums for name, sums in tenants.items() if sums["lookup_tokens"]}
    ordered = sorted(asked, key=lambda name: -asked[name]["lookup_tokens"])
    return [_row(name, asked[name], cost.get(name, 0.0), known) for name in ordered]


def _row(name: str, sums: Mapping[str, Any], cost: float, known: Blocks) -> dict[str, Any]:
    looked, could = sums["lookup_tokens"], sums["attainable_tokens"]
    return {
        "key": name,
        "tenant": tenant_of(name, known),
        "looked up": looked,
        "found": sums["hit_tokens"] / looked,
        "could find": could / looked if could is not None else None,
        "of that": min(sums["hit_tokens"] / could, 1.0) if could else None,
        "lost": sums["refaulted_tokens"],
        "cost others": cost,
        "holds": sums["resident_tokens"],
    }


def _fairness(place: str, window: PageWindow) -> None:
    try:
        found = {
            line.labels.get("index", ""): line.points[-1][1]
            for line in data.series(place, FAIRNESS, window.start, window.end)
        }
    except UnansweredError:
        return
    if not found:
        return
    figures = [(name, f"{found[i]:.2f}" if i in found else "unknown", what) for i, (name, what) in INDICES.items()]
    header.figures(figures, key="fairness")
    st.caption("Fairness between tenants: found over attainable tokens of each, in the last 15 minutes.")


def _table(rows: list[dict[str, Any]]) -> None:
    tables.show(
        [{k: v for k, v in row.items() if k != "key"} for row in rows[:TOP]],
        "tenants",
        {
            "tenant": st.column_config.TextColumn(pinned=True),
            "looked up": tables.number("compact", "prompt tokens"),
            "found": tables.share("of what was looked up"),
            "could find": tables.share("with an endless cache of its own"),
            "of that": tables.number("percent", "found over attainable, 100 % at most"),
            "lost": tables.number("compact", "tokens evicted and computed again"),
            "cost others": tables.number("compact", "tokens that others lost to its blocks"),
            "holds": tables.number("compact", "tokens in the cache now"),
        },
    )
    if len(rows) > TOP:
        st.caption(f"the {TOP} with most lookups of {len(rows):,}; all: kvitals cache --json")


def _reached(rows: list[dict[str, Any]]) -> None:
    """What each finds beside what it could."""
    told = [
        {"tenant": row["tenant"], "what": what, "share": min(row[what], 1.0)}
        for row in rows[:DRAWN]
        for what in ("found", "could find")
        if row[what] is not None
    ]
    st.markdown("### Found, and could be found")
    order = [row["tenant"] for row in rows[:DRAWN]]
    base = alt.Chart(graphs.values(told)).encode(
        y=alt.Y("tenant:N", sort=order, title=None, axis=graphs.names(130)),
        x=alt.X("share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=value_axis("ratio", [{"value": 1}])),
    )
    line = base.mark_line(strokeWidth=3, color="#9a9a9a").encode(detail="tenant:N")
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color(
            "what:N",
            scale=alt.Scale(domain=["found", "could find"], range=["#d0553f", "#4a94c9"]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        shape=alt.Shape("what:N", scale=alt.Scale(domain=["found", "could find"], range=["circle", "diamond"])),
        tooltip=["tenant:N", "what:N", alt.Tooltip("share:Q", format=".1%")],
    )
    drawn = alt.layer(line, dots).properties(
        height=30 * len(order) + graphs.AXIS + graphs.LEGEND, padding=graphs.PADDING
    )
    st.altair_chart(drawn, width="stretch", key="reached")


def _blame(known: Blocks) -> None:
    """Tokens that a row lost to a column's blocks."""
    cells: dict[tuple[str, str], float] = {}
    told: list[float] = []
    for engine in known.cache.get("engines") or []:
        told += [engine["blame"]["known"]] if engine["blame"]["known"] is not None else []
        for cell in engine["blame"]["tokens"]:
            pair = (tenant_of(cell["tenant"], known), tenant_of(cell["by"], known))
            cells[pair] = cells.get(pair, 0.0) + cell["tokens"]
    if not cells:
        return
    st.markdown("### Who paid for whom")
    rows, columns = _largest(cells, 0), _largest(cells, 1)
    drawn: list[dict[str, Any]] = [
        {"lost by": a, "to": b, "tokens": cells[a, b], "words": short(cells[a, b])}
        for a in rows
        for b in columns
        if (a, b) in cells
    ]
    room = f"truncate(datum.value, max(4, floor(width / {len(columns)} / 6.5)))"
    above = alt.Axis(orient="top", labelAngle=0, labelLimit=110, labelOverlap=False, labelExpr=room)
    base = alt.Chart(graphs.values(drawn)).encode(
        x=alt.X(
            "to:N",
            sort=columns,
            title="to blocks of",
            axis=above,
        ),
        y=alt.Y("lost by:N", sort=rows, title="lost by", axis=graphs.names(130)),
    )
    boxes = base.mark_rect(cornerRadius=2, color=graphs.COLORS["page"]).encode(
        opacity=alt.Opacity("tokens:Q", scale=alt.Scale(type="sqrt", range=[0.08, 0.75]), legend=None),
        tooltip=["lost by:N", "to:N", alt.Tooltip("tokens:Q", format=",.0f")],
    )
    words = base.mark_text(fontSize=12).encode(text="words:N")
    chart = alt.layer(boxes, words).properties(
        height=34 * len(rows) + graphs.AXIS + graphs.TITLE, padding=graphs.PADDING
    )
    st.altair_chart(chart, width="stretch", key="blame")
    known_share = f"; both known for {min(told):.0%}" if told else ""
    st.caption(f"tokens that a row lost because blocks of a column were stored{known_share}")


def _largest(cells: Mapping[tuple[str, str], float], side: int) -> list[str]:
    sums: dict[str, float] = {}
    for pair, tokens in cells.items():
        sums[pair[side]] = sums.get(pair[side], 0.0) + tokens
    return sorted(sums, key=lambda name: -sums[name])[:MATRIX]


def _tail(
    place: str, rows: list[dict[str, Any]], series: list[tuple[str, list[ChartLine], str]], known: Blocks
) -> None:
    """The slowest requests of one tenant."""
    keys = [row["key"] for row in rows[:TOP] if row["key"]]
    keys += [line.labels["tenant"] for _, lines, _ in series for line in lines if line.labels.get("tenant")]
    tenants = list(dict.fromkeys(keys))
    if not tenants:
        return
    st.markdown("### The slowest requests of one tenant")
    if (wanted := state.take_pick("tenant")) in tenants:
        st.session_state["tenant-tail"] = wanted
    chosen = st.selectbox("Tenant", tenants, format_func=lambda t: tenant_of(t, known), key="tenant-tail")
    state.keep("tenant", chosen)
    try:
        found = data.requests(place, RequestQuery(slowest=20, tenant=chosen))
    except UnansweredError as error:
        header.failure(error.failure, key="tail-failure")
        return
    if not found.requests:
        st.caption("No request of this tenant is kept; requests are known where spans, a log or the tap tell of them.")
        return
    table = [
        {
            "request": told.record.id,
            "to the first token": told.record.ttft,
            "end to end": told.record.e2e,
            "prompt": told.record.prompt_tokens,
            "cached": told.record.cached_tokens,
            "output": told.record.output_tokens,
            "outcome": told.record.outcome,
        }
        for told in found.requests
    ]
    with st.container(horizontal=True, gap="small", key="tail-links"):
        for told in found.requests[:LINKED]:
            links.link(graphs.brief(told.record.id, 14), "requests", "swap_vert", request=told.record.id)
    timed = tables.number("%.3f s")
    tables.show(table, "tail", {"to the first token": timed, "end to end": timed}, most=260)
    st.caption(f"the {count(len(table), 'slowest request')} of {literal(tenant_of(chosen, known))} that are kept; "
               "the Requests page draws each")  # fmt: skip

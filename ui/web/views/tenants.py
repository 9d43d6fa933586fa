"""How tenants fare: who evicts whose blocks, the hit rate of each, who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import streamlit as st

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.escaping.plain import line as one_line
from kvitals.app.request_sources import RequestQuery
from kvitals.ui.formats import seconds, short
from kvitals.ui.web import data, graphs, header, links, state, tables
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import count, literal
from kvitals.ui.web.sources.base import ChartLine, PageWindow
from kvitals.ui.web.views.blocks import tenant_of
from kvitals.ui.web.views.tenant_figures import NOBODY, TenantFigures, of_blocks, of_window

TOP = 200
DRAWN = 15
MATRIX = 12
VICTIMS = 4
"""Victims that the verdict names."""

RULES = "TEN"
"""How codes of rules about tenants begin."""

HIT_RATE, ATTAINABLE = "hit rate", "attainable hit rate"
LINKED = 5
"""Requests of a tenant's tail with a link of their own."""

TTFT = "topk(8, histogram_quantile(0.99, sum by (tenant, le) (rate(kvitals_tenant_ttft_seconds_bucket[1m]))))"
RATE = "topk(8, sum by (tenant) (rate(kvitals_tenant_requests_total[1m])))"
FAIRNESS = "kvitals_cache_fairness"
INDICES = {
    "jain": ("Jain", "1 if all tenants have the same value, 1/n if one has everything"),
    "gini": ("Gini", "0 if all tenants have the same value"),
    "max_min": ("worst tenant divided by best tenant", "1 if all tenants have the same value"),
    "long_tail": ("below half", "share of tenants below half of their attainable hit rate"),
}


def show(place: str, look: PageWindow | None) -> None:
    """The verdict and the blame first, then the table, charts, and the tail of one tenant."""
    window = data.window(place, look)
    known, failed = _blocks(place)
    series = _series(place, window)
    figures = of_blocks(known) if look is None and failed is None else _of_window(place, window)
    rows = _rows(figures, known)
    if failed is not None and not series and not rows:
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
        _verdict(place, look, figures, known)
        _blame(figures, known)
        _table(rows, "in the time range" if look is not None else "since the source started to report")
        _reached(rows)
    for title, found, unit in series:
        drawn = graphs.lines(_renamed(found, known), unit, window.start, window.end, height=150)
        if drawn is not None:
            st.markdown(f"### {title}")
            graphs.show(drawn, key=f"tenant-{unit}")
    _tail(place, rows, series, known)
    if rows:
        _fairness(place, window)


def _of_window(place: str, window: PageWindow) -> TenantFigures:
    try:
        return of_window(place, window)
    except UnansweredError:
        return TenantFigures()


def _verdict(place: str, look: PageWindow | None, figures: TenantFigures, known: Blocks) -> None:
    """Who harms whom, and what it costs; whether a rule fires on it, as Triage has it."""
    try:
        triage = data.triage(place, look)
    except UnansweredError:
        return
    fired = [f for f in (*triage.causes, *triage.symptoms) if f.code.startswith(RULES)]
    with st.container(key=f"verdict-{'unhealthy' if fired else 'healthy'}"):
        for finding in fired[:1]:
            st.markdown(f"# {literal(finding.title)}")
        if not fired:
            st.markdown("# No rule about tenants fires")
        st.markdown("  \n".join(f"**{name}** {literal(text)}" for name, text in _facts(figures, known)))


def _facts(figures: TenantFigures, known: Blocks) -> list[tuple[str, str]]:
    """The tenant whose blocks caused most recomputed tokens of others, its victims, and the cost."""
    caused = {name: tokens for name, tokens in figures.caused().items() if name not in NOBODY}
    if not caused:
        return [("Blame", "no tenant's blocks caused recomputation of another tenant's tokens")]
    culprit = max(caused, key=lambda name: caused[name])
    total = sum(figures.blame.values())
    victims = figures.suffered_from(culprit)
    named = [
        f"{tenant_of(v, known)} {short(tokens)} ({tokens / caused[culprit]:.0%})"
        for v, tokens in list(victims.items())[:VICTIMS]
    ]
    return [
        ("Culprit", f"{tenant_of(culprit, known)}: {caused[culprit] / total:.0%} of all recomputed tokens"),
        ("Victims", ", ".join(named)),
        ("Cost", f"{short(caused[culprit])} tokens of other tenants recomputed{_prefill(caused[culprit], known)}"),
    ]


def _prefill(tokens: float, known: Blocks) -> str:
    """The prefill time of recomputed tokens, at the rate of the cascades whose time is known."""
    timed = [one for one in known.cascades.get("cascades", []) if one["prefill_seconds"] and one["refaulted_tokens"]]
    if not timed:
        return ""
    rate = sum(one["refaulted_tokens"] for one in timed) / sum(one["prefill_seconds"] for one in timed)
    return f", about {seconds(tokens / rate)} of prefill"


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


def _rows(figures: TenantFigures, known: Blocks) -> list[dict[str, Any]]:
    """A row for each tenant, first the one that cost others most."""
    caused = figures.caused()
    asked = {name: sums for name, sums in figures.sums.items() if sums.get("lookup_tokens", 0.0) > 0}
    ordered = sorted(asked, key=lambda name: (-caused.get(name, 0.0), -asked[name]["lookup_tokens"]))
    return [_row(name, asked[name], caused.get(name, 0.0), known) for name in ordered]


def _row(name: str, sums: Mapping[str, float], cost: float, known: Blocks) -> dict[str, Any]:
    looked, hit = sums["lookup_tokens"], sums.get("hit_tokens", 0.0)
    attainable = max(sums["attainable_tokens"], hit) if "attainable_tokens" in sums else None
    return {
        "key": name,
        "tenant": tenant_of(name, known),
        "looked up": looked,
        HIT_RATE: hit / looked,
        ATTAINABLE: attainable / looked if attainable is not None else None,
        "share of attainable": hit / attainable if attainable else None,
        "recomputed": sums.get("refaulted_tokens", 0.0),
        "cost others": cost,
        "holds": sums.get("resident_tokens", 0.0),
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
    with st.expander("Fairness indices", key="fairness-indices"):
        header.figures(figures, key="fairness")
        st.caption(
            "How evenly the share of attainable hits is spread over tenants, in the last 15 minutes of the time "
            "range. If a tenant harms all others equally, these indices stay near perfect; the blame above names "
            "that tenant."
        )


def _table(rows: list[dict[str, Any]], when: str) -> None:
    st.markdown("### Tenants")
    tables.show(
        [{k: v for k, v in row.items() if k != "key"} for row in rows[:TOP]],
        "tenants",
        {
            "tenant": st.column_config.TextColumn(pinned=True),
            "looked up": tables.number("compact", "prompt tokens"),
            HIT_RATE: tables.share("hit tokens divided by looked-up prompt tokens"),
            ATTAINABLE: tables.share(
                "the hit rate of an infinite cache for the tenant alone; never below its hit rate"
            ),
            "share of attainable": tables.number("percent", "hit rate divided by attainable hit rate"),
            "recomputed": tables.number("compact", "tokens evicted and recomputed"),
            "cost others": tables.number("compact", "tokens of other tenants recomputed because of its blocks"),
            "holds": tables.number("compact", "tokens in the cache at the end of the time range"),
        },
    )
    more = f" · {TOP} of {len(rows):,}; all: kvitals cache --json" if len(rows) > TOP else ""
    st.caption(f"{when}{more}")


def _reached(rows: list[dict[str, Any]]) -> None:
    """The hit rate of each tenant beside the attainable one."""
    told = [
        {"tenant": row["tenant"], "what": what, "share": min(row[what], 1.0)}
        for row in rows[:DRAWN]
        for what in (HIT_RATE, ATTAINABLE)
        if row[what] is not None
    ]
    st.markdown("### Hit rate, and attainable hit rate")
    order = [row["tenant"] for row in rows[:DRAWN]]
    base = alt.Chart(graphs.values(told)).encode(
        y=alt.Y("tenant:N", sort=order, title=None, axis=graphs.names(130)),
        x=alt.X("share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=value_axis("ratio", [{"value": 1}])),
    )
    line = base.mark_line(strokeWidth=3, color="#9a9a9a").encode(detail="tenant:N")
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(
        color=alt.Color(
            "what:N",
            scale=alt.Scale(domain=[HIT_RATE, ATTAINABLE], range=["#d0553f", "#4a94c9"]),
            legend=alt.Legend(title=None, orient="top"),
        ),
        shape=alt.Shape("what:N", scale=alt.Scale(domain=[HIT_RATE, ATTAINABLE], range=["circle", "diamond"])),
        tooltip=["tenant:N", "what:N", alt.Tooltip("share:Q", format=".1%")],
    )
    drawn = alt.layer(line, dots).properties(
        height=30 * len(order) + graphs.AXIS + graphs.LEGEND, padding=graphs.PADDING
    )
    graphs.draw(drawn, key="reached")


def _blame(figures: TenantFigures, known: Blocks) -> None:
    """Tokens of a row that were recomputed because of a column's blocks."""
    told = [e["blame"]["known"] for e in known.cache.get("engines") or [] if e["blame"]["known"] is not None]
    cells: dict[tuple[str, str], float] = {}
    for (victim, by), tokens in figures.blame.items():
        pair = (tenant_of(victim, known), tenant_of(by, known))
        cells[pair] = cells.get(pair, 0.0) + tokens
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
            title="because of blocks of",
            axis=above,
        ),
        y=alt.Y("lost by:N", sort=rows, title="recomputed", axis=graphs.names(130)),
    )
    boxes = base.mark_rect(cornerRadius=2, color=graphs.COLORS["page"]).encode(
        opacity=alt.Opacity("tokens:Q", scale=alt.Scale(type="sqrt", range=[0.08, 0.75]), legend=None),
        tooltip=["lost by:N", "to:N", alt.Tooltip("tokens:Q", format=",.0f")],
    )
    words = base.mark_text(fontSize=12).encode(text="words:N")
    chart = alt.layer(boxes, words).properties(
        height=34 * len(rows) + graphs.AXIS + graphs.TITLE, padding=graphs.PADDING
    )
    graphs.draw(chart, key="blame")
    known_share = f"; both sides known for {min(told):.0%}" if told else ""
    st.caption(
        "tokens of the row's tenant that were recomputed because blocks of the column's tenant were "
        f"stored{known_share}"
    )


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
    chosen = st.selectbox("Tenant", tenants, format_func=lambda t: one_line(tenant_of(t, known)), key="tenant-tail")
    header.pick_hint("tenant", wanted, tenants, tenant_of(chosen, known))
    state.keep("tenant", chosen)
    try:
        found = data.requests(place, RequestQuery(slowest=20, tenant=chosen))
    except UnansweredError as error:
        header.failure(error.failure, key="tail-failure")
        return
    if not found.requests:
        st.caption("No request of this tenant is stored; spans, a log or the tap report requests.")
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
    st.caption(f"the {count(len(table), 'slowest request')} of {literal(tenant_of(chosen, known))} that are "
               f"stored; the Requests page draws each one")  # fmt: skip

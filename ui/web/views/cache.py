"""What each cache holds, what it evicted and recomputed, and the hit rate at other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import streamlit as st

from kvitals.app.cache import CacheReport as Blocks
from kvitals.app.escaping.plain import line as one_line
from kvitals.ui.formats import short
from kvitals.ui.web import data, graphs, header
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.page_text import literal
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views.blocks import no_blocks

MAX_ENGINES = 200
_MEANING = {
    "pinned": "requests hold it now",
    "hot": "hit within five minutes",
    "cold": "no hit in the last five minutes",
    "offloaded": "in a lower tier only",
}


def show(place: str, look: PageWindow | None) -> None:
    """One engine at a time; those of a node as one cache below."""
    known = data.blocks(place)
    engines = known.cache.get("engines") or []
    if not engines:
        no_blocks()
        return
    if look is not None:
        st.caption("This page shows the caches now, or at the end of a recording: the time range does not apply.")
    names = [engine["engine"] for engine in engines[:MAX_ENGINES]]
    chosen = st.selectbox("Engine", names, format_func=one_line, key="cache-engine") if len(names) > 1 else names[0]
    engine = next(one for one in engines if one["engine"] == chosen)
    _figures(engine)
    _residency(engine)
    _curve(engine["curve"], engine["pool_blocks"], engine["block_tokens"], f"engine-{chosen}")
    _node(known, engine["block_tokens"])


def _figures(engine: Mapping[str, Any]) -> None:
    looked, hit, lost = engine["lookup_tokens"], engine["hit_tokens"], engine["refaulted_tokens"]
    missed = looked - hit
    size = f"of {engine['pool_blocks']:,} blocks" if engine["pool_blocks"] else "the cache's size is unknown"
    header.figures(
        [
            (
                "hit rate since start",
                _share(hit, looked),
                "hit tokens divided by prompt tokens, for all observed lookups",
            ),
            ("recomputed", f"{short(lost)} tokens", "evicted, then needed again"),
            ("share of computed", _share(lost, missed), "recomputed tokens divided by all computed prompt tokens"),
            ("held", _share(engine["live_blocks"], engine["pool_blocks"]), size),
        ],
        key="figures",
    )
    observed = "an unknown share" if engine["observed"] is None else f"{engine['observed']:.0%}"
    untold = sum(engine["unobserved"].values())
    words = f"{observed} of lookups observed · confidence {engine['confidence']:.0%} · " + (
        f"{sum(engine['accesses'].values()):,} lookups"
        + (f", {untold:,} requests without a known lookup" if untold else "")
    )
    st.caption(literal(words))
    if engine["confidence"] < 1 or engine["observed"] is None or engine["observed"] < 0.9:
        st.caption(":material/warning: Only a part was observed, so the true figures are probably larger.")


def _residency(engine: Mapping[str, Any]) -> None:
    held = engine["resident_tokens"]
    rows = [{"part": p, "amount": held[p]} for p in graphs.PURPOSES if p in held]
    pool = (engine["pool_blocks"] or 0) * engine["block_tokens"]
    free = max(0, pool - sum(held.get(p, 0) for p in ("pinned", "hot", "cold")))
    colors = {row["part"]: graphs.PURPOSES[str(row["part"])] for row in rows}
    if pool and free:
        rows, colors = [*rows, {"part": "free", "amount": free}], colors | {"free": "#d5d5d5"}
    st.markdown("### What it holds")
    if sum(float(row["amount"]) for row in rows):
        graphs.draw(graphs.shares(rows, colors, "tokens"), key="residency")
    said = [
        f"{row['part']} {short(float(row['amount']))} ({_MEANING.get(str(row['part']), 'not used')})" for row in rows
    ]
    st.caption(literal("tokens: " + " · ".join(said)))


def _curve(curve: Mapping[str, Any] | None, pool: int | None, block_tokens: int, key: str) -> None:
    """Hit rates of caches of other sizes, with today's and one that is picked."""
    st.markdown("### Hit rate at other sizes")
    if curve is None:
        st.caption("Too few lookups yet for a curve.")
        return
    sizes, rates, errors = curve["capacity_blocks"], curve["token_hit_rate"], curve["error"]
    today = sizes.index(pool) if pool in sizes else None
    picked = st.select_slider(
        "Blocks of the cache",
        options=range(len(sizes)),
        value=min(len(sizes) - 1, (today or 0)),
        format_func=lambda i: f"{sizes[i]:,}",
        key=f"size-{key}",
    )
    left, right = st.columns([1, 3], gap="medium")
    gain = f"{100 * (rates[picked] - rates[today]):+.1f} points" if today is not None and picked != today else None
    left.metric(
        f"{sizes[picked]:,} blocks, {short(sizes[picked] * block_tokens)} tokens",
        f"{rates[picked]:.1%}",
        delta=gain,
        help=f"modelled hit rate, ± {errors[picked]:.1%}",
    )
    if today is not None:
        left.caption(f"today: {pool:,} blocks, modelled hit rate {rates[today]:.1%}")
    rows = [{"blocks": s, "rate": r, "error": e} for s, r, e in zip(sizes, rates, errors, strict=True)]
    marks = [{"blocks": sizes[picked], "what": "picked"}]
    marks += [{"blocks": sizes[today], "what": "today"}] if today is not None else []
    with right:
        graphs.draw(_drawn(rows, marks), key=f"curve-{key}")
    st.caption(
        "of an LRU cache for the recorded lookups; one shared cache has at least as many hits as separate "
        "caches of the same total size"
        + (f" · {curve['references']:,} block references, sampled at {curve['sample_rate']:g}")
    )


def _drawn(rows: list[dict[str, Any]], marks: list[dict[str, Any]]) -> Any:
    x = alt.X("blocks:Q", title="blocks", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format=",", tickCount=6))
    y = alt.Y("rate:Q", title=None, scale=alt.Scale(domainMin=0), axis=value_axis("ratio", [{"value": 1}]))
    tips = [alt.Tooltip("blocks:Q", format=","), alt.Tooltip("rate:Q", title="hit rate", format=".1%")]
    line = alt.Chart(graphs.values(rows)).mark_line(point=True, strokeWidth=2).encode(x=x, y=y, tooltip=tips)
    rule = (
        alt.Chart(graphs.values(marks))
        .mark_rule(strokeWidth=2)
        .encode(
            x="blocks:Q",
            strokeDash=alt.StrokeDash(
                "what:N",
                scale=alt.Scale(domain=["today", "picked"], range=[[1, 0], [4, 4]]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            color=alt.value("#888888"),
        )
    )
    return alt.layer(line, rule).properties(height=230, padding=graphs.PADDING)


def _node(known: Blocks, block_tokens: int) -> None:
    several = len(known.cache.get("engines", [])) > 1
    if several:
        st.markdown("### All engines of the node")
        st.metric("stored twice or more", f"{short(known.cache.get('duplicate_tokens', 0))} tokens")
        st.caption("Blocks that several engines store: the cost of routing.")
        _curve(known.cache.get("curve"), None, block_tokens, "node")


def _share(part: float, whole: float | None) -> str:
    return f"{part / whole:.1%}" if whole else "unknown"

"""Each eviction cascade: its stages over time, what it cost, what set it off, who caused and who paid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from kvitals.ui.cascade_text import BEFORE, STAGE_WORDS, cascade_sentences, cascade_until
from kvitals.ui.web import data, graphs, header, state, tables
from kvitals.ui.web.page_text import count, inline_code, literal, moment, span
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views.blocks import no_blocks

MAX_SHOWN = 12
WORD = 10
"""Characters of a sentence that are the word which it begins with."""

_STATES = {
    "open": ":material/error: still open",
    "cut": ":material/content_cut: ended early: the cache was emptied or events stopped",
    "ended": ":material/check_circle: ended",
}
_ENGINE = {
    "cold": "has just been filled: no earlier rate to compare with",
    "calm": "no cascade under way",
    "pressure": "a full cache stores more than usual",
    "cascade": "a cascade is in progress",
    "unknown": "too little of the cache is observed",
}


def show(place: str, look: PageWindow | None) -> None:
    """The latest first; with a window picked, those that touch it."""
    known = data.blocks(place)
    if not known.cache.get("engines"):
        no_blocks()
        return
    engines = known.cascades.get("engines", [])
    with st.container(horizontal=True, key="cascade-engines"):
        for engine in engines[:MAX_SHOWN]:
            st.markdown(f"{inline_code(engine['engine'])} {literal(_state_now(engine, known.cascades))}")
    found = [one for one in known.cascades.get("cascades", []) if _touches(one, look)]
    if not found:
        header.show_empty(
            "No eviction cascade" + (" in this window" if look is not None else ""),
            "Few evicted blocks are requested again. The Cache page shows the losses.",
        )
        return
    for one in found[:MAX_SHOWN]:
        _cascade(one, known.names)
    if len(found) > MAX_SHOWN:
        st.caption(f"{len(found) - MAX_SHOWN} earlier ones: kvitals cache --json")


def _state_now(engine: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The state of an engine at the end of what was seen. A cascade that is over is named with its end."""
    told = _ENGINE.get(engine["state"], str(engine["state"]))
    ends = [one["ended"] for one in known.get("cascades", []) if one["engine"] == engine["engine"] and one["ended"]]
    if engine["state"] == "cascade" or not ends:
        return told
    return f"{told}; the last cascade ended at {moment(max(ends), state.zone(), date=False)}"


def _touches(one: Mapping[str, Any], look: PageWindow | None) -> bool:
    return look is None or (one["began"] <= look.end and (one["ended"] or look.end) >= look.start)


def _cascade(one: Mapping[str, Any], names: Mapping[str, str]) -> None:
    zone = state.zone()
    end = cascade_until(one)
    length = max(end - one["began"], 1.0)
    with st.container(border=True, key=f"cascade-{one['id']}"):
        st.markdown(f"## Stage {one['stage']} of 5 on {literal(one['engine'])}")
        st.caption(
            f"{_STATES.get(one['state'], literal(one['state']))} · "
            f":material/schedule: {literal(moment(one['began'], zone))}, {span(length)}"
        )
        rows, order = _rows(one, end)
        margin = 0.02 * length
        drawn = graphs.lanes(rows, order, one["began"] - margin, end + margin)
        graphs.show(drawn, key=f"stages-{one['id']}")
        with st.container(gap="xsmall"):
            for sentence in cascade_sentences(one, names):
                st.markdown(f"**{literal(sentence[:WORD].strip())}** {literal(sentence[WORD:])}")
        _parties(one, names)


def _rows(one: Mapping[str, Any], end: float) -> tuple[list[dict[str, Any]], list[str]]:
    reached = {stage["stage"]: stage for stage in one["stages"]}
    rows, order = [], []
    for number, (name, what) in STAGE_WORDS.items():
        lane = name
        order.append(lane)
        if (stage := reached.get(number)) is None:
            continue
        rows.append(
            {
                "lane": lane,
                "color": "stage" if number < 4 else "page",
                "start": stage["began"],
                "end": end,
                "label": f"+{stage['began'] - one['began']:.0f} s  {what}{BEFORE if stage['before'] else ''}",
                "text": f"could be detected {stage['said'] - stage['began']:.0f} s later",
                "where": one["engine"],
                "from": f"{stage['began'] - one['began']:.0f} s after the cascade began",
            }
        )
    return rows, order


def _parties(one: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Who caused and who paid, as tables."""
    if not one["caused"]:
        return
    with st.expander(f"Victims of the cascade: {count(len(one['suffered']), 'tenant')} lost", key=f"who-{one['id']}"):
        left, right = st.columns(2)
        for column, title, parts in ((left, "caused by", one["caused"]), (right, "paid by", one["suffered"])):
            rows = [
                {title: names.get(p["tenant"], p["tenant"]) or "(unknown)", "tokens": p["tokens"], "share": p["share"]}
                for p in parts[:20]
            ]
            with column:
                tables.show(rows, f"{title}-{one['id']}", {"tokens": tables.number("compact"), "share": tables.share()})

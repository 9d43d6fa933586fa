"""How much load engines carry: throughput and latency against requests at a time, as `kvitals knee --json` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import msgspec
import streamlit as st

from kvitals.app.escaping.plain import line as one_line
from kvitals.diagnoser.binding import over_known
from kvitals.ui.web import data, graphs, header, source_registry
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.failure import UnansweredError
from kvitals.ui.web.page_text import literal, moment, span

MAX_SHOWN = 100
_ASKED = "knee-asked"
_OBJECTIVES = {"ttft_p99": "time to first token", "itl_p99": "gap between tokens"}
_BINDS = {
    "fault": "down or wedged",
    "kv": "KV blocks",
    "slots": "slots",
    "token_budget": "the token budget of a step",
    "deferral": "adapters, or KV in transfer",
    "room": "slots or KV blocks",
    "arrival": "no constraint (the engine keeps up with the load)",
    "unknown": "unknown",
}


def show(place: str) -> None:
    """Asked for by a click, since it takes seconds."""
    st.markdown("### How much load they carry")
    if st.session_state.get(_ASKED) != place:
        st.caption(
            "The knee, the distance to it, and the binding constraint; the curve is fitted to all observed load."
        )
        st.button("Find the knee", key="knee", icon=":material/show_chart:", on_click=_ask, args=(place,))
        return
    try:
        with st.spinner("fitting"):
            found = msgspec.json.decode(data.command(("knee", *source_registry.arguments(place), "--json")).out)
    except UnansweredError as error:
        header.failure(error.failure, key="knee-failure")
        return
    _points(found)


def _ask(place: str) -> None:
    st.session_state[_ASKED] = place


def _points(found: Sequence[Mapping[str, Any]]) -> None:
    names = [_name(one) for one in found[:MAX_SHOWN]]
    at = range(len(names))
    chosen = st.selectbox("Of", at, format_func=lambda i: one_line(names[i]), key="knee-of") if len(names) > 1 else 0
    _point(found[chosen])


def _name(point: Mapping[str, Any]) -> str:
    entity = point["entity"]
    return str(entity.get("engine") or f"pool {entity.get('pool', '')}, {point['engines']} engines")


def _point(point: Mapping[str, Any]) -> None:
    knee, now, headroom = point["knee"], point["now"], point["headroom"]
    figures = [
        (
            "knee",
            _estimate(knee["concurrency"]) if knee else "unknown",
            "concurrent requests; more add little throughput",
        ),
        ("now", f"{now:.1f}" if now is not None else "unknown", "requests at a time"),
        ("headroom", f"{headroom:.0%}" if headroom is not None else "unknown", "below the knee"),
    ]
    for limit in point["limits"]:
        name = limit["objective"].removesuffix("_p99").upper()
        value = _estimate(limit["concurrency"]) if limit["concurrency"] else "unknown"
        figures.append((f"C_max {name}", value, f"concurrent requests at which p99 exceeds {limit['seconds']:g} s"))
    header.figures(figures, key="knee-figures")
    if point["bins"]:
        graphs.draw(_throughput(point), key="knee-throughput")
        for objective, name in _OBJECTIVES.items():
            if (drawn := _latency(point, objective, name)) is not None:
                graphs.draw(drawn, key=f"knee-{objective}")
    for text in sentences(point):
        st.markdown(literal(text))
    for missing in point["missing"]:
        st.caption(f":material/help: not known: {literal(missing)}")
    seen = f"{point['steps']} steps of {point['step']:g} s, {moment(point['start'])} to {moment(point['end'])}"
    st.caption(literal(f"from {seen}; its method: docs/knee.md"))


def sentences(point: Mapping[str, Any]) -> list[str]:
    """What the numbers mean."""
    told = []
    for limit in point["limits"]:
        rates = [f"{limit[of]:,.4g} {of}/s" for of in ("requests", "tokens") if limit[of] is not None]
        if limit["concurrency"] and rates:
            told.append(f"Usable within the {_OBJECTIVES.get(limit['objective'], '')}: {' or '.join(rates)}.")
    if point["littles_gap"] is not None:
        told.append(
            f"Little's law: rate times residence differs by {point['littles_gap']:+.1%} from the counted requests."
        )
    if (bound := point["binding"]) is not None:
        known = over_known(bound["shares"])
        shares = sorted(((share, name) for name, share in known.items() if share >= 0.005), reverse=True)
        parts = ", ".join(f"{_BINDS.get(name, name)} {share:.0%}" for share, name in shares)
        told.append(f"Binding constraints in the last {span(bound['seconds'])}: {parts}.")
    return told


def _throughput(point: Mapping[str, Any]) -> Any:
    unit = "tokens" if point["unit"] == "tokens" else "requests"
    rows = [{"load": one["concurrency"], "value": one[unit]} for one in point["bins"] if one[unit] is not None]
    return _against(rows, f"{unit} a second", "per_second", _marks(point))


def _latency(point: Mapping[str, Any], objective: str, name: str) -> Any:
    rows = [{"load": one["concurrency"], "value": one["p99"][objective]} for one in point["bins"]
            if one["p99"].get(objective) is not None]  # fmt: skip
    if len(rows) < 2:
        return None
    marks = [
        {"load": limit["concurrency"]["value"], "what": "C_max"}
        for limit in point["limits"]
        if limit["objective"] == objective and limit["concurrency"]
    ]
    promised = next((limit["seconds"] for limit in point["limits"] if limit["objective"] == objective), None)
    return _against(rows, f"{name}, p99", "seconds", marks, promised)


def _marks(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    marks = [{"load": point["knee"]["concurrency"]["value"], "what": "knee"}] if point["knee"] else []
    return [*marks, *([{"load": point["now"], "what": "now"}] if point["now"] is not None else [])]


def _against(
    rows: list[dict[str, Any]], title: str, unit: str, marks: list[dict[str, Any]], promised: float | None = None
) -> Any:
    """A value against requests at a time, with loads that are pointed out and what was promised."""
    x = alt.X("load:Q", title="requests at a time", scale=alt.Scale(zero=True))
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=True), axis=value_axis(unit, rows))
    tips = [
        alt.Tooltip("load:Q", title="at a time", format=".1f"),
        alt.Tooltip("value:Q", title=title, format=".4~g"),
    ]
    layers = [alt.Chart(graphs.values(rows)).mark_line(point=True, strokeWidth=2).encode(x=x, y=y, tooltip=tips)]
    if marks:
        base = alt.Chart(graphs.values(marks)).encode(x="load:Q")
        layers.append(base.mark_rule(strokeDash=[4, 4], strokeWidth=2, color="#888888"))
        text = base.mark_text(align="left", dx=5, y=8, fontSize=12)
        layers.append(text.encode(text="what:N"))
    if promised is not None and promised <= 2 * max(row["value"] for row in rows):
        rule = alt.Chart(graphs.values([{"value": promised}])).mark_rule(color=graphs.COLORS["page"], strokeWidth=1.5)
        layers.append(rule.encode(y="value:Q", tooltip=[alt.Tooltip("value:Q", title="objective", format="~g")]))
    return alt.layer(*layers).properties(height=220, padding=graphs.PADDING)


def _estimate(of: Mapping[str, float]) -> str:
    return f"{of['value']:.1f}"

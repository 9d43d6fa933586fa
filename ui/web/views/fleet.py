"""Every engine that is seen: what is wrong with which, pools and roles, and who stands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import streamlit as st

from kvitals.diagnoser.text import plain
from kvitals.rules.finding import EngineRow, Finding, Triage
from kvitals.ui.web import data, graphs, header, links, source_registry, tables
from kvitals.ui.web.charts import value_axis
from kvitals.ui.web.page_text import count, inline_code, literal
from kvitals.ui.web.sources.base import PageWindow
from kvitals.ui.web.views import happenings, knee

TOP = 500
DRAWN = 25
SIGNALS = (
    *("ttft_p99_seconds", "itl_p99_seconds", "kv_usage_p90", "waiting_avg", "running_avg", "prefix_hit_ratio"),
    "generation_tokens_per_second",
)
"""Figures of the table, and what engines are compared by."""
LINKED = 12
"""Engines with a link of their own above the table, in its order."""

_ORDERS = ("severity", "name", "pool", "model", "node")
_GROUPS = ("pool", "role", "model", "system", "version", "node")


def show(place: str, look: PageWindow | None) -> None:
    """Engines by what is wrong with them, groups, and one signal over all."""
    triage = data.triage(place, look)
    if not triage.engines:
        header.show_empty(
            "No engine was seen", "Add an engine to the agent, or select a recording.", "kvitals run http://HOST:8000"
        )
        return
    _figures(triage.engines)
    values = _values(triage)
    rows = _selected(triage)
    happenings.heat_map(place, data.window(place, look), rows)
    _engine_links(rows)
    _table(rows)
    _groups(triage.engines)
    _wide([*triage.causes, *triage.symptoms, *triage.telemetry])
    _outliers(values)
    knee.show(place)


def _figures(engines: Sequence[EngineRow]) -> None:
    alarmed, troubled = sum(one.severity == "page" for one in engines), sum(bool(one.findings) for one in engines)
    figures = [
        ("engines", f"{len(engines):,}", ""),
        ("with severity page", f"{alarmed:,}", "with a finding of severity page"),
        ("with any finding", f"{troubled:,}", ""),
    ]
    header.figures(figures, key="fleet-figures")


def _values(triage: Triage) -> dict[str, dict[str, float]]:
    """Signal -> engine -> its value at the end of the window, without signals that no engine has."""
    found: dict[str, dict[str, float]] = {}
    for row in triage.engines:
        for name in SIGNALS:
            measure = row.figures.get(name)  # an agent of another version may report others
            if measure is not None and measure.value is not None:
                found.setdefault(name, {})[row.entity.title] = measure.value
    return {name: found[name] for name in SIGNALS if name in found}


def _selected(triage: Triage) -> list[EngineRow]:
    """The engines that match the search, in the chosen order."""
    rows = list(triage.engines)
    if len(rows) < 2:
        return rows
    with st.container(horizontal=True, vertical_alignment="bottom", key="fleet-search"):
        wanted = st.text_input(
            "Search", max_chars=100, placeholder="name, pool, model, node or cause", key="fleet-word"
        )
        order = st.segmented_control("Sort by", list(_ORDERS), default="severity", required=True, key="fleet-order")
    words = wanted.lower().split()

    def text(row: EngineRow) -> str:
        parts = [row.entity.title, *row.entity.labels.values(), *row.about.values()]
        return " ".join([*parts, row.verdict]).lower()

    rows = [row for row in rows if all(word in text(row) for word in words)]
    rows.sort(key=lambda row: happenings.natural(row.entity.title))
    if order == "severity":
        rows.sort(key=happenings.severity_order)
    elif order in _GROUPS:
        rows.sort(key=lambda row: _label(row, str(order)))
    return rows


def _label(row: EngineRow, name: str) -> str:
    return row.about.get(name) or row.entity.labels.get(name, "")


def _engine_links(rows: Sequence[EngineRow]) -> None:
    """The pages of the first engines: a table has no links."""
    with st.container(horizontal=True, gap="small", key="engine-links"):
        for row in rows[:LINKED]:
            links.link(row.entity.title, "engine", "developer_board", engine=row.entity.title)


def _table(selected: Sequence[EngineRow]) -> None:
    rows: list[dict[str, Any]] = []
    for one in selected[:TOP]:
        row: dict[str, Any] = {
            "engine": one.entity.title,
            "worst": one.severity or "",
            "verdict": one.verdict,
            "findings": len(one.findings),
        }
        known = {signal: one.figures[signal] for signal in SIGNALS if signal in one.figures}
        row |= {plain(signal): measure for signal, measure in known.items() if measure.text}
        rows.append(row | {k: label for k in _GROUPS if (label := _label(one, k))})
    config = {
        "engine": st.column_config.TextColumn(pinned=True),
        "verdict": st.column_config.TextColumn(width=330),
    }
    tables.show(rows, "engines", config, most=460)
    if len(selected) > TOP:
        st.caption(f"the first {TOP} of {len(selected):,}")


def _groups(engines: Sequence[EngineRow]) -> None:
    """How many engines of each pool, role, model and version, and how many of them are in trouble."""
    names = [name for name in _GROUPS if any(_label(one, name) for one in engines)]
    if not names or len(engines) < 2:
        return
    by = st.segmented_control("Grouped by", names, default=names[0], required=True, key="fleet-group") or names[0]
    rows: dict[str, dict[str, Any]] = {}
    for one in engines:
        name = _label(one, by) or "(none)"
        row = rows.setdefault(name, {by: name, "engines": 0, "in trouble": 0})
        row["engines"] += 1
        row["in trouble"] += bool(one.findings)
    ordered = sorted(rows.values(), key=lambda row: (-row["in trouble"], -row["engines"]))
    tables.show(ordered[:TOP], "fleet-groups")


def _wide(fired: Sequence[Finding]) -> None:
    """What is wrong with more than one engine."""
    wide = [f for f in fired if "engine" not in f.entity.labels]
    if wide:
        st.markdown("### Of nodes, pools and the fleet")
        for finding in wide[:50]:
            st.markdown(
                f"{inline_code(finding.code)} **{literal(finding.title)}** on {literal(finding.entity.title)}: "
                f"{literal(finding.conclusion)}"
            )


def _outliers(values: Mapping[str, Mapping[str, float]]) -> None:
    several = {name: of for name, of in values.items() if len(of) > 1}
    if not several:
        return
    st.markdown("### Who stands out")
    name = st.selectbox("Signal", list(several), format_func=plain, key="outliers")
    unit = source_registry.knowledge().signals[name].unit
    ordered = sorted(several[name].items(), key=lambda item: -item[1])
    rows = [{"engine": graphs.brief(engine), "value": value} for engine, value in ordered[:DRAWN]]
    middle = ordered[len(ordered) // 2][1]
    base = alt.Chart(graphs.values(rows))
    bars = base.mark_bar(height=14).encode(
        y=alt.Y("engine:N", sort=None, title=None, axis=graphs.names(200)),
        x=alt.X("value:Q", title=None, axis=value_axis(unit, rows)),
        tooltip=["engine:N", alt.Tooltip("value:Q", format=".4~g")],
    )
    rule = alt.Chart(graphs.values([{"value": middle}])).mark_rule(strokeDash=[4, 4], strokeWidth=2, color="#888888")
    chart = alt.layer(bars, rule.encode(x="value:Q")).properties(
        height=24 * len(rows) + graphs.AXIS, padding=graphs.PADDING
    )
    graphs.draw(chart, key="outlier-bars")
    st.caption(f"the largest {count(len(rows), 'value')} of {len(ordered):,}; dashed: the median of all")

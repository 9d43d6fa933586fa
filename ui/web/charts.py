"""An evidence's lines as a small chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import streamlit as st
from altair.utils import schemapi

from kvitals.app.escaping import plain
from kvitals.rules.finding import Entity, Evidence, EvidenceLine

# Altair holds each part of a chart against the schema as it is made, which took most of the time of a page.
schemapi.disable_debug_mode()

HEIGHT = 104
LEGEND_ROW = 22
PADDING = {"left": 2, "right": 6, "top": 4, "bottom": 0}
MAX_LEGEND = 6
NAME_LENGTH = 32


Spec = dict[str, Any]
"""A chart as Vega-Lite has it."""

ROWS = alt.NamedData(name="rows")
"""What a chart is made over whose rows `spec` puts in."""


def spec(drawn: alt.TopLevelMixin, rows: Sequence[Mapping[str, Any]]) -> Spec:
    """A chart that was made over `ROWS`, over these. Altair itself would hold each row and each mark against the
    schema, which takes longer than all else on a page."""
    found: Spec = drawn.to_dict(validate=False)
    found.pop("config", None)  # Altair's own sizes; colours and fonts are those of the page
    return found | {"data": {"values": list(rows)}}


def show(found: Spec, *, key: str) -> None:
    """Draw it as wide as there is room. No text in it turns the line around or is invisible."""
    st.vega_lite_chart(plain.each_text(found), width="stretch", key=key)


def draw(made: alt.TopLevelMixin, *, key: str) -> None:
    """Draw a chart that has its rows within."""
    found: Spec = made.to_dict(validate=False)
    found.pop("config", None)
    show(found, key=key)


def chart(evidence: Evidence, entity: Entity) -> Spec | None:
    """The lines over time, or None where there are too few points for a line."""
    rows = _rows(evidence, entity)
    if len(rows) < 2:
        return None
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    legend_rows = len(names) if 1 < len(names) <= MAX_LEGEND else 0
    spoken = f"{evidence.title}, over time: {evidence.text}"
    height = HEIGHT + LEGEND_ROW * legend_rows
    base = alt.Chart(ROWS, height=height, padding=PADDING, description=spoken)
    x = alt.X("time:T", title=None, scale=alt.Scale(type="utc"), axis=time_axis())
    y = alt.Y("value:Q", title=None, scale=alt.Scale(zero=True, nice=True), axis=value_axis(evidence.unit, rows))
    tooltip = [
        alt.Tooltip("time:T", title="UTC", format="%Y-%m-%d %H:%M:%S", timeUnit="utcyearmonthdatehoursminutesseconds"),
        alt.Tooltip("value:Q", title="value", format=".4~g"),
    ]
    line = base.mark_line(
        strokeWidth=2,
        interpolate="step-after" if evidence.unit == "bool" else "linear",
        point=alt.OverlayMarkDef(size=12),
    )
    one: alt.Chart = line.encode(x=x, y=y, tooltip=tooltip)
    if len(names) == 1:
        return spec(one, rows)
    legend = alt.Legend(title=None, orient="bottom", symbolType="stroke", labelLimit=260, columns=1, offset=4)
    several: alt.Chart = one.encode(
        color=alt.Color("line:N", sort=names, legend=legend if legend_rows else None),
        strokeDash=alt.StrokeDash("line:N", sort=names, legend=None),
        tooltip=[alt.Tooltip("line:N", title="series"), *tooltip],
    )
    return spec(several, rows)


def values(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    """Rows within the chart itself. `from_dict` would hold each against the schema: a second for some hundreds."""
    return alt.Data(values=list(rows))  # type: ignore[no-untyped-call]


def line_name(line: EvidenceLine, entity: Entity) -> str:
    """What tells a line from its siblings: its labels, less those of the entity that the finding is about."""
    own = {k: v for k, v in line.labels.items() if entity.labels.get(k) != v and k != "__name__"}
    name = " ".join(own.values()) or entity.title
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"


def _rows(evidence: Evidence, entity: Entity) -> list[dict[str, float | str]]:
    """One row a point; milliseconds, as Vega has it. Infinite values are left out."""
    return [
        {"time": 1000 * point.t, "value": point.value, "line": line_name(line, entity)}
        for line in evidence.lines
        for point in line.points
        if math.isfinite(point.value)
    ]


def time_axis() -> alt.Axis:
    """Times of day, as many as fit."""
    return alt.Axis(format="%H:%M:%S", labelOverlap="greedy", tickCount=2, grid=False, labelFlush=True)


def value_axis(unit: str, rows: Sequence[Mapping[str, Any]], **options: Any) -> alt.Axis:
    """Ticks of a value in its unit; `rows` have the largest."""
    top = max((abs(float(row["value"])) for row in rows), default=0.0)
    label = {
        "ratio": "format(datum.value, '.0%')" if top >= 0.05 else "format(datum.value, '.1%')",
        "seconds": "format(datum.value, '~g') + ' s'" if top >= 1 else "format(1000 * datum.value, '~g') + ' ms'",
        "per_second": "format(datum.value, '~s') + '/s'",
        "bytes": "format(datum.value, '~s') + 'B'",
        "bool": "datum.value == 1 ? 'yes' : datum.value == 0 ? 'no' : ''",
    }.get(unit, "abs(datum.value) < 1000 ? format(datum.value, '~g') : format(datum.value, '~s')")
    return alt.Axis(
        labelExpr=label, tickCount=1 if unit == "bool" else 3, labelOverlap="parity", domain=False, **options
    )

"""Charts over time with the same left edge, so that they can be read one under another, and charts of shares."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import altair as alt

from kvitals.ui.web.charts import ROWS, Spec, spec, time_axis, value_axis
from kvitals.ui.web.charts import draw as draw
from kvitals.ui.web.charts import show as show
from kvitals.ui.web.charts import values as values
from kvitals.ui.web.sources.base import ChartLine

LEFT = 58
"""Pixels left of the plot on every chart that has the common time axis."""

WIDE_LEFT = 150
"""The same where each lane is an engine."""

PADDING = {"left": 2, "right": 10, "top": 4, "bottom": 2}
LANE, AXIS, LEGEND, TITLE = 26, 36, 40, 22
"""Heights: of a row, and of what stands around the plot, since a chart's height is that of all of it."""
MAX_SHOWN = 8
"""Lines of one chart; more can not be told apart."""

NEAR = 4.0
"""An objective is drawn where the largest value is at least this fraction of it: more would press the line flat."""

NAME, SHORT = 34, 14
SECOND: Any = "utcyearmonthdatehoursminutesseconds"
CODE = "test(/^[A-Z]{3}[0-9]{2} /, datum.label) ? slice(datum.label, 0, 5) : datum.label"
"""The name of a lane in the margin: of a finding's lane, which is of a code and an entity, the code."""

WORDS = "width * datum.room < 60 ? '' : truncate(datum.label, max(6, floor(width * datum.room / 6.6)))"
"""As much of a label as there is room for on this screen."""

# Readable with any colour vision, on white and on black; what they mean is written beside.
COLORS = {
    "healthy": "#1b9e77",
    "unhealthy": "#d0553f",
    "unknown": "#c99700",
    "page": "#d0553f",
    "ticket": "#e08e00",
    "info": "#4a94c9",
    "stage": "#9a6bb5",
    "event": "#7f7f7f",
    "chosen": "#4a94c9",
}
SERIES = ("#2f7ed8", "#d0553f", "#1b9e77", "#9a6bb5", "#a87f00", "#d45c9c", "#17889b", "#7f7f7f")
"""Colours of series: distinct with any colour vision, at least 3:1 on white and on the dark background."""

PHASES = {
    "gateway": "#4a78b5",
    "queue": "#e0a100",
    "kv_wait": "#b5559a",
    "prefill": "#2a9fc4",
    "transfer": "#8a63b8",
    "decode": "#2f9e6e",
    "unattributed": "#9a9a9a",
}
PURPOSES = {"pinned": "#2f9e6e", "hot": "#2a9fc4", "cold": "#9a9a9a", "offloaded": "#8a63b8"}


def milliseconds(t: float) -> float:
    """As Vega has times."""
    return float(round(1000.0 * t))


def series_name(labels: Mapping[str, str], common: Mapping[str, str] | None = None) -> str:
    """What tells a series from its siblings, briefly."""
    shared = common or {}
    own = [v for k, v in labels.items() if k != "__name__" and shared.get(k) != v]
    return brief(" ".join(own) or next((v for v in labels.values() if v), "value"))


def brief(text: str, most: int = NAME) -> str:
    """The beginning of a long name."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def series_colors(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name, the same on every chart: it follows from the name. Where two of one chart want the same,
    the later one in the alphabet takes the next free colour."""
    colors: dict[str, str] = {}
    for name in sorted(names):
        at = zlib.crc32(name.encode()) % len(SERIES)
        wanted = [SERIES[(at + i) % len(SERIES)] for i in range(len(SERIES))]
        colors[name] = next((one for one in wanted if one not in colors.values()), wanted[0])
    return colors


def heat(rows: Sequence[Mapping[str, Any]], order: Sequence[str], start: float, end: float) -> Spec:
    """A lane for each engine, with bars for its findings and diamonds for its events. Later rows are on top."""
    return lanes(rows, order, start, end, left=WIDE_LEFT, worded=False)


def lanes(
    rows: Sequence[Mapping[str, Any]],
    order: Sequence[str],
    start: float,
    end: float,
    *,
    left: int = LEFT,
    worded: bool = True,
) -> Spec:
    """Bars and marks over time, a lane each. A row: lane, start, end, color, label, text. `left`: pixels for the names
    of the lanes; `worded`: whether bars show
    their labels; without, those of a lane cover each other."""
    told = []
    for row in rows:
        alone = not any(one["lane"] == row["lane"] and one is not row for one in rows)
        late = alone and row["start"] > start + 0.55 * (end - start)
        room = _room(row, rows, start, end, late) if worded else 0.0
        told.append(
            {
                **row,
                "start": milliseconds(max(row["start"], start)),
                "end": milliseconds(min(row["end"], end)),
                "late": late,
                "room": room,
            }
        )
    base = alt.Chart(ROWS).encode(
        y=alt.Y(
            "lane:N",
            sort=list(order),
            title=None,
            scale=alt.Scale(domain=list(order)),
            axis=alt.Axis(
                minExtent=left,
                maxExtent=left,
                domain=False,
                ticks=False,
                labelLimit=left,
                labelExpr="datum.label" if left != LEFT else CODE,
                grid=True,
                labelOverlap=False,
            ),
        )
    )
    x = alt.X("start:T", title=None, scale=_scale(start, end), axis=time_axis())
    color = alt.Color("color:N", legend=None, scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())))
    tooltip = [
        alt.Tooltip("label:N", title="what"),
        alt.Tooltip("text:N", title="said"),
        alt.Tooltip("where:N", title="on"),
        alt.Tooltip("from:N", title="when"),
    ]
    wide = alt.datum.end > alt.datum.start
    has_bars = any(row["end"] > row["start"] for row in told)
    has_points = any(row["end"] <= row["start"] for row in told)  # a layer without marks has no text to be read out
    bars = (
        base.transform_filter(wide)
        .mark_bar(height=LANE - 8, opacity=0.55 if worded else 1.0, cornerRadius=3, aria=has_bars)
        .encode(x=x, x2="end:T", color=color, tooltip=tooltip)
    )
    points = (
        base.transform_filter(~wide)
        .mark_point(shape="diamond", size=90, filled=True, opacity=0.9, aria=has_points)
        .encode(x=x, color=color, tooltip=tooltip)
    )
    # The bar has the same words to be read out.
    text: dict[str, Any] = {"fontSize": 12, "baseline": "middle", "clip": True, "aria": False}
    labelled = base.transform_calculate(words=WORDS).encode(x=x, text="words:N")
    early_words = labelled.transform_filter("!datum.late").mark_text(align="left", dx=7, **text)
    late_words = labelled.transform_filter("datum.late").mark_text(align="right", dx=-7, **text)
    words = [early_words, late_words] if worded else []
    drawn = alt.layer(bars, points, *words).properties(height=LANE * max(1, len(order)) + AXIS, padding=PADDING)
    return spec(drawn, told)


def _room(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], start: float, end: float, late: bool) -> float:
    """The share of the axis that a bar's words may take: to the next bar of its lane, or to the edge."""
    begun = max(row["start"], start)
    if late:
        return float((begun - start) / (end - start))
    later = [one["start"] for one in rows if one["lane"] == row["lane"] and one["start"] > begun]
    return float((min(later, default=end) - begun) / (end - start))


@dataclass(frozen=True)
class Mark:
    """A moment that is marked on every chart. `color`: a name of `COLORS`."""

    t: float
    label: str
    color: str


def lines(
    found: Sequence[ChartLine],
    unit: str,
    start: float,
    end: float,
    *,
    height: int = 92,
    marks: Sequence[Mark] = (),
    objective: float | None = None,
) -> Spec | None:
    """Series over the common time axis, the largest few where they are many; None where there is nothing to draw.
    `objective`: drawn as a dashed line, unless the values stay so far below it that they would become a flat line."""
    largest = sorted(found, key=lambda line: -max(abs(v) for _, v in line.points))[:MAX_SHOWN]
    shared = _shared(found)
    rows = [
        {"time": milliseconds(t), "value": v, "line": series_name(line.labels, shared)}
        for line in largest
        for t, v in line.points
    ]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    columns = 3 if max(len(name) for name in names) <= SHORT else 1
    below = LEGEND + 22 * -(-len(names) // columns) if len(names) > 1 else 0
    chart: alt.Chart = (
        alt.Chart(ROWS, height=height + below, padding=PADDING)
        .mark_line(strokeWidth=2, interpolate="step-after" if unit == "bool" else "linear")
        .encode(
            x=alt.X("time:T", title=None, scale=_scale(start, end), axis=time_axis()),
            y=alt.Y(
                "value:Q",
                title=None,
                scale=alt.Scale(zero=True, nice=True),
                axis=value_axis(unit, rows, minExtent=LEFT, maxExtent=LEFT),
            ),
            tooltip=[
                alt.Tooltip("line:N", title="series"),
                alt.Tooltip("time:T", title="UTC", format="%H:%M:%S", timeUnit=SECOND),
                alt.Tooltip("value:Q", format=".4~g"),
            ],
            # Of a line the browser reads out one text, and would make one of each point.
            description=alt.Description("line:N"),
        )
    )
    if len(names) > 1:
        legend = alt.Legend(title=None, orient="bottom", symbolType="stroke", labelLimit=260, columns=columns, offset=4)
        colors = series_colors(names)
        scale = alt.Scale(domain=list(colors), range=list(colors.values()))
        chart = chart.encode(color=alt.Color("line:N", scale=scale, legend=legend))
    top = max(abs(value) for line in largest for _, value in line.points)
    return _with_rules(spec(chart, rows), marks, objective if objective and top * NEAR >= objective else None)


def _with_rules(drawn: Spec, marks: Sequence[Mark], objective: float | None) -> Spec:
    """A chart with a vertical line for each mark and a horizontal one for the objective, as layers on it."""
    if not marks and objective is None:
        return drawn
    outer: Spec = {name: drawn.pop(name) for name in ("height", "padding", "$schema") if name in drawn}
    layers = [drawn]
    if marks:
        moments = [{"t": milliseconds(m.t), "label": m.label, "stroke": COLORS[m.color]} for m in marks]
        encoding: Spec = {
            "x": {"field": "t", "type": "temporal", "title": None, "scale": {"type": "utc"}},
            "color": {"field": "stroke", "type": "nominal", "scale": None, "legend": None},
            "tooltip": [{"field": "label", "type": "nominal", "title": "at this moment"}],
        }
        layers.append(_rules(moments, encoding, strokeDash=[2, 3]))
    if objective is not None:
        encoding = {
            "y": {"field": "value", "type": "quantitative", "title": None},
            "tooltip": [{"field": "value", "type": "quantitative", "title": "objective"}],
        }
        layers.append(_rules([{"value": objective}], encoding, strokeDash=[6, 4], color=COLORS["unhealthy"]))
    return {**outer, "layer": layers, "resolve": {"scale": {"color": "independent"}}}


def shares(rows: Sequence[Mapping[str, Any]], colors: Mapping[str, str], unit: str, *, height: int = 30) -> Any:
    """Parts of a whole, side by side: rows with `part` and `amount`, in order."""
    told = [{**row, "at": i} for i, row in enumerate(rows)]
    return (
        alt.Chart(values(told), height=height + AXIS + LEGEND, padding=PADDING)
        .mark_bar(height=24)
        .encode(
            x=alt.X("amount:Q", title=None, stack="zero", axis=value_axis(unit, [{"value": 1e6}])),
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=list(colors), range=list(colors.values())),
                legend=alt.Legend(title=None, orient="bottom", direction="horizontal", columns=4),
            ),
            order=alt.Order("at:Q"),
            tooltip=[alt.Tooltip("part:N"), alt.Tooltip("amount:Q", format=".4~s")],
        )
    )


def _rules(rows: Sequence[Mapping[str, Any]], encoding: Spec, **mark: Any) -> Spec:
    """A layer of straight lines."""
    return {"data": {"values": list(rows)}, "mark": {"type": "rule", "strokeWidth": 2, **mark}, "encoding": encoding}


def names(limit: int) -> alt.Axis:
    """An axis of names, all of which are shown."""
    return alt.Axis(labelLimit=limit, domain=False, ticks=False, labelOverlap=False)


def _shared(found: Sequence[ChartLine]) -> dict[str, str]:
    """Labels that all lines have alike."""
    if not found:
        return {}
    first = dict(found[0].labels)
    return {k: v for k, v in first.items() if all(line.labels.get(k) == v for line in found)}


def _scale(start: float, end: float) -> alt.Scale:
    return alt.Scale(type="utc", domain=[_date(start), _date(end)])


def _date(t: float) -> alt.DateTime:
    """A moment as a domain has it; a number there would be taken for a year."""
    at = datetime.fromtimestamp(t, UTC)
    return alt.DateTime(
        year=at.year,
        month=at.month,
        date=at.day,
        hours=at.hour,
        minutes=at.minute,
        seconds=at.second,
        milliseconds=at.microsecond // 1000,
        utc=True,
    )

"""Panels as questions: each knows its queries, its unit, its caveats and the rule that gives it colours.

What a panel says of itself is put together from the knowledge, never written beside it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grafanalib.core import RowPanel, StateTimeline, TimeSeries

from dashboards.grafana import DATASOURCE, Target, grid
from dashboards.queries import FAST, Judged, Queries, Query
from rules.model import SCOPES, Severity

Style = Literal["data", "faint", "objective"]

GRID_WIDTH = 24
NEUTRAL = "blue"  # whatever no rule judges
SEVERITY_COLOR: dict[Severity, str] = {"page": "red", "ticket": "orange", "info": "yellow"}
UNITS = {
    "seconds": "s",
    "ratio": "percentunit",
    "bytes": "bytes",
    "bool": "bool_yes_no",
    "per_second": "suffix:/s",
    "tokens": "short",
    "requests": "short",
    "blocks": "short",
    "count": "short",
}
JUST_ABOVE_ZERO = 1e-9  # Grafana colours from a value on, a rule's `> 0` leaves zero out
NO_DATA = "no data"
TOO_LITTLE = "too little traffic"
_ABSENCE = [
    {"type": "special", "options": {"match": "nan", "result": {"index": 0, "text": TOO_LITTLE}}},
    {"type": "special", "options": {"match": "null", "result": {"index": 1, "text": NO_DATA}}},
]
_LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")


class PanelError(Exception):
    """A panel that would not say what it shows."""


@dataclass(frozen=True)
class Line:
    """A query in a panel. An objective is drawn dashed in the colour of the rule that judges by it."""

    query: Query
    legend: str
    style: Style = "data"


@dataclass(frozen=True)
class Question:
    """A panel over time. `judged` colours it; `by` names rules that judge by an objective that is drawn."""

    title: str
    lines: tuple[Line, ...]
    unit: str = ""  # of Grafana; empty: from the first query
    judged: Judged | None = None
    by: tuple[str, ...] = ()
    note: str = ""
    width: int = 8
    height: int = 8
    stacked: bool = False
    highest: float | None = None  # top of the axis, where there is a natural one

    def panel(self, queries: Queries, id_: int, x: int, y: int) -> Any:
        return TimeSeries(
            **_common(self, queries, id_, x, y),
            unit=_unit(self),
            colorMode="palette-classic-by-name",
            fillOpacity=25 if self.stacked else 8,
            stacking={"group": "A", "mode": "normal" if self.stacked else "none"},
            legendDisplayMode="table",
            legendCalcs=["last", "max"],
            tooltipMode="multi",
            tooltipSort="desc",
            showPoints="never",
            thresholdsStyleMode="dashed" if self.judged else "off",
            axisSoftMin=0,
            mappings=_ABSENCE,
            overrides=[o for i, line in enumerate(self.lines) for o in _style(self, queries, i, line)],
            extraJson={"fieldConfig": {"defaults": _defaults(self)}},
        )


@dataclass(frozen=True)
class States:
    """A panel of states over time: numbers that mean something by their value, in words."""

    title: str
    lines: tuple[Line, ...]
    words: tuple[tuple[float, str], ...]  # value -> what it says
    judged: Judged | None = None
    severities: tuple[Severity, ...] = ()  # by line: colours from 1 up
    by: tuple[str, ...] = ()
    note: str = ""
    width: int = 8
    height: int = 8
    unit: str = "short"
    highest: float | None = None

    def panel(self, queries: Queries, id_: int, x: int, y: int) -> Any:
        words = {f"{value:g}": {"index": i, "text": text} for i, (value, text) in enumerate(self.words)}
        colors = [_colored(i, severity) for i, severity in enumerate(self.severities)]
        return StateTimeline(
            **_common(self, queries, id_, x, y),
            colorMode="thresholds",
            legendDisplayMode="hidden",
            showValue="auto",
            mappings=[{"type": "value", "options": words}, *_ABSENCE],
            overrides=colors,
            extraJson={"fieldConfig": {"defaults": {**_defaults(self), "unit": self.unit}}},
        )


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Question | States, ...]


def lay_out(rows: Sequence[Row], queries: Queries) -> list[Any]:
    """Rows from top to bottom, panels from left to right and on to the next line where they do not fit."""
    placed: list[Any] = []
    y = 0
    for row in rows:
        placed.append(RowPanel(title=row.title, id=len(placed) + 1, gridPos=grid(0, y, GRID_WIDTH, 1)))
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                y, x, tallest = y + tallest, 0, 0
            placed.append(panel.panel(queries, len(placed) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def steps(judged: Judged | None) -> list[dict[str, Any]]:
    """Threshold colours: neutral, and from the rule's limit on the colour of its severity."""
    if judged is None:
        return [{"color": NEUTRAL, "value": None}]
    bad = SEVERITY_COLOR[judged.severity]
    if judged.op in (">", ">="):
        bad_from = judged.limit or JUST_ABOVE_ZERO
        return [{"color": NEUTRAL, "value": None}, {"color": bad, "value": bad_from}]
    good_from = judged.limit + 1 if judged.op == "==" else judged.limit
    return [{"color": bad, "value": None}, {"color": NEUTRAL, "value": good_from}]


def describe(panel: Question | States, queries: Queries) -> str:
    """What the panel shows, when not to believe it, what it reads and who judges it."""
    said = [panel.note] if panel.note else []
    for line in panel.lines:
        said += _meanings(line.query, queries)
    if any(line.query.rule for line in panel.lines):
        said.append("Each row is the condition of one rule; `kvitals rules show CODE` prints its page.")
    parts = [*said, *_judges(panel, queries), *_sources(panel, queries)]
    return "\n\n".join(" ".join(text.split()) for text in dict.fromkeys(parts))


def _meanings(query: Query, queries: Queries) -> list[str]:
    """What a line shows: the signal, with the traffic that it needs, or else the families."""
    if query.rule:
        return []
    if not query.signals:
        return [queries.knowledge.families[f].meaning for f in query.families]
    found = []
    for signal in (queries.knowledge.signals[name] for name in query.signals):
        few = f" Fewer than {signal.samples.min:g} {signal.samples.of}: {TOO_LITTLE}." if signal.samples else ""
        found.append(f"{signal.meaning.strip()}{few}")
    return found


def _sources(panel: Question | States, queries: Queries) -> list[str]:
    """The families that are read, each with its caveat; a rule's page has those of the rule."""
    families = dict.fromkeys(f for line in panel.lines if not line.query.rule for f in line.query.families)
    caveats = [(f, queries.knowledge.families[f].caveat) for f in families]
    found = [f"Caveat of `{f}`: {caveat}" for f, caveat in caveats if caveat]
    plain = ", ".join(f"`{f}`" for f, caveat in caveats if not caveat)
    return [*found, f"Reads {plain}." if not found else f"Reads also {plain}."] if plain else found


def _judges(panel: Question | States, queries: Queries) -> list[str]:
    found = [f"Judged by {code}: {queries.rule(code).title}." for code in panel.by]
    if panel.judged is not None:
        j = panel.judged
        why = f" ({j.why})" if j.why else ""
        found.append(f"Coloured where {j.code} ({j.title}) looks: {j.op} {j.limit:g}{why}.")
    return found


def _common(panel: Question | States, queries: Queries, id_: int, x: int, y: int) -> dict[str, Any]:
    if not panel.title.endswith("?"):
        raise PanelError(f"a panel's title is a question: {panel.title!r}")
    targets = [_target(panel, queries, i, line) for i, line in enumerate(panel.lines)]
    return {
        "id": id_,
        "title": panel.title,
        "description": describe(panel, queries),
        "dataSource": DATASOURCE,
        "targets": targets,
        "gridPos": grid(x, y, panel.width, panel.height),
        "maxDataPoints": None,
        "thresholds": steps(panel.judged),
    }


def _target(panel: Question | States, queries: Queries, i: int, line: Line) -> Target:
    families = queries.knowledge.families
    known = {*SCOPES["engine"], *(label for f in line.query.families for label in families[f].labels)}
    unknown = set(_LEGEND_LABEL.findall(line.legend)) - known
    if unknown:
        raise PanelError(f"{panel.title!r}: the legend names {sorted(unknown)}, the query has {sorted(known)}")
    return Target(string.ascii_uppercase[i], line.query.expr, line.legend, FAST)


def _unit(panel: Question) -> str:
    unit = panel.unit or UNITS.get(panel.lines[0].query.unit, "")
    if not unit:
        raise PanelError(f"{panel.title!r} has no unit")
    return unit


def _defaults(panel: Question | States) -> dict[str, Any]:
    top = {} if panel.highest is None else {"max": panel.highest}
    return {"noValue": NO_DATA, "min": 0, **top} if isinstance(panel, Question) else {"noValue": NO_DATA}


def _style(panel: Question, queries: Queries, i: int, line: Line) -> list[dict[str, Any]]:
    if line.style == "data":
        return []
    properties: list[dict[str, Any]] = [{"id": "custom.fillOpacity", "value": 0}]
    if line.style == "faint":
        properties.append({"id": "custom.lineStyle", "value": {"dash": [2, 6], "fill": "dot"}})
    if line.style == "objective":
        if not panel.by:
            raise PanelError(f"{panel.title!r} draws an objective by which no rule judges")
        color = SEVERITY_COLOR[queries.rule(panel.by[0]).severity]
        properties += [
            {"id": "custom.lineStyle", "value": {"dash": [10, 8], "fill": "dash"}},
            {"id": "color", "value": {"fixedColor": color, "mode": "fixed"}},
        ]
    return [{"matcher": {"id": "byFrameRefID", "options": string.ascii_uppercase[i]}, "properties": properties}]


def _colored(i: int, severity: Severity) -> dict[str, Any]:
    value = {
        "mode": "absolute",
        "steps": [{"color": NEUTRAL, "value": None}, {"color": SEVERITY_COLOR[severity], "value": 1}],
    }
    matcher = {"id": "byFrameRefID", "options": string.ascii_uppercase[i]}
    return {"matcher": matcher, "properties": [{"id": "thresholds", "value": value}]}

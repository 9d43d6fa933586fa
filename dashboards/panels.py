"""Panels: each knows its metric, its question, its asks, its unit, its caveats and the rule that gives it colours.

A panel is data; what it says of itself is put together from the knowledge, never written beside it. `make` turns it
into what Grafana draws.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Any, Literal

from grafanalib.core import StateTimeline, TimeSeries

from kvitals.dashboards.grafana import DATASOURCE, GrafanaTarget, drill, grid, plain, runbook
from kvitals.dashboards.queries import WINDOW, Ask, BoardQuery, Judge, JudgedBy, Queries
from kvitals.rules.model import SCOPES, Severity

Style = Literal["data", "faint", "objective"]

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
NO_DATA = "no data: not reported"
NOT_RECORDED = f"{NO_DATA}, too little traffic, or recording rules not loaded"
"""Of a panel that reads recorded signals."""
TOO_LITTLE = "too little traffic"
TITLE_PER_COLUMN = 5.75
"""Characters of a title that a laptop's width has room for."""
CELL_PIXELS = 70  # so that ten columns fit
MAX_QUERIES = len(string.ascii_uppercase)
_ABSENCE = [
    {"type": "special", "options": {"match": "nan", "result": {"index": 0, "text": TOO_LITTLE}}},
    {"type": "special", "options": {"match": "null", "result": {"index": 1, "text": "no data"}}},
]
_LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")
_TOOLTIP = {"mode": "multi", "sort": "desc", "hideZeros": False}
_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}


class PanelError(Exception):
    """A panel that would not say what it shows."""


@dataclass(frozen=True)
class PanelLine:
    """An ask in a panel. An objective is drawn dashed in the colour of the rule that judges by it."""

    ask: Ask
    legend: str
    style: Style = "data"


@dataclass(frozen=True, kw_only=True)
class BoardPanel:
    """What all kinds share. `judged` colours it; `by` names rules that judge by more than one number can show."""

    title: str  # the metric's name in the field's words, which one searches for
    question: str  # what the panel answers; its description begins with it
    lines: tuple[PanelLine, ...]
    unit: str = ""  # of Grafana; empty: from the first line
    judged: Judge | None = None
    by: tuple[str, ...] = ()
    note: str = ""
    width: int = 8
    height: int = 8
    drill: str = ""  # uid of the board that tells more of an engine
    least_step: str = ""  # of its queries over time, where it is not the rules' window


@dataclass(frozen=True, kw_only=True)
class LinePanel(BoardPanel):
    """Lines over time."""

    stacked: bool = False
    highest: float | None = None  # top of the axis, where there is a natural one
    below_zero: bool = False
    exemplars: bool = False  # points that lead to a request's trace, where the source has them


@dataclass(frozen=True, kw_only=True)
class States(BoardPanel):
    """States over time: numbers that mean something by their value, in words."""

    words: tuple[tuple[float, str], ...]  # value -> what it says
    severities: tuple[Severity, ...] = ()  # by line: colours from 1 up


@dataclass(frozen=True, kw_only=True)
class Now(BoardPanel):
    """A number of this moment, large."""


@dataclass(frozen=True, kw_only=True)
class Tile(Now):
    """One number of this moment over everything that is chosen, on a coloured background."""


@dataclass(frozen=True, kw_only=True)
class Bars(BoardPanel):
    """Numbers of this moment side by side."""


@dataclass(frozen=True, kw_only=True)
class Heat(BoardPanel):
    """A histogram's buckets over time; the line's query has the label `le`."""


@dataclass(frozen=True, kw_only=True)
class TablePanel(BoardPanel):
    """Numbers of this moment, a row for each entity and a column for each line, named by its legend."""

    units: tuple[str, ...] = ()  # by line, of Grafana; empty: from the ask
    judges: tuple[Judge | None, ...] = ()  # by line
    hidden: tuple[str, ...] = ()  # labels and values that tell nothing
    matrix: tuple[str, str] = ("", "")  # labels of rows and columns: one number for each pair
    worst_first: bool = False  # rows with the largest values of the first line come first
    words: tuple[tuple[float, str], ...] = ()  # values of the first line that stand for something


_OF_THIS_MOMENT = (Now, Bars, TablePanel)
"""Kinds of panels that ask once and not over the range that is shown."""


@dataclass(frozen=True)
class Built:
    """A panel's answered asks."""

    panel: BoardPanel
    lines: tuple[tuple[int, PanelLine, BoardQuery], ...]
    judged: JudgedBy | None

    @property
    def unit(self) -> str:
        unit = self.panel.unit or UNITS.get(self.lines[0][2].unit, "")
        if not unit:
            raise PanelError(f"{self.panel.title!r} has no unit")
        return unit

    @property
    def absent(self) -> str:
        """What stands in the panel where nothing answers."""
        return NOT_RECORDED if any(query.signals or query.rule for _, _, query in self.lines) else NO_DATA


def answer(panel: BoardPanel, queries: Queries) -> Built:
    """Build a panel's queries. Raises PanelError and UnknownSeriesError."""
    if panel.title.endswith("?") or not panel.question.endswith("?"):
        raise PanelError(f"a panel's title names a metric and its question ends with ?: {panel.title!r}")
    if len(panel.title) > TITLE_PER_COLUMN * panel.width:
        raise PanelError(f"{panel.title!r} is too long for a panel of {panel.width} columns")
    if len(panel.lines) > MAX_QUERIES:
        raise PanelError(f"{panel.title!r} has more than {MAX_QUERIES} queries")
    now = isinstance(panel, _OF_THIS_MOMENT)
    lines = tuple((i, line, queries.ask(line.ask, now=now)) for i, line in enumerate(panel.lines))
    judged = queries.judged(panel.judged) if panel.judged is not None else None
    built = Built(panel, lines, judged)
    _check_legends(built, queries)
    return built


def make(built: Built, queries: Queries, id_: int, x: int, y: int, runbooks: str) -> dict[str, Any]:
    """The panel as Grafana has it, at a place of the grid."""
    panel = built.panel
    common = {
        "id": id_,
        "title": panel.title,
        "description": describe(built, queries),
        "datasource": DATASOURCE,
        "gridPos": plain(grid(x, y, panel.width, panel.height)),
        "links": [runbook(runbooks, code) for code in _codes(built)],
        "targets": [plain(_target(built, queries, line, query, i)) for i, line, query in built.lines],
    }
    made = _KINDS[type(panel)](built, queries)
    return {**made, **common}


def steps(judged: JudgedBy | None) -> list[dict[str, Any]]:
    """Threshold colours: neutral, and from the rule's limit on the colour of its severity."""
    if judged is None:
        return [{"color": NEUTRAL, "value": None}]
    bad = SEVERITY_COLOR[judged.severity]
    if judged.op in (">", ">="):
        bad_from = judged.limit or JUST_ABOVE_ZERO
        return [{"color": NEUTRAL, "value": None}, {"color": bad, "value": bad_from}]
    good_from = judged.limit + 1 if judged.op == "==" else judged.limit
    return [{"color": bad, "value": None}, {"color": NEUTRAL, "value": good_from}]


def describe(built: Built, queries: Queries) -> str:
    """What the panel shows, when not to believe it, what it reads and who judges it."""
    panel = built.panel
    said = [panel.question, *([panel.note] if panel.note else [])]
    for _, _, query in built.lines:
        said += _meanings(query, queries)
    if any(query.rule for _, _, query in built.lines):
        said.append("Each row is the condition of one rule; `kvitals explain CODE` prints its page.")
    said += _agent_needed(built)
    parts = [*said, *_judges(built, queries), *_sources(built, queries)]
    return "\n\n".join(" ".join(text.split()) for text in dict.fromkeys(parts))


def _meanings(query: BoardQuery, queries: Queries) -> list[str]:
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


def _agent_needed(built: Built) -> list[str]:
    """What stays empty where no agent is scraped."""
    empty = [line.legend for _, line, query in built.lines if query.needs_agent]
    if len(empty) == len(built.lines):
        return ["Needs an agent: engines' own pages do not report it."]
    return [f"Only agents report: {', '.join(empty)}."] if empty else []


def _sources(built: Built, queries: Queries) -> list[str]:
    """The families that are read, each with its caveat; a rule's page has those of the rule."""
    asked = [query for _, _, query in built.lines if not query.rule]
    families = dict.fromkeys(f for query in asked for f in query.families)
    caveats = [(f, queries.knowledge.families[f].caveat) for f in families]
    found = [f"Caveat of `{f}`: {caveat}" for f, caveat in caveats if caveat]
    rest = ", ".join(f"`{f}`" for f, caveat in caveats if not caveat)
    return [*found, f"Reads {rest}." if not found else f"Reads also {rest}."] if rest else found


def _judges(built: Built, queries: Queries) -> list[str]:
    found = [f"Judged by {code}: {queries.rule(code).title}." for code in built.panel.by]
    judges = [built.judged] if built.judged is not None else []
    if isinstance(built.panel, TablePanel):
        judges += [queries.judged(by) for by in built.panel.judges if by]
    for j in judges:
        why = f" ({j.why})" if j.why else ""
        found.append(f"Coloured where {j.code} ({j.title}) looks: {j.op} {j.limit:g}{why}.")
    return found


def _codes(built: Built) -> list[str]:
    judged = [by.code for by in getattr(built.panel, "judges", ()) if by is not None]
    own = [built.judged.code] if built.judged is not None else []
    return list(dict.fromkeys([*built.panel.by, *own, *judged]))


def _check_legends(built: Built, queries: Queries) -> None:
    families = queries.knowledge.families
    for _, line, query in built.lines:
        known = {*SCOPES[query.scope], *(label for f in query.families for label in families[f].labels), "le"}
        unknown = set(_LEGEND_LABEL.findall(line.legend)) - known
        if unknown:
            said = f"the legend names {sorted(unknown)}, the query has {sorted(known)}"
            raise PanelError(f"{built.panel.title!r}: {said}")


def _target(built: Built, queries: Queries, line: PanelLine, query: BoardQuery, i: int) -> GrafanaTarget:
    """A query of the panel. A number of this moment is of the rules' window, however long a time the board shows."""
    panel = built.panel
    instant = isinstance(panel, _OF_THIS_MOMENT)
    return GrafanaTarget(
        string.ascii_uppercase[i],
        query.expr.replace(WINDOW, queries.window) if instant else query.expr,
        line.legend,
        panel.least_step or queries.window,
        instant=instant,
        format={TablePanel: "table", Heat: "heatmap"}.get(type(panel), "time_series"),
        exemplar=isinstance(panel, LinePanel) and panel.exemplars,
    )


def _defaults(built: Built, **more: Any) -> dict[str, Any]:
    """What holds for all fields of a panel."""
    links = [_drill(built, "__field.labels")] if built.panel.drill else []
    return {
        "unit": built.unit,
        "noValue": built.absent,
        "mappings": _ABSENCE,
        "thresholds": {"mode": "absolute", "steps": steps(built.judged)},
        "color": {"mode": "thresholds"},
        "links": links,
        **more,
    }


def _drill(built: Built, labels: str) -> dict[str, Any]:
    """The link of a value to another board. `labels`: how Grafana names the labels of the value."""
    return drill(built.panel.drill, f"${{{labels}.engine}}")


def _question(built: Built, queries: Queries) -> dict[str, Any]:
    panel = built.panel
    assert isinstance(panel, LinePanel)
    made = plain(
        TimeSeries(
            title=panel.title,
            fillOpacity=25 if panel.stacked else 8,
            stacking={"group": "A", "mode": "normal" if panel.stacked else "none"},
            showPoints="never",
            thresholdsStyleMode="dashed" if built.judged else "off",
            axisSoftMin=None if panel.below_zero else 0,
        )
    )
    custom = made["fieldConfig"]["defaults"]["custom"]
    if built.judged is not None and built.judged.limit > 0:
        custom["axisSoftMax"] = built.judged.limit * 1.2  # so that the limit is seen where all is far below it
    limits: dict[str, float] = {"min": 0} if not panel.below_zero else {}
    limits |= {} if panel.highest is None else {"max": panel.highest}
    color = {"color": {"mode": "palette-classic-by-name"}}
    return {
        "type": "timeseries",
        "fieldConfig": {
            "defaults": {**_defaults(built, **limits, **color), "custom": custom},
            "overrides": [o for i, line, _ in built.lines for o in _style(panel, queries, i, line)],
        },
        "options": {"legend": _legend("last", "max"), "tooltip": _TOOLTIP},
    }


def _states(built: Built, queries: Queries) -> dict[str, Any]:
    panel = built.panel
    assert isinstance(panel, States)
    made = plain(StateTimeline(title=panel.title, fillOpacity=70, lineWidth=0))
    mappings = [_in_words(panel.words), *_ABSENCE] if panel.words else _ABSENCE
    colors = zip(range(len(panel.lines)), panel.severities, strict=False)
    return {
        "type": "state-timeline",
        "fieldConfig": {
            "defaults": {**_defaults(built, mappings=mappings), "custom": made["fieldConfig"]["defaults"]["custom"]},
            "overrides": [_colored(i, severity) for i, severity in colors],
        },
        "options": {
            "alignValue": "left",
            "legend": {**_legend(), "showLegend": False},
            "mergeValues": True,
            "rowHeight": 0.9,
            "showValue": "auto",
            "tooltip": _TOOLTIP,
        },
    }


def _in_words(words: tuple[tuple[float, str], ...]) -> dict[str, Any]:
    options = {f"{value:.12g}": {"index": i, "text": text} for i, (value, text) in enumerate(words)}
    return {"type": "value", "options": options}


def _now(built: Built, queries: Queries) -> dict[str, Any]:
    options = {
        "colorMode": "background" if isinstance(built.panel, Tile) else "value" if built.judged is not None else "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": _REDUCED,
        "showPercentChange": False,
        "textMode": "auto" if len(built.lines) == 1 and "{{" not in built.lines[0][1].legend else "value_and_name",
        "wideLayout": True,
    }
    return {"type": "stat", "fieldConfig": {"defaults": _defaults(built), "overrides": []}, "options": options}


def _bars(built: Built, queries: Queries) -> dict[str, Any]:
    highest = {"max": 1} if built.unit == "percentunit" else {}
    options = {
        "displayMode": "basic",
        "legend": {**_legend(), "showLegend": False},
        "maxVizHeight": 24,
        "minVizHeight": 12,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": _REDUCED,
        "showUnfilled": True,
        "sizing": "manual",
        "valueMode": "text",
    }
    defaults = _defaults(built, min=0, **highest)
    return {"type": "bargauge", "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}


def _heat(built: Built, queries: Queries) -> dict[str, Any]:
    if not all(re.search(r"\ble\b", query.expr) for _, _, query in built.lines):
        raise PanelError(f"{built.panel.title!r} has no buckets")
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": NEUTRAL,
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Blues",
            "steps": 32,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": JUST_ABOVE_ZERO},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": built.unit},
    }
    defaults = {"noValue": built.absent, "mappings": _ABSENCE, "unit": "suffix:/s", "custom": {}}
    return {"type": "heatmap", "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}


def _table(built: Built, queries: Queries) -> dict[str, Any]:
    panel = built.panel
    assert isinstance(panel, TablePanel)
    cells = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "minWidth": CELL_PIXELS}
    defaults = {**_defaults(built, links=[]), "custom": cells}
    rows, columns = panel.matrix
    order = {"sortBy": [{"displayName": panel.lines[0].legend, "desc": True}]} if panel.worst_first else {}
    if rows:
        defaults["color"] = {"mode": "continuous-blues"}  # how much, not how bad
        defaults["custom"] = {**cells, "cellOptions": {"type": "color-background", "mode": "basic"}}
        options = {"rowField": rows, "columnField": columns, "valueField": "Value", "emptyValue": "null"}
        reshaped: list[dict[str, Any]] = [{"id": "groupingToMatrix", "options": options}]
        overrides = [_column(f"{rows}\\{columns}", {"custom.cellOptions": {"type": "auto"}})]
    else:
        single = len(panel.lines) == 1
        names = {
            "Value" if single else f"Value #{string.ascii_uppercase[i]}": line.legend for i, line, _ in built.lines
        }
        hidden = dict.fromkeys(("Time", "__name__", "cluster", "job", "instance", *panel.hidden), True)
        reshaped = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "indexByName": {}, "renameByName": names}},
        ]
        overrides = [_column(line.legend, _cell(built, queries, i, query)) for i, line, query in built.lines]
        if panel.words:
            overrides.append(_column(panel.lines[0].legend, {"mappings": [_in_words(panel.words), *_ABSENCE]}))
        if panel.drill:
            overrides.append(_column("engine", {"links": [_drill(built, "__data.fields")]}))
    return {
        "type": "table",
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {"cellHeight": "sm", "frameIndex": 0, "showHeader": True, **order},
        "transformations": reshaped,
    }


def _cell(built: Built, queries: Queries, i: int, query: BoardQuery) -> dict[str, Any]:
    """What sets a column apart: its unit, and colour where a rule judges it."""
    panel = built.panel
    assert isinstance(panel, TablePanel)
    unit = panel.units[i] if i < len(panel.units) and panel.units[i] else UNITS.get(query.unit, "short")
    by = panel.judges[i] if i < len(panel.judges) else None
    if by is None:
        return {"unit": unit}
    colored = {"mode": "absolute", "steps": steps(queries.judged(by))}
    return {"unit": unit, "thresholds": colored, "custom.cellOptions": {"type": "color-text"}}


def _column(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    own = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": own}


def _legend(*calcs: str) -> dict[str, Any]:
    return {"calcs": list(calcs), "displayMode": "table", "placement": "bottom", "showLegend": True}


def _style(panel: LinePanel, queries: Queries, i: int, line: PanelLine) -> list[dict[str, Any]]:
    if line.style == "data":
        return []
    properties: list[dict[str, Any]] = [{"id": "custom.fillOpacity", "value": 0}]
    if line.style == "faint":
        properties.append({"id": "custom.lineStyle", "value": {"dash": [2, 6], "fill": "dot"}})
    if line.style == "objective":
        if not panel.by:
            raise PanelError(f"{panel.title!r} draws an objective that no rule reads")
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


_KINDS = {LinePanel: _question, States: _states, Now: _now, Tile: _now, Bars: _bars, Heat: _heat, TablePanel: _table}

"""Grafana's schema where grafanalib is behind it: targets, variables, links, marks, the board itself.

Every class has `to_json_data`, as grafanalib's have, so the two mix freely.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

try:
    from grafanalib.core import Annotations, Dashboard, GridPos, Templating, Time
except ModuleNotFoundError as error:
    raise ImportError(
        "boards are written with grafanalib, which is not installed: pip install 'kvitals[boards]'"
    ) from error

SCHEMA = 39  # Grafana 10.4 to 11; newer ones migrate it when they load it
TAG = "kvitals"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_LEGACY = {"__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style", "editable", "timepicker"}
_MAY_BE_NULL = {"id", "value"}  # a new board has no id yet; the first threshold has no value


@dataclass(frozen=True)
class GrafanaTarget:
    """One query of a panel. `interval` is the least step, and so the least `$__interval`."""

    ref: str
    expr: str
    legend: str
    interval: str
    instant: bool = False
    format: str = "time_series"
    exemplar: bool = False

    def to_json_data(self) -> dict[str, Any]:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "exemplar": self.exemplar,
            "expr": self.expr,
            "format": self.format,
            "instant": self.instant,
            "interval": self.interval,
            "legendFormat": self.legend,
            "range": not self.instant,
            "refId": self.ref,
        }


@dataclass(frozen=True)
class DatasourceVariable:
    """The Prometheus that the board asks; a kvitals agent is one, too."""

    name: str = "datasource"
    label: str = "Data source"

    def to_json_data(self) -> dict[str, Any]:
        return {
            "hide": 0,
            "includeAll": False,
            "label": self.label,
            "multi": False,
            "name": self.name,
            "options": [],
            "query": "prometheus",
            "refresh": 1,
            "regex": "",
            "skipUrlSync": False,
            "type": "datasource",
        }


@dataclass(frozen=True)
class QueryVariable:
    """A choice of label values. An empty `all_value` makes "All" the list of the values that are offered."""

    name: str
    label: str
    query: str
    all_value: str = ""
    regex: str = ""

    def to_json_data(self) -> dict[str, Any]:
        return {
            "allValue": self.all_value or None,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "datasource": DATASOURCE,
            "hide": 0,
            "includeAll": True,
            "label": self.label,
            "multi": True,
            "name": self.name,
            "options": [],
            "query": {"query": self.query, "refId": f"variable-{self.name}"},
            "refresh": 2,
            "regex": self.regex,
            "skipUrlSync": False,
            "sort": 1,
            "type": "query",
        }


_ABOUT = 'kvitals_engine_info{cluster=~"$cluster"}'
_NARROWED = ("model", "role", "namespace", "pod", "job")
"""Labels of an engine that narrow the choice of engines, where they are there."""
_ENGINES = 'kvitals_target_up{cluster=~"$cluster"}' + "".join(
    f' unless on (cluster, node, engine) kvitals_engine_info{{cluster=~"$cluster", {label}!~"${label}"}}'
    for label in _NARROWED
)
VARIABLES = (
    DatasourceVariable(),
    QueryVariable("cluster", "Cluster", "label_values(kvitals_target_up, cluster)", all_value=".*"),
    *(
        QueryVariable(label, label.capitalize(), f"label_values({_ABOUT}, {label})", all_value=".*")
        for label in _NARROWED
    ),
    # An engine whose model or role is not known, as one that never answered, is offered whatever is chosen.
    QueryVariable("engine", "Engine", f"query_result({_ENGINES})", regex='/engine="([^"]+)"/'),
    QueryVariable("tenant", "Tenant", 'label_values(kvitals_tenant_requests_total{cluster=~"$cluster"}, tenant)', ".*"),
)
"""The one variable scheme of all boards. Queries are bound to cluster and engine, those of single tenants to tenant;
the others narrow engine. Namespace, pod and job are those of the target: the engine's own without agents."""


def mark(name: str, expr: str, color: str, title: str, least_step: str, tags: str = "engine") -> dict[str, Any]:
    """Moments at which a query has a value, as marks on every panel."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": color,
        "name": name,
        "tagKeys": tags,
        "target": {"expr": expr, "interval": least_step, "range": True, "refId": "mark"},
        "textFormat": "",
        "titleFormat": title,
    }


def drill(uid: str, engine: str) -> dict[str, Any]:
    """A link from a value to the board `uid`, narrowed to its engine."""
    chosen = "${datasource:queryparam}&${cluster:queryparam}&${model:queryparam}"
    url = f"/d/{uid}?{chosen}&var-engine={engine}&${{__url_time_range}}"
    return {"title": f"Only {engine} on {uid}", "url": url, "targetBlank": False}


def runbook(base: str, code: str) -> dict[str, Any]:
    """A link to a rule's page."""
    return _link(f"Runbook of {code}", type="link", url=f"{base}/{code}.html", targetBlank=True, icon="doc")


def board(
    uid: str, title: str, description: str, panels: Sequence[Any], marks: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A whole board as Grafana imports it."""
    dashboard = Dashboard(
        title=title,
        uid=uid,
        description=description,
        tags=[TAG],
        panels=list(panels),
        templating=Templating(list(VARIABLES)),
        annotations=Annotations(list(marks)),
        schemaVersion=SCHEMA,
        graphTooltip=1,
        refresh="10s",
        time=Time("now-30m", "now"),
        timezone="browser",
        links=[_link("Boards", type="dashboards", includeVars=True, keepTime=True, tags=[TAG])],
    )
    data = {k: v for k, v in plain(dashboard).items() if k not in _LEGACY}
    cleaned: dict[str, Any] = _without_nulls(data | {"editable": True, "fiscalYearStartMonth": 0})
    return cleaned


def encode(data: dict[str, Any]) -> str:
    """A board as the text of its file: the same board is always the same text."""
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def grid(x: int, y: int, w: int, h: int) -> GridPos:
    return GridPos(h=h, w=w, x=x, y=y)


def row(title: str, id_: int, y: int, *, closed: bool = False) -> dict[str, Any]:
    """A headline over the panels that follow; a closed one has them in itself."""
    place = {"h": 1, "w": 24, "x": 0, "y": y}
    return {"type": "row", "title": title, "id": id_, "collapsed": closed, "panels": [], "gridPos": place}


def plain(value: Any) -> Any:
    """grafanalib's objects and ours as dicts and lists."""
    return json.loads(json.dumps(value, default=lambda o: o.to_json_data()))


def _link(title: str, **more: Any) -> dict[str, Any]:
    usual = {"asDropdown": False, "icon": "external link", "includeVars": False, "keepTime": False, "tags": []}
    return {**usual, "targetBlank": False, "title": title, "tooltip": "", "url": "", **more}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None or k in _MAY_BE_NULL}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value

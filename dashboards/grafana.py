"""Grafana's schema where grafanalib is behind it: targets, variables, the board itself.

Every class has `to_json_data`, as grafanalib's have, so the two mix freely.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafanalib.core import Annotations, Dashboard, GridPos, Templating, Time

SCHEMA = 39  # Grafana 10.4 to 11; newer ones migrate it when they load it
TAG = "kvitals"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_LEGACY = {"__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style", "editable"}
_LEGACY_PANEL = {"cacheTimeout", "editable", "error", "height", "hideTimeOverride", "minSpan", "span"}
_OF_ROW = ("collapsed", "gridPos", "id", "panels", "title", "type")
_MAY_BE_NULL = {"id", "value"}  # a new board has no id yet; the first threshold has no value

_ENGINES = (
    'kvitals_target_up{cluster=~"$cluster"}'
    ' unless on (cluster, node, engine) kvitals_engine_info{cluster=~"$cluster", model!~"$model"}'
)


@dataclass(frozen=True)
class Target:
    """One query of a panel. `interval` is the least step, and so the least `$__rate_interval`."""

    ref: str
    expr: str
    legend: str
    interval: str
    instant: bool = False

    def to_json_data(self) -> dict[str, Any]:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
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
            "definition": self.query,
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


VARIABLES = (
    DatasourceVariable(),
    QueryVariable("cluster", "Cluster", "label_values(kvitals_target_up, cluster)", all_value=".*"),
    QueryVariable("model", "Model", 'label_values(kvitals_engine_info{cluster=~"$cluster"}, model)', all_value=".*"),
    # An engine whose model is not known, as one that never answered, is offered whatever the model.
    QueryVariable("engine", "Engine", f"query_result({_ENGINES})", regex='/engine="([^"]+)"/'),
)
"""The one variable scheme of all boards. Queries are bound to cluster and engine; model narrows engine."""


def restarts(expr: str) -> dict[str, Any]:
    """Engine restarts as marks on every panel."""
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": "blue",
        "name": "Engine restarts",
        "step": "30s",
        "tagKeys": "engine",
        "target": {"expr": expr, "refId": "restarts", "range": True},
        "titleFormat": "engine restarted",
    }


def board(
    uid: str, title: str, description: str, panels: Sequence[Any], annotations: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A whole board as Grafana imports it."""
    dashboard = Dashboard(
        title=title,
        uid=uid,
        description=description,
        tags=[TAG],
        panels=list(panels),
        templating=Templating(list(VARIABLES)),
        annotations=Annotations(list(annotations)),
        schemaVersion=SCHEMA,
        graphTooltip=1,
        refresh="10s",
        time=Time("now-30m", "now"),
        timezone="browser",
        links=[_links()],
    )
    data: dict[str, Any] = _plain(dashboard)
    data = {k: v for k, v in data.items() if k not in _LEGACY} | {"editable": True, "fiscalYearStartMonth": 0}
    data["panels"] = [_panel(p) for p in data["panels"]]
    cleaned: dict[str, Any] = _without_nulls(data)
    return cleaned


def encode(data: dict[str, Any]) -> str:
    """A board as the text of its file: the same board is always the same text."""
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def grid(x: int, y: int, w: int, h: int) -> GridPos:
    return GridPos(h=h, w=w, x=x, y=y)


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    """A panel less what Grafana no longer knows; a row has little more than a title."""
    if panel["type"] == "row":
        return {k: panel[k] for k in _OF_ROW}
    return {k: v for k, v in panel.items() if k not in _LEGACY_PANEL}


def _links() -> dict[str, Any]:
    return {
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "tags": [TAG],
        "targetBlank": False,
        "title": "kvitals",
        "type": "dashboards",
    }


def _plain(value: Any) -> Any:
    """grafanalib's objects and ours as dicts and lists."""
    text = json.dumps(value, default=lambda o: o.to_json_data())
    return json.loads(text)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None or k in _MAY_BE_NULL}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value

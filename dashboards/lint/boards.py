"""The queries of a Grafana board, of whatever schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvitals.dashboards.lint.defect import Document, LintedQuery

MAX_PANELS = 2000
MAX_DEPTH = 6
_OTHERS = (
    "loki", "tempo", "jaeger", "zipkin", "elasticsearch", "influxdb", "cloudwatch", "postgres", "mysql", "graphite",
    "stackdriver", "pyroscope", "phlare", "opentsdb", "clickhouse", "bigquery", "testdata", "alertmanager",
)  # fmt: skip
"""Data sources whose queries are no PromQL."""

_COLOURED = ("stat", "gauge", "bargauge", "table", "state-timeline", "status-history")
"""Panels whose colours are by limits where nothing else is said."""


def is_board(data: object) -> bool:
    """Whether a JSON document looks like a board, bare or as Grafana's API wraps it."""
    board = unwrap_board(data)
    return isinstance(board, dict) and any(isinstance(board.get(key), list) for key in ("panels", "rows"))


def unwrap_board(data: object) -> object:
    if isinstance(data, dict) and isinstance(data.get("dashboard"), dict):
        return data["dashboard"]
    if isinstance(data, dict) and isinstance(data.get("spec"), dict) and "apiVersion" in data:
        return data["spec"]
    return data


def read_board(data: object, name: str) -> Document:
    """The document. `name`: where it is from; its title stands beside it."""
    board = unwrap_board(data)
    assert isinstance(board, dict)
    title = _text(board.get("title"))
    queries: list[LintedQuery] = []
    left_out: list[str] = []
    for number, (panel, path) in enumerate(_panels(board, "", 0)):
        if number >= MAX_PANELS:
            left_out.append(f"{name}: only the first {MAX_PANELS} panels were checked")
            break
        queries += _queries(panel, path)
    queries += _variables(board)
    queries += _annotations(board)
    variables = frozenset(_text(one.get("name")) for one in _dicts(_dict(board.get("templating")).get("list")))
    name = f"{name} ({title})" if title else name
    return Document(name=name, queries=queries, left_out=left_out, variables=variables)


def _panels(holder: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every panel with the titles that lead to it; rows of old boards and folded ones included."""
    if depth > MAX_DEPTH:
        return
    for key in ("rows", "panels"):
        for panel in _dicts(holder.get(key)):
            title = _text(panel.get("title")) or f"panel {panel.get('id', '?')}"
            where = f"{path} › {title}" if path else title
            if panel.get("type") != "row" and key == "panels":
                yield panel, where
            yield from _panels(panel, where, depth + 1)


def _queries(panel: Mapping[str, Any], path: str) -> Iterator[LintedQuery]:
    defaults = _dict(_dict(panel.get("fieldConfig")).get("defaults"))
    if _is_other(panel.get("datasource")):
        return
    for target in _dicts(panel.get("targets")):
        text = target.get("expr")
        if not isinstance(text, str) or not text.strip() or _is_other(target.get("datasource")):
            continue
        letter = _text(target.get("refId"))
        yield LintedQuery(
            place=f"{path} [{letter}]" if letter else path,
            text=text,
            title=_text(panel.get("title")),
            unit=_text(defaults.get("unit")) or _old_unit(panel),
            legend=_text(target.get("legendFormat")),
            said=_text(panel.get("description")),
            thresholds=_limits(panel, defaults),
        )


def _limits(panel: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[float, ...]:
    """Where the panel changes its colour, if it does."""
    by_limits = (
        _dict(defaults.get("color")).get("mode", "thresholds" if panel.get("type") in _COLOURED else "") == "thresholds"
    )
    drawn = _dict(_dict(defaults.get("custom")).get("thresholdsStyle")).get("mode", "off") != "off"
    steps = _dicts(_dict(defaults.get("thresholds")).get("steps"))
    limits = tuple(float(step["value"]) for step in steps if isinstance(step.get("value"), int | float))
    return limits if by_limits or drawn else ()


def _variables(board: Mapping[str, Any]) -> Iterator[LintedQuery]:
    for variable in _dicts(_dict(board.get("templating")).get("list")):
        query = variable.get("query")
        text = query.get("query") if isinstance(query, dict) else query
        if variable.get("type") == "query" and isinstance(text, str) and not _is_other(variable.get("datasource")):
            yield LintedQuery(place=f"variable {_text(variable.get('name'))}", text=text, kind="variable")


def _annotations(board: Mapping[str, Any]) -> Iterator[LintedQuery]:
    for one in _dicts(_dict(board.get("annotations")).get("list")):
        text = one.get("expr")
        if isinstance(text, str) and text.strip() and not _is_other(one.get("datasource")):
            yield LintedQuery(place=f"annotation {_text(one.get('name'))}", text=text, kind="annotation")


def _is_other(source: object) -> bool:
    kind = source.get("type") if isinstance(source, dict) else source
    return isinstance(kind, str) and kind.lower().startswith(_OTHERS)


def _old_unit(panel: Mapping[str, Any]) -> str:
    axes = _dicts(panel.get("yaxes"))
    return _text(axes[0].get("format")) if axes else _text(panel.get("format"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value.strip()[:500] if isinstance(value, str) else ""

"""The queries of a file of Prometheus' rules, or of a PrometheusRule manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvitals.dashboards.lint.defect import Document, LintedQuery

MAX_RULES = 5000


def is_rule_file(data: object) -> bool:
    return isinstance(_groups(data), list)


def read_rules(data: object, name: str) -> Document:
    groups = _groups(data)
    queries: list[LintedQuery] = []
    left_out: list[str] = []
    for group in groups if isinstance(groups, list) else []:
        rules = group.get("rules") if isinstance(group, dict) else None
        for rule in rules if isinstance(rules, list) else []:
            if isinstance(rule, dict):
                queries += _query(rule)
    if len(queries) > MAX_RULES:
        left_out.append(f"{name}: only the first {MAX_RULES} rules were checked")
    return Document(name=name, queries=queries[:MAX_RULES], left_out=left_out)


def _query(rule: Mapping[str, Any]) -> list[LintedQuery]:
    text = rule.get("expr")
    if isinstance(text, int | float):
        text = str(text)
    if not isinstance(text, str):
        return []
    if isinstance(rule.get("record"), str):
        return [LintedQuery(place=f"record {rule['record']}", text=text, kind="record", title=rule["record"])]
    labels, said = (value if isinstance(value, dict) else {} for value in (rule.get("labels"), rule.get("annotations")))
    return [
        LintedQuery(
            place=f"alert {rule.get('alert', 'without a name')}",
            text=text,
            kind="alert",
            title=str(rule.get("alert", "")),
            severity=str(labels.get("severity", "")).lower(),
            said=" ".join(str(value) for value in said.values())[:4000],
        )
    ]


def _groups(data: object) -> object:
    if isinstance(data, dict) and data.get("kind") == "PrometheusRule":
        spec = data.get("spec")
        return spec.get("groups") if isinstance(spec, dict) else None
    return data.get("groups") if isinstance(data, dict) else None

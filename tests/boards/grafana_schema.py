"""Whether a board is what Grafana's own published types say (`schema/README.md`), and if not, where.

The package describes boards and the options of panels. What belongs to a data source it does not describe: the
fields of a query beside `refId`, and of an annotation those of `ANNOTATION_OF_PROMETHEUS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator

FILE = Path(__file__).parent / "schema" / "grafana-13.2.3.json"
ANNOTATION_OF_PROMETHEUS = ("target", "titleFormat", "textFormat", "tagKeys")
_KINDS = {"state-timeline": "statetimeline"}


@cache
def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


@cache
def _validator(*path: str) -> Draft7Validator:
    schema: Any = _schemas()
    for key in path:
        schema = schema[key]
    return Draft7Validator(schema)


def violations(board: dict[str, Any]) -> list[str]:
    """Everything in a board that is against the types: where, and what."""
    panels = board.get("panels", [])
    found = list(_against(("board",), {**board, "panels": [], "annotations": {"list": []}}, "board"))
    for i, mark in enumerate(board.get("annotations", {}).get("list", [])):
        own = {k: v for k, v in mark.items() if k not in ANNOTATION_OF_PROMETHEUS}
        found += _against(("annotation",), own, f"annotation {i}")
    for panel in panels:
        found += _panel(panel)
    return found


def _panel(panel: dict[str, Any]) -> Iterator[str]:
    where = f"panel {panel.get('title')!r}"
    if panel.get("type") == "row":
        yield from _against(("row",), {**panel, "panels": []}, where)
        for inside in panel.get("panels", []):
            yield from _panel(inside)
        return
    kind = _KINDS.get(panel.get("type", ""), panel.get("type", ""))
    if kind not in _schemas()["panels"]:
        yield f"{where}: no schema for the kind {panel.get('type')!r}"
        return
    yield from _against(("panel",), panel, where)
    yield from _against(("panels", kind, "options"), panel.get("options", {}), f"{where} options")
    custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
    if "custom" in _schemas()["panels"][kind]:
        yield from _against(("panels", kind, "custom"), custom, f"{where} custom")
    elif custom:
        yield f"{where}: {kind} has no fields of its own, and there are {sorted(custom)}"
    for target in panel.get("targets", []):
        if not isinstance(target.get("refId"), str):
            yield f"{where}: a query without refId"


def _against(path: tuple[str, ...], value: Any, where: str) -> Iterator[str]:
    for error in _validator(*path).iter_errors(value):
        place = "/".join(map(str, error.absolute_path))
        yield f"{where}{' at ' + place if place else ''}: {error.message[:300]}"

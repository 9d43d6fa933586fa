"""The boards that ship, as data: what they read, at another scrape interval, and for import by hand.

Boards are written with grafanalib; an installed wheel has the written ones and needs no grafanalib.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.alerts_yaml import dump
from kvitals.dashboards.queries import readable
from kvitals.rules.loader import Knowledge, family_of
from kvitals.series.promql import names

SHIPPED = Path(__file__).with_name("generated") / "boards"
DATASOURCE = "${datasource}"
INPUT = "DS_PROMETHEUS"

Board = dict[str, Any]


def shipped_boards() -> dict[str, Board]:
    """Name -> board, as it ships. Raises OSError."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(SHIPPED.glob("*.json"))}


def panels_of(board: Board) -> Iterator[dict[str, Any]]:
    """A board's panels, those of closed rows too, without the headlines."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def family_metrics(boards: Iterable[Board], knowledge: Knowledge) -> frozenset[str]:
    """The metrics of families that boards read."""
    read: set[str] = set()
    for board in boards:
        exprs = [target["expr"] for panel in panels_of(board) for target in panel.get("targets", ())]
        exprs += [mark["target"]["expr"] for mark in board["annotations"]["list"]]
        for expr in exprs:
            read |= {name for name in names(readable(expr)) if family_of(name, knowledge.families)}
    return frozenset(read)


def boards_by_family(knowledge: Knowledge) -> dict[str, list[str]]:
    """Families -> the titles of the boards that read them, directly or by signals. Raises OSError."""
    titles: dict[str, list[str]] = {}
    for board in shipped_boards().values():
        metrics = family_metrics([board], knowledge)
        for family in sorted({str(family_of(name, knowledge.families)) for name in metrics}):
            titles.setdefault(family, []).append(board["title"])
    return titles


def with_options(board: Board, options: Options) -> Board:
    """A board that ships with other addresses and another scrape interval: its windows are those of the rules."""
    usual = Options()
    text = json.dumps(board, ensure_ascii=False).replace(f"{usual.runbooks}/", f"{options.runbooks}/")
    before, after = (_times(one.fast_seconds) for one in (usual, options))
    for old, new in zip(before, after, strict=True):
        text = text.replace(old, new)
    return dict(json.loads(text))


def _times(window: float) -> tuple[str, str]:
    """A window of seconds as the range of a query, and as the least step of a panel."""
    return f"[{duration(window)}]", f'"interval": "{duration(window)}"'


def with_inputs(board: Board) -> Board:
    """A board for import by hand: Grafana asks which data source it reads, and keeps the answer in place of the
    board's variable."""
    text = json.dumps(board, ensure_ascii=False).replace(DATASOURCE, f"${{{INPUT}}}")
    made: Board = json.loads(re.sub(r"\$\{datasource:queryparam\}&?", "", text))
    made["templating"]["list"] = [one for one in made["templating"]["list"] if one["type"] != "datasource"]
    source = {"name": INPUT, "label": "Prometheus", "type": "datasource"}
    made["__inputs"] = [{**source, "pluginId": "prometheus", "pluginName": "Prometheus"}]
    made["__requires"] = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.4.0"},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
    ]
    return made


def provisioning(prometheus: str, by: str) -> dict[str, str]:
    """Grafana's provisioning files for a folder of boards and their data source. prometheus: its URL; by: the command
    that writes them."""
    folder = {"name": "kvitals", "folder": "kvitals", "type": "file", "options": {"path": "/var/lib/grafana/kvitals"}}
    source = {"name": "kvitals", "type": "prometheus", "access": "proxy", "url": prometheus}
    return {
        "provisioning/dashboards/kvitals.yaml": dump(
            {"apiVersion": 1, "providers": [folder]}, note="Put boards/*.json where `path` is.", by=by
        ),
        "provisioning/datasources/kvitals.yaml": dump({"apiVersion": 1, "datasources": [source]}, by=by),
    }

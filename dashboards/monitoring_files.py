"""What `kvitals export` writes: boards, alerts, recording rules, Alertmanager's configuration, runbooks, the mixin.

All of it comes from the knowledge and from the boards that ship, so an installed wheel can write it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvitals.dashboards import alertmanager, board_files, mixin, runbooks
from kvitals.dashboards.alerts_files import Groups, with_agents, without_agents
from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.alerts_yaml import dump
from kvitals.dashboards.label_names import Installation
from kvitals.rules.loader import Knowledge

_ALERT_GROUP = "kvitals-alerts-"


class ExportError(Exception):
    """An option asks for something that does not exist."""


@dataclass(frozen=True)
class ExportRequest:
    """The knowledge and how this installation differs."""

    knowledge: Knowledge
    options: Options
    installation: Installation
    prometheus: str = "http://127.0.0.1:9090"  # the data source in Grafana's provisioning

    def rules(self) -> tuple[Groups, Groups]:
        """Recording and alerting rules in the installation's names."""
        made = with_agents if self.installation.metrics == "agents" else _without_agents
        recording, alerts = made(self.knowledge, self.options)
        names = self.installation.names(self.knowledge.families)
        return names.recording(recording), names.alerts(self._chosen(alerts))

    def _chosen(self, alerts: Groups) -> Groups:
        wanted = self.installation.groups
        known = [group["name"].removeprefix(_ALERT_GROUP) for group in alerts["groups"]]
        if wrong := [name for name in wanted if name not in known]:
            raise ExportError(f"no group of alerts {', '.join(wrong)}; the groups are {', '.join(sorted(known))}")
        chosen = [g for g in alerts["groups"] if not wanted or g["name"].removeprefix(_ALERT_GROUP) in wanted]
        return {"groups": chosen}


def export(kind: str, request: ExportRequest) -> dict[str, str]:
    """The files of a kind by their paths. Raises ExportError, PromQLError."""
    return KINDS[kind](request)


def _without_agents(knowledge: Knowledge, options: Options) -> tuple[Groups, Groups]:
    return without_agents(knowledge, options)[:2]


def _boards(request: ExportRequest) -> dict[str, str]:
    names = request.installation.names(request.knowledge.families)
    made = {
        name: names.board(board_files.with_options(board, request.options))
        for name, board in board_files.shipped_boards().items()
    }
    boards = {f"boards/{name}.json": _json(board) for name, board in made.items()}
    by_hand = {f"boards-import/{name}.json": _json(board_files.with_inputs(board)) for name, board in made.items()}
    return boards | by_hand | board_files.provisioning(request.prometheus, "kvitals export boards")


def _json(board: board_files.Board) -> str:
    return json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _alerts(request: ExportRequest) -> dict[str, str]:
    note = f"Load recording.yaml beside it. Over the metrics of {request.installation.metrics}."
    return {"alerts.yaml": dump(request.rules()[1], note=note, by="kvitals export alerts")}


def _recording(request: ExportRequest) -> dict[str, str]:
    every, window = f"{request.options.scrape_seconds:g} s", duration(request.options.fast_seconds)
    note = f"Over the metrics of {request.installation.metrics}. Scrape every {every}: the shortest window is {window}."
    return {"recording.yaml": dump(request.rules()[0], note=note, by="kvitals export recording")}


def _alertmanager(request: ExportRequest) -> dict[str, str]:
    configuration = alertmanager.configuration(request.knowledge, request.options)
    names = request.installation.names(request.knowledge.families)
    by = "kvitals export alertmanager"
    return {"alertmanager.yaml": dump(names.routing(configuration), note=alertmanager.NOTE, by=by)}


def _runbooks(request: ExportRequest) -> dict[str, str]:
    return runbooks.files(request.knowledge)


def _mixin(request: ExportRequest) -> dict[str, str]:
    made = mixin.files(request.knowledge, request.options, request.installation)
    return {f"mixin/{name}": text for name, text in made.items()}


KINDS: Mapping[str, Callable[[ExportRequest], dict[str, str]]] = {
    "boards": _boards,
    "alerts": _alerts,
    "recording": _recording,
    "alertmanager": _alertmanager,
    "runbooks": _runbooks,
    "mixin": _mixin,
}
"""What can be exported, in the order of the help."""

"""The mixin: rules, alerts and boards as jsonnet with `_config`, evaluated to what `kvitals export` writes.

The generators run with marks in place of names, addresses and thresholds; each string is then written as jsonnet that
joins its parts with the values of `_config`. So there is one definition of every rule, and none in jsonnet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from kvitals.dashboards import board_files
from kvitals.dashboards.alerts import alertable
from kvitals.dashboards.alerts_files import Groups, with_agents, without_agents
from kvitals.dashboards.alerts_options import Options
from kvitals.dashboards.label_names import LABELS, AddedSelector, Installation, LabelNames
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import Param

HEADER = "// Written by `kvitals export mixin`. Override _config instead of editing.\n"
_PART = re.compile(r"\ue000(\w+)\ue001")
_NUMBER = re.compile(r"(?<![\w.])71\d{4}(?![\w.])")
_FIRST_NUMBER = 711001
_OBJECTIVES = {"ttft": 710001.0, "itl": 710002.0}

_MIXIN = """\
(import 'config.libsonnet') {
  local config = self._config,
  local kept(groups) = [
    group { rules: [entry.rule for entry in group.rules if config.alerts == 'extended' || entry.core] }
    for group in groups
  ],
  local chosen(groups) = [
    group
    for group in groups
    if std.length(config.groups) == 0 || std.member(config.groups, std.strReplace(group.name, 'kvitals-alerts-', ''))
  ],
  local rules =
    if config.metrics == 'agents' then (import 'agents.libsonnet')(config)
    else if config.metrics == 'engines' then (import 'engines.libsonnet')(config)
    else error "_config.metrics: write 'agents' or 'engines'",
  assert std.member(['core', 'extended'], config.alerts) : "_config.alerts: write 'core' or 'extended'",
  grafanaDashboards+:: (import 'boards.libsonnet')(config),
  prometheusRules+:: { groups+: kept(rules.recording) },
  prometheusAlerts+:: { groups+: [group for group in chosen(kept(rules.alerts)) if std.length(group.rules) > 0] },
}
"""
_LOCALS = """\
function(config)
  local clusterLabel = config.clusterLabel;
  local namespaceLabel = config.namespaceLabel;
  local jobLabel = config.jobLabel;
  local runbooksUrl = config.runbooksUrl;
  local grafanaUrl = config.grafanaUrl;
  local pageSeverity = config.pageSeverity;
  local ticketSeverity = config.ticketSeverity;
  local selector = config.selector;
  local selectorFirst = if selector == '' then '' else selector + ', ';
  local selectorLast = if selector == '' then '' else ', ' + selector;
  local selectorAlone = if selector == '' then '' else '{' + selector + '}';
"""


@dataclass(frozen=True)
class _Threshold:
    """A parameter of a rule, or an objective, with the number that stands for it while rules are generated."""

    group: str  # a rule's code, or `objectives`
    name: str
    default: str

    @property
    def place(self) -> str:
        return f"config.thresholds.{self.group}.{self.name}"


def files(knowledge: Knowledge, options: Options, installation: Installation) -> dict[str, str]:
    """The mixin's files by name. options, installation: the defaults of `_config`; the interval of scrapes is fixed."""
    boards = board_files.shipped_boards()
    marked, thresholds = _marked(knowledge, options)
    marks = replace(
        options, runbooks=_mark("runbooksUrl"), boards=_mark("grafanaUrl"), page=_mark("pageSeverity"),
        ticket=_mark("ticketSeverity"), slo_ttft_seconds=_OBJECTIVES["ttft"], slo_itl_seconds=_OBJECTIVES["itl"],
    )  # fmt: skip
    writer = _Writer(thresholds)
    names = LabelNames(
        knowledge.families,
        {label: _mark(f"{label}Label") for label in LABELS},
        AddedSelector(_mark("selectorFirst"), _mark("selectorLast"), _mark("selectorAlone")),
    )
    engines = replace(names, agents=False)
    sets = {
        "agents": [with_agents(marked, replace(marks, alerts=alerts)) for alerts in ("core", "extended")],
        "engines": [without_agents(marked, replace(marks, alerts=alerts))[:2] for alerts in ("core", "extended")],
    }
    made = {}
    for name, spoken in (("agents", names), ("engines", engines)):
        core, extended = sets[name]
        both = {
            "recording": _together(spoken.recording(core[0]), spoken.recording(extended[0])),
            "alerts": _together(spoken.alerts(core[1]), spoken.alerts(extended[1])),
        }
        made[f"{name}.libsonnet"] = f"{HEADER}{_LOCALS}  {writer.text(both)}\n"
    drawn = {f"{name}.json": names.board(board_files.with_options(board, marks)) for name, board in boards.items()}
    made["boards.libsonnet"] = f"{HEADER}{_LOCALS}  {writer.text(drawn)}\n"
    made["config.libsonnet"] = HEADER + _config(options, installation, writer.used)
    made["mixin.libsonnet"] = HEADER + _MIXIN
    return made


def _mark(name: str) -> str:
    return f"\ue000{name}\ue001"


def _marked(knowledge: Knowledge, options: Options) -> tuple[Knowledge, dict[str, _Threshold]]:
    """The knowledge with a number of its own for each parameter of rules that alert, and what the numbers stand for."""
    thresholds = {
        f"{_OBJECTIVES[name]:g}": _Threshold("objectives", name, f"{seconds:g}")
        for name, seconds in (("ttft", options.slo_ttft_seconds), ("itl", options.slo_itl_seconds))
    }
    rules = dict(knowledge.rules)
    number = _FIRST_NUMBER
    for code, rule in sorted(knowledge.rules.items()):
        if not alertable(rule):
            continue
        params = {}
        for name, param in rule.params.items():
            thresholds[str(number)] = _Threshold(code, name, f"{param.default:.12g}")
            params[name] = Param(default=float(number), why=param.why)
            number += 1
        rules[code] = msgspec.structs.replace(rule, params=params)
    return replace(knowledge, rules=rules), thresholds


def _together(core: Groups, extended: Groups) -> list[dict[str, Any]]:
    """The groups of the extended set, each rule with whether it is in the core set."""
    among = {group["name"]: [json.dumps(rule) for rule in group["rules"]] for group in core["groups"]}
    return [
        {**group, "rules": [{"core": json.dumps(r) in among.get(group["name"], ()), "rule": r} for r in group["rules"]]}
        for group in extended["groups"]
    ]


class _Writer:
    """Writes documents as jsonnet, and keeps which thresholds they have."""

    def __init__(self, thresholds: Mapping[str, _Threshold]) -> None:
        self._thresholds = thresholds
        self.used: dict[str, dict[str, str]] = {}

    def text(self, value: Any) -> str:
        """A document as a jsonnet expression."""
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self._key(key)}: {self.text(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",\n".join(map(self.text, value)) + "]"
        if isinstance(value, str):
            return self._string(value)
        return json.dumps(value)

    def _key(self, key: str) -> str:
        return f"[{self._string(key)}]" if "\ue000" in key else json.dumps(key, ensure_ascii=False)

    def _string(self, value: str) -> str:
        parts = list(self._parts(value))
        return parts[0] if len(parts) == 1 else f"std.join('', [{', '.join(parts)}])"

    def _parts(self, value: str) -> Iterator[str]:
        """The pieces of a string: texts, names of `_config`, thresholds."""
        at = 0
        places: Sequence[tuple[int, int, str]] = sorted(
            [(m.start(), m.end(), m[1]) for m in _PART.finditer(value)]
            + [(m.start(), m.end(), self._place(m[0])) for m in _NUMBER.finditer(value) if m[0] in self._thresholds]
        )
        for start, end, name in places:
            if at < start:
                yield json.dumps(value[at:start], ensure_ascii=False)
            yield name
            at = end
        if at < len(value) or not places:
            yield json.dumps(value[at:], ensure_ascii=False)

    def _place(self, number: str) -> str:
        threshold = self._thresholds[number]
        self.used.setdefault(threshold.group, {})[threshold.name] = threshold.default
        return f"std.toString({threshold.place})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _config(options: Options, installation: Installation, thresholds: Mapping[str, Mapping[str, str]]) -> str:
    """config.libsonnet: every option with its default."""
    lines = [
        "{",
        "  _config+:: {",
        "    // 'agents': kvitals agents are scraped. 'engines': engines are scraped, without agents.",
        f"    metrics: {_quoted(installation.metrics)},",
        "    // Matchers for every series that is scraped, such as 'job=\"kvitals\"'.",
        f"    selector: {_quoted(installation.selector)},",
        "    // Names of labels in this Prometheus.",
        *(f"    {label}Label: {_quoted(installation.labels[label])}," for label in LABELS),
        "    // 'core': alerts on symptoms and lost capacity. 'extended': the alerts of every rule.",
        f"    alerts: {_quoted(options.alerts)},",
        "    // Groups of alerts, such as ['latency', 'kv', 'slo']; empty: all.",
        f"    groups: [{', '.join(map(_quoted, installation.groups))}],",
        f"    pageSeverity: {_quoted(options.page)},",
        f"    ticketSeverity: {_quoted(options.ticket)},",
        "    // Where the runbooks are served, and Grafana. Without a slash at the end.",
        f"    runbooksUrl: {_quoted(options.runbooks)},",
        f"    grafanaUrl: {_quoted(options.boards)},",
        "    // Objectives in seconds, for engines without agents, and the parameters of rules, by code, as text:",
        "    // jsonnet writes 0.9 as 0.90000000000000002.",
        "    thresholds: {",
    ]
    for group, params in sorted(thresholds.items(), key=lambda item: (item[0] != "objectives", item[0])):
        inside = ", ".join(f"{name}: '{default}'" for name, default in params.items())
        lines.append(f"      {group}: {{ {inside} }},")
    return "\n".join([*lines, "    },", "  },", "}", ""])

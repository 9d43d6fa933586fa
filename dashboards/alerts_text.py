"""What an alert says, as Prometheus' templates: the rule's own sentence with the numbers of the moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from kvitals.dashboards.alerts_options import Options
from kvitals.diagnoser.text import fill, sentences
from kvitals.rules.loader import PLACEHOLDER, SIGNAL_PREFIX, Knowledge, parameters
from kvitals.rules.model import SCOPES, Rule, Scope
from kvitals.series.promql import expand

_BOARDS = {
    "kv": "kv", "prefix": "kv", "tenant": "tenants", "disaggregation": "disaggregation", "scheduling": "engines",
    "engine": "engines", "gpu": "gpu", "telemetry": "telemetry", "efficiency": "efficiency", "capacity": "efficiency",
}  # fmt: skip
"""Group of a rule -> the board that shows most of its evidence; of the others it is the overview."""
_OF_RULE = {"TEL01": "status"}
"""Rules with another board than their group: most of the telemetry board needs an agent, but an engine that is lost is
looked for among all engines."""

_NUMBER = (
    "{{ if and (lt (. | first | value) 1.0) (gt (. | first | value) -1.0) }}"
    '{{ . | first | value | printf "%.2g" }}{{ else }}{{ . | first | value | humanize }}{{ end }}'
)
"""`humanize` writes 0.24 as 240m, which a reader takes for millions."""
_AS = {
    "seconds": "{{ . | first | value | humanizeDuration }}",
    "ratio": "{{ . | first | value | humanizePercentage }}",
    "bool": "{{ if eq (. | first | value) 0.0 }}no{{ else }}yes{{ end }}",
    "per_second": f"{_NUMBER}/s",
    "count": _NUMBER,
    "bytes": "{{ . | first | value | humanize1024 }}B",
}
_BRACKETS = re.compile(r"( \([^()]*\))")
_WHOSE = {"engine": "engine", "node": "node", "pool": "pool", "fleet": "cluster"}


def summary(rule: Rule) -> str:
    """The title and whose it is."""
    return f"{rule.title}: {entity(rule.scope)}"


def entity(scope: Scope) -> str:
    """The alert's entity in words."""
    label = _WHOSE[scope]
    return f"{label} {{{{ with $labels.{label} }}}}{{{{ . }}}}{{{{ else }}}}without a name{{{{ end }}}}"


def description(rule: Rule, knowledge: Knowledge) -> str:
    """The conclusion. A number that is not there is `unknown` in the first sentence; brackets and later sentences are
    left out without theirs, as in a verdict."""
    values = parameters(rule)

    def number(name: str) -> str:
        if name.startswith("$"):
            return values[name[1:]]
        if name in rule.who:
            return _who(name, rule)
        return signal_value(name, rule.scope, knowledge)

    def told(template: str) -> str:
        """A sentence, with what it has in brackets where that is known."""
        parts = _BRACKETS.split(template)  # every other one is in brackets
        inner = [_where_known(part, number, rule, knowledge) if i % 2 else part for i, part in enumerate(parts)]
        return "".join(part if i % 2 else fill(part, number) for i, part in enumerate(inner))

    first, *more = sentences(" ".join(rule.conclusion.split()))
    return told(first) + "".join(_where_known(f" {one}", number, rule, knowledge) for one in more)


def _where_known(template: str, number: Callable[[str], str], rule: Rule, knowledge: Knowledge) -> str:
    """A text, where the signals that it names have values; each is asked for once."""
    names = [n for n in dict.fromkeys(PLACEHOLDER.findall(template)) if n in knowledge.signals and n not in rule.who]

    def known(name: str) -> str:
        return _shown(name, knowledge, f"${name}") if name in names else number(name)

    begin = "".join(f"{{{{ with ${name} := {_query(name, rule.scope, knowledge)} }}}}" for name in names)
    return f"{begin}{fill(template, known)}{'{{ end }}' * len(names)}"


def signal_value(name: str, scope: Scope, knowledge: Knowledge) -> str:
    """The recorded value of a signal for the alert's entity, with its unit."""
    shown = _shown(name, knowledge, ".")
    return f"{{{{ with {_query(name, scope, knowledge)} }}}}{shown}{{{{ else }}}}unknown{{{{ end }}}}"


def _shown(name: str, knowledge: Knowledge, answer: str) -> str:
    """A signal's value with its unit. answer: what holds the answer to its query in the template."""
    unit = knowledge.signals[name].unit
    return _AS.get(unit, f"{_AS['count']} {unit}").replace(". |", f"{answer} |")


def _query(name: str, scope: Scope, knowledge: Knowledge) -> str:
    """What asks for the recorded value of a signal for the alert's entity."""
    signal = knowledge.signals[name]
    shared = [label for label in SCOPES[scope] if label in SCOPES[signal.scope]]
    matchers = ",".join(f"{label}=%q" for label in shared)
    labels = " ".join(f"$labels.{label}" for label in shared)
    return f'printf "{SIGNAL_PREFIX}{name}{{{matchers}}}" {labels} | query'


def _who(label: str, rule: Rule) -> str:
    """A label of the largest series, of those of the alert's entity, that the rule's query for it finds."""
    scope = SCOPES[rule.scope]
    of = f"kvitals_target_up{{{','.join(f'{name}=%q' for name in scope)}}}"
    query = " ".join(expand(rule.who[label], {**parameters(rule), "window": "1m"}).split()).replace("%", "%%")
    asked = f"topk(1, ({query}) and on ({', '.join(scope)}) {of})"
    names = " ".join(f"$labels.{name}" for name in scope)
    found = f"{{{{ (first .).Labels.{label} }}}}"
    return f"{{{{ with printf `{asked}` {names} | query }}}}{found}{{{{ else }}}}unknown{{{{ end }}}}"


def board_of(code: str, group: str) -> str:
    """The uid of the board that shows most of the evidence of a rule."""
    return f"kvitals-{_OF_RULE.get(code) or _BOARDS.get(group, 'overview')}"


def links(code: str, scope: Scope, group: str, options: Options) -> dict[str, str]:
    """Where to read on: the rule's page, and the board that shows the entity and the rule's group. A Prometheus whose
    `cluster` is an external label has none in its alerts; the board then shows all."""
    engine = "var-engine={{ $labels.engine | urlquery }}" if "engine" in SCOPES[scope] else ""
    beside = "&" if engine else ""
    chosen = f"{engine}{{{{ with $labels.cluster }}}}{beside}var-cluster={{{{ . | urlquery }}}}{{{{ end }}}}"
    return {
        "runbook_url": f"{options.runbooks}/{quote(code)}.html",
        "dashboard_url": f"{options.boards}/d/{board_of(code, group)}?{chosen}",
    }

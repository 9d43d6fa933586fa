"""docs/rule-reference.md: every rule in a line, and every lever with its settings."""

from __future__ import annotations

from collections.abc import Iterator

from kvitals.dashboards.reference.text import cell, generated_header, one_line, table
from kvitals.dashboards.runbooks import GROUPS
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import Lever, Rule, SystemSetting
from kvitals.rules.proof import proof_of

FILE = "rule-reference.md"
RUNBOOKS = "../dashboards/generated/runbooks"

_INTRO = """\
# Rules and levers

Each code leads to the rule's page: its condition, the signals, the alert, what to do and what not, the references.
`kvitals explain KVC01` prints the same page. Codes are stable and never reused.

A *symptom* is what users notice. A *cause* explains symptoms and has levers. A *note* is worth knowing and no harm by
itself. *Telemetry* is about what cannot be seen. `page` and `ticket` are worth an alert; `info` is for who looks.

*Proof* states on what the rule was seen to fire: *real*, on a recording of a real program; *captured*, on a recording
of a real program with simulated engines; *modelled*, on written series alone. The confidence of a *modelled* rule is at
most medium. `python -m tests.captures.proof` computes it from the recordings in the tree.
"""
_COST = {"free": "nothing", "low": "little", "medium": "some", "high": "much"}


def page(knowledge: Knowledge) -> str:
    """The document."""
    lines = [generated_header("rules/codes and rules/levers"), "", *_INTRO.splitlines()]
    for group, title in GROUPS.items():
        rules = sorted((r for r in knowledge.rules.values() if r.group == group), key=lambda r: r.code)
        if rules:
            lines += ["", f"## {title}", ""]
            lines += table(
                ("code", "what it means", "kind", "severity", "proof", "of each", "levers"), map(_rule, rules)
            )
    lines += ["", "## Levers", "", "In the order in which kvitals tries them.", ""]
    codes = lever_codes(knowledge)
    for lever in sorted(knowledge.levers.values(), key=lambda lever: (lever.step, lever.title)):
        lines += _lever(lever, codes.get(lever.name, []))
    return "\n".join(lines).rstrip() + "\n"


def lever_codes(knowledge: Knowledge) -> dict[str, list[str]]:
    """Lever -> the codes of the rules that offer it."""
    codes: dict[str, list[str]] = {}
    for code, rule in sorted(knowledge.rules.items()):
        for use in rule.levers:
            codes.setdefault(use.lever, []).append(code)
    return {name: list(dict.fromkeys(several)) for name, several in codes.items()}


def _rule(rule: Rule) -> tuple[str, ...]:
    levers = ", ".join(f"[{use.lever}](#{use.lever})" for use in rule.levers)
    proof = proof_of(rule.code)
    about = (rule.kind, rule.severity, proof.proof if proof is not None else "", rule.scope)
    return f"[{rule.code}]({RUNBOOKS}/{rule.code}.md)", cell(rule.title), *about, levers


def _lever(lever: Lever, codes: list[str]) -> Iterator[str]:
    yield from (f"### {lever.name}", "")
    yield from lever_text(lever, [f"[{code}]({RUNBOOKS}/{code}.md)" for code in codes])
    yield ""


def lever_text(lever: Lever, offered_by: list[str]) -> Iterator[str]:
    """What a lever does, when it applies, what it costs and its settings. offered_by: codes of rules, as Markdown."""
    yield from (f"**{lever.title}.** {one_line(lever.does)}", "")
    yield f"- When: {one_line(lever.when)}"
    yield f"- Does not fix: {one_line(lever.does_not_fix)}"
    yield f"- Risk: {one_line(lever.risk)}"
    harms = f"; worsens: {', '.join(lever.worsens)}" if lever.worsens else ""
    yield f"- Moves: {', '.join(lever.moves)}{harms}; costs {_COST[lever.cost]}"
    yield f"- Its effect beforehand: {one_line(lever.estimate.how)}"
    yield (
        f"- Offered by: {', '.join(offered_by)}" if offered_by else (f"- No rule offers it: {one_line(lever.no_rule)}")
    )
    yield from (f"- {_setting(setting)}" for setting in lever.settings)


def _setting(setting: SystemSetting) -> str:
    versions = "" if setting.versions == ">=0" else f" {setting.versions}"
    value = f", {one_line(setting.value_text)}" if setting.value else ""
    restart = "" if setting.restart else " (no restart)"
    note = f" {one_line(setting.note)}" if setting.note else ""
    risk = f" Risk: {one_line(setting.risk)}" if setting.risk else ""
    return f"{setting.system}{versions}: `{setting.flag}`{value}{restart}.{note}{risk}"

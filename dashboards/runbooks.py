"""Runbooks: a page per rule as Markdown, from its file and from those of its signals and levers, and an index."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvitals.dashboards.alerts import alertable, is_core, severity
from kvitals.dashboards.alerts_burn import OBJECTIVES
from kvitals.dashboards.alerts_burn import name as burn_name
from kvitals.dashboards.alerts_guards import GUARDS, AlertGuard
from kvitals.dashboards.alerts_text import board_of
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import Lever, Rule, Severity, SystemSetting
from kvitals.rules.proof import MEANING, RuleProof, proof_of

FOLDER = "runbooks"
INDEX = "README.md"
GROUPS = {
    "latency": "Latency",
    "engine": "Engines",
    "telemetry": "Telemetry",
    "scheduling": "Scheduling",
    "kv": "KV cache",
    "prefix": "Prefixes and routing",
    "tenant": "Tenants",
    "disaggregation": "Prefill and decode apart",
    "speculation": "Speculative decoding",
    "lora": "Adapters",
    "gpu": "GPUs and hosts",
    "capacity": "Capacity",
    "efficiency": "Efficiency",
    "scaling": "Scaling",
    "guardrail": "Guardrails",
    "hetero": "Unlike hardware",
}
LIKELIEST = 8
"""Causes in the box at the head of a page."""
_WAITS = {
    "page": "no.",
    "ticket": "until working hours, unless a page fires too.",
    "info": "yes; nobody is alerted.",
}
_SEVERITY = {"page": "wakes someone", "ticket": "a ticket", "info": "shown on boards and in triage, no alert"}
_THREAD = re.compile(r"(?<![\w/])([A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*)#(\d+)")


def files(knowledge: Knowledge) -> dict[str, str]:
    """Every page by its path."""
    pages = {f"{FOLDER}/{code}.md": page(rule, knowledge) for code, rule in knowledge.rules.items()}
    return {f"{FOLDER}/{INDEX}": index(knowledge), **pages}


def index(knowledge: Knowledge) -> str:
    """All rules by group, those that alert marked with their severity."""
    lines = [
        "# Runbooks",
        "",
        "What each rule sees, why it happens, and what to do. `kvitals explain CODE` prints a page.",
    ]
    for group, title in GROUPS.items():
        rules = sorted((r for r in knowledge.rules.values() if r.group == group), key=lambda r: r.code)
        if rules:
            lines += ["", f"## {title}", ""]
            lines += [f"- [{r.code}]({r.code}.md) {r.title} ({r.kind}, {r.severity})" for r in rules]
    return "\n".join(lines) + "\n"


def page(rule: Rule, knowledge: Knowledge) -> str:
    """A rule as Markdown: what `kvitals explain` prints."""
    parts = (
        _head(rule),
        _first_minute(rule, knowledge),
        _text(rule),
        _condition(rule),
        _signals(rule, knowledge),
        _alert(rule, knowledge),
    )
    more = (_levers(rule, knowledge), _related(rule, knowledge), _references(rule))
    return "\n".join(line for part in (*parts, *more) for line in part).rstrip() + "\n"


def _head(rule: Rule) -> Iterator[str]:
    yield f"# {rule.code} {rule.name}"
    yield ""
    yield f"**{rule.title}** ({rule.kind}, {rule.severity}, {rule.stage})"
    yield ""
    if (proof := proof_of(rule.code)) is not None:
        on = f" ({', '.join(proof.recordings)}{_more(proof)})" if proof.recordings else ""
        yield f"Proof: *{proof.proof}*, {MEANING[proof.proof]}{on}."
        yield ""


def _more(proof: RuleProof) -> str:
    rest = proof.count - len(proof.recordings)
    return f" and {rest} more" if rest else ""


def _first_minute(rule: Rule, knowledge: Knowledge) -> Iterator[str]:
    """A box with what one needs before one reads: is it felt, can it wait, what to run, what it probably is."""
    yield "> **First 60 seconds**"
    yield ">"
    yield f"> - Users feel it: {_felt(rule, knowledge)}"
    waits = "no, if its burn alert pages; otherwise until working hours." if rule.code in OBJECTIVES else ""
    if pages := _guards(rule, "page"):
        names = ", ".join(f"`{guard.code}-{guard.name}`" for guard in pages)
        waits = f"no, if one of these pages: {names}; otherwise until working hours."
    yield f"> - Can it wait: {waits or _WAITS[severity(rule)]}"
    if (rule.severity, severity(rule)) == ("page", "ticket") and not _guards(rule, "page"):
        yield ">   A triage calls it a page, because it makes requests late. Its alert is a ticket, because the alert"
        yield ">   of the late requests pages."
    yield "> - Run, with the engine's host and port from the label `engine`: `kvitals triage http://HOST:PORT`;"
    yield ">   over a Prometheus: `kvitals triage --prometheus URL`"
    yield f"> - Board: `/d/{board_of(rule.code, rule.group)}`, as the alert's `dashboard_url` selects it"
    if likely := _likeliest(rule, knowledge):
        yield f"> - Likeliest causes, in order: {', '.join(f'[{cause.code}]({cause.code}.md)' for cause in likely)}"
    yield ""


def _felt(rule: Rule, knowledge: Knowledge) -> str:
    if rule.kind == "symptom":
        return "yes, users notice it directly."
    if _guards(rule, "page"):
        return "yes, if requests ran on an engine that is gone: its alert is a page then."
    felt = sorted(code for code in rule.explains if knowledge.rules[code].kind == "symptom")
    if not felt:
        return "not by itself."
    return f"yes, if one of these fires too: {', '.join(f'[{code}]({code}.md)' for code in felt)}."


def _likeliest(rule: Rule, knowledge: Knowledge) -> list[Rule]:
    """The causes that explain a rule: core ones first, then stable ones, then by severity."""
    causes = [other for other in knowledge.rules.values() if rule.code in other.explains]
    order = ("page", "ticket", "info")
    causes.sort(key=lambda one: (not one.core, one.stage != "stable", order.index(one.severity), one.code))
    return causes[:LIKELIEST]


def _text(rule: Rule) -> Iterator[str]:
    for heading, text in (
        ("What it sees", rule.page.sees),
        ("Why it happens", rule.page.why),
        ("When it is wrong", rule.page.wrong_when),
        ("What to do", rule.page.do),
        ("What not to do", rule.page.do_not),
    ):
        yield from (f"## {heading}", "", text.strip(), "")


def _condition(rule: Rule) -> Iterator[str]:
    yield from ("## The condition", "", "```promql", rule.when.strip(), "```", "")
    if rule.clear:
        yield from ("Once it has fired, it continues while this holds:", "", "```promql", rule.clear.strip(), "```", "")
    sooner = rule.kind in ("cause", "symptom") and rule.for_ != "0s"
    early = " After an abrupt change, the diagnosis reports it sooner; an alert waits." if sooner else ""
    yield (
        f"Evaluated for each {rule.scope}: fires after {rule.fires_after} and stays for {rule.keep} after it was last "
        f"true.{early}"
    )
    yield ""
    if rule.params:
        yield from (f"- `${name}` = {param.default:g}: {param.why}" for name, param in rule.params.items())
        yield ""


def _signals(rule: Rule, knowledge: Knowledge) -> Iterator[str]:
    yield from ("## The signals", "")
    for name in knowledge.needs(rule):
        signal = knowledge.signals[name]
        least = f" From {signal.samples.min:g} {signal.samples.of} on." if signal.samples else ""
        yield f"- `{name}` ({signal.unit}): {' '.join(signal.meaning.split())}{least}"
    yield ""


def _alert(rule: Rule, knowledge: Knowledge) -> Iterator[str]:
    yield from ("## The alert", "")
    if not alertable(rule):
        yield f"None: severity {rule.severity} is {_SEVERITY[rule.severity]}."
    else:
        written = severity(rule)
        among = "core set" if is_core(rule, knowledge) else "extended set (`--alerts extended`)"
        yield f"`{rule.slug}` in Prometheus, severity {written}: {_SEVERITY[written]}. It is in the {among}."
    if rule.code in OBJECTIVES:
        yield f"`{burn_name(rule)}` pages if the error budget of slow requests is spent 14.4 or 6 times too fast."
    for guard in _guards(rule):
        yield f"\n`{guard.code}-{guard.name}`, severity {guard.severity}: {guard.summary}. {guard.description_text}"
    yield ""


def _guards(rule: Rule, wanted: Severity | None = None) -> list[AlertGuard]:
    """The alerts on the life of engines whose page this is; of one severity, or all."""
    return [guard for guard in GUARDS if guard.code == rule.code and wanted in (None, guard.severity)]


def _levers(rule: Rule, knowledge: Knowledge) -> Iterator[str]:
    if not rule.levers:
        return
    yield from ("## The levers, in order", "")
    for number, use in enumerate(rule.levers, 1):
        lever = knowledge.levers[use.lever]
        yield f"{number}. **{lever.title}** (`{lever.name}`): {_line(lever.does)}"
        yield f"   - Does not fix: {_line(lever.does_not_fix)}"
        yield f"   - Risk: {_line(lever.risk)}"
        yield from (f"   - {line}" for line in _settings(lever))
    yield ""


def _settings(lever: Lever) -> Iterator[str]:
    for setting in lever.settings:
        versions = "" if setting.versions == ">=0" else f" {setting.versions}"
        note = f" {_line(setting.note)}" if setting.note else ""
        risk = f" Risk: {_line(setting.risk)}" if setting.risk else ""
        yield f"{setting.system}{versions}: `{setting.flag}`{_value(setting)}.{note}{risk}"


def _value(setting: SystemSetting) -> str:
    return f", {_line(setting.value_text)}" if setting.value else ""


def _related(rule: Rule, knowledge: Knowledge) -> Iterator[str]:
    causes = [other.code for other in knowledge.rules.values() if rule.code in other.explains]
    for heading, codes in (("What it explains", rule.explains), ("What may explain it", causes)):
        if codes:
            yield from (f"## {heading}", "")
            yield from (f"- [{code}]({code}.md) {knowledge.rules[code].title}" for code in sorted(codes))
            yield ""


def _references(rule: Rule) -> Iterator[str]:
    if rule.page.references:
        yield from ("## References", "")
        yield from (f"- {_THREAD.sub(_thread, reference)}" for reference in rule.page.references)
        yield ""


def _thread(found: re.Match[str]) -> str:
    """A GitHub thread as a link; GitHub leads from an issue's address to a pull request's by itself."""
    return f"[{found[0]}](https://github.com/{found[1]}/issues/{found[2]})"


def _line(text: str) -> str:
    return " ".join(text.split())

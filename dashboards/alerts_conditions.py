"""When an alert is active: a rule's condition as PromQL of which nothing is true that is not known.

In Prometheus missing data is silently false. A condition is therefore written without any negation: `a unless b`
becomes `a and not b`, with the comparisons of b turned round, so that what is unknown never fires
(docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Iterator

from kvitals.dashboards.alerts_options import Options, duration
from kvitals.dashboards.parsed import parse_once
from kvitals.dashboards.recording_rules import indent_text
from kvitals.diagnoser.evaluator import TRAFFIC
from kvitals.diagnoser.judgement import seconds
from kvitals.rules.condition import Comparison, Condition, parse_condition
from kvitals.rules.engine_map import load_map, systems
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, parameters, signal_names
from kvitals.rules.model import SCOPES, Rule
from kvitals.series.promql import Binary, Expr, expand
from kvitals.series.promql.rewrite import shift

_INVERSE = {">": "<=", "<": ">=", ">=": "<", "<=": ">", "==": "!=", "!=": "=="}


def expression(rule: Rule, options: Options) -> str:
    """When the alert is active: the condition, or the leave level while it fires, where the rule applies."""
    scope = ", ".join(SCOPES[rule.scope])
    text = _condition(rule, rule.when)
    if rule.clear:
        firing = f'ALERTS{{alertname="{rule.slug}", alertstate="firing"}}'
        leaving = f"(\n{indent_text(_condition(rule, rule.clear))}\n)\nand on ({scope}) {firing}"
        text = f"(\n{indent_text(text)}\n)\nor\n(\n{indent_text(leaving)}\n)"
    guards = list(applies(rule, options))
    return text if not guards else "\n".join([f"(\n{indent_text(text)}\n)", *guards])


def applies(rule: Rule, options: Options) -> Iterator[str]:
    """What keeps the alert to where the rule has something to judge."""
    scope, about = ", ".join(SCOPES[rule.scope]), rule.applies
    if about.having:
        yield f"and on ({scope}) present_over_time({about.having}[{duration(options.fast_seconds)}])"
    if rule.scope != "engine":
        return
    others = [
        f'{name}!~"{"|".join(only)}|"' for name, only in (("kind", about.kinds), ("system", about.systems)) if only
    ]
    others += [f'role=~"{"|".join(about.not_roles)}"'] if about.not_roles else []
    cannot = [system for system in systems() if rule.code in load_map(system).not_applicable]
    others += [f'system=~"{"|".join(cannot)}"'] if cannot else []
    for matcher in others:
        yield f"unless on ({scope}) kvitals_engine_info{{{matcher}}}"
    if about.traffic:
        yield f"unless on ({scope}) {SIGNAL_PREFIX}{TRAFFIC} == 0"


def unless_harmless(rule: Rule, knowledge: Knowledge) -> str:
    """What keeps the alert of a cause from where the symptoms by which it does harm are known to be clear, as the
    verdict makes it a note there; empty for a rule that names none. At least one of them must apply and be clear."""
    symptoms = [knowledge.rules[code] for code in rule.harm]
    if not symptoms:
        return ""
    on = f"on ({', '.join(SCOPES[rule.scope])})"
    clear = [f"({negative(knowledge.condition(symptom))})" for symptom in symptoms]
    kept = [
        f"({f' or {on} '.join([is_clear, *_elsewhere(symptom, rule)])})"
        for symptom, is_clear in zip(symptoms, clear, strict=True)
    ]
    if all(any(_elsewhere(symptom, rule)) for symptom in symptoms):
        kept.append(f"({f' or {on} '.join(clear)})")
    return f"unless {on}\n(\n{indent_text(f'{chr(10)}and {on} '.join(kept))}\n)"


def proven_or_lasting(rule: Rule) -> str:
    """What keeps an alert to where the figures prove it or it was true for long enough: `for` is the shorter time."""
    if seconds(rule.unproven_for) <= seconds(rule.for_):
        return ""
    scope = ", ".join(SCOPES[rule.scope])
    earlier = shift(positive(parse_condition(expand(rule.when, parameters(rule)))), seconds(rule.unproven_for))
    either = [
        f"({_condition(rule, rule.proven_when)})",
        f"({earlier})",
        f'group by ({scope}) (ALERTS{{alertname="{rule.slug}", alertstate="firing"}})',  # until it leaves
    ]
    whole = f"\nor on ({scope}) ".join(either)
    return f"and on ({scope})\n(\n{indent_text(whole)}\n)"


def _elsewhere(symptom: Rule, cause: Rule) -> Iterator[str]:
    """Selectors of engines for which the cause is and the symptom is not."""
    applies_to, caused_on = symptom.applies, cause.applies
    if applies_to.kinds and not set(caused_on.kinds) <= set(applies_to.kinds):
        yield f'kvitals_engine_info{{kind!~"{"|".join(applies_to.kinds)}|"}}'
    if roles := [role for role in applies_to.not_roles if role not in caused_on.not_roles]:
        yield f'kvitals_engine_info{{role=~"{"|".join(roles)}"}}'


def _condition(rule: Rule, text: str) -> str:
    """A condition of the rule in PromQL of which nothing is true that is not known."""
    written = expand(text, parameters(rule)).strip()
    condition = parse_condition(written)
    known = positive(condition)
    return written if known == parse_once(written) else str(known)


def positive(condition: Condition) -> Expr:
    """The condition as an expression that has a value where it is true."""
    if isinstance(condition, Comparison):
        if condition.op == "!=":  # NaN differs from everything and is not known to
            return Binary("or", _compared(condition, "<"), _compared(condition, ">"))
        return _compared(condition, condition.op)
    if condition.op == "unless":
        return Binary("and", positive(condition.left), negative(condition.right))
    return Binary(condition.op, positive(condition.left), positive(condition.right))


def negative(condition: Condition) -> Expr:
    """The same where the condition is false, which is not where it is unknown."""
    if isinstance(condition, Comparison):
        return positive(Comparison(condition.left, _INVERSE[condition.op], condition.right))
    if condition.op == "unless":
        return Binary("or", negative(condition.left), positive(condition.right))
    op = "or" if condition.op == "and" else "and"
    return Binary(op, negative(condition.left), negative(condition.right))


def _compared(condition: Comparison, op: str) -> Expr:
    return Binary(op, condition.left, condition.right)


def undecidable(expr: Expr, recorded: frozenset[str]) -> str:
    """A signal without which an expression can not be true and that is not recorded; empty where there is none."""
    if isinstance(expr, Binary) and expr.op == "or":
        left, right = (undecidable(side, recorded) for side in (expr.left, expr.right))
        return left if left and right else ""
    if isinstance(expr, Binary):
        return undecidable(expr.left, recorded) or undecidable(expr.right, recorded)
    return next((name for name in signal_names(expr) if name not in recorded), "")

"""The queries of rules and levers at one moment: parameters and windows filled in, asked about one entity."""

from __future__ import annotations

from collections.abc import Mapping

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.signals import EvaluationSpan, by_entity
from kvitals.rules.expressions import expression
from kvitals.rules.loader import parameters
from kvitals.rules.model import SCOPES, Rule
from kvitals.series.promql import Vector, expand
from kvitals.series.types import Labels


class Questions:
    """What can be asked at the moment that a judge looked at last."""

    def __init__(self, judge: Judge, span: EvaluationSpan) -> None:
        self.judge = judge
        self.span = span

    def written(self, rule: Rule, query: str, more: Mapping[str, str] | None = None) -> str:
        """A query with the rule's parameters, its scope and the windows filled in, and with `more`: name -> text."""
        known = {**parameters(rule, self.judge.params.get(rule.code)), **(more or {})}
        return expand(query, {**known, **self.span.windows.values("fast", rule.scope)})

    def answer(self, written: str) -> Vector | float:
        """What a query that is written out comes to."""
        return self.judge.signals.now.evaluate(expression(written))

    def number(self, rule: Rule, entity: Labels, query: str, more: Mapping[str, str] | None = None) -> float | None:
        """The value of a query for an entity; None where it has none, as of a comparison that does not hold."""
        found = self.answer(self.written(rule, query, more))
        return found if isinstance(found, float) else by_entity(found, SCOPES[rule.scope]).get(entity)

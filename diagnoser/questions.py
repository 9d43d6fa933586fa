"""The queries of rules and levers at one moment: parameters and windows filled in, asked about one judgement."""

from __future__ import annotations

from collections.abc import Mapping

from kvitals.diagnoser.evaluator import Judge
from kvitals.diagnoser.judgement import Judgement
from kvitals.diagnoser.signals import EvaluationSpan, by_entity
from kvitals.diagnoser.text import UNKNOWN
from kvitals.rules.expressions import expression
from kvitals.rules.loader import parameters
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Vector, expand


class Questions:
    """What can be asked at the moment that a judge looked at last. It is asked about the moment and the window that
    show a judgement: a finding, its levers and what they predict have one value of a quantity."""

    def __init__(self, judge: Judge, span: EvaluationSpan) -> None:
        self.judge = judge
        self.span = span

    def written(self, judgement: Judgement, query: str, more: Mapping[str, str] | None = None) -> str:
        """A query with the rule's parameters, its scope and the windows filled in, and with `more`: name -> text."""
        rule = judgement.rule
        known = {**parameters(rule, self.judge.params.get(rule.code)), **(more or {})}
        _, span = self.judge.shown_by(judgement, self.span)
        return expand(query, {**known, **span.windows.values("fast", rule.scope)})

    def answer(self, judgement: Judgement, written: str) -> Vector | float:
        """What a query that is written out comes to."""
        moment, _ = self.judge.shown_by(judgement, self.span)
        return moment.evaluate(expression(written))

    def number(self, judgement: Judgement, query: str, more: Mapping[str, str] | None = None) -> float | None:
        """The value of a query for its entity; None where it has none, as of a comparison that does not hold."""
        found = self.answer(judgement, self.written(judgement, query, more))
        scope = SCOPES[judgement.rule.scope]
        return found if isinstance(found, float) else by_entity(found, scope).get(judgement.entity)

    def largest(self, judgement: Judgement, query: str, label: str) -> str:
        """The label of the largest series, of those of the entity, that a query finds; `unknown` of none."""
        found = self.answer(judgement, self.written(judgement, query))
        assert not isinstance(found, float)
        entity = judgement.entity
        mine = [(v, ls) for ls, v in zip(found.labels, found.values, strict=True) if ls.keep(list(entity)) == entity]
        return max(mine, key=lambda one: one[0])[1].get(label, UNKNOWN) if mine else UNKNOWN

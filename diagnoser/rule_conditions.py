"""The conditions of rules, and the values of their sides at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial

from kvitals.diagnoser.kleene import Values, decide
from kvitals.diagnoser.signals import Signals
from kvitals.rules.condition import Comparison, Condition, comparisons, parse_condition
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, parameters
from kvitals.rules.model import SCOPES, Rule
from kvitals.series.promql import Expr, ExpressionBatch, NumberLiteral, Selector, expand
from kvitals.series.types import Labels


@dataclass
class RuleConditions:
    """The conditions of all rules, with these parameters: rule code -> parameter -> value."""

    knowledge: Knowledge
    signals: Signals
    params: Mapping[str, Mapping[str, float]]
    _parsed: dict[str, tuple[Condition, Condition]] = field(default_factory=dict)
    _batch: ExpressionBatch | None = None  # what the sides of all conditions read
    _values: dict[int, tuple[Values, Values]] = field(default_factory=dict)  # by id of a comparison, at the moment

    def look(self) -> None:
        """There is another moment, the latest of the signals: prepare for what is asked about it."""
        self.signals.now.prepare(self._reads())
        self._values = {}

    def of_rule(self, rule: Rule) -> tuple[Condition, Condition]:
        """When it becomes true, and when it stays so."""
        if rule.code not in self._parsed:
            values = parameters(rule, self.params.get(rule.code))
            when = parse_condition(expand(rule.when, values))
            clear = parse_condition(expand(rule.clear, values)) if rule.clear else when
            self._parsed[rule.code] = (when, clear)
        return self._parsed[rule.code]

    def compared(self, rule: Rule) -> list[Expr]:
        """Both sides of each comparison of a rule."""
        return [side for c in self.of_rule(rule) for one in comparisons(c) for side in (one.left, one.right)]

    def sides(self, rule: Rule, comparison: Comparison) -> tuple[Values, Values]:
        """The values of both sides of one of a rule's comparisons, at the latest moment."""
        found = self._values.get(id(comparison))  # conditions stay, so this is it and no other
        if found is None:
            left, right = (self._side(expr, rule) for expr in (comparison.left, comparison.right))
            found = self._values[id(comparison)] = left, right
        return found

    def truth(self, rule: Rule, entity: Labels) -> bool | None:
        """Whether the condition at which a rule begins is true of an entity at the latest moment; None: not known."""
        return decide(self.of_rule(rule)[0], entity, partial(self.sides, rule)).truth

    def _side(self, expr: Expr, rule: Rule) -> Values:
        if isinstance(expr, NumberLiteral):
            return expr.value
        if name := self._known_as(expr, rule):
            return self.signals.known[name].values  # what was just stored need not be looked up
        result = self.signals.now.evaluate(expr)
        return result if isinstance(result, float) else self.signals.by_entity(result, SCOPES[rule.scope])

    def _known_as(self, expr: Expr, rule: Rule) -> str:
        """The name of the signal whose values, just as they are, those of a side are; empty where it takes a query."""
        name = _plain(expr)
        signal = self.knowledge.signals.get(name)
        return name if signal is not None and signal.scope == rule.scope else ""

    def _reads(self) -> ExpressionBatch:
        """What the conditions read beside what is known of signals."""
        if self._batch is None:
            sides: list[Expr] = []
            for rule in self.knowledge.rules.values():
                with suppress(Exception):  # it crashes again where it is judged, and there it is said
                    sides += [side for side in self.compared(rule) if not self._known_as(side, rule)]
            self._batch = ExpressionBatch(sides, self.signals.source.window)
        return self._batch


@lru_cache(maxsize=4096)
def _plain(expr: Expr) -> str:
    """The signal that an expression is, without its prefix; empty where it is anything else."""
    if isinstance(expr, Selector) and not expr.matchers and not expr.offset and expr.name.startswith(SIGNAL_PREFIX):
        return expr.name.removeprefix(SIGNAL_PREFIX)
    return ""

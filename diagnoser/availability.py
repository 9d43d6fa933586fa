"""What an expression needs, and whether a source has it for an entity: the difference between "no" and "cannot".

Alternatives (`or`) need one side, `unless` needs its left side, everything else needs all of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvitals.diagnoser.signals import EvaluationSpan
from kvitals.rules.compiled_signal import FROM_NOTHING, compile_signal
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge
from kvitals.rules.model import SCOPES
from kvitals.series.promql import Expr
from kvitals.series.promql.nodes import Binary, Call, Selector
from kvitals.series.types import METRIC_NAME, Labels, Matcher, MatchOp, SeriesSource


@dataclass
class Reach:
    """What rules and signals can be told of the entities of a source at one moment."""

    knowledge: Knowledge
    source: SeriesSource
    span: EvaluationSpan
    _having: dict[tuple[Selector, Sequence[str]], set[Labels]] = field(default_factory=dict)
    _signals: dict[str, Expr] = field(default_factory=dict)

    def lacking(self, expr: Expr, entity: Labels, scope: str = "engine") -> list[str]:
        """The metrics without which an expression has no value for an entity; empty where it may have one."""
        if isinstance(expr, Selector):
            return self._of_selector(expr, entity, scope)
        if isinstance(expr, Call) and expr.func in FROM_NOTHING:
            return []
        if isinstance(expr, Binary) and expr.op == "or":
            left = self.lacking(expr.left, entity, scope)
            return left if left and self.lacking(expr.right, entity, scope) else []
        if isinstance(expr, Binary) and expr.op == "unless":
            return self.lacking(expr.left, entity, scope)
        found = [name for child in expr.children() for name in self.lacking(child, entity, scope)]
        return list(dict.fromkeys(found))

    def _of_selector(self, selector: Selector, entity: Labels, scope: str) -> list[str]:
        if selector.name.startswith(SIGNAL_PREFIX):
            signal = selector.name.removeprefix(SIGNAL_PREFIX)
            return self.lacking(self._signal(signal), entity, self.knowledge.signals[signal].scope)
        return [] if entity in self._entities(selector, scope) else [_plain(selector)]

    def _signal(self, name: str) -> Expr:
        if name not in self._signals:
            signal = self.knowledge.signals[name]
            self._signals[name] = compile_signal(signal, self.span.windows).expr
        return self._signals[name]

    def _entities(self, selector: Selector, scope: str) -> set[Labels]:
        key = (selector, scope)
        if key not in self._having:
            matchers = [Matcher(METRIC_NAME, MatchOp.EQ, selector.name), *selector.matchers]
            frames = self.source.select(matchers, self.span.at - self.span.slow, self.span.at)
            self._having[key] = {labels.keep(SCOPES[scope]) for frame in frames for labels in frame.labels}
        return self._having[key]


def _plain(selector: Selector) -> str:
    """`kvitals_engine_fact{fact="slots"}` is the fact slots; others are their name."""
    fact = next((m.value for m in selector.matchers if m.name == "fact"), "")
    return f"fact {fact}" if fact else selector.name

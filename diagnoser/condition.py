"""Three-valued evaluation of a rule's condition for every entity (docs/decisions/0003)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rules.condition import Comparison, Condition, Connective
from series.types import Labels

Values = dict[Labels, float] | float
"""A side of a comparison: a value per entity, or one number for all."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class Decided:
    """One comparison for one entity. `truth` is None when a side has no value."""

    comparison: Comparison
    truth: bool | None
    left: float | None
    right: float | None


@dataclass(frozen=True)
class Verdict:
    """A whole condition for one entity: its Kleene value and the comparisons that made it."""

    truth: bool | None
    decided: tuple[Decided, ...]

    def _with(self, truth: bool | None) -> Iterator[Decided]:
        return (d for d in self.decided if d.truth is truth)

    @property
    def false(self) -> list[Decided]:
        """The comparisons that were false, in order."""
        return list(self._with(False))

    @property
    def unknown(self) -> list[Decided]:
        return list(self._with(None))


def decide(condition: Condition, entity: Labels, side: Callable[[Comparison], tuple[Values, Values]]) -> Verdict:
    """Evaluate for one entity; `side` gives the values of a comparison's two sides (cached by the caller)."""
    if isinstance(condition, Comparison):
        left, right = (_value(values, entity) for values in side(condition))
        truth = None if left is None or right is None else _COMPARE[condition.op](left, right)
        return Verdict(truth, (Decided(condition, truth, left, right),))
    left_verdict = decide(condition.left, entity, side)
    right_verdict = decide(condition.right, entity, side)
    return Verdict(
        _connect(condition, left_verdict.truth, right_verdict.truth),
        left_verdict.decided + right_verdict.decided,
    )


def compiled(
    condition: Condition, side: Callable[[Comparison], tuple[Values, Values]]
) -> Callable[[Labels], bool | None]:
    """What `decide` finds a condition's truth to be, for many entities: a fleet's rules are mostly plainly false."""
    if isinstance(condition, Comparison):
        left, right = side(condition)
        compare = _COMPARE[condition.op]

        def compared(entity: Labels) -> bool | None:
            x, y = _value(left, entity), _value(right, entity)
            return None if x is None or y is None else compare(x, y)

        return compared
    first, second = compiled(condition.left, side), compiled(condition.right, side)
    return lambda entity: _connect(condition, first(entity), second(entity))


def _value(values: Values, entity: Labels) -> float | None:
    value = values if isinstance(values, float) else values.get(entity)
    return None if value is None or value != value else value  # NaN is not itself


def _connect(node: Connective, left: bool | None, right: bool | None) -> bool | None:
    if node.op == "or":
        return _or(left, right)
    if node.op == "unless":
        right = None if right is None else not right
    return _and(left, right)


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return True if left and right else None


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return False if left is False and right is False else None

"""Three-valued evaluation of a rule's condition for every entity (docs/decisions/0003)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvitals.rules.condition import Comparison, Condition, Connective
from kvitals.series.types import Labels

Values = dict[Labels, float] | float
"""A side of a comparison: a value per entity, or one number for all."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


@dataclass(frozen=True)
class ComparisonResult:
    """One comparison for one entity. `truth` is None when a side has no value."""

    comparison: Comparison
    truth: bool | None
    left: float | None
    right: float | None


@dataclass(frozen=True)
class Verdict:
    """A whole condition for one entity: its Kleene value and the comparisons that made it."""

    truth: bool | None
    decided: tuple[ComparisonResult, ...]

    def _with(self, truth: bool | None) -> Iterator[ComparisonResult]:
        return (d for d in self.decided if d.truth is truth)

    @property
    def false(self) -> list[ComparisonResult]:
        """The comparisons that were false, in order."""
        return list(self._with(False))

    @property
    def unknown(self) -> list[ComparisonResult]:
        return list(self._with(None))


def decide(condition: Condition, entity: Labels, side: Callable[[Comparison], tuple[Values, Values]]) -> Verdict:
    """Evaluate for one entity; `side` gives the values of a comparison's two sides (cached by the caller)."""
    if isinstance(condition, Comparison):
        left, right = (_value(values, entity) for values in side(condition))
        truth = None if left is None or right is None else _COMPARE[condition.op](left, right)
        return Verdict(truth, (ComparisonResult(condition, truth, left, right),))
    left_verdict = decide(condition.left, entity, side)
    right_verdict = decide(condition.right, entity, side)
    return Verdict(
        _connect(condition, left_verdict.truth, right_verdict.truth),
        left_verdict.decided + right_verdict.decided,
    )


def truths(
    condition: Condition, entities: Sequence[Labels], side: Callable[[Comparison], tuple[Values, Values]]
) -> list[bool | None]:
    """What `decide` finds a condition's truth to be, for many entities: most rules are plainly false of most."""
    if isinstance(condition, Comparison):
        left, right = (_column(values, entities) for values in side(condition))
        compare = _COMPARE[condition.op]
        return [None if x is None or y is None else compare(x, y) for x, y in zip(left, right, strict=True)]
    first = truths(condition.left, entities, side)
    if all(truth is (condition.op == "or") for truth in first):  # of any of them the other part changes nothing
        return first
    second = truths(condition.right, entities, side)
    return [_connect(condition, x, y) for x, y in zip(first, second, strict=True)]


def _column(values: Values, entities: Sequence[Labels]) -> list[float | None]:
    if isinstance(values, float):
        return [None if values != values else values] * len(entities)
    if not values:
        return [None] * len(entities)
    return [None if value is None or value != value else value for value in map(values.get, entities)]


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

"""The structure of a rule's `when`: and / or / unless over comparisons.

In Prometheus the text is an ordinary alert expression. Here it is taken apart into comparisons, each of which is
decided by itself, so that "no data" can be told from "no" (docs/decisions/0003).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kvitals.series.promql import Binary, Expr, PromQLError, parse

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
CONNECTIVES = frozenset({"and", "or", "unless"})


@dataclass(frozen=True)
class Comparison:
    """`left op right`, both sides instant vectors or numbers."""

    left: Expr
    op: str
    right: Expr

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True)
class Connective:
    op: str  # and, or, unless
    left: Condition
    right: Condition


Condition = Comparison | Connective


@lru_cache(maxsize=1024)
def parse_condition(text: str) -> Condition:
    """Take a `when` text apart. Raises PromQLError when it is anything but connected comparisons.

    The conditions of all rules are kept: whatever judges, and the loader, parse each text once.
    """
    return _structure(parse(text))


def comparisons(condition: Condition) -> list[Comparison]:
    """All comparisons of a condition, left to right."""
    if isinstance(condition, Comparison):
        return [condition]
    return comparisons(condition.left) + comparisons(condition.right)


def alternatives(condition: Condition) -> list[Condition]:
    """The parts of a condition of which any one is enough: itself, where it is no `or`."""
    if isinstance(condition, Connective) and condition.op == "or":
        return [*alternatives(condition.left), *alternatives(condition.right)]
    return [condition]


def _structure(expr: Expr) -> Condition:
    if isinstance(expr, Binary) and expr.op in CONNECTIVES:
        return Connective(expr.op, _structure(expr.left), _structure(expr.right))
    if isinstance(expr, Binary) and expr.op in COMPARISONS:
        return Comparison(expr.left, expr.op, expr.right)
    raise PromQLError(
        f"`{expr}` is not a comparison: a condition is comparisons of signals (> >= < <= == !=) "
        "joined by and, or, unless"
    )

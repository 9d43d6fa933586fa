"""The expressions of the PromQL subset.

Nodes are immutable and hashable, so an expression is a dictionary key. `str` of a node is canonical PromQL:
it parses to an equal node, in kvitals and in Prometheus. Parentheses are not nodes; they are printed where
precedence asks for them. Durations are seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, escape

ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^"})
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SET_OPERATORS = frozenset({"and", "or", "unless"})
PARAMETRIC_AGGREGATIONS = frozenset({"quantile", "topk", "bottomk"})
AGGREGATIONS = PARAMETRIC_AGGREGATIONS | {"sum", "avg", "min", "max", "count", "stddev", "group"}

_PRECEDENCE = {
    "or": 1, "and": 2, "unless": 2,
    "==": 3, "!=": 3, ">": 3, "<": 3, ">=": 3, "<=": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5, "^": 6,
}  # fmt: skip

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Metrics with such a name are printed as {__name__="..."}; not all parsers take them bare.
_RESERVED = AGGREGATIONS | SET_OPERATORS | {
    "atan2", "on", "ignoring", "group_left", "group_right", "bool", "offset", "by", "without", "inf", "nan",
    "start", "end", "count_values", "stdvar", "limitk", "limit_ratio",
}  # fmt: skip


Type = Literal["scalar", "vector", "range", "string"]


class Expr:
    """Base of all nodes. Every evaluation needs hash, type and whether it was checked: each is computed once."""

    __slots__ = ("_checked", "_hash", "_type")
    _checked: bool
    _hash: int
    _type: Type

    def children(self) -> list[Expr]:
        """The direct sub-expressions, from left to right."""
        return []

    def walk(self) -> Iterator[Expr]:
        """This node and everything below it, parents first."""
        todo: list[Expr] = [self]
        while todo:
            node = todo.pop()
            yield node
            todo += reversed(node.children())


N = TypeVar("N", bound=type[Expr])
E = TypeVar("E", bound=Expr)


def _hashed_once(node: N) -> N:
    """A class of nodes that remember their hash: the same expressions are looked up every few seconds."""
    compute: Callable[[Expr], int] = node.__hash__

    def remembered(self: Expr) -> int:
        try:
            return self._hash
        except AttributeError:
            found = compute(self)
            object.__setattr__(self, "_hash", found)
            return found

    node.__hash__ = remembered  # type: ignore[assignment, method-assign]
    return node


@_hashed_once
@dataclass(frozen=True, slots=True, eq=False)
class NumberLiteral(Expr):
    """Equal are numbers that are written alike: NaN is NaN, and -0 is not 0."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberLiteral) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "NaN"
        if math.isinf(self.value):
            return "Inf" if self.value > 0 else "-Inf"
        text = repr(self.value)
        return text.removesuffix(".0")


@_hashed_once
@dataclass(frozen=True, slots=True)
class String(Expr):
    value: str

    def __str__(self) -> str:
        return f'"{escape(self.value)}"'


@_hashed_once
@dataclass(frozen=True, slots=True)
class Selector(Expr):
    """An instant selector. `name` is empty where the metric is not fixed by one equality."""

    name: str
    matchers: tuple[Matcher, ...] = ()
    offset: float = 0.0

    def all_matchers(self) -> tuple[Matcher, ...]:
        """The matchers with the metric name as the first."""
        if not self.name:
            return self.matchers
        return (Matcher(METRIC_NAME, MatchOp.EQ, self.name), *self.matchers)

    def __str__(self) -> str:
        return self.base() + _offset(self.offset)

    def base(self) -> str:
        """The selector without its offset."""
        bare = bool(_METRIC.fullmatch(self.name)) and self.name.lower() not in _RESERVED
        inside = self.matchers if bare else self.all_matchers()
        name = self.name if bare else ""
        return name + ("{" + ", ".join(map(str, inside)) + "}" if inside else "")


@_hashed_once
@dataclass(frozen=True, slots=True)
class Range(Expr):
    """A range selector: the samples of `selector` in the closed interval [t - range, t], less its offset."""

    selector: Selector
    range: float

    def children(self) -> list[Expr]:
        return [self.selector]

    def __str__(self) -> str:
        return f"{self.selector.base()}[{duration(self.range)}]{_offset(self.selector.offset)}"


@_hashed_once
@dataclass(frozen=True, slots=True)
class Subquery(Expr):
    """`expr` evaluated at every multiple of `step` in the range; None is the evaluator's default step."""

    expr: Expr
    range: float
    step: float | None = None
    offset: float = 0.0

    def children(self) -> list[Expr]:
        return [self.expr]

    def __str__(self) -> str:
        inner = str(self.expr)
        # A selector's offset would read as the subquery's, so such a selector keeps its parentheses.
        shifted = isinstance(self.expr, Selector) and self.expr.offset
        atom = isinstance(self.expr, Call | Aggregate | Selector) and not shifted
        step = "" if self.step is None else duration(self.step)
        return f"{inner if atom else f'({inner})'}[{duration(self.range)}:{step}]{_offset(self.offset)}"


@_hashed_once
@dataclass(frozen=True, slots=True)
class Call(Expr):
    func: str
    args: tuple[Expr, ...] = ()

    def children(self) -> list[Expr]:
        return [*self.args]

    def __str__(self) -> str:
        return f"{self.func}({', '.join(map(str, self.args))})"


@_hashed_once
@dataclass(frozen=True, slots=True)
class Aggregate(Expr):
    """`grouping` is sorted. Without `without`, an empty grouping makes one group of everything."""

    op: str
    expr: Expr
    grouping: tuple[str, ...] = ()
    without: bool = False
    param: Expr | None = None

    def children(self) -> list[Expr]:
        return [self.expr] if self.param is None else [self.expr, self.param]

    def __str__(self) -> str:
        by = ""
        if self.without or self.grouping:
            by = f" {'without' if self.without else 'by'} ({', '.join(self.grouping)}) "
        param = "" if self.param is None else f"{self.param}, "
        return f"{self.op}{by}({param}{self.expr})"


@_hashed_once
@dataclass(frozen=True, slots=True)
class Unary(Expr):
    """Unary minus; plus is dropped when parsing."""

    expr: Expr

    def children(self) -> list[Expr]:
        return [self.expr]

    def __str__(self) -> str:
        simple = isinstance(self.expr, Selector | Call | Aggregate)
        return f"-{self.expr}" if simple else f"-({self.expr})"


@dataclass(frozen=True, slots=True)
class Matching:
    """How the two sides of an operator are joined.

    `many` is the side that may have several series for one of the other (group_left: left), None where
    neither may. `include` are the labels copied from the one side.
    """

    on: bool = False
    labels: tuple[str, ...] = ()
    many: Literal["left", "right"] | None = None
    include: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.on or self.labels or self.many:
            parts.append(f"{'on' if self.on else 'ignoring'} ({', '.join(self.labels)})")
        if self.many:
            parts.append(f"group_{self.many} ({', '.join(self.include)})")
        return " ".join(parts)


@_hashed_once
@dataclass(frozen=True, slots=True)
class Binary(Expr):
    op: str
    left: Expr
    right: Expr
    returns_bool: bool = False
    matching: Matching = Matching()

    def children(self) -> list[Expr]:
        return [self.left, self.right]

    def __str__(self) -> str:
        words = [self.op, "bool" if self.returns_bool else "", str(self.matching)]
        left, right = _operand(self, self.left, is_left=True), _operand(self, self.right, is_left=False)
        return f"{left} {' '.join(w for w in words if w)} {right}"


def _operand(parent: Binary, child: Expr, *, is_left: bool) -> str:
    """`child` in parentheses where it would otherwise be read differently."""
    if isinstance(child, Binary):
        mine, its = _PRECEDENCE[parent.op], _PRECEDENCE[child.op]
        # All operators associate to the left but ^; the side that associates may repeat the precedence.
        loose = its < mine or (its == mine and is_left == (parent.op == "^"))
        return f"({child})" if loose else str(child)
    negative = isinstance(child, NumberLiteral) and math.copysign(1.0, child.value) < 0
    if isinstance(child, Unary) or (negative and parent.op == "^"):
        return f"({child})"
    return str(child)


def duration(seconds: float) -> str:
    """A positive duration in PromQL: 5400 -> `1h30m`."""
    rest = round(seconds * 1000)
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _offset(seconds: float) -> str:
    if not seconds:
        return ""
    return f" offset {'-' if seconds < 0 else ''}{duration(abs(seconds))}"


def rebuild(expr: E, /, **changes: Any) -> E:
    """A copy of the node with fields replaced (`dataclasses.replace`, typed for any node)."""
    return replace(expr, **changes)  # type: ignore[type-var]  # every subclass is a dataclass

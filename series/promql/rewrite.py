"""Queries from templates and from one another: parameters, definitions, and what a query reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import is_

from kvitals.series.promql.check import check, type_of
from kvitals.series.promql.nodes import (
    Aggregate,
    Binary,
    Call,
    Expr,
    NumberLiteral,
    Range,
    Selector,
    Subquery,
    Unary,
    rebuild,
)
from kvitals.series.promql.promql_error import PromQLError

_PARAMETER = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<braced>[A-Za-z_]\w*)\}|(?P<bare>[A-Za-z_]\w*))", re.ASCII)


def expand(text: str, values: Mapping[str, str]) -> str:
    """`text` with every `$name` and `${name}` replaced by its value; values are not expanded again.

    `$$` is a dollar sign; `$1` and the like are left for label_replace. Raises PromQLError for a name
    without a value.
    """

    def value(found: re.Match[str]) -> str:
        name = found["braced"] or found["bare"]
        if name is None:
            return "$"
        if name not in values:
            known = " ".join(f"${k}" for k in sorted(values)) or "none"
            raise PromQLError(f"no value for ${name}; known names: {known}", offset=found.start())
        return values[name]

    return _PARAMETER.sub(value, text)


def inline(expr: Expr, definitions: Mapping[str, Expr], step: float = 60.0) -> Expr:
    """`expr` with the defined names replaced by what they stand for, as if they were not recorded.

    An instant selector of a defined name becomes its definition, evaluated at the selector's offset; a range
    selector becomes the subquery `(definition)[range:step]` (step in seconds). Definitions may use each
    other. Unlike a recorded series, the result has the definition's metric name or none, and no lookback.
    Raises PromQLError for matchers on a defined name, for a cycle, and where the result's types do not fit.
    """
    result = _inline(expr, definitions, step, ())
    check(result)
    return result


def _inline(expr: Expr, definitions: Mapping[str, Expr], step: float, within: tuple[str, ...]) -> Expr:
    selector = expr.selector if isinstance(expr, Range) else expr
    if isinstance(selector, Selector):
        if selector.name not in definitions:
            return expr
        definition = _definition(selector, definitions, step, within)
        if isinstance(expr, Range):
            return Subquery(definition, expr.range, step, selector.offset)
        return shift(definition, selector.offset)
    return map_children(expr, lambda child: _inline(child, definitions, step, within))


def _definition(selector: Selector, definitions: Mapping[str, Expr], step: float, within: tuple[str, ...]) -> Expr:
    name = selector.name
    if any(m.value for m in selector.matchers):
        raise PromQLError(f"{name} is a defined signal and takes no matchers: {selector}")
    if name in within:
        raise PromQLError(f"these definitions use each other in a circle: {' -> '.join((*within, name))}")
    definition = _inline(definitions[name], definitions, step, (*within, name))
    # A recorded scalar is a series without labels.
    return Call("vector", (definition,)) if type_of(definition) == "scalar" else definition


def shift(expr: Expr, offset: float) -> Expr:
    """The expression whose value now is that of `expr` `offset` seconds ago."""
    if not offset:
        return expr
    if isinstance(expr, Selector):
        return rebuild(expr, offset=round(expr.offset + offset, 3))
    if isinstance(expr, Range):
        return rebuild(expr, selector=shift(expr.selector, offset))
    if isinstance(expr, Subquery):
        return rebuild(expr, offset=round(expr.offset + offset, 3))
    shifted = map_children(expr, lambda child: shift(child, offset))
    if isinstance(expr, Call) and _tells_evaluation_time(expr):
        return Binary("-", shifted, NumberLiteral(offset))
    return shifted


def _tells_evaluation_time(call: Call) -> bool:
    return call.func == "time" or (call.func == "timestamp" and not isinstance(call.args[0], Selector))


def map_children(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """A copy with `change` applied to the direct sub-expressions; `expr` itself where none of them changes."""
    if isinstance(expr, Call):
        args = tuple(map(change, expr.args))
        return expr if all(map(is_, args, expr.args)) else rebuild(expr, args=args)
    if isinstance(expr, Aggregate):
        inner, param = change(expr.expr), None if expr.param is None else change(expr.param)
        return expr if inner is expr.expr and param is expr.param else rebuild(expr, expr=inner, param=param)
    if isinstance(expr, Unary | Subquery):
        inner = change(expr.expr)
        return expr if inner is expr.expr else rebuild(expr, expr=inner)
    if isinstance(expr, Binary):
        left, right = change(expr.left), change(expr.right)
        return expr if left is expr.left and right is expr.right else rebuild(expr, left=left, right=right)
    return expr


@dataclass(frozen=True, slots=True)
class Use:
    """One selector in a query. range: seconds, 0 for an instant selector.

    reach: how many seconds before the evaluation time the oldest sample may be that the selector reads:
    range or lookback, offsets and enclosing subqueries together.
    """

    selector: Selector
    range: float
    reach: float

    @property
    def name(self) -> str:
        return self.selector.name


def selectors(expr: Expr, lookback: float = 300.0) -> list[Use]:
    """Every selector in `expr`, from left to right."""
    return _selectors(expr, lookback, 0.0)


def _selectors(expr: Expr, lookback: float, before: float) -> list[Use]:
    if isinstance(expr, Selector):
        return [Use(expr, 0.0, before + expr.offset + lookback)]
    if isinstance(expr, Range):
        return [Use(expr.selector, expr.range, before + expr.selector.offset + expr.range)]
    if isinstance(expr, Subquery):
        before += expr.offset + expr.range
    return [use for child in expr.children() for use in _selectors(child, lookback, before)]


def names(expr: Expr) -> frozenset[str]:
    """The metric names that `expr` reads; selectors without a fixed name are not among them."""
    return frozenset(node.name for node in expr.walk() if isinstance(node, Selector) and node.name)

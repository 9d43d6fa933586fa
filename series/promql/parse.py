"""Text to expression."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import pairwise
from typing import Any

import promql_parser as p

from kvitals.series.promql.check import FUNCTIONS, check
from kvitals.series.promql.lexer import MAX_LENGTH, Token, tokenize
from kvitals.series.promql.nodes import (
    AGGREGATIONS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Matching,
    NumberLiteral,
    Range,
    Selector,
    String,
    Subquery,
    Unary,
)
from kvitals.series.promql.promql_error import InvalidPromQLError, PromQLError, shorten
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp

# Names that may stand before a parenthesis without being a function.
_CALLABLE = AGGREGATIONS | {
    "by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool",
}  # fmt: skip
_MARKS = {MatchOp.EQ: "=", MatchOp.NE: "!", MatchOp.RE: "~", MatchOp.NRE: "^"}
_OPERATORS = frozenset(op.value for op in MatchOp)
_MARKED = {mark: op for op, mark in _MARKS.items()}


def parse(text: str, length: int = MAX_LENGTH) -> Expr:
    """The expression that `text` means.

    Raises PromQLError for wrong syntax, wrong types and everything outside the subset; the message says
    what, where and what is allowed. The text may have `length` characters, 16 KiB unless a local file is read, and the
    expression 100 levels.
    """
    tokens = tokenize(text, length)
    if not tokens:
        raise PromQLError("the query is empty")
    _check_words(tokens)
    try:
        tree = p.parse(_with_marked_matchers(text, tokens))
    except BaseException as error:
        # The parser reports a bug in itself as a bare BaseException of this name.
        if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
            # What follows in this message shows a value with its mark.
            why = "metric name must not be set twice" if "set twice" in str(error) else error
            raise InvalidPromQLError(f"{why}: {shorten(text)}") from None
        raise
    expr = _convert(tree, 0)
    check(expr)
    return expr


def _check_words(tokens: list[Token]) -> None:
    """Refuses functions, literals and operators that the parser knows and the subset does not."""
    braces = 0
    before = Token("", "", 0)
    for i, token in enumerate(tokens):
        after = tokens[i + 1].text if i + 1 < len(tokens) else ""
        braces += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "op" else 0
        if token.kind == "name" and before.text.lower() != "offset" and not braces:
            _check_name(token, before, after)
        elif token.kind == "duration" and before.text.lower() != "offset":
            signed = before.text in ("-", "+") and i > 1 and tokens[i - 2].text.lower() == "offset"
            if not signed:
                raise PromQLError(f"the duration {token.text} is not allowed here", offset=token.offset)
        elif token.kind == "number" and before.text.lower() == "offset":
            raise PromQLError(f"an offset needs a unit, as in {token.text}s", offset=token.offset)
        elif token.kind == "name" and before.text.lower() == "offset":
            raise PromQLError("an offset is a duration, as in offset 5m", offset=token.offset)
        elif token.kind == "string" and braces and before.text not in ("=", "!=", "=~", "!~"):
            raise PromQLError("quoted names are not in the subset", offset=token.offset)
        before = token


def _with_marked_matchers(text: str, tokens: list[Token]) -> str:
    """The query with each matcher as an equality, whose value begins with a mark for the operator.

    promql-parser compiles patterns with another engine than RE2, which allows others and has no bound of ours. Like
    this it sees none.
    """
    parts, done, braces = [], 0, 0
    for before, token in pairwise(tokens):
        braces += {"{": 1, "}": -1}.get(before.text, 0) if before.kind == "op" else 0
        if token.kind == "string" and before.kind == "op" and before.text in _OPERATORS and braces:
            mark = _MARKS[MatchOp(before.text)]
            parts += [text[done : before.offset], "=", token.text[0], mark]
            done = token.offset + 1
    return "".join([*parts, text[done:]])


def _check_name(token: Token, before: Token, after: str) -> None:
    called = after == "(" and token.text.lower() not in _CALLABLE and token.text not in FUNCTIONS
    if called or (token.text == "atan2" and before.text):
        allowed = " ".join(sorted({*FUNCTIONS, *AGGREGATIONS}))
        raise PromQLError(f"{token.text} is not in the subset; allowed are {allowed}", offset=token.offset)


def _convert(tree: Any, depth: int) -> Expr:
    """Our node for a node of promql-parser. `depth` bounds the recursion before `check` sees the result."""
    if depth > 300:
        raise PromQLError("the expression is nested too deeply: split it")
    if isinstance(tree, p.ParenExpr):
        return _convert(tree.expr, depth + 1)
    if isinstance(tree, p.NumberLiteral):
        return _number(tree.val)
    if isinstance(tree, p.StringLiteral):
        return String(tree.val)
    if isinstance(tree, p.VectorSelector):
        return _selector(tree)
    if isinstance(tree, p.MatrixSelector):
        return Range(_selector(tree.vector_selector), _seconds(tree.range))
    if isinstance(tree, p.SubqueryExpr):
        _refuse_at(tree)
        step = None if tree.step is None else _seconds(tree.step)
        return Subquery(_convert(tree.expr, depth + 1), _seconds(tree.range), step, _seconds(tree.offset))
    if isinstance(tree, p.UnaryExpr):
        inner = _convert(tree.expr, depth + 1)
        return _number(-inner.value) if isinstance(inner, NumberLiteral) else Unary(inner)
    if isinstance(tree, p.Call):
        return Call(tree.func.name, tuple(_convert(arg, depth + 1) for arg in tree.args))
    if isinstance(tree, p.AggregateExpr):
        return _aggregate(tree, depth)
    if isinstance(tree, p.BinaryExpr):
        return _binary(tree, depth)
    raise PromQLError(f"{type(tree).__name__} is not in the subset: {shorten(tree)}")


def _number(value: float) -> NumberLiteral:
    # One NaN object for all: tuples compare by identity first, so equal expressions stay equal.
    return NumberLiteral(math.nan if math.isnan(value) else value)


def _selector(tree: Any) -> Selector:
    _refuse_at(tree)
    if tree.matchers.or_matchers:
        raise PromQLError(f"`or` between matchers is not in the subset; use =~: {shorten(tree)}")
    matchers = [Matcher(m.name, _MARKED[m.value[0]], m.value[1:]) for m in tree.matchers.matchers]
    name = tree.name or ""
    named = [m for m in matchers if m.name == METRIC_NAME]
    # {__name__="x"} and x are one selector; two conditions on the name cannot be written as x{...}.
    if len(named) == 1 and named[0].op is MatchOp.EQ and named[0].value:
        name = named[0].value
        matchers.remove(named[0])
    return Selector(name, tuple(matchers), _seconds(tree.offset))


def _seconds(delta: timedelta | None) -> float:
    return 0.0 if delta is None else round(delta.total_seconds(), 3)


def _aggregate(tree: Any, depth: int) -> Expr:
    modifier = tree.modifier
    param = None if tree.param is None else _convert(tree.param, depth + 1)
    return Aggregate(
        op=str(tree.op),
        expr=_convert(tree.expr, depth + 1),
        grouping=tuple(sorted(set(modifier.labels))) if modifier else (),
        without=modifier is not None and modifier.type == p.AggModifierType.Without,
        param=param,
    )


def _binary(tree: Any, depth: int) -> Expr:
    left, right = _convert(tree.lhs, depth + 1), _convert(tree.rhs, depth + 1)
    modifier = tree.modifier
    if modifier is None:
        return Binary(str(tree.op), left, right)
    fill = modifier.fill_values
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        raise PromQLError(f"fill is not in the subset: {shorten(tree)}")
    return Binary(str(tree.op), left, right, modifier.return_bool, _matching(modifier))


def _matching(modifier: Any) -> Matching:
    labels = modifier.matching
    many = {"ManyToOne": "left", "OneToMany": "right"}.get(str(modifier.card).rpartition(".")[2])
    return Matching(
        on=labels is not None and labels.type == p.LabelModifierType.Include,
        labels=tuple(sorted(set(labels.labels))) if labels else (),
        many=many,  # type: ignore[arg-type]
        include=tuple(sorted(set(modifier.group_labels or ()))),
    )


def _refuse_at(tree: Any) -> None:
    if tree.at is not None:
        raise PromQLError(f"the @ modifier is not in the subset: use offset: {shorten(tree)}")

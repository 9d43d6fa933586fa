"""Which functions there are, and whether an expression's types fit.

Every expression that reaches the evaluator went through `check`: parsed ones and rewritten ones alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvitals.series import patterns
from kvitals.series.promql.nodes import (
    AGGREGATIONS,
    ARITHMETIC,
    COMPARISONS,
    PARAMETRIC_AGGREGATIONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    NumberLiteral,
    Range,
    Selector,
    String,
    Subquery,
    Type,
    Unary,
)
from kvitals.series.promql.promql_error import PromQLError, shorten
from kvitals.series.types import Matcher, MatchOp

MAX_DEPTH = 100

_SPOKEN = {
    "scalar": "a scalar", "vector": "an instant vector", "range": "a range vector", "string": "a string",
}  # fmt: skip

_PATTERN_OPS = (MatchOp.RE, MatchOp.NRE)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Function:
    """`args` are the types of the arguments; `optional` of the last may be left out, `repeats` the last."""

    name: str
    args: tuple[Type, ...]
    result: Type = "vector"
    optional: int = 0
    repeats: bool = False


def _table() -> dict[str, Function]:
    over_range = (
        "rate irate increase delta idelta deriv changes resets avg_over_time min_over_time max_over_time "
        "sum_over_time count_over_time last_over_time stddev_over_time present_over_time"
    )
    over_vector = "abs ceil floor sqrt exp ln log2 log10 absent timestamp sort sort_desc"
    functions = [
        *(Function(name, ("range",)) for name in over_range.split()),
        *(Function(name, ("vector",)) for name in over_vector.split()),
        Function("predict_linear", ("range", "scalar")),
        Function("quantile_over_time", ("scalar", "range")),
        Function("histogram_quantile", ("scalar", "vector")),
        Function("clamp", ("vector", "scalar", "scalar")),
        Function("clamp_min", ("vector", "scalar")),
        Function("clamp_max", ("vector", "scalar")),
        Function("round", ("vector", "scalar"), optional=1),
        Function("scalar", ("vector",), result="scalar"),
        Function("vector", ("scalar",)),
        Function("time", (), result="scalar"),
        Function("label_replace", ("vector", "string", "string", "string", "string")),
        Function("label_join", ("vector", "string", "string", "string"), optional=1, repeats=True),
    ]
    return {f.name: f for f in functions}


FUNCTIONS = _table()


def type_of(expr: Expr) -> Type:
    """The type of an expression whose parts are known to fit."""
    try:
        return expr._type
    except AttributeError:
        object.__setattr__(expr, "_type", found := _type_of(expr))
        return found


def _type_of(expr: Expr) -> Type:
    if isinstance(expr, NumberLiteral):
        return "scalar"
    if isinstance(expr, String):
        return "string"
    if isinstance(expr, Range | Subquery):
        return "range"
    if isinstance(expr, Call):
        return FUNCTIONS[expr.func].result
    if isinstance(expr, Unary):
        return type_of(expr.expr)
    if isinstance(expr, Binary):
        return "vector" if "vector" in (type_of(expr.left), type_of(expr.right)) else "scalar"
    return "vector"


def check(expr: Expr) -> Type:
    """The type of `expr`, after checking all of it.

    Raises PromQLError for a wrong argument, a wrong operand, a regular expression that RE2 refuses, regular expressions
    that are too large together, or an expression deeper than `MAX_DEPTH`. An expression is checked once.
    """
    if not getattr(expr, "_checked", False):
        _check_depth(expr)
        for node in expr.walk():
            _check_node(node)
        _check_patterns(expr)
        mark_checked(expr)
    return type_of(expr)


def mark_checked(expr: Expr) -> None:
    """Skip `check` of an expression that was derived from a checked one and has the same shape and patterns."""
    object.__setattr__(expr, "_checked", True)


def _check_depth(expr: Expr) -> None:
    level: Sequence[Expr] = [expr]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.children()]
        if not level:
            return
    raise PromQLError(f"the expression is nested deeper than {MAX_DEPTH} levels: split it")


def _check_node(node: Expr) -> None:
    if isinstance(node, Selector):
        _check_selector(node)
    elif isinstance(node, Range | Subquery):
        _check_range(node)
    elif isinstance(node, Call):
        _check_call(node)
    elif isinstance(node, Aggregate):
        _check_aggregate(node)
    elif isinstance(node, Unary):
        if _known_type(node.expr) not in ("scalar", "vector"):
            raise _mismatch(node, "unary minus takes a scalar or an instant vector", node.expr)
    elif isinstance(node, Binary):
        _check_binary(node)


def _check_selector(node: Selector) -> None:
    for matcher in node.matchers:
        _check_pattern(matcher)
    if not node.name and all(m.matches({}) for m in node.matchers):
        raise PromQLError(f"{node} selects everything: name a metric or give a non-empty matcher")


def _check_pattern(matcher: Matcher) -> None:
    if matcher.op in _PATTERN_OPS:
        _program(matcher.value, matcher)


def _check_patterns(expr: Expr) -> None:
    """Bounds the regular expressions of one expression together: each is bounded by itself when it is compiled."""
    texts = {m.value for n in expr.walk() if isinstance(n, Selector) for m in n.matchers if m.op in _PATTERN_OPS}
    calls = [node for node in expr.walk() if isinstance(node, Call) and node.func == "label_replace"]
    texts |= {arg.value for node in calls for arg in node.args[4:] if isinstance(arg, String)}
    size = 0
    for text in texts:
        size += _program(text, expr)
        if size > patterns.MAX_PROGRAMS:
            raise PromQLError(
                "the regular expressions of the query are too large together: use fewer or shorter repeats, or several"
                f" queries: {shorten(expr)}"
            )


def _program(pattern: str, where: object) -> int:
    """The size of a regular expression, in RE2's instructions."""
    try:
        return patterns.compile_pattern(pattern).program
    except patterns.PatternError as error:
        raise PromQLError(f"{error}; in {shorten(where)}") from None


def _check_range(node: Range | Subquery) -> None:
    step = node.step if isinstance(node, Subquery) else None
    if round(node.range * 1000) < 1 or (step is not None and round(step * 1000) < 1):
        raise PromQLError(f"a range or step of less than a millisecond in {shorten(node)}")
    if isinstance(node, Subquery) and _known_type(node.expr) != "vector":
        raise _mismatch(node, "a subquery takes an instant vector", node.expr)


def _check_call(node: Call) -> None:
    function = _function(node.func)
    least = len(function.args) - function.optional
    most = len(function.args)
    if len(node.args) < least or (len(node.args) > most and not function.repeats):
        raise PromQLError(f"{node.func} takes {_count(function)} arguments, not {len(node.args)}: {shorten(node)}")
    for i, arg in enumerate(node.args):
        wanted = function.args[min(i, most - 1)]
        if _known_type(arg) != wanted:
            hint = " (as in x[5m])" if wanted == "range" else ""
            raise _mismatch(node, f"argument {i + 1} of {node.func} must be {_SPOKEN[wanted]}{hint}", arg)
    if node.func in ("label_replace", "label_join"):
        _check_label_call(node)


def _count(function: Function) -> str:
    most = len(function.args)
    least = most - function.optional
    if function.repeats:
        return f"{least} or more"
    return str(most) if least == most else f"{least} to {most}"


def _check_label_call(node: Call) -> None:
    texts = [arg.value for arg in node.args[1:] if isinstance(arg, String)]
    target, *sources = texts[:1] + (texts[2:] if node.func == "label_join" else [])
    for label in (target, *sources):
        if not _LABEL.fullmatch(label):
            raise PromQLError(f"{label!r} is not a label name: {shorten(node)}")
    if node.func == "label_replace":
        _program(texts[3], node)


def _check_aggregate(node: Aggregate) -> None:
    if node.op not in AGGREGATIONS:
        raise PromQLError(f"{node.op} is not in the subset; aggregations are {_list(AGGREGATIONS)}")
    if (node.param is None) == (node.op in PARAMETRIC_AGGREGATIONS):
        count = "two arguments, a scalar and a vector" if node.param is None else "one argument"
        raise PromQLError(f"{node.op} takes {count}: {shorten(node)}")
    if node.param is not None and _known_type(node.param) != "scalar":
        raise _mismatch(node, f"the first argument of {node.op} must be a scalar", node.param)
    if _known_type(node.expr) != "vector":
        raise _mismatch(node, f"{node.op} takes an instant vector", node.expr)


def _check_binary(node: Binary) -> None:
    if node.op not in ARITHMETIC | COMPARISONS | SET_OPERATORS:
        raise PromQLError(f"the operator {node.op!r} is not in the subset: {shorten(node)}")
    types = [_known_type(node.left), _known_type(node.right)]
    for side, kind in zip((node.left, node.right), types, strict=True):
        if kind not in ("scalar", "vector"):
            raise _mismatch(node, f"{node.op} takes scalars and instant vectors", side)
    if node.returns_bool and node.op not in COMPARISONS:
        raise PromQLError(f"bool is only for comparisons, not for {node.op}: {shorten(node)}")
    if node.op in SET_OPERATORS and (types != ["vector", "vector"] or node.matching.many):
        raise PromQLError(f"{node.op} takes two instant vectors and no group_left/right: {shorten(node)}")
    if types == ["scalar", "scalar"] and node.op in COMPARISONS and not node.returns_bool:
        raise PromQLError(f"a comparison of two scalars needs bool, as in 1 > bool 2: {shorten(node)}")
    joined = node.matching.labels or node.matching.many
    if "scalar" in types and joined:
        raise PromQLError(f"on, ignoring and group_left/right need two instant vectors: {shorten(node)}")
    both = set(node.matching.labels) & set(node.matching.include) if node.matching.on else ()
    if both:
        raise PromQLError(f"label {min(both)!r} is in on() and group_{node.matching.many}(): {shorten(node)}")


def _function(name: str) -> Function:
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise PromQLError(f"{name} is not in the subset; functions are {_list(FUNCTIONS)}") from None


def _known_type(expr: Expr) -> Type:
    if isinstance(expr, Call):
        _function(expr.func)
    return type_of(expr)


def _mismatch(node: Expr, rule: str, actual: Expr) -> PromQLError:
    return PromQLError(f"{rule}, not {_SPOKEN[type_of(actual)]}: {shorten(actual)} in {shorten(node)}")


def _list(names: Iterable[str]) -> str:
    return " ".join(sorted(names))

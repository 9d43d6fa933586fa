"""Which functions there are, and whether an expression's types fit.

Every expression that reaches the evaluator went through `check`: parsed ones and rewritten ones alike.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from series.promql.errors import PromQLError, shorten
from series.promql.nodes import (
    AGGREGATIONS,
    ARITHMETIC,
    COMPARISONS,
    PARAMETRIC_AGGREGATIONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Number,
    Range,
    Selector,
    String,
    Subquery,
    Type,
    Unary,
)
from series.types import Matcher, MatchOp

MAX_DEPTH = 100

_SPOKEN = {
    "scalar": "a scalar", "vector": "an instant vector", "range": "a range vector", "string": "a string",
}  # fmt: skip
MAX_REPEATS = 3
"""Of a regular expression, one after another. With three of them a value of 500 characters takes 0.4 s at worst."""
MAX_CHOICES = 16
"""Of what is optional or one of two, likewise; one of eight counts as three."""

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
    if isinstance(expr, Number):
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

    Raises PromQLError for a wrong argument, a wrong operand, or an expression deeper than `MAX_DEPTH`.
    """
    _check_depth(expr)
    for node in expr.walk():
        _check_node(node)
    return type_of(expr)


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
    if matcher.op in (MatchOp.RE, MatchOp.NRE):
        compile_pattern(matcher.value, f"in {matcher}")


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
        compile_pattern(texts[3], f"in {shorten(node)}")


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


def compile_pattern(pattern: str, where: str) -> re.Pattern[str]:
    """A regular expression that means the same here and in Prometheus, anchored with `fullmatch` by the user.

    Refused are patterns that RE2 lacks or reads differently, and those that can run exponentially long here,
    because a label's value may come from anyone. `where` ends the error message.
    """
    if len(pattern) > 1000:
        raise PromQLError(f"a regular expression of more than 1000 characters {shorten(where)}")
    if re.search(r"\[\[:|\\[pPQECzZXR]|\\[1-9]|\(\?(?!:|P<|[imsU]*[:)-])", pattern):
        raise PromQLError(f"this regular expression is read differently by Prometheus: {pattern!r} {where}")
    if _repeats_a_repeat(pattern):
        raise PromQLError(f"a repeated group that repeats or branches can run forever: {pattern!r} {where}")
    if _runs_long(pattern):
        raise PromQLError(
            f"more than {MAX_REPEATS} repeats one after another can run for minutes: {shorten(repr(pattern))} {where};"
            " write some of it out, or ask with several matchers"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(pattern, re.DOTALL | re.ASCII)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise PromQLError(f"not a regular expression: {pattern!r} ({error}) {where}") from None


def _runs_long(pattern: str) -> bool:
    """True where too many repeats follow each other, by each of which time grows with the length of a label's value, or
    too many choices, each of which doubles it. A last `.*` takes what is left at once."""
    bare = _bare(pattern)
    if bare.endswith((".*", ".+")):
        bare = bare[:-2]
    open_ = [_Group()]
    for i, char in enumerate(bare):
        here = open_[-1]
        if char == "(":
            open_.append(_Group())
        elif char == ")" and len(open_) > 1:
            here.close_branch()
            open_.pop()
            open_[-1].repeats += here.most_repeats
            open_[-1].choices += here.most_choices + math.log2(here.branches)
        elif char == "|":
            here.close_branch()
            here.branches += 1
        elif char in "*+" or (char == "{" and re.match(r"\{\d*,", bare[i:])):
            here.repeats += 1
        elif char == "?" and i and bare[i - 1] not in "(*+?}":  # of a group's kind, or that a repeat is lazy
            here.choices += 1.0
    open_[0].close_branch()
    return open_[0].most_repeats > MAX_REPEATS or open_[0].most_choices > MAX_CHOICES


@dataclass
class _Group:
    """Repeats and choices in an open group: in its branch at hand, and the most in those before."""

    repeats: int = 0
    choices: float = 0.0
    most_repeats: int = 0
    most_choices: float = 0.0
    branches: int = 1

    def close_branch(self) -> None:
        self.most_repeats, self.repeats = max(self.most_repeats, self.repeats), 0
        self.most_choices, self.choices = max(self.most_choices, self.choices), 0.0


def _bare(pattern: str) -> str:
    """A pattern with `x` for each character and class."""
    return re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)


def _repeats_a_repeat(pattern: str) -> bool:
    """True for (a+)*, (a|b)+ and their like: a repeated group with a repeat or branch inside."""
    bare = _bare(pattern)
    inside = [False]
    for i, char in enumerate(bare):
        if char == "(":
            inside.append(False)
        elif char == ")" and len(inside) > 1:
            loose = inside.pop()
            if loose and re.match(r"[*+]|\{\d+,?", bare[i + 1 :]):
                return True
            inside[-1] |= loose
        elif char in "*+|" or (char == "{" and re.match(r"\{\d*,", bare[i:])):
            inside[-1] = True
    return False

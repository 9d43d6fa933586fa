"""PromQL: the subset that signals, rules, alerts and boards are written in.

`parse` text, `evaluate` it over any `SeriesSource` as Prometheus 2.42 would, and rewrite it: `expand`
parameters in text, `inline` definitions, list the `selectors` and `names` that it reads. `str` of an
expression is canonical PromQL. Everything raises `PromQLError`, whose message is meant for the author.
"""

from kvitals.series.promql.batch import ExpressionBatch
from kvitals.series.promql.evaluate import Moment, QueryLimits, Series, Vector, evaluate, evaluate_range
from kvitals.series.promql.nodes import (
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
from kvitals.series.promql.parse import parse
from kvitals.series.promql.promql_error import InvalidPromQLError, PromQLError, QueryLimitError
from kvitals.series.promql.rewrite import Use, expand, inline, names, selectors, shift

__all__ = [
    "Aggregate",
    "Binary",
    "Call",
    "Expr",
    "ExpressionBatch",
    "InvalidPromQLError",
    "Matching",
    "Moment",
    "NumberLiteral",
    "PromQLError",
    "QueryLimitError",
    "QueryLimits",
    "Range",
    "Selector",
    "Series",
    "String",
    "Subquery",
    "Unary",
    "Use",
    "Vector",
    "evaluate",
    "evaluate_range",
    "expand",
    "inline",
    "names",
    "parse",
    "selectors",
    "shift",
]

"""Expressions of rules and signals, each parsed once: the same texts are asked for every few seconds."""

from __future__ import annotations

from functools import lru_cache

from kvitals.series.promql import Expr, parse
from kvitals.series.promql.rewrite import map_children

MAX_NODES = 50_000
_nodes: dict[Expr, Expr] = {}


@lru_cache(maxsize=4096)
def expression(text: str) -> Expr:
    """A text of the knowledge with its parameters filled in, as an expression. Raises PromQLError.

    Not for queries from outside: the texts are kept.
    """
    return _one(parse(text))


def _one(expr: Expr) -> Expr:
    """The one node of all that are equal: it is soon found that they are, wherever they are looked up."""
    found = _nodes.get(expr)
    if found is None:
        if len(_nodes) > MAX_NODES:
            _nodes.clear()
        found = map_children(expr, _one)
        found = _nodes.setdefault(found, found)
    return found

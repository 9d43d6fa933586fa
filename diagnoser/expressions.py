"""Expressions of rules and signals, each parsed once: the same texts are asked for every few seconds."""

from __future__ import annotations

from functools import lru_cache

from series.promql import Expr, parse


@lru_cache(maxsize=4096)
def expression(text: str) -> Expr:
    """A text of the knowledge with its parameters filled in, as an expression. Raises PromQLError.

    Not for queries from outside: the texts are kept.
    """
    return parse(text)

"""The expressions of rules, alerts and boards, each parsed once: they read the same ones in several places."""

from __future__ import annotations

from functools import lru_cache

from kvitals.series.promql import Expr, parse

MAX_KEPT = 2048
"""Expressions that are remembered. An export of everything reads some 1,000 different ones 3,300 times."""


@lru_cache(maxsize=MAX_KEPT)
def parse_once(text: str) -> Expr:
    """The expression that `text` means, which nothing can change. Raises PromQLError as `parse` does."""
    return parse(text)

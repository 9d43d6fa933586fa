"""Comparisons of a rule in words: which one decides an outcome, and with which values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from kvitals.diagnoser.kleene import ComparisonResult, Verdict
from kvitals.diagnoser.signals import SignalValues
from kvitals.diagnoser.text import plain, render, render_apart
from kvitals.rules.loader import SIGNAL_PREFIX, Knowledge, signal_names
from kvitals.series.promql import Selector
from kvitals.series.types import Labels

_IS = {">": "above", "<": "below", ">=": "at least", "<=": "at most", "==": "which is", "!=": "and not"}
_NOT = {">": "not above", "<": "not below", ">=": "below", "<=": "above", "==": "not", "!=": "is"}

signals_in = lru_cache(maxsize=4096)(signal_names)  # the same few expressions are asked about for every entity


def missing_signals(verdict: Verdict) -> list[str]:
    """The signals of the comparisons that could not be decided."""
    names = [n for d in verdict.unknown for e in (d.comparison.left, d.comparison.right) for n in signals_in(e)]
    return list(dict.fromkeys(names))


def describe_false(
    decided: ComparisonResult, entity: Labels, known: Mapping[str, SignalValues], knowledge: Knowledge
) -> str:
    """A false comparison in words: `KV usage p90 is 41 %, not above 90 %`, or the values that it was made of."""

    def is_(name: str) -> str:
        return f"{plain(name)} is {render(known[name].values.get(entity), knowledge.signals[name].unit)}"

    left, right = decided.comparison.left, decided.comparison.right
    names = signals_in(left)
    unit = knowledge.signals[names[0]].unit if names else "count"
    if not isinstance(left, Selector) or unit == "bool":
        return ", ".join(is_(n) for n in dict.fromkeys([*names, *signals_in(right)]))
    limit = render(decided.right, unit)
    if signals_in(right):
        formula = plain(str(right).replace(SIGNAL_PREFIX, ""))
        calls = "(" in formula  # a reader knows a product, and no function of PromQL
        limit = f"{limit} ({', '.join(map(is_, signals_in(right)))})" if calls else f"{formula} ({limit})"
    value = render_apart(known[names[0]].values.get(entity), decided.right, unit)
    return f"{plain(names[0])} is {value}, {_NOT[decided.comparison.op]} {limit}"


def describe_true(
    decided: ComparisonResult, entity: Labels, known: Mapping[str, SignalValues], knowledge: Knowledge
) -> str:
    """A true comparison in words, `KV usage p90 is 98 %, above 90 %`, or `gpu rich in compute is yes`; empty where the
    value that is compared is that of no signal, but calculated from some."""
    names = [n for n in signals_in(decided.comparison.left) if known[n].values.get(entity) == decided.left]
    if not names or decided.left is None:
        return ""
    unit = knowledge.signals[names[0]].unit
    if unit == "bool":
        return f"{plain(names[0])} is {render(decided.left, unit)}"
    value = render_apart(decided.left, decided.right, unit)
    return f"{plain(names[0])} is {value}, {_IS[decided.comparison.op]} {render(decided.right, unit)}"

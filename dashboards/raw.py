"""Board queries in engines' own metric names, for a Prometheus that scrapes engines and has no agents.

The engine maps translate, as they do for a triage from such a server; but a board is written before anybody has seen
the server, so the names of the engines' newest versions are taken to be there. What no page tells, or only the labels
of an info metric, can not be asked for here, and of alternatives those that can be had are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvitals.diagnoser.sources.engine_pages import LOCAL, Pages
from kvitals.rules.engine_map import EngineMap, load_map
from kvitals.rules.loader import HISTOGRAM_PARTS, Knowledge
from kvitals.series.promql import Aggregate, Binary, Call, Expr, NumberLiteral, Range, Selector
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import Matcher

SYSTEMS = ("vllm", "sglang")
"""The engines whose own pages say enough to fill a board."""

PRESENCE = "kvitals_requests_running"
"""What every engine shows always, so what tells that it is there."""

SEEN_SECONDS = 3600.0
"""For so long an engine that is gone is shown as not readable."""

INSTANCE = "instance"

_UP = "kvitals_target_up"


class RawTranslator:
    """Translates expressions over families into the names that Prometheus scraped from engines' pages."""

    def __init__(self, knowledge: Knowledge) -> None:
        maps = [load_map(system) for system in SYSTEMS]
        self._pages = Pages(frozenset(n for m in maps for n in _names(m, knowledge)), maps, {}, {})

    def translate(self, expr: Expr) -> Expr | None:
        """The expression over raw names; None where something is not told that it can not do without."""
        if isinstance(expr, Selector):
            return self._up(expr.matchers) if expr.name == _UP else self._told(self._pages.leaf(expr))
        ranges = [arg for arg in expr.args if isinstance(arg, Range)] if isinstance(expr, Call) else []
        if ranges:
            return self._over_time(expr, ranges[0])
        made = {id(child): self.translate(child) for child in expr.children()}
        if isinstance(expr, Binary) and None in made.values():
            left, right = made[id(expr.left)], made[id(expr.right)]
            return left if expr.op == "unless" else (left or right) if expr.op == "or" else None
        return None if None in made.values() else map_children(expr, lambda child: _given(made[id(child)]))

    def raw_names(self, metric: str) -> list[str]:
        """What a metric of a family is on engines' pages."""
        return sorted({name for group in self._pages.sources(metric) for source in group for name in source.names})

    def _over_time(self, call: Expr, range_: Range) -> Expr | None:
        if range_.selector.name in LOCAL:
            return None
        return self._told(self._pages.translate(call) or call)

    def _told(self, expr: Expr) -> Expr | None:
        """None where a selector found no raw name and stayed as it was, or found none that its labels fit."""
        return None if any(_is_family(node) for node in expr.walk()) else expr

    def _up(self, matchers: Sequence[Matcher]) -> Expr | None:
        """1 for an engine that shows something now, 0 for one that did within the hour."""
        running = Selector(PRESENCE, tuple(matchers))
        shown, was = (self.translate(e) for e in (running, Call("present_over_time", (Range(running, SEEN_SECONDS),))))
        if shown is None or was is None:
            return None
        now = Binary("+", Binary("*", NumberLiteral(0.0), shown), NumberLiteral(1.0))
        return Binary("or", now, Binary("*", NumberLiteral(0.0), was))


def keep_instance(expr: Expr) -> Expr:
    """The expression with the label `instance` wherever it groups or matches by engine. A page's engines are named for
    its instance, so no group changes; and a value on a board leads to the boards that select by instance."""
    expr = map_children(expr, keep_instance)
    if isinstance(expr, Aggregate) and not expr.without:
        return replace(expr, grouping=_beside_engine(expr.grouping))
    if isinstance(expr, Binary) and expr.matching is not None and expr.matching.on:
        return replace(expr, matching=replace(expr.matching, labels=_beside_engine(expr.matching.labels)))
    return expr


def _beside_engine(labels: tuple[str, ...]) -> tuple[str, ...]:
    return (*labels, INSTANCE) if "engine" in labels and INSTANCE not in labels else labels


def _names(map_: EngineMap, knowledge: Knowledge) -> list[str]:
    """What the newest version shows under the map's first prefix. Names without a prefix could be anybody's."""
    found = []
    for entry in map_.metrics:
        if entry.known_in(map_.newest) and not entry.bare:
            parts = HISTOGRAM_PARTS if knowledge.families[entry.family].type == "histogram" else ("",)
            found += [f"{map_.recognise.prefixes[0]}{entry.raw}{part}" for part in parts]
    return found


def _is_family(node: Expr) -> bool:
    return isinstance(node, Selector) and node.name.startswith("kvitals_")


def _given(expr: Expr | None) -> Expr:
    assert expr is not None
    return expr

"""Expressions over families, evaluated by a server: what is asked of it, and what is put together here.

A server that holds agents' families evaluates every expression whole. One that holds only engines' own metrics can not
tell all of it (`kvitals.diagnoser.sources.engine_pages`): then the largest parts that it can evaluate are asked for,
and what is left is computed from the answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvitals.diagnoser.entities import ENTITIES, INFO
from kvitals.diagnoser.sources.prometheus import Prometheus, PrometheusQuery, PrometheusSeries, ServerError
from kvitals.series.promql import Binary, Expr, PromQLError, QueryLimitError, Selector, Vector, evaluate
from kvitals.series.promql.check import type_of
from kvitals.series.promql.nodes import Aggregate, Call, Range
from kvitals.series.promql.rewrite import map_children
from kvitals.series.types import METRIC_NAME, Frame, Labels, LabelSets, Matcher, MatchOp

PART = "kvitals_part_"
MAX_FOCUS = 50
_SPECIAL = re.compile(r"[^a-zA-Z0-9_\x80-\U0010ffff]")  # RE2 takes no backslash before a letter

Rows = list[tuple[Labels, float]]


class Dialect(Protocol):
    """How a server's series are families."""

    def translate(self, expr: Expr) -> Expr | None:
        """The expression in the server's own names; None where it reads anything that is only known here."""
        ...

    def local(self, name: str, at: float) -> Rows | None:
        """The series of a family that is only known here, at a moment; None of any other."""
        ...

    def has(self, name: str) -> bool:
        """Whether there may be series of that name."""
        ...

    def why_not(self, metric: str) -> str:
        """Why a metric can not be told by any engine there; empty where it could be."""
        ...


class FamilyDialect:
    """The dialect of a server that holds agents' families. `beside`: what of the others it has in its own names."""

    def __init__(self, names: Iterable[str], beside: Dialect | None = None) -> None:
        self._names = frozenset(names)
        self._beside = beside

    def translate(self, expr: Expr) -> Expr | None:
        foreign = self._beside is not None and any(
            isinstance(node, Selector) and node.name not in self._names and self._beside.has(node.name)
            for node in expr.walk()
        )
        return self._beside.translate(expr) if foreign and self._beside is not None else expr

    def local(self, name: str, at: float) -> Rows | None:
        return None

    def has(self, name: str) -> bool:
        return name in self._names or (self._beside is not None and self._beside.has(name))

    def why_not(self, metric: str) -> str:
        return ""


@dataclass(frozen=True)
class PartDialect:
    """Another dialect, for a part of the series only. A series without a label of the part belongs to it: a node has no
    label `pool`. part: label -> texts, any of which it may have, such as {"pool": ("chat",)}. patterns: a person chose
    the engines, so those without the label are left out, and `*` stands for any characters. Texts may come from
    outside."""

    whole: Dialect
    part: Mapping[str, Collection[str]]
    patterns: bool = False

    def translate(self, expr: Expr) -> Expr | None:
        return self.whole.translate(with_matchers(expr, self._matchers))

    def local(self, name: str, at: float) -> Rows | None:
        rows = self.whole.local(name, at)
        return None if rows is None else [row for row in rows if all(m.matches(row[0]) for m in self._matchers(name))]

    def has(self, name: str) -> bool:
        return self.whole.has(name)

    def why_not(self, metric: str) -> str:
        return self.whole.why_not(metric)

    def _matchers(self, name: str) -> tuple[Matcher, ...]:
        """What a series of a family matches if it belongs to the part."""
        also = () if self.patterns and name in (ENTITIES, INFO) else ("",)
        return tuple(
            Matcher(label, MatchOp.RE, "|".join((*map(self._pattern, texts), *also)))
            for label, texts in self.part.items()
        )

    def _pattern(self, text: str) -> str:
        return ".*".join(map(literal, text.split("*"))) if self.patterns else literal(text)


class Snapshot:
    """Series with one value each, which is theirs at whatever moment is asked for."""

    def __init__(self, rows: Mapping[str, Rows]) -> None:
        self._rows = rows

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        name = next((m.value for m in matchers if m.name == METRIC_NAME and m.op is MatchOp.EQ), None)
        rows = self._rows.get(name, []) if name is not None else [row for rows in self._rows.values() for row in rows]
        rest = [m for m in matchers if m.name != METRIC_NAME or m.op is not MatchOp.EQ]
        taken = [(labels, value) for labels, value in rows if all(m.matches(labels) for m in rest)]
        if not taken:
            return []
        values = np.array([[value for _, value in taken]], dtype=np.float64)
        return [Frame(np.array([end - 0.001]), values, [labels for labels, _ in taken])]  # never after what is asked


@dataclass(frozen=True)
class _Plan:
    """An expression over the answers to some questions. `whole`: it is the first answer itself."""

    rest: Expr
    parts: tuple[Expr, ...]

    @property
    def whole(self) -> bool:
        return len(self.parts) == 1 and self.rest == Selector(f"{PART}0")


@dataclass
class ServedFamilies:
    """Asks a server for the values of expressions over families."""

    server: Prometheus
    dialect: Dialect
    failed: dict[Expr, str] = field(default_factory=dict)  # expression of a question -> why it has no answer
    _plans: dict[Expr, _Plan] = field(default_factory=dict)
    _labels: dict[tuple[tuple[str, str], ...], Labels] = field(default_factory=dict)

    def instant(self, exprs: Sequence[Expr], at: float) -> dict[Expr, Rows]:
        """The values at one moment, all asked for at once. Those that the server refuses are in `failed`."""
        plans = {expr: self._plan(expr) for expr in exprs}
        parts = list(dict.fromkeys(part for plan in plans.values() for part in plan.parts))
        answers = self.server.ask([PrometheusQuery(str(part), at) for part in parts])
        rows: dict[Expr, Rows] = {}
        for part, answer in zip(parts, answers, strict=True):
            rows[part] = [] if self._refused(part, answer) else [(self._of(f), _value(f)) for f in _found(answer)]
        return {expr: self._together(plan, at, rows) for expr, plan in plans.items()}

    def course(self, exprs: Sequence[Expr], times: Sequence[float]) -> dict[Expr, dict[float, Rows]]:
        """The values at moments at equal distances."""
        start, end, step = times[0], times[-1], times[1] - times[0] if len(times) > 1 else 1.0
        plans = {expr: self._plan(expr) for expr in exprs}
        parts = list(dict.fromkeys(part for plan in plans.values() for part in plan.parts))
        answers = self.server.ask([PrometheusQuery(str(part), end, start, step) for part in parts])
        by_time: dict[Expr, dict[int, Rows]] = {}
        for part, answer in zip(parts, answers, strict=True):
            rows = by_time.setdefault(part, {})
            for found in () if self._refused(part, answer) else _found(answer):
                labels = self._of(found)
                for t, text in found.values:
                    rows.setdefault(round((t - start) / step), []).append((labels, float(text)))
        result: dict[Expr, dict[float, Rows]] = {}
        for expr, plan in plans.items():
            result[expr] = {
                t: self._together(plan, t, {part: by_time[part].get(i, []) for part in plan.parts})
                for i, t in enumerate(times)
            }
        return result

    def _refused(self, part: Expr, answer: list[PrometheusSeries] | ServerError) -> bool:
        if isinstance(answer, ServerError):
            self.failed[part] = str(answer)
            return True
        return False

    def why_failed(self, expr: Expr) -> str:
        """Why the server could not tell an expression; empty where it could."""
        return next((self.failed[part] for part in self._plan(expr).parts if part in self.failed), "")

    def _of(self, found: PrometheusSeries) -> Labels:
        key = tuple(found.metric.items())
        labels = self._labels.get(key)
        if labels is None:
            labels = self._labels[key] = Labels(found.metric)
        return labels

    def _plan(self, expr: Expr) -> _Plan:
        if expr not in self._plans:
            parts: list[Expr] = []
            self._plans[expr] = _Plan(self._split(expr, parts), tuple(parts))
        return self._plans[expr]

    def _split(self, expr: Expr, parts: list[Expr]) -> Expr:
        """The expression with every part that the server evaluates replaced by a selector of its answer."""
        if type_of(expr) != "vector":
            return expr if not expr.children() else map_children(expr, lambda child: self._split(child, parts))
        translated = self.dialect.translate(expr)
        if translated is None:
            if isinstance(expr, Selector):
                return expr
            return map_children(expr, lambda child: child if isinstance(child, Range) else self._split(child, parts))
        if translated not in parts:
            parts.append(translated)
        return Selector(f"{PART}{parts.index(translated)}")

    def _together(self, plan: _Plan, at: float, rows: Mapping[Expr, Rows]) -> Rows:
        if plan.whole:
            return rows[plan.parts[0]]
        known = {f"{PART}{i}": _named(f"{PART}{i}", rows[part]) for i, part in enumerate(plan.parts)}
        for node in plan.rest.walk():
            if isinstance(node, Selector) and node.name not in known:
                known[node.name] = self.dialect.local(node.name, at) or []
        try:
            result = evaluate(plan.rest, Snapshot(known), at)
        except QueryLimitError:
            raise
        except PromQLError as error:  # the expression was checked, so an answer is not what was asked for
            why = (
                f"the server's answers do not fit together, so it may not evaluate queries as Prometheus does: {error}"
            )
            self.failed |= dict.fromkeys(plan.parts, why)
            return []
        return [(Labels(), result)] if isinstance(result, float) else list(result)


def _found(answer: list[PrometheusSeries] | ServerError) -> list[PrometheusSeries]:
    assert not isinstance(answer, ServerError)
    return answer


def _value(found: PrometheusSeries) -> float:
    return float(found.value[1]) if found.value is not None else math.nan


def _named(name: str, rows: Rows) -> Rows:
    return [(labels.with_(**{METRIC_NAME: name}), value) for labels, value in rows]


def vector(rows: Rows) -> Vector:
    """Rows as the evaluator gives them."""
    labels = LabelSets(labels for labels, _ in rows)
    return Vector(labels, np.array([value for _, value in rows], dtype=np.float64))


def focus_engines(expr: Expr, engines: Sequence[str]) -> Expr:
    """The expression for a few engines only, where nothing in it puts engines together; else as it is."""
    if not 0 < len(engines) <= MAX_FOCUS or not all(_keeps_engines(node) for node in expr.walk()):
        return expr
    pattern = "|".join(literal(engine) for engine in sorted(engines))
    if len(pattern) > 1000 or "\n" in pattern:
        return expr
    focus = (Matcher("engine", MatchOp.RE, pattern),)
    return with_matchers(expr, lambda _: focus)


def literal(text: str) -> str:
    """A pattern that matches this text alone, whatever is in it. The quotes around it are `Matcher`'s."""
    return _SPECIAL.sub(lambda m: "\n" if m[0] == "\n" else "\\" + m[0], text)


def with_matchers(expr: Expr, of: Callable[[str], Sequence[Matcher]]) -> Expr:
    """The expression with matchers added to each selector in it. of: those for the name of a metric."""
    if isinstance(expr, Selector):
        return Selector(expr.name, (*expr.matchers, *of(expr.name)), expr.offset)
    if isinstance(expr, Range):
        selector = with_matchers(expr.selector, of)
        assert isinstance(selector, Selector)
        return Range(selector, expr.range)
    return map_children(expr, lambda child: with_matchers(child, of))


def _keeps_engines(node: Expr) -> bool:
    if isinstance(node, Aggregate):
        return ("engine" in node.grouping) is not node.without
    if isinstance(node, Binary):
        by = node.matching.on or bool(node.matching.labels)
        return not by or ("engine" in node.matching.labels) is node.matching.on
    return not (isinstance(node, Call) and node.func in ("absent", "scalar"))

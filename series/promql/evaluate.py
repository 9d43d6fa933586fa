"""Evaluation: an expression and a source of series to values, with the semantics of Prometheus 2.42.

Known differences, none of which a rule should rest on:

- a range vector or a string alone is refused, where Prometheus prints it;
- sums are plain and not Kahan-compensated, regressions are centred: they differ in the last digits;
- of equal values topk and bottomk keep the first in order, where Prometheus has none;
- the left side of an `and` with nothing is not evaluated; Prometheus does, and may fail there;
- a subquery that hits no step is empty; Prometheus still evaluates its inside, and may fail there;
- the parameter of an aggregation of a constant vector is taken at every step, not at the first alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from kvitals.series.promql import aggregate, binary, functions, selection, windows
from kvitals.series.promql.batch import ExpressionBatch, Shared
from kvitals.series.promql.check import check, type_of
from kvitals.series.promql.grid import Grid, Ints, QueryBudget, without_names
from kvitals.series.promql.nodes import (
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    NumberLiteral,
    Range,
    Selector,
    Subquery,
    Unary,
)
from kvitals.series.promql.parse import parse
from kvitals.series.promql.promql_error import PromQLError, shorten
from kvitals.series.promql.windows import RANGE_FUNCTIONS, predict_linear, quantile_over_time
from kvitals.series.types import Floats, Labels, LabelSets, SeriesSource

LOOKBACK = 300.0
MAX_STEPS = 11_000
_OVER_TIME = (Range, Subquery)


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may use.

    samples: cells read from the source and made on the way; a million take 8 MB, several times over.
    series: per selector. seconds: of wall time. stopped: asked now and then whether to give up.
    """

    samples: int = 5_000_000
    series: int = 50_000
    seconds: float = 10.0
    stopped: Callable[[], bool] | None = None

    def grant(self, budget: QueryBudget) -> None:
        """Let a query that begins now use as much."""
        budget.stopped = self.stopped
        budget.samples, budget.series, budget.deadline = self.samples, self.series, time.monotonic() + self.seconds


DEFAULT_LIMITS = QueryLimits()


@dataclass(frozen=True, slots=True)
class Vector:
    """An instant vector: values[i] belongs to labels[i], in a stable order."""

    labels: LabelSets
    values: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Labels, float]]:
        return iter(zip(self.labels, self.values.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query: times (seconds since the epoch) and values, where it has any."""

    labels: Labels
    times: Floats
    values: Floats


def evaluate(
    expr: Expr | str,
    source: SeriesSource,
    at: float,
    lookback: float = LOOKBACK,
    *,
    limits: QueryLimits = DEFAULT_LIMITS,
    subquery_step: float = 60.0,
) -> Vector | float:
    """The value of `expr` at the time `at`: a Vector, or a float for a scalar expression.

    at: seconds since the epoch, rounded to milliseconds. lookback: seconds that an instant selector looks
    back for the newest sample. subquery_step: seconds, for subqueries that give no step.
    Raises PromQLError where Prometheus would (ambiguous matching, equal labels), and at the limits.
    """
    return Moment(source, at, lookback, limits=limits, subquery_step=subquery_step).evaluate(expr)


class Moment:
    """Evaluates expressions at one time, each as `evaluate` does, over a source whose past does not change.

    What several expressions have in common (a selection, a rate of it, its sum by a label) is computed once.
    """

    def __init__(
        self,
        source: SeriesSource,
        at: float,
        lookback: float = LOOKBACK,
        *,
        limits: QueryLimits = DEFAULT_LIMITS,
        subquery_step: float = 60.0,
    ) -> None:
        steps, budget = np.array([round(at * 1000)], dtype=np.int64), QueryBudget(0, 0, 0.0)
        times = (round(lookback * 1000), round(subquery_step * 1000))
        self._limits = limits
        self._evaluation = Evaluation(source, steps, int(steps[0]), *times, budget, {})

    def prepare(self, batch: ExpressionBatch) -> None:
        """Read at once what some expressions read, before they are evaluated. It changes no value."""
        found = self._evaluation
        self._limits.grant(found.budget)
        with np.errstate(all="ignore"), suppress(PromQLError):  # what could not be read at once is read by itself
            batch.fill(found.shared, found.end, found.lookback, found.budget)

    def evaluate(self, expr: Expr | str) -> Vector | float:
        """The value of `expr`. Raises PromQLError as `evaluate` does; the limits are those of each expression."""
        expr = _checked(expr)
        self._limits.grant(self._evaluation.budget)
        with np.errstate(all="ignore"):
            result = self._evaluation.of(expr)
        if isinstance(result, Grid):
            found = result.pruned()
            return Vector(found.labels, found.values[0])
        return float(result[0])


def evaluate_range(
    expr: Expr | str,
    source: SeriesSource,
    start: float,
    end: float,
    step: float,
    lookback: float = LOOKBACK,
    *,
    limits: QueryLimits = DEFAULT_LIMITS,
    subquery_step: float = 60.0,
) -> list[Series]:
    """The values of `expr` at start, start + step, ... up to end, ordered by labels; all in seconds.

    A scalar expression gives one series without labels. Raises as `evaluate` does, and for more than
    `MAX_STEPS` steps.
    """
    first, last, width = round(start * 1000), round(end * 1000), round(step * 1000)
    if width < 1 or last < first:
        raise PromQLError(f"a range query needs start <= end and a step, not {start}, {end}, {step}")
    if (last - first) // width >= MAX_STEPS:
        raise PromQLError(f"the range query has more than {MAX_STEPS} steps: use a longer step")
    steps = np.arange(first, last + 1, width, dtype=np.int64)
    evaluation = Evaluation(
        source, steps, last, round(lookback * 1000), round(subquery_step * 1000), QueryBudget(0, 0, 0.0)
    )
    expr = _checked(expr)
    limits.grant(evaluation.budget)
    with np.errstate(all="ignore"):
        result = evaluation.of(expr)
    times = steps / 1000.0
    if not isinstance(result, Grid):
        return [Series(Labels(), times, result)]
    found = []
    for column, labels in enumerate(result.labels):
        here = result.present[:, column]
        if here.any():
            found.append(Series(labels, times[here], result.values[here, column]))
    return sorted(found, key=lambda s: tuple(s.labels.items()))


def _checked(expr: Expr | str) -> Expr:
    if isinstance(expr, str):
        expr = parse(expr)
    if check(expr) not in ("scalar", "vector"):
        raise PromQLError(f"only scalars and instant vectors have a value, not {shorten(expr)}")
    return expr


def _is_read(expr: Expr) -> bool:
    """Whether it is made of selectors alone."""
    if isinstance(expr, Aggregate):
        return expr.param is None and _is_read(expr.expr)
    if isinstance(expr, Call):
        return len(expr.args) == 1 and isinstance(expr.args[0], Range)
    return isinstance(expr, Selector)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One query under way; all times are in milliseconds.

    steps: int64[N], the evaluation times. end: where they were to end, at or after the last of them. Subqueries
    go on to there, as in Prometheus, which also reports what is ambiguous after the last step.
    """

    source: SeriesSource
    steps: Ints
    end: int
    lookback: int
    subquery_step: int
    budget: QueryBudget
    shared: Shared = field(default_factory=dict)

    def of(self, expr: Expr) -> Grid | Floats:
        """A Grid for an instant vector, float64[N] for a scalar."""
        return self.scalar(expr) if type_of(expr) == "scalar" else self.vector(expr)

    def scalar(self, expr: Expr) -> Floats:
        """float64[N] of a scalar expression."""
        self.budget.take(len(self.steps))
        if isinstance(expr, NumberLiteral):
            return np.full(len(self.steps), expr.value)
        if isinstance(expr, Unary):
            return -self.scalar(expr.expr)
        if isinstance(expr, Binary):
            return binary.scalars(expr.op, self.scalar(expr.left), self.scalar(expr.right))
        assert isinstance(expr, Call)
        if expr.func == "time":
            return self.steps / 1000.0
        return functions.scalar(self.vector(expr.args[0]))

    def vector(self, expr: Expr) -> Grid:
        """The Grid of an instant-vector expression."""
        if len(self.steps) > 1 and not _is_read(expr):  # it would be large, and others hardly want the same
            return self._vector(expr)
        known = self.shared.get(expr)
        if known is None:
            known = self.shared[expr] = self._vector(expr)
        assert isinstance(known, Grid)
        return known

    def _vector(self, expr: Expr) -> Grid:
        self.budget.take(0)
        if isinstance(expr, Selector):
            return self._instant(expr)[0]
        if isinstance(expr, Unary):
            inner = self.vector(expr.expr)
            negated = Grid(inner.labels, -inner.values, inner.present)
            return without_names(negated.pruned(), at_all_steps=True)
        if isinstance(expr, Binary):
            return self._binary(expr)
        if isinstance(expr, Aggregate):
            param = None if expr.param is None else self.scalar(expr.param)
            grid = self.vector(expr.expr)
            if param is None and not grid.labels:
                return grid
            return aggregate.aggregate(expr, grid, param, self.budget)
        assert isinstance(expr, Call)
        return self._call(expr)

    def _binary(self, expr: Binary) -> Grid:
        if expr.op == "and":
            return self._and(expr)
        left, right = self.of(expr.left), self.of(expr.right)
        sides = [side for side in (left, right) if isinstance(side, Grid)]
        if expr.op not in SET_OPERATORS and not all(side.labels for side in sides):
            return selection.empty(len(self.steps))
        if isinstance(left, Grid) and isinstance(right, Grid):
            return binary.vectors(expr, left, right, self.budget)
        return binary.vector_scalar(expr, left, right)

    def _and(self, expr: Binary) -> Grid:
        """Where the right side has nothing the left one need not be known, which may take long to find out."""
        right = self.vector(expr.right)
        if not right.present.any():
            return selection.empty(len(self.steps))
        return binary.vectors(expr, self.vector(expr.left), right, self.budget)

    def _call(self, call: Call) -> Grid:
        if any(isinstance(arg, _OVER_TIME) for arg in call.args):
            return self._over_range(call)
        if call.func == "timestamp" and isinstance(call.args[0], Selector):
            grid, times = self._instant(call.args[0])
            return without_names(Grid(grid.labels, times / 1000.0, grid.present))
        return functions.call(call, self)

    def _instant(self, selector: Selector) -> tuple[Grid, Ints]:
        references = self.steps - round(selector.offset * 1000)
        start, end = int(references[0]) - self.lookback, int(references[-1])
        if len(references) == 1:
            newest = selection.newest(self.source, selector.all_matchers(), start, end, self.budget)
            if newest is not None:
                return newest
        blocks = selection.select(self.source, selector.all_matchers(), start, end, self.budget)
        self.budget.take(len(self.steps) * sum(len(b.labels) for b in blocks))
        return selection.instant(blocks, references, self.lookback)

    def _over_range(self, call: Call) -> Grid:
        """A function of a range vector, with the scalars that some of them take before or after it."""
        scalars = [self.scalar(a) for a in call.args if not isinstance(a, _OVER_TIME)]
        over = next(a for a in call.args if isinstance(a, _OVER_TIME))
        parts = self._parts(over) if isinstance(over, Subquery) else [self._range(over)]
        grid = selection.side_by_side([self._applied(call, part, scalars) for part in parts], len(self.steps))
        # last_over_time acts like a selector and keeps the name; equal labels cannot arise from one name.
        return grid if call.func == "last_over_time" else without_names(grid, at_all_steps=True)

    def _applied(self, call: Call, selected: selection.SelectedWindows, scalars: Sequence[Floats]) -> Grid:
        """The function over some series."""
        self.budget.take(len(self.steps) * len(selected.labels))
        results = []
        for some in (part for whole in selected.windows for part in whole.in_parts()):
            if call.func == "quantile_over_time":
                results.append(quantile_over_time(some, scalars[0]))
            elif call.func == "predict_linear":
                results.append(predict_linear(some, self.steps, scalars[0]))
            else:
                results.append(RANGE_FUNCTIONS[call.func](some))
        return selected.join(results, len(self.steps)).pruned()

    def _range(self, expr: Expr) -> selection.SelectedWindows:
        if isinstance(expr, Subquery):
            return self._subquery(expr)
        assert isinstance(expr, Range)
        known = self.shared.get(expr)
        if known is None:
            known = self.shared[expr] = self._selected(expr)
        assert isinstance(known, selection.SelectedWindows)
        return known

    def _selected(self, expr: Range) -> selection.SelectedWindows:
        length = round(expr.range * 1000)
        ends = self.steps - round(expr.selector.offset * 1000)
        matchers = expr.selector.all_matchers()
        start, end = int(ends[0]) - length, int(ends[-1])
        blocks = selection.select(self.source, matchers, start, end, self.budget)
        return selection.ranges(blocks, ends, length, self.budget)

    def _subquery(self, expr: Subquery) -> selection.SelectedWindows:
        """The inner expression at all multiples of the step in the range, as if it had been recorded."""
        inner, ends, length = self._inner(expr)
        if not len(inner.steps):
            return selection.SelectedWindows(LabelSets(), [])
        return selection.select_recorded(inner.steps, inner.vector(expr.expr), ends, length, self.budget)

    def _parts(self, expr: Subquery) -> Iterator[selection.SelectedWindows]:
        """The same of some series at a time, where that can be: each step has all of them, which can be 100 MB."""
        selector = _per_series(expr.expr)
        if selector is None:
            yield self._subquery(expr)
            return
        inner, ends, length = self._inner(expr)
        if not len(inner.steps):
            return
        references = inner.steps - round(selector.offset * 1000)
        start, end = int(references[0]) - self.lookback, int(references[-1])
        blocks = selection.select(self.source, selector.all_matchers(), start, end, self.budget)
        self.budget.take(len(references) * sum(len(block.labels) for block in blocks))
        for part in selection.in_parts(blocks, max(windows.PART_CELLS // len(references), 1)):
            shared: Shared = {selector: selection.instant(part, references, self.lookback)[0]}
            grid = replace(inner, shared=shared).vector(expr.expr)
            yield selection.select_recorded(inner.steps, grid, ends, length, self.budget)

    def _inner(self, expr: Subquery) -> tuple[Evaluation, Ints, int]:
        """The evaluation of what is inside, and the end of each window and its length in milliseconds."""
        step = self.subquery_step if expr.step is None else round(expr.step * 1000)
        length = round(expr.range * 1000)
        ends = self.steps - round(expr.offset * 1000)
        first = -((length - int(ends[0])) // step) * step  # the first multiple at or after the start
        last = self.end - round(expr.offset * 1000)
        self.budget.take(max(0, (last - first) // step + 1))
        steps = np.arange(first, last + 1, step, dtype=np.int64)
        return replace(self, steps=steps, end=last, shared={}), ends, length


def _per_series(expr: Expr) -> Selector | None:
    """The selector of an expression that has for each of its series a value of that series alone; None of any other,
    and of one that selects several names, which may be the same without them."""
    if isinstance(expr, Selector):
        return expr if expr.name else None
    if isinstance(expr, Unary):
        return _per_series(expr.expr)
    if not isinstance(expr, Binary) or expr.op in SET_OPERATORS:
        return None
    left, right = isinstance(expr.left, NumberLiteral), isinstance(expr.right, NumberLiteral)
    return None if left == right else _per_series(expr.right if left else expr.left)

"""What the evaluator computes on: instant vectors at many times at once, and what is known of their labels.

An instant query has one step, a range query and a subquery have many; every function and operator works on
all steps and all series in a few numpy calls. What depends on labels alone (which series form a group, which
series match) is the same from one evaluation of a query to the next, so it is computed once and kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from kvitals.series.promql.promql_error import PromQLError, QueryLimitError
from kvitals.series.types import METRIC_NAME, Bools, Floats, Labels, LabelSets

Ints = npt.NDArray[np.int64]
T = TypeVar("T")


class Grid(msgspec.Struct, frozen=True, gc=False):
    """Instant vectors at N steps: S series, each with a value at some of the steps.

    labels: S label sets, all different but right after a selection or a relabelling.
    values: float64[N, S]; arbitrary where `present` is False.
    present: bool[N, S].
    """

    labels: LabelSets
    values: Floats
    present: Bools

    def pick(self, columns: Ints) -> Grid:
        """The series at `columns`, in that order."""
        kept = _picked.get(
            (columns.tobytes(), self.labels),
            (self.labels,),
            lambda: the_one(LabelSets(self.labels[i] for i in columns.tolist())),
        )
        return Grid(kept, self.values.take(columns, axis=1), self.present.take(columns, axis=1))

    def anything(self) -> Bools:
        """[N, 1]: the steps at which any series has a value."""
        found: Bools = np.asarray(self.present.any(axis=1))[:, None]
        return found

    def pruned(self) -> Grid:
        """Without the series that have no value at any step."""
        alive = self.present.any(axis=0)
        return self if alive.all() else self.pick(np.flatnonzero(alive))


@dataclass(slots=True)
class QueryBudget:
    """What one query may still use.

    samples: cells read and made. series: per selector. deadline: of `time.monotonic`. stopped: whether nobody waits for
    the answer any more.
    """

    samples: int
    series: int
    deadline: float
    stopped: Callable[[], bool] | None = None

    def take(self, samples: int) -> None:
        """Spends `samples` and looks at the clock. Raises PromQLError when either has run out."""
        self.samples -= samples
        if self.samples < 0:
            raise QueryLimitError(
                "the query touches too many samples: select fewer series, a shorter range or a longer step"
            )
        if time.monotonic() > self.deadline:
            raise QueryLimitError("the query took too long: select fewer series, a shorter range or a longer step")
        if self.stopped is not None and self.stopped():
            raise QueryLimitError("the query was cancelled: its client has gone")


class _Layouts:
    """Results that depend on label sets alone.

    Bounded by the number of label sets held and not by entries, since that is what takes the memory; those with long
    values count more than once. When it is full everything is forgotten, which costs one slow evaluation and saves
    bookkeeping in all others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._known: dict[Hashable, Any] = {}

    def get(self, key: Hashable, sets: Sequence[LabelSets], compute: Callable[[], T]) -> T:
        """The result for `key`. sets: the label sets that the key holds; those of the result count as well."""
        found = self._known.get(key)
        if found is not None:
            known: T = found
            return known
        result = compute()
        made = result.labels if isinstance(result, ColumnGroups) else result
        held = [*sets, made] if isinstance(made, LabelSets) and all(made is not one for one in sets) else sets
        weight = 1 + sum(map(_weight, held))
        if weight <= self._limit // 4:
            if self._held > self._limit:
                self._known.clear()
                self._held = 0
            self._known[key] = result
            self._held += weight
        return result


SET_CHARACTERS = 128
"""Characters that one label set usually has at most."""


def _weight(labels: LabelSets) -> int:
    """How many label sets of usual size take as much memory: `label_replace` makes values of any length."""
    characters = sum(len(value) for one in labels for value in one.values())
    return max(len(labels), characters // SET_CHARACTERS)


_layouts = _Layouts(limit=400_000)
_picked = _Layouts(limit=50_000)  # of these there are more, as what is picked depends on values
_sets = _Layouts(limit=50_000)


def the_one(labels: LabelSets) -> LabelSets:
    """Of all label sets that are equal always the same, which is soon found to be equal."""
    return _sets.get(labels, (labels,), lambda: labels)


def layout(kind: Hashable, labels: LabelSets, compute: Callable[[], T]) -> T:
    """`compute()`, remembered for this kind of work on these labels."""
    return _layouts.get((kind, labels), (labels,), compute)


def layout2(kind: Hashable, left: LabelSets, right: LabelSets, compute: Callable[[], T]) -> T:
    """As `layout`, for work on two lists of label sets."""
    return _layouts.get((kind, left, right), (left, right), compute)


@dataclass(frozen=True, slots=True)
class ColumnGroups:
    """A partition of columns. `members` lists all columns group by group; group g begins at `starts[g]`.

    labels: one label set per group, in the order in which the groups first appear.
    of: int64[S], the group of each column.
    """

    labels: LabelSets
    of: Ints
    members: Ints
    starts: Ints

    @property
    def trivial(self) -> bool:
        """True where every column is a group of its own."""
        return len(self.labels) == len(self.of)

    def columns(self, group: int) -> Ints:
        """The columns of one group, in order."""
        end = self.starts[group + 1] if group + 1 < len(self.starts) else len(self.members)
        return self.members[self.starts[group] : end]

    def reduce(self, ufunc: np.ufunc, cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`ufunc` over the columns of each group: [N, S] -> [N, G]."""
        if not len(self.starts):
            return cells[:, :0]
        if len(self.starts) == 1:
            whole: npt.NDArray[Any] = ufunc.reduce(cells, axis=1, keepdims=True)
            return whole
        parts: npt.NDArray[Any] = ufunc.reduceat(cells[:, self.members], self.starts, axis=1)
        return parts


def group_by(keys: Sequence[Labels]) -> ColumnGroups:
    """The groups of columns with equal keys."""
    index: dict[Labels, int] = {}
    of = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)
    members = np.argsort(of, kind="stable").astype(np.int64)
    starts = np.searchsorted(of[members], np.arange(len(index))).astype(np.int64)
    return ColumnGroups(the_one(LabelSets(index)), of, members, starts)


def nameless(labels: LabelSets) -> LabelSets:
    """The label sets without the metric name."""
    return LabelSets(x.drop(METRIC_NAME) if x.name else x for x in labels)


def without_names(grid: Grid, *, at_all_steps: bool = False) -> Grid:
    """`grid` with the metric names dropped; series that then have equal labels become one.

    Raises PromQLError where two of them have a value at the same step or, with `at_all_steps`, at all:
    Prometheus is that strict about functions of range vectors.
    """
    return regroup(grid, by_nameless(grid.labels), at_all_steps=at_all_steps)


def by_nameless(labels: LabelSets) -> ColumnGroups:
    """The groups of columns whose labels are equal without the metric name."""
    return layout("nameless", labels, lambda: group_by(nameless(labels)))


def relabel(grid: Grid, labels: LabelSets) -> Grid:
    """`grid` with new labels, one per column; series with equal labels become one."""
    return regroup(grid, layout("equal", labels, lambda: group_by(labels)))


def regroup(grid: Grid, groups: ColumnGroups, *, at_all_steps: bool = False) -> Grid:
    """One column per group. Raises PromQLError where two columns of a group have a value at one step."""
    if groups.trivial:
        return Grid(groups.labels, grid.values, grid.present)
    counts = groups.reduce(np.add, grid.present.astype(np.int64))
    if at_all_steps or (counts > 1).any():
        often = np.bincount(groups.of) if at_all_steps else counts.max(axis=0)
        raise PromQLError(
            "vector cannot contain metrics with the same labelset: more than one series has "
            f"{groups.labels[int(np.argmax(often))]}; aggregate, or select one metric name"
        )
    cells = np.where(grid.present, grid.values, 0.0)
    return Grid(groups.labels, groups.reduce(np.add, cells), counts > 0)

"""Operators between scalars and instant vectors, and how two vectors are matched, as in Prometheus 2.42."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvitals.series.promql.grid import (
    ColumnGroups,
    Grid,
    Ints,
    QueryBudget,
    group_by,
    layout2,
    regroup,
    relabel,
    without_names,
)
from kvitals.series.promql.nodes import ARITHMETIC, COMPARISONS, SET_OPERATORS, Binary, Matching
from kvitals.series.promql.promql_error import PromQLError, QueryLimitError, shorten
from kvitals.series.types import METRIC_NAME, Bools, Floats, Labels, LabelSets

_ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,  # the sign of the dividend, as math.Mod
    "^": np.power,
}
_COMPARE: dict[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def scalars(op: str, left: Floats, right: Floats) -> Floats:
    """Two scalars; a comparison gives 0 or 1."""
    if op in COMPARISONS:
        return _COMPARE[op](left, right).astype(np.float64)
    return _ARITHMETIC[op](left, right)


def vector_scalar(node: Binary, left: Grid | Floats, right: Grid | Floats) -> Grid:
    """A vector and a scalar, in either order. A comparison keeps the vector's values and names."""
    grid = left if isinstance(left, Grid) else right
    assert isinstance(grid, Grid)
    a = left.values if isinstance(left, Grid) else left[:, None]
    b = right.values if isinstance(right, Grid) else right[:, None]
    if node.op in ARITHMETIC:
        return without_names(Grid(grid.labels, _ARITHMETIC[node.op](a, b), grid.present))
    holds = _COMPARE[node.op](a, b)
    if node.returns_bool:
        return without_names(Grid(grid.labels, holds.astype(np.float64), grid.present))
    return Grid(grid.labels, grid.values, grid.present & holds)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's columns by match group. of: int64[S], the match group of each; ids: of each part."""

    of: Ints
    ids: Ints
    parts: ColumnGroups


@dataclass(frozen=True, slots=True)
class _Match:
    """Which series of two vectors belong together, from their labels alone.

    keys: the labels of each match group.
    """

    left: _Side
    right: _Side
    keys: LabelSets

    def counts(self, side: _Side, present: Bools) -> Ints:
        """[N, groups]: how many of a side's columns have a value in each match group."""
        found = np.zeros((len(present), len(self.keys)), dtype=np.int64)
        found[:, side.ids] = side.parts.reduce(np.add, present.astype(np.int64))
        return found

    def holds(self, side: _Side, present: Bools) -> Bools:
        """[N, groups]: whether any of a side's columns has a value in each match group."""
        found: Bools = self.counts(side, present) > 0
        return found


def vectors(node: Binary, left: Grid, right: Grid, budget: QueryBudget) -> Grid:
    """Two vectors. Raises PromQLError where a series has several partners and may have only one."""
    if node.op in SET_OPERATORS and not (left.labels and right.labels):
        return _with_nothing(node.op, left, right)
    kind = (node.matching.on, node.matching.labels)
    match = layout2(kind, left.labels, right.labels, lambda: _match(left.labels, right.labels, node.matching))
    if node.op in SET_OPERATORS:
        if node.op == "or":
            budget.take(left.values.size + right.values.size)
        return _set_operation(node.op, left, right, match)
    swapped = node.matching.many == "right"
    many, one = (right, left) if swapped else (left, right)
    many_side, one_side = (match.right, match.left) if swapped else (match.left, match.right)
    _check_one_side(node, many, one, one_side, match)
    pairs = layout2(
        (node.op in ARITHMETIC, node.returns_bool, node.matching),
        many.labels,
        one.labels,
        lambda: _pairs(node, many.labels, one.labels, many_side.of, one_side.of, budget),
    )
    budget.take(len(pairs.many) * len(many.values))
    return _joined(node, many, one, pairs, swapped=swapped)


def _with_nothing(op: str, left: Grid, right: Grid) -> Grid:
    """A set operation of two vectors of which one has no series."""
    if not left.labels:
        return right if op == "or" else left
    return right if op == "and" else left


def _match(left: LabelSets, right: LabelSets, matching: Matching) -> _Match:
    def key(labels: Labels) -> Labels:
        return labels.keep(matching.labels) if matching.on else labels.drop(METRIC_NAME, *matching.labels)

    groups = group_by([*map(key, left), *map(key, right)])
    return _Match(_side(groups.of[: len(left)]), _side(groups.of[len(left) :]), groups.labels)


def _side(of: Ints) -> _Side:
    ids, index = np.unique(of, return_inverse=True)
    members = np.argsort(index, kind="stable").astype(np.int64)
    starts = np.searchsorted(index[members], np.arange(len(ids))).astype(np.int64)
    # Only the partition is used; the parts' labels are those of the match.
    parts = ColumnGroups(LabelSets(Labels() for _ in ids), index.astype(np.int64), members, starts)
    return _Side(of, ids, parts)


def _set_operation(op: str, left: Grid, right: Grid, match: _Match) -> Grid:
    if op == "or":
        in_left = match.holds(match.left, left.present)
        fresh = right.present & ~in_left[:, match.right.of]
        both = Grid(
            layout2("both", left.labels, right.labels, lambda: LabelSets(left.labels + right.labels)),
            np.hstack([left.values, right.values]),
            np.hstack([left.present, fresh]),
        ).pruned()
        return relabel(both, both.labels)
    in_right = match.holds(match.right, right.present)[:, match.left.of]
    return Grid(left.labels, left.values, left.present & (in_right if op == "and" else ~in_right))


def _check_one_side(node: Binary, many: Grid, one: Grid, side: _Side, match: _Match) -> None:
    if side.parts.trivial:
        return
    # Prometheus does not look when there is nothing to match with.
    counts = match.counts(side, one.present) * many.anything()
    if (counts > 1).any():
        group = int(np.argmax(counts.max(axis=0)))
        which = "left" if node.matching.many == "right" else "right"
        raise PromQLError(
            f"found duplicate series for the match group {match.keys[group]} on the {which} side of "
            f"{node.op}; many-to-many matching not allowed: aggregate that side, or match on more labels, in "
            f"{shorten(node)}"
        )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The columns that meet, and what their results are called.

    many, one: int64[P]. partner: the pairs by match group. results: the pairs by the labels of the result.
    """

    many: Ints
    one: Ints
    partner: _Side
    results: ColumnGroups


def _pairs(node: Binary, many: LabelSets, one: LabelSets, many_of: Ints, one_of: Ints, budget: QueryBudget) -> _Pairs:
    partners: dict[int, list[int]] = {}
    for column, group in enumerate(one_of.tolist()):
        partners.setdefault(group, []).append(column)
    count = sum(len(partners.get(g, ())) for g in many_of.tolist())
    if count > 4 * budget.series:
        raise QueryLimitError(f"{count} pairs of series match: match on more labels, in {shorten(node)}")
    meeting = [(m, o) for m, g in enumerate(many_of.tolist()) for o in partners.get(g, ())]
    left = np.array([m for m, _ in meeting], dtype=np.int64)
    right = np.array([o for _, o in meeting], dtype=np.int64)
    names = [_result_labels(node, many[m], one[o]) for m, o in meeting]
    of = many_of[left] if len(left) else left
    return _Pairs(left, right, _side(of), group_by(names))


def _result_labels(node: Binary, many: Labels, one: Labels) -> Labels:
    matching = node.matching
    result = dict(many)
    if node.op in ARITHMETIC:
        result.pop(METRIC_NAME, None)
    if matching.many is None:
        kept = set(matching.labels) if matching.on else set(result) - set(matching.labels)
        result = {k: v for k, v in result.items() if k in kept}
    for name in matching.include:
        result[name] = one.get(name, "")
    if node.returns_bool:
        result.pop(METRIC_NAME, None)
    return Labels(result)


def _joined(node: Binary, many: Grid, one: Grid, pairs: _Pairs, *, swapped: bool) -> Grid:
    a, b = many.values[:, pairs.many], one.values[:, pairs.one]
    if swapped:
        a, b = b, a
    present = many.present[:, pairs.many] & one.present[:, pairs.one]
    if node.op in ARITHMETIC:
        values = _ARITHMETIC[node.op](a, b)
    else:
        holds = _COMPARE[node.op](a, b)
        values = holds.astype(np.float64) if node.returns_bool else a
        present = present if node.returns_bool else present & holds
    if node.matching.many is None and not pairs.partner.parts.trivial:
        meeting = pairs.partner.parts.reduce(np.add, present.astype(np.int64))
        if (meeting > 1).any():
            raise PromQLError(
                "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right) "
                f"in {shorten(node)}"
            )
    return regroup(Grid(LabelSets(), values, present), pairs.results)

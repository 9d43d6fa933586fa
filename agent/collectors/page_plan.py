"""Where the values of one layout of a page go, and which of them can be used.

A plan is made when the layout changes (`kvitals.agent.families`); after that, a page costs a few array operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvitals.agent.collectors.page_parser import Indices, PageLayout, Series
from kvitals.agent.collectors.page_reading import Meaning, Reading
from kvitals.rules.value_bounds import MAX_VALUE
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.row_blocks import Columns
from kvitals.series.types import Bools, Floats, Labels
from kvitals.series.window import NOWHERE

Codes = npt.NDArray[np.int8]


FAULTS = ("", "blank", "not_a_number", "out_of_range", "negative", "above_one", "duplicate")
"""Why a value of a page is not used, by code: 0 is that it is. `blank` and, of a gauge, `not_a_number` are how programs
report that there is no value; the others cannot be true, and are counted as dropped. Of a series that the page has
twice (`duplicate`), nobody knows which value is true: often the pages of two programs came as one."""

COUNTED = FAULTS[3:]


@dataclass
class RawHistogram:
    """Positions of one histogram's parts."""

    total: int = -1  # the _sum
    count: int = -1
    members: list[int] = field(default_factory=list)
    together: str = ""


@dataclass(frozen=True)
class RawSource:
    """A position of the page whose value is a series, or one of several that it is made of."""

    position: int
    scale: float
    alone: bool  # it is the first that its position is: its value is written where the position's goes


@dataclass
class PlannedFold:
    """Series that are made of several raw ones, as flat arrays: `starts` says where each one's sources begin."""

    columns: Columns
    positions: Indices
    scales: Floats
    starts: Columns

    @classmethod
    def of(cls, made: Mapping[int, Sequence[RawSource]]) -> PlannedFold:
        sources = [source for several in made.values() for source in several]
        counts = np.array([len(several) for several in made.values()], dtype=np.intp)
        return cls(
            np.fromiter(made, np.intp),
            np.array([source.position for source in sources], dtype=np.intp),
            np.array([source.scale for source in sources], dtype=np.float64),
            np.cumsum(counts) - counts,
        )


@dataclass
class PagePlan:
    """Where the values of a layout go. Arrays are by position on the page."""

    layout: PageLayout
    reading: Reading
    columns: Columns  # NOWHERE: not taken, or only as a part of a fold
    scales: Floats
    monotone: Bools
    reported: Floats  # newest values as the page has them
    raw: Floats  # the same, NaN where the value is not used
    lowest: Floats  # the smallest values that can be true
    highest: Floats
    faults: Codes  # codes of `FAULTS`
    shift: Floats  # what is added to them
    scaled: bool  # some scale is not 1
    shifted: bool = False
    histograms: dict[int, RawHistogram] = field(default_factory=dict)  # by each position that is part of one
    lower: Indices = field(default_factory=lambda: np.empty(0, np.intp))  # positions of buckets that have a next one
    upper: Indices = field(default_factory=lambda: np.empty(0, np.intp))  # the bucket with the next bound of each
    disordered: set[int] = field(default_factory=set)  # positions of histograms whose buckets are out of order
    unusable: set[int] = field(default_factory=set)  # positions whose series have no sample now
    gaps: list[int] = field(default_factory=list)  # and the columns of these
    sums: dict[int, list[RawSource]] = field(default_factory=dict)  # column -> what is added up in it
    peaks: dict[int, list[RawSource]] = field(default_factory=dict)  # column -> of what it has the largest
    folds: list[tuple[PlannedFold, np.ufunc]] = field(default_factory=list)  # the same, flat
    zeros: dict[int, float] = field(default_factory=dict)  # column -> 0
    changes: dict[int, tuple[Labels, int]] = field(default_factory=dict)  # position -> counter of its changes, column
    refused: int = 0  # samples without a column, by the window's cap
    index: Indices | None = None  # the positions of the last page's values, and what is needed of them
    index_monotone: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    index_columns: Columns = field(default_factory=lambda: np.empty(0, np.intp))
    index_bounds: tuple[Floats, Floats] = field(default_factory=lambda: (np.empty(0), np.empty(0)))

    def look_at(self, index: Indices) -> None:
        """From page to page, the same positions are given."""
        self.index, self.index_monotone, self.index_columns = index, self.monotone[index], self.columns[index]
        self.index_bounds = self.lowest[index], self.highest[index]

    def take(self, index: Indices, values: Floats) -> tuple[Floats, bool]:
        """Take a page's values at these positions, and decide which can be used.

        Returns them with NaN in place of the others, and whether the positions that cannot be used are not those of the
        last page.
        """
        first = self.index is None
        if index is not self.index:
            self.look_at(index)
        lowest, highest = self.index_bounds
        self.reported[index] = values
        sound = (values >= lowest) & (values <= highest)
        if sound.all() and not self.unusable:  # as nearly every page is
            self.raw[index] = values
            self.disordered = out_of_order(self)
            changed = first or bool(self.disordered)
        else:
            before, faults = self.faults[index], self._faults_of(values, lowest, highest)
            values = np.where(sound, values, np.nan)
            self.faults[index], self.raw[index] = faults, values
            disordered = out_of_order(self)
            changed = first or disordered != self.disordered or not np.array_equal(before, faults)
            self.disordered = disordered
        if changed:
            faulty = np.flatnonzero(self.faults).tolist()
            self.unusable = {*faulty, *self.disordered, *parts_of_histograms(self, faulty)}
            self.gaps = columns_of(self, self.unusable)
        return values, changed

    def _faults_of(self, values: Floats, lowest: Floats, highest: Floats) -> Codes:
        """The codes of values. A gauge without a value is NaN by convention; any other NaN is a defect."""
        large, blank = np.abs(values) > MAX_VALUE, self.reading.system.blank
        kinds = [
            (lowest > highest, "duplicate"),
            (np.isnan(values) & ~self.index_monotone, "not_a_number"),
            (np.isnan(values) | large, "out_of_range"),
            (values < lowest, "negative"),
            (values > highest, "above_one"),
        ]
        if blank is not None:
            kinds.insert(1, (values >= blank, "blank"))
        return np.select([which for which, _ in kinds], [FAULTS.index(name) for _, name in kinds], 0).astype(np.int8)

    def dropped(self) -> dict[str, int]:
        """The values of the page that are dropped because they cannot be true, by reason."""
        if not self.unusable:
            return {}
        counts = np.bincount(self.faults, minlength=len(FAULTS)).tolist()
        found = {name: n for name, n in zip(FAULTS, counts, strict=True) if n and name in COUNTED}
        return found | ({"bucket_order": len(self.disordered)} if self.disordered else {})

    def unusable_families(self) -> dict[tuple[str, str, str], str]:
        """Which metrics have values that are not used: engine, family and raw name -> the reason, of `FAULTS` or
        `bucket_order`. Left out: what only has no value by the program's own mark for it."""
        found: dict[tuple[str, str, str], str] = {}
        for position in sorted(self.unusable):
            meaning, reason = self.reading.meanings[position], FAULTS[self.faults[position]]
            reason = reason or ("bucket_order" if position in self.disordered else "")
            if meaning is not None and reason not in ("", "blank"):
                name, family = self.layout.series[position][0], meaning.labels.name
                raw = (self.reading.system.strip(name) or name).removesuffix(meaning.part)
                found.setdefault((meaning.labels.get("engine", ""), family.removesuffix(meaning.part), raw), reason)
        return found

    @property
    def used(self) -> set[int]:
        """The columns that it writes."""
        counters = (column for _, column in self.changes.values())
        return {*self.columns.tolist(), *self.sums, *self.peaks, *self.zeros, *counters} - {NOWHERE}


def empty_plan(layout: PageLayout, reading: Reading) -> PagePlan:
    meanings: list[Meaning | None] = reading.meanings
    scales = np.array([m.scale if m else 1.0 for m in meanings], dtype=np.float64)
    lowest, highest = _bounds_of(reading)
    lowest[list(layout.twice)] = np.inf
    return PagePlan(
        layout,
        reading,
        columns=np.full(len(meanings), NOWHERE, dtype=np.intp),
        scales=scales,
        monotone=np.array([m is not None and m.monotone for m in meanings], dtype=np.bool_),
        reported=np.full(len(meanings), np.nan),
        raw=np.full(len(meanings), np.nan),
        lowest=lowest,
        highest=highest,
        faults=np.zeros(len(meanings), np.int8),
        shift=np.zeros(len(meanings)),
        scaled=bool((scales != 1.0).any()),
    )


def _bounds_of(reading: Reading) -> tuple[Floats, Floats]:
    """The bounds of each position. Where it feeds several series, a value must be possible for all of them."""
    lowest, highest = np.full(len(reading.meanings), -MAX_VALUE), np.full(len(reading.meanings), MAX_VALUE)
    for position, meaning in enumerate(reading.meanings):
        several = [m.bounds for m in (meaning, *meaning.also)] if meaning is not None else []
        if several:
            lowest[position] = max(bounds.lowest for bounds in several)
            highest[position] = min(bounds.highest for bounds in several)
    for position, _ in reading.adapters:  # times
        lowest[position] = 0.0
    if reading.system.blank is not None:
        highest = np.minimum(highest, np.nextafter(reading.system.blank, -np.inf))
    return lowest, highest


def carry(before: PagePlan, plan: PagePlan) -> None:
    """Take the last values over, so that a fall is seen across a change of layout."""
    places = {series: i for i, series in enumerate(before.layout.series)}
    for i, series in enumerate(plan.layout.series):
        j = places.get(series)
        if j is not None:
            plan.raw[i], plan.shift[i], plan.reported[i] = before.raw[j], before.shift[j], before.reported[j]
            plan.unusable.update([i] if j in before.unusable else [])
    plan.shifted = bool(plan.shift.any())


def group_histograms(plan: PagePlan) -> None:
    by_name: dict[str, RawHistogram] = {}
    for position, meaning in enumerate(plan.reading.meanings):
        if meaning is None or not meaning.histogram:
            continue
        histogram = by_name.setdefault(meaning.histogram, RawHistogram(together=meaning.together))
        histogram.members.append(position)
        plan.histograms[position] = histogram
        if meaning.part == "_sum":
            histogram.total = position
        elif meaning.part == "_count":
            histogram.count = position


def pair_buckets(plan: PagePlan) -> None:
    """Find for each bucket the one with the next bound of the same raw histogram, which cannot have a lower value."""
    buckets: dict[Series, list[tuple[float, int]]] = {}
    for position, meaning in enumerate(plan.reading.meanings):
        if meaning is not None and meaning.part == "_bucket":
            name, labels = plan.layout.series[position]
            others = (name, tuple(label for label in labels if label[0] != "le"))
            bound = bucket_bound(dict(labels)["le"])
            if bound is not None:
                buckets.setdefault(others, []).append((bound, position))
    ordered = [[position for _, position in sorted(several)] for several in buckets.values()]
    plan.lower = np.array([p for several in ordered for p in several[:-1]], dtype=np.intp)
    plan.upper = np.array([p for several in ordered for p in several[1:]], dtype=np.intp)


def out_of_order(plan: PagePlan) -> set[int]:
    """The positions of all parts of histograms that have a bucket with a lower value than the bucket before it."""
    falls = plan.lower[plan.raw[plan.upper] < plan.raw[plan.lower]]
    return parts_of_histograms(plan, falls.tolist())


def parts_of_histograms(plan: PagePlan, positions: Iterable[int]) -> set[int]:
    """The positions of all parts of the histograms that these are part of; each histogram is gone through once."""
    found: set[int] = set()
    for position in positions:
        if position not in found and position in plan.histograms:
            found.update(plan.histograms[position].members)
    return found


def columns_of(plan: PagePlan, members: set[int]) -> list[int]:
    """The columns that positions are written to, alone or added up with others."""
    columns = {int(plan.columns[member]) for member in members} - {NOWHERE}
    for made in (plan.sums, plan.peaks):
        columns |= {column for column, several in made.items() if any(one.position in members for one in several)}
    return sorted(columns)


def is_defect(plan: PagePlan, histogram: RawHistogram, position: int, was: Mapping[int, float]) -> bool:
    """Whether it is a sum that fell, while the count did not."""
    if position != histogram.total or histogram.count < 0:
        return False
    now = plan.raw[histogram.count]
    return bool(was.get(histogram.count, now) <= now)


def shift_back(plan: PagePlan, position: int, was: float) -> None:
    """Shift a series so that it goes on from the raw value before."""
    now, target = float(plan.raw[position]), was + float(plan.shift[position])
    shift = target - now
    if not np.isfinite(shift):  # there was no value before, or none that could be gone on from
        return
    while now + shift < target:  # rounding must not make it fall: that would be a reset
        shift = float(np.nextafter(shift, np.inf))
    plan.shift[position] = shift


def fold(plan: PagePlan) -> dict[int, float]:
    """Columns and values of series that several raw ones make up."""
    folded: dict[int, float] = {}
    for fold, fold_by in plan.folds:
        values = (plan.raw[fold.positions] + plan.shift[fold.positions]) * fold.scales
        made = fold_by.reduceat(values, fold.starts)
        there = ~np.isnan(made)
        folded.update(zip(fold.columns[there].tolist(), made[there].tolist(), strict=True))
    return folded

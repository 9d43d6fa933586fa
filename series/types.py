"""What a time series is here, and the one interface through which all of kvitals reads series.

Samples live in *frames*: many series that were sampled at the same instants share one time axis, as one
scrape target's series do. A frame is two numpy arrays, so a rate over five hundred histogram buckets is
one vectorised operation and not five hundred.

A cell without a sample holds `STALE`, Prometheus' own stale-marker NaN. It stands both for "the series
had no sample at this instant" and for "the series ended here", which instant lookups treat alike: a series
whose newest cell in the lookback is `STALE` does not exist. An ordinary NaN is a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvitals.series import patterns

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

METRIC_NAME = "__name__"

_STALE_BITS = 0x7FF0000000000002
STALE: float = struct.unpack("<d", struct.pack("<Q", _STALE_BITS))[0]
"""The bit pattern that Prometheus writes as a stale marker. Compare with `is_stale`, never with ==."""


def is_stale(values: Floats) -> Bools:
    """True where a cell holds no sample. `values` is any-dimensional and C-contiguous or not."""
    bits: npt.NDArray[np.uint64] = np.ascontiguousarray(values).view(np.uint64)
    return np.equal(bits, _STALE_BITS)


class Labels(Mapping[str, str]):
    """An immutable, hashable label set, ordered by name. Empty values are absent, as in Prometheus."""

    __slots__ = ("_hash", "_map")

    def __init__(self, labels: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> None:
        self._map = {k: v for k, v in sorted(dict(labels).items()) if v != ""}
        self._hash = hash(tuple(self._map.items()))

    def __getitem__(self, name: str) -> str:
        return self._map[name]

    # These three are in Mapping, at several times the cost.

    def get(self, name: str, default: Any = None, /) -> Any:
        return self._map.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._map

    def items(self) -> ItemsView[str, str]:
        return self._map.items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Labels):
            return self._hash == other._hash and self._map == other._map
        return Mapping.__eq__(self, other)

    def __repr__(self) -> str:
        return f"Labels({self})"

    def __str__(self) -> str:
        """Prometheus notation: `name{a="b"}`."""
        inner = ", ".join(f'{k}="{escape(v)}"' for k, v in self._map.items() if k != METRIC_NAME)
        return f"{self.name}{{{inner}}}" if inner or not self.name else self.name

    @property
    def name(self) -> str:
        """The metric name, or the empty string."""
        return self._map.get(METRIC_NAME, "")

    def keep(self, names: Sequence[str]) -> Labels:
        """Only the labels in `names`."""
        kept = {name: value for name, value in self._map.items() if name in names}
        return self if len(kept) == len(self._map) else _ordered(kept)

    def drop(self, *names: str) -> Labels:
        """All labels but `names`."""
        kept = {name: value for name, value in self._map.items() if name not in names}
        return self if len(kept) == len(self._map) else _ordered(kept)

    def with_(self, **labels: str) -> Labels:
        """A copy with `labels` set; an empty value removes one."""
        return Labels({**self._map, **labels})


def _ordered(items: dict[str, str]) -> Labels:
    """Of items that are in order of name and have no empty value, as those of other labels are."""
    labels = Labels.__new__(Labels)
    labels._map, labels._hash = items, hash(tuple(items.items()))
    return labels


class LabelSets(tuple[Labels, ...]):
    """Label sets that are asked about again and again: their hash is computed once."""

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


def escape(value: str) -> str:
    """A label value as it is written between double quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class MatchOp(Enum):
    EQ = "="
    NE = "!="
    RE = "=~"
    NRE = "!~"


@dataclass(frozen=True)
class Matcher:
    """One condition on one label. An absent label is the empty string; regular expressions are anchored."""

    name: str
    op: MatchOp
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a label set satisfies it. Raises PatternError for a pattern that is none."""
        actual = labels.get(self.name, "")
        if self.op is MatchOp.EQ:
            return actual == self.value
        if self.op is MatchOp.NE:
            return actual != self.value
        return patterns.compile_pattern(self.value).matches(actual) == (self.op is MatchOp.RE)

    def tester(self) -> Callable[[Labels], bool]:
        """`matches`, for many label sets: each value of the label is tried once. Raises PatternError."""
        if self.op in (MatchOp.EQ, MatchOp.NE):
            return self.matches
        name, wanted, pattern = self.name, self.op is MatchOp.RE, patterns.compile_pattern(self.value)
        known: dict[str, bool] = {}

        def test(labels: Labels) -> bool:
            value = labels.get(name, "")
            found = known.get(value)
            if found is None:
                found = known[value] = pattern.matches(value) == wanted
            return found

        return test

    def __str__(self) -> str:
        return f'{self.name}{self.op.value}"{escape(self.value)}"'


@dataclass(frozen=True)
class Frame:
    """Series on one shared time axis.

    times: float64[T], seconds since the epoch, strictly increasing.
    values: float64[T, S], column s belongs to labels[s]; `STALE` where there is no sample.
    """

    times: Floats
    values: Floats
    labels: list[Labels] = field(default_factory=list)


@dataclass(frozen=True)
class InstantRow:
    """Series at one instant. time: seconds since the epoch. values: float64[S], `STALE` where there is no sample."""

    time: float
    values: Floats
    labels: Sequence[Labels]


class SeriesSource(Protocol):
    """Anything that series can be read from: the agent's window, history, a capture, a Prometheus."""

    def select(self, matchers: Sequence[Matcher], start: float, end: float) -> list[Frame]:
        """Every series that satisfies all matchers, with its samples in start <= t <= end.

        Returned arrays are read-only views or copies; a series with no sample in the range is left out.
        """
        ...


def newest_rows(source: SeriesSource, matchers: Sequence[Matcher], start: float, end: float) -> list[InstantRow] | None:
    """Of each frame that `select` would give, the last row, samples or not. A source that knows it for less than the
    whole selection has `newest`; None where the source has none, or cannot tell."""
    newest = getattr(source, "newest", None)
    rows: list[InstantRow] | None = newest(matchers, start, end) if newest is not None else None
    return rows


def label_sets(source: SeriesSource, matchers: Sequence[Matcher], start: float, end: float) -> set[Labels]:
    """The series that `select` of a source would give. A source that knows them without their samples has
    `label_sets`; of any other the samples are read."""
    known = getattr(source, "label_sets", None)
    if known is not None:
        found: set[Labels] = known(matchers, start, end)
        return found
    return {labels for frame in source.select(matchers, start, end) for labels in frame.labels}


class SourceView(Protocol):
    """One part of a source as it was at one moment. `keep` belongs to the source's thread, the rest to any.

    check: called now and then; what it raises ends the work.
    """

    def frame(self, check: Callable[[], None], cells: int | None) -> Frame | None:
        """The matching series that have a sample, None without any. Raises TooManyCellsError beyond `cells` samples."""
        ...

    def label_sets(self, check: Callable[[], None]) -> list[Labels]:
        """The labels of these series."""
        ...

    def keep(self) -> None:
        """Remember what was found for the next time."""
        ...


class TooManyCellsError(ValueError):
    """A selection has more samples than are allowed; nothing was copied."""


@dataclass(frozen=True)
class TakenView:
    """A frame that is selected already, of a source that has no views."""

    taken: Frame

    def frame(self, check: Callable[[], None], cells: int | None) -> Frame | None:
        return self.taken

    def label_sets(self, check: Callable[[], None]) -> list[Labels]:
        return self.taken.labels

    def keep(self) -> None:
        pass


def views(source: SeriesSource, matchers: Sequence[Matcher], start: float, end: float) -> Sequence[SourceView]:
    """What `select` of a source needs, taken in little time by a source that has `views`; of any other it is what
    `select` gives."""
    known = getattr(source, "views", None)
    if known is not None:
        found: Sequence[SourceView] = known(matchers, start, end)
        return found
    return [TakenView(frame) for frame in source.select(matchers, start, end)]

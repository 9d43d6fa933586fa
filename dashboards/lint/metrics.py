"""What is known of a metric by its name: whose it is, what it is, since and until when, and what is there instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import yaml
from msgspec import Struct

from kvitals.rules.engine_map import EngineMap, Metric, load_map, systems
from kvitals.rules.loader import HISTOGRAM_PARTS, SIGNAL_PREFIX, Knowledge
from kvitals.rules.versions import in_range

Type = Literal["counter", "gauge", "histogram"]
OWN = ("kvitals_", SIGNAL_PREFIX)
_BUCKETS = Path(__file__).with_name("buckets.yaml")
_GONE = Path(__file__).with_name("gone.yaml")
_STANDARD: dict[str, Type] = {
    "up": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_start_time_seconds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "http_requests_total": "counter",
    "http_request_duration_seconds": "histogram",
}
"""What every page of these programs has beside its own."""


@dataclass(frozen=True)
class ResolvedMetric:
    """A metric's name as it stands in a query, resolved."""

    name: str  # without a histogram's suffix
    part: str  # the suffix of a histogram, or empty
    type: Type
    system: str = ""  # whose it is; empty for ours and for what everybody has
    family: str = ""
    unit: str = ""
    entry: Metric | None = None
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Wrong:
    """A name that is not there in the version in use. `instead` is empty where nothing took its place."""

    kind: Literal["dead", "unknown", "total", "part"]
    system: str
    version: str
    why: str
    instead: str = ""
    sure: bool = True
    query: str = ""  # what says the same, where no one name does


@dataclass
class Metrics:
    """The names that engine maps know, held against versions, and against a page where one is given."""

    knowledge: Knowledge
    versions: Mapping[str, str] = field(default_factory=dict)  # system -> the one in use; else the map's newest
    page_types: Mapping[str, Type] = field(default_factory=dict)
    page_bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._maps = sorted(map(load_map, systems()), key=lambda m: m.kind != "engine")  # a router repeats their names
        self._bounds = {**_default_bounds(), **self.page_bounds}
        self._found: dict[str, ResolvedMetric | Wrong | None] = {}
        self.used: set[str] = set()  # systems whose names were met

    def version(self, map_: EngineMap) -> str:
        return self.versions.get(map_.system, map_.newest)

    def look_up(self, name: str) -> ResolvedMetric | Wrong | None:
        """None for a name of which nothing is known, such as another program's."""
        if name not in self._found:
            self._found[name] = self._look_up(name)
        return self._found[name]

    def known(self, name: str) -> ResolvedMetric | None:
        found = self.look_up(name)
        return found if isinstance(found, ResolvedMetric) else None

    def meant(self, name: str) -> ResolvedMetric | None:
        """The same, of a name that is wrong what took its place."""
        found = self.look_up(name)
        return self.known(found.instead) if isinstance(found, Wrong) else found

    def usual(self, known: ResolvedMetric) -> str:
        """A metric as its program itself calls it, without a part, where `known` is spelt otherwise; else empty."""
        map_ = next((one for one in self._maps if one.system == known.system), None)
        if map_ is None or map_.full_names or known.entry is None or known.entry.bare:
            return ""
        own = map_.recognise.prefixes[0] + known.entry.raw
        is_rewritten = known.name != own and not known.name.startswith(("ray_", own.partition(known.entry.raw)[0]))
        return own if is_rewritten else ""

    def labels(self, known: ResolvedMetric) -> frozenset[str]:
        """The labels that an engine's own metric is known to have; none of other metrics."""
        map_ = next((one for one in self._maps if one.system == known.system), None)
        if map_ is None or known.entry is None:
            return frozenset()
        own = (*known.entry.labels, *known.entry.where, *map_.rank_labels, *map_.replica_labels)
        return frozenset(filter(None, (*own, map_.model_label)))

    def _look_up(self, name: str) -> ResolvedMetric | Wrong | None:
        if name.startswith(OWN):
            return self._own(name)
        candidates = [one for map_ in self._maps for one in self._of_map(map_, name)]
        good = next((one for one in candidates if isinstance(one, ResolvedMetric)), None)
        if good is not None:
            self.used.add(good.system)
            return good
        wrong = [one for one in candidates if isinstance(one, Wrong)]
        if wrong and (
            any(one.kind == "dead" for one in wrong) or not any(self._passes_over(map_, name) for map_ in self._maps)
        ):
            first = min(wrong, key=lambda one: (not one.sure, not one.instead))
            self.used.add(first.system)
            return first
        return self._of_page(name) or self._standard(name)

    def _own(self, name: str) -> ResolvedMetric | Wrong | None:
        if name.startswith(SIGNAL_PREFIX):
            signal = self.knowledge.signals.get(name.removeprefix(SIGNAL_PREFIX))
            return (
                ResolvedMetric(name, "", "gauge", unit=signal.unit) if signal is not None else None
            )  # others record too
        for base, part in _splits(name):
            family = self.knowledge.families.get(base)
            if family is not None and (family.type == "histogram") == bool(part):
                kind: Type = family.type if family.type in ("counter", "histogram") else "gauge"
                return ResolvedMetric(base, part, kind, family=base, unit=family.unit)
        near = difflib.get_close_matches(name, self.knowledge.families, 1)
        return Wrong("unknown", "kvitals", "", "agents export no family of that name", near[0] if near else "")

    def _of_map(self, map_: EngineMap, name: str) -> Iterator[ResolvedMetric | Wrong]:
        """What a map says of a name, if it is one of the program's."""
        raw = map_.strip(name)
        version = self.version(map_)
        if raw is None:
            if any(metric.bare for base, _ in _splits(name) for metric in map_.by_raw.get(base, ())):
                yield from self._entries(map_, name, name, "", version)
            return
        prefix = name.removesuffix(raw) if not map_.full_names else ""
        gone = _gone_names().get((map_.system, raw))
        found = list(self._entries(map_, raw, name, prefix, version))
        if gone is not None and not in_range(version, gone.versions):
            why = f"it exists in versions {gone.versions}"
            yield Wrong("dead", map_.system, version, why, query=gone.query)
        elif found:
            yield from found
        elif not _ignored(map_, raw) and not _is_info(map_, raw):
            yield self._unknown(map_, raw, prefix, version)

    def _entries(
        self, map_: EngineMap, raw: str, name: str, prefix: str, version: str
    ) -> Iterator[ResolvedMetric | Wrong]:
        for base, part in _splits(raw):
            several = map_.by_raw.get(base, ())
            kinds = {self._type(metric): metric for metric in several}
            if not several or (part and "histogram" not in kinds):
                continue
            there = [metric for metric in several if metric.known_in(version)]
            metric = (there or several)[0]
            if not there:
                instead = self._successor(map_, metric, prefix, part, version)
                yield Wrong("dead", map_.system, version, _gone(metric, version), instead)
                continue
            kind = self._type(metric)
            if kind == "histogram" and not part:
                why = "a histogram has no series of that name: it is exported as _bucket, _sum and _count"
                yield Wrong("part", map_.system, version, why)
                continue
            whole = name.removesuffix(part)
            family = self.knowledge.families.get(metric.family)
            unit = family.unit if family is not None and metric.scale == 1.0 else ""
            bounds = self._bounds.get(whole) or self._bounds.get(f"{map_.recognise.prefixes[0]}{base}", ())
            yield ResolvedMetric(whole, part, kind, map_.system, metric.family, unit, metric, bounds)

    def _passes_over(self, map_: EngineMap, name: str) -> bool:
        """Whether a map knows that the name is there, and makes nothing of it."""
        raw = map_.strip(name)
        return (
            raw is not None
            and _ignored(map_, raw)
            and ((map_.system, raw) not in _gone_names() or self._lives(map_, raw))
        )

    def _lives(self, map_: EngineMap, raw: str) -> bool:
        return in_range(self.version(map_), _gone_names()[map_.system, raw].versions)

    def _unknown(self, map_: EngineMap, raw: str, prefix: str, version: str) -> Wrong:
        if f"{raw}_total" in map_.by_raw:
            return Wrong(
                "total", map_.system, version, "a counter is exported with the suffix _total", f"{prefix}{raw}_total"
            )
        if raw.endswith("_total") and raw.removesuffix("_total") in map_.by_raw:
            return Wrong(
                "total", map_.system, version, "this metric has no suffix _total", prefix + raw.removesuffix("_total")
            )
        base, part = next(_splits(raw)) if raw.endswith(HISTOGRAM_PARTS) else (raw, "")
        near = difflib.get_close_matches(base, [n for n in map_.by_raw if self._there(map_, n, version)], 1, 0.75)
        instead = f"{prefix}{near[0]}{part}" if near else ""
        newer = map_.untested(version)
        sure = not newer and not map_.lazy
        return Wrong("unknown", map_.system, version, "kvitals does not know this metric name", instead, sure)

    def _successor(self, map_: EngineMap, metric: Metric, prefix: str, part: str, version: str) -> str:
        """The name that feeds the same family in the version in use."""
        for other in map_.metrics:
            if other.family == metric.family and other.known_in(version) and other.where == metric.where:
                return ("" if other.bare else prefix) + other.raw + part
        return ""

    def _there(self, map_: EngineMap, raw: str, version: str) -> bool:
        return any(metric.known_in(version) for metric in map_.by_raw[raw])

    def _type(self, metric: Metric) -> Type:
        """What the raw metric is: one whose changes are counted is a gauge."""
        family = self.knowledge.families.get(metric.family)
        if family is None or metric.changes:
            return "gauge"
        return family.type if family.type in ("counter", "histogram") else "gauge"

    def _of_page(self, name: str) -> ResolvedMetric | None:
        for base, part in _splits(name):
            kind = self.page_types.get(base)
            if kind is not None and (kind == "histogram") == bool(part):
                return ResolvedMetric(base, part, kind, bounds=self._bounds.get(base, ()))
        return None

    def _standard(self, name: str) -> ResolvedMetric | None:
        for base, part in _splits(name):
            if base in _STANDARD and (_STANDARD[base] == "histogram") == bool(part):
                return ResolvedMetric(base, part, _STANDARD[base])
        if name.endswith(("_bucket", "_total")):  # by the conventions that all clients keep
            kind: Type = "histogram" if name.endswith("_bucket") else "counter"
            return ResolvedMetric(name.removesuffix("_bucket"), "_bucket" if kind == "histogram" else "", kind)
        return None


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """A name whole, and as a histogram's with its part."""
    for part in HISTOGRAM_PARTS:
        if name.endswith(part):
            yield name.removesuffix(part), part
    yield name, ""


def _gone(metric: Metric, version: str) -> str:
    later = metric.since and not in_range(version, f">={metric.since}")
    return f"it exists from {metric.since} on" if later else f"it exists in versions {metric.versions}"


def _ignored(map_: EngineMap, raw: str) -> bool:
    return any(base in map_.ignored for base, _ in _splits(raw)) or raw.endswith("_created")


def _is_info(map_: EngineMap, raw: str) -> bool:
    named: Iterable[str] = (one.raw for one in map_.infos)
    return raw in named or (map_.adapters is not None and raw == map_.adapters.raw) or raw == map_.start_time


class Gone(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of gone.yaml."""

    system: str
    raw: str
    versions: str
    query: str


@lru_cache(maxsize=1)
def _gone_names() -> dict[tuple[str, str], Gone]:
    several = msgspec.convert(yaml.safe_load(_GONE.read_text(encoding="utf-8")), list[Gone])
    return {(one.system, one.raw): one for one in several}


@lru_cache(maxsize=1)
def _default_bounds() -> dict[str, tuple[float, ...]]:
    data = yaml.safe_load(_BUCKETS.read_text(encoding="utf-8"))
    return {name: tuple(map(float, one["bounds"])) for one in data for name in one["names"]}

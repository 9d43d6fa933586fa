"""What the series on a page mean by an engine's map: families, engines, facts, what is missing or unknown.

A reading is of a page's layout, that is of names and labels. It is made when the layout changes; the numbers
never come here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvitals.agent.collectors.page_parser import PageLayout, Series
from kvitals.agent.collectors.status import Identity
from kvitals.rules.engine_flags import GUESSED
from kvitals.rules.engine_map import MAX_FACT, EngineMap, InfoMetric, Metric, Telemetry, usable
from kvitals.rules.value_bounds import ANY_VALUE, ValueBounds, value_bounds
from kvitals.rules.versions import in_range, release
from kvitals.series.ascii_numbers import ascii_float
from kvitals.series.bucket_bound import bucket_bound
from kvitals.series.types import METRIC_NAME, Labels

PARTS = ("_bucket", "_sum", "_count")
MAX_LABEL = 512
"""Characters in a label's value. A series with a longer one is not taken: it is kept for as long as the window."""

PAGE = ""
"""The rank of an entity that is the page as a whole, where it has ranks."""

_LARGEST = ("_ratio", "_seconds", "_sleep")  # gauges of which several are not added up

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A family and the constant labels that tell its sources apart."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one raw series is."""

    labels: Labels  # of the family's series
    scale: float
    part: str  # of a histogram: one of `PARTS`, else empty
    monotone: bool  # it can only rise, unless the engine restarts
    rank: str | None  # None: of the page as a whole
    histogram: str = ""  # the same for all parts of one histogram
    together: str = ""  # the same for histograms that share a broken clock
    largest: bool = False  # of several series that are this one the largest counts, else their sum
    replica: tuple[str, ...] | None = None  # which copy of the same numbers; None: not one of several
    changes: Labels | None = None  # the series that counts its changes
    bounds: ValueBounds = ANY_VALUE  # of the raw values that can be true
    also: tuple[Meaning, ...] = ()  # what else it is; of these only labels, scale and bounds count


@dataclass
class Reading:
    """A page's layout, understood. Facts and strings are by rank."""

    system: EngineMap
    version: str
    version_source: str
    ranks: list[str]
    models: dict[str, str]  # rank -> served model
    meanings: list[Meaning | None] = field(default_factory=list)  # by position; None: not taken
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    info: dict[str, dict[str, str]] = field(default_factory=dict)
    adapters: list[tuple[int, frozenset[str]]] = field(default_factory=list)  # position, names in use
    missing: list[tuple[str, str]] = field(default_factory=list)  # family, raw name
    outdated: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # raw names
    unscaled: int = 0  # samples whose scale is a fact that is not known
    oversized: int = 0  # samples with a label that is too long
    boundless: int = 0  # buckets whose upper bound is no number
    left_out: int = 0  # samples of ranks, and of series of one name, beyond those that are taken
    zeros: list[Labels] = field(default_factory=list)  # series that the page has only once they are more than 0
    start: int | None = None  # position of the process's start time
    users: set[tuple[Labels, str]] = field(default_factory=set)  # series of a GPU (without a name), who uses it
    roles: dict[str, str] = field(default_factory=dict)  # rank -> prefill, decode or unified
    context: object = None  # what a meaning depends on beside its series
    memo: dict[Series, Meaning | None] = field(default_factory=dict)

    def take_counts(self, before: Reading) -> None:
        """The counts of what was left out, from an earlier reading of the same layout."""
        self.unscaled, self.oversized, self.boundless = before.unscaled, before.oversized, before.boundless

    @property
    def entities(self) -> list[str]:
        """The ranks that are entities, the page as a whole among them where it has a server of its own."""
        return [*self.ranks, PAGE] if self.system.server and len(self.ranks) > 1 else self.ranks

    def engine(self, rank: str | None, identity: Identity) -> str:
        """The `engine` label of a rank; None is the page as a whole."""
        own = rank if self.system.rank_labels and rank != PAGE else None
        return identity.engine(own, len(self.ranks))

    def kind(self, rank: str) -> str:
        """What kind of program a rank is."""
        if not self.system.server or len(self.ranks) == 1:
            return self.system.kind
        return self.system.server if rank == PAGE else "scheduler"


def recognise(
    layout: PageLayout, maps: Sequence[EngineMap], prefixes: Mapping[str, str] | None = None
) -> EngineMap | None:
    """The map of the program that a page is of, joined with those of its guests; None for any other page.

    `prefixes`: how this target's names begin -> how the maps have them.
    """
    names = {map_name(series[0], prefixes or {}) for series in layout.series}
    possible = [m for m in maps if not m.recognise.names or names.intersection(m.recognise.names)]
    found = [(sum(m.owns(name) for name in names), m) for m in possible]
    present = [(n, m) for n, m in found if n]
    if not present:
        return None
    named = [m for _, m in present if m.recognise.names and not m.guest]
    hosts = [(n, m) for n, m in present if not m.guest] or present
    system = named[0] if named else max(hosts, key=lambda one: one[0])[1]
    guests = [m for _, m in present if m.guest and m is not system]
    return system.joined(guests) if guests else system


def map_name(name: str, prefixes: Mapping[str, str]) -> str:
    """A raw name as the maps have it, where a target's names begin otherwise."""
    for theirs, ours in prefixes.items():
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name


def read(
    layout: PageLayout,
    system: EngineMap,
    told_version: str,
    identity: Identity,
    before: Reading | None = None,
    prefixes: Mapping[str, str] | None = None,
    admit: Callable[[Sequence[str]], Sequence[str]] = tuple,
) -> Reading:
    """Understand a layout. `told_version` is what one of the engine's endpoints said, or empty.

    `before` is the target's last reading, whose meanings are taken over where they still hold. `admit` says which of
    a page's ranks are taken; the samples of others are left out.
    """
    return _Reader(layout, system, told_version, identity, before, prefixes or {}, admit).reading


class _Reader:
    def __init__(
        self,
        layout: PageLayout,
        system: EngineMap,
        told_version: str,
        identity: Identity,
        before: Reading | None,
        prefixes: Mapping[str, str],
        admit: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        self._layout = layout
        self._map = system
        self._identity = identity
        names = {series[0] for series in layout.series}
        self._names = {name: map_name(name, prefixes) for name in names}
        self._own = {name for name in names if system.owns(self._names[name])}
        self._raws = {name: self._raw(self._names[name]) for name in names}
        self._ranks = {series: self._rank_of(series) for series in layout.series if series[0] in self._own}
        self._on_page = {raw for raw, _ in self._raws.values()}
        shown = sorted({rank for rank in self._ranks.values() if rank}, key=_natural)
        admitted = admit([rank for rank in shown if len(rank) <= MAX_LABEL])
        refused = set(shown).difference(admitted)
        self._left_out = {series for series, rank in self._ranks.items() if rank in refused}
        for series in self._left_out:
            self._ranks.pop(series, None)
        ranks = list(admitted) or ["0"]
        version = told_version if usable(told_version) else self._oldest_possible()
        source = "version endpoint" if usable(told_version) else GUESSED
        left_out = len(self._left_out) + layout.crowded
        self.reading = Reading(system, version, source, ranks, self._models(ranks), left_out=left_out)
        self._read_roles()
        self._read_infos()
        self._read_telemetry()
        entries = self._accepted()
        winners = self._winners(entries)
        feeding = [entry for same in entries.values() for entry in same if winners[_key(entry)] == entry.raw]
        scales = {entry.scale for entry in feeding if isinstance(entry.scale, str)}
        facts = {rank: {fact: known.get(fact) for fact in scales} for rank, known in self.reading.facts.items()}
        self.reading.context = (version, ranks, self.reading.models, self._told_models, facts, winners)
        if before is not None and before.context == self.reading.context:
            self.reading.memo = before.memo
            self.reading.take_counts(before)
        self._read_series(entries, winners)
        if system.replica_labels:
            self._leave_replicas_out()
        self._read_zeros(winners)
        self._read_gaps(entries)

    def _raw(self, name: str) -> tuple[str, str]:
        """The name in the map of a name on the page, and the part of a histogram that it is."""
        base = self._map.strip(name)
        bare = base is None
        base = name if base is None else base
        parts = [(base.removesuffix(part), part) for part in PARTS if base.endswith(part)]
        for raw, part in ((base, ""), *parts, (f"{base}_total", "")):  # Ray may leave _total out
            if any(entry.bare == bare for entry in self._map.by_raw.get(raw, ())) or raw in self._map.ignored:
                return raw, part
        return base, ""

    def _rank_of(self, series: Series) -> str | None:
        """Which engine of the page one of its series is of; None where it does not say."""
        labels = dict(series[1])
        return "/".join(labels[label] for label in self._map.rank_labels if label in labels) or None

    def _models(self, ranks: Sequence[str]) -> dict[str, str]:
        """The model of each rank, as the page's own program calls it. A router's page with several is of none."""
        models: dict[str, dict[str, None]] = {}
        for series, own in self._ranks.items():
            model = dict(series[1]).get(self._map.model_label)
            if model is not None and len(model) <= MAX_LABEL and not self._is_guests(series[0]):
                for rank in [own] if own else ranks:
                    models.setdefault(rank, {})[model] = None
        self._told_models = {model for found in models.values() for model in found}
        several = self._map.kind in ("frontend", "router", "gateway")
        return {rank: next(iter(found)) for rank, found in models.items() if len(found) == 1 or not several}

    def _is_guests(self, name: str) -> bool:
        """Whether a name on the page is another program's that was joined to this one."""
        return bool(self._map.companions) and self._map.strip(self._names[name]) is None and name in self._own

    def _read_roles(self) -> None:
        if not self._map.role_label or not in_range(self.reading.version, self._map.role_versions):
            return
        for series, own in self._ranks.items():
            role = self._map.roles.get(dict(series[1]).get(self._map.role_label, ""))
            for rank in [own] if own else self.reading.entities if role else ():
                if role:
                    self.reading.roles.setdefault(rank, role)

    def _oldest_possible(self) -> str:
        """The oldest version that has every name of the page."""
        entries = [self._map.by_raw[raw] for raw in self._on_page if raw in self._map.by_raw]
        since = [min((entry.since for entry in same), key=release) for same in entries]
        return max((version for version in since if version), key=release, default=self._map.oldest)

    def _accepted(self) -> dict[str, list[Metric]]:
        """The entries for each raw name of the page: those of this version, else whatever the map has."""
        accepted: dict[str, list[Metric]] = {}
        for raw in self._on_page & self._map.by_raw.keys():
            entries = self._map.by_raw[raw]
            known = [entry for entry in entries if entry.known_in(self.reading.version)]
            accepted[raw] = known or entries[:1]
            if not known:
                self.reading.outdated.append((entries[0].family, raw))
        return accepted

    def _winners(self, accepted: dict[str, list[Metric]]) -> dict[Key, str]:
        """The raw name that feeds each family: the first of the map's order that the page has."""
        present = {id(entry) for entries in accepted.values() for entry in entries}
        winners: dict[Key, str] = {}
        for entry in self._map.metrics:
            if id(entry) in present:
                winners.setdefault(_key(entry), entry.raw)
        return winners

    def _read_series(self, accepted: dict[str, list[Metric]], winners: dict[Key, str]) -> None:
        reading, adapters = self.reading, self._map.adapters
        known = {*self._map.by_raw, *self._map.ignored, *(info.raw for info in self._map.infos)}
        unknown: set[str] = set()
        memo: dict[Series, Meaning | None] = {}  # without the series that are gone
        for position, series in enumerate(self._layout.series):
            raw, part = self._raws[series[0]]
            if series in self._left_out:
                pass
            elif raw in accepted:
                memo[series] = self._remember(series, part, accepted[raw], winners)
                if self._names[series[0]] == self._map.start_time:
                    reading.start = position
                self._read_user(series, memo[series])
            elif adapters is not None and raw == adapters.raw:
                names = _names(dict(series[1]), adapters.running, adapters.waiting)
                reading.adapters.append((position, names))
            elif raw not in known and series[0] in self._own:
                unknown.add(series[0])
            reading.meanings.append(memo.get(series))
        reading.unknown, reading.memo = sorted(unknown), memo

    def _remember(self, series: Series, part: str, entries: list[Metric], winners: dict[Key, str]) -> Meaning | None:
        if series in self.reading.memo:
            return self.reading.memo[series]
        labels = dict(series[1])
        if "quantile" in labels:  # of a summary only its sum and count can be used
            return None
        taking = [entry for entry in entries if entry.takes(labels)]
        meant = [*[e for e in taking if not e.also][:1], *[e for e in taking if e.also]]
        found = [self._meaning(e, part, series) for e in meant if winners[_key(e)] == e.raw]
        meanings = [meaning for meaning in found if meaning is not None]
        return replace(meanings[0], also=tuple(meanings[1:])) if len(meanings) > 1 else next(iter(meanings), None)

    def _meaning(self, entry: Metric, part: str, series: Series) -> Meaning | None:
        reading, raw_labels = self.reading, dict(series[1])
        rank = self._ranks.get(series) or (reading.ranks[0] if len(reading.ranks) == 1 else None)
        own_labels = self._own_labels(raw_labels)
        if self._map.kind == "exporter" and not own_labels:
            return None  # nobody could tell whose it is
        scale = entry.scale
        if isinstance(scale, str):
            fact = reading.facts.get(rank or reading.ranks[0], {}).get(scale)
            if fact is None:
                reading.unscaled += 1
                return None
            scale = fact
        labels = {ours: raw_labels.get(theirs, "") for theirs, ours in entry.labels.items()} | entry.constant
        if part == "_bucket":
            le = raw_labels.get("le", "")
            bound = bucket_bound(le)
            if bound is None:
                reading.boundless += 1
                return None
            labels["le"] = le if scale == 1.0 or math.isinf(bound) else f"{bound * scale:.12g}"
        told = raw_labels.get(self._map.model_label)
        known = not self._is_guests(series[0]) or told in self._told_models
        labels["model"] = told if told and known else self._model(rank)
        labels |= own_labels
        if any(len(value) > MAX_LABEL for value in labels.values()):
            reading.oversized += 1
            return None
        engine = "" if self._map.kind == "exporter" else reading.engine(rank, self._identity)
        own = self._identity.series(entry.family + part, engine, **labels)
        return Meaning(
            own,
            1.0 if part in ("_bucket", "_count") else scale,  # these count, whatever the unit
            part,
            bool(part) or entry.family.endswith("_total"),
            rank,
            histogram=sys.intern(f"{entry.raw} {own.drop('le', '__name__')}") if part else "",  # of all its parts
            together=f"{entry.together} {rank}" if entry.together else "",
            largest="max" in (entry.fold, entry.replicas) or (not entry.fold and own.name.endswith(_LARGEST)),
            replica=self._replica(entry, raw_labels),
            changes=own.with_(**{METRIC_NAME: entry.changes}) if entry.changes else None,
            bounds=value_bounds(entry, part, scale),
        )

    def _own_labels(self, raw: Mapping[str, str]) -> dict[str, str]:
        """Labels that tell what a series is of, where it is not of the target. The configuration's own hold."""
        found: dict[str, str] = {}
        for ours, alternatives in self._map.series_labels.items():
            for first, *more in (alternative.split("/") for alternative in alternatives):
                if raw.get(first) and ours not in self._identity.labels:
                    found.setdefault(ours, "/".join(raw[label] for label in (first, *more) if raw.get(label)))
        return found

    def _replica(self, entry: Metric, raw: Mapping[str, str]) -> tuple[str, ...] | None:
        if entry.replicas != "one" or not any(label in raw for label in self._map.replica_labels):
            return None
        return tuple(raw.get(label, "") for label in self._map.replica_labels)

    def _leave_replicas_out(self) -> None:
        """Of series that are copies of each other only those of the first replica are taken."""
        first: dict[Labels, tuple[str, ...]] = {}
        for meaning in self.reading.meanings:
            if meaning is not None and meaning.replica is not None:
                lowest = first.setdefault(meaning.labels, meaning.replica)
                first[meaning.labels] = min(lowest, meaning.replica, key=_natural_all)
        self.reading.meanings = [
            None if m is not None and m.replica is not None and first[m.labels] != m.replica else m
            for m in self.reading.meanings
        ]

    def _read_zeros(self, winners: dict[Key, str]) -> None:
        """Counters that the page will have from their first event on."""
        late = [e for e in self._map.metrics if e.zero_beside and e.known_in(self.reading.version)]
        late = [entry for entry in late if winners.get(_key(entry), entry.raw) == entry.raw]
        if not late:
            return
        meanings = [meaning for meaning in self.reading.meanings if meaning is not None]
        present = {meaning.labels for meaning in meanings}
        raws = (self._raws[series[0]][0] for series in self._layout.series)
        for raw, meaning in zip(raws, self.reading.meanings, strict=True):
            if meaning is not None and meaning.part in ("", "_count"):
                implied = [meaning.labels.with_(**_naming(entry)) for entry in late if entry.zero_beside == raw]
                self.reading.zeros += [labels for labels in implied if labels not in present]

    def _read_user(self, series: Series, meaning: Meaning | None) -> None:
        labels = dict(series[1])
        user = "/".join(labels[label] for label in self._map.users if labels.get(label))
        if user and meaning is not None and len(user) <= MAX_LABEL:
            self.reading.users.add((meaning.labels.keep(("cluster", *self._map.series_labels)), user))

    def _model(self, rank: str | None) -> str:
        """The model of a series that does not name it: its rank's, or the page's if there is only one."""
        models = set(self.reading.models.values()) if rank is None else {self.reading.models.get(rank, "")}
        return models.pop() if len(models) == 1 else ""

    def _read_infos(self) -> None:
        infos = {info.raw: info for info in self._map.infos}
        adapters = self._map.adapters
        for series, own in self._ranks.items():
            raw = self._raws[series[0]][0]
            if raw not in infos and (adapters is None or raw != adapters.raw):
                continue
            labels = dict(series[1])
            for rank in [own] if own else self.reading.ranks:
                if raw in infos:
                    self._read_info(infos[raw], labels, rank)
                elif adapters is not None and raw == adapters.raw:
                    slots = {"lora": 1.0, "lora_slots": _fact(labels.get(adapters.slots, ""))}
                    self._know(rank, slots)

    def _read_info(self, info: InfoMetric, labels: dict[str, str], rank: str) -> None:
        self._know(rank, info.facts(lambda label: _fact(labels.get(label, "")), len(self.reading.ranks)))
        strings = {ours: labels.get(theirs, "None")[:MAX_LABEL] for ours, theirs in info.strings.items()}
        self.reading.info.setdefault(rank, {}).update({k: v for k, v in strings.items() if v != "None"})

    def _know(self, rank: str, facts: Mapping[str, float | None]) -> None:
        known = {fact: n for fact, n in facts.items() if n is not None and abs(n) < MAX_FACT}  # so not NaN either
        self.reading.facts.setdefault(rank, {}).update(known)

    def _read_telemetry(self) -> None:
        """Flags that show on the page: their families are there or not."""
        present = {entry.family for raw in self._on_page for entry in self._map.by_raw.get(raw, ())}
        for telemetry in self._map.telemetry:
            if not telemetry.families or not in_range(self.reading.version, telemetry.versions):
                continue
            for rank in self.reading.ranks:
                shown = _shown(telemetry, present, self.reading.facts.get(rank, {}))
                self._know(rank, {telemetry.fact: shown})

    def _read_gaps(self, accepted: dict[str, list[Metric]]) -> None:
        fed = {entry.family for entries in accepted.values() for entry in entries}
        if self._map.lazy:
            return
        for entry in self._map.metrics:
            if entry.family not in fed and entry.expected_in(self.reading.version):
                fed.add(entry.family)
                self.reading.missing.append((entry.family, entry.raw))


def _naming(entry: Metric) -> dict[str, str]:
    """The labels that an entry's series have of themselves."""
    return {METRIC_NAME: entry.family, **entry.constant}


def _key(entry: Metric) -> Key:
    return entry.family, tuple(sorted(entry.constant.items()))


def _fact(text: str) -> float | None:
    """A label of an info metric as a number; None where it has none."""
    known = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0, "": None, "None": None}
    if text in known:
        return known[text]
    try:
        return ascii_float(text)
    except ValueError:
        return None


def _shown(telemetry: Telemetry, present: set[str], facts: dict[str, float]) -> float | None:
    if any(family in present for family in telemetry.families):
        return 1.0
    if telemetry.needs and facts.get(telemetry.needs) != 1.0:
        return None  # the families would stay away with the flag too
    return 0.0


def _names(labels: dict[str, str], *lists: str) -> frozenset[str]:
    """The names in labels that hold comma-separated ones."""
    names = ",".join(labels.get(label, "") for label in lists).split(",")
    return frozenset(name.strip() for name in names if 0 < len(name.strip()) <= MAX_LABEL)


def _natural(rank: str) -> tuple[int, str]:
    """10 after 9."""
    return len(rank), rank


def _natural_all(ranks: tuple[str, ...]) -> list[tuple[int, str]]:
    return [_natural(rank) for rank in ranks]

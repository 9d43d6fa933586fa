"""Engine maps: which raw metrics of an engine are which families, by version, as data in `rules/engines/`.

A map also knows how an engine is recognised, which facts its pages and its command line tell, and which flag
brings which telemetry. The types below mirror the YAML; their comments are the reference of the format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, Struct

from kvitals.rules.shipped import load_shipped
from kvitals.rules.versions import in_range, release
from kvitals.series.ascii_numbers import is_digits

ROOT = Path(__file__).parent / "engines"

Text = Annotated[str, Meta(min_length=1, max_length=2000)]

Program = Literal["engine", "scheduler", "frontend", "router", "gateway", "store", "exporter"]
"""What a page is of. A scheduler is an engine's rank without the API server, which is then a frontend."""

MAX_FACT = 1e18
MAX_STRING = 200
UNSET_FACTS = "unset"
"""Label of kvitals_engine_info: facts whose flags are not on the command line and have no fixed default."""

_SINCE = re.compile(r">=\s*([0-9.]+)")
_WORKING_TREE = re.compile(r"v?0\.[01]\.dev|dev")


class Metric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One raw metric and the family that it feeds.

    Where several raw metrics of a page feed the same family, the first in the file's order counts: so a new
    name goes before the old one while an engine shows both.
    """

    raw: str  # without the engine's prefix; histograms without _bucket, _sum, _count
    family: str
    versions: str = ""  # where the engine has the name; empty: everywhere
    expected: str | None = None  # where by default; empty: nowhere; unset: `versions` if no `flag`
    also: bool = False  # its series feed this family beside the one of an entry without `also`
    zero_beside: str = ""  # a page that has this name but not `raw` has not counted anything yet: 0
    labels: dict[str, str] = {}  # raw label -> ours; other labels than rank and model are summed over
    where: dict[str, str] = {}  # only series with these raw labels
    unless: dict[str, str] = {}  # and without any of these
    constant: dict[str, str] = {}  # labels to add
    scale: float | str = 1.0  # ours = raw * scale; a fact's name means its value
    bare: bool = False  # the name has no engine prefix
    together: str = ""  # histograms that share a timestamp: where one's sum is broken, so are the others'
    replicas: Literal["one", "sum", "max"] = "one"  # how series that differ in replica labels only become one
    fold: Literal["", "sum", "max"] = ""  # how series that differ in other labels do; empty: by unit
    changes: str = ""  # counter of the times that the value became another one than 0
    above_one: bool = False  # of a ratio: it may be above 1
    flag: str = ""  # what brings it where it is not there by default
    note: str = ""

    def known_in(self, version: str) -> bool:
        """Whether the engine has the name in that version, by default or with a flag."""
        return in_range(version, self.versions)

    def expected_in(self, version: str) -> bool:
        """Whether a page of that version lacks something without it."""
        if self.expected is not None:
            return bool(self.expected) and in_range(version, self.expected)
        return not self.flag and self.known_in(version)

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these raw labels is meant. A label that is empty is not there."""
        meant = all(labels.get(label, "") == value for label, value in self.where.items())
        return meant and self.unless.items().isdisjoint(labels.items())

    @property
    def is_share(self) -> bool:
        """Whether its values are shares of a whole, from 0 to 1 once scaled."""
        return self.family.endswith("_ratio") and not self.above_one

    @property
    def since(self) -> str:
        """The first version that has the name; empty where that is before the map begins."""
        found = _SINCE.search(self.versions)
        return found[1] if found else ""


class LabelFact(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number of the configuration, from a label of an info metric."""

    label: str
    over_ranks: bool = False  # the label holds the sum over the page's ranks
    reserved: int = 0  # so many of each rank no request can use: they are not in the fact
    counts: str = ""  # another fact, whose reserved part is in this label, too
    only_set: bool = False  # the label is None unless the flag of this fact is given
    note: str = ""


class InfoMetric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A metric whose labels are configuration. "None" as a value is no value; True and False are 1 and 0."""

    raw: str
    versions: str = ""
    numbers: dict[str, LabelFact] = {}  # fact -> label
    strings: dict[str, str] = {}  # label of kvitals_engine_info -> raw label
    derived: dict[str, tuple[str, str]] = {}  # fact -> two facts whose product it is, where no label has it

    def facts(self, number_of: Callable[[str], float | None], ranks: int) -> dict[str, float]:
        """The facts of one rank. number_of: the number of a label, None without one; ranks: those of the page."""
        labels = {fact: number_of(where.label) for fact, where in self.numbers.items()}
        whole = {
            fact: number / ranks if self.numbers[fact].over_ranks else number
            for fact, number in labels.items()
            if number is not None
        }
        found = {
            fact: max(number - self.numbers[fact].reserved, 0.0) if self.numbers[fact].reserved else number
            for fact, number in whole.items()
        }
        for fact in found:
            other = self.numbers[fact].counts
            if whole.get(other):
                found[fact] *= found[other] / whole[other]
        for fact, (a, b) in self.derived.items():
            if fact not in found and a in found and b in found:
                found[fact] = found[a] * found[b]
        return found


class AdapterMetric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An info metric that lists the LoRA adapters in use, its value being the time of the report."""

    raw: str
    running: str  # label with the comma-separated names
    waiting: str
    slots: str  # label with the number of adapter slots


class Default(Struct, frozen=True, forbid_unknown_fields=True):
    """What holds when a flag is not given."""

    value: float | str
    versions: str = ""


class Flag(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a command line flag tells. An absent flag without a default tells nothing."""

    fact: str = ""  # a number
    info: str = ""  # or a string
    given: bool = False  # the fact is 1 where the flag has any value at all
    negated: bool = False  # the flag switches off what the fact says is on
    per: str = ""  # the number is for as many engines as this fact says, the fact for one of them
    bounds: str = ""  # another fact, which is this number at most
    defaults: tuple[Default, ...] = ()
    note: str = ""


class Telemetry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A blind spot and the flag that lights it."""

    flag: str
    brings: Text
    cost: Text
    fact: str = ""  # 1 where it is set, 0 where it is not
    families: tuple[str, ...] = ()  # on the page when it is set; empty: it does not show on the page
    needs: str = ""  # a fact without which the families stay away even with the flag
    versions: str = ""


class Recognise(Struct, frozen=True, forbid_unknown_fields=True):
    """How an engine is told from a page and from its other endpoints."""

    prefixes: tuple[str, ...]  # of its metric names
    version_path: str = ""
    models_path: str = ""
    info_path: str = ""  # answers with the configuration as JSON
    old_info_path: str = ""  # where versions that do not know that path have it
    not_prefixes: tuple[str, ...] = ()  # of names that look like its own and are another program's
    names: tuple[str, ...] = ()  # a page with one of these is this program's, and without any it is not


class Endpoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the JSON of `info_path` tells: our name -> path of keys with dots. Nothing else of it is kept."""

    numbers: dict[str, str] = {}
    strings: dict[str, str] = {}  # "version" is the engine's
    given: dict[str, str] = {}  # 1 where there is any value at all
    absent: dict[str, str] = {}  # 1 where the value is false or none, as of a flag that switches something off

    def learn(self, answer: object) -> tuple[dict[str, float], dict[str, str]]:
        """Facts and strings in a decoded answer. What it does not have stays unknown."""
        facts: dict[str, float] = {}
        for fact, path in self.numbers.items():
            value = _at(answer, path)
            if isinstance(value, bool | int | float) and abs(value) < MAX_FACT:
                facts[fact] = float(value)
        for yes, paths in ((True, self.given), (False, self.absent)):
            found = {fact: _at(answer, path) for fact, path in paths.items()}
            facts |= {fact: float(bool(value) is yes) for fact, value in found.items() if value is not UNSET}
        strings = {name: _at(answer, path) for name, path in self.strings.items()}
        return facts, {name: text[:MAX_STRING] for name, text in strings.items() if isinstance(text, str) and text}


class EngineMap(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Everything that is known of one engine's telemetry."""

    system: str
    title: str
    oldest: str  # the versions that the map was made from
    newest: str
    recognise: Recognise
    metrics: tuple[Metric, ...]
    kind: Program = "engine"
    lazy: bool = False  # a name is on the page from its first use on, so that none can be missed
    guest: bool = False  # its names may stand on another program's page, and are read along there
    full_names: bool = False  # names in this map have their prefix
    rank_labels: tuple[str, ...] = ()  # raw labels that tell the engines on one page apart
    replica_labels: tuple[str, ...] = ()  # raw labels that tell the copies of one engine's numbers apart
    server: Program | None = None  # what series without a rank are of on a page of several; unset: of no entity
    series_labels: dict[str, tuple[str, ...]] = {}  # ours -> raw labels that may hold it; "A/B": A and, if there, B
    users: tuple[str, ...] = ()  # raw labels of who uses a GPU, joined by /
    model_label: str = ""
    role_label: str = ""  # raw label that tells the engine's part in disaggregation
    role_versions: str = ""  # where that label tells the truth; empty: everywhere
    roles: dict[str, str] = {}  # what its values mean, and those of the string kv_role: prefill, decode, unified
    start_time: str = ""  # raw name of the process's start time
    blank: float | None = None  # values from here on stand for no value
    endpoint: Endpoint | None = None
    ignored: dict[str, str] = {}  # raw name -> why it is not mapped
    infos: tuple[InfoMetric, ...] = ()
    adapters: AdapterMetric | None = None
    flags: dict[str, Flag] = {}
    telemetry: tuple[Telemetry, ...] = ()
    not_applicable: dict[str, Text] = {}  # code of a rule -> why what it is about cannot be so on this engine
    companions: tuple[str, ...] = ()  # prefixes of the guests that this map was joined with

    @cached_property
    def by_raw(self) -> dict[str, list[Metric]]:
        """The entries of each raw name, bare names as they are and others without a prefix, in order."""
        found: dict[str, list[Metric]] = {}
        for metric in self.metrics:
            found.setdefault(metric.raw, []).append(metric)
        return found

    @cached_property
    def _only_by_flag(self) -> set[str]:
        """Facts that a flag states, and that no page or endpoint reports while the flag is not given."""
        always = {fact for one in self.infos for fact, label in one.numbers.items() if not label.only_set}
        if self.endpoint is not None:
            always.update(self.endpoint.numbers, self.endpoint.given, self.endpoint.absent)
        return {flag.fact for flag in self.flags.values() if flag.fact} - always

    def strip(self, name: str) -> str | None:
        """A raw name without the engine's prefix; None for a name that is not the engine's."""
        for prefix in self.recognise.prefixes:
            if name.startswith(prefix) and not name.startswith(self.recognise.not_prefixes):
                return name if self.full_names else name[len(prefix) :]
        return None

    def owns(self, name: str) -> bool:
        """Whether a raw name is the engine's or a guest's by its prefix."""
        return self.strip(name) is not None or name.startswith(self.companions)

    def tells(self, family: str) -> bool:
        """Whether the program is known to tell it without being asked to."""
        return any(metric.family == family and not metric.flag for metric in self.metrics)

    def joined(self, guests: Sequence[EngineMap]) -> EngineMap:
        """This map with what guests on its page tell. Their versions are not the engine's, so none are judged."""
        metrics = [*self.metrics]
        ignored = dict(self.ignored)
        for guest in guests:
            for prefix in ("",) if guest.full_names else guest.recognise.prefixes:
                metrics += [_guest(metric, prefix) for metric in guest.metrics]
                ignored |= {prefix + raw: why for raw, why in guest.ignored.items()}
        return msgspec.structs.replace(
            self,
            metrics=tuple(metrics),
            ignored=ignored,
            lazy=self.lazy or any(guest.lazy for guest in guests),  # a lazy guest is the one whose page it is
            replica_labels=tuple(dict.fromkeys(label for m in (self, *guests) for label in m.replica_labels)),
            companions=tuple(prefix for guest in guests for prefix in guest.recognise.prefixes),
        )

    def untested(self, version: str) -> bool:
        """Whether the engine is newer than the map was made from, in as many parts as the map's version has."""
        parts = self.newest.count(".") + 1
        return release(version)[:parts] > release(self.newest)[:parts]

    def learn(self, flags: FlagMapping, version: str) -> tuple[dict[str, float], dict[str, str]]:
        """Facts and strings from a command line. `version` decides on defaults; empty: none apply. The string `unset`
        lists the facts that a known version computes by itself, as their flags are not there."""
        facts: dict[str, float] = {}
        info: dict[str, str] = {}
        for name, flag in self.flags.items():
            default = _default(flag, version)
            if flag.info:
                text = flags.text(name) or default
                if isinstance(text, str):
                    info[flag.info] = text
                continue
            number = _given(flags.get(name)) if flag.given else flags.number(name)
            number = 1.0 - number if number is not None and flag.negated else number
            number = default if number is None and isinstance(default, float) else number
            if isinstance(number, float):
                facts[flag.fact] = number
        given = {flag.fact for name, flag in self.flags.items() if flags.get(name) is not None}
        if usable(version) and (unset := self._only_by_flag - given - facts.keys()):
            info[UNSET_FACTS] = ",".join(sorted(unset))
        for flag in self.flags.values():
            if flag.per and flag.fact in facts:
                facts[flag.fact] /= max(facts.get(flag.per, 1.0), 1.0)
            if flag.bounds and flag.fact in facts:
                facts[flag.bounds] = min(facts.get(flag.bounds, math.inf), facts[flag.fact])
        return facts, info


class FlagMapping(Protocol):
    """The flags of a command line, by name without dashes; `a.b` is key b of the JSON value of flag a."""

    def get(self, name: str, /) -> object: ...

    def number(self, name: str, /) -> float | None: ...

    def text(self, name: str, /) -> str: ...


def usable(version: str) -> bool:
    """Whether a version tells the release; a build from a working tree calls itself 0.1.dev1."""
    return bool(re.match(r"v?[0-9]", version)) and not _WORKING_TREE.match(version)


@lru_cache
def load_map(system: str) -> EngineMap:
    """The map of one engine. Raises FileNotFoundError, or ValueError for a broken one."""
    found = msgspec.convert(load_shipped(ROOT / f"{system}.yaml"), EngineMap)
    for metric in found.metrics:
        metric.expected_in(found.newest), metric.known_in(found.newest)
    return found


@lru_cache(maxsize=64)
def find_map(system: str) -> EngineMap | None:
    """The map of a system by a name that anybody may have given; None where there is none."""
    return load_map(system) if system in systems() else None


@lru_cache(maxsize=1)
def told_by_programs() -> frozenset[str]:
    """The families that some program's page feeds; others are the agent's own."""
    return frozenset(metric.family for system in systems() for metric in load_map(system).metrics)


def systems() -> list[str]:
    """The engines that there are maps of."""
    return sorted(path.stem for path in ROOT.glob("*.yaml"))


def _at(answer: object, path: str) -> object:
    """What stands at a path of keys with dots, numbers being places in a list; UNSET where there is nothing."""
    for key in path.split("."):
        if isinstance(answer, list) and is_digits(key):
            answer = answer[int(key)] if int(key) < len(answer) else UNSET
        else:
            answer = answer.get(key, UNSET) if isinstance(answer, dict) else UNSET
    return answer


def _guest(metric: Metric, prefix: str) -> Metric:
    raw = metric.raw if metric.bare else prefix + metric.raw
    return msgspec.structs.replace(metric, raw=raw, bare=True, versions="", expected="")


def _default(flag: Flag, version: str) -> float | str | None:
    for default in flag.defaults if version else ():
        if in_range(version, default.versions):
            return default.value
    return None


def _given(value: object) -> float | None:
    if value is None:
        return None
    return 0.0 if value is False or value == "" else 1.0

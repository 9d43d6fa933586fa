"""Engine maps: which raw metrics of an engine are which families, by version, as data in `rules/engines/`.

A map also knows how an engine is recognised, which facts its pages and its command line tell, and which flag
brings which telemetry. The types below mirror the YAML; their comments are the reference of the format.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import yaml
from msgspec import Meta, Struct

from rules.versions import in_range, release

ROOT = Path(__file__).parent / "engines"

Text = Annotated[str, Meta(min_length=1, max_length=2000)]

_SINCE = re.compile(r">=\s*([\d.]+)")
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
    labels: dict[str, str] = {}  # raw label -> ours; other labels than rank and model are summed over
    where: dict[str, str] = {}  # only series with these raw labels
    constant: dict[str, str] = {}  # labels to add
    scale: float | str = 1.0  # ours = raw * scale; a fact's name means its value
    bare: bool = False  # the name has no engine prefix
    together: str = ""  # histograms that share a timestamp: where one's sum is broken, so are the others'
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

    @property
    def since(self) -> str:
        """The first version that has the name; empty where that is before the map begins."""
        found = _SINCE.search(self.versions)
        return found[1] if found else ""


class LabelFact(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number of the configuration, from a label of an info metric."""

    label: str
    over_ranks: bool = False  # the label holds the sum over the page's ranks
    note: str = ""


class InfoMetric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A metric whose labels are configuration. "None" as a value is no value; True and False are 1 and 0."""

    raw: str
    versions: str = ""
    numbers: dict[str, LabelFact] = {}  # fact -> label
    strings: dict[str, str] = {}  # label of kvitals_engine_info -> raw label
    derived: dict[str, tuple[str, str]] = {}  # fact -> two facts whose product it is, where no label has it


class Adapters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    version_path: str
    models_path: str
    not_prefixes: tuple[str, ...] = ()  # of names that look like its own and are another program's


class EngineMap(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Everything that is known of one engine's telemetry."""

    system: str
    title: str
    oldest: str  # the versions that the map was made from
    newest: str
    recognise: Recognise
    rank_labels: tuple[str, ...]  # raw labels that tell the engines on one page apart
    model_label: str
    start_time: str  # raw name of the process's start time
    metrics: tuple[Metric, ...]
    ignored: dict[str, str] = {}  # raw name -> why it is not mapped
    infos: tuple[InfoMetric, ...] = ()
    adapters: Adapters | None = None
    flags: dict[str, Flag] = {}
    telemetry: tuple[Telemetry, ...] = ()

    @cached_property
    def by_raw(self) -> dict[str, list[Metric]]:
        """The entries of each raw name, bare names as they are and others without a prefix, in order."""
        found: dict[str, list[Metric]] = {}
        for metric in self.metrics:
            found.setdefault(metric.raw, []).append(metric)
        return found

    def strip(self, name: str) -> str | None:
        """A raw name without the engine's prefix; None for a name that is not the engine's."""
        for prefix in self.recognise.prefixes:
            if name.startswith(prefix) and not name.startswith(self.recognise.not_prefixes):
                return name[len(prefix) :]
        return None

    def untested(self, version: str) -> bool:
        """Whether the engine is of a newer minor release than the map was made from."""
        return release(version)[:2] > release(self.newest)[:2]

    def learn(self, flags: FlagReader, version: str) -> tuple[dict[str, float], dict[str, str]]:
        """Facts and strings from a command line. `version` decides on defaults; empty: none apply."""
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
            number = default if number is None and isinstance(default, float) else number
            if isinstance(number, float):
                facts[flag.fact] = number
        return facts, info


class FlagReader(Protocol):
    """The flags of a command line, by name without dashes; `a.b` is key b of the JSON value of flag a."""

    def get(self, name: str, /) -> object: ...

    def number(self, name: str, /) -> float | None: ...

    def text(self, name: str, /) -> str: ...


def usable(version: str) -> bool:
    """Whether a version tells the release; a build from a working tree calls itself 0.1.dev1."""
    return bool(re.match(r"v?\d", version)) and not _WORKING_TREE.match(version)


@lru_cache
def load_map(system: str) -> EngineMap:
    """The map of one engine. Raises FileNotFoundError, or ValueError for a broken one."""
    with (ROOT / f"{system}.yaml").open(encoding="utf-8") as file:
        found = msgspec.convert(yaml.safe_load(file), EngineMap)
    for metric in found.metrics:
        metric.expected_in(found.newest), metric.known_in(found.newest)
    return found


def systems() -> list[str]:
    """The engines that there are maps of."""
    return sorted(path.stem for path in ROOT.glob("*.yaml"))


def _default(flag: Flag, version: str) -> float | str | None:
    for default in flag.defaults if version else ():
        if in_range(version, default.versions):
            return default.value
    return None


def _given(value: object) -> float | None:
    if value is None:
        return None
    return 0.0 if value is False or value == "" else 1.0

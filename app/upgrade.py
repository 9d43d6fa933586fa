"""What changes for an installation when its engine goes from one version to another.

It compares the tables of flags (`rules/flags/`), the engine's map of metric names, and the settings of levers at both
versions. A command line narrows flags to those that are in use; boards and alerts are held against both versions by
the linter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from kvitals.agent.command_line import launched_engine, parse
from kvitals.dashboards.board_files import boards_by_family
from kvitals.dashboards.lint.defect import Defect, Document
from kvitals.dashboards.lint.lint import lint
from kvitals.dashboards.lint.metrics import Metrics
from kvitals.diagnoser.sources.presence import rules_by_family
from kvitals.rules.engine_flags import FlagState, FlagTable, flag_table, refusal, spellings, systems_with_flags
from kvitals.rules.engine_map import EngineMap, Metric, load_map
from kvitals.rules.loader import Knowledge
from kvitals.rules.model import Lever
from kvitals.rules.versions import in_range, release
from kvitals.series.json_text import encode_json
from kvitals.series.undecodable import UNDECODABLE

FlagEvent = Literal["removed", "refused", "choice", "deprecated", "default", "choices", "added"]
"""`removed` and `refused` keep the engine from starting, and so does a value in use that is no `choice` any more."""

BREAKING: tuple[FlagEvent, ...] = ("removed", "refused", "choice")


class UpgradeError(ValueError):
    """The comparison that was asked for is not possible; the message says why and what to do."""


class UnknownVersionError(UpgradeError):
    """A version that the tables do not reach."""


class FlagChange(Struct, frozen=True):
    """A flag that differs between the two versions."""

    flag: str
    event: FlagEvent
    before: str  # the default or the choices; empty where not known
    after: str
    instead: str = ""  # the flag that replaces it, where the engine names one
    given: str | None = None  # its value on the command line; None: not given, or no command line is known


class NameChange(Struct, frozen=True):
    """A metric's name that only one of the versions has."""

    name: str
    event: Literal["removed", "added"]
    instead: str = ""  # the name that feeds the same family in the new version
    family: str = ""


class FamilyChange(Struct, frozen=True):
    """A family that only one of the versions feeds, with what reads it."""

    family: str
    event: Literal["lost", "gained"]
    rules: list[str]  # rules, and so alerts, whose conditions rest on it
    boards: list[str]  # titles of boards with a panel that reads it


class LeverChange(Struct, frozen=True):
    """A lever that has another flag in the new version; empty where it has none."""

    lever: str
    before: str
    after: str


class QueryBreak(Struct, frozen=True):
    """A query of a board or an alert that is right before the upgrade and wrong after it."""

    document: str
    place: str
    query: str
    why: str
    fix: str


class Upgrade(Struct, frozen=True):
    """The differences between two versions of an engine. `doubts`: what the engine may refuse of the command line in
    either version. `notes`: what could not be compared, and why."""

    system: str
    before: str
    after: str
    command_line: bool  # whether `flags` are those that one is about
    flags: list[FlagChange]
    names: list[NameChange]
    families: list[FamilyChange]
    levers: list[LeverChange]
    queries: list[QueryBreak]
    doubts: list[str]
    notes: list[str]

    @property
    def breaks(self) -> bool:
        """Whether the engine does not start with its flags, or a query of the installation goes dead."""
        return bool(self.queries) or any(change.event in BREAKING and change.given is not None for change in self.flags)

    @property
    def affects(self) -> bool:
        """Whether anything of the installation changes: without one, whether anything changes at all."""
        return bool(self.flags or self.queries or (self.names and not self.command_line))


def compare_versions(
    knowledge: Knowledge,
    system: str,
    before: str,
    after: str,
    arguments: Sequence[str] = (),
    documents: Sequence[Document] = (),
) -> Upgrade:
    """Compare two versions of an engine.

    arguments: the engine's command line, as in `vllm serve MODEL --flag`; documents: boards and rules of the
    installation. Raises UpgradeError for an engine without a table of flags, a version before or after it, or a command
    line of another engine.
    """
    table = flag_table(system)
    if table is None:
        raise UpgradeError(
            f"the flags of {system} are unknown; kvitals knows those of {', '.join(systems_with_flags())}"
        )
    before, after = (version.removeprefix("v") for version in (before, after))  # as tags of releases are written
    for version in (before, after):
        _check(table, version)
    given = _given(system, arguments)
    map_ = load_map(system)
    return Upgrade(
        system,
        before,
        after,
        command_line=bool(arguments),
        flags=list(_flags(table, before, after, given, bool(arguments))),
        names=list(_names(map_, before, after)),
        families=list(_families(knowledge, map_, before, after)),
        levers=list(_levers(knowledge.levers.values(), system, before, after)),
        queries=list(_queries(knowledge, system, before, after, documents)),
        doubts=list(_doubts(table, before, after, given)),
        notes=list(_notes(table, map_, before, after)),
    )


def _check(table: FlagTable, version: str) -> None:
    if not version[:1].isdigit():
        raise UpgradeError(f"`{version}` is not a version: expected one such as {table.newest}")
    if table.is_newer(version):
        raise UnknownVersionError(
            f"{table.system} {version} is newer than the flags that this kvitals knows (to {table.newest}):"
            " upgrade kvitals"
        )
    if table.is_older(version):
        raise UnknownVersionError(
            f"the flags of {table.system} are known from version {table.oldest} on, not for {version}"
        )


def _given(system: str, arguments: Sequence[str]) -> dict[str, str]:
    """The flags of a command line with their values, by name without dashes."""
    if not arguments:
        return {}
    match = launched_engine(arguments)
    if match is None or match[0].system != system:
        raise UpgradeError(f"the command line does not start {system}: expected one such as `{system} serve MODEL`")
    flags = parse(*match)
    keys = (f"{name}.{key}" for name in flags.names for key in _keys(flags.get(name)))
    return {name: flags.text(name) for name in (*flags.names, *keys)}


def _keys(value: object) -> tuple[str, ...]:
    """The keys of a flag's value that is a JSON object."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = msgspec.json.decode(value)
        except UNDECODABLE:
            return ()
    return tuple(map(str, value)) if isinstance(value, dict) else ()


def _flags(
    table: FlagTable, before: str, after: str, given: Mapping[str, str], only_given: bool
) -> Iterator[FlagChange]:
    old, new = table.at(before), table.at(after)
    for flag in sorted(_primary(old) | _primary(new)):
        spellings = {flag, *(old[flag].aliases if flag in old else ()), *(new[flag].aliases if flag in new else ())}
        if flag in new and flag not in _primary(new):
            continue  # it became another spelling of a flag
        value = _value(given, {name.lstrip("-") for name in spellings})
        for change in _changes(flag, old.get(flag), new.get(flag), value):
            if change.event == "removed" and not change.instead:
                change = msgspec.structs.replace(change, instead=_replacement(table, flag, before, after))
            if value is not None or not only_given or change.event == "default":
                yield change


def _doubts(table: FlagTable, before: str, after: str, given: Mapping[str, str]) -> Iterator[str]:
    """Flags that neither version has, and values that a flag does not accept."""
    known = {name.lstrip("-") for version in (before, after) for name in table.at(version)}
    other = spellings(table.system)
    known |= {other.get(name, name) for name in known} | {f"O{level}" for level in range(4)}  # vLLM takes -O3 for -O 3
    for name, value in given.items():
        if "." not in name and name.removeprefix("no-") not in known and name not in known:
            yield f"--{name} is not a flag of {table.system} {before} or {after}: check its spelling"
        elif why := refusal(f"--{name}", value):
            yield why


def _value(given: Mapping[str, str], names: Iterable[str]) -> str | None:
    for name in sorted(names):
        if name in given:
            return given[name]
        if f"no-{name}" in given:
            return "off"
    return None


def _replacement(table: FlagTable, flag: str, before: str, after: str) -> str:
    """What a release in between named as the replacement of a flag that is gone; empty where none did."""
    for version in table.releases:
        if release(before) <= release(version) <= release(after):
            state = table.at(version).get(flag)
            if state is not None and state.deprecated not in ("", "yes", "refused"):
                return state.deprecated
    return ""


def _primary(known: Mapping[str, FlagState]) -> set[str]:
    return {state.flag for state in known.values()}


def _changes(flag: str, old: FlagState | None, new: FlagState | None, given: str | None) -> Iterator[FlagChange]:
    if old is None or new is None:
        state = old or new
        assert state is not None
        event: FlagEvent = "added" if old is None else "removed"
        default = state.default
        yield FlagChange(flag, event, "" if old is None else default, default if old is None else "", given=given)
        return
    if new.deprecated and new.deprecated != old.deprecated:
        event = "refused" if new.deprecated == "refused" else "deprecated"
        instead = "" if new.deprecated in ("yes", "refused") else new.deprecated
        yield FlagChange(flag, event, "", "", instead, given)
    if old.default and new.default and old.default != new.default and given is None:
        yield FlagChange(flag, "default", old.default, new.default, given=given)
    if old.choices and new.choices and set(old.choices) - set(new.choices):
        gone = sorted(set(old.choices) - set(new.choices))
        event = "choice" if given in gone else "choices"
        yield FlagChange(flag, event, " ".join(gone), " ".join(new.choices), given=given)


def _names(map_: EngineMap, before: str, after: str) -> Iterator[NameChange]:
    old, new = _known(map_, before), _known(map_, after)
    prefix = "" if map_.full_names else map_.recognise.prefixes[0]
    for raw in sorted(old.keys() - new.keys()):
        same = [m for m in new.values() if m.family == old[raw].family and m.where == old[raw].where]
        instead = _name(prefix, same[0]) if same else ""
        yield NameChange(_name(prefix, old[raw]), "removed", instead, old[raw].family)
    for raw in sorted(new.keys() - old.keys()):
        yield NameChange(_name(prefix, new[raw]), "added", "", new[raw].family)


def _known(map_: EngineMap, version: str) -> dict[str, Metric]:
    known: dict[str, Metric] = {}
    for metric in map_.metrics:
        if metric.known_in(version):
            known.setdefault(metric.raw, metric)
    return known


def _name(prefix: str, metric: Metric) -> str:
    return metric.raw if metric.bare else prefix + metric.raw


def _families(knowledge: Knowledge, map_: EngineMap, before: str, after: str) -> Iterator[FamilyChange]:
    old = {metric.family for metric in _known(map_, before).values()}
    new = {metric.family for metric in _known(map_, after).values()}
    if old == new:
        return
    rules, boards = rules_by_family(knowledge), boards_by_family(knowledge)
    for family in sorted(old ^ new):
        event: Literal["lost", "gained"] = "lost" if family in old else "gained"
        yield FamilyChange(family, event, rules.get(family, []), boards.get(family, []))


def _levers(levers: Iterable[Lever], system: str, before: str, after: str) -> Iterator[LeverChange]:
    for lever in levers:
        old, new = _setting(lever, system, before), _setting(lever, system, after)
        if old != new:
            yield LeverChange(lever.name, old, new)


def _setting(lever: Lever, system: str, version: str) -> str:
    """The first flag of a lever in a version, with its value where it is a text."""
    for setting in lever.settings:
        if setting.system == system and in_range(version, setting.versions):
            return f"{setting.flag} {setting.value_text}".strip()
    return ""


def _queries(
    knowledge: Knowledge, system: str, before: str, after: str, documents: Sequence[Document]
) -> Iterator[QueryBreak]:
    if not documents:
        return
    was = {_key(defect) for defect in lint(documents, Metrics(knowledge, {system: before})).defects}
    for defect in lint(documents, Metrics(knowledge, {system: after})).defects:
        if defect.weight == "error" and _key(defect) not in was:
            yield QueryBreak(defect.document, defect.place, defect.query, defect.why, defect.fix)


def _key(defect: Defect) -> tuple[str, str, str, str]:
    return defect.code, defect.document, defect.place, defect.query


def _notes(table: FlagTable, map_: EngineMap, before: str, after: str) -> Iterator[str]:
    for version in (before, after):
        nearest = table.nearest(version)
        if nearest is not None and release(nearest) != release(version):
            yield f"kvitals has no flags of {version}: it uses those of {nearest}"
    if map_.untested(after):
        yield f"kvitals knows metric names up to {map_.newest}: it assumes that {after} has the same names"


def as_json(upgrade: Upgrade) -> bytes:
    return msgspec.json.format(encode_json(upgrade))

"""The arguments of one engine over the places where they stand, and the edits that change a flag in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvitals.agent.command_line import launched_engine
from kvitals.app.patch.argument_sites import ArgumentSite
from kvitals.app.patch.lever_change import FlagEdit, PatchError, canonical_name, compact, is_json, opposite_name
from kvitals.app.patch.source_text import TextEdit

_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?")
_SWITCH_BEGINNINGS = ("enable-", "disable-", "no-")
_SWITCHES = frozenset({"enforce-eager", "trust-remote-code", "skip-tokenizer-init", "data-parallel-external-lb"})
_WHOLE_VALUES = {"--kv-transfer-config": ("kv_connector",), "--speculative-config": ("method", "model")}
"""Keys without one of which an engine does not take the flag's JSON."""
_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:[:@]|$)")


@dataclass(frozen=True)
class FlagUse:
    """A flag with its value as it is given. name: canonical; first, last: indices of its words in `site`."""

    name: str
    written: str
    value: str | None
    inline: bool
    site: ArgumentSite
    first: int
    last: int


@dataclass(frozen=True)
class EngineCommand:
    """name: of the service or container. arguments: sites with the index of the engine's first argument in each. The
    flag is inserted into the last of `arguments` that is not a variable's value, `insertion`."""

    name: str
    system: str
    arguments: Sequence[tuple[ArgumentSite, int]]
    insertion: ArgumentSite
    notes: Sequence[str] = ()

    def renamed(self, name: str) -> EngineCommand:
        """The same under another name."""
        return replace(self, name=name)

    def uses(self) -> Iterator[FlagUse]:
        """The flags in their order."""
        for site, begin in self.arguments:
            yield from _uses(site, begin, self.system)

    def edits(self, changes: Sequence[FlagEdit]) -> list[TextEdit]:
        """The edits that make the changes; none where the command has them already."""
        edits: list[TextEdit] = []
        added: list[list[str]] = []
        known = list(self.uses())
        for change in changes:
            made, missing = self._edits_of(change, known)
            edits += made
            added += missing
        return [*edits, self.insertion.insert(added)] if added else edits

    def has(self, changes: Sequence[FlagEdit]) -> bool:
        """Whether each changed flag is there exactly once, with its value, and a removed one is not."""
        return all(self._has(change, list(self.uses())) for change in changes)

    def state(self, flag: str) -> str | None:
        """The value of a flag in the file, empty for a switch; None where the file does not set it."""
        name = canonical_name(flag, self.system)
        uses = [use for use in self.uses() if use.name == name]
        return (uses[-1].value or "") if uses else None

    def _edits_of(self, change: FlagEdit, known: Sequence[FlagUse]) -> tuple[list[TextEdit], list[list[str]]]:
        name = canonical_name(change.flag, self.system)
        same = [one for one in known if one.name.partition(".")[0] == name]
        against = [one for one in known if one.name == opposite_name(name)]
        if change.action == "remove":
            family = [one for one in known if change.family and one.name.startswith(change.family)]
            return _removed([*same, *(one for one in family if one not in same)]), []
        whole = [one for one in same if one.name == name]
        value = _merged_value(change, whole) if change.action == "merge" else change.value
        keep = whole[-1] if whole else None  # the last one counts
        gone = [one for one in (*same, *against) if one is not keep]
        edits = _removed(gone)
        if keep is None:
            return edits, [[change.flag] if change.action == "switch" else [change.flag, value]]
        return [*edits, *_edited(keep, change, value)], []

    def _has(self, change: FlagEdit, known: Sequence[FlagUse]) -> bool:
        name = canonical_name(change.flag, self.system)
        same = [one for one in known if one.name.partition(".")[0] == name]
        if change.action == "remove":
            family = [one for one in known if change.family and one.name.startswith(change.family)]
            return not same and not family
        if len(same) != 1 or any(one.name == opposite_name(name) for one in known):
            return False
        use = same[0]
        if change.action == "switch":
            return use.value is None
        if change.action == "merge":
            today = json.loads(use.value) if use.value and is_json(use.value) else None
            return isinstance(today, dict) and all(today.get(key) == value for key, value in change.merged.items())
        return use.value == change.value or _same_json(use.value or "", change.value)


def engine_start(values: Sequence[str]) -> tuple[str, int] | None:
    """The engine that a command starts, and the index of its first argument; None for other commands. Words before the
    engine (`exec`, `env A=b`, `docker run ... IMAGE`) are passed over."""
    for index, value in enumerate(values):
        if (launched := launched_engine(values[index:])) is not None:
            launcher, rest = launched
            return launcher.system, len(values) - len(rest)
        if index and _IMAGE.search(value):
            return "vllm", index + 1
    return None


def _uses(site: ArgumentSite, begin: int, system: str) -> Iterator[FlagUse]:
    values = site.values
    index = begin
    while index < len(values):
        word = values[index]
        if not _is_flag(word):
            index += 1
            continue
        written, equals, value = word.partition("=")
        name = canonical_name(written, system)
        if equals:
            yield FlagUse(name, written, value, True, site, index, index)
            index += 1
            continue
        takes = not (name.startswith(_SWITCH_BEGINNINGS) or name in _SWITCHES)
        if takes and index + 1 < len(values) and not _is_flag(values[index + 1]):
            yield FlagUse(name, written, values[index + 1], False, site, index, index + 1)
            index += 2
        else:
            yield FlagUse(name, written, None, False, site, index, index)
            index += 1


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _removed(uses: Sequence[FlagUse]) -> list[TextEdit]:
    return [edit for use in uses for edit in use.site.remove(use.first, use.last)]


def _edited(use: FlagUse, change: FlagEdit, value: str) -> list[TextEdit]:
    """The edit of a flag that is there; none where it has the value already."""
    if change.action == "switch":
        return [] if use.value is None else [use.site.replace(use.first, use.written)]
    if use.value is not None and (use.value == value or _same_json(use.value, value)):
        return []
    if use.inline:
        return [use.site.replace(use.first, f"{use.written}={value}")]
    if use.value is None:
        raise PatchError(f"{use.written} has no value in the file; correct the file first")
    return [use.site.replace(use.last, value)]


def _merged_value(change: FlagEdit, whole: Sequence[FlagUse]) -> str:
    """Today's JSON with the changed keys."""
    today = whole[-1].value if whole else None
    if not today:
        needed = _WHOLE_VALUES.get(change.flag, ())
        if needed and not any(key in change.merged for key in needed):
            raise PatchError(
                f"{change.flag} is not in the file, and {change.value} is only a part of its value: it needs "
                f"{' or '.join(needed)}. Give the whole value with --set"
            )
        return change.value
    if not is_json(today) or not isinstance(json.loads(today), dict):
        raise PatchError(f"{change.flag} has a value that is not a JSON object ({today}); merge {change.value} by hand")
    return compact({**json.loads(today), **change.merged})


def _same_json(one: str, other: str) -> bool:
    return one[:1] in "{[" and is_json(one) and is_json(other) and bool(json.loads(one) == json.loads(other))

"""Which engines, nodes and pools there are at one moment, what is known of them, and which rules are for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvitals.rules.engine_map import find_map
from kvitals.rules.model import AROUND, SCOPES, Rule, Scope
from kvitals.series.types import Labels

ENTITIES = "kvitals_target_up"
INFO = "kvitals_engine_info"
IN_FRONT = ("router", "gateway")
"""Programs that see requests pass and engines from outside: what they do not tell is not missing."""
NOTHING_KNOWN = Labels()


def entity_title(scope: str, labels: Labels) -> str:
    """What people call an entity: the narrowest of its labels."""
    return next((labels[name] for name in reversed(SCOPES[scope]) if labels.get(name)), scope)


def entity_titles(scope: str, entities: Iterable[Labels]) -> dict[Labels, str]:
    """What people call entities of one scope: where several have the same narrowest label, the wider one by which they
    differ stands before it (`eu/10.0.0.1:8000/0`), or all of these where one is not enough."""
    alike: dict[str, list[Labels]] = {}
    for entity in entities:
        alike.setdefault(entity_title(scope, entity), []).append(entity)
    titles = {several[0]: title for title, several in alike.items()}
    for title, several in alike.items():
        if len(several) > 1:
            alone = (name for name in SCOPES[scope] if len({one.get(name) for one in several}) == len(several))
            apart = next(((name,) for name in alone), SCOPES[scope])
            titles |= {one: "/".join([*_wider(scope, one, apart), title]) for one in several}
    return titles


def _wider(scope: str, entity: Labels, names: Sequence[str]) -> list[str]:
    """The values of those of the labels that are not the narrowest one."""
    narrowest = next((name for name in reversed(SCOPES[scope]) if entity.get(name)), "")
    return [entity[name] for name in names if entity.get(name) and name != narrowest]


@dataclass
class Entities:
    """Who is there at one moment."""

    at: float
    entity: Callable[[Labels, tuple[str, ...]], Labels]
    up: Sequence[Labels] = ()
    infos: Sequence[Labels] = ()
    _of: dict[str, list[Labels]] = field(default_factory=dict)  # by scope
    _titles: dict[str, dict[Labels, str]] = field(default_factory=dict)  # by scope
    _info: dict[tuple[str, ...], dict[Labels, Labels]] = field(default_factory=dict)  # names of labels -> by entity
    _around: dict[tuple[Scope, Labels], dict[Scope, Labels]] = field(default_factory=dict)
    _told: dict[Labels, Labels] = field(default_factory=dict)  # entity -> what is known of it
    _texts: dict[Labels, str] = field(default_factory=dict)
    _first: dict[tuple[str, ...], dict[Labels, Labels]] = field(default_factory=dict)  # scope -> entity -> a target

    def of(self, scope: str) -> list[Labels]:
        if scope not in self._of:
            self._of[scope] = sorted({self.entity(labels, SCOPES[scope]) for labels in self.up}, key=str)
        return self._of[scope]

    def title(self, scope: str, entity: Labels) -> str:
        """What people call an entity, so that no other one of its scope is called the same."""
        if scope not in self._titles:
            self._titles[scope] = entity_titles(scope, self.of(scope))
        return self._titles[scope].get(entity) or entity_title(scope, entity)

    def text(self, entity: Labels) -> str:
        """An entity as text; it is asked for by every rule."""
        found = self._texts.get(entity)
        if found is None:
            found = self._texts[entity] = str(entity)
        return found

    def info(self, entity: Labels) -> Labels:
        found = self._told.get(entity)
        if found is None:
            names = tuple(entity)
            if names not in self._info:
                self._info[names] = {labels.keep(names): labels for labels in self.infos}
            found = self._told[entity] = self._info[names].get(entity, NOTHING_KNOWN)
        return found

    def around(self, scope: Scope, entity: Labels) -> dict[Scope, Labels]:
        """An entity and what it is part of, by scope. `up` tells an engine's pool, which its identity does not."""
        key = (scope, entity)
        if key not in self._around:
            labels = self._targets(SCOPES[scope]).get(entity, entity)
            self._around[key] = {wider: labels.keep(SCOPES[wider]) for wider in AROUND[scope]}
        return self._around[key]

    def _targets(self, scope: tuple[str, ...]) -> dict[Labels, Labels]:
        """The first target of each entity."""
        if scope not in self._first:
            first = self._first[scope] = {}
            for labels in self.up:
                first.setdefault(labels.keep(scope), labels)
        return self._first[scope]


def not_for(rule: Rule, info: Labels) -> str:
    """Why a rule is not for an engine of which so much is known; empty where it is."""
    applies = rule.applies
    system, kind, role = info.get("system", ""), info.get("kind", ""), info.get("role", "")
    if system and applies.systems and system not in applies.systems:
        return f"only for {', '.join(applies.systems)}, this is {system}"
    if kind and applies.kinds and kind not in applies.kinds:
        return f"not for a {kind}"
    if role in applies.not_roles:
        return f"not for the {role} side"
    known = find_map(system)
    return known.not_applicable.get(rule.code, "") if known is not None else ""

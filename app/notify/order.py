"""In which order messages are dealt with: pages first, and those of one entity one after the other as they came.

A message never overtakes an older one of the same entity: a `resolved` before its `firing` would leave an incident
open. So an older one is as urgent as the most urgent that waits behind it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvitals.app.notify.incoming import Message
from kvitals.app.notify.notice import SEVERITIES

EntityKey = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Card:
    """A message that waits. urgency: of its most severe firing alert, the index in SEVERITIES; came: when this process
    took it in, on the monotonic clock."""

    id: int
    urgency: int
    entities: frozenset[EntityKey]
    came: float = field(default_factory=time.monotonic, compare=False)


def card(id_: int, message: Message) -> Card:
    """What the order of a message hangs on."""
    firing = [SEVERITIES.index(one.severity) for one in message.alerts if one.status == "firing"]
    entities = frozenset(entity_key(one.entity) for one in message.alerts)
    return Card(id_, max(firing, default=0), entities)


def entity_key(entity: Mapping[str, str]) -> EntityKey:
    """What an entity differs in from others. An engine is the same with and without its pool, which not every alert
    has."""
    named = "engine" in entity
    return tuple(sorted(label for label in entity.items() if label[0] != "pool" or not named))


@dataclass
class Line:
    """The messages that wait and those that are being dealt with. Ids grow with the time of arrival."""

    last: int = 0
    """The highest id that was ever added."""
    _waiting: dict[int, Card] = field(default_factory=dict)
    _queues: dict[EntityKey, deque[Card]] = field(default_factory=dict)
    _under_way: set[int] = field(default_factory=set)

    def add(self, several: Iterable[Card]) -> None:
        """Put messages at the end, in the order of their ids."""
        for one in several:
            self.last = max(self.last, one.id)
            self._waiting[one.id] = one
            for entity in one.entities:
                self._queues.setdefault(entity, deque()).append(one)

    def next(self) -> Card | None:
        """The most urgent message that may be dealt with now, the oldest of these; it is under way from here on."""
        ready = [one for one in self._waiting.values() if one.id not in self._under_way and self._is_first(one)]
        chosen = max(ready, key=lambda one: (self._urgency(one), -one.id), default=None)
        if chosen is not None:
            self._under_way.add(chosen.id)
        return chosen

    def done(self, one: Card) -> None:
        """It was dealt with."""
        self._under_way.discard(one.id)
        self._waiting.pop(one.id, None)
        for entity in one.entities:
            queue = self._queues[entity]
            queue.remove(one)
            if not queue:
                del self._queues[entity]

    def again(self, one: Card) -> None:
        """It could not be dealt with, and waits as before."""
        self._under_way.discard(one.id)

    def _is_first(self, one: Card) -> bool:
        return all(self._queues[entity][0] is one for entity in one.entities)

    def _urgency(self, one: Card) -> int:
        behind = (other.urgency for entity in one.entities for other in self._queues[entity])
        return max(behind, default=one.urgency)

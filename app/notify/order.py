"""In which order messages are dealt with: pages first, and those of one entity one after the other as they came.

A message never overtakes an older one of the same entity: a `resolved` before its `firing` would leave an incident
open. So an older one is as urgent as the most urgent that waits behind it, by way of others too.
"""

from __future__ import annotations

import heapq
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
class _Place:
    """A message in the line. urgency: its own, or that of the most urgent message that waits behind it; before: the
    messages right in front of it, one of each of its entities; blocked: how many of these are still in the line."""

    card: Card
    urgency: int
    before: list[_Place]
    blocked: int = 0
    under_way: bool = False


@dataclass
class Line:
    """The messages that wait and those that are being dealt with. Ids grow with the time of arrival.

    Each step looks only at the messages beside one. An urgency rises from a message to those in front of it, a few
    times at most, and a heap has the messages that may be next.
    """

    last: int = 0
    """The highest id that was ever added."""
    _places: dict[int, _Place] = field(default_factory=dict)
    _queues: dict[EntityKey, deque[_Place]] = field(default_factory=dict)
    _ready: list[tuple[int, int]] = field(default_factory=list)  # less urgency and id; an older urgency may be left

    def add(self, several: Iterable[Card]) -> None:
        """Put messages at the end, in the order of their ids."""
        for one in several:
            self.last = max(self.last, one.id)
            queues = [self._queues.setdefault(entity, deque()) for entity in one.entities]
            before = [queue[-1] for queue in queues if queue]
            place = self._places[one.id] = _Place(one, one.urgency, before, len(before))
            for queue in queues:
                queue.append(place)
            self._raise(before, one.urgency)
            self._offer(place)

    def next(self) -> Card | None:
        """The most urgent message that may be dealt with now, the oldest of these; it is under way from here on."""
        while self._ready:
            less, number = heapq.heappop(self._ready)
            place = self._places.get(number)
            if place is not None and not place.under_way and place.urgency == -less:
                place.under_way = True
                return place.card
        return None

    def done(self, one: Card) -> None:
        """It was dealt with."""
        self._places.pop(one.id).before.clear()
        for entity in one.entities:
            queue = self._queues[entity]
            queue.popleft()  # what is dealt with is the first of each of its entities
            if not queue:
                del self._queues[entity]
                continue
            queue[0].blocked -= 1
            self._offer(queue[0])

    def again(self, one: Card) -> None:
        """It could not be dealt with, and waits as before."""
        place = self._places[one.id]
        place.under_way = False
        self._offer(place)

    def _offer(self, place: _Place) -> None:
        """Let a message be next, where nothing is in front of it."""
        if not place.blocked and not place.under_way:
            heapq.heappush(self._ready, (-place.urgency, place.card.id))

    def _raise(self, places: Iterable[_Place], urgency: int) -> None:
        """Messages and all in front of them are at least so urgent."""
        left = list(places)
        while left:
            place = left.pop()
            if place.urgency < urgency:
                place.urgency = urgency
                self._offer(place)
                left += place.before

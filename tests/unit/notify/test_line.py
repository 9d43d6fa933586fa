"""The order of messages is the one that a naive definition gives, and each step costs little."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.app.notify import order
from kvitals.app.notify.order import Card, EntityKey, Line

ENTITIES: list[EntityKey] = [(("engine", name),) for name in "abcd"]
cards = st.tuples(st.integers(0, 2), st.frozensets(st.sampled_from(ENTITIES), max_size=3))
steps = st.lists(st.one_of(cards, st.sampled_from(["next", "done", "again"])), max_size=40)


class NaiveLine:
    """All that waits is looked at in each step."""

    def __init__(self) -> None:
        self.waiting: list[Card] = []
        self.under_way: list[Card] = []

    def behind(self, one: Card) -> list[Card]:
        """What waits for a message, by way of others too."""
        found = [one]
        for other in self.waiting:
            if other.id > one.id and any(other.entities & each.entities for each in found):
                found.append(other)
        return found

    def next(self) -> Card | None:
        ready = [
            one
            for one in self.waiting
            if one not in self.under_way
            and not any(other.id < one.id and other.entities & one.entities for other in self.waiting)
        ]
        return max(ready, key=lambda one: (max(each.urgency for each in self.behind(one)), -one.id), default=None)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_the_order_is_that_of_the_definition(several: Sequence[str | tuple[int, frozenset[EntityKey]]]) -> None:
    line, naive = Line(), NaiveLine()
    for number, step in enumerate((*several, *["next", "done"] * len(several))):
        if isinstance(step, tuple):
            naive.waiting.append(Card(number, *step))
            line.add(naive.waiting[-1:])
        elif step == "next":
            expected = naive.next()
            assert line.next() == expected
            naive.under_way += [expected] if expected is not None else []
        elif naive.under_way:
            one = naive.under_way.pop(0)
            if step == "done":
                naive.waiting.remove(one)
                line.done(one)
            else:
                line.again(one)
    assert not naive.waiting and not line._places and not line._queues


def test_the_work_grows_with_the_messages_and_not_with_their_square() -> None:
    """Each of 1,000 waiting messages was looked at before each one was dealt with."""

    def work(count: int) -> int:
        looked = 0

        class Counted(order._Place):
            def __getattribute__(self, name: str) -> object:
                nonlocal looked
                looked += 1
                return super().__getattribute__(name)

        real, order._Place = order._Place, Counted  # type: ignore[misc]
        try:
            line = Line()
            line.add(Card(i, i % 3, frozenset({ENTITIES[i % 4], (("engine", f"{i}"),)})) for i in range(count))
            for _ in range(count):
                one = line.next()
                assert one is not None
                line.done(one)
        finally:
            order._Place = real  # type: ignore[misc]
        return looked

    assert work(800) <= 4.5 * work(200)

"""Full collections stay short, and cycles are still collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kvitals.agent import garbage
from kvitals.agent.garbage import ShortCollections

REMEMBERED = 20_000
GROWTH = 1.1
"""In place of the product's 2: what other tests left is much, and to double it takes seconds."""


class Node:
    """A container that may be part of a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortCollections]:
    monkeypatch.setattr(garbage, "GROWTH", GROWTH)
    collections = ShortCollections(least=100)
    collections.start()
    yield collections
    collections.stop()


def pair() -> weakref.ref[Node]:
    """A cycle that nobody holds."""
    one, other = Node(), Node()
    one.other, other.other = other, one
    return weakref.ref(one)


def test_what_survived_is_not_walked_again(short: ShortCollections) -> None:
    remembered = [[one] for one in range(REMEMBERED)]
    gc.collect()
    before = gc.get_freeze_count()
    assert len(gc.get_objects()) < REMEMBERED  # what is set aside is not among these
    assert before >= REMEMBERED
    del remembered
    assert gc.get_freeze_count() <= before - REMEMBERED  # reference counts free it


def test_a_cycle_is_collected_while_it_is_young(short: ShortCollections) -> None:
    gone = pair()
    gc.collect()
    assert gone() is None


def test_a_cycle_that_was_set_aside_is_collected_once_what_is_set_aside_grew(short: ShortCollections) -> None:
    one, other = Node(), Node()
    one.other, other.other = other, one
    gone = weakref.ref(one)
    gc.collect()
    del one, other
    gc.collect()
    assert gone() is not None
    gc.disable()  # collections meanwhile would each walk what there is so far
    remembered = [[one] for one in range(int(2 * (GROWTH - 1) * gc.get_freeze_count()))]
    gc.enable()
    gc.collect()  # sets them aside
    gc.collect()
    assert gone() is None
    assert short.whole == 1
    assert remembered

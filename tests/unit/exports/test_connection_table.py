"""Which connection gives way to which."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvitals.agent.connection_table import ConnectionTable, Waiting


@dataclass(eq=False)
class Member:
    """A connection that does as it is told."""

    peer: str
    age: float = 100.0
    busy: bool = False
    ended: list[bool] = field(default_factory=list)

    def progress_age(self) -> float:
        return self.age

    def may_give_way(self) -> bool:
        return not self.busy

    def give_way(self) -> None:
        self.ended.append(True)


Table = ConnectionTable[Member]


def joined(table: Table, peer: str, waiting: Waiting | None = Waiting.NEW, **more: float) -> Member:
    member = Member(peer, **more)
    assert not table.join(member)
    if waiting is None:
        table.served(member)
    else:
        table.waits(member, waiting)
    return member


def test_the_kinds_give_way_in_their_order_and_of_each_the_longest() -> None:
    table = Table(5, 5, {})
    idle, upload, new, newer = (
        joined(table, "a", one) for one in (Waiting.IDLE, Waiting.UPLOAD, Waiting.NEW, Waiting.NEW)
    )
    deaf = joined(table, "a", None)
    table.unread(deaf, True)
    for expected in (new, newer, upload, idle, deaf):
        joined(table, "b", None)
        assert expected.ended
    assert table.join(Member("b")) == "all"


def test_an_address_with_more_than_its_share_ends_its_own() -> None:
    table = Table(4, 2, {})
    others = [joined(table, "b") for _ in range(2)]
    own = [joined(table, "a") for _ in range(12)]
    assert [bool(one.ended) for one in own] == [True] * 10 + [False] * 2
    assert not any(one.ended for one in others)


@pytest.mark.parametrize("peer", ["192.0.2.1", "2001:db8::1"])
def test_an_address_whose_connections_work_is_refused_and_others_are_not(peer: str) -> None:
    table = Table(10, 2, {})
    for _ in range(2):
        joined(table, peer, None)
    refused = Member("2001:db8::2" if ":" in peer else peer)  # of the same network
    assert table.join(refused) == "peer"
    table.leave(refused)
    assert table.of_peer(peer) == 2
    assert not table.join(Member("192.0.2.2"))


def test_who_must_wait_and_who_has_an_answer_under_way_stays() -> None:
    table = Table(1, 1, {Waiting.IDLE: 10.0})
    young = joined(table, "a", Waiting.IDLE, age=1.0)
    assert table.join(Member("b")) == "all" and not young.ended
    table = Table(1, 1, {})
    busy = joined(table, "a", Waiting.IDLE, busy=True)
    assert table.join(Member("b")) == "all" and not busy.ended


def test_a_connection_that_gave_way_counts_until_it_is_lost_and_not_twice() -> None:
    table = Table(1, 1, {})
    first = joined(table, "a")
    second = joined(table, "a")
    assert first.ended and len(table) == 2 and table.of_peer("a") == 1
    table.waits(first, Waiting.IDLE)  # it notices later
    table.leave(first)
    table.leave(first)
    assert len(table) == 1 and table.of_peer("a") == 1
    table.leave(second)
    assert not len(table) and not table.of_peer("a")

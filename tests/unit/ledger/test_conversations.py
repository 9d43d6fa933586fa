"""Look-ups of conversations on a pool that does as vLLM does, beside what it knows it found.

What is asked of the ledger: with requests' records 99 % of look-ups or so are known for what they were. Without them
the next turn of a conversation can not be told from a block that decoding filled where both are one block behind the
same chain at about the same pace: that is stated here, not hidden.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.ledger.event import GPU
from tests.unit.ledger.driven import Driven, Traffic, drive
from tests.unit.ledger.pool import events

CHATS = Traffic()
SHORT = Traffic(message=(4, 40))
BUSY = Traffic(rate=4.0)
AGENTS = Traffic(think=(0.05, 0.5), message=(4, 60))
LONG = Traffic(output=(30, 400), sessions=30)
KINDS = {"chats": CHATS, "short": SHORT, "busy": BUSY, "agents": AGENTS, "long": LONG}


def tables_agree(driven: Driven) -> bool:
    main = driven.ledger.main
    return main.live == driven.pool.live and not driven.ledger.all_dropped(0).keys() - {"chain_forgotten"}


@pytest.mark.parametrize("kind", KINDS)
def test_records_tell_whose_look_ups_were_whose(kind: str) -> None:
    driven = drive(KINDS[kind], 1200 if kind == "long" else 400, records=True)
    assert tables_agree(driven)
    assert driven.joined() >= 0.985
    assert abs(driven.surplus()) <= 0.1
    assert {look.request for look in driven.looks if look.party.tenant} >= {
        look.request for look in driven.looks if look.request
    }


@pytest.mark.parametrize("kind", ["chats", "busy"])
def test_nobody_needs_sessions_where_records_tell_prompts_and_hits(kind: str) -> None:
    assert drive(KINDS[kind], 400, records=True, sessions=False).joined() >= 0.99


@pytest.mark.parametrize(
    ("kind", "least"),
    [("chats", 0.97), ("busy", 0.97), ("long", 0.98), ("short", 0.88), ("agents", 0.75)],
)
def test_without_records_steps_and_times_tell_most(kind: str, least: float) -> None:
    driven = drive(KINDS[kind], 1200 if kind == "long" else 400, records=False)
    assert tables_agree(driven)
    assert driven.inferred() >= least


def test_a_reused_prefix_that_is_reported_changes_nothing() -> None:
    driven = drive(Traffic(report=0.5), 400, records=True)
    assert tables_agree(driven)
    assert driven.joined() == 1.0


def test_refaults_are_those_of_the_pool() -> None:
    driven = drive(CHATS, 400, records=True)
    assert driven.pool.refaulted > 500
    assert driven.ledger.tallies[GPU].refaulted == driven.pool.refaulted


def test_tables_forget_all_when_the_cache_is_reset() -> None:
    driven = drive(Traffic(sessions=5), 400, records=False)
    driven.pool.reset()
    batch = driven.pool.step()
    assert batch is not None
    driven.ledger.feed(events([batch], driven.pool.now))
    assert driven.ledger.main.live == driven.pool.live == 0


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    blocks=st.integers(120, 600),
    rate=st.sampled_from([0.5, 2.0, 8.0]),
    size=st.sampled_from([8, 16, 32]),
    message=st.sampled_from([(4, 40), (4, 200), (100, 600)]),
)
def test_whatever_the_traffic_the_tables_are_right_and_nearly_all_look_ups_are(
    seed: int, blocks: int, rate: float, size: int, message: tuple[int, int]
) -> None:
    traffic = Traffic(seed=seed, sessions=20, turns=4, rate=rate, message=message)
    driven = drive(traffic, blocks * 16 // size * 4, records=True, size=size)
    assert tables_agree(driven)
    assert driven.joined() >= 0.93  # of few requests: one may have stored nothing at its first turn

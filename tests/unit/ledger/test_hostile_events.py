"""Whatever a publisher and observers of requests say, the ledger goes on and its numbers add up."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.ledger.block_table import Room
from kvitals.agent.ledger.engine import EngineLedger, SettledLookup
from kvitals.agent.ledger.event import (
    BlockEventBatch,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    KvEventsRecord,
)
from kvitals.agent.ledger.owners import Owners
from kvitals.agent.ledger.prompt_lookups import Style
from kvitals.agent.requests.record import RequestRecord

T = 1_790_000_000.0
LIMIT = 40

hashes = st.lists(st.integers(0, 12), min_size=0, max_size=5).map(tuple)
media = st.sampled_from(["gpu", "gpu", "gpu", "host"])
groups = st.sampled_from([0, 0, 0, 1])
names = st.sampled_from(["", "a", "b"])
stored = st.builds(
    BlocksStored,
    hashes,
    st.none() | st.integers(0, 12),
    st.sampled_from([0, 16, 16]),
    media,
    names,
    names,
    names,
    groups,
)
events = st.lists(stored | st.builds(BlocksRemoved, hashes, media, groups) | st.builds(BlocksCleared), max_size=6)
batches = st.lists(st.tuples(st.floats(-5, 30) | st.sampled_from([1e300, -1e300]), events), max_size=4)
records = st.tuples(
    st.floats(0, 60), st.floats(0, 20), st.none() | st.integers(0, 200), st.none() | st.integers(0, 200), names
)
turns = st.lists(
    st.tuples(
        st.floats(0, 40), batches, st.sampled_from([0, 0, 0, 2, -1]), st.booleans(), st.lists(records, max_size=2)
    ),
    max_size=12,
)


@settings(max_examples=120, deadline=None)
@given(turns, st.sampled_from(Style), st.booleans())
def test_nothing_that_is_told_stops_it(
    told: list[tuple[float, list[tuple[float, list[Event]]], int, bool, list[tuple[float, ...]]]],
    style: Style,
    expects: bool,
) -> None:
    looks: list[SettledLookup] = []
    room, t = Room(LIMIT), T
    ledger = EngineLedger(room, Owners(), style, looks.append)
    ledger.set_pool(8)
    for seconds, some, lost, restarted, requests in told:
        t += seconds
        made = tuple(BlockEventBatch(n, t + at, tuple(events)) for n, (at, events) in enumerate(some))
        ledger.feed(KvEventsRecord(t=t, target="t", batches=made, lost=lost, restarted=restarted and seconds > 35))
        for start, length, prompt, cached, name in requests:
            ledger.request(
                RequestRecord(
                    id="r",
                    start=T + start,
                    end=T + start + length,
                    complete=True,
                    engines={"unified": "e"},
                    tenant=str(name),
                    session=str(name),
                    prompt_tokens=prompt,  # type: ignore[arg-type]
                    cached_tokens=cached,  # type: ignore[arg-type]
                    output_tokens=prompt,  # type: ignore[arg-type]
                )
            )
        ledger.advance(t, expects)
        known = sum(len(table) for table in ledger.tables.values())
        assert known + room.left == LIMIT
        for table in ledger.tables.values():
            copies = table.copies
            assert table.live == sum(run.live for run in table.runs) + copies
            assert table.ghosts == sum(len(run.gone) for run in table.runs)
            assert all(len(run.gone) == len(run.hashes) - run.live for run in table.runs)
        share = ledger.share
        assert share is not None
        assert 0 <= share <= 1
    ledger.flush()
    for look in looks:
        assert 0 <= look.hits <= look.blocks
        assert look.chain is None or len(look.chain) == look.blocks

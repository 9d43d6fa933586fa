"""The definitions, written down as plainly as possible, for the tests to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from kvitals.kvcache.accesses import Accesses, Builder
from kvitals.kvcache.eviction import Policy

BLOCK_SIZE = 4

Request = tuple[float, int, int, list[int]]
"""Time, tokens, session, chain."""


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Requests whose chains are branches of a small tree, as prefixes are."""
    made = []
    time = 0
    for _ in range(draw(st.integers(1, 25))):
        time += draw(st.integers(0, 4))
        session = draw(st.integers(-1, 3))
        branches = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
        chain, id_ = [], 0
        for branch in branches:
            id_ = id_ * 3 + branch + 1
            chain.append(id_)
        partial = draw(st.integers(0, BLOCK_SIZE - 1))
        made.append((float(time), max(len(chain) * BLOCK_SIZE - partial, 1), session, chain))
    return made


@st.composite
def any_ids(draw: st.DrawFn) -> list[Request]:
    """Requests with ids that repeat in a chain and are nobody's prefix: not what ids should be, but what may come."""
    chains = draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=20))
    return [(float(i), len(chain) * BLOCK_SIZE, i % 3 - 1, chain) for i, chain in enumerate(chains)]


def accesses(rows: Sequence[Request]) -> Accesses:
    builder = Builder(BLOCK_SIZE, 100_000)
    for time, tokens, session, chain in rows:
        assert builder.add(time, tokens, chain, "trace", session=session)
    return builder.accesses()


def plain_replay(policy: Policy, capacity: float, rows: Sequence[Request], horizon: float = 5.0) -> list[int]:
    """Leading hits of each request: a list of blocks and what is known of each, looked through from end to end."""
    held: dict[int, dict[str, int]] = {}
    seen: dict[int, float] = {}  # session -> latest request
    spell: dict[int, int] = {}  # session -> how often it came back after a pause
    clock, found = 0, []
    for time, _, session, chain in rows:
        hits = 0
        while hits < len(chain) and chain[hits] in held:
            hits += 1
        found.append(hits)
        if session >= 0:
            spell[session] = spell.get(session, 0) + (time - seen.get(session, time) > horizon)
            seen[session] = time
        rank: dict[Policy, Callable[[int], tuple[int, ...]]] = {
            "lru": lambda block: (held[block]["touched"],),
            "fifo": lambda block: (held[block]["inserted"],),
            "lfu": lambda block: (held[block]["touches"], held[block]["touched"]),
            "priority": lambda block: (
                int(
                    seen.get(held[block]["session"], -np.inf) >= time - horizon  # noqa: B023 (used at once)
                    and spell[held[block]["session"]] == held[block]["spell"]
                ),
                held[block]["touched"],
            ),
        }
        for block in reversed(chain):
            clock += 1
            if block not in held:
                if len(held) >= capacity:
                    del held[min(held, key=rank[policy])]
                held[block] = {"inserted": clock, "touches": 0}
            mine = {"touched": clock, "session": session, "spell": spell.get(session, 0)}
            held[block] |= mine | {"touches": held[block]["touches"] + 1}
    return found


def tokens_hit(rows: Sequence[Request], hits: Sequence[int]) -> int:
    return sum(min(tokens, depth * BLOCK_SIZE) for (_, tokens, _, _), depth in zip(rows, hits, strict=True))

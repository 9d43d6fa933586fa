"""Predicted hits of a larger cache: from the cache as it is, not from an empty one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kvitals.diagnoser.replays import Gain, RecordedLookups, _advice, _Replayed
from kvitals.kvcache.accesses import COLUMNS, Accesses, in_order
from kvitals.kvcache.eviction import Lru
from kvitals.kvcache.whatif import ReplayPlan, what_if
from kvitals.rules.finding import LeverAdvice, PredictedValue
from kvitals.rules.model import ReplaySpec

CHAIN = 50
POOL = 40_000


def conversations(lookups: int, of: int = 3_000) -> Accesses:
    """Each look-up is of a conversation drawn at random, so that an LRU cache hits its share of all blocks."""
    drawn = np.random.default_rng(1).integers(0, of, lookups)
    block = (drawn[:, None] * CHAIN + np.arange(CHAIN)).ravel()
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, np.zeros(lookups, dtype=np.int64))
    columns |= {"time": np.arange(lookups) / 4.0, "tokens": np.full(lookups, CHAIN * 16), "source": np.full(lookups, 4)}
    made = in_order(columns, np.arange(lookups + 1) * CHAIN, block, 16, ("e",), ("t",))
    cache = Lru(POOL)
    hits = []
    for chain in np.split(made.block, made.start[1:-1]):
        hits.append(cache.leading(chain.tolist()))
        cache.touch(chain.tolist(), 0.0, -1)
    return replace(made, hit=np.array(hits))


def gain(accesses: Accesses, pool: int, times: float) -> Gain | None:
    finding: Any = SimpleNamespace(entity=SimpleNamespace(kind="engine", labels={"engine": "e"}))
    replayed = _Replayed(RecordedLookups(accesses, {"e": pool}))
    return replayed.gain(finding, cast(Any, SimpleNamespace(setting=None)), ReplaySpec(capacity=times))


def test_a_gain_is_of_the_cache_as_it_is() -> None:
    """Twice the blocks hit 27 points more. From an empty cache, with the latest 50,000 references, it was under 1."""
    engine = conversations(12_000)
    kept = engine.take(np.arange(4_000, 12_000))  # the engine ran before what is kept begins
    told = gain(kept, POOL, 2.0)
    assert told is not None and told.filled
    sizes = what_if(engine, ReplayPlan((POOL, 2 * POOL), warm=4_000))
    true = sizes[1].token_hit_rate - sizes[0].token_hit_rate
    assert true > 0.2
    assert told.to - told.hit == pytest.approx(true, abs=0.02)
    assert told.error < 0.02


def test_look_ups_that_do_not_fill_the_cache_give_a_lower_bound() -> None:
    told = gain(conversations(1_000), POOL, 8.0)
    assert told is not None and not told.filled


def test_what_fills_a_cache_is_not_counted() -> None:
    accesses = conversations(600)
    (row,) = what_if(accesses, ReplayPlan((10_000,), nodes=2, routings=("round-robin",), warm=300))
    everything = what_if(accesses, ReplayPlan((10_000,), nodes=2, routings=("round-robin",)))[0]
    first = what_if(accesses.take(np.arange(300)), ReplayPlan((10_000,), nodes=2, routings=("round-robin",)))[0]
    assert row.block_hit_rate == pytest.approx(2 * everything.block_hit_rate - first.block_hit_rate)
    lfu = what_if(accesses, ReplayPlan((10_000,), policies=("lfu",), warm=300))[0]
    assert lfu.token_hit_rate > what_if(accesses, ReplayPlan((10_000,), policies=("lfu",)))[0].token_hit_rate
    with pytest.raises(ValueError, match="no block"):
        what_if(accesses, ReplayPlan((10_000,), warm=600))


@pytest.mark.parametrize(
    ("then", "filled", "said"),
    [
        (0.45, True, ["hit rate about 5 ± 0.4 points more, over 100 s of lookups", "blocks 128 → 256"]),
        (0.402, True, ["blocks 128 → 256", "hit rate the same within 0.4 points, over 100 s of lookups"]),
        (0.402, False, ["blocks 128 → 256"]),
        (0.45, False, ["hit rate at least 5 ± 0.4 points more, over 100 s of lookups", "blocks 128 → 256"]),
    ],
)
def test_no_gain_is_no_reason_and_is_said_in_words(then: float, filled: bool, said: list[str]) -> None:
    """A lever that makes room for waiting requests was advised with "hit rate about 0 ± 0 points more"."""
    replayed: Any = SimpleNamespace(gain=lambda *_: Gain(0.404, 0.4, then, 500, 0.0, 100.0, filled))
    finding: Any = SimpleNamespace(entity=SimpleNamespace(kind="engine"))
    room = PredictedValue("blocks", "blocks", 128.0, 256.0, "count", "about", None, "", "128 → 256")
    advice = LeverAdvice("raise-kv-budget", "", "", "", "", "", "low", None, "", [], [room])
    after = _advice(finding, advice, {advice.lever: ReplaySpec(capacity=2.0)}, replayed)
    assert [f"{one.title} {one.text}" for one in after.predicted] == said

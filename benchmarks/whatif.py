"""Block references a second in what-if: each order of eviction, all LRU sizes in one pass, and the curve kept up.

    python -m benchmarks.whatif [TRACE.jsonl [--errors 1953,3906,...]]

On the trace (default: the beginning of a real one in tests/fixtures) and on a synthetic one: two million references,
chains of 20 blocks of conversations that are drawn by Zipf's law. CPU time of the replay alone, the trace is read
before. Of eviction the slowest over several cache sizes; of what_if the references times the sizes tried. Exits with 1
when one figure is below a million a second. With --errors instead: how far a sampled curve is off the exact one at
these capacities and an endless one, as the mean over them and over five seeds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from kvitals.app.trace_files import read_trace
from kvitals.kvcache.accesses import COLUMNS, SOURCES, UNKNOWN, Accesses, Floats, in_order
from kvitals.kvcache.distances import stack_distances
from kvitals.kvcache.eviction import POLICIES, Policy, cache
from kvitals.kvcache.reuse import MAX_BLOCKS, MAX_HOT, Curve, ReuseCurve
from kvitals.kvcache.sessions import sessions
from kvitals.kvcache.whatif import ReplayPlan, ReplayRow, what_if

BUDGET = 1_000_000
TRACE = Path(__file__).parents[1] / "tests" / "fixtures" / "mooncake" / "conversation-1500.jsonl.gz"
SHARES = (0.01, 0.1, 0.5, 1.0)
CHAIN = 20
HORIZON = 300.0


def synthetic(references: int = 2_000_000, conversations: int = 200_000) -> Accesses:
    """Requests of CHAIN blocks: a system prompt that all share, then blocks of a conversation drawn by Zipf's law."""
    chance = np.random.default_rng(0)
    rows = references // CHAIN
    of = chance.zipf(1.1, size=rows) % conversations
    block = of[:, None] * CHAIN + np.arange(CHAIN)
    block[:, 0] = -1
    columns = dict.fromkeys(COLUMNS, np.full(rows, UNKNOWN, dtype=np.int64))
    columns |= {"tokens": np.full(rows, CHAIN * 16), "source": np.full(rows, SOURCES.index("trace")), "session": of}
    return in_order(columns | {"time": np.arange(rows) / 10.0}, np.arange(rows + 1) * CHAIN, block.ravel(), 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=TRACE)
    parser.add_argument("--errors", metavar="LIST", help="capacities in blocks")
    args = parser.parse_args()
    if args.errors:
        _errors(read_trace(args.trace).accesses, tuple(int(text) for text in args.errors.split(",")))
        return
    slowest = min(_measure(args.trace.name, read_trace(args.trace).accesses), _measure("synthetic zipf", synthetic()))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    print(f"slowest {slowest / 1e6:.2f} million references a second, budget {BUDGET / 1e6:.0f} million")
    sys.exit(slowest < BUDGET)


def _errors(accesses: Accesses, sizes: tuple[int, ...]) -> None:
    exact = what_if(accesses, ReplayPlan((*sizes, None), policies=POLICIES))
    for rate in (0.1, 0.01):
        for policy in POLICIES:
            true = _rates([row for row in exact if row.policy == policy])
            seeds = [
                what_if(accesses, ReplayPlan((*sizes, None), policies=(policy,), rate=rate, seed=s)) for s in range(5)
            ]
            stated = np.array([[row.error for row in rows] for rows in seeds])
            _tell(f"{rate:.0%} {policy}", np.abs([_rates(rows) - true for rows in seeds]), stated)
        lru = _rates([row for row in exact if row.policy == "lru" and row.capacity_blocks])
        curves = [_kept_up(accesses, max(sizes), round(max(sizes) * rate) + MAX_HOT, seed) for seed in range(5)]
        at = [np.searchsorted(curve.capacity, sizes, side="right") - 1 for curve in curves]
        off = [np.abs(curve.token_hit_rate[where] - lru) for curve, where in zip(curves, at, strict=True)]
        stated = np.array([curve.error[where] for curve, where in zip(curves, at, strict=True)])
        _tell(f"{curves[0].rate:.0%} kept up", np.array(off), stated)


def _tell(what: str, off: Floats, stated: Floats) -> None:
    within = (off <= stated + 1e-9).mean()
    print(f"{what:12} mean {off.mean():.4f}, most {off.max():.4f}, within the stated error {within:.0%}")


def _rates(rows: list[ReplayRow]) -> Floats:
    return np.array([row.token_hit_rate for row in rows])


def _kept_up(accesses: Accesses, largest: int, max_blocks: int, seed: int) -> Curve:
    reuse = ReuseCurve(largest, max_blocks, seed)
    for begin in range(0, len(accesses), 500):
        reuse.feed(accesses.take(np.arange(begin, min(begin + 500, len(accesses)))))
    curve = reuse.curve()
    assert curve is not None
    return curve


def _measure(name: str, accesses: Accesses) -> float:
    blocks = len(np.unique(accesses.block))
    sizes = [max(1, round(blocks * share)) for share in SHARES]
    print(f"{name}: {accesses.references:,} references to {blocks:,} blocks, caches of {', '.join(map(str, sizes))}")
    chains = np.split(accesses.block, accesses.start[1:-1])
    rows = list(zip([c.tolist() for c in chains], accesses.time.tolist(), sessions(accesses).tolist(), strict=True))

    def replay(policy: Policy, size: int) -> None:
        held = cache(policy, size, HORIZON)
        for chain, when, session in rows:
            held.leading(chain)
            held.touch(chain, when, session)

    ones = np.ones(accesses.references)
    figures: dict[str, float] = {
        **{policy: min(_rate(accesses, partial(replay, policy, size)) for size in sizes) for policy in POLICIES},
        "distances (all LRU sizes)": _rate(accesses, lambda: stack_distances(accesses.start, accesses.block, ones)),
        "the curve kept up": _rate(accesses, lambda: _kept_up(accesses, blocks, MAX_BLOCKS, 0)),
        "what_if, lru, 8 sizes": 8
        * _rate(accesses, lambda: what_if(accesses, ReplayPlan((*sizes, *(s + 1 for s in sizes))))),
        "what_if, lfu, 4 sizes": 4
        * _rate(accesses, lambda: what_if(accesses, ReplayPlan(tuple(sizes), policies=("lfu",)))),
    }
    for what, rate in figures.items():
        print(f"  {what:28} {rate / 1e6:6.2f} million references a second")
    return float(min(figures.values()))


def _rate(accesses: Accesses, work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return accesses.references / (time.process_time() - begun)


if __name__ == "__main__":
    main()

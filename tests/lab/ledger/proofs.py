"""What is demanded of the ledger and of what-if on real engines, and whether it is so.

    python -m tests.lab ledger prove accesses cascade whatif sglang --out DIR

A recording that lies in DIR already is judged as it is; what is missing is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvitals.agent.ledger.blame import UNATTRIBUTED
from kvitals.config import SloTable

from ..ports import Port
from ..requests.checks import Check
from ..requests.rig import Stand, load_average, rig
from .accuracy import Accuracy, accuracy
from .created import created
from .pushed import NOBODY, Shares, pushed
from .recorded import Recorded, Replayed, batches, recorded, replayed
from .recording import SITUATIONS, TOPIC, record
from .resident import Scheduled, scheduled
from .trial import CHANGES, LIMIT, Tried, tried

ENOUGH = 0.99
"""Of requests."""

INFERRED_ENOUGH = 0.9
"""Where nobody tells of requests: a turn that begins just where the one before it ended looks like decoding."""

HARD = ("agents", "agents_otlp")
"""Turns of less than a block right behind long answers: only what the tap tells of them is demanded to be enough."""

BURSTS = 5
SEEDS = (1, 2, 3)
SLO = SloTable(ttft_p99_seconds=0.25)
"""What tenants are promised in the bursts: their p99 is below 0.1 s before."""

HEAVY_SHARE = 0.9
BLAME_LIMIT = 0.02
"""By which the share that is charged to the heavy tenant may differ from that of the driver's knowledge."""


def accesses(out: Path, kvitals: Sequence[str]) -> list[Check]:
    """Look-ups of vLLM, with and without sessions, through the tap and with spans alone, and with nothing."""
    found = []
    for name in ("healthy", "thrash", "healthy_otlp", "thrash_otlp", *HARD):
        one = _of(name, out, kvitals)
        found += [*_resident(one, exact=True), *_inferred(one)]
    return [*found, asyncio.run(_created(kvitals))]


def sglang(out: Path, kvitals: Sequence[str]) -> list[Check]:
    """The same on SGLang, which inserts into its tree after the prefill: what was there at the look-up is known by the
    time, and not by the store."""
    one = _of("sglang", out, kvitals)
    return [*_resident(one, exact=False), *_inferred(one)]


def cascade(out: Path, kvitals: Sequence[str]) -> list[Check]:
    """A heavy tenant's burst is a cascade that it is blamed for; a full but healthy cache has none."""
    found, lost, by_heavy = [], 0.0, 0.0
    for number in range(1, BURSTS + 1):
        one = _of("burst", out / f"burst-{number}", kvitals, f"burst-{number}")
        again = replayed(one.capture, slo=SLO)
        heavy = next(row["tenant"] for row in one.requests[one.truth["phases"][1]["first"] :] if _is_new(row, one))
        found += [*_staged(number, again), _blamed(number, one, again, heavy)]
        shares = charged(again, heavy)
        lost += sum(shares.values())
        by_heavy += shares.get(heavy, 0.0)
    share = by_heavy / lost if lost else 0.0
    found.append(Check("bursts: blame", share >= HEAVY_SHARE, f"{share:.1%} of {lost:,.0f} tokens are the heavy one's"))
    full = replayed(_of("full", out, kvitals).capture, slo=SLO)
    tallies = [tally for watched in full.ledger.engines.values() for tally in watched.ledger.tallies.values()]
    removed = sum(sum(tally.removed.values()) for tally in tallies)
    told = full.ledger.cascades.report()["cascades"]
    found.append(Check("full: no cascade", removed > 0 and not told, f"{removed} blocks removed, {len(told)} cascades"))
    return found


def whatif(out: Path, kvitals: Sequence[str]) -> list[Check]:
    """Predicted hit rates beside those of engines that were changed so."""
    out.mkdir(parents=True, exist_ok=True)
    return [_tried(tried(change, seed, out, kvitals)) for change in CHANGES for seed in SEEDS]


PROOFS: dict[str, Callable[[Path, Sequence[str]], list[Check]]] = {
    "accesses": accesses,
    "cascade": cascade,
    "whatif": whatif,
    "sglang": sglang,
}


def _of(name: str, out: Path, kvitals: Sequence[str], seed: str = "") -> Recorded:
    capture = out / f"{name}.kvcap"
    if not capture.with_suffix(".truth.json").exists():
        record(name, out, kvitals, seed=seed)
    return recorded(capture)


def _truth(one: Recorded) -> dict[str, Scheduled]:
    (events,) = batches(one.capture).values()
    return scheduled(events, one.requests, one.block_tokens)


def _resident(one: Recorded, *, exact: bool) -> list[Check]:
    """What was resident when requests were scheduled is what the engine says it found."""
    truth, block = _truth(one), one.block_tokens
    done = [row for row in one.requests if row["ok"]]
    hits = {row["id"]: row["cached_tokens"] / block for row in done}
    same = sum(truth[name].low == truth[name].high == count for name, count in hits.items())
    right, said = same, f"{same} of {len(done)} as at their first store"
    if not exact:
        (events,) = batches(one.capture).values()
        spans = scheduled(events, one.requests, block, by_store=False)
        right = sum(spans[name].low <= count <= spans[name].high for name, count in hits.items())
        fixed = sum(span.low == span.high for span in spans.values())
        said += f", {right} as between sending and store ({fixed} had as many blocks there all that time)"
    usage = sum(row["cached_tokens"] for row in done)
    counter, preempted = one.gained("hit_tokens"), one.gained("preemptions")
    resident = sum(truth[name].low for name in hits) * block
    return [
        Check(f"{one.name}: resident", right >= ENOUGH * len(done) > 0, said),
        Check(
            f"{one.name}: hits",
            usage == counter and (not exact or abs(resident - counter) <= (1 - ENOUGH) * counter),
            f"resident {resident:,}, answers {usage:,}, engine {counter:,.0f} tokens; {preempted:.0f} preempted",
        ),
    ]


def _inferred(one: Recorded) -> list[Check]:
    """The ledger's look-ups beside the truth, as the recording is and with less of it."""
    truth = _truth(one)
    through_tap = SITUATIONS[one.name].through_tap
    whole = replayed(one.capture).looks
    bare = replayed(one.capture, with_requests=False, with_sessions=False).looks
    ways = [("tap, session told" if through_tap else "spans", whole, True), ("neither", bare, False)]
    if through_tap:
        ways.insert(1, ("tap, session not told", replayed(one.capture, with_sessions=False).looks, True))
    found = []
    for way, looks, named in ways:
        told = accuracy(looks, one.requests, truth, one.block_tokens, named=named)
        enough = ENOUGH if named else INFERRED_ENOUGH
        if one.name in HARD and not (named and through_tap):
            enough = 0.0
        found.append(Check(f"{one.name}: {way}", told.share >= enough and told.wrong == 0, _words(told)))
    return found


def _words(told: Accuracy) -> str:
    owners = f"owners {told.right} right, {told.wrong} wrong" if told.right or told.wrong else "owners not known"
    return (
        f"{told.found} of {told.requests} found, {told.hits} with their hits, {told.chains} with their blocks;"
        f" {told.surplus} of {told.looks} are none; {owners}"
    )


async def _created(kvitals: Sequence[str]) -> Check:
    publish, replay = Port.take(), Port.take()
    situation = SITUATIONS["healthy"]
    try:
        async with rig(Stand("vllm", flags=situation.flags(publish, replay)), kvitals) as built:
            told = await created(built, publish, TOPIC, situation.block_tokens)
    finally:
        publish.release()
        replay.release()
    said = (
        f"{told.chats} chats: {told.told} blocks by the answers, {told.missed} missed, {told.stored} stored of prompts;"
        f" {told.decoded} filled by decoding, {told.filled} by the answers' lengths"
    )
    return Check("created", told.ok, said)


def _is_new(row: dict[str, Any], one: Recorded) -> bool:
    """Whether its tenant sent nothing before the first phase with a burst."""
    before = one.requests[: one.truth["phases"][1]["first"]]
    return row["tenant"] not in {other["tenant"] for other in before}


def _staged(number: int, again: Replayed) -> list[Check]:
    told = again.ledger.cascades.report()["cascades"]
    if len(told) != 1:
        return [Check(f"burst {number}: cascade", False, f"{len(told)} of them")]
    (one,) = told
    stages = [(stage["stage"], stage["began"]) for stage in one["stages"]]
    in_order = [at for _, at in stages] == sorted(at for _, at in stages) and len(stages) >= 3
    words = ", ".join(f"{stage['name']} +{stage['began'] - one['began']:.1f} s" for stage in one["stages"])
    lead = one["lead_seconds"].get("first")
    return [
        Check(f"burst {number}: stages", in_order, words),
        Check(
            f"burst {number}: lead",
            lead is not None and lead > 0 and not one["alarmed_before"],
            "no alarm"
            if lead is None
            else f"{lead:.1f} s from the first warning, "
            f"{one['lead_seconds']['eviction']:.1f} s from eviction, to the alarm on first tokens",
        ),
    ]


def charged(again: Replayed, heavy: str) -> Shares:
    """Tokens that the other tenants lost, by who is charged for them."""
    found: Shares = {}
    for watched in again.ledger.engines.values():
        for (victim, by), tokens in watched.blame.cells.items():
            if victim != heavy:
                found[by] = found.get(by, 0.0) + tokens
    return found


def _blamed(number: int, one: Recorded, again: Replayed, heavy: str) -> Check:
    (events,) = batches(one.capture).values()
    truth: Shares = {}
    for victim, shares in pushed(events, one.requests).items():
        for by, blocks in shares.items():
            if victim != heavy:
                truth[by] = truth.get(by, 0.0) + blocks * one.block_tokens
    ledger = charged(again, heavy)
    lost, told = sum(truth.values()), sum(ledger.values())
    real, said = truth.get(heavy, 0.0) / lost, ledger.get(heavy, 0.0) / told
    words = (
        f"heavy tenant {said:.1%}, unattributed {ledger.get(UNATTRIBUTED, 0.0) / told:.1%} of {told:,.0f} tokens;"
        f" by the driver {real:.1%}, {truth.get(NOBODY, 0.0) / lost:.1%} of {lost:,.0f}"
    )
    return Check(f"burst {number}: blame", abs(real - said) <= BLAME_LIMIT, words)


def _tried(one: Tried) -> Check:
    words = (
        f"{one.before.hit_rate:.1%} before (what-if {one.modelled:.1%}); predicted {one.predicted:.1%},"
        f" by what the driver sent {one.from_truth:.1%}, measured {one.after.hit_rate:.1%};"
        f" {one.before.requests} and {one.after.requests} requests, load {one.before.load} and {one.after.load}"
    )
    return Check(f"{one.change}, seed {one.seed}", abs(one.off) <= LIMIT, words)


def prove(name: str, out: Path, kvitals: Sequence[str]) -> list[Check]:
    """One proof. With it stands how busy the machine was at its end."""
    return [*PROOFS[name](out, kvitals), Check("machine", True, f"load {load_average()}")]

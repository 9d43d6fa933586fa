"""What-if, tried: a recording of one configuration predicts the hit rate of another, then put under the same load.

    python -m tests.lab ledger prove whatif

Two changes: twice the blocks, and sticky sessions instead of round-robin over two engines. The prediction is made of
the look-ups that the product's ledger infers from the recording, and beside it of those that the driver knows it sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvitals.kvcache.accesses import Accesses, Builder
from kvitals.kvcache.routing import Routing
from kvitals.kvcache.whatif import ReplayPlan, what_if

from ..engines import FlagValue
from ..metrics import scrape, total
from ..paths import LabError
from ..ports import Port
from ..requests.rig import Stand, load_average, rig
from ..traffic import Tenant
from .driver import Call, Driver, Tell
from .recorded import replayed
from .recording import BLOCK, COUNTERS, SETTLE_S, TOPIC

SECONDS = 35.0
BLOCKS = 128
"""That an engine can use; vLLM keeps one more for itself."""

HASHES = 16
"""Ways to spread sessions that are tried."""

LIMIT = 0.03
"""By which a predicted hit rate may be off."""

CHATS = Tenant("acme-chat", clients=5, think_s=0.5, prefix=256, question=72, answer=24, turns=6)
SEARCH = Tenant("globex-search", clients=3, think_s=0.5, prefix=480, prefixes=8, question=40, answer=8)
NOTES = Tenant("initech-notes", clients=2, think_s=0.5, prefix=128, question=160, answer=16, turns=4)
TENANTS = (CHATS, SEARCH, NOTES)
REFERENCES = 1_000_000


@dataclass(frozen=True)
class Setup:
    """Engines and how requests are spread over them."""

    name: str
    nodes: int = 1
    blocks: int = BLOCKS
    routing: Routing = "pooled"


ONE = Setup("one")
TWICE = Setup("twice", blocks=2 * BLOCKS)
IN_TURN = Setup("in_turn", nodes=2, routing="round-robin")
STICKY = Setup("sticky", nodes=2, routing="sticky")
CHANGES: Mapping[str, tuple[Setup, Setup]] = {
    "twice the blocks": (ONE, TWICE),
    "sticky, two engines": (IN_TURN, STICKY),
}


@dataclass(frozen=True)
class Measured:
    """What came of one run; hit rates are shares of all prompt tokens."""

    hit_rate: float
    requests: int
    load: str  # of the machine


@dataclass(frozen=True)
class Tried:
    """One change with one seed."""

    change: str
    seed: int
    before: Measured
    modelled: float  # by what-if, of the configuration that was recorded
    predicted: float  # by what-if, from the product's look-ups
    from_truth: float  # and from the driver's
    observed: float | None
    after: Measured

    @property
    def off(self) -> float:
        return self.predicted - self.after.hit_rate

    @property
    def ok(self) -> bool:
        return abs(self.off) <= LIMIT


async def run(setup: Setup, seed: int, out: Path, kvitals: Sequence[str]) -> None:
    """Run a configuration; leaves SETUP-SEED.kvcap and SETUP-SEED.calls.json."""
    capture = out / f"{setup.name}-{seed}.kvcap"
    capture.unlink(missing_ok=True)
    with ExitStack() as undo:
        ports = [Port.take() for _ in range(2 * setup.nodes)]
        for port in ports:
            undo.callback(port.release)
        apart = {f"engine-{i}": _publish(ports[2 * i], ports[2 * i + 1]) for i in range(setup.nodes)}
        flags: dict[str, FlagValue] = {"num_gpu_blocks_override": setup.blocks + 1, "block_size": BLOCK}
        async with rig(Stand("vllm", flags=flags, apart=apart), kvitals, capture) as built:
            driver = Driver([server.url for server in built.engines], Tell(), f"whatif-{seed}")
            driver.sticky = setup.routing == "sticky"
            await driver.drive(TENANTS, SECONDS)
            load = load_average()
            counted = [await scrape(built.session, server.url) for server in built.engines]
            await asyncio.sleep(SETTLE_S)
    calls = [call for call in driver.calls if call.ok]
    kept: dict[str, Any] = {
        "requests": _rows(calls),
        "engine_hit_tokens": sum(total(page, COUNTERS["hit_tokens"]) for page in counted),
        "load": load,
    }
    _calls(setup, seed, out).write_text(json.dumps(kept, separators=(",", ":")))


def measured(setup: Setup, seed: int, out: Path) -> Measured:
    """What came of a run. Raises LabError where answers and the engines' counters tell different hits."""
    kept = json.loads(_calls(setup, seed, out).read_text())
    hits = sum(cached for _, _, _, cached, _ in kept["requests"])
    if hits != kept["engine_hit_tokens"]:
        raise LabError(f"{setup.name}, seed {seed}: answers tell {hits} hits, engines {kept['engine_hit_tokens']}")
    return Measured(hits / sum(tokens for _, _, tokens, _, _ in kept["requests"]), len(kept["requests"]), kept["load"])


def tried(change: str, seed: int, out: Path, kvitals: Sequence[str]) -> Tried:
    """Record, predict, make the change and measure. Runs that lie in the folder are not made anew."""
    old, new = CHANGES[change]
    for setup in (old, new):
        if not _calls(setup, seed, out).exists():
            asyncio.run(run(setup, seed, out, kvitals))
    capture = out / f"{old.name}-{seed}.kvcap"
    accesses = replayed(capture).ledger.accesses()
    if accesses is None:
        raise LabError(f"{capture} has no lookups")
    sent = driven(json.loads(_calls(old, seed, out).read_text())["requests"])
    return Tried(
        change=change,
        seed=seed,
        before=measured(old, seed, out),
        modelled=hit_rate(accesses, old),
        predicted=hit_rate(accesses, new),
        from_truth=hit_rate(sent, new),
        observed=accesses.observed,
        after=measured(new, seed, out),
    )


def hit_rate(accesses: Accesses, setup: Setup) -> float:
    """What-if's, of all prompt tokens. To which engine a session sticks is a matter of a hash: with the few sessions
    that there are here one hash differs from another by a point, so several are tried and the mean is taken."""
    seeds = HASHES if setup.routing == "sticky" else 1
    plans = [ReplayPlan((setup.blocks,), setup.nodes, (setup.routing,), seed=seed) for seed in range(seeds)]
    return sum(what_if(accesses, plan)[0].token_hit_rate for plan in plans) / seeds


def driven(rows: Sequence[Sequence[Any]]) -> Accesses:
    """The look-ups that a driver knows of."""
    builder = Builder(BLOCK, 8 * REFERENCES)
    sessions: dict[str, int] = {}
    for sent, session, tokens, cached, chain in rows:
        code = sessions.setdefault(session, len(sessions))
        builder.add(sent, tokens, chain, "trace", session=code, hit=cached // BLOCK)
    return builder.accesses(1.0)


def _calls(setup: Setup, seed: int, out: Path) -> Path:
    return out / f"{setup.name}-{seed}.calls.json"


def _rows(calls: Sequence[Call]) -> list[list[Any]]:
    """Of each request when it was sent, its session, prompt tokens, those found, and its blocks as numbers."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = []
    for call in calls:
        chain, before = [], -1
        for start in range(0, len(call.prompt) - BLOCK + 1, BLOCK):
            before = numbers.setdefault((before, *call.prompt[start : start + BLOCK]), len(numbers))
            chain.append(before)
        rows.append([round(call.sent, 4), call.session, call.prompt_tokens, call.cached_tokens, chain])
    return rows


def _publish(publish: Port, replay: Port) -> dict[str, FlagValue]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{publish.number}",
        "replay_endpoint": f"tcp://*:{replay.number}",
        "topic": TOPIC,
    }
    return {"kv_events_config": json.dumps(config, separators=(",", ":"))}

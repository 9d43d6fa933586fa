"""Situations that are recorded for the ledger, each with its truth."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvitals.agent.collectors.siphash import KEY_BYTES, siphash
from kvitals.agent.requests.tenants import TenantNames
from kvitals.config import TenantsTable

from ..engines import DEFAULT_FLAGS, FlagValue
from ..metrics import scrape, total
from ..ports import HOST, Port
from ..requests.rig import Stand, rig
from ..scenario import SystemName
from ..traffic import Tenant
from .chains import Chains
from .driver import Call, Driver, Tell

TOPIC = "kv@lab@tiny"
BLOCK = 32
SETTLE_S = 9.0
"""Until spans are out and the agent has looked at the last of them."""

COUNTERS: Mapping[str, str] = {
    "queried_tokens": "vllm:prefix_cache_queries_total",
    "hit_tokens": "vllm:prefix_cache_hits_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "requests": "vllm:request_success_total",
}
SGLANG_COUNTERS: Mapping[str, str] = {
    "hit_tokens": "sglang:cached_tokens_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "generation_tokens": "sglang:generation_tokens_total",
    "preemptions": "sglang:num_retracted_requests_total",
    "evicted_tokens": "sglang:evicted_tokens_total",
}
SGLANG_PAGE = 16

CHAT = Tenant("acme-chat", clients=2, think_s=0.4, prefix=320, question=40, answer=24, turns=4)
SEARCH = Tenant("globex-search", clients=2, think_s=0.3, prefix=480, prefixes=3, question=32, answer=16)
NOTES = Tenant("initech-notes", clients=1, think_s=0.4, prefix=256, question=48, answer=16, turns=3)
HEAVY = Tenant("northwind-batch", clients=4, think_s=0.05, prefix=64, question=640, answer=16)
RISE, HIGH, FLOOD = replace(HEAVY, clients=1, think_s=0.2), replace(HEAVY, clients=3), replace(HEAVY, clients=8)


EVERYTHING = Tell()


@dataclass(frozen=True)
class Phase:
    name: str
    tenants: tuple[Tenant, ...]
    seconds: float


@dataclass(frozen=True)
class Situation:
    """What is sent, and to an engine with how many blocks."""

    blocks: int
    phases: tuple[Phase, ...]
    tell: Tell = EVERYTHING
    through_tap: bool = True  # else straight to the engine: its spans are all that tells of requests
    system: SystemName = "vllm"

    @property
    def block_tokens(self) -> int:
        return SGLANG_PAGE if self.system == "sglang" else BLOCK

    @property
    def counters(self) -> Mapping[str, str]:
        """The engine's own, by what is kept of them."""
        return SGLANG_COUNTERS if self.system == "sglang" else COUNTERS

    def flags(self, publish: Port, replay: Port) -> dict[str, FlagValue]:
        """The engine's, so that it has these blocks and tells of them."""
        config: dict[str, Any] = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{publish.number}",
            "replay_endpoint": f"tcp://*:{replay.number}",
            "topic": TOPIC,
        }
        if self.system == "sglang":
            size = {"page_size": SGLANG_PAGE, "max_total_tokens": self.blocks * SGLANG_PAGE}
            return {"kv_events_config": json.dumps(config, separators=(",", ":")), **size}
        config["enable_kv_cache_events"] = True
        told = json.dumps(config, separators=(",", ":"))
        return {"kv_events_config": told, "num_gpu_blocks_override": self.blocks, "block_size": BLOCK}


LIGHT = (CHAT, SEARCH, NOTES)
AGENT = Tenant("hooli-agent", clients=4, think_s=0.1, prefix=256, question=24, answer=60, turns=8)
WRITER = Tenant("stark-writer", clients=2, think_s=0.6, prefix=128, question=80, answer=150, turns=4)
AGENTS = (Phase("agents", (AGENT, WRITER), 30),)
SPANS = Tell(tenant=False, session=False)
SITUATIONS: Mapping[str, Situation] = {
    "healthy": Situation(1024, (Phase("calm", LIGHT, 40),)),
    "healthy_otlp": Situation(1024, (Phase("calm", LIGHT, 30),), SPANS, through_tap=False),
    "thrash": Situation(
        192, (Phase("calm", LIGHT, 25), Phase("burst", (*LIGHT, HEAVY), 25), Phase("after", LIGHT, 20))
    ),
    "thrash_otlp": Situation(
        192,
        (Phase("calm", LIGHT, 15), Phase("burst", (*LIGHT, HEAVY), 20)),
        SPANS,
        through_tap=False,
    ),
    "agents": Situation(512, AGENTS),
    "agents_otlp": Situation(512, AGENTS, SPANS, through_tap=False),
    "full": Situation(256, (Phase("calm", LIGHT, 70),)),
    "burst": Situation(
        192,
        (
            Phase("calm", LIGHT, 25),
            Phase("rise", (*LIGHT, RISE), 10),
            Phase("high", (*LIGHT, HIGH), 10),
            Phase("flood", (*LIGHT, FLOOD), 12),
            Phase("after", LIGHT, 15),
        ),
    ),
    "sglang": Situation(
        256, (Phase("calm", LIGHT, 20), Phase("burst", (*LIGHT, replace(HEAVY, clients=2)), 20)), system="sglang"
    ),
}


def record(
    name: str, out: Path, kvitals: Sequence[str], messages: Path | None = None, seed: str = ""
) -> dict[str, Any]:
    """Record a situation on a real vLLM and return its truth. messages: where the publisher's own are kept, too. seed:
    of what is asked, else the situation's name."""
    out.mkdir(parents=True, exist_ok=True)
    capture = out / f"{name}.kvcap"
    capture.unlink(missing_ok=True)
    truth, heard = asyncio.run(_play(seed or name, SITUATIONS[name], capture, kvitals))
    (out / f"{name}.truth.json").write_text(_compact(truth))
    if messages is not None:
        messages.write_bytes(msgspec.msgpack.encode([[TOPIC, sequence, payload] for sequence, payload in heard]))
    return truth


async def _play(
    seed: str, situation: Situation, capture: Path, kvitals: Sequence[str]
) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """The truth, and the publisher's messages."""
    publish, replay = Port.take(), Port.take()
    flags = situation.flags(publish, replay)
    stand = Stand(situation.system, flags=flags, more="\n[tap]\nsession_id = true\n" if situation.tell.session else "")
    try:
        async with rig(stand, kvitals, capture) as built:
            with Chains(f"tcp://{HOST}:{publish.number}", TOPIC, situation.block_tokens) as chains:
                driver = Driver([built.door if situation.through_tap else built.straight], situation.tell, seed)
                driver.extras = situation.system == "vllm"
                before = await scrape(built.session, built.engines[0].url)
                phases = []
                for phase in situation.phases:
                    start = asyncio.get_running_loop().time()
                    first = len(driver.calls)
                    await driver.drive(phase.tenants, phase.seconds)
                    took = asyncio.get_running_loop().time() - start
                    phases.append({"name": phase.name, "first": first, "seconds": round(took, 1)})
                after = await scrape(built.session, built.engines[0].url)
                await asyncio.sleep(SETTLE_S)
            key = built.key
    finally:
        publish.release()
        replay.release()
    truth = {
        "engine": {
            "block_tokens": situation.block_tokens,
            "blocks": situation.blocks,
            "max_num_seqs": DEFAULT_FLAGS["max_num_seqs"] if situation.system == "vllm" else None,
        },
        "phases": phases,
        "counters": {name: [total(before, raw), total(after, raw)] for name, raw in situation.counters.items()},
        "last_sequence": chains.messages[-1][0] if chains.messages else None,
        "requests": requests(driver.calls, chains, TenantNames(TenantsTable(), key)),
    }
    return truth, chains.messages


def requests(calls: Sequence[Call], chains: Chains, tenants: TenantNames) -> list[dict[str, Any]]:
    """What is kept of each request: no tokens, blocks and names as the product calls them."""
    key = tenants.subkey(b"kv-events")[:KEY_BYTES]
    told = []
    for call in calls:
        own = chains.of(call.prompt, call.salt)
        decoded = chains.of([*call.prompt, *call.answer], call.salt)[len(own) :]
        unsigned = [block % 2**64 for block in (*own, *decoded)]  # SGLang's have a sign
        numbers = siphash(np.array(unsigned, dtype=np.uint64), key).tolist()
        told.append(
            {
                "id": call.id,
                "tenant": tenants.pseudonym(call.tenant),
                "session": tenants.session(call.session),
                "sent": round(call.sent, 4),
                "first": call.first and round(call.first, 4),
                "ended": round(call.ended, 4),
                "ok": call.ok,
                "prompt_tokens": call.prompt_tokens,
                "cached_tokens": call.cached_tokens,
                "created_tokens": call.created_tokens,
                "output_tokens": call.output_tokens,
                "blocks": numbers[: len(own)],
                "decoded_blocks": numbers[len(own) :],
            }
        )
    return told


def _compact(truth: Mapping[str, Any]) -> str:
    """JSON with a request a line."""
    head = json.dumps({key: value for key, value in truth.items() if key != "requests"}, indent=1)[:-2]
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in truth["requests"])
    return f'{head},\n "requests": [\n{rows}\n]}}\n'

"""What publishers of KV events send, byte by byte, and whether the product hears all of it.

Each system is started with its events on and asked a few things; one subscriber keeps its messages as they come, and
the product finds and listens to it by itself. Prompts are tokens drawn at random.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvitals.agent.ledger.event import BlocksCleared, KvEventsRecord
from kvitals.agent.node import Node
from kvitals.agent.records import decode
from kvitals.config import AgentTable, Config, TargetTable

from ..engines import Engines, FlagValue
from ..paths import LabError
from ..ports import HOST, Port
from ..scenario import Scenario, Slo, SystemName
from ..systems import ON_FORK_SERVER, site_of
from ..traffic import Tenant
from .chains import Frames
from .driver import Driver, Tell

TOPIC = "kv@lab@tiny"
SECONDS = 8.0
SETTLE_S = 2.0
TENANTS = (
    Tenant("acme-chat", clients=1, think_s=0.2, prefix=320, question=40, answer=24, turns=3),
    Tenant("northwind-batch", clients=2, think_s=0.1, prefix=64, question=640, answer=8),
)


@dataclass(frozen=True)
class Publisher:
    """A system with its events on. `ports` are how many it needs; their numbers go into its flags."""

    system: SystemName
    ranks: int
    tell: Tell = field(default_factory=Tell)

    def flags(self, ports: Sequence[int]) -> Mapping[str, FlagValue]:
        publish, replay = ports[0], ports[0] + self.ranks
        if self.system == "dynamo":
            return {"zmq_kv_events_ports": str(publish), "zmq_replay_ports": str(replay), "num_gpu_blocks_override": 96}
        config: dict[str, Any] = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{publish}",
            "replay_endpoint": f"tcp://*:{replay}",
            "topic": TOPIC,
        }
        if self.system == "sglang":
            return {"kv_events_config": _json(config), "page_size": 16, "max_total_tokens": 3072}
        flags: dict[str, FlagValue] = {
            "kv_events_config": _json({"enable_kv_cache_events": True, **config}),
            "num_gpu_blocks_override": 96,
        }
        return flags | ({"data_parallel_size": self.ranks} if self.ranks > 1 else {})


PUBLISHERS: Mapping[str, Publisher] = {
    "vllm": Publisher("vllm", 1, Tell(salt=True)),
    "sglang": Publisher("sglang", 1),
    "dynamo": Publisher("dynamo", 1),
}


@dataclass
class Heard:
    """What came: the publisher's own messages, and the product's records of them."""

    messages: dict[int, list[tuple[int, bytes]]]  # by rank
    records: list[KvEventsRecord]
    requests: int

    def told(self) -> dict[str, Any]:
        """Whether the product heard what was published."""
        batches = [batch for record in self.records for batch in record.batches]
        events = [event for batch in batches for event in batch.events]
        return {
            "requests": self.requests,
            "published": {rank: len(found) for rank, found in self.messages.items()},
            "heard": len(batches),
            "lost": sum(record.lost for record in self.records),
            "replayed": sum(record.replayed for record in self.records),
            "late": sum(record.late for record in self.records),
            "states": sorted({f"{record.state}/{record.reason}" for record in self.records}),
            "blocks": sum(len(event.hashes) for event in events if not isinstance(event, BlocksCleared)),
            "media": sorted({event.medium for event in events if not isinstance(event, BlocksCleared)}),
            "dropped": [record.dropped for record in self.records if record.dropped],
        }


async def listen(name: str, folder: Path) -> Heard:
    """Start a system, ask it a few things, and hear what it publishes. folder: for the product's key."""
    publisher = PUBLISHERS[name]
    with ExitStack() as undo:
        ports = _row(2 * publisher.ranks, undo)
        nothing = Scenario(wrong="", expect=(), slo=Slo(2.0, 0.5), baseline=(), incident=())
        scenario = replace(nothing, system=publisher.system, engines=("engine",), flags=publisher.flags(ports))
        lab = Engines() if publisher.system in ON_FORK_SERVER else None
        if lab is None:
            return await _heard(publisher, scenario, None, ports, folder)
        async with lab:
            return await _heard(publisher, scenario, lab, ports, folder)


async def _heard(
    publisher: Publisher, scenario: Scenario, lab: Engines | None, ports: Sequence[int], folder: Path
) -> Heard:
    async with site_of(scenario, lab) as site:
        with ExitStack() as undo:
            topic = "" if publisher.system == "dynamo" else TOPIC
            ears = {
                rank: undo.enter_context(Frames(f"tcp://{HOST}:{ports[rank]}", topic))
                for rank in range(publisher.ranks)
            }
            records: list[KvEventsRecord] = []
            engine = next(server for server in site.watched if server.name == "engine")
            config = Config(agent=AgentTable(), targets=(TargetTable(url=engine.url, name="engine"),))
            node = Node(config)
            await node.open(requests=folder)
            listening = asyncio.create_task(_listen(node, records))
            await asyncio.sleep(SETTLE_S)
            driver = Driver(list(site.doors), publisher.tell, "frames")
            driver.extras = publisher.system == "vllm"
            await driver.drive(TENANTS, SECONDS)
            await asyncio.sleep(SETTLE_S)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await node.close()
    return Heard({rank: list(one.messages) for rank, one in ears.items()}, records, sum(c.ok for c in driver.calls))


async def _listen(node: Node, records: list[KvEventsRecord]) -> None:
    while True:
        for captured in await node.read():
            record = decode(captured)
            node.ingest_recorded(captured)
            if isinstance(record, KvEventsRecord):
                records.append(record)
        await asyncio.sleep(1)


def _row(count: int, undo: ExitStack) -> list[int]:
    """Ports that follow each other."""
    taken: list[Port] = []
    while len(taken) < 40:
        port = Port.take()
        undo.callback(port.release)
        taken.append(port)
        row = [one.number for one in taken[-count:]]
        if len(row) == count and row[-1] - row[0] == count - 1:
            return row
    raise LabError(f"no {count} free ports in a row")


def _json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, separators=(",", ":"))


def main(name: str, out: Path) -> dict[str, Any]:
    """Listen to a system and leave NAME.rank.hex files: sequence and payload a line. Returns what was heard."""
    with tempfile.TemporaryDirectory() as folder:
        heard = asyncio.run(listen(name, Path(folder)))
    out.mkdir(parents=True, exist_ok=True)
    for rank, messages in heard.messages.items():
        lines = (f"{sequence}\t{payload.hex()}" for sequence, payload in messages)
        (out / f"{name}.{rank}.hex").write_text("\n".join(lines) + "\n")
    return heard.told()

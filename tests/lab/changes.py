"""Changes of a real vLLM's configuration under load, recorded: what `kvitals triage --since-change` is proven on.

    python -m tests.lab.changes [NAME ...] --out tests/captures/changes [--lock FILE]

Each begins with an engine under load, which is then restarted with one flag changed; the load goes on, the same or
another. What is to be told follows from the flag that was changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engines import Engines, FlagValue
from .incidents.recording import turn
from .load import Load
from .ports import HOST
from .product import configuration, kvitals_command
from .programs import Programs
from .systems import VLLM, Server
from .traffic import InfiniteCache, Tenant

PHASE_S = 60.0
RECORDER_LIMIT_S = 300.0
LIMIT_S = 400.0


@dataclass(frozen=True)
class Play:
    """flags: of the engine at first; changed: what it is restarted with. verdict: what is to be told of it, lever: of
    which lever. after: the load after the change, None: the same."""

    flags: Mapping[str, FlagValue]
    changed: Mapping[str, FlagValue]
    load: tuple[Tenant, ...]
    verdict: str
    lever: str
    after: tuple[Tenant, ...] | None = None
    kv_events: bool = False


def chats(clients: int, think_s: float = 0.0) -> tuple[Tenant, ...]:
    """Two tenants with a system prompt each."""
    names = ("alpha", "beta")
    return tuple(Tenant(n, clients=clients, think_s=think_s, prefix=256, question=32, answer=32) for n in names)


REUSED = (Tenant("alpha", clients=4, think_s=0.1, prefix=448, prefixes=16, question=32, answer=8),)
FEW = {"max_num_seqs": 2, "num_gpu_blocks_override": 1024}
SMALL = {"max_num_seqs": 8, "num_gpu_blocks_override": 144}
SLOTS, BLOCKS = "raise-max-num-seqs", "raise-kv-budget"

PLAYS = {
    "slots_raised": Play(FEW, {"max_num_seqs": 16}, chats(7), "worked", SLOTS),
    "slots_lowered": Play({**FEW, "max_num_seqs": 16}, {"max_num_seqs": 2}, chats(7), "worse", ""),
    "blocks_in_vain": Play(FEW, {"num_gpu_blocks_override": 2048}, chats(7), "nothing", BLOCKS),
    "load_changed": Play(FEW, {"max_num_seqs": 16}, chats(7), "cannot be judged", SLOTS, after=chats(2, think_s=1.0)),
    "blocks_raised": Play(SMALL, {"num_gpu_blocks_override": 288}, REUSED, "worked", BLOCKS, kv_events=True),
}


async def record(name: str, lab: Engines, out: Path, kvitals: Sequence[str]) -> dict[str, Any]:
    """Leaves NAME.kvcap and NAME.truth.json."""
    play, capture = PLAYS[name], out / f"{name}.kvcap"
    capture.unlink(missing_ok=True)
    cache = InfiniteCache(32)
    async with Programs() as programs, contextlib.AsyncExitStack() as undo:
        flags = dict(play.flags)
        if play.kv_events:
            endpoint = f"tcp://*:{programs.port().number}"
            events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, "topic": "kv"}
            flags["kv_events_config"] = json.dumps(events, separators=(",", ":"))
        engine = await lab.start(name, None, **flags)
        undo.push_async_callback(lab.stop, name)
        server = Server("engine", engine.url, VLLM, log=engine.log)
        async with Load([engine.url], (), seed="warm", drain_s=1.0) as load:
            await load.warm(play.load)
        await _recorder(programs, kvitals, server, capture)
        first = await _under(engine.url, play.load, cache, f"{name}/before")
        changed = time.time()
        await lab.restart(name, **play.changed)
        back = time.time()
        second = await _under(engine.url, play.after or play.load, cache, f"{name}/after")
        await programs.stop("agent")
    truth = {
        "play": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "verdict": play.verdict,
        "lever": play.lever,
        "changed": dict(play.changed),
        "ended": round(changed, 3),
        "back": round(back, 3),
        "before": first,
        "after": second,
    }
    (out / f"{name}.truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truth


async def _under(url: str, tenants: Sequence[Tenant], cache: InfiniteCache, seed: str) -> dict[str, Any]:
    """A load for as long as a phase lasts, and what its clients saw."""
    load = Load([url], tenants, cache=cache, seed=seed)
    await load.start()
    await asyncio.sleep(PHASE_S)
    load.stop_sending()
    await load.drain(1.0)
    return load.truth()


async def _recorder(programs: Programs, kvitals: Sequence[str], server: Server, capture: Path) -> None:
    port = programs.port()
    config = programs.folder / "change.toml"
    config.write_text(configuration([server]).replace("[agent]\n", '[agent]\ninterval = "1s"\n', 1))
    home = programs.folder / "home"
    home.mkdir(exist_ok=True)
    command = [
        "record",
        f"--out={capture}",
        f"--for={RECORDER_LIMIT_S}s",
        f"--listen={HOST}:{port.number}",
        f"--config={config}",
    ]
    await programs.start(
        "agent", [*kvitals, *command], ready=f"{port.url}/-/healthy", env={"XDG_STATE_HOME": str(home)}
    )


async def main(names: Sequence[str], out: Path, lock: Path | None) -> None:
    async with Engines() as lab:
        for name in names:
            async with turn(lock), asyncio.timeout(LIMIT_S):
                truth = await record(name, lab, out, kvitals_command())
            print(name, truth["changed"], flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.lab.changes")
    arguments.add_argument("names", nargs="*", help=", ".join(PLAYS))
    arguments.add_argument("--out", type=Path, default=Path("tests/captures/changes"))
    arguments.add_argument("--lock", type=Path)
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.names or list(PLAYS), given.out, given.lock))

"""One sweep: a real engine under so many clients at a time, level after level, with an agent that keeps history.

Leaves NAME/history.db, as the agent wrote it, NAME/clients.json: what clients saw at each level, and
NAME/requests.jsonl: each request as its client saw it, for whoever wants to compute something else of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..engines import Engine, Engines
from ..load import Load, Sample
from ..ports import HOST
from ..programs import Programs
from ..requests.rig import load_average
from ..traffic import Tenant, percentile

SLOTS = 8
LEVELS = (1, 2, 4, 6, 8, 12, 16, 20, 24)
"""Clients, each of which sends its next request when it has the answer."""
LEVEL_S, LONG_S = 15.0, 60.0
"""Of a sweep that clients measure, and of one whose history is fitted: history has a row every 5 s."""
WARM_S = 10.0
"""Until the agent has started and the engine has seen a full batch: the first level is not to pay for either."""
SETTLE_S = 2.0
"""At the start of a level, that is not counted."""
TTFT_SLO_S = 0.25
PROMPT, ANSWER = 48, 32


@dataclass(frozen=True)
class Level:
    """What clients measured at one level. tokens_per_second: of answers; seconds of requests."""

    clients: int
    requests: int
    tokens_per_second: float
    requests_per_second: float
    ttft_p50: float
    ttft_p99: float
    residence: float  # mean, from sending to the last token


async def sweep(name: str, out: Path, kvitals: Sequence[str], seed: int, level_s: float = LEVEL_S) -> None:
    """Run all levels in an order of chance, with an agent beside it. level_s: seconds of each."""
    order = random.Random(seed).sample(LEVELS, len(LEVELS))
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    levels: list[Level] = []
    requests: list[str] = []
    async with Engines() as lab, Programs() as programs:
        engine = await lab.start("engine", None, max_num_seqs=SLOTS)
        await _agent(programs, kvitals, engine, folder)
        async with Load([engine.url], [_tenant(SLOTS)], seed=f"warm-{seed}"):
            await asyncio.sleep(WARM_S)
        for clients in order:
            async with Load([engine.url], [_tenant(clients)], seed=f"{seed}-{clients}") as load:
                await asyncio.sleep(level_s)
            assert load.started is not None and load.ended is not None
            levels.append(_level(clients, load.samples, load.started + SETTLE_S, load.ended))
            requests += [json.dumps([clients, s.sent, s.ttft, s.e2e, s.answer_tokens, s.status]) for s in load.samples]
        await asyncio.sleep(3)
        await programs.stop("agent")
    told: dict[str, Any] = {"seed": seed, "order": order, "load": load_average(), "slots": SLOTS}
    told["levels"] = [asdict(level) for level in sorted(levels, key=lambda one: one.clients)]
    (folder / "requests.jsonl").write_text("\n".join(requests) + "\n")
    (folder / "clients.json").write_text(json.dumps(told, indent=1) + "\n")


def measured(folder: Path) -> list[Level]:
    """What clients saw in a sweep, by clients."""
    return [Level(**level) for level in json.loads((folder / "clients.json").read_text())["levels"]]


def _tenant(clients: int) -> Tenant:
    return Tenant("level", clients=clients, prefix=16, question=PROMPT - 16, answer=ANSWER)


def _level(clients: int, samples: Sequence[Sample], start: float, end: float) -> Level:
    """Of requests that were sent and those that ended within start and end."""
    ok = [s for s in samples if s.status == "ok" and s.ttft is not None and s.e2e is not None]
    ended = [s for s in ok if s.e2e is not None and start <= s.sent + s.e2e < end]
    sent = [s for s in ok if start <= s.sent < end]
    ttft = [s.ttft for s in sent if s.ttft is not None]
    seconds = end - start
    return Level(
        clients=clients,
        requests=len(sent),
        tokens_per_second=round(sum(s.answer_tokens for s in ended) / seconds, 3),
        requests_per_second=round(len(ended) / seconds, 4),
        ttft_p50=round(percentile(ttft, 0.5) or 0.0, 5),
        ttft_p99=round(percentile(ttft, 0.99) or 0.0, 5),
        residence=round(sum(s.e2e or 0.0 for s in ended) / max(len(ended), 1), 5),
    )


async def _agent(programs: Programs, kvitals: Sequence[str], engine: Engine, folder: Path) -> None:
    """An agent that keeps what it sees in the folder. The sweep ends with its end."""
    config = folder / "kvitals.toml"
    config.write_text(
        f'[agent]\ndiscover = false\ninterval = "1s"\n\n[slo]\nttft_p99_seconds = {TTFT_SLO_S}\n\n'
        f'[history]\ndirectory = "{folder}"\n\n[[target]]\nurl = "{engine.url}"\nname = "engine"\n'
    )
    port = programs.port()
    command = [*kvitals, "run", "--no-web", f"--listen={HOST}:{port.number}", f"--config={config}"]
    env = {"XDG_STATE_HOME": str(folder / "state")}
    await programs.start("agent", command, ready=f"{port.url}/-/healthy", env=env)

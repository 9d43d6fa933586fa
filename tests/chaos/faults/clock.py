"""The machine's clock is set under a running agent, by libfaketime; the monotonic clock goes on, as in reality."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from .engines import all_up, finding, no_leaps, up
from .stage import INTERVAL, OBJECTIVES, Agent, CannotRunError, Stage, Told, free_port

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1")
SETTLED_SECONDS = 8.0
JUDGED_SECONDS = 45.0
FINDING = "LAT02 engine"


async def stepped(stage: Stage, told: Told) -> None:
    """An hour forward, an hour back, three seconds back: families, findings and history go on each time."""
    library = _library()
    offset = stage.folder / "offset"
    offset.write_text("+0s\n")
    env = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # with it threads that wait for a moment wait for much longer
        "NO_FAKE_STAT": "1",
    }
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    agent = await stage.agent(ports, env=env, more=OBJECTIVES)
    await up(stage, agent, ports)
    await asyncio.sleep(SETTLED_SECONDS)
    for step, now in (("an hour forward", 3600.0), ("an hour back", 0.0), ("three seconds back", -3.0)):
        offset.write_text(f"{now:+.0f}s\n")
        set_at = time.monotonic()
        seen = await stage.until(lambda now=now: _is_told_at(agent, now), SETTLED_SECONDS)
        told.expect(seen is not None, f"{step}: nothing is told at the new time within {SETTLED_SECONDS:.0f} s")
        kept = await stage.until(lambda now=now: _committed(agent, now), SETTLED_SECONDS)
        told.expect(kept is not None, f"{step}: history does not go on within {SETTLED_SECONDS:.0f} s")
        await asyncio.sleep(max(SETTLED_SECONDS - (time.monotonic() - set_at), 0.0))
        told.expect(await all_up(agent, ports), f"{step}: the engine is told as down")
        restarts = await agent.value("kvitals_engine_restarts_total")
        told.expect(restarts == 0, f"{step}: {restarts} restarts of the engine counted")
        await no_leaps(agent, told, 20.0)
        opened = {key for key in await agent.findings() if key.startswith("TEL01")}
        told.expect(not opened, f"{step}: {opened} opened")
        told.said.append(f"{step}: told after {(seen or 0):.1f} s, in history after {(kept or 0):.1f} s more")
    judged = await stage.until(lambda: finding(agent, FINDING), JUDGED_SECONDS)
    told.expect(judged is not None, f"{FINDING} does not open: {sorted(await agent.findings())}")


def _library() -> str:
    found = [str(path) for pattern in LIBRARIES for path in Path("/").glob(pattern.lstrip("/"))]
    if not found:
        raise CannotRunError("there is no libfaketime: install Debian's package faketime")
    return found[0]


async def _is_told_at(agent: Agent, offset: float) -> bool:
    """A sample that is not older than two looks by the clock as it is set, and none of another time."""
    at = await agent.value("timestamp(kvitals_target_up)", time.time() + offset + INTERVAL)
    return at is not None and abs(at - time.time() - offset) < 3 * INTERVAL


async def _committed(agent: Agent, offset: float) -> bool:
    committed = await agent.value("kvitals_history_committed_timestamp_seconds", time.time() + offset + INTERVAL)
    return committed is not None and abs(committed - time.time() - offset) < 5 * INTERVAL

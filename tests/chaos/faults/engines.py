"""Engines that are killed, stopped, and come back as another version."""

from __future__ import annotations

import asyncio
import signal
from itertools import pairwise
from statistics import median

from .stage import INTERVAL, LATE_SECONDS, Agent, Stage, Told, free_port

TOLD_SECONDS = INTERVAL + 2 * LATE_SECONDS
"""Until what an engine came to is in the families."""
RULE_SECONDS = 10.0 + TOLD_SECONDS
"""Until the rule about it (TEL01, `for: 10s`) is open."""
USUAL = 1.25
"""The median time between two looks, at most, in intervals: situations run beside each other on few cores."""
RECORDED = "app/demo/few_slots.kvcap"


async def killed(stage: Stage, told: Told) -> None:
    """One of three engines is killed and started again; one is a recording, which then begins anew."""
    ports = {"dies": free_port(), "goes-on": free_port(), "recorded": free_port()}
    victims = [await stage.engine(ports["dies"]), await stage.replayed(ports["recorded"], RECORDED)]
    await stage.engine(ports["goes-on"], seed=2)
    agent = await stage.agent(ports)
    await up(stage, agent, ports)
    await asyncio.sleep(6.0)
    for one in victims:
        await one.kill()
    for name in ("dies", "recorded"):
        took = await stage.until(lambda name=name: is_state(agent, name, "refused"), TOLD_SECONDS)
        told.expect(took is not None, f"{name}: not told as refused within {TOLD_SECONDS:.0f} s")
    took = await stage.until(lambda: finding(agent, "TEL01 dies"), RULE_SECONDS)
    told.expect(took is not None, f"no finding TEL01 within {RULE_SECONDS:.0f} s")
    told.said.append(f"told by TEL01 {(took or 0):.0f} s after the families had it")
    await stage.engine(ports["dies"])
    await stage.replayed(ports["recorded"], RECORDED)
    back = await stage.until(lambda: all_up(agent, ports), TOLD_SECONDS)
    told.expect(back is not None, f"not up within {TOLD_SECONDS:.0f} s of coming back")
    gone = await stage.until(lambda: _not(finding(agent, "TEL01 dies")), 20.0)
    told.expect(gone is not None, "TEL01 is still open 20 s after the engine is back")
    await asyncio.sleep(6.0)
    await _counted_once(agent, told, "dies")
    await no_leaps(agent, told, 60.0)
    await on_time(agent, told, "goes-on", 30.0)
    told.said.append(f"up {(back or 0):.1f} s after they answer again")


async def stopped(stage: Stage, told: Told) -> None:
    """An engine stands still (SIGSTOP) with its connections open, and goes on after 15 seconds."""
    ports = {"hangs": free_port(), "goes-on": free_port()}
    victim = await stage.engine(ports["hangs"])
    await stage.engine(ports["goes-on"], seed=2)
    agent = await stage.agent(ports)
    await up(stage, agent, ports)
    await asyncio.sleep(3.0)
    victim.process.send_signal(signal.SIGSTOP)
    took = await stage.until(lambda: is_state(agent, "hangs", "timeout"), TOLD_SECONDS)
    told.expect(took is not None, f"not told as timed out within {TOLD_SECONDS:.0f} s")
    await asyncio.sleep(15.0)
    told.expect(bool(await finding(agent, "TEL01 hangs")), "no finding TEL01 while it hangs")
    victim.process.send_signal(signal.SIGCONT)
    back = await stage.until(lambda: all_up(agent, ports), TOLD_SECONDS)
    told.expect(back is not None, f"not up within {TOLD_SECONDS:.0f} s of going on")
    restarts = await agent.value('kvitals_engine_restarts_total{engine="hangs"}')
    told.expect(restarts == 0, f"taken for {restarts} restarts")
    await on_time(agent, told, "goes-on", 20.0)
    told.said.append(f"timed out after {(took or 0):.1f} s, up again after {(back or 0):.1f} s")


async def upgraded(stage: Stage, told: Told) -> None:
    """An engine of version 0.8 comes back as 0.32 on the same port, with other names on its page."""
    ports = {"engine": free_port()}
    old = await stage.engine(ports["engine"], version="0.8.5")
    agent = await stage.agent(ports)
    await up(stage, agent, ports)
    await _is_version(stage, agent, told, "0.8.5")
    await asyncio.sleep(5.0)
    await old.kill()
    await stage.engine(ports["engine"], version="0.32.0")
    seen = await stage.until(lambda: _is(agent, "kvitals_engine_restarts_total", 1), 2 * TOLD_SECONDS)
    told.expect(seen is not None, "the restart was not counted")
    for family in ("kvitals_itl_seconds_count", "kvitals_kv_usage_ratio"):
        took = await stage.until(lambda family=family: agent.query(family), TOLD_SECONDS)
        told.expect(took is not None, f"{family} is not read of its new name")
    took = await _is_version(stage, agent, told, "0.32.0")
    await no_leaps(agent, told, 60.0)
    told.said.append(f"0.8.5 to 0.32.0 under other names; one restart; the version is told {took:.0f} s later")


async def _is_version(stage: Stage, agent: Agent, told: Told, version: str) -> float:
    """An engine is asked for its version at most every 30 seconds."""
    wanted = f'kvitals_engine_info{{version="{version}"}}'
    took = await stage.until(lambda: agent.query(wanted), 30.0 + TOLD_SECONDS)
    told.expect(took is not None, f"version {version} is not told: {await agent.query('kvitals_engine_info')}")
    return took or 0.0


async def up(stage: Stage, agent: Agent, ports: dict[str, int]) -> None:
    if await stage.until(lambda: all_up(agent, ports), 15.0) is None:
        raise AssertionError(f"not all are up: {await agent.query('kvitals_target_state')}")


async def all_up(agent: Agent, ports: dict[str, int]) -> bool:
    return await agent.value("sum(kvitals_target_up)") == len(ports)


async def is_state(agent: Agent, engine: str, reason: str) -> bool:
    return bool(await agent.query(f'kvitals_target_state{{engine="{engine}",reason="{reason}"}} == 1'))


async def finding(agent: Agent, key: str) -> object:
    return (await agent.findings()).get(key)


async def _not(found: object) -> bool:
    return not await found  # type: ignore[misc]


async def _is(agent: Agent, family: str, value: float) -> bool:
    return await agent.value(family) == value


async def _counted_once(agent: Agent, told: Told, engine: str) -> None:
    restarts = await agent.value(f'kvitals_engine_restarts_total{{engine="{engine}"}}')
    told.expect(restarts == 1, f"{engine}: {restarts} restarts counted, not one")


async def no_leaps(agent: Agent, told: Told, seconds: float) -> None:
    """A counter that began anew is nothing that happened: requests a second stay what they were."""
    query = f"max(max_over_time(rate(kvitals_requests_finished_total[5s])[{seconds:.0f}s:1s]))"
    most = await agent.value(query)
    told.expect(most is not None, "no rate of finished requests")
    told.expect((most or 0.0) < 100.0, f"{most} requests a second were seen, of engines with 8")


async def on_time(agent: Agent, told: Told, engine: str, seconds: float, late: float = LATE_SECONDS) -> None:
    """An engine that nothing happened to was looked at as if nothing had happened to others. late: by how many seconds
    one look may be late."""
    times = await agent.times(f'kvitals_target_up{{engine="{engine}"}}', seconds)
    gaps = [b - a for a, b in pairwise(times)] or [float("inf")]
    usual, most = median(gaps), max(gaps)
    told.expect(usual < USUAL * INTERVAL, f"{engine}, which nothing happened to, is looked at every {usual:.2f} s")
    told.expect(most < INTERVAL + late, f"{engine}, which nothing happened to, was not looked at for {most:.1f} s")
    told.said.append(f"{engine}, untouched: a look every {usual:.2f} s, {most:.1f} s at most")

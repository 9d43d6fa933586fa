"""A network between agent and engine that is slow, cut, or loses everything."""

from __future__ import annotations

import asyncio
import os

from .engines import TOLD_SECONDS, all_up, is_state, no_leaps, on_time, up
from .proxy import Proxy
from .stage import TIMEOUT, Agent, CannotRunError, Stage, Told, free_port

HELD_SECONDS = 4.0


async def broken(stage: Stage, told: Told) -> None:
    """Delays below and above the time-out, connections that are reset, connections where nothing comes any more."""
    ports = {"behind": free_port(), "beside": free_port()}
    await stage.engine(ports["behind"])
    await stage.engine(ports["beside"], seed=2)
    proxy = Proxy(ports["behind"])
    await proxy.open()
    try:
        agent = await stage.agent(ports | {"behind": proxy.port})
        await up(stage, agent, ports)
        await asyncio.sleep(3.0)
        proxy.fault, proxy.seconds = "delay", TIMEOUT / 12  # of every piece, of which a page has some
        await asyncio.sleep(HELD_SECONDS)
        told.expect(await all_up(agent, ports), "a delay below the time-out makes the engine one that is down")
        proxy.seconds = 2 * TIMEOUT
        await _told(stage, agent, told, proxy, ports, "delay", ("timeout",))
        proxy.fault = "cut"
        await _told(stage, agent, told, proxy, ports, "cut", ("truncated", "disconnected"))
        proxy.fault = "silent"
        await _told(stage, agent, told, proxy, ports, "silent", ("timeout",))
        await no_leaps(agent, told, 60.0)
        restarts = await agent.value('kvitals_engine_restarts_total{engine="behind"}')
        told.expect(restarts == 0, f"{restarts} restarts counted")
        await on_time(agent, told, "beside", 30.0)
    finally:
        await proxy.close()


async def _told(
    stage: Stage, agent: Agent, told: Told, proxy: Proxy, ports: dict[str, int], name: str, reasons: tuple[str, ...]
) -> None:
    """A fault that is there is told as one of the reasons; then it is taken away."""

    async def is_told() -> bool:
        return any([await is_state(agent, "behind", reason) for reason in reasons])

    took = await stage.until(is_told, TOLD_SECONDS)
    states = await agent.query('kvitals_target_state{engine="behind"} == 1')
    told.expect(took is not None, f"{name}: not told as {' or '.join(reasons)} but as {states}")
    await asyncio.sleep(HELD_SECONDS)
    proxy.fault = "none"
    back = await stage.until(lambda: all_up(agent, ports), TOLD_SECONDS)
    told.expect(back is not None, f"{name}: not up within {TOLD_SECONDS:.0f} s of its end")
    told.said.append(f"{name}: told after {(took or 0):.1f} s, up {(back or 0):.1f} s after its end")
    await asyncio.sleep(2.0)


async def packets_lost(stage: Stage, told: Told) -> None:
    """An engine in a network namespace of its own, whose packets are lost on the way back: nobody closes anything."""
    name = f"kvitals-{os.getpid()}"
    here, there = "169.254.213.1", "169.254.213.2"
    await _ip(stage, "netns", "add", name)
    try:
        for command in (
            f"link add {name[:11]}-a type veth peer name {name[:11]}-b netns {name}",
            f"addr add {here}/30 dev {name[:11]}-a",
            f"link set {name[:11]}-a up",
            f"-n {name} addr add {there}/30 dev {name[:11]}-b",
            f"-n {name} link set {name[:11]}-b up",
        ):
            await _ip(stage, *command.split())
        port, beside = free_port(), free_port()
        inside = ["ip", "netns", "exec", name]
        await stage.engine(port, host=there, before=inside)
        await stage.engine(beside, seed=2)
        agent = await stage.agent({"away": f"http://{there}:{port}", "beside": beside})
        ports = {"away": port, "beside": beside}
        await up(stage, agent, ports)
        await asyncio.sleep(3.0)
        await _ip(stage, "-n", name, "route", "add", "blackhole", f"{here}/32")
        took = await stage.until(lambda: is_state(agent, "away", "timeout"), TOLD_SECONDS)
        told.expect(took is not None, "not told as timed out")
        await asyncio.sleep(10.0)
        await _ip(stage, "-n", name, "route", "del", "blackhole", f"{here}/32")
        back = await stage.until(lambda: all_up(agent, ports), TOLD_SECONDS)
        told.expect(back is not None, f"not up within {TOLD_SECONDS:.0f} s of its end")
        await no_leaps(agent, told, 60.0)
        await on_time(agent, told, "beside", 20.0)
        told.said.append(f"told after {(took or 0):.1f} s, up {(back or 0):.1f} s after its end")
    finally:
        await stage.run(["ip", "netns", "del", name])


async def _ip(stage: Stage, *arguments: str) -> None:
    """Raises CannotRunError where this machine does not allow it."""
    try:
        status, said, _ = await stage.run(["ip", *arguments])
    except FileNotFoundError:
        raise CannotRunError("there is no `ip`: install Debian's package iproute2") from None
    if status:
        raise CannotRunError(f"no network namespaces here (ip {' '.join(arguments)}: {said.strip()[:200]})")

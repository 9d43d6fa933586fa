"""Collectors that hang and files that are no files: everything else goes on, and the agent still stops."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from .engines import on_time, up
from .stage import Stage, Told, free_port

STOP_SECONDS = 5.5
"""Within which a stopped agent ends, whatever hangs."""

_HANGS = (
    "import sys, time; import kvitals.agent.collectors.host as host, kvitals.agent.node_collectors as node_collectors;"
    " host.HostSense.read = lambda *_: time.sleep(600); node_collectors.NODE_DEADLINE = 2.0;"
    " from kvitals.ui.cli.main import main; main(sys.argv[4:])"
)
"""What runs instead of the agent's own command, which follows it: a read of /proc that does not come back."""


async def hung(stage: Stage, told: Told) -> None:
    """A read of /proc does not come back: it is reported, no threads pile up, scrapes go on, and SIGTERM ends it."""
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    agent = await stage.agent(ports, before=[sys.executable, "-c", _HANGS])
    await up(stage, agent, ports)
    failing = 'kvitals_collector_failing{collector="host",reason="hung"} == 1'
    took = await stage.until(lambda: agent.query(failing), 30.0)
    told.expect(took is not None, "the collector that hangs is not reported")
    threads = agent.program.threads()
    await asyncio.sleep(15.0)
    told.expect(agent.program.threads() <= threads + 2, f"{threads} threads became {agent.program.threads()}")
    succeeding = await agent.query('kvitals_collector_success{collector=~"scrape|gpu"} == 1')
    told.expect(len(succeeding) == 2, f"other collectors fail, too: {succeeding}")
    await on_time(agent, told, "engine", 12.0)
    await stage.loops_were_free(told)
    began = time.monotonic()
    await agent.program.stop()
    ended = time.monotonic() - began
    told.expect(ended < STOP_SECONDS, f"the agent took {ended:.1f} s to stop")
    told.said.append(f"reported as hung after {took or 0:.1f} s; stopped within {ended:.1f} s")


async def fifo_targets(stage: Stage, told: Told) -> None:
    """Pipes among the targets files and as a target's token: one line each, the others are watched."""
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    folder = stage.folder / "targets"
    folder.mkdir()
    for name in ("a.txt", "z.json"):
        os.mkfifo(folder / name)
    (folder / "good.txt").write_text("http://127.0.0.1:9\n")
    os.mkfifo(stage.folder / "token")
    agent = await stage.agent(ports, agent_more=f'targets_file = ["{folder}/*"]\n')
    await up(stage, agent, ports)
    went = await stage.until(lambda: agent.query('kvitals_target_up{engine="127.0.0.1:9"} == 0'), 15.0)
    told.expect(went is not None, "the targets file beside the pipes is not read")
    said = agent.said
    for name in ("a.txt", "z.json"):
        told.expect(f"{name}: cannot be read: not a regular file" in said.replace("\n", " "), f"{name} is not reported")
    status = await agent.text("/-/healthy")
    told.expect("is Healthy" in status, f"not healthy: {status}")
    await asyncio.sleep(8.0)
    await on_time(agent, told, "engine", 8.0)
    told.said.append("two pipes, a line each; the file beside them is watched")

"""A disk that is full, as a small file system of the agent's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from kvitals.series.history.reader import HistoryReader
from kvitals.series.history.schema import FILE
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp

from .engines import on_time, up
from .stage import INTERVAL, Agent, CannotRunError, Stage, Told, free_port, longest_gap

MEGABYTES = 8
FULL_SECONDS = 12.0
GOES_ON_SECONDS = 15.0
ROW_SECONDS = 5.0
"""History keeps no rows that are closer."""


async def full(stage: Stage, told: Told) -> None:
    """The disk of history and state fills up for some seconds and has room again."""
    place = stage.folder / "small"
    place.mkdir()
    mount = await _mounting(stage, place)
    ports = {"engine": free_port()}
    await stage.engine(ports["engine"])
    agent = await stage.agent(ports, before=mount, history=place / "history", env={"XDG_STATE_HOME": str(place)})
    await up(stage, agent, ports)
    inside = Path(f"/proc/{agent.program.pid}/root{place}")
    kept = await stage.until(lambda: _committed_after(agent, 0.0), 10.0)
    began = time.time()
    told.expect(kept is not None, "nothing was committed before")
    await asyncio.sleep(8.0)
    _fill(inside / "filler")
    seen = await stage.until(lambda: _is_state(agent, "failed", "disk_full"), 15.0)
    told.expect(seen is not None, f"not told as full: {await agent.query('kvitals_history_state == 1')}")
    told.expect("disk_full" in str(await agent.query("kvitals_history_dropped_total")), "nothing is counted as dropped")
    committed = await agent.value("kvitals_history_committed_timestamp_seconds") or 0.0
    await asyncio.sleep(FULL_SECONDS)
    told.expect(not agent.program.ended, "the agent died")
    await on_time(agent, told, "engine", FULL_SECONDS + 8)
    told.expect("free space there" in " ".join(agent.said.split()), "the terminal does not say what to do")
    (inside / "filler").unlink()
    emptied = time.time()
    back = await stage.until(lambda: _committed_after(agent, emptied), GOES_ON_SECONDS)
    told.expect(back is not None, "history does not go on")
    before = _on_disk(agent, inside / "history", stage.folder / "copy", began, committed)
    told.expect(committed - max(before, default=0.0) < ROW_SECONDS + INTERVAL, "rows that were committed are not there")
    told.expect(longest_gap([*before, committed]) < ROW_SECONDS + 2 * INTERVAL, "rows before are missing")
    dropped = await agent.value('sum(kvitals_history_dropped_total{reason="disk_full"})')
    told.said.append(
        f"full for {FULL_SECONDS:.0f} s, told after {(seen or 0):.1f} s; history goes on {(back or 0):.1f} s after"
        f" there is room; {(dropped or 0):.0f} looks are missing, none of those before"
    )


async def _mounting(stage: Stage, place: Path) -> list[str]:
    """How a command gets a small disk of its own at `place`. Raises CannotRunError."""
    inside = f'mount -t tmpfs -o size={MEGABYTES}m kvitals-chaos {place} && exec "$@"'
    command = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c", inside, "sh"]
    status, said, _ = await stage.run([*command, "true"])
    if status:
        raise CannotRunError(f"no small file system can be mounted here: {said.strip()[:200]}")
    return command


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as out:
        while out.write(bytes(4096)):
            pass


async def _committed_after(agent: Agent, t: float) -> bool:
    return (await agent.value("kvitals_history_committed_timestamp_seconds") or 0.0) > t


async def _is_state(agent: Agent, state: str, reason: str) -> bool:
    return bool(await agent.query(f'kvitals_history_state{{state="{state}",reason="{reason}"}} == 1'))


def _on_disk(agent: Agent, history: Path, copy: Path, start: float, end: float) -> list[float]:
    """When the engine has rows on the disk, of a copy that is made while the agent stands still: SQLite looks through
    the way into another process' file systems."""
    agent.program.process.send_signal(signal.SIGSTOP)
    shutil.copytree(history, copy)
    agent.program.process.send_signal(signal.SIGCONT)
    reader = HistoryReader(copy / FILE)
    frames = reader.select([Matcher(METRIC_NAME, MatchOp.EQ, "kvitals_target_up")], start, end)
    reader.close()
    return sorted(t for frame in frames for t in frame.times.tolist())

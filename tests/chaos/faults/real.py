"""Real vLLM engines under load: one is killed, one is stopped and goes on, one is left alone. Needs `make lab`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from kvitals.config.judging import SloTable
from tests.lab import Engine, Engines, LabError
from tests.lab.requests.clients import FAILED, FINISHED, Order, Seen, ask
from tests.lab.traffic import tokens

from .engines import RULE_SECONDS, TOLD_SECONDS, all_up, finding, is_state, on_time, up
from .stage import HOST, KVITALS, Agent, CannotRunError, Stage, Told, free_port

DIES, STANDS, GOES_ON = "dies", "stands", "goes-on"
CLIENTS = 2
"""Of each engine. Three engines share a core or two: more of them would be overload and no fault."""
PROMPT, ANSWER = 64, 192
"""Tokens. Answers are long, so that each client has a request under way when the engine dies."""
SCRAPE_SECONDS = 0.9
"""A page of an engine that computes on the core that answers takes longer than a recorded one."""
NICE = 10
STARTING_SECONDS = 6.0
"""By how much a look may be late while an engine starts: on two cores it takes both."""
BEFORE_SECONDS, AFTER_SECONDS = 6.0, 8.0
RECORD_SECONDS = 20.0
"""Until requests that ended are told: what is said of one is waited for, 7 s of spans included."""
EVER = 90.0
"""Seconds that reach back before the situation began."""
COUNTERS = ("kvitals_generation_tokens_total", "kvitals_prompt_tokens_total", "kvitals_requests_finished_total")
MOST_A_SECOND = 20_000.0
"""Tokens and requests: more than such an engine can do on a few cores."""
EXPECTED = {
    *(f"TEL01 {name}" for name in (DIES, STANDS)),
    f"ENG04 {DIES}",
    f"ENG05 {DIES}",  # its clients are refused while it is away, as the tap before it sees
    *(f"ENG13 {name}" for name in (DIES, STANDS)),  # a killed process has ended, which may be seen before it is gone
    *(f"{code} {STANDS}" for code in ("LAT02", "LAT16")),  # its clients wait for the next token while it is stopped
    *(f"ENG11 {name}" for name in (DIES, STANDS, GOES_ON)),  # true here: an engine that starts takes the others' cores
}
"""The findings that are true of what is done here."""


@dataclass
class Clients:
    """Who sends to one engine, all the time, and what they saw."""

    engine: str
    url: str
    seen: list[Seen] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    open: bool = True

    def start(self, session: aiohttp.ClientSession) -> None:
        """session: with no time-out of its own, since nobody is to leave while an engine stands still."""
        self.tasks = [asyncio.create_task(self._client(session, number)) for number in range(CLIENTS)]

    async def end(self) -> None:
        """Those under way to their end."""
        self.open = False
        await asyncio.gather(*self.tasks)

    def under_way(self, moment: float) -> list[Seen]:
        """Requests that had been sent and not ended."""
        return [one for one in self.seen if one.sent < moment < one.ended]

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        draw = random.Random(f"{self.engine}/{number}")
        while self.open:
            seen = await ask(session, self.url, Order(tokens(draw, PROMPT), ANSWER), self.engine)
            self.seen.append(seen)
            if seen.status == FAILED:
                await asyncio.sleep(0.5)


async def engines(stage: Stage, told: Told) -> None:
    """SIGKILL to one of three engines under load, SIGSTOP to another; later they are back, all this time the third goes
    on. What clients had under way is told by the tap as it ended."""
    try:
        async with Engines() as lab, aiohttp.ClientSession() as session:
            await _play(stage, told, lab, session)
    except LabError as error:
        raise CannotRunError(str(error)) from error


async def _play(stage: Stage, told: Told, lab: Engines, session: aiohttp.ClientSession) -> None:
    began = time.monotonic()
    at = {name: await lab.start(name, max_model_len=512) for name in (DIES, STANDS, GOES_ON)}
    told.said.append(f"three vLLM serve after {time.monotonic() - began:.0f} s")
    for one in at.values():
        _give_way(one)
    agent = await stage.agent({name: one.url for name, one in at.items()}, scrape_seconds=SCRAPE_SECONDS)
    everyone = {name: Clients(name, await _tap(stage, agent, one)) for name, one in at.items()}
    ports = dict.fromkeys(at, 0)
    await up(stage, agent, ports)
    for one in everyone.values():
        one.start(session)
    await asyncio.sleep(BEFORE_SECONDS)
    before, ever = set(await agent.findings()), set[str]()
    watching = asyncio.create_task(_watch(agent, ever))
    killed = time.time()
    os.killpg(at[DIES].pid, signal.SIGKILL)
    os.killpg(at[STANDS].pid, signal.SIGSTOP)
    await _is_told(stage, agent, told)
    back = time.time()
    os.killpg(at[STANDS].pid, signal.SIGCONT)
    _give_way(await lab.restart(DIES))
    took = await stage.until(lambda: all_up(agent, ports), TOLD_SECONDS)
    told.expect(took is not None, f"not all are up {TOLD_SECONDS:.0f} s after they serve")
    told.expect(
        await stage.until(lambda: _closed(agent), RULE_SECONDS) is not None, f"TEL01 is open {RULE_SECONDS:.0f} s later"
    )
    await asyncio.sleep(AFTER_SECONDS)
    await asyncio.gather(*(one.end() for one in everyone.values()))
    records = await _records(stage, agent, [seen.id for one in everyone.values() for seen in one.seen])
    told.expect(not watching.done(), "findings were not looked at to the end")
    watching.cancel()
    wrong = sorted(ever - before - EXPECTED - _paused(everyone))
    told.expect(not wrong, f"findings that nothing was done for: {wrong}")
    await _counts(agent, told)
    await on_time(agent, told, GOES_ON, time.time() - killed, STARTING_SECONDS)
    _requests(told, everyone, records, killed, back)


def _give_way(engine: Engine) -> None:
    """Engines compute on the cores that the agent needs, as none with a GPU does. Those that their fork server starts
    from now on give way too."""
    os.setpriority(os.PRIO_PGRP, engine.pid, NICE)
    after_name = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
    os.setpriority(os.PRIO_PROCESS, int(after_name[1]), NICE)
    # Where Linux groups processes by session, priorities count within a session only; the group has one of its own.
    with contextlib.suppress(OSError):
        Path(f"/proc/{engine.pid}/autogroup").write_text(str(NICE))


async def _tap(stage: Stage, agent: Agent, engine: Engine) -> str:
    """A tap before an engine, that tells the agent; where clients send."""
    port, admin = free_port(), free_port()
    command = [
        *(*KVITALS, "tap", f"--upstream={engine.url}", f"--listen={HOST}:{port}", f"--admin={HOST}:{admin}"),
        f"--agent=http://{HOST}:{agent.port}",
    ]
    await stage.start(f"tap-{engine.name}", command, f"http://{HOST}:{admin}/metrics")
    return f"http://{HOST}:{port}"


async def _is_told(stage: Stage, agent: Agent, told: Told) -> None:
    """What happened to two engines is in the families at the next looks; a finding of each once its time is up; and the
    verdict."""
    began = time.monotonic()
    for name, reason in ((DIES, "refused"), (STANDS, "timeout")):
        seen = await stage.until(lambda name=name, reason=reason: is_state(agent, name, reason), TOLD_SECONDS)
        told.expect(seen is not None, f"{name}: not told as {reason} within {TOLD_SECONDS:.0f} s")
        told.said.append(f"{name}: {reason} after {time.monotonic() - began:.1f} s")
    for name in (DIES, STANDS):
        seen = await stage.until(lambda name=name: finding(agent, f"TEL01 {name}"), RULE_SECONDS)
        told.expect(seen is not None, f"{name}: no finding TEL01 within {RULE_SECONDS:.0f} s")
    told.said.append(f"TEL01 of both after {time.monotonic() - began:.1f} s")
    status, said, _ = await stage.run([*KVITALS, "triage", f"http://{HOST}:{agent.port}"])
    verdict = next((line for line in said.splitlines() if line.startswith("✗")), said[-300:])
    told.expect(status == 1 and DIES in verdict and STANDS in verdict, f"kvitals triage: {status} {verdict}")
    told.said.append(verdict)


def _paused(everyone: dict[str, Clients]) -> set[str]:
    """Slow tokens that are true as well, of engines whose clients waited for a token: an engine that starts takes the
    others' cores."""
    late = SloTable().itl_p99_seconds
    return {f"LAT02 {name}" for name, one in everyone.items() if any(seen.longest_gap > late for seen in one.seen)}


async def _watch(agent: Agent, ever: set[str]) -> None:
    """Every finding that is open at any time, by code and engine."""
    while True:
        ever.update(await agent.findings())
        await asyncio.sleep(0.5)


async def _closed(agent: Agent) -> bool:
    return not any(key.startswith("TEL01") for key in await agent.findings())


async def _records(stage: Stage, agent: Agent, ids: list[str]) -> dict[str, dict[str, Any]]:
    """The records of these requests, as soon as all are there, or what there is of them after a while."""
    found: dict[str, dict[str, Any]] = {}

    async def all_there() -> bool:
        answer = await agent.get("/api/v1/requests", newest="1000")
        found.update({one["id"]: one for one in answer["data"]["requests"] if one["id"] in ids})
        return len(found) == len(ids)

    await stage.until(all_there, RECORD_SECONDS)
    return found


async def _counts(agent: Agent, told: Told) -> None:
    """One restart, and no rate of a counter that is below nothing or beyond what can be."""
    for name in (DIES, STANDS, GOES_ON):
        restarts = await agent.value(f'kvitals_engine_restarts_total{{engine="{name}"}}')
        told.expect(restarts == (name == DIES), f"{name}: {restarts} restarts counted")
    for counter in COUNTERS:
        over = f"_over_time(rate({counter}[5s])[{EVER:.0f}s:1s])"
        least, most = await agent.value(f"min(min{over})"), await agent.value(f"max(max{over})")
        told.expect(least is not None and least >= 0.0, f"{counter}: a rate of {least}")
        told.expect(most is not None and 0.0 < most < MOST_A_SECOND, f"{counter}: a rate of {most}")


def _requests(
    told: Told, everyone: dict[str, Clients], records: dict[str, dict[str, Any]], killed: float, back: float
) -> None:
    """Each request is told as its client saw it end; those that the kill cut off as failed, at the time of the kill."""
    ledger = [seen for one in everyone.values() for seen in one.seen]
    missing = [seen.id for seen in ledger if seen.id not in records]
    told.expect(not missing, f"{len(missing)} of {len(ledger)} requests have no record")
    cut = everyone[DIES].under_way(killed)
    told.expect(len(cut) == CLIENTS, f"{len(cut)} requests were under way at the kill, not {CLIENTS}")
    wrong = [
        f"{seen.via} {seen.status}/{seen.http}: {record['outcome']} {record.get('error')}"
        for seen in ledger
        if (record := records.get(seen.id)) and record["outcome"] != ("success" if seen.status == FINISHED else "error")
    ]
    told.expect(not wrong, f"told otherwise than clients saw them end: {wrong}")
    errors = {records[seen.id].get("error") for seen in cut if seen.id in records}
    told.expect(errors == {"upstream_closed"}, f"requests that the kill cut off: {errors}")
    failed = [seen for name in (STANDS, GOES_ON) for seen in everyone[name].seen if seen.status == FAILED]
    # uvicorn closes connections that were idle for 5 s before it reads what came on them while it stood still.
    without_output = [
        seen for seen in failed if seen.via == STANDS and not seen.pieces and seen.sent < back <= seen.ended
    ]
    others = [
        f"{seen.via} {seen.sent - killed:+.1f} to {seen.ended - killed:+.1f} s: {records.get(seen.id, {}).get('error')}"
        for seen in failed
        if seen not in without_output
    ]
    told.expect(not others, f"requests to the other engines failed: {others}")
    held = [seen for seen in everyone[STANDS].under_way(killed) if seen.status == FINISHED]
    refused = sum(seen.status == FAILED for seen in everyone[DIES].seen) - len(cut)
    told.said.append(
        f"{len(ledger)} requests as their clients saw them: {len(cut)} cut off by the kill, {refused} refused while it"
        f" was away, {len(held)} held up by the stop and finished, {len(without_output)} without output failed"
    )

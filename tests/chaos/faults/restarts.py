"""The agent is killed, again and again, under load; another one takes over where it was."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import aiohttp

from tests.chaos.requests.spans import export

from .disk import ROW_SECONDS
from .engines import finding, up
from .stage import HOST, INTERVAL, OBJECTIVES, Agent, Stage, Told, free_port, longest_gap

KILLS = 3
OPEN_SECONDS = 60.0
RUNS_SECONDS = 8.0
FINDING = "LAT02 engine-0"
FAMILY = "kvitals_generation_tokens_total"
SPANS_A_MESSAGE, MESSAGES_A_SECOND = 40, 5

Rows = dict[tuple[str, float], str]


async def killed(stage: Stage, told: Told) -> None:
    """SIGKILL under load: engines and spans over OTLP. What it had told as committed is there afterwards to the digit,
    and what it had found goes on since when it did."""
    ports: dict[str, int] = {f"engine-{number}": free_port() for number in range(3)}
    for number, port in enumerate(ports.values()):
        await stage.engine(port, seed=number)
    otlp, api = free_port(), free_port()
    more = OBJECTIVES + f'[otlp]\ngrpc = ""\nhttp = "{HOST}:{otlp}"\n'
    agent = await stage.agent(ports, port=api, more=more)
    sending = asyncio.create_task(_send(stage, otlp))
    try:
        await up(stage, agent, ports)
        opened = await stage.until(lambda: finding(agent, FINDING), OPEN_SECONDS)
        told.expect(opened is not None, f"{FINDING} does not open")
        chance, lost, compared, back_after = random.Random(1), 0, 0, 0.0
        for _ in range(KILLS):
            looking = time.time()
            await asyncio.sleep(RUNS_SECONDS + chance.random() * 2 * INTERVAL)
            before = (await agent.findings()).get(FINDING) or {}
            shown = await _rows(agent, 60.0)
            committed = await agent.value("kvitals_history_committed_timestamp_seconds") or 0.0
            await agent.program.kill()
            agent = await stage.agent(ports, port=api, more=more)
            took = await _goes_on(stage, agent, told, before)
            back_after = max(back_after, took)
            there = {key: value for key, value in (await _rows(agent, 120.0)).items() if key[1] <= committed}
            wrong = [key for key, value in there.items() if key in shown and shown[key] != value]
            lost += len(wrong) + _missing(told, there, looking, committed)
            compared += sum(key in shown for key in there)
        told.expect(not lost, f"{lost} rows that were told as committed are lost or differ")
        told.expect(compared > 3 * KILLS, f"only {compared} rows could be compared")
        told.expect(
            await stage.until(lambda: _takes_spans(agent), 15.0) is not None, "no span is taken after a restart"
        )
        told.said.append(
            f"{KILLS} kills: {compared} committed rows the same to the digit, {lost} lost; {FINDING} goes on since it"
            f" began, told {back_after:.1f} s after the agent answers again at most"
        )
    finally:
        sending.cancel()


async def _rows(agent: Agent, seconds: float) -> Rows:
    """The samples of a counter by engine and time, as they are answered."""
    found = await agent.query(f"{FAMILY}[{seconds:.0f}s]")
    return {(one["metric"]["engine"], round(float(t), 3)): value for one in found for t, value in one["values"]}


def _missing(told: Told, there: Rows, looking: float, committed: float) -> int:
    """History keeps a row each five seconds: how many engines have a longer hole from when the agent that was killed
    had begun to look until what it had committed."""
    missing = 0
    for engine in {engine for engine, _ in there}:
        times = sorted(t for e, t in there if e == engine and t >= looking)
        if longest_gap([looking, *times, committed]) > 2 * ROW_SECONDS + 2 * INTERVAL:
            told.broken.append(f"{engine}: rows {times} of those from {looking} until {committed}")
            missing += 1
    return missing


async def _goes_on(stage: Stage, agent: Agent, told: Told, before: dict[str, Any]) -> float:
    """Seconds until the finding is told again, as the one that it was."""
    took = await stage.until(lambda: finding(agent, FINDING), 30.0)
    now = (await agent.findings()).get(FINDING) or {}
    same = bool(before) and (now.get("since"), now.get("episode")) == (before["since"], before["episode"])
    told.expect(same, f"{FINDING} since {before.get('since')} is since {now.get('since')} after a restart")
    return took or 0.0


async def _takes_spans(agent: Agent) -> bool:
    return (await agent.page()).total("kvitals_parts_total", source="otlp") > 0


async def _send(stage: Stage, port: int) -> None:
    """Spans at a steady rate, also while nobody listens."""
    payload = export([f"tenant-{number}" for number in range(SPANS_A_MESSAGE)])
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            headers = {"Content-Type": "application/x-protobuf"}
            async with stage.session.post(f"http://{HOST}:{port}/v1/traces", data=payload, headers=headers) as answer:
                await answer.read()
        await asyncio.sleep(1 / MESSAGES_A_SECOND)

"""The siege: every attack at the same time, beside one good engine and one good client. SIEGE_SECONDS: how long (600).
SIEGE_ATTACKS="pipes idle": some of them, to find out which one breaks a demand. SIEGE_PACE=0.5: half of each rate, for
slow cores. SIEGE_MISSED=0.2: the share of collections that may be missed, where a machine has too few cores for all.

Nothing stops at the first thing that does not hold: a table at the end has a row for each demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median

import aiohttp

from tests.chaos.requests import good
from tests.chaos.requests.clients import page
from tests.chaos.requests.pages import Page
from tests.chaos.requests.stage import Fared, Ports, Program
from tests.chaos.requests.stage import Stage as RequestStage

from .attackers import ATTACKS, FLOODER, FLOODS
from .stage import HOST, ROOT, STALL_SECONDS, Stage, Told, _die_with_us, free_port

SECONDS = float(os.environ.get("SIEGE_SECONDS", "600"))
PACE = float(os.environ.get("SIEGE_PACE", "1"))
MISSED = float(os.environ.get("SIEGE_MISSED", "0"))
NAMES = os.environ.get("SIEGE_ATTACKS", "").split() or list(ATTACKS)
INTERVAL = 5.0
"""Seconds between the agent's collections: the default of the product."""
CALM_SECONDS = 20.0
"""How long the good client is measured before the siege."""
ADDED_P99_SECONDS = 0.005
"""By how much the siege may raise what the tap adds to the good client's p99."""
RESIDENT_MB, GROWTH_MB = 300.0, 40.0
"""Of the agent and of the tap: at the peak; and from the second quarter of the siege to its last, by medians."""
WAIT_SECONDS = 10 * STALL_SECONDS
"""For which a loop may do one thing by the clock, with the waits for a core of a small machine; in CPU time for
`STALL_SECONDS`."""

ENDS_SECONDS = 5.0
SAMPLE_SECONDS = 2.0
FLOOD_SECONDS = 10.0
"""For each of the floods that come alone."""

COUNTED_SECONDS = 120.0
"""Until everything that was accepted is a record and counted."""
LAST_ATTACK_SECONDS = 25.0
"""How long the attackers go on in the wave under which the programs are ended."""


@dataclass
class Table:
    """What was demanded, whether it held, and the figure."""

    rows: list[tuple[str, bool, str]] = field(default_factory=list)

    def add(self, demand: str, held: bool, figure: str) -> None:
        self.rows.append((demand, held, figure))

    async def checked(self, demand: str, check: Awaitable[None]) -> None:
        """Run a check that adds rows; one that cannot be carried out is a row that did not hold."""
        try:
            await check
        except Exception as error:
            self.add(demand, False, f"could not be checked: {type(error).__name__} {error}"[:200])

    def print(self) -> None:
        width = max((len(demand) for demand, _, _ in self.rows), default=0) + 2
        for demand, held, figure in self.rows:
            print(f"{'':6}{demand:{width}}{'held' if held else 'BROKEN':8}{figure}")


@dataclass
class Watched:
    """What one program showed during the siege."""

    resident: list[float] = field(default_factory=list)  # MB
    stalls: list[tuple[float, float]] = field(default_factory=list)  # the longest reported: seconds, CPU seconds of it
    pages_missing: int = 0


class Besieged(RequestStage):
    """Agent with every way in, tap, engine and good client, and what the attackers need: bombs for targets, a publisher
    of KV events, a file of targets."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, INTERVAL)
        self.tap_options = ("--drain=2s",)
        self.kv, self.labels, self.newlines, self.kinds = (free_port() for _ in range(4))
        self.targets = self.written / "targets.json"
        self.targets.write_text("[]")

    def configuration(self, ports: Ports, name: str) -> Path:
        file = super().configuration(ports, name)
        text = file.read_text().replace("discover = false\n", f'discover = false\ntargets_file = "{self.targets}"\n')
        bombs = {"labels": self.labels, "newlines": self.newlines, "kinds": self.kinds}
        targets = "".join(f'[[target]]\nurl = "http://{HOST}:{port}"\nname = "{n}"\n' for n, port in bombs.items())
        source = f'target = "http://{HOST}:{self.engine_port}"\nendpoint = "tcp://{HOST}:{self.kv}"\nbind = false\n'
        file.write_text(f"{text}{targets}[[kv_events.source]]\n{source}")
        return file

    async def compared_port(self) -> int:
        """Through a relay, which waits for the cores as the tap does, and is not attacked."""
        return await self.start_relay()

    @contextlib.asynccontextmanager
    async def attacked(self, seconds: float, attacks: Sequence[str] = NAMES) -> AsyncIterator[list[asyncio.Task[str]]]:
        """With the attackers at work, in two processes of their own; tasks with what they print."""
        groups = ([n for n in attacks if n == "kv_flood"], [n for n in attacks if n != "kv_flood"])
        processes = [await self._attackers(names, seconds) for names in groups if names]
        reports = [asyncio.create_task(_said(process)) for process in processes]
        try:
            yield reports
        finally:
            for process, report in zip(processes, reports, strict=True):
                report.cancel()
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _attackers(self, names: Sequence[str], seconds: float) -> asyncio.subprocess.Process:
        ports = {"tap": self.ports.tap, "http": self.ports.http, "grpc": self.ports.grpc}
        ports |= {"agent": self.ports.agent, "kv": self.kv}
        where = {"labels": self.labels, "newlines": self.newlines, "kinds": self.kinds}
        where |= {"log": self.flood_log, "targets": self.targets}
        told = json.dumps({"names": names, "seconds": seconds, "pace": PACE, **ports, **where}, default=str)
        with (self.home / "logs" / "attackers.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.faults.attackers", told),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={"PATH": os.environ.get("PATH", "")},
                start_new_session=True,
                preexec_fn=_die_with_us,
            )


async def siege(stage: Stage, told: Told) -> None:
    """Every attack for SIEGE_SECONDS: nothing is missed, lost, slow or large, and both programs end when asked to."""
    table, besieged = Table(), Besieged(stage.folder / "siege")
    async with besieged.running():
        await asyncio.sleep(2 * INTERVAL)
        await besieged.good()
        await asyncio.sleep(CALM_SECONDS)
        calm, began = await besieged.good(), time.time()
        watched = {"agent": Watched(), "tap": Watched()}
        async with besieged.attacked(SECONDS) as attackers:
            await _watch(besieged, watched, SECONDS)
            ended = time.time()
            reports = {name: said for task in attackers for name, said in json.loads(await task).items()}
        for name, report in reports.items():
            done = isinstance(report, dict) and any(report.values())
            table.add(f"attack carried out: {name}", done, _told(report))
        _processes(besieged, watched, table)
        await table.checked("no collection of the good engine missed", _looks(besieged, began, ended, table))
        await table.checked("the good client is served", _client(besieged, calm, table))
        await table.checked("nothing lost that was accepted", _ledger(besieged, reports, table))
        async with besieged.attacked(LAST_ATTACK_SECONDS):
            await asyncio.sleep(INTERVAL)
            for program in (besieged.agent, besieged.tap):
                await _ends(program, table)
    table.print()
    told.broken += [f"{demand}: {figure}" for demand, held, figure in table.rows if not held]
    told.said.append(
        f"{len(NAMES)} attacks for {SECONDS:.0f} s at {PACE:.0%} of their rates, {len(table.rows)} demands; nice 19"
    )


async def floods(stage: Stage, told: Told) -> None:
    """Floods that once stopped or starved the agent, one by one: its loop goes on, and others are served."""
    table, besieged = Table(), Besieged(stage.folder / "floods")
    async with besieged.running():
        await asyncio.sleep(2 * INTERVAL)
        for name in FLOODS:
            await besieged.good()
            watched = {"agent": Watched(), "tap": Watched()}
            async with besieged.attacked(FLOOD_SECONDS, [name]) as attackers:
                await _watch(besieged, watched, FLOOD_SECONDS)
                report = json.loads(await attackers[0])[name]
            seen, fared = watched["agent"], await besieged.good()
            table.add(f"{name}: carried out", isinstance(report, dict) and any(report.values()), _told(report))
            peak, (longest, cpu) = max(seen.resident, default=0.0), _longest(seen)
            table.add(f"{name}: resident under {RESIDENT_MB:.0f} MB", 0 < peak < RESIDENT_MB, f"{peak:.0f} MB")
            where = "" if cpu < STALL_SECONDS else f", {_where(besieged.agent)}"
            figure = f"{cpu * 1e3:.0f} ms, {longest * 1e3:.0f} ms by the clock{where}"
            table.add(f"{name}: stall under {STALL_SECONDS * 1e3:.0f} ms", cpu < STALL_SECONDS, figure)
            table.add(f"{name}: /metrics answered", not seen.pages_missing, f"{seen.pages_missing} not answered")
            served = f"{len(fared.latencies)} requests, {len(fared.broken)} broken {fared.broken[:1]}"
            table.add(f"{name}: the good client is served", bool(fared.latencies) and not fared.broken, served)
    table.print()
    told.broken += [f"{demand}: {figure}" for demand, held, figure in table.rows if not held]
    told.said.append(f"{len(FLOODS)} floods for {FLOOD_SECONDS:.0f} s each, {len(table.rows)} demands")


async def _watch(stage: Besieged, watched: dict[str, Watched], seconds: float) -> None:
    """Sample memory and the longest stall of both programs until the time is over."""
    programs = {"agent": (stage.agent, stage.ports.agent), "tap": (stage.tap, stage.ports.admin)}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, (program, port) in programs.items():
            if not program.ended:
                watched[name].resident.append(program.megabytes())
            try:
                text, _ = await asyncio.wait_for(page(stage.session, port), 10.0)
                now = Page(text)
                if now.samples("kvitals_loop_stall_seconds"):
                    cpu = now.total("kvitals_loop_stall_cpu_seconds")
                    watched[name].stalls.append((now.total("kvitals_loop_stall_seconds"), cpu))
            except (aiohttp.ClientError, TimeoutError):
                watched[name].pages_missing += 1
        await asyncio.sleep(min(SAMPLE_SECONDS, max(until - time.monotonic(), 0.0)))


def _processes(stage: Besieged, watched: dict[str, Watched], table: Table) -> None:
    """Both run, their memory is flat, and their loops never stood still."""
    for program in (stage.agent, stage.tap):
        name, seen = program.name, watched[program.name]
        table.add(f"{name}: runs", not program.ended, f"exit {program.process.returncode}" if program.ended else "yes")
        peak, quarter = max(seen.resident, default=0.0), len(seen.resident) // 4
        table.add(f"{name}: resident under {RESIDENT_MB:.0f} MB", 0 < peak < RESIDENT_MB, f"{peak:.0f} MB")
        early, late = seen.resident[quarter : 2 * quarter], seen.resident[-quarter:]
        grown = median(late) - median(early) if early and late else float("inf")
        table.add(f"{name}: grows under {GROWTH_MB:.0f} MB", grown < GROWTH_MB, f"{grown:+.0f} MB")
        table.add(f"{name}: /metrics always answered", not seen.pages_missing, f"{seen.pages_missing} not answered")
        longest, cpu = _longest(seen)
        for demand, took, limit in (("stall on the CPU", cpu, STALL_SECONDS), ("stall", longest, WAIT_SECONDS)):
            where = "" if took < limit else f", {_where(program)}"
            table.add(
                f"{name}: longest {demand} under {limit * 1e3:.0f} ms", took < limit, f"{took * 1e3:.0f} ms{where}"
            )


def _longest(seen: Watched) -> tuple[float, float]:
    """The longest stalls by the clock and on the CPU, seconds."""
    if not seen.stalls:
        return inf, inf
    return max(clock for clock, _ in seen.stalls), max(cpu for _, cpu in seen.stalls)


def _where(program: Program) -> str:
    """What the log has of the stall that took most CPU time."""
    found = re.findall(r"event loop stalled.*cpu_seconds=([0-9.]+).*where='?([^'\n]*)", program.log.read_text())
    return max(((float(cpu), where) for cpu, where in found), default=(0.0, "nothing logged"))[1]


async def _looks(stage: Besieged, began: float, ended: float, table: Table) -> None:
    """The good engine has a sample for every cycle of the siege, and was up in each."""
    asked = {"query": f'kvitals_target_up{{engine="engine"}}[{ended - began:.0f}s]', "time": f"{ended:.3f}"}
    await stage.until(lambda now: True, COUNTED_SECONDS)  # how soon it answers again is a demand of its own
    async with stage.session.get(f"http://{HOST}:{stage.ports.agent}/api/v1/query", params=asked) as answer:
        found = (await answer.json())["data"]["result"]
    samples = [(float(t), float(value)) for t, value in found[0]["values"]] if found else []
    times = [began, *(t for t, value in samples if value == 1), ended]
    missed = sum(max(round((b - a) / INTERVAL) - 1, 0) for a, b in pairwise(times))
    longest, due = max(b - a for a, b in pairwise(times)), (ended - began) / INTERVAL
    figure = f"{missed} of {due:.0f} missed, longest gap {longest:.1f} s"
    allowed = f"at most {MISSED:.0%} of the collections" if MISSED else "no collection"
    table.add(f"{allowed} of the good engine missed", missed <= MISSED * due, figure)


async def _client(stage: Besieged, calm: Fared, table: Table) -> None:
    """What the tap adds to the good client's p99 is what it added before; the same requests through a relay that only
    passes bytes on, sent at the same time, pay the same waits for the cores."""
    under = await stage.good()
    before, during = ((one.p99 - one.p99_direct) for one in (calm, under))
    table.add("good client: no request broken", not under.broken, f"{len(under.broken)} broken {under.broken[:1]}")
    table.add(
        f"good client: siege adds under {ADDED_P99_SECONDS * 1e3:.0f} ms at p99",
        during - before < ADDED_P99_SECONDS,
        f"{(during - before) * 1e3:+.1f} ms: tap {during * 1e3:.1f} ms above a relay, before {before * 1e3:.1f} ms; "
        f"{len(under.latencies)} requests, p99 {under.p99 * 1e3:.0f} ms, relay {under.p99_direct * 1e3:.0f} ms",
    )


async def _ledger(stage: Besieged, reports: dict[str, dict[str, float]], table: Table) -> None:
    """Every span that was accepted, every line and every request through the tap is counted for its tenant."""
    fared = await stage.good("stop")
    flood = reports.get("otlp_flood", {})
    names = {"tap": good.BY_TAP, "otlp": good.BY_OTLP, "log": good.BY_LOG, "flood": FLOODER}
    pseudonyms = {way: stage.pseudonym(name) for way, name in names.items()}
    accepted = fared.sent | ({"flood": int(flood.get("accepted", 0))} if "otlp_flood" in NAMES else {})
    sent = accepted | {"flood": int(flood.get("sent", 0))}  # an exporter whose call timed out does not know

    def counted(now: Page) -> dict[str, float]:
        by = now.by("tenant", "kvitals_tenant_requests_total")
        return {way: by.get(pseudonyms[way], 0.0) for way in accepted}

    await stage.until(lambda now: all(counted(now)[way] >= count for way, count in accepted.items()), COUNTED_SECONDS)
    found = counted(await stage.page())
    dropped = (await stage.tap_page()).total("kvitals_tap_parts_dropped_total")
    for way, count in accepted.items():
        least = count - dropped if way == "tap" else count
        figure = f"{found[way]:,.0f} counted of {count:,} accepted" + (
            f", the tap dropped {dropped:.0f}" * (way == "tap")
        )
        table.add(f"nothing lost that was accepted: {way}", 0 < least <= found[way] <= sent[way], figure)


async def _ends(program: Program, table: Table) -> None:
    """SIGTERM ends it while the attackers are at work."""
    began = time.monotonic()
    await program.stop(4 * ENDS_SECONDS)
    took = time.monotonic() - began
    table.add(f"{program.name}: SIGTERM ends it within {ENDS_SECONDS:.0f} s", took < ENDS_SECONDS, f"{took:.1f} s")


def _told(report: dict[str, float] | str) -> str:
    """What an attack did, or why it ended."""
    return ", ".join(f"{what} {count:,}" for what, count in report.items()) if isinstance(report, dict) else report


async def _said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.read()).decode() or "{}"

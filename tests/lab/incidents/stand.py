"""Puts an incident's servers up, plays it, and keeps the truth.

async with stand(incident, lab) as it:
    await it.play()                  # baseline and incident
it.truth()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from ..engines import Engines, FlagValue
from ..load import TENANT_HEADER, Load
from ..measures import signature
from ..metrics import Watch
from ..paths import ENGINE_SIDE, HOME, MODEL, PYTHON, LabError
from ..ports import HOST
from ..product import configuration
from ..programs import Programs
from ..scenario import Scenario
from ..systems import Site, site_of
from ..traffic import InfiniteCache
from .incident import Act, Incident

ENVIRONMENT = {"PYTHONPATH": str(ENGINE_SIDE / "host_tier"), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Of the fork server: engines with a host tier find its specification there; adapters can be loaded later."""
ADAPTERS = HOME / "adapters"
DRAIN_S = 1.0
RECORDER_LIMIT_S = 180.0
NEIGHBOURS_LIMIT_S = 120.0
"""They end by then, whatever becomes of the lab."""


@dataclass
class Played:
    """One phase: its load, and what each server counted in it."""

    name: str
    load: Load
    servers: dict[str, dict[str, Any]]


@dataclass
class Stand:
    """Everything up and warm."""

    incident: Incident
    site: Site
    lab: Engines | None
    door: Sequence[str]
    api: str = ""
    """Of the recorder that a tap tells what it sees."""
    programs: Programs | None = None
    phases: list[Played] = field(default_factory=list)
    acts: list[tuple[str, str, float]] = field(default_factory=list)
    acted: float | None = None
    """When the last act was complete, as that a restarted engine serves again; seconds since the epoch."""
    _draining: list[asyncio.Task[None]] = field(default_factory=list)
    _lasting: list[asyncio.Task[None]] = field(default_factory=list)

    async def play(
        self,
        baseline_s: float,
        incident_s: float,
        *,
        end: Callable[[], Awaitable[None]],
        after_acts: bool = False,
    ) -> None:
        """Baseline and incident; `end` is awaited when the incident has lasted so long and its load is still on.

        after_acts: the incident lasts so long once its acts are complete. A restart takes longer than a short incident.
        """
        scenario = self.incident.scenario
        cache = InfiniteCache(scenario.block_size)
        for name, seconds in (("baseline", baseline_s), ("incident", incident_s)):
            tenants = scenario.baseline if name == "baseline" else scenario.incident
            async with self._playing(name, tenants, cache):
                acting = asyncio.create_task(self._act()) if name == "incident" else None
                if acting is not None and after_acts:
                    await acting
                await asyncio.sleep(seconds)
                if acting is not None:
                    await acting
                    await end()

    async def end_recording(self) -> None:
        assert self.programs is not None
        await self.programs.stop("agent")

    async def settle(self) -> None:
        await asyncio.gather(*self._draining)

    @contextlib.asynccontextmanager
    async def _playing(self, name: str, tenants: Any, cache: InfiniteCache) -> AsyncIterator[None]:
        seed = f"{self.incident.run}/{name}"
        load = Load(self._doors(name), tenants, cache=cache, seed=seed, sticky=self.incident.sticky)
        async with contextlib.AsyncExitStack() as undo:
            watches = {server.name: await undo.enter_async_context(Watch(server.url)) for server in self.site.watched}
            await load.start()
            try:
                yield
            finally:
                await self._end_lasting()
                load.stop_sending()
                self._draining.append(asyncio.create_task(load.drain(DRAIN_S)))
        servers = {
            server.name: {} if watches[server.name].lost else signature(watches[server.name], server.dialect)
            for server in self.site.watched
        }
        self.phases.append(Played(name, load, servers))

    def _doors(self, phase: str) -> Sequence[str]:
        """Where clients send, in turn; one that gets more than its share stands there more often."""
        if phase == "baseline" or not self.incident.shares:
            return self.door
        return [door for door, share in zip(self.door, self.incident.shares, strict=True) for _ in range(share)]

    async def _end_lasting(self) -> None:
        for task in self._lasting:
            task.cancel()
        await asyncio.gather(*self._lasting, return_exceptions=True)
        self._lasting.clear()

    async def _act(self) -> None:
        began = time.monotonic()
        for act in self.incident.acts:
            await asyncio.sleep(max(0.0, began + act.after_s - time.monotonic()))
            self.acts.append((act.do, act.engine, round(time.time(), 3)))
            await self._do(act)
        self.acted = time.time()

    async def _do(self, act: Act) -> None:
        if act.do == "neighbours":
            self._lasting.append(asyncio.create_task(neighbours(act.number)))
            return
        if act.do == "swap_adapter":
            await _swap_adapter(self.site.doors[0])
            return
        assert self.lab is not None, "only engines of the fork server can be acted upon"
        match act.do:
            case "kill":
                await self.site.kill(act.engine)
            case "restart":
                await self.lab.restart(act.engine)
            case "stop_core":
                self.lab.stop_core(act.engine)
            case "pause":
                await self.lab.pause(act.engine, act.seconds)
            case "pauses":
                self._lasting.append(asyncio.create_task(self.lab.pauses(act.engine, act.share)))

    async def warm(self) -> None:
        """First requests are slow and first sights of a prompt are misses: have both before anything is recorded."""
        for server in self.site.doors:
            async with Load([server], (), seed="warm", drain_s=DRAIN_S) as load:
                await load.warm(self.incident.scenario.baseline)

    def truth(self) -> dict[str, Any]:
        """What was done, and what clients and servers saw of it. The label is in the catalogue."""
        scenario = self.incident.scenario
        return {
            "incident": self.incident.name,
            "seed": self.incident.seed,
            "drawn": self.incident.drawn,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "slo": asdict(scenario.slo),
            "began": round(self.phases[-1].load.started or 0.0, 3),
            "acts": self.acts,
            "phases": [{"name": p.name, **p.load.truth(), "engines": p.servers} for p in self.phases],
        }


async def _swap_adapter(url: str) -> None:
    """Load one more adapter, under a name of its own, and unload it."""
    adapter = {"lora_name": "late", "lora_path": str(adapters(1)[0])}
    async with aiohttp.ClientSession() as session:
        for what, asked in (("load", adapter), ("unload", {"lora_name": "late"})):
            async with session.post(f"{url}/v1/{what}_lora_adapter", json=asked) as answer:
                if answer.status != HTTPStatus.OK:
                    raise LabError(f"no adapter can be {what}ed: {answer.status} {await answer.text()}")


async def neighbours(number: int) -> None:
    """Processes that compute all the time, each in a scheduling group of its own, until this is cancelled."""
    command = ["timeout", f"{NEIGHBOURS_LIMIT_S:.0f}", sys.executable, "-c", "while True: pass"]
    others = [await asyncio.create_subprocess_exec(*command, start_new_session=True) for _ in range(number)]
    try:
        await asyncio.gather(*(other.wait() for other in others))
    finally:
        for other in others:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(other.pid, signal.SIGKILL)
        await asyncio.gather(*(other.wait() for other in others))


@contextlib.asynccontextmanager
async def stand(
    incident: Incident, lab: Engines | None, kvitals: Sequence[str], capture: Path | None = None
) -> AsyncIterator[Stand]:
    """Put it up; with `capture` the product records from when all is warm until `end_recording`."""
    async with contextlib.AsyncExitStack() as undo:
        ports = await undo.enter_async_context(Programs())
        scenario = replace(incident.scenario, **_further(incident, ports))
        site = await undo.enter_async_context(site_of(scenario, lab))
        built = Stand(incident, site, lab, site.doors)
        if incident.warm:
            await built.warm()
        built.programs = programs = await undo.enter_async_context(Programs())
        if capture is not None or incident.tap:
            built.api = await _agent(programs, kvitals, built, capture)
        if incident.tap:
            built.door = [await _tap(programs, kvitals, built)]
        yield built


def _further(incident: Incident, ports: Programs) -> dict[str, Any]:
    """The scenario's flags with those that need a port or a file."""
    scenario: Scenario = incident.scenario
    flags: dict[str, FlagValue] = {**scenario.flags}
    apart = {name: dict(own) for name, own in scenario.apart.items()}
    if incident.host_tier:
        flags["kv_transfer_config"] = _json(_offloading(incident.host_tier))
    if incident.adapters:
        made = adapters(incident.adapters)
        flags["lora_modules"] = tuple(f"{file.name}={file}" for file in made)
    if incident.kv_events:
        for name in scenario.engines:
            endpoint = f"tcp://*:{ports.port().number}"
            config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint, "topic": "kv"}
            apart[name] = {**apart.get(name, {}), "kv_events_config": _json(config)}
    return {"flags": flags, "apart": apart}


def _offloading(said: Mapping[str, Any]) -> dict[str, Any]:
    extra = {"spec_name": "HostTierSpec", "spec_module_path": "kvitals_lab_host_tier", "block_size": 32, **said}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))  # a process title has no other way to tell arguments apart


def adapters(count: int) -> list[Path]:
    """So many adapters for the lab's model, made where they are missing."""
    files = [ADAPTERS / f"a{number}" for number in range(count)]
    if not all((file / "adapter_config.json").exists() for file in files):
        maker = ENGINE_SIDE / "make_adapters.py"
        command = [str(PYTHON), str(maker), str(MODEL), str(ADAPTERS), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise LabError(f"no adapters could be made: {done.stderr[-500:]}")
    return files


async def _agent(programs: Programs, kvitals: Sequence[str], built: Stand, capture: Path | None) -> str:
    """The product, which records where there is to be a capture, and else runs."""
    port = programs.port()
    config = programs.folder / "incident.toml"
    interval = configuration(built.site.watched).replace("[agent]\n", '[agent]\ninterval = "1s"\n', 1)
    slo = built.incident.scenario.slo
    objectives = f"[slo]\nttft_p99_seconds = {slo.ttft_p99:g}\nitl_p99_seconds = {slo.itl_p99:g}\n"
    config.write_text(f'{interval}\n{objectives}[tenants]\nheaders = ["{TENANT_HEADER.lower()}"]\n')
    command = ["run", "--no-web"] if capture is None else ["record", f"--out={capture}", f"--for={RECORDER_LIMIT_S}s"]
    command += [f"--listen={HOST}:{port.number}", f"--config={config}"]
    await programs.start("agent", [*kvitals, *command], ready=f"{port.url}/-/healthy", env=_home(programs))
    return port.url


async def _tap(programs: Programs, kvitals: Sequence[str], built: Stand) -> str:
    listen, admin = programs.port(), programs.port()
    command = [
        *("tap", f"--upstream={built.site.doors[0]}", f"--listen={HOST}:{listen.number}"),
        *(f"--admin={HOST}:{admin.number}", f"--agent={built.api}", f"--config={programs.folder / 'incident.toml'}"),
    ]
    await programs.start("tap", [*kvitals, *command], ready=f"{admin.url}/metrics", env=_home(programs))
    return listen.url


def _home(programs: Programs) -> dict[str, str]:
    home = programs.folder / "home"
    home.mkdir(exist_ok=True)
    return {"XDG_STATE_HOME": str(home)}

"""Engines that trace, the agent that listens to them, and the tap in front.

    async with rig(Stand("vllm"), kvitals) as built:
        built.door                 # the tap: where clients send
        await built.records(ids)   # what the agent says of their requests

The agent is `kvitals run`, or `kvitals record` where it is to leave a recording.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import aiohttp

from ..engines import Engines, FlagValue
from ..install import require
from ..paths import LabError
from ..ports import HOST
from ..product import configuration
from ..programs import Programs
from ..scenario import Scenario, Slo, SystemName
from ..systems import ON_FORK_SERVER, Server, site_of

PATIENCE_S = 40.0
"""Engines hold spans for 5 s, the agent a request for 7 s after the last one."""
NEWEST = 1000
ASK_EVERY_S = 0.5
LONGEST_S = 900

ENGINES: dict[SystemName, tuple[str, ...]] = {"vllm": ("engine",), "sglang": ("engine",), "pd": ("prefill", "decode")}


@dataclass(frozen=True)
class Stand:
    """What a play needs."""

    system: SystemName
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    apart: Mapping[str, Mapping[str, FlagValue]] = field(default_factory=dict)
    """Several vLLM engines instead of one: their names, each with further flags."""
    door: Literal["site", "router"] = "site"
    """What is behind the tap: the system's own door, or vLLM's published router for pairs."""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tenants by class, as the agent's configuration has them: the agent knows these names."""
    more: str = ""
    """Further tables of the agent's and the tap's configuration."""


@dataclass
class Rig:
    """All of it, up."""

    door: str
    straight: str  # the system's own door
    api: str
    engines: tuple[Server, ...]
    session: aiohttp.ClientSession
    programs: Programs
    key: bytes  # of pseudonyms

    async def records(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """The records of these requests, as soon as all are there, or what there is of them after a while."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            await self.programs.check()
            told = await self._asked("/api/v1/requests", {"newest": str(NEWEST)})
            found = {one["id"]: one for one in told["requests"] if one["id"] in ids}
            if len(found) == len(set(ids)) or time.monotonic() > deadline:
                return found
            await asyncio.sleep(ASK_EVERY_S)

    async def everything(self) -> list[dict[str, Any]]:
        """The newest records, the latest first."""
        told = await self._asked("/api/v1/requests", {"newest": str(NEWEST)})
        found: list[dict[str, Any]] = told["requests"]
        return found

    async def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """What an instant query gives."""
        told = await self._asked("/api/v1/query", {"query": promql})
        return [(one["metric"], float(one["value"][1])) for one in told["result"]]

    async def _asked(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        async with self.session.get(f"{self.api}{path}", params=dict(parameters)) as response:
            answer: dict[str, Any] = await response.json()
        if answer.get("status") != "success":
            raise LabError(f"the agent's API does not answer {path}: {answer}")
        data: dict[str, Any] = answer["data"]
        return data


@contextlib.asynccontextmanager
async def rig(stand: Stand, kvitals: Sequence[str], capture: Path | None = None) -> AsyncIterator[Rig]:
    """Put it up; with `capture` the agent records. The recording is whole when the block is left."""
    async with contextlib.AsyncExitStack() as undo:
        session = await undo.enter_async_context(aiohttp.ClientSession())
        ports = await undo.enter_async_context(Programs())
        home = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        otlp = ports.port().number
        traced = _scenario(stand, otlp)
        lab = None
        if stand.system in ON_FORK_SERVER:
            lab = await undo.enter_async_context(Engines({"OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true"}))
        site = await undo.enter_async_context(site_of(traced, lab))
        straight = site.doors[0]
        # Ends before the engines do, so that a recording has nothing of their going.
        programs = await undo.enter_async_context(Programs())
        behind = await _router(programs, site.watched) if stand.door == "router" else straight
        config = home / "kvitals.toml"
        config.write_text(_configuration(site.watched, otlp, stand.classes) + stand.more)
        key = home / "tenant.key"
        key.touch(mode=0o600)
        key.write_bytes(secret := secrets.token_bytes(32))
        env = {"XDG_STATE_HOME": str(home), "KVITALS_TENANT_KEY_FILE": str(key)}
        api = await _agent(programs, kvitals, config, env, capture)
        door = await _tap(programs, kvitals, config, env, behind, api, several=len(site.watched) > 1)
        yield Rig(door, straight, api, site.watched, session, programs, secret)


def _scenario(stand: Stand, otlp: int) -> Scenario:
    """The system as the lab builds it, with tracing on."""
    where = f"{HOST}:{otlp}"
    tracing: dict[str, FlagValue] = {"otlp_traces_endpoint": f"grpc://{where}"}
    if stand.system == "sglang":
        require("sglang-traces")
        tracing = {"enable_trace": True, "otlp_traces_endpoint": where, "otlp_service_name": ENGINES["sglang"][0]}
    nothing = Scenario(wrong="", expect=(), slo=Slo(2.0, 0.5), baseline=(), incident=())
    engines = tuple(stand.apart) or ENGINES[stand.system]
    flags = {**stand.flags, **tracing}
    return replace(nothing, system=stand.system, engines=engines, flags=flags, apart=stand.apart)


def _configuration(servers: Sequence[Server], otlp: int, classes: Mapping[str, Sequence[str]]) -> str:
    tables = [
        configuration(servers).replace("[agent]\n", '[agent]\ninterval = "1s"\n', 1),
        f'[otlp]\ngrpc = "{HOST}:{otlp}"\nhttp = ""',
        '[tenants]\nheaders = ["x-tenant-id"]',
    ]
    if classes:
        tables.append("[tenants.classes]")
        tables += [f"{name} = [{', '.join(map(_quoted, names))}]" for name, names in classes.items()]
    return "\n".join(tables) + "\n"


def _quoted(text: str) -> str:
    return f'"{text}"'


async def _agent(
    programs: Programs, kvitals: Sequence[str], config: Path, env: Mapping[str, str], capture: Path | None
) -> str:
    port = programs.port()
    command = ["run", "--no-web"] if capture is None else ["record", f"--out={capture}", f"--for={LONGEST_S}s"]
    command += [f"--listen={HOST}:{port.number}", f"--config={config}"]
    await programs.start("agent", [*kvitals, *command], ready=f"{port.url}/-/healthy", env=env)
    return port.url


async def _tap(
    programs: Programs,
    kvitals: Sequence[str],
    config: Path,
    env: Mapping[str, str],
    behind: str,
    api: str,
    several: bool,
) -> str:
    listen, admin = programs.port(), programs.port()
    command = [
        *("tap", f"--upstream={behind}", f"--listen={HOST}:{listen.number}", f"--admin={HOST}:{admin.number}"),
        *(f"--agent={api}", f"--config={config}", *(["--router"] if several else [])),
    ]
    await programs.start("tap", [*kvitals, *command], ready=f"{admin.url}/metrics", env=env)
    return listen.url


async def _router(programs: Programs, servers: Sequence[Server]) -> str:
    """vLLM's router before a prefill and a decode engine."""
    recipe = require("router")
    port, metrics = programs.port(), programs.port()
    prefill, decode = (next(s.url for s in servers if s.role == role) for role in ("prefill", "decode"))
    command = [
        *(str(recipe.folder / "bin" / "vllm-router"), "--vllm-pd-disaggregation", "--kv-connector", "nixl"),
        *("--prefill", prefill, "--decode", decode, "--host", HOST, "--port", str(port.number)),
        *("--prometheus-host", HOST, "--prometheus-port", str(metrics.number), "--log-level", "warning"),
    ]
    await programs.start("router", command, ready=f"{port.url}/health")
    return port.url


def load_average() -> str:
    """How busy the machine is, to stand beside what was timed."""
    return f"{os.getloadavg()[0]:.1f}"

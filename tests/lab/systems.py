"""The systems a scenario may need, each started and ended by a `with` block:

    async with site_of(scenario, lab) as site:
        site.doors                 # where clients send
        site.watched               # what the product looks at

vllm    engines of the fork server, clients send to each in turn
pd      a prefill and a decode engine of the fork server that pass KV over NIXL, behind the lab's own proxy
sglang  SGLang on its pure torch path
dynamo  Dynamo's frontend with its KV router, and one mocker process for each worker
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .engines import Engines, FlagValue
from .install import require
from .measures import DYNAMO_FRONTEND, DYNAMO_WORKER, SGLANG, VLLM, VLLM_NIXL, Measure
from .paths import ENGINE_SIDE, MODEL, LabError
from .ports import HOST
from .programs import Programs
from .scenario import Scenario

ON_FORK_SERVER = ("vllm", "pd")

SGLANG_FLAGS: dict[str, FlagValue] = {
    "model_path": str(MODEL),
    "served_model_name": "tiny",
    "host": HOST,
    "load_format": "dummy",
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "max_total_tokens": 4096,
    "enable_metrics": True,
    "enable_cache_report": True,
}

MOCKER_FLAGS: dict[str, FlagValue] = {
    "model_path": str(MODEL),
    "model_name": "tiny",
    "num_gpu_blocks_override": 512,
    "block_size": 32,
    "max_num_seqs": 16,
    "speedup_ratio": 1,
}

DYNAMO_ENVIRONMENT = {
    "DYN_DISCOVERY_BACKEND": "file",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
    "DYN_SYSTEM_HOST": HOST,
    "DYN_TCP_RPC_HOST": HOST,
    "DYN_TCP_RESPONSE_STREAM_HOST": HOST,
    "DYN_EVENT_PLANE_HOST": HOST,
}
"""Neither etcd nor NATS: workers are found by files, asked over TCP and tell of their blocks over ZeroMQ."""

UCX = {"UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "lo"}
"""What NIXL moves KV with on a machine without RDMA."""


@dataclass(frozen=True)
class Server:
    """Something the product looks at: its metrics are at `url`/metrics."""

    name: str
    url: str
    dialect: Mapping[str, Measure]
    role: str = ""
    log: Path | None = None


@dataclass(frozen=True)
class Site:
    """A scenario's servers, up and serving."""

    watched: tuple[Server, ...]
    doors: tuple[str, ...]
    check: Callable[[], Awaitable[None]]
    """Raises LabError when one has died that nobody killed."""
    kill: Callable[[str], Awaitable[None]]


def site_of(scenario: Scenario, lab: Engines | None) -> AbstractAsyncContextManager[Site]:
    """The servers of a scenario; `lab` is the fork server that vLLM's are to be started from."""
    if scenario.system == "sglang":
        return _sglang(scenario)
    if scenario.system == "dynamo":
        return _dynamo(scenario)
    assert lab is not None, "vLLM engines need a fork server"
    return _vllm(scenario, lab) if scenario.system == "vllm" else _pair(scenario, lab)


def arguments(flags: Mapping[str, FlagValue]) -> list[str]:
    """Flags as a command line: a value sets one, True sets a switch, False and None leave it out."""
    words: list[str] = []
    for name, value in flags.items():
        dashed = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(dashed)
        elif value is not None and value is not False:
            words += [dashed, str(value)]
    return words


@asynccontextmanager
async def _vllm(scenario: Scenario, lab: Engines) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as undo:
        servers = []
        for name in scenario.engines:
            flags = {**scenario.flags, **scenario.apart.get(name, {})}
            engine = await lab.start(name, None, **flags)
            undo.push_async_callback(lab.stop, name)
            servers.append(Server(name, engine.url, VLLM, log=engine.log))
        yield Site(tuple(servers), tuple(server.url for server in servers), lab.check, lab.kill)


@asynccontextmanager
async def _pair(scenario: Scenario, lab: Engines) -> AsyncIterator[Site]:
    require("nixl")
    async with Programs() as programs, contextlib.AsyncExitStack() as undo:
        servers: dict[str, Server] = {}
        for role in ("prefill", "decode"):
            env = UCX | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(programs.port().number)}
            transfer = transfer_config(scenario.pair.lease_s)
            own = {**scenario.flags, **scenario.apart.get(role, {})}
            engine = await lab.start(role, env, **own, kv_transfer_config=transfer)
            undo.push_async_callback(lab.stop, role)
            servers[role] = Server(role, engine.url, VLLM_NIXL, role, engine.log)
        door = programs.port()
        proxy = [sys.executable, str(ENGINE_SIDE / "pd_proxy.py")]
        flags: dict[str, FlagValue] = {
            "port": door.number,
            "prefill": servers["prefill"].url,
            "decode": servers["decode"].url,
            "hand_over": scenario.pair.hand_over_s,
            "retry": scenario.pair.retry_s,
            "hangs_up": scenario.pair.hangs_up or None,
        }
        await programs.start("proxy", [*proxy, *arguments(flags)], ready=f"{door.url}/health")

        async def check() -> None:
            await lab.check()
            await programs.check()

        yield Site(tuple(servers.values()), (door.url,), check, lab.kill)


def transfer_config(lease_s: int) -> str:
    """vLLM's --kv-transfer-config for either side of a pair."""
    return json.dumps(
        {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"kv_lease_duration": lease_s},
        },
        separators=(",", ":"),  # without blanks: a process title has no other way to tell arguments apart
    )


@asynccontextmanager
async def _sglang(scenario: Scenario) -> AsyncIterator[Site]:
    recipe = require("sglang")
    async with Programs() as programs:
        servers = []
        for name in scenario.engines:
            port = programs.port()
            flags = SGLANG_FLAGS | dict(scenario.flags) | {"port": port.number}
            command = [str(recipe.python), "-m", "sglang.launch_server", *arguments(flags)]
            hollow = {"PYTHONPATH": str(ENGINE_SIDE / "sglang_cpu")}
            # /health asks the engine itself for a token, and answers 503 until the first one came.
            await programs.start(name, command, ready=f"{port.url}/health", env=hollow)
            servers.append(Server(name, port.url, SGLANG, log=programs.log(name)))
        yield Site(tuple(servers), tuple(server.url for server in servers), programs.check, _cannot_kill)


@asynccontextmanager
async def _dynamo(scenario: Scenario) -> AsyncIterator[Site]:
    recipe = require("dynamo")
    async with Programs() as programs:
        environment = DYNAMO_ENVIRONMENT | {"DYN_FILE_KV": str(programs.folder / "discovery")}
        (programs.folder / "discovery").mkdir(exist_ok=True)
        servers = []
        worker_flags = MOCKER_FLAGS | dict(scenario.flags)
        for name in scenario.engines:
            port = programs.port()
            command = [str(recipe.python), "-m", "dynamo.mocker", *arguments(worker_flags)]
            own = environment | {"DYN_SYSTEM_PORT": str(port.number)}
            await programs.start(name, command, ready=f"{port.url}/metrics", env=own)
            servers.append(Server(name, port.url, DYNAMO_WORKER, log=programs.log(name)))
        port = programs.port()
        frontend: dict[str, FlagValue] = {
            "http_host": HOST,
            "http_port": port.number,
            "router_mode": "kv",
            "kv_cache_block_size": worker_flags["block_size"],
        }
        command = [str(recipe.python), "-m", "dynamo.frontend", *arguments(frontend)]
        workers = len(scenario.engines)
        # It knows of workers a moment before it takes requests for the model.
        await programs.start("frontend", command, ready=f"{port.url}/health", env=environment)
        await programs.until_ready("frontend", f"{port.url}/health", lambda body: workers_in(body) >= workers)
        await programs.until_ready("frontend", f"{port.url}/v1/models", lambda body: '"tiny"' in body)
        servers.insert(0, Server("frontend", port.url, DYNAMO_FRONTEND, log=programs.log("frontend")))
        yield Site(tuple(servers), (port.url,), programs.check, _cannot_kill)


def workers_in(health: str) -> int:
    """How many workers a Dynamo frontend's /health says it can send requests to."""
    instances = json.loads(health).get("instances", [])
    return sum(1 for instance in instances if instance.get("endpoint") == "generate")


async def _cannot_kill(name: str) -> None:
    raise LabError(f"{name}: only engines of the fork server are killed in a scenario")

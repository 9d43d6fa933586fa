"""Real vLLM engines on this machine, for as long as a `with` block lasts.

    async with engine(max_num_seqs=2) as one:          # a fork server and one engine
        print(one.url)                                 # http://127.0.0.1:8201

    async with Engines() as lab:                       # several engines share one fork server
        a = await lab.start("a", num_gpu_blocks_override=129)
        b = await lab.start("b", enable_prefix_caching=False)

Flags are vLLM's own, with underscores: a value sets one, a tuple sets one that takes several, True and False set and
negate a switch, None takes away one of the defaults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import aiohttp

from .install import require
from .paths import ENGINE_SIDE, MODEL, PYTHON, RUN, LabError
from .ports import HOST, Port

FlagValue = str | int | float | bool | tuple[str, ...] | None

IMPORT_TIMEOUT_S = 240.0
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0

DEFAULT_FLAGS: dict[str, FlagValue] = {
    "model": str(MODEL),
    "served_model_name": "tiny",
    "host": HOST,
    "load_format": "dummy",
    "dtype": "float32",  # 4 to 6 times faster than bfloat16 without AVX-512
    "enforce_eager": True,
    "max_model_len": 2048,
    "block_size": 32,
    "num_gpu_blocks_override": 1024,
    "max_num_seqs": 16,
    "kv_cache_metrics": True,
    "kv_cache_metrics_sample": 1.0,
    "enable_prompt_tokens_details": True,
}

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets a CPU engine do with two processes instead of three
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "KVITALS_LAB_TITLE_ROOM": " " * 4096,  # a process title is written over the environment it started with
}


def command_line(flags: Mapping[str, FlagValue]) -> list[str]:
    """The flags as vLLM's arguments, defaults included.

    >>> command_line({"max_num_seqs": 2, "enable_prefix_caching": False})[-3:]
    ['--max-num-seqs', '2', '--no-enable-prefix-caching']
    """
    arguments: list[str] = []
    merged = {name: value for name, value in DEFAULT_FLAGS.items() if name not in flags} | dict(flags)
    for name, value in merged.items():
        dashed = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{dashed}" if value else f"--no-{dashed}")
        elif isinstance(value, tuple):
            arguments += [f"--{dashed}", *value]
        else:
            arguments += [f"--{dashed}", str(value)]
    return arguments


@dataclass(frozen=True)
class Engine:
    """A running engine. `pid` is its API server, whose command line is what an operator's would be."""

    name: str
    url: str
    pid: int
    flags: Mapping[str, FlagValue]
    log: Path
    start_s: float
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def block_size(self) -> int:
        return int(self.flags.get("block_size") or DEFAULT_FLAGS["block_size"] or 16)

    def log_tail(self, lines: int = 15) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Engines:
    """A fork server and the engines it started. Leaving the block ends all of them."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = dict(env or {})
        self._folder = RUN / str(os.getpid())
        self._running: dict[str, Engine] = {}
        self._started: dict[str, Engine] = {}  # by name, the latest; also what was killed since
        self._ports: dict[str, Port] = {}
        self._server: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._asked = 0

    @property
    def running(self) -> list[Engine]:
        return list(self._running.values())

    async def __aenter__(self) -> Self:
        require("vllm")
        sweep(RUN)
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            await self._launch()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if self._server is not None:
                await self._shut_down(self._server)
        finally:
            self._server = None
            self._running.clear()
            for port in self._ports.values():
                port.release()
            self._ports.clear()

    async def start(self, name: str = "engine", env: Mapping[str, str] | None = None, **flags: FlagValue) -> Engine:
        """Start one engine and wait until it serves. Names are unique among the engines of this block."""
        if name in self._ports:
            raise LabError(f"there is an engine called {name!r} already")
        port = self._ports[name] = Port.take()
        return await self._start_at(port, name, dict(env or {}), flags)

    async def _start_at(self, port: Port, name: str, env: Mapping[str, str], flags: Mapping[str, FlagValue]) -> Engine:
        started = time.monotonic()
        arguments = command_line({"seed": port.number, **flags, "port": port.number})
        log = self._folder / f"{name}.log"
        answer = await self._ask(
            do="start",
            name=name,
            argv=arguments,
            title=" ".join(["python", "-m", "vllm.entrypoints.openai.api_server", *arguments]),
            env=self._env | dict(env),
            log=str(log),
        )
        url = port.url
        pending = Engine(name, url, answer["pid"], flags, log, start_s=0.0, env=env)
        try:
            await self._until_healthy(pending)
        except BaseException:
            await self._forget(name)
            raise
        ready = replace(pending, start_s=time.monotonic() - started)
        self._running[name] = self._started[name] = ready
        return ready

    async def stop(self, name: str) -> None:
        """End one engine; its name and port are free again."""
        if name not in self._ports:
            raise LabError(f"no engine called {name!r} is running")
        await self._forget(name)

    async def kill(self, name: str) -> None:
        """End one engine as a crash would, without a word to anyone; its name and port stay taken."""
        if self._running.pop(name, None) is None:
            raise LabError(f"no engine called {name!r} is running")
        await self._ask(do="kill", names=[name])

    async def restart(self, name: str, **changed: FlagValue) -> Engine:
        """End one engine as a crash would and start it anew, on the same port, with the same flags but `changed`."""
        old = self._started[name]
        if name in self._running:
            await self.kill(name)
        return await self._start_at(self._ports[name], name, old.env, {**old.flags, **changed})

    def stop_core(self, name: str) -> None:
        """Stop the process that computes, as a deadlock would, and leave the one that answers HTTP."""
        for core in self._cores(name):
            os.kill(core, signal.SIGSTOP)

    async def pause(self, name: str, seconds: float) -> None:
        """Stop the process that computes, and let it go on."""
        cores = self._cores(name)
        try:
            for core in cores:
                os.kill(core, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            for core in cores:
                os.kill(core, signal.SIGCONT)

    async def pauses(self, name: str, share: float, every_s: float = 0.5) -> None:
        """Stop the process that computes for a share of each `every_s` seconds, until this is cancelled."""
        while True:
            await self.pause(name, share * every_s)
            await asyncio.sleep((1 - share) * every_s)

    def _cores(self, name: str) -> list[int]:
        threads = Path(f"/proc/{self._running[name].pid}/task").glob("*/children")
        cores = [int(core) for thread in threads for core in thread.read_text().split()]
        if not cores:
            raise LabError(f"engine {name} has no core process of its own to stop")
        return cores

    async def check(self) -> None:
        """Raise LabError, with its last log lines, when an engine has died."""
        alive = (await self._ask(do="alive"))["alive"]
        for engine in self.running:
            if engine.name not in alive:
                raise LabError(f"engine {engine.name} died:\n{engine.log_tail()}")

    async def _launch(self) -> None:
        log = (self._folder / "forkserver.log").open("w")
        with log:
            self._server = await asyncio.create_subprocess_exec(
                str(PYTHON),
                str(ENGINE_SIDE / "forkserver.py"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env=self._clean_environment(),
                start_new_session=True,  # Ctrl-C is for us: we end the engines in order
            )
        await self._read_answer(IMPORT_TIMEOUT_S)

    def _clean_environment(self) -> dict[str, str]:
        ours = ("PYTHONPATH", "VIRTUAL_ENV")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        scratch = {"TMPDIR": str(self._folder), "VLLM_RPC_BASE_PATH": str(self._folder)}
        return inherited | scratch | ENVIRONMENT | self._env

    async def _ask(self, **command: Any) -> dict[str, Any]:
        if self._server is None or self._server.stdin is None:
            raise LabError("the fork server is not running")
        async with self._turn:
            self._asked += 1
            with contextlib.suppress(ConnectionError):  # reading tells why it is gone
                self._server.stdin.write(json.dumps({"id": self._asked, **command}).encode() + b"\n")
                await self._server.stdin.drain()
            while True:
                answer = await self._read_answer(STOP_TIMEOUT_S)
                if answer["id"] == self._asked:  # else it answers somebody who was cancelled while waiting
                    break
        if "error" in answer:
            raise LabError(f"the fork server failed: {answer['error']}")
        return answer

    async def _read_answer(self, limit_s: float) -> dict[str, Any]:
        assert self._server is not None and self._server.stdout is not None
        try:
            line = await asyncio.wait_for(self._server.stdout.readline(), limit_s)
        except TimeoutError as error:
            raise LabError(f"the fork server said nothing for {limit_s:.0f} s") from error
        if not line:
            said = (self._folder / "forkserver.log").read_text(errors="replace")
            raise LabError(f"the fork server ended; its log ends with\n{said[-2000:].strip()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _until_healthy(self, engine: Engine) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while time.monotonic() < deadline:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{engine.url}/health") as answer:
                        if answer.status == 200:
                            return
                if engine.name not in (await self._ask(do="alive"))["alive"]:
                    raise LabError(f"engine {engine.name} died while starting:\n{engine.log_tail()}")
                await asyncio.sleep(0.1)
        raise LabError(f"engine {engine.name} not ready in {START_TIMEOUT_S:.0f} s:\n{engine.log_tail()}")

    async def _forget(self, name: str) -> None:
        self._running.pop(name, None)
        try:
            await self._ask(do="stop", names=[name])
        finally:
            self._ports.pop(name).release()

    async def _shut_down(self, server: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(LabError):
            await self._ask(do="stop", names=list(self._ports))
        if server.stdin is not None:
            server.stdin.close()
        try:
            await asyncio.wait_for(server.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            server.kill()  # its engines die with it
            await server.wait()


@contextlib.asynccontextmanager
async def engine(
    name: str = "engine", env: Mapping[str, str] | None = None, **flags: FlagValue
) -> AsyncIterator[Engine]:
    """One engine with a fork server of its own."""
    async with Engines(env) as lab:
        yield await lab.start(name, None, **flags)


def sweep(run: Path) -> None:
    """Throw away the folders of lab processes that are gone."""
    if not run.exists():
        return
    for folder in run.iterdir():
        if folder.is_dir() and folder.name.isdigit() and not Path("/proc", folder.name).exists():
            shutil.rmtree(folder, ignore_errors=True)

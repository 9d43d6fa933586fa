"""The processes: an engine that plays one, the agent, the tap, the good client. All on loopback, in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from kvitals.agent.requests.stitch import SETTLE_SECONDS
from kvitals.agent.requests.tenant_names import open_tenants
from kvitals.config import TenantsTable
from tests.support.processes import free_port

from .clients import HOST, page
from .pages import Page

START_SECONDS = 30.0
ROW_SECONDS = 2.0
"""A counter begins at 0 and has its number in the next row, a second later."""
_PR_SET_PDEATHSIG = 1


class StageError(Exception):
    """A process did not start, or died."""


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Program:
    """A process and what it has used."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.returncode is not None

    def megabytes(self, which: str = "VmRSS") -> float:
        """Resident memory now, or with VmHWM its peak since `forget_peak`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(which):
                return int(line.split()[1]) * 1024 / 1e6
        return 0.0

    def forget_peak(self) -> None:
        """The peak of memory is that from now on."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_seconds(self) -> float:
        """User and system, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        """Its open files."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def threads(self) -> int:
        """How many it has."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    async def kill(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def stop(self, seconds: float = 15.0) -> None:
        """SIGTERM, and SIGKILL where that does not help."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            await self.kill()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""


@dataclass
class Ports:
    """Where one agent, or a recorder, and its tap listen."""

    agent: int = field(default_factory=free_port)
    http: int = field(default_factory=free_port)
    grpc: int = field(default_factory=free_port)
    tap: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)


@dataclass
class Fared:
    """How the good client fared since it was asked last."""

    sent: dict[str, int]
    broken: list[str]
    latencies: list[float]
    direct: list[float]
    pages: list[float]
    no_page: int
    otlp_again: int

    @property
    def p99(self) -> float:
        """Of its requests through the tap, seconds."""
        return _p99(self.latencies)

    @property
    def p99_direct(self) -> float:
        """Of the same where `Stage.compared_port` leads: what the machine and the engine make of them at that time."""
        return _p99(self.direct)


def _p99(seconds: Sequence[float]) -> float:
    return sorted(seconds)[min(int(len(seconds) * 0.99), len(seconds) - 1)] if seconds else 0.0


class Stage:
    """Everything that runs. `home` is all that the programs may write to, `written` what others write for them."""

    def __init__(self, folder: Path, interval: float) -> None:
        """`interval`: seconds between the agent's looks."""
        self.home, self.written = folder / "home", folder / "written"
        for one in (self.home / "logs", self.home / "tmp", self.written):
            one.mkdir(parents=True)
        self.ports = Ports()
        self.engine_port = free_port()
        self.good_log, self.flood_log, self.tenants_log = (
            self.written / f"{name}.jsonl" for name in ("good", "flood", "tenants")
        )
        for log in (self.good_log, self.flood_log, self.tenants_log):
            log.touch()
        self._interval = interval
        self.tap_options: tuple[str, ...] = ()
        self.busy_until = time.monotonic()
        """When the last attack ended."""
        self.later: list[tuple[float, Callable[[], Awaitable[str]]]] = []
        """What must hold once the requests of a moment are in records; each tells what did not."""
        self._programs: list[Program] = []
        self.engine: Program
        self.agent: Program
        self.tap: Program
        self._good: Program
        self.session: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Stage]:
        """With all of it running, and the good client at work."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as self.session:
            try:
                self.engine = await self.start_engine(self.engine_port)
                self.agent = await self.start_agent()
                self.tap = await self.start_tap(self.ports, self.engine_port)
                await self.start_good()
                yield self
            finally:
                for program in reversed(self._programs):
                    await program.kill()

    async def start_engine(self, port: int, name: str = "engine") -> Program:
        command = [sys.executable, "-m", "tests.chaos.requests.engine", str(port)]
        return await self._start(name, command, f"http://{HOST}:{port}/metrics")

    async def start_agent(self) -> Program:
        """The agent, also a second time after it was killed."""
        config = self.configuration(self.ports, "agent")
        command = [*_kvitals(), "run", "--no-web", f"--config={config}"]
        return await self._start("agent", command, f"http://{HOST}:{self.ports.agent}/metrics")

    async def start_recorder(self, ports: Ports, out: Path, seconds: float) -> Program:
        """`kvitals record`, which takes what the agent takes, on ports of its own."""
        config = self.configuration(ports, "recorder")
        command = [*_kvitals(), "record", f"--out={out}", f"--for={seconds:g}s", f"--config={config}"]
        command.append(f"--listen={HOST}:{ports.agent}")
        return await self._start("recorder", command, f"http://{HOST}:{ports.agent}/metrics")

    async def start_tap(
        self, ports: Ports, engine: int, name: str = "tap", agent: int | None = None, options: Sequence[str] = ()
    ) -> Program:
        command = [
            *(*_kvitals(), "tap", f"--listen={HOST}:{ports.tap}", f"--admin={HOST}:{ports.admin}"),
            *(f"--upstream=http://{HOST}:{engine}", f"--agent=http://{HOST}:{agent or ports.agent}"),
            *options,
            *self.tap_options,
        ]
        return await self._start(name, command, f"http://{HOST}:{ports.admin}/metrics")

    def configuration(self, ports: Ports, name: str) -> Path:
        """A kvitals.toml with every way in."""
        logs = "".join(
            f'[[request_log]]\npath = "{path}"\nformat = "{format_}"\nname = "{path.stem}"\n'
            for path, format_ in ((self.good_log, "nginx"), (self.flood_log, "litellm"), (self.tenants_log, "nginx"))
        )
        file = self.home / f"{name}.toml"
        file.write_text(
            f'[agent]\nlisten = "{HOST}:{ports.agent}"\ninterval = "{self._interval:g}s"\ndiscover = false\n'
            f'[otlp]\nhttp = "{HOST}:{ports.http}"\ngrpc = "{HOST}:{ports.grpc}"\n'
            f'[[target]]\nurl = "http://{HOST}:{self.engine_port}"\nname = "engine"\n{logs}'
        )
        return file

    async def page(self) -> Page:
        """The agent's own page."""
        return Page((await page(self.session, self.ports.agent))[0])

    async def tap_page(self, ports: Ports | None = None) -> Page:
        """The tap's."""
        return Page((await page(self.session, (ports or self.ports).admin))[0])

    async def until(self, true: Callable[[Page], bool], seconds: float) -> tuple[Page, float] | None:
        """The agent's page when it is so, and how long that took; None where it did not come to it."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                now = await self.page()
                if true(now):
                    return now, time.monotonic() - began
            self.check()
            await asyncio.sleep(0.25)
        return None

    def check(self) -> None:
        """Raises StageError where something died that nobody killed."""
        for program in (self.engine, self.agent, self.tap):
            if program.ended:
                raise StageError(f"the {program.name} died ({program.process.returncode}):\n{program.last_words()}")

    def pseudonym(self, tenant: str) -> str:
        """What stands for a tenant here, by the key that the agent made."""
        return open_tenants(TenantsTable(), self._env())[0].pseudonym(tenant)

    @property
    def settle_seconds(self) -> float:
        """Until a request that ended is a record and counted."""
        return SETTLE_SECONDS + 2 * self._interval + ROW_SECONDS

    async def quiet(self) -> None:
        """Wait until what came before is counted."""
        await asyncio.sleep(max(self.busy_until + self.settle_seconds - time.monotonic(), 0.0))

    async def settled(self) -> list[str]:
        """Look at what was to hold later, as far as it is time. What of it did not."""
        due = [one for one in self.later if time.monotonic() - one[0] >= self.settle_seconds]
        self.later = [one for one in self.later if one not in due]
        return [what for what in [await check() for _, check in due] if what]

    async def good(self, word: str = "how") -> Fared:
        """How the good client fares; with `stop` it ends."""
        stdin, stdout = self._good.process.stdin, self._good.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(f"{word}\n".encode())
        return Fared(**json.loads(await asyncio.wait_for(stdout.readline(), 60)))

    async def compared_port(self) -> int:
        """Where the good client sends the requests that those through the tap are compared with."""
        return self.engine_port

    async def start_good(self) -> None:
        told = {
            "tap": self.ports.tap,
            "engine": await self.compared_port(),
            "otlp": self.ports.http,
            "agent": self.ports.agent,
            "log": str(self.good_log),
        }
        command = [sys.executable, "-m", "tests.chaos.requests.good", json.dumps(told)]
        self._good = await self._start("good", command, "", pipes=True)
        assert self._good.process.stdout is not None
        if await self._good.process.stdout.readline() != b"ready\n":
            raise StageError(f"the good client did not start:\n{self._good.last_words()}")

    def _env(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), "TMPDIR": str(self.home / "tmp")}
        return {"PATH": os.environ.get("PATH", ""), "NO_COLOR": "1", **own}

    async def start_relay(self) -> int:
        """A relay to the engine that only passes bytes on; its port."""
        port = free_port()
        command = [sys.executable, "-m", "tests.chaos.requests.relay", str(port), str(self.engine_port)]
        await self._start("relay", command, f"http://{HOST}:{port}/metrics")
        return port

    async def _start(self, name: str, command: Sequence[str], ready: str, *, pipes: bool = False) -> Program:
        log = self.home / "logs" / f"{name}.log"
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if pipes else out,
                stderr=out,
                limit=1 << 26,
                env=self._env(),
                cwd=Path(__file__).parents[3],
                start_new_session=True,
                preexec_fn=_die_with_us,
            )
        program = Program(name, process, log)
        self._programs.append(program)
        began = time.monotonic()
        while ready:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await page(self.session, int(ready.rsplit(":", 1)[1].partition("/")[0]))
                break
            if program.ended or time.monotonic() - began > START_SECONDS:
                raise StageError(f"the {name} did not start:\n{program.last_words()}")
            await asyncio.sleep(0.1)
        return program


def _kvitals() -> list[str]:
    return [sys.executable, "-m", "kvitals.ui.cli.main"]  # of the tree that this is in

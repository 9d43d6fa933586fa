"""Find the engines that serve on this node, and learn their flags, from processes and command lines.

    finder = Finder({"vllm": load_map("vllm")})
    finder.scan().targets                      # every engine that serves here
    found = finder.behind(["http://127.0.0.1:8000"])   # URL -> the engine that answers there, or why there is none
    facts, info = found[url].learn(version="0.32.0")   # facts["slots"]

Some facts are on no endpoint of an engine; the slot limit of vLLM is one. Only flags that the engine's map
names are kept, so secrets on a command line stay where they are. Reading processes takes milliseconds to
(with ten thousand of them) a second: call it in a thread.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psutil

from kvitals.agent.collectors import procfs
from kvitals.agent.command_line import MAX_CONFIG_BYTES, Flags, Launcher, launched_engine, parse, words
from kvitals.agent.process_titles import API_SERVER, OTHER, ProcessRef, part_and_rank
from kvitals.config.hosts import is_loopback
from kvitals.rules.engine_map import EngineMap
from kvitals.series.files import open_regular

SOURCE = "command line"
"""Where these facts were learned, for `kvitals_engine_fact{source}`."""

MAX_COMMAND_LINE_BYTES = 1 << 20
_DIGITS = re.compile(r"[0-9]{1,5}")
_GONE = (psutil.Error, OSError)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    arguments: tuple[str, ...] = field(repr=False)


class Processes(Protocol):
    """What is asked of the node. Nothing here raises: what may not be read, or ended meanwhile, is None or
    left out."""

    def all(self) -> Iterable[Process]: ...

    def ports(self, pid: int) -> frozenset[int] | None:
        """TCP ports on which a process of our network namespace listens."""
        ...

    def elsewhere(self, pid: int) -> bool:
        """Whether the process has a network namespace of its own, as in a container."""
        ...

    def listeners(self) -> Mapping[int, list[int | None]] | None:
        """Who listens on each TCP port; None for a process that we may not see. None: sockets cannot be read."""
        ...

    def addresses(self) -> frozenset[str]:
        """The IP addresses of this node."""
        ...

    def home(self, pid: int) -> frozenset[str]:
        """The IP addresses of a process's network namespace."""
        ...

    def started(self, pid: int) -> int:
        """When a process started, in clock ticks since boot; 0 where that is not known."""
        ...

    def file(self, pid: int, path: str) -> bytes | None:
        """The start of a regular file as the process would open it."""
        ...

    def variable(self, pid: int, name: str) -> str:
        """One variable of a process's environment; empty where it has none, or we may not read it."""
        ...


@dataclass(frozen=True)
class DiscoveredTarget:
    """An engine's server."""

    system: str
    url: str  # scheme://host:port, as seen from this node
    pid: int
    listening: bool | None  # None: its sockets cannot be read. False: starting, or in trouble
    flags: Flags = field(default_factory=lambda: Flags({}), compare=False)
    engine_map: EngineMap | None = field(default=None, repr=False, compare=False)

    def learn(self, version: str = "") -> tuple[dict[str, float], dict[str, str]]:
        """Facts and info from the command line. Defaults of flags count only where the version is known."""
        return self.engine_map.learn(self.flags, version) if self.engine_map else ({}, {})


@dataclass(frozen=True)
class DiscoveredTargets:
    """Targets, and in words what was seen but cannot be scraped by itself."""

    targets: tuple[DiscoveredTarget, ...] = ()
    notes: tuple[str, ...] = ()


class DiscoveryError(Exception):
    """No engine can be told behind a URL. The message says why and what to do."""


class Finder:
    """Finds engines of the systems that there are maps of, and servers of others without their flags."""

    def __init__(self, maps: Mapping[str, EngineMap], processes: Processes | None = None) -> None:
        self._maps = maps
        self._processes = processes or System()

    def scan(self) -> DiscoveredTargets:
        """Every engine server on this node. A server's workers and forks are not servers of their own."""
        table = {process.pid: process for process in self._processes.all()}
        above = {pid: _ancestors(pid, table) for pid in table}
        servers = dict(self._servers(table))
        targets: list[DiscoveredTarget] = []
        notes: list[str] = []
        for pid, server in servers.items():
            if any(ancestor in servers for ancestor in above[pid]):
                continue
            family = [pid, *(other for other in table if pid in above[other])]
            obstacle = self._obstacle(server)
            if obstacle:
                notes.append(f"{server.launcher.system} (pid {pid}) {obstacle}")
            else:
                targets += [self._target(server, port, family) for port in server.ports()]
        return DiscoveredTargets(tuple(targets), tuple(notes))

    def behind(self, urls: Iterable[str]) -> dict[str, DiscoveredTarget | DiscoveryError]:
        """The engine process that serves each loopback URL, or why there is none.

        The owner of the listening socket decides, and not what a command line says about ports. Walks all processes and
        sockets once, however many URLs there are.
        """
        ports = {url: _port(url) if is_loopback(_host(url)) else None for url in urls}
        listeners = self._processes.listeners() if any(ports.values()) else None
        table = {process.pid: process for process in self._processes.all()} if listeners else {}
        servers = dict(self._servers(table))
        found: dict[str, DiscoveredTarget | DiscoveryError] = {}
        for url, port in ports.items():
            try:
                found[url] = self._server_of(url, port, listeners, table, servers)
            except DiscoveryError as error:
                found[url] = error
        return found

    def _server_of(
        self,
        url: str,
        port: int | None,
        listeners: Mapping[int, list[int | None]] | None,
        table: Mapping[int, Process],
        servers: Mapping[int, _Server],
    ) -> DiscoveredTarget:
        """The engine on a port of this node. Raises DiscoveryError."""
        if port is None:
            raise DiscoveryError(f"{url} is not on this node: its flags can be read only on the node where it runs")
        owners = [None] if listeners is None else listeners.get(port, [])
        if not owners:
            raise DiscoveryError(f"no process on this node listens on port {port} (an engine in a container?)")
        for owner in owners:
            for pid in () if owner is None else (owner, *_ancestors(owner, table)):
                if pid in servers:
                    return replace(self._target(servers[pid], port, []), url=url, listening=True)
        if None in owners:
            raise DiscoveryError(
                f"the process on port {port} belongs to another user: run kvitals as that user or as root"
            )
        raise DiscoveryError(f"the process on port {port} (pid {owners[0]}) is not an engine that kvitals knows")

    def families(self, urls: Iterable[str]) -> dict[str, tuple[ProcessRef, ...]]:
        """The processes of the engines behind URLs, API servers first; empty where none is to be seen.

        An engine with a network of its own, as in a pod, is found by its address. Walks all processes, so it is for
        new targets, restarts, and at most once a minute.
        """
        table = {process.pid: process for process in self._processes.all()}
        servers = dict(self._servers(table))
        listeners = self._processes.listeners() or {}
        own = self._processes.addresses()
        members: dict[int, list[int]] = {}
        for pid in table:
            for ancestor in _ancestors(pid, table):
                members.setdefault(ancestor, []).append(pid)
        roots = {url: self._root(url, table, servers, listeners, own) for url in urls}
        families = {root: self._family(root, table, members) for root in set(roots.values())}
        return {url: families[root] for url, root in roots.items()}

    def addresses(self) -> frozenset[str]:
        """The IP addresses of this node."""
        return self._processes.addresses()

    def _family(
        self, root: int | None, table: Mapping[int, Process], members: Mapping[int, Sequence[int]]
    ) -> tuple[ProcessRef, ...]:
        """A process and its descendants. members: process -> its descendants."""
        if root is None:
            return ()
        told = {pid: part_and_rank(table[pid].arguments) or (OTHER, "") for pid in members.get(root, ())}
        has_own = any(part == API_SERVER for part, _ in told.values())
        told = {root: part_and_rank(table[root].arguments) or (OTHER if has_own else API_SERVER, ""), **told}
        return tuple(ProcessRef(pid, self._processes.started(pid), *which) for pid, which in told.items())

    def _root(
        self,
        url: str,
        table: Mapping[int, Process],
        servers: Mapping[int, _Server],
        listeners: Mapping[int, list[int | None]],
        own: frozenset[str],
    ) -> int | None:
        """The process that the engine behind a URL descends from. own: the addresses of this node."""
        port = _port(url)
        if port is None:
            return None
        host = _host(url)
        if is_loopback(host) or host in own:
            owners = [pid for pid in listeners.get(port, ()) if pid is not None and pid in table]
        else:
            owners = [pid for pid in servers if port in servers[pid].ports() and host in self._processes.home(pid)]
        for owner in owners:
            part = part_and_rank(table[owner].arguments)
            if part and part[1]:  # a rank's own server: what is above it has the other ranks too
                return owner
            for pid in (*reversed(_ancestors(owner, table)), owner):
                if pid in servers:
                    return pid
        return None

    def _servers(self, table: Mapping[int, Process]) -> Iterator[tuple[int, _Server]]:
        for pid, process in table.items():
            match = launched_engine(process.arguments)
            if match is None:
                continue
            launcher, arguments = match
            config = parse(launcher, arguments).text("config")
            content = self._processes.file(pid, config) if config else None
            port = self._processes.variable(pid, launcher.port_variable) if launcher.port_variable else ""
            yield pid, _Server(pid, launcher, parse(launcher, arguments, content), port)

    def _obstacle(self, server: _Server) -> str:
        flags = server.flags
        if flags.get("uds"):
            return "serves on a Unix socket, which kvitals cannot scrape: give it a --port for its metrics"
        if flags.get("headless"):
            return "is headless: the node that runs its API server has its metrics"
        if flags.get("grpc"):
            return "serves gRPC, which has no metrics page"
        if not server.ports():
            return f"has no metrics page: set {server.launcher.port_variable} in its environment"
        if self._processes.elsewhere(server.pid):
            return "has its own network (a container): name its address with [[target]] url"
        host = server.host()
        if not is_loopback(host) and host not in self._processes.addresses():
            return f"serves on {host[:100]!r}, which is not an address of this node: name it with [[target]] url"
        return ""

    def _target(self, server: _Server, port: int, family: Iterable[int]) -> DiscoveredTarget:
        system = server.launcher.system
        engine_map = self._maps.get(system)
        flags = server.flags.only(engine_map.flags if engine_map else ())
        return DiscoveredTarget(system, server.url(port), server.pid, self._listens(port, family), flags, engine_map)

    def _listens(self, port: int, family: Iterable[int]) -> bool | None:
        seen = [self._processes.ports(pid) for pid in family]
        if any(ports is not None and port in ports for ports in seen):
            return True
        return None if None in seen or not seen else False


@dataclass(frozen=True)
class _Server:
    pid: int
    launcher: Launcher
    flags: Flags
    variable: str = ""  # the port by its environment

    def ports(self) -> range:
        """One port, or one per local rank where each rank has an API server of its own; none without a page."""
        told = (
            self.flags.number(self.launcher.port_flag),
            float(self.variable) if _DIGITS.fullmatch(self.variable) else 0,
        )
        first = next((int(port) for port in told if port and 0 < port < 65536), self.launcher.port)
        if not first:
            return range(0)
        if not self.flags.get("data-parallel-multi-port-external-lb"):
            return range(first, first + 1)
        ranks = self.flags.number("data-parallel-size-local") or self.flags.number("data-parallel-size") or 1
        return range(first, min(first + min(int(ranks), 64), 65536))

    def host(self) -> str:
        """Where to reach it: the address that it is bound to, or loopback for all of them."""
        host = self.flags.text(self.launcher.host_flag)
        if host in ("", "0.0.0.0", "localhost"):  # noqa: S104 (read, not bound)
            return "127.0.0.1"
        return "::1" if host in ("::", "::0") else host

    def url(self, port: int) -> str:
        scheme = "https" if self.flags.get("ssl-certfile") else "http"
        host = self.host()
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class System:
    """The processes of this node, by psutil. `psutil.PROCFS_PATH` may point at the host's /proc."""

    def all(self) -> Iterator[Process]:
        for process in psutil.process_iter():
            with suppress(*_GONE):
                yield Process(process.pid, process.ppid(), _arguments(process))

    def ports(self, pid: int) -> frozenset[int] | None:
        try:
            connections = psutil.Process(pid).net_connections("tcp")
        except _GONE:
            return None
        return frozenset(c.laddr.port for c in connections if c.laddr and c.status == psutil.CONN_LISTEN)

    def elsewhere(self, pid: int) -> bool:
        try:
            return (_proc(pid) / "ns" / "net").readlink() != Path("/proc/self/ns/net").readlink()
        except OSError:
            return False

    def listeners(self) -> Mapping[int, list[int | None]] | None:
        try:
            connections = psutil.net_connections("tcp")
        except _GONE:
            return None
        owners: dict[int, set[int | None]] = {}
        for one in connections:
            if one.laddr and one.status == psutil.CONN_LISTEN:
                owners.setdefault(one.laddr.port, set()).add(one.pid)
        return {port: sorted(pids, key=lambda pid: (pid is None, pid or 0)) for port, pids in owners.items()}

    def addresses(self) -> frozenset[str]:
        with suppress(*_GONE):
            return frozenset(a.address for card in psutil.net_if_addrs().values() for a in card)
        return frozenset()

    def variable(self, pid: int, name: str) -> str:
        return _variable(_start_of(_proc(pid) / "environ"), name)

    def home(self, pid: int) -> frozenset[str]:
        net = _proc(pid) / "net"
        return procfs.addresses(_start_of(net / "fib_trie"), _start_of(net / "if_inet6"))

    def started(self, pid: int) -> int:
        found = procfs.stat(_start_of(_proc(pid) / "stat"))
        return found.started if found else 0

    def file(self, pid: int, path: str) -> bytes | None:
        anchor = _proc(pid) / ("root" if path.startswith("/") else "cwd")
        try:
            with open_regular(anchor / path.lstrip("/")) as file:
                return file.read(MAX_CONFIG_BYTES + 1)
        except (OSError, ValueError):
            return None


def _variable(environment: bytes, name: str) -> str:
    prefix = f"{name}=".encode()
    found = next((entry for entry in environment.split(b"\0") if entry.startswith(prefix)), b"")
    return found.removeprefix(prefix).decode("utf-8", "replace")


def _arguments(process: psutil.Process) -> tuple[str, ...]:
    """As psutil has them, except that a title in one string is split as a shell would, not at every space."""
    if sys.platform != "linux":
        return tuple(process.cmdline())
    with (_proc(process.pid) / "cmdline").open("rb") as file:
        return words(file.read(MAX_COMMAND_LINE_BYTES))


def _proc(pid: int) -> Path:
    return Path(getattr(psutil, "PROCFS_PATH", "/proc"), str(pid))


def _start_of(path: Path) -> bytes:
    """The start of a file of the kernel's; empty where it can not be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_COMMAND_LINE_BYTES)
    except OSError:
        return b""


def _ancestors(pid: int, table: Mapping[int, Process]) -> list[int]:
    """Parent first. Ends at a process that is not in the table, or comes round again (a reused pid)."""
    chain = [pid]
    while chain[-1] in table and table[chain[-1]].parent not in chain:
        chain.append(table[chain[-1]].parent)
    return chain[1:]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _port(url: str) -> int | None:
    try:
        parts = urlsplit(url)
        return parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None

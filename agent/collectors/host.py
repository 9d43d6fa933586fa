"""The host sense: the processes of this node's engines, their cgroups, and the node itself.

    sense = HostSense(window, {"cluster": "c", "node": "n"})
    record = sense.read(time.time(), {key: finder.families([url])[url]})   # I/O, a few milliseconds; never raises
    sense.feed(record, engines)                                   # pure; a replay feeds recorded ones

`read` looks only at the processes that it is given and at some files of the node, each up to a size. It asks nothing
of a network file system, which could keep it for ever. What it could not see is a state with a reason of `REASONS`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
import psutil

from kvitals.agent.collectors import cgroups, procfs, rdma
from kvitals.agent.collectors.cgroups import Cgroups
from kvitals.agent.collectors.host_series import Engines, HostSeries
from kvitals.agent.collectors.procfs import Mount
from kvitals.agent.logger import Logger
from kvitals.agent.process_titles import ProcessRef
from kvitals.agent.records import OK, HostRecord, NodeSample, ProcessSample
from kvitals.series.window import Window

log = Logger()

PARTIAL, NOT_APPLICABLE, FAILED = "partial", "not_applicable", "failed"

REASONS = {
    "no_procfs": "This system has no Linux /proc, so there is nothing to read.",
    "container_processes": "The agent sees only the processes of this container, and no engine runs there. In"
    " Kubernetes give the agent's pod hostPID: true, in Docker --pid=host.",
    "no_processes": "No process of a watched engine was found on this node. Does it run on another node, or "
    "behind a published container port? Name the container's own address with [[target]] url.",
    "hidden_processes": "The agent may not read a process of an engine: run kvitals as root or as the engine's "
    "user, or mount /proc without hidepid.",
    "hidden_cgroups": "The engines' cgroups are outside of this container's view, so their limits are unknown: "
    "give the agent the host's cgroup namespace (a privileged pod, or --cgroupns=host) and "
    "/sys/fs/cgroup.",
    "too_many_processes": "The engines have more processes than the limit; some were left out.",
    "internal": "The host was not read because of a fault in kvitals. Please report this.",
}
"""Why the sense says less than all, for people, with what to do."""

PATHS = ("/", "/dev/shm")  # noqa: S108 (looked at, not written)
"""Whose file systems are looked at. Whoever keeps data adds the folder."""

MAX_PROCESSES = 512
"""Processes of one look: eight engines with eight workers and as many API servers each are half of it."""

_FILE_BYTES = 256 * 1024
_MOUNTS_SECONDS = 60.0
_MOUNTS_BYTES = 4 << 20
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel: the same on every machine
_REMOTE = ("nfs", "cifs", "smb", "9p", "ceph", "lustre", "gpfs", "beegfs", "gluster", "afs", "fuse", "autofs")

_STATUS = procfs.picker("VmSwap", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_MEMORY = procfs.picker(
    "MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "HugePages_Total", "HugePages_Free", "Hugepagesize"
)
_PAGING = procfs.picker("pswpin", "pswpout", "oom_kill")
_KB = 1024.0


class HostSense:
    """Looks at the node. One thread at a time."""

    def __init__(self, window: Window, labels: Mapping[str, str], paths: Sequence[str] = PATHS) -> None:
        self._series = HostSeries(window, labels)
        self._paths = tuple(dict.fromkeys(paths))
        self._mounts: list[Mount] = []
        self._mounts_at = -_MOUNTS_SECONDS

    def read(self, t: float, processes: Mapping[str, Sequence[ProcessRef]]) -> HostRecord:
        """Look once, at the processes of the targets by key. A target without processes was not found on this node."""
        started = time.perf_counter()
        if sys.platform != "linux":
            return HostRecord(t=t, state=NOT_APPLICABLE, reason="no_procfs")
        try:
            record = self._look(t, processes)
        except Exception as error:
            log.exception("host.failed", error=str(error))
            return HostRecord(t=t, state=FAILED, reason="internal", duration=time.perf_counter() - started)
        return msgspec.structs.replace(record, duration=time.perf_counter() - started)

    def feed(self, record: HostRecord, engines: Engines) -> None:
        """Take a look into the window. `engines` names the engine of a target's rank; "" is its page as a whole."""
        self._series.feed(record, engines)

    def _look(self, t: float, processes: Mapping[str, Sequence[ProcessRef]]) -> HostRecord:
        root = str(getattr(psutil, "PROCFS_PATH", "/proc"))
        if not _start_of(f"{root}/stat"):
            return HostRecord(t=t, state=NOT_APPLICABLE, reason="no_procfs")
        clock = time.monotonic()
        if clock - self._mounts_at >= _MOUNTS_SECONDS:
            self._mounts, self._mounts_at = procfs.mounts(_start_of("/proc/self/mountinfo", _MOUNTS_BYTES)), clock
        seen = Cgroups(self._mounts, _start_of)
        refs = [(target, ref) for target, refs in processes.items() for ref in refs]
        samples = tuple(_process(root, target, ref, seen) for target, ref in refs[:MAX_PROCESSES])
        reason = _reason(root, processes, samples, len(refs))
        return HostRecord(
            t=t,
            clock=clock,
            state=PARTIAL if reason else OK,
            reason=reason,
            node=self._node(root),
            processes=samples,
            cgroups=seen.found,
        )

    def _node(self, root: str) -> NodeSample:
        modes, cpus = procfs.cpu_seconds(_start_of(f"{root}/stat"))
        net = f"{root}/1/net"  # the node's own: root/net is that of whoever reads
        interfaces = _start_of(f"{net}/dev") or _start_of(f"{root}/net/dev")
        return NodeSample(
            cpus=cpus,
            cpu=modes,
            load=procfs.loads(_start_of(f"{root}/loadavg")),
            memory=_memory(_start_of(f"{root}/meminfo")),
            paging=_paging(_start_of(f"{root}/vmstat")),
            pressure=cgroups.pressure(lambda resource: _start_of(f"{root}/pressure/{resource}")),
            filesystems={path: sizes for path in self._paths if (sizes := self._sizes(path))},
            disks=procfs.disks(_start_of(f"{root}/diskstats")),
            interfaces=procfs.interfaces(interfaces),
            tcp=_tcp(
                _start_of(f"{net}/snmp") or _start_of(f"{root}/net/snmp"),
                _start_of(f"{net}/netstat") or _start_of(f"{root}/net/netstat"),
            ),
            rdma=rdma.read_ports(rdma.FOLDER, _start_of),
        )

    def _sizes(self, path: str) -> list[float]:
        holding = [mount for mount in self._mounts if path == mount.point or path.startswith(_folder(mount.point))]
        if not holding or max(holding, key=lambda mount: len(mount.point)).kind.startswith(_REMOTE):
            return []
        with suppress(OSError, ValueError):
            sizes = os.statvfs(path)
            return [float(sizes.f_blocks * sizes.f_frsize), float(sizes.f_bavail * sizes.f_frsize)]
        return []


def _process(root: str, target: str, ref: ProcessRef, seen: Cgroups) -> ProcessSample:
    base = f"{root}/{ref.pid}"
    found, state = None, OK
    try:
        found = procfs.stat(_slurp(f"{base}/stat", _FILE_BYTES))
    except PermissionError:
        state = "hidden"
    except OSError:
        state = "gone"
    if state == OK and (found is None or found.ended):
        state = "gone"
    elif found is not None and ref.start_time and found.started != ref.start_time:
        state = "replaced"
    if found is None or state != OK:
        return ProcessSample(
            target=target,
            pid=ref.pid,
            start_time=ref.start_time,
            part=ref.part,
            rank=ref.rank,
            state=state,
            run_state=found.run_state if found is not None and found.ended else "",
        )
    status = _start_of(f"{base}/status")
    counts = procfs.pick(_STATUS, status)
    main = procfs.schedstat(_start_of(f"{base}/schedstat"))
    return ProcessSample(
        target=target,
        pid=ref.pid,
        start_time=found.started,
        part=ref.part,
        rank=ref.rank,
        run_state=found.run_state,
        user=found.user,
        system=found.system,
        threads=found.threads,
        resident=float(found.resident),
        swapped=procfs.scaled_value(counts, "VmSwap", _KB),
        fds=_descriptors(base),
        main_running=main.running if main else None,
        main_waiting=main.waiting if main else None,
        voluntary=counts.get("voluntary_ctxt_switches"),
        involuntary=counts.get("nonvoluntary_ctxt_switches"),
        cpus_allowed=procfs.cpus_allowed(status),
        cgroups=seen.of(cgroups.controllers(_start_of(f"{base}/cgroup"))),
    )


def _descriptors(base: str) -> int | None:
    """Open file descriptors: since Linux 6.2 the size of the folder, before it 0. Listing it could take long."""
    with suppress(OSError):
        return os.stat(f"{base}/fd").st_size or None  # noqa: PTH116 (a Path costs as much as the call)
    return None


def _reason(
    root: str, processes: Mapping[str, Sequence[ProcessRef]], samples: Sequence[ProcessSample], wanted: int
) -> str:
    """What is the matter, the worst first; empty where nothing is."""
    if not all(processes.values()):
        with suppress(OSError):
            if root == "/proc" and os.readlink("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:  # noqa: PTH115
                return "container_processes"
        return "no_processes"
    if any(sample.state == "hidden" for sample in samples):
        return "hidden_processes"
    if any(sample.state == OK and not sample.cgroups for sample in samples):
        return "hidden_cgroups"
    return "too_many_processes" if wanted > len(samples) else ""


def _memory(text: bytes) -> dict[str, float]:
    kb = procfs.pick(_MEMORY, text)
    page = kb.get("Hugepagesize", 0) * _KB
    sizes = {
        "total": procfs.scaled_value(kb, "MemTotal", _KB),
        "available": procfs.scaled_value(kb, "MemAvailable", _KB),
        "swap_total": procfs.scaled_value(kb, "SwapTotal", _KB),
        "swap_free": procfs.scaled_value(kb, "SwapFree", _KB),
        "hugepages_total": procfs.scaled_value(kb, "HugePages_Total", page),
        "hugepages_free": procfs.scaled_value(kb, "HugePages_Free", page),
    }
    return {name: size for name, size in sizes.items() if size is not None}


def _paging(text: bytes) -> dict[str, float]:
    found = procfs.pick(_PAGING, text)
    counts = {
        "swapped_in": procfs.scaled_value(found, "pswpin", procfs.PAGE),
        "swapped_out": procfs.scaled_value(found, "pswpout", procfs.PAGE),
        "oom_kills": procfs.scaled_value(found, "oom_kill"),
    }
    return {name: count for name, count in counts.items() if count is not None}


def _tcp(snmp: bytes, netstat: bytes) -> dict[str, float]:
    found = procfs.protocols(snmp) | procfs.protocols(netstat)
    names = {
        "sent": "Tcp.OutSegs",
        "retransmitted": "Tcp.RetransSegs",
        "listen_overflows": "TcpExt.ListenOverflows",
    }
    return {name: float(found[counter]) for name, counter in names.items() if counter in found}


def _folder(point: str) -> str:
    return point.rstrip("/") + "/"


def this_thread() -> procfs.MainThread | None:
    """The CPU time of the calling thread and its wait for a core; None where the kernel does not tell."""
    return procfs.schedstat(_start_of("/proc/thread-self/schedstat"))


def _start_of(path: str, most: int = _FILE_BYTES) -> bytes:
    """The start of a file; empty where it can not be read."""
    try:
        return _slurp(path, most)
    except (OSError, ValueError):
        return b""


def _slurp(path: str, most: int) -> bytes:
    """The start of a file. Raises OSError. The kernel hands long ones out in pieces."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        text = os.read(descriptor, most)
        while len(text) < most and (more := os.read(descriptor, most - len(text))):
            text += more
        return text
    finally:
        os.close(descriptor)

"""The cgroups of processes: limits, use and throttling, from the process's own up to the top of what we may see.

Version 1, version 2, and both at once are read alike: a cgroup has a key, a parent, and what its files say. A limit
anywhere up the tree holds for what is below it, so every level is read once per look, whoever shares it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from kvitals.agent.collectors import procfs
from kvitals.agent.collectors.procfs import Mount
from kvitals.agent.records import CgroupSample

MAX_LEVELS = 16
"""Levels of one tree; systemd and Kubernetes make five or six."""

MAX_CGROUPS = 512
"""Cgroups that one look reads."""

V1 = ("cpu", "memory", "pids")
"""The controllers whose hierarchies of version 1 are read."""

RESOURCES = ("cpu", "memory", "io")

Read = Callable[[str], bytes]
"""Reads the start of a file; empty where it can not be read."""

_CPU_STAT = procfs.picker("usage_usec", "nr_periods", "nr_throttled", "throttled_usec", "throttled_time")
_EVENTS = procfs.picker("high", "max", "oom", "oom_kill")


class Cgroups:
    """Reads the cgroups of one look at the node: make a new one for each."""

    def __init__(self, mounts: Sequence[Mount], read: Read) -> None:
        self._read = read
        self._mounts = {
            controller: [mount for mount in mounts if mount.kind == "cgroup" and controller in mount.options]
            for controller in V1
        }
        self._mounts[""] = [mount for mount in mounts if mount.kind == "cgroup2"]
        self._found: dict[str, CgroupSample | None] = {}  # None: there is no such cgroup, or nothing in it

    @property
    def found(self) -> tuple[CgroupSample, ...]:
        """Every cgroup that was read so far."""
        return tuple(sample for sample in self._found.values() if sample is not None)

    def of(self, paths: Mapping[str, str]) -> tuple[str, ...]:
        """Read the cgroups of a process, whose paths by controller these are; returns their keys.

        Empty where none of them can be seen from here, as from a container with a cgroup namespace of its own.
        """
        seen = [name for name in ("", *V1) if name in paths and self._climb(name, paths[name])]
        return tuple(_key(name, paths[name]) for name in seen)

    def _climb(self, controller: str, path: str) -> bool:
        """Read a cgroup and those above it; whether the first one is there."""
        mount = self._mount(controller, path)
        if mount is None:
            return False
        levels = [level for level in procfs.ancestors(path) if _below(level, mount.root)][:MAX_LEVELS]
        for i, level in enumerate(levels):
            key = _key(controller, level)
            if key not in self._found:
                if len(self._found) >= MAX_CGROUPS:
                    break
                parent = _key(controller, levels[i + 1]) if i + 1 < len(levels) else ""
                folder = mount.point.rstrip("/") + level[len(mount.root.rstrip("/")) :].rstrip("/")
                look = self._v1 if controller else self._v2
                self._found[key] = look(controller, folder, key, parent, i == 0)
            elif i > 0:
                break  # who read it read what is above it too
        return self._found.get(_key(controller, path)) is not None

    def _mount(self, controller: str, path: str) -> Mount | None:
        """The mount that shows most of the tree, of those that show the path."""
        showing = [mount for mount in self._mounts[controller] if _below(path, mount.root)]
        return min(showing, key=lambda mount: len(mount.root), default=None)

    def _v2(self, _: str, folder: str, key: str, parent: str, own: bool) -> CgroupSample | None:
        stat = self._read(f"{folder}/cpu.stat")
        if not stat:
            return None
        cpu = procfs.pick(_CPU_STAT, stat)
        used, limit = self._read(f"{folder}/memory.current"), self._limit
        if not parent and not used and not self._read(f"{folder}/cgroup.type"):
            # The root of all: it has no limits, and what it uses is what the node uses.
            return CgroupSample(key=key, cores=math.inf, memory_max=math.inf, tasks_max=math.inf)
        return CgroupSample(
            key=key,
            parent=parent,
            cores=self._cores(folder),
            cpu_seconds=procfs.scaled_value(cpu, "usage_usec", 1e-6),
            periods=procfs.scaled_value(cpu, "nr_periods"),
            throttled_periods=procfs.scaled_value(cpu, "nr_throttled"),
            throttled_seconds=procfs.scaled_value(cpu, "throttled_usec", 1e-6),
            memory=procfs.limit(used),
            memory_max=limit(f"{folder}/memory.max"),
            memory_high=limit(f"{folder}/memory.high"),
            memory_events=procfs.pick(_EVENTS, self._read(f"{folder}/memory.events")),
            tasks=procfs.limit(self._read(f"{folder}/pids.current")),
            tasks_max=limit(f"{folder}/pids.max"),
            pressure=self._pressure(folder) if own else {},
        )

    def _v1(self, controller: str, folder: str, key: str, parent: str, own: bool) -> CgroupSample | None:
        look = {"cpu": self._v1_cpu, "memory": self._v1_memory, "pids": self._v1_pids}[controller]
        return look(folder, key, parent)

    def _v1_cpu(self, folder: str, key: str, parent: str) -> CgroupSample | None:
        stat = self._read(f"{folder}/cpu.stat")
        if not stat:
            return None
        cpu = procfs.pick(_CPU_STAT, stat)
        usage = procfs.number(self._read(f"{folder}/cpuacct.usage").strip())  # where cpu and cpuacct are one mount
        return CgroupSample(
            key=key,
            parent=parent,
            cores=procfs.cfs_quota(self._read(f"{folder}/cpu.cfs_quota_us"), self._read(f"{folder}/cpu.cfs_period_us")),
            cpu_seconds=usage / 1e9 if usage is not None and parent else None,
            periods=procfs.scaled_value(cpu, "nr_periods"),
            throttled_periods=procfs.scaled_value(cpu, "nr_throttled"),
            throttled_seconds=procfs.scaled_value(cpu, "throttled_time", 1e-9),
        )

    def _v1_memory(self, folder: str, key: str, parent: str) -> CgroupSample | None:
        used = self._read(f"{folder}/memory.usage_in_bytes")
        if not used:
            return None
        most = procfs.limit(self._read(f"{folder}/memory.limit_in_bytes"))
        is_root = not parent and most == math.inf
        return CgroupSample(
            key=key,
            parent=parent,
            memory=None if is_root else procfs.limit(used),
            memory_max=most,
            memory_events=procfs.pick(_EVENTS, self._read(f"{folder}/memory.oom_control")),
        )

    def _v1_pids(self, folder: str, key: str, parent: str) -> CgroupSample | None:
        used = self._read(f"{folder}/pids.current")
        if not used:
            return None
        return CgroupSample(
            key=key,
            parent=parent,
            tasks=procfs.limit(used),
            tasks_max=procfs.limit(self._read(f"{folder}/pids.max")),
        )

    def _cores(self, folder: str) -> float | None:
        """A cgroup without the file has no limit of its own: its controller is not switched on there."""
        text = self._read(f"{folder}/cpu.max")
        return procfs.cpu_max(text) if text else math.inf

    def _limit(self, file: str) -> float | None:
        text = self._read(file)
        return procfs.limit(text) if text else math.inf

    def _pressure(self, folder: str) -> dict[str, float]:
        return pressure(lambda resource: self._read(f"{folder}/{resource}.pressure"))


def pressure(read: Read) -> dict[str, float]:
    """`RESOURCE KIND` -> seconds; `read` is given the resource."""
    return {
        f"{resource} {kind}": seconds
        for resource in RESOURCES
        for kind, seconds in procfs.pressure(read(resource)).items()
    }


def controllers(text: bytes) -> dict[str, str]:
    """The paths of a process by the controllers that are read here; "" is version 2."""
    found = procfs.cgroups(text)
    return {name: found[name] for name in ("", *V1) if name in found}


def _key(controller: str, path: str) -> str:
    return f"{controller}:{path}" if controller else path


def _below(path: str, root: str) -> bool:
    """Whether the path is the root or below it. One with `..` is outside of our namespace."""
    if "/.." in path:
        return False
    return root == "/" or path == root or path.startswith(root.rstrip("/") + "/")

"""What the texts of /proc and of cgroup files say. Pure: bytes in, numbers out, and nothing here raises.

A text that is cut, empty or of another kernel gives None or leaves out what it does not say: unknown is not zero.
Sizes are bytes and times are seconds unless a name says otherwise. The formats: proc(5), and of the
kernel's documentation admin-guide/cgroup-v2, admin-guide/cgroup-v1, admin-guide/iostats and accounting/psi.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk's own sectors are."""

MAX_DEVICES = 32
"""Disks, and network interfaces, that are told apart; a node with more says the first ones."""

_PRESSURE = re.compile(rb"^(some|full) .*total=(\d{1,20})$", re.MULTILINE)
_DISK = re.compile(r"(?:sd|vd|xvd|hd)[a-z]+|nvme[0-9]+n[0-9]+|mmcblk[0-9]+")
_VIRTUAL = re.compile(
    r"lo|veth.*|docker.*|br-.*|cni.*|cali.*|flannel.*|vxlan.*|cilium.*|lxc.*|lxdbr.*|virbr.*|vnet.*|tap.*|tun.*"
    r"|ifb[0-9]*|dummy.*|kube-.*|nodelocaldns|ovs-.*|gre.*|erspan.*|sit[0-9]*|ip6tnl.*|ip_vti.*|podman.*|weave|gw[a-z]*[0-9]*"
)
_OCTAL = re.compile(r"\\([0-7]{3})")
_UNLIMITED_V1 = 1 << 62
"""Version 1 writes "no limit" of memory as the largest multiple of a page below 2**63."""


def number(raw: bytes) -> int | None:
    """A plain decimal of at most 20 digits."""
    return int(raw) if raw.isdigit() and len(raw) <= 20 else None


def picker(*names: str) -> re.Pattern[bytes]:
    """A pattern for `pick`: the lines that begin with one of these names."""
    alternatives = b"|".join(re.escape(name).encode() for name in names)
    return re.compile(rb"^(" + alternatives + rb")[: \t]+(\d{1,20})(?: kB)?[ \t]*$", re.MULTILINE)


def pick(pattern: re.Pattern[bytes], text: bytes) -> dict[str, int]:
    """The values of `NAME VALUE` lines, as in status, meminfo, vmstat and cpu.stat. kB stay kB."""
    return {name.decode(): int(value) for name, value in pattern.findall(text)}


class Stat(NamedTuple):
    """/proc/PID/stat."""

    started: int  # clock ticks since boot: with the pid, who a process is
    user: float  # CPU seconds of all its threads
    system: float
    threads: int
    resident: int
    run_state: str  # of the main thread, one letter: R, S, D, T, t, Z, I ...

    @property
    def ended(self) -> bool:
        """Whether it is a zombie: its parent has not read its exit status."""
        return self.run_state in ("Z", "X", "x")


def stat(text: bytes) -> Stat | None:
    """The name of a process may hold spaces and parentheses, so what counts begins after the last one."""
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) < 22:
        return None
    found = [number(fields[i]) for i in (19, 11, 12, 17, 21)]
    if None in found:
        return None
    started, user, system, threads, pages = (n or 0 for n in found)
    return Stat(started, user / TICKS, system / TICKS, threads, pages * PAGE, _name(fields[0][:1]))


class MainThread(NamedTuple):
    """/proc/PID/schedstat: it is of the first thread only, which runs an engine's event loop."""

    running: float  # seconds on a CPU
    waiting: float  # seconds ready to run, without one


def schedstat(text: bytes) -> MainThread | None:
    fields = [number(field) for field in text.split()]
    if len(fields) < 2 or fields[0] is None or fields[1] is None:
        return None
    return MainThread(fields[0] / 1e9, fields[1] / 1e9)


def cpus_allowed(status: bytes) -> int | None:
    """How many CPUs a process may run on, from `Cpus_allowed_list` of its status."""
    found = re.search(rb"^Cpus_allowed_list:[ \t]*([\d,-]{1,8192})$", status, re.MULTILINE)
    if found is None:
        return None
    count = 0
    for part in found[1].split(b","):
        low, dash, high = part.partition(b"-")
        first, last = number(low), number(high if dash else low)
        if first is None or last is None or last < first:
            return None
        count += last - first + 1
    return count


def cpu_seconds(text: bytes) -> tuple[dict[str, float], int]:
    """CPU seconds of the node by mode, and the CPUs that are online, from /proc/stat.

    `user` has nice and the time of guests in it, `system` has interrupts in it; the modes add up to all time.
    """
    modes: dict[str, float] = {}
    cpus = 0
    for line in text.split(b"\n"):
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()
        if name != b"cpu":
            cpus += 1
            continue
        ticks = [number(field) for field in fields[:8]]
        if len(ticks) == 8 and None not in ticks:
            user, nice, system, idle, iowait, irq, softirq, steal = (n or 0 for n in ticks)
            named = {"user": user + nice, "system": system + irq + softirq, "iowait": iowait}
            modes = {mode: n / TICKS for mode, n in {**named, "steal": steal, "idle": idle}.items()}
    return modes, cpus


def loads(text: bytes) -> dict[str, float]:
    """Load averages over 1m, 5m and 15m."""
    found: dict[str, float] = {}
    for over, field in zip(("1m", "5m", "15m"), text.split(), strict=False):
        with suppress(ValueError):
            value = float(field)
            if math.isfinite(value) and value >= 0:
                found[over] = value
    return found


def pressure(text: bytes) -> dict[str, float]:
    """Seconds in which some task, or all of them, stood still for want of a resource."""
    return {kind.decode(): int(total) / 1e6 for kind, total in _PRESSURE.findall(text)}


def disks(text: bytes) -> dict[str, list[float]]:
    """By whole disk: bytes read, bytes written, seconds with a request under way. From /proc/diskstats.

    Partitions, and what is made of disks (md, dm, loop), are left out: they would count the same bytes again.
    """
    found: dict[str, list[float]] = {}
    for line in text.split(b"\n"):
        fields = line.split()
        name = _name(fields[2]) if len(fields) >= 14 else ""
        numbers = [number(fields[i]) for i in (5, 9, 12)] if _DISK.fullmatch(name) else [None]
        if None not in numbers and len(found) < MAX_DEVICES:
            read, written, busy = (n or 0 for n in numbers)
            found[name] = [float(read * SECTOR), float(written * SECTOR), busy / 1e3]
    return found


def interfaces(text: bytes) -> dict[str, list[float]]:
    """By interface that is no virtual one: bytes, drops and errors received, then sent. From /proc/net/dev."""
    found: dict[str, list[float]] = {}
    for line in text.split(b"\n"):
        head, colon, rest = line.partition(b":")
        name = _name(head.strip())
        if not colon or not name or _VIRTUAL.fullmatch(name):
            continue
        fields = [number(field) for field in rest.split()]
        numbers = [fields[i] for i in (0, 3, 2, 8, 11, 10)] if len(fields) >= 16 else [None]
        if None not in numbers and len(found) < MAX_DEVICES:
            found[name] = [float(n or 0) for n in numbers]
    return found


def protocols(text: bytes) -> dict[str, int]:
    """`Protocol.Counter` -> value, from /proc/net/snmp or netstat: a line of names, then one of values."""
    found: dict[str, int] = {}
    lines = text.split(b"\n")
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        columns, numbers = names.split(), values.split()
        if not columns or numbers[:1] != columns[:1]:
            continue
        protocol = _name(columns[0].rstrip(b":"))
        for column, value in zip(columns[1:], numbers[1:], strict=False):
            count = number(value)
            if count is not None:
                found[f"{protocol}.{_name(column)}"] = count
    return found


def addresses(fib_trie: bytes, if_inet6: bytes) -> frozenset[str]:
    """The IP addresses of a network namespace, from /proc/PID/net/fib_trie and if_inet6."""
    found: set[str] = set()
    address = ""
    for line in fib_trie.split(b"\n"):
        stripped = line.strip()
        if stripped.startswith(b"|-- "):
            address = _name(stripped[4:])
        elif stripped == b"/32 host LOCAL" and address:
            found.add(address)
    for line in if_inet6.split(b"\n"):
        with suppress(ValueError, IndexError):
            found.add(str(ipaddress.IPv6Address(int(line.split()[0], 16))))
    return frozenset(found)


class Mount(NamedTuple):
    """A line of mountinfo."""

    root: str  # which part of its file system is mounted
    point: str  # where
    kind: str  # type of the file system
    options: frozenset[str]  # of the file system: for version 1 of cgroups, the controllers


def mounts(text: bytes) -> list[Mount]:
    """What is mounted for a process, in the order of mounting."""
    found = []
    for line in text.decode("utf-8", "replace").split("\n"):
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if dash and len(fields) >= 6 and len(kind) >= 3:
            found.append(Mount(_unescape(fields[3]), _unescape(fields[4]), kind[0], frozenset(kind[2].split(","))))
    return found


def cgroups(text: bytes) -> dict[str, str]:
    """Controller -> path, from /proc/PID/cgroup; version 2 is the controller "". Paths are as the reader sees them."""
    found: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").split("\n"):
        number_, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and number_.isdigit() and path.startswith("/"):
            found.update(dict.fromkeys(controllers.split(","), path.removesuffix(" (deleted)")))
    return found


def cpu_max(text: bytes) -> float | None:
    """Cores that cpu.max (`QUOTA PERIOD` in microseconds) allows; infinite where it sets no limit."""
    fields = text.split()
    if fields[:1] == [b"max"]:
        return math.inf
    quota, period = (number(fields[0]), number(fields[1])) if len(fields) == 2 else (None, None)
    return quota / period if quota is not None and period else None


def cfs_quota(quota: bytes, period: bytes) -> float | None:
    """The same of version 1: cpu.cfs_quota_us, -1 for no limit, and cpu.cfs_period_us."""
    return math.inf if quota.strip() == b"-1" else cpu_max(quota + b" " + period)


def limit(text: bytes) -> float | None:
    """A limit that is a number, or `max`; infinite where there is none."""
    stripped = text.strip()
    if stripped == b"max":
        return math.inf
    value = number(stripped)
    return None if value is None else math.inf if value >= _UNLIMITED_V1 else float(value)


def scaled_value(values: Mapping[str, int], name: str, scale: float = 1.0) -> float | None:
    """One of what `pick` found, in base units; None where it is not there."""
    return values[name] * scale if name in values else None


def ancestors(path: str) -> Iterator[str]:
    """A cgroup's path and those above it, up to "/"."""
    while path not in ("", "/"):
        yield path
        path = path.rpartition("/")[0]
    yield "/"


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def _name(raw: bytes) -> str:
    """A name that can be a label: short, and of plain characters; empty where it is not."""
    text = raw.decode("ascii", "replace")
    return text if len(text) <= 64 and text.isprintable() else ""

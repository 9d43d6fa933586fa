"""From looks at the node to families: what of it counts, what adds up, what ended.

Processes of one part of an engine are added up. A counter that several things add to goes on where it was when one of
them ends or another begins, so that a worker that died is no reset and one that joined is no burst.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kvitals.agent.gauge_writer import KeyedRows
from kvitals.agent.records import OK, CgroupSample, HostRecord, NodeSample, ProcessSample, RdmaPort
from kvitals.series.types import METRIC_NAME, Labels
from kvitals.series.window import Window

Engines = Callable[[str, str], str]
"""The `engine` label of a target (its key) and one of its ranks; "" is the page as a whole."""

Key = tuple[str, ...]
"""A series: its family, then names and values of labels in turn."""

_HALTED = {"D": "uninterruptible", "T": "stopped", "t": "stopped", "Z": "zombie"}
"""States of a process that does not compute, by the letter in /proc/PID/stat."""

MAX_TOTALS = 20_000
"""Counters whose value is kept while they have no sample, as when an engine restarts."""

_MEMORY = {
    "total": "kvitals_host_memory_total_bytes",
    "available": "kvitals_host_memory_available_bytes",
    "swap_total": "kvitals_host_swap_total_bytes",
    "swap_free": "kvitals_host_swap_free_bytes",
    "hugepages_total": "kvitals_host_hugepages_total_bytes",
    "hugepages_free": "kvitals_host_hugepages_free_bytes",
}
_PAGING = {
    "swapped_in": "kvitals_host_swapped_in_bytes_total",
    "swapped_out": "kvitals_host_swapped_out_bytes_total",
    "oom_kills": "kvitals_host_oom_kills_total",
}
_FILESYSTEM = ("kvitals_host_filesystem_size_bytes", "kvitals_host_filesystem_available_bytes")
_DISK = (
    "kvitals_host_disk_read_bytes_total",
    "kvitals_host_disk_written_bytes_total",
    "kvitals_host_disk_busy_seconds_total",
)
_NETWORK = ("kvitals_host_network_bytes_total", "kvitals_host_network_drops_total", "kvitals_host_network_errors_total")
_TCP = {
    "sent": "kvitals_host_tcp_segments_sent_total",
    "retransmitted": "kvitals_host_tcp_segments_retransmitted_total",
    "listen_overflows": "kvitals_host_tcp_listen_overflows_total",
}


class HostSeries:
    """Feeds records of the host sense into a window."""

    def __init__(self, window: Window, labels: Mapping[str, str]) -> None:
        self._labels = {name: value for name, value in labels.items() if value}
        self._rows: KeyedRows[Key] = KeyedRows(window, "host", self._named)
        self._counters = _Counters()
        self._before: dict[tuple[str, int, int], ProcessSample] = {}
        self._clock = math.nan

    def feed(self, record: HostRecord, engines: Engines) -> None:
        """Add a row: what the record says, and an end to every series of which it says nothing."""
        row = _Row()
        row.add(1.0, "kvitals_sense_state", "sense", "host", "state", record.state, "reason", record.reason)
        row.add(record.duration, "kvitals_sense_duration_seconds", "sense", "host")
        _node(row, record.node)
        running = [process for process in record.processes if process.state == OK]
        names = _names(record.processes, engines)
        self._since(row, record.clock, running, names)
        _halted(row, record.processes, names)
        for engine, processes in _by_engine(running, names).items():
            _processes(row, engine, processes)
            _cgroups(row, engine, processes, {level.key: level for level in record.cgroups})
        self._rows.write(record.t, row.gauges | self._counters.totals(row.counters))

    def _since(
        self, row: _Row, clock: float, running: Sequence[ProcessSample], names: Mapping[tuple[str, str], Sequence[str]]
    ) -> None:
        """What the busiest process of each part did since the last look."""
        before, seconds = self._before, clock - self._clock
        self._before = {(p.target, p.pid, p.start_time): p for p in running}
        self._clock = clock
        if not seconds > 0:
            return
        for identity, now in self._before.items():
            was = before.get(identity)
            if was is None:
                continue
            shares = {
                "kvitals_engine_process_busiest_cores": now.user + now.system - was.user - was.system,
                "kvitals_engine_process_busiest_main_thread_cores": _grown(now.main_running, was.main_running),
                "kvitals_engine_process_longest_run_delay_ratio": _grown(now.main_waiting, was.main_waiting),
            }
            for engine in names[now.target, now.rank]:
                for family, grown in shares.items():
                    if grown is not None:
                        row.most(max(grown, 0.0) / seconds, family, "engine", engine, "part", now.part)

    def _named(self, key: Key) -> Labels:
        return Labels({**self._labels, **dict(zip(key[1::2], key[2::2], strict=True)), METRIC_NAME: key[0]})


class _Row:
    """The values of one look by series. None is unknown and is left out."""

    def __init__(self) -> None:
        self.gauges: dict[Key, float] = {}
        self.counters: dict[Key, dict[str, float]] = {}  # series -> what adds to it -> its own count

    def add(self, value: float | None, *key: str) -> None:
        """A gauge; several values of one series are added up."""
        if value is not None:
            self.gauges[key] = self.gauges.get(key, 0.0) + value

    def most(self, value: float | None, *key: str) -> None:
        """A gauge; of several values of one series the largest holds."""
        if value is not None:
            self.gauges[key] = max(self.gauges.get(key, -math.inf), value)

    def count(self, value: float | None, source: str, *key: str) -> None:
        """A counter, and what of it `source` has counted since it began."""
        if value is not None:
            self.counters.setdefault(key, {})[source] = value


class _Counters:
    """Counters that go on whatever becomes of what adds to them."""

    def __init__(self) -> None:
        self._totals: dict[Key, float] = {}
        self._before: dict[Key, dict[str, float]] = {}

    def totals(self, counts: Mapping[Key, Mapping[str, float]]) -> dict[Key, float]:
        """The counters now. A new one begins with what its sources have; a source that joins one later adds from then
        on, and so does one that fell back to less than half, which is a reset. A small fall is none: the kernel's
        times of idle CPUs go back a little now and then."""
        for key, sources in counts.items():
            before = self._before.get(key)
            if key not in self._totals:
                self._totals[key] = sum(sources.values())
                self._before[key] = dict(sources)
                continue
            now = {source: _after(value, (before or {}).get(source)) for source, value in sources.items()}
            self._totals[key] += sum(grown for grown, _ in now.values())
            self._before[key] = {source: last for source, (_, last) in now.items()}
        for key in self._before.keys() - counts.keys():
            del self._before[key]
        if len(self._totals) > MAX_TOTALS:
            self._totals = {key: self._totals[key] for key in counts}
        return {key: self._totals[key] for key in counts}


def _after(now: float, before: float | None) -> tuple[float, float]:
    """How much a count grew, and what to compare the next one with."""
    if before is None:
        return 0.0, now
    if now >= before:
        return now - before, now
    return (now, now) if now < before / 2 else (0.0, before)


def _node(row: _Row, node: NodeSample) -> None:
    if node.cpus:
        row.add(float(node.cpus), "kvitals_host_cpus")
    for mode, seconds in node.cpu.items():
        row.count(seconds, "", "kvitals_host_cpu_seconds_total", "mode", mode)
    for over, load in node.load.items():
        row.add(load, "kvitals_host_load", "over", over)
    for name, size in node.memory.items():
        if name in _MEMORY:
            row.add(size, _MEMORY[name])
    for name, count in node.paging.items():
        if name in _PAGING:
            row.count(count, "", _PAGING[name])
    for which, seconds in node.pressure.items():
        row.count(seconds, "", "kvitals_host_pressure_seconds_total", *_pressure(which))
    for path, sizes in node.filesystems.items():
        for family, size in zip(_FILESYSTEM, sizes, strict=False):
            row.add(size, family, "path", path)
    for device, numbers in node.disks.items():
        for family, number in zip(_DISK, numbers, strict=False):
            row.count(number, "", family, "device", device)
    for device, numbers in node.interfaces.items():
        directions = ("received", "sent")
        for i, number in enumerate(numbers[: 2 * len(_NETWORK)]):
            row.count(number, "", _NETWORK[i % 3], "device", device, "direction", directions[i // 3])
    for name, count in node.tcp.items():
        if name in _TCP:
            row.count(count, "", _TCP[name])
    for port, sample in node.rdma.items():
        _rdma_port(row, port, sample)


def _rdma_port(row: _Row, port: str, sample: RdmaPort) -> None:
    row.add(float(sample.active), "kvitals_host_rdma_port_active", "port", port)
    row.add(sample.rate, "kvitals_host_rdma_rate_bytes_per_second", "port", port)
    for direction, count in (("received", sample.received), ("sent", sample.sent)):
        row.count(count, "", "kvitals_host_rdma_bytes_total", "port", port, "direction", direction)
    for kind, events in sample.faults.items():
        row.count(events, "", "kvitals_host_rdma_faults_total", "port", port, "kind", kind)


def _processes(row: _Row, engine: str, processes: Iterable[ProcessSample]) -> None:
    for p in processes:
        who, of = f"{p.pid}/{p.start_time}", ("engine", engine, "part", p.part)
        row.add(1.0, "kvitals_engine_processes", *of)
        row.count(p.user, who, "kvitals_engine_process_cpu_seconds_total", *of, "mode", "user")
        row.count(p.system, who, "kvitals_engine_process_cpu_seconds_total", *of, "mode", "system")
        row.add(p.resident, "kvitals_engine_process_resident_bytes", *of)
        row.add(p.swapped, "kvitals_engine_process_swapped_bytes", *of)
        row.add(float(p.threads), "kvitals_engine_process_threads", *of)
        row.add(_float(p.fds), "kvitals_engine_process_open_fds", *of)
        family = "kvitals_engine_process_context_switches_total"
        row.count(_float(p.voluntary), who, family, *of, "kind", "voluntary")
        row.count(_float(p.involuntary), who, family, *of, "kind", "involuntary")


def _halted(row: _Row, processes: Iterable[ProcessSample], names: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """How many processes of each part are in a state in which they do not compute; 0 is written too."""
    for process in processes:
        for engine in names[process.target, process.rank] if process.run_state else ():
            for state in dict.fromkeys(_HALTED.values()):
                here = float(_HALTED.get(process.run_state) == state)
                of = ("engine", engine, "part", process.part, "state", state)
                row.add(here, "kvitals_engine_processes_halted", *of)


def _cgroups(row: _Row, engine: str, processes: Sequence[ProcessSample], found: Mapping[str, CgroupSample]) -> None:
    """Limits and use of the cgroups that most of an engine's processes are in."""
    own = Counter(process.cgroups for process in processes).most_common(1)[0][0]
    trees = [list(_climb(key, found)) for key in own]
    levels = [level for tree in trees for level in tree]
    of = ("engine", engine)
    allowed = [float(process.cpus_allowed) for process in processes if process.cpus_allowed]
    cores = [level.cores for level in levels if level.cores is not None]
    if cores and allowed:
        row.add(min(*cores, max(allowed)), "kvitals_engine_cpu_limit_cores", *of)
    for tree in trees:
        for depth, level in enumerate(tree):
            if level.cores is not None and math.isfinite(level.cores):
                _throttling(row, level, *of, "level", str(depth))
        if tree:
            _use(row, tree[0], *of)
    for value, family in (
        (_least(level.memory_max for level in levels), "kvitals_engine_memory_limit_bytes"),
        (_least(level.memory_high for level in levels), "kvitals_engine_memory_high_bytes"),
        (_least(_room(level.memory_max, level.memory) for level in levels), "kvitals_engine_memory_headroom_bytes"),
        (_least(level.tasks_max for level in levels), "kvitals_engine_tasks_limit"),
    ):
        row.add(value, family, *of)


def _throttling(row: _Row, level: CgroupSample, *of: str) -> None:
    row.add(level.cores, "kvitals_engine_cpu_quota_cores", *of)
    row.count(level.cpu_seconds, level.key, "kvitals_engine_cpu_used_seconds_total", *of)
    row.count(level.periods, level.key, "kvitals_engine_cpu_periods_total", *of)
    row.count(level.throttled_periods, level.key, "kvitals_engine_cpu_throttled_periods_total", *of)
    row.count(level.throttled_seconds, level.key, "kvitals_engine_cpu_throttled_seconds_total", *of)


def _use(row: _Row, own: CgroupSample, *of: str) -> None:
    row.add(own.memory, "kvitals_engine_memory_used_bytes", *of)
    row.add(own.tasks, "kvitals_engine_tasks", *of)
    for event, count in own.memory_events.items():
        row.count(float(count), own.key, "kvitals_engine_memory_events_total", *of, "event", event)
    for which, seconds in own.pressure.items():
        row.count(seconds, own.key, "kvitals_engine_pressure_seconds_total", *of, *_pressure(which))


def _names(running: Iterable[ProcessSample], engines: Engines) -> dict[tuple[str, str], list[str]]:
    """The engines that a process serves, by target and rank: an API server serves every rank behind it."""
    ranks: dict[str, dict[str, None]] = {}
    for process in running:
        ranks.setdefault(process.target, {})[process.rank] = None
    names: dict[tuple[str, str], list[str]] = {}
    for target, found in ranks.items():
        own = {rank: engines(target, rank) for rank in found if rank}
        names.update({(target, rank): [engine] for rank, engine in own.items()})
        names[target, ""] = list(dict.fromkeys(own.values())) or [engines(target, "")]
    return names


def _by_engine(
    running: Iterable[ProcessSample], names: Mapping[tuple[str, str], Sequence[str]]
) -> dict[str, list[ProcessSample]]:
    found: dict[str, list[ProcessSample]] = {}
    for process in running:
        for engine in names[process.target, process.rank]:
            found.setdefault(engine, []).append(process)
    return found


def _climb(key: str, found: Mapping[str, CgroupSample]) -> Iterator[CgroupSample]:
    """A cgroup and those above it. A record comes from anywhere, so a ring of parents must end too."""
    for _ in range(len(found)):
        level = found.get(key)
        if level is None:
            return
        yield level
        key = level.parent


def _pressure(which: str) -> tuple[str, ...]:
    resource, _, kind = which.partition(" ")
    return "resource", resource, "kind", kind


def _least(values: Iterable[float | None]) -> float | None:
    """The smallest one that is a limit; None where there is none."""
    return min((value for value in values if value is not None and math.isfinite(value)), default=None)


def _room(most: float | None, used: float | None) -> float | None:
    return None if most is None or used is None else max(most - used, 0.0)


def _grown(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)

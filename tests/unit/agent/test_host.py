"""The host sense: real processes, cgroups of both versions, pids that are used again, and what it can not see."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.discovery import System
from agent.exports.metrics import newest
from agent.process_titles import ProcessRef
from agent.records import CgroupSample, HostRecord, NodeSample, ProcessSample
from agent.senses import cgroups, host, procfs
from agent.senses.cgroups import Cgroups
from agent.senses.host import REASONS, HostSense
from agent.senses.procfs import Mount
from diagnoser.signals import Signals, Span
from rules.loader import ROOT, family_of, load
from series.window import Window

RECORDED = Path(__file__).parents[2] / "fixtures" / "host"
KNOWLEDGE = load()
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LABELS = {"cluster": "c", "node": "n"}
BURN = "while True: pass"


def engine(key: str, rank: str) -> str:
    return f"{key}/{rank or 0}"


class Watched:
    """A sense with its window, and what is in it now."""

    def __init__(self) -> None:
        self.window = Window(600, 20_000)
        self.sense = HostSense(self.window, LABELS)

    def feed(self, record: HostRecord) -> None:
        self.sense.feed(record, engine)
        self.now = record.t

    def values(self) -> dict[str, float]:
        """`family{other labels}` -> value."""
        found = {}
        for labels, value in newest(self.window, self.now, 60):
            assert labels["cluster"] == "c" and labels["node"] == "n"
            rest = {k: v for k, v in labels.items() if k not in ("__name__", "cluster", "node")}
            inner = ",".join(f"{k}={v}" for k, v in sorted(rest.items()))
            found[f"{labels.name}{{{inner}}}"] = value
        return found


@pytest.fixture
def watched() -> Watched:
    return Watched()


def record(t: float, *processes: ProcessSample, levels: Sequence[CgroupSample] = (), **more: object) -> HostRecord:
    return HostRecord(t=t, clock=t, processes=processes, cgroups=tuple(levels), **more)  # type: ignore[arg-type]


def process(pid: int = 7, part: str = "worker", **more: object) -> ProcessSample:
    values = {"target": "a", "start_time": 1, "cgroups": ("/pod/box",), "cpus_allowed": 8, **more}
    return ProcessSample(pid=pid, part=part, **values)  # type: ignore[arg-type]


class TestRead:
    """With real processes and the real /proc."""

    @pytest.fixture
    def child(self) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen([sys.executable, "-c", BURN]) as process:
            try:
                yield process
            finally:
                process.kill()

    @staticmethod
    def ref(pid: int, part: str = "api_server") -> ProcessRef:
        return ProcessRef(pid, System().started(pid), part, "")

    @linux
    def test_a_process_that_burns_cpu(self, watched: Watched, child: subprocess.Popen[bytes]) -> None:
        refs = {"a": [self.ref(child.pid)]}
        deadline = time.monotonic() + 20
        while sum(psutil.Process(child.pid).cpu_times()[:2]) < 0.1 and time.monotonic() < deadline:
            time.sleep(0.02)
        before = psutil.Process(child.pid).cpu_times()
        first = watched.sense.read(1000.0, refs)
        watched.feed(first)
        time.sleep(0.3)
        watched.feed(watched.sense.read(1005.0, refs))
        after = psutil.Process(child.pid).cpu_times()
        (sample,) = first.processes
        assert sample.state == "ok"
        assert sample.threads == psutil.Process(child.pid).num_threads()
        values = watched.values()
        used = values["kvitals_engine_process_cpu_seconds_total{engine=a/0,mode=user,part=api_server}"]
        assert before.user <= used <= after.user
        busiest = values["kvitals_engine_process_busiest_cores{engine=a/0,part=api_server}"]
        main = values["kvitals_engine_process_busiest_main_thread_cores{engine=a/0,part=api_server}"]
        assert 0 < busiest < 1.2
        assert main == pytest.approx(busiest, abs=0.1)  # it has one thread; the kernel counts the two apart
        assert values["kvitals_engine_process_resident_bytes{engine=a/0,part=api_server}"] > 1e6

    @linux
    def test_the_node(self, watched: Watched) -> None:
        node = watched.sense.read(1000.0, {}).node
        assert node.cpus == os.cpu_count()
        assert node.memory["total"] == psutil.virtual_memory().total
        assert node.memory["swap_total"] == psutil.swap_memory().total
        assert 0 < node.memory["available"] <= node.memory["total"]
        times = psutil.cpu_times()
        assert node.cpu["idle"] == pytest.approx(times.idle, abs=60)
        assert node.cpu["user"] == pytest.approx(times.user + times.nice, abs=60)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        assert ("/" in node.filesystems) == ("/" in mounts)  # a chroot's root is no mount
        for place, sizes in node.filesystems.items():
            assert sizes[0] == psutil.disk_usage(place).total

    @linux
    def test_a_pid_that_is_used_again(self, watched: Watched, child: subprocess.Popen[bytes]) -> None:
        refs = {"a": [ProcessRef(child.pid, 1, "worker", ""), self.ref(child.pid)]}
        assert [p.state for p in watched.sense.read(1.0, refs).processes] == ["replaced", "ok"]

    @linux
    def test_a_process_that_is_gone(self, watched: Watched) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        deadline = time.monotonic() + 20
        while psutil.Process(gone.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
        refs = {"a": [ProcessRef(gone.pid, 0, "worker", "")]}
        zombie = watched.sense.read(1.0, refs)
        gone.wait()
        ended = watched.sense.read(2.0, refs)
        assert [zombie.processes[0].state, ended.processes[0].state] == ["gone", "gone"]

    @linux
    def test_a_process_that_dies_between_two_files(self, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        def only_stat(path: str, most: int) -> bytes:
            if path.startswith(f"/proc/{os.getpid()}/") and not path.endswith("/stat"):
                raise ProcessLookupError
            return slurp(path, most)

        slurp = host._slurp
        monkeypatch.setattr(host, "_slurp", only_stat)
        (sample,) = watched.sense.read(1.0, {"a": [self.ref(os.getpid())]}).processes
        assert sample.state == "ok"
        assert sample.swapped is None and sample.main_running is None and sample.cgroups == ()

    @linux
    def test_a_process_that_we_may_not_read(self, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(path: str, most: int) -> bytes:
            if path == "/proc/4242/stat":
                raise PermissionError
            return slurp(path, most)

        slurp = host._slurp
        monkeypatch.setattr(host, "_slurp", denied)
        found = watched.sense.read(1.0, {"a": [ProcessRef(4242, 5, "worker", "")]})
        assert (found.state, found.reason, found.processes[0].state) == ("partial", "hidden_processes", "hidden")
        watched.feed(found)
        assert "kvitals_sense_state{reason=hidden_processes,sense=host,state=partial}" in watched.values()
        assert not any("kvitals_engine_processes" in series for series in watched.values())

    @linux
    def test_an_engine_without_processes(self, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        readlink = os.readlink
        monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026531836]" if "ns/pid" in path else readlink(path))
        assert watched.sense.read(1.0, {"a": []}).reason == "no_processes"
        monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026532999]" if "ns/pid" in path else readlink(path))
        assert watched.sense.read(1.0, {"a": []}).reason == "container_processes"
        assert watched.sense.read(1.0, {}).state == "ok"

    @linux
    def test_more_processes_than_are_looked_at(self, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host, "MAX_PROCESSES", 1)
        found = watched.sense.read(1.0, {"a": [self.ref(os.getpid())] * 3})
        assert len(found.processes) == 1
        assert found.reason in ("too_many_processes", "hidden_cgroups")

    def test_where_there_is_no_proc(self, watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)
        found = watched.sense.read(1.0, {"a": []})
        assert (found.state, found.reason) == ("not_applicable", "no_procfs")
        monkeypatch.setattr(sys, "platform", "darwin")
        assert watched.sense.read(1.0, {"a": []}).reason == "no_procfs"
        watched.feed(found)
        assert list(watched.values()) == [
            "kvitals_sense_state{reason=no_procfs,sense=host,state=not_applicable}",
            "kvitals_sense_duration_seconds{sense=host}",
        ]

    @linux
    def test_a_fault_is_a_state(self, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(_: bytes) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(procfs, "cpu_seconds", broken)
        found = watched.sense.read(1.0, {})
        assert (found.state, found.reason) == ("failed", "internal")

    @linux
    def test_a_proc_of_the_host_mounted_elsewhere(
        self, watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        files = {
            "stat": "stat",
            "meminfo": "meminfo",
            "1/net/dev": "net-dev",
            "1/net/snmp": "net-snmp",
            "4242/stat": "process-stat",
            "4242/status": "process-status",
            "4242/schedstat": "process-schedstat",
        }
        for path, name in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes((RECORDED / f"{name}.txt").read_bytes())
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)
        found = watched.sense.read(1.0, {"a": [ProcessRef(4242, 1229495, "worker", "")]})
        assert found.node.cpus == 2
        assert found.node.memory["total"] == 24684096 * 1024
        assert list(found.node.interfaces) == ["eth0"]
        assert found.processes[0].state == "ok"
        assert found.reason == "hidden_cgroups"  # it has no such file

    @linux
    def test_a_network_file_system_is_not_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []
        statvfs = os.statvfs
        monkeypatch.setattr(os, "statvfs", lambda path: asked.append(path) or statvfs("/"))
        sense = HostSense(Window(60, 1000), LABELS, paths=("/", "/models/x", "/modelsx"))
        sense._mounts = [Mount("/", "/", "ext4", frozenset()), Mount("/", "/models", "nfs4", frozenset())]
        sense._mounts_at = math.inf
        assert set(sense.read(1.0, {}).node.filesystems) == {"/", "/modelsx"}
        assert asked == ["/", "/modelsx"]

    @linux
    def test_a_real_quota(self, watched: Watched, child: subprocess.Popen[bytes]) -> None:
        """A cgroup with a quota of 0.1 cores, of whichever version there is, where we may make one."""
        folder = quota_group(f"kvitals-test-{os.getpid()}")
        if folder is None:
            pytest.skip("no cgroup with a CPU quota can be made here")
        try:
            (folder / "cgroup.procs").write_text(str(child.pid))
            refs = {"a": [self.ref(child.pid)]}
            key = "kvitals_engine_cpu_throttled_periods_total{engine=a/0,level=0}"
            deadline = time.monotonic() + 30
            t = 1.0
            while time.monotonic() < deadline:
                watched.feed(watched.sense.read(t, refs))
                if watched.values().get(key, 0) >= 2:
                    break
                t += 1.0
                time.sleep(0.05)
            values = watched.values()
            assert values["kvitals_engine_cpu_limit_cores{engine=a/0}"] == pytest.approx(0.1)
            assert values[key] >= 2
            assert values["kvitals_engine_cpu_throttled_seconds_total{engine=a/0,level=0}"] > 0
        finally:
            child.kill()
            child.wait()
            deadline = time.monotonic() + 10
            while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
                time.sleep(0.02)
            folder.rmdir()


def quota_group(name: str) -> Path | None:
    """A new cgroup that may use 0.1 cores; None where there can be none."""
    try:
        mounts = procfs.mounts(Path("/proc/self/mountinfo").read_bytes())
        for mount in mounts:
            folder = Path(mount.point) / name
            if mount.kind == "cgroup" and "cpu" in mount.options:
                folder.mkdir()
                (folder / "cpu.cfs_quota_us").write_text("10000")
                return folder
            if mount.kind == "cgroup2" and "cpu" in (Path(mount.point) / "cgroup.subtree_control").read_text().split():
                folder.mkdir()
                (folder / "cpu.max").write_text("10000 100000")
                return folder
    except OSError:
        return None
    return None


class TestCgroups:
    """Trees that were written down. The texts of version 2 are after the kernel's admin-guide/cgroup-v2."""

    V2 = (Mount("/", "/cg", "cgroup2", frozenset({"rw"})),)
    POD = "/kubepods.slice/kubepods-pod1.slice"
    BOX = f"{POD}/cri-containerd-ab.scope"
    STAT = b"usage_usec 2500000\nuser_usec 2\nsystem_usec 1\nnr_periods 100\nnr_throttled 40\nthrottled_usec 7000000\n"
    FILES: Mapping[str, bytes] = {
        "/cg/cpu.stat": b"usage_usec 99\nuser_usec 2\nsystem_usec 1\n",
        "/cg/kubepods.slice/cpu.stat": b"usage_usec 9\n",
        "/cg/kubepods.slice/cgroup.type": b"domain\n",
        f"/cg{POD}/cpu.stat": STAT,
        f"/cg{POD}/cpu.max": b"150000 100000\n",
        f"/cg{POD}/memory.current": b"700\n",
        f"/cg{POD}/memory.max": b"1000\n",
        f"/cg{BOX}/cpu.stat": STAT,
        f"/cg{BOX}/cpu.max": b"max 100000\n",
        f"/cg{BOX}/memory.current": b"600\n",
        f"/cg{BOX}/memory.max": b"max\n",
        f"/cg{BOX}/memory.high": b"max\n",
        f"/cg{BOX}/memory.events": b"low 0\nhigh 0\nmax 35\noom 1\noom_kill 1\noom_group_kill 0\n",
        f"/cg{BOX}/pids.current": b"12\n",
        f"/cg{BOX}/pids.max": b"128\n",
        f"/cg{BOX}/memory.pressure": b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n",
    }

    @staticmethod
    def look(
        files: Mapping[str, bytes], mounts: Sequence[Mount], paths: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, CgroupSample]]:
        seen = Cgroups(mounts, lambda path: files.get(path, b""))
        keys = seen.of(paths)
        return keys, {sample.key: sample for sample in seen.found}

    def test_a_container_of_version_2(self, watched: Watched) -> None:
        keys, found = self.look(self.FILES, self.V2, {"": self.BOX})
        assert keys == (self.BOX,)
        assert list(found) == [self.BOX, self.POD, "/kubepods.slice", "/"]
        box, pod = found[self.BOX], found[self.POD]
        assert (box.cores, pod.cores, found["/"].cores) == (math.inf, 1.5, math.inf)
        assert (box.memory, box.memory_max, pod.memory_max) == (600.0, math.inf, 1000.0)
        assert (box.cpu_seconds, box.throttled_seconds) == (2.5, 7.0)
        assert found["/"].memory is None  # what the node uses is not what an engine uses
        watched.feed(record(1.0, process(cgroups=keys), levels=list(found.values())))
        values = watched.values()
        assert values["kvitals_engine_cpu_limit_cores{engine=a/0}"] == 1.5
        assert values["kvitals_engine_cpu_throttled_periods_total{engine=a/0,level=1}"] == 40
        assert "kvitals_engine_cpu_throttled_periods_total{engine=a/0,level=0}" not in values
        assert values["kvitals_engine_memory_limit_bytes{engine=a/0}"] == 1000
        assert values["kvitals_engine_memory_headroom_bytes{engine=a/0}"] == 300
        assert values["kvitals_engine_memory_used_bytes{engine=a/0}"] == 600
        assert values["kvitals_engine_memory_events_total{engine=a/0,event=oom_kill}"] == 1
        assert values["kvitals_engine_tasks_limit{engine=a/0}"] == 128
        assert values["kvitals_engine_pressure_seconds_total{engine=a/0,kind=some,resource=memory}"] == 1.5
        assert "kvitals_engine_memory_high_bytes{engine=a/0}" not in values

    def test_without_a_quota_the_cpus_are_the_limit(self, watched: Watched) -> None:
        files = {path: text for path, text in self.FILES.items() if not path.endswith("cpu.max")}
        keys, found = self.look(files, self.V2, {"": self.BOX})
        samples = [process(1, cgroups=keys, cpus_allowed=2), process(2, cgroups=keys, cpus_allowed=8)]
        watched.feed(record(1.0, *samples, levels=list(found.values())))
        assert watched.values()["kvitals_engine_cpu_limit_cores{engine=a/0}"] == 8

    def test_levels_are_read_once(self) -> None:
        reads: list[str] = []

        def read(path: str) -> bytes:
            reads.append(path)
            return self.FILES.get(path, b"")

        seen = Cgroups(self.V2, read)
        for _ in range(5):
            seen.of({"": self.BOX})
        assert len(reads) == len(set(reads))

    def test_version_1(self) -> None:
        mounts = procfs.mounts((RECORDED / "mountinfo-hybrid.txt").read_bytes())
        paths = cgroups.controllers((RECORDED / "cgroup-hybrid.txt").read_bytes()) | {"cpu": "/kv"}
        unit = "/sys/fs/cgroup/memory/system.slice/vllm.service"
        files = {
            f"{folder}/{name}": (RECORDED / f"v1-{name}.txt").read_bytes()
            for folder, names in {
                "/sys/fs/cgroup/cpu/kv": ("cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
                unit: ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control"),
            }.items()
            for name in names
        }
        files["/sys/fs/cgroup/unified/cpu.stat"] = b"usage_usec 1\n"
        keys, found = self.look(files, mounts, paths)
        assert keys == ("/", "cpu:/kv", "memory:/system.slice/vllm.service")
        assert found["cpu:/kv"].cores == pytest.approx(0.3)
        assert (found["cpu:/kv"].periods, found["cpu:/kv"].throttled_periods) == (11, 10)
        assert found["cpu:/kv"].throttled_seconds == pytest.approx(0.663434732)
        memory = found["memory:/system.slice/vllm.service"]
        assert (memory.memory, memory.memory_max, memory.memory_events) == (49872896.0, math.inf, {"oom_kill": 0})

    def test_only_a_part_of_the_tree_is_mounted(self) -> None:
        """As in a container of version 1: the mount's root is the container's own cgroup."""
        mounts = [Mount("/docker/ab", "/cg", "cgroup", frozenset({"cpu", "cpuacct"}))]
        files = {
            "/cg/cpu.stat": b"nr_periods 1\n",
            "/cg/cpu.cfs_quota_us": b"50000\n",
            "/cg/cpu.cfs_period_us": b"100000\n",
            "/cg/x/cpu.stat": b"nr_periods 1\n",
        }
        keys, found = self.look(files, mounts, {"cpu": "/docker/ab/x"})
        assert keys == ("cpu:/docker/ab/x",)
        assert [(s.key, s.parent, s.cores) for s in found.values()] == [
            ("cpu:/docker/ab/x", "cpu:/docker/ab", None),
            ("cpu:/docker/ab", "", 0.5),
        ]
        assert self.look(files, mounts, {"cpu": "/docker/abc"})[0] == ()

    @pytest.mark.parametrize("path", ["/../kubepods/x", "/..", "/a/../../b"])
    def test_what_is_outside_of_our_namespace(self, path: str) -> None:
        assert self.look(self.FILES, self.V2, {"": path}) == ((), {})

    def test_a_tree_that_is_too_deep_or_too_wide(self) -> None:
        seen = Cgroups(self.V2, lambda path: b"1\n")
        seen.of({"": "/a" * 5000})
        assert len(seen.found) <= cgroups.MAX_LEVELS
        for i in range(1000):
            seen.of({"": f"/b{i}"})
        assert len(seen.found) <= cgroups.MAX_CGROUPS


class TestFeed:
    def test_workers_are_added_up_and_the_busiest_stands_out(self, watched: Watched) -> None:
        for t, first, second in ((0.0, 10.0, 20.0), (5.0, 10.5, 24.75)):
            watched.feed(
                record(
                    t + 1,
                    process(1, user=first, main_running=first, main_waiting=0.0, resident=100.0),
                    process(2, user=second, main_running=second / 2, main_waiting=t / 10, resident=50.0),
                )
            )
        values = watched.values()
        assert values["kvitals_engine_processes{engine=a/0,part=worker}"] == 2
        assert values["kvitals_engine_process_resident_bytes{engine=a/0,part=worker}"] == 150
        assert values["kvitals_engine_process_cpu_seconds_total{engine=a/0,mode=user,part=worker}"] == 35.25
        assert values["kvitals_engine_process_busiest_cores{engine=a/0,part=worker}"] == pytest.approx(0.95)
        assert values["kvitals_engine_process_busiest_main_thread_cores{engine=a/0,part=worker}"] == pytest.approx(
            0.475
        )
        assert values["kvitals_engine_process_longest_run_delay_ratio{engine=a/0,part=worker}"] == pytest.approx(0.1)

    def test_a_worker_that_ends_is_no_reset_and_a_new_one_no_burst(self, watched: Watched) -> None:
        key = "kvitals_engine_process_cpu_seconds_total{engine=a/0,mode=user,part=worker}"
        looks = [
            [process(1, user=100.0), process(2, user=200.0)],
            [process(1, user=101.0)],
            [process(1, user=102.0), process(2, user=500.0, start_time=9)],
            [],
            [process(3, user=1.0), process(2, user=501.0, start_time=9)],
            [process(3, user=2.0), process(2, user=501.0, start_time=9)],
        ]
        seen = []
        for t, processes in enumerate(looks):
            watched.feed(record(t * 5.0 + 1, *processes))
            seen.append(watched.values().get(key))
        assert seen == [300, 301, 302, None, 302, 303]

    def test_counters_of_the_node(self, watched: Watched) -> None:
        """Idle time goes back a little now and then; an interface that is made anew counts from nothing."""
        idle, received = (
            "kvitals_host_cpu_seconds_total{mode=idle}",
            "kvitals_host_network_bytes_total{device=eth0,direction=received}",
        )
        seen = []
        for t, (seconds, count) in enumerate([(100.0, 1000.0), (99.9, 1500.0), (101.0, 20.0), (102.0, 50.0)]):
            node = NodeSample(cpu={"idle": seconds}, interfaces={"eth0": [count, 0, 0, 0, 0, 0]})
            watched.feed(record(t + 1.0, node=node))
            seen.append((watched.values()[idle], watched.values()[received]))
        assert seen == [(100, 1000), (100, 1500), (101, 1520), (102, 1550)]

    def test_what_serves_every_rank_counts_for_each(self, watched: Watched) -> None:
        watched.feed(
            record(
                1.0,
                process(1, part="api_server", user=5.0),
                process(2, part="engine_core", rank="0", user=1.0),
                process(3, part="engine_core", rank="1", user=2.0),
            )
        )
        values = watched.values()
        total = "kvitals_engine_process_cpu_seconds_total{{engine=a/{},mode=user,part={}}}"
        assert values[total.format(0, "engine_core")] == 1
        assert values[total.format(1, "engine_core")] == 2
        assert values[total.format(0, "api_server")] == values[total.format(1, "api_server")] == 5

    def test_unknown_is_not_zero(self, watched: Watched) -> None:
        watched.feed(record(1.0, process(cgroups=())))
        watched.feed(record(6.0, process(cgroups=())))
        families = {series.partition("{")[0] for series in watched.values()}
        assert not [
            f for f in families if f.startswith(("kvitals_engine_cpu", "kvitals_engine_memory", "kvitals_host"))
        ]
        assert "kvitals_engine_process_open_fds" not in families
        assert "kvitals_engine_process_busiest_main_thread_cores" not in families
        assert "kvitals_engine_process_busiest_cores" in families

    def test_a_clock_that_stands_still(self, watched: Watched) -> None:
        for t in (1.0, 2.0):
            watched.feed(msgspec.structs.replace(record(t, process()), clock=5.0))
        assert not any("busiest" in series for series in watched.values())

    def test_engines_that_come_and_go_do_not_fill_memory(
        self, watched: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from agent.senses import host_series

        monkeypatch.setattr(host_series, "MAX_TOTALS", 50)
        for t in range(200):
            watched.feed(record(t + 1.0, process(target=f"http://{t}")))
        assert len(watched.sense._series._counters._totals) <= 60
        assert len(watched.sense._series._rows._columns) < 20

    def test_a_ring_of_cgroups_ends(self, watched: Watched) -> None:
        levels = [CgroupSample(key="/a", parent="/b", cores=1.0), CgroupSample(key="/b", parent="/a", cores=2.0)]
        watched.feed(record(1.0, process(cgroups=("/a",)), levels=levels))
        assert watched.values()["kvitals_engine_cpu_limit_cores{engine=a/0}"] == 1

    def test_every_series_is_of_a_known_family_with_its_labels(self, watched: Watched) -> None:
        node = NodeSample(
            cpus=2,
            cpu={"user": 1.0},
            load={"1m": 1.0},
            memory=dict.fromkeys(
                ("total", "available", "swap_total", "swap_free", "hugepages_total", "hugepages_free"), 1.0
            ),
            paging=dict.fromkeys(("swapped_in", "swapped_out", "oom_kills"), 1.0),
            pressure={"cpu some": 1.0},
            filesystems={"/": [2.0, 1.0]},
            disks={"sda": [1.0, 2.0, 3.0]},
            interfaces={"eth0": [1.0] * 6},
            tcp=dict.fromkeys(("sent", "retransmitted", "listen_overflows"), 1.0),
        )
        level = CgroupSample(
            key="/pod/box",
            cores=1.0,
            cpu_seconds=1.0,
            periods=1.0,
            throttled_periods=1.0,
            throttled_seconds=1.0,
            memory=1.0,
            memory_max=2.0,
            memory_high=2.0,
            memory_events={"oom": 1},
            tasks=1.0,
            tasks_max=2.0,
            pressure={"io full": 1.0},
        )
        full = process(swapped=1.0, fds=1, main_running=1.0, main_waiting=1.0, voluntary=1, involuntary=1)
        for t in (1.0, 6.0):
            watched.feed(record(t, full, levels=[level], node=node))
        seen = set()
        for labels, _ in newest(watched.window, 6.0, 60):
            family = family_of(labels.name, KNOWLEDGE.families)
            assert family is not None, labels
            seen.add(family)
            own = {name for name in labels if name not in ("__name__", "cluster", "node", "engine")}
            assert own <= set(KNOWLEDGE.families[family].labels), labels
        written = yaml.safe_load((ROOT / "signals" / "host.yaml").read_text())["families"]
        assert set(written) <= seen

    def test_signals_of_a_throttled_engine(self, watched: Watched) -> None:
        """Forty of every fifty periods throttled at the pod's level, and an event loop at 0.95 of a core."""
        for i in range(13):
            watched.feed(
                record(
                    1000.0 + i * 5,
                    process(1, part="api_server", main_running=i * 4.75, cgroups=("/pod/box",)),
                    levels=[
                        CgroupSample(key="/pod/box", parent="/pod", cores=math.inf),
                        CgroupSample(key="/pod", cores=0.5, periods=i * 50.0, throttled_periods=i * 40.0),
                    ],
                    node=NodeSample(
                        cpu={"user": i * 6.0, "idle": i * 3.0, "steal": i * 1.0},
                        memory={"total": 100.0, "available": 20.0},
                        filesystems={"/": [100.0, 5.0], "/dev/shm": [10.0, 9.0]},
                        paging={"oom_kills": float(i >= 6)},
                    ),
                )
            )
        known = Signals(KNOWLEDGE, watched.window).observe(Span(at=1060.0))
        value = {name: next(iter(found.values.values()), None) for name, found in known.items()}
        assert value["engine_cpu_throttled"] == pytest.approx(0.8)
        assert value["api_server_busiest_thread"] == pytest.approx(0.95)
        assert value["host_cpu_used"] == pytest.approx(0.7)
        assert value["host_cpu_stolen"] == pytest.approx(0.1)
        assert value["host_memory_available"] == pytest.approx(0.2)
        assert value["host_disk_available"] == pytest.approx(0.05)
        assert value["host_oom_kills"] == pytest.approx(1, rel=0.1)
        assert value["engine_memory_pressure"] is None
        assert value["host_swapping"] is None


def test_a_record_comes_back_as_it_went() -> None:
    sense = HostSense(Window(60, 1000), LABELS)
    found = sense.read(1.0, {"a": [ProcessRef(os.getpid(), 0, "worker", "3")]})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=HostRecord) == found


def test_every_reason_says_what_is_the_matter() -> None:
    assert all(len(text) > 40 and text.endswith(".") for text in REASONS.values())


numbers = st.floats()
texts = st.text(max_size=8)


@given(
    st.lists(
        st.builds(
            HostRecord,
            t=st.floats(0, 1e6),
            clock=st.floats(0, 1e6),
            node=st.builds(
                NodeSample,
                cpu=st.dictionaries(texts, numbers, max_size=3),
                memory=st.dictionaries(texts, numbers, max_size=3),
                disks=st.dictionaries(texts, st.lists(numbers, max_size=9), max_size=2),
                interfaces=st.dictionaries(texts, st.lists(numbers, max_size=9), max_size=2),
                pressure=st.dictionaries(texts, numbers, max_size=2),
            ),
            processes=st.lists(
                st.builds(
                    ProcessSample,
                    target=texts,
                    pid=st.integers(0, 3),
                    start_time=st.integers(0, 2),
                    part=texts,
                    rank=st.sampled_from(["", "0", "1"]),
                    user=numbers,
                    cgroups=st.sampled_from([(), ("/a",), ("/a", "x:/")]),
                ),
                max_size=4,
            ).map(tuple),
            cgroups=st.lists(
                st.builds(CgroupSample, key=st.sampled_from(["/a", "x:/"]), parent=st.sampled_from(["", "/a", "x:/"])),
                max_size=2,
            ).map(tuple),
        ),
        max_size=4,
    )
)
def test_any_record_can_be_fed(records: list[HostRecord]) -> None:
    """A recording comes from anywhere."""
    sense = HostSense(Window(60, 500), LABELS)
    for found in records:
        sense.feed(found, engine)

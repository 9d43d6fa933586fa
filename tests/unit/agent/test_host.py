"""The host sense reads: real processes, cgroups of both versions, pids that are used again, and what it can not see."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest
from host_stage import LABELS, Watched, process, record

from kvitals.agent.collectors import cgroups, host, procfs
from kvitals.agent.collectors.cgroups import Cgroups
from kvitals.agent.collectors.host import REASONS, HostSense
from kvitals.agent.collectors.procfs import Mount
from kvitals.agent.discovery import System
from kvitals.agent.process_titles import ProcessRef
from kvitals.agent.records import CgroupSample, HostRecord
from kvitals.series.window import Window

RECORDED = Path(__file__).parents[2] / "fixtures" / "host"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BURN = "while True: pass"


@pytest.fixture
def watched() -> Watched:
    return Watched()


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
    def test_a_process_that_a_signal_stopped(self, watched: Watched, child: subprocess.Popen[bytes]) -> None:
        child.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.02)
        for t in (1.0, 6.0, 11.0):
            watched.feed(watched.sense.read(t, {"a": [self.ref(child.pid, "engine_core")]}))
        assert watched.values()["kvitals_engine_processes_halted{engine=a/0,part=engine_core,state=stopped}"] == 1

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


def test_a_record_comes_back_as_it_went() -> None:
    sense = HostSense(Window(60, 1000), LABELS)
    found = sense.read(1.0, {"a": [ProcessRef(os.getpid(), 0, "worker", "3")]})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=HostRecord) == found


def test_every_reason_says_what_is_the_matter() -> None:
    assert all(len(text) > 40 and text.endswith(".") for text in REASONS.values())

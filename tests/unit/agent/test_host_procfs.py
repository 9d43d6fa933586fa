"""Texts of /proc and of cgroup files: recorded ones say what they say, and any others never raise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.collectors import cgroups, procfs

RECORDED = Path(__file__).parents[2] / "fixtures" / "host"


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.txt").read_bytes()


def test_a_process() -> None:
    found = procfs.stat(recorded("process-stat"))
    assert found is not None
    assert (found.started, found.user, found.system, found.threads) == (1229495, 0.0, 0.0, 1)
    assert found.resident == 33 * procfs.PAGE
    assert not found.ended


@pytest.mark.parametrize("name", ["a b", ") R 1 2 3", "((", "x) Z"])
def test_a_name_can_not_pass_for_numbers(name: str) -> None:
    line = recorded("process-stat").replace(b"(sleep)", f"({name})".encode())
    assert procfs.stat(line) == procfs.stat(recorded("process-stat"))


def test_a_zombie_has_ended() -> None:
    found = procfs.stat(recorded("process-stat").replace(b") R ", b") Z "))
    assert found is not None and found.ended and found.run_state == "Z"


@pytest.mark.parametrize("letter", ["S", "D", "T", "t"])
def test_the_state_of_a_process_is_read(letter: str) -> None:
    found = procfs.stat(recorded("process-stat").replace(b") R ", f") {letter} ".encode()))
    assert found is not None and found.run_state == letter and not found.ended


def test_cpu_time_of_a_process_is_in_seconds() -> None:
    fields = recorded("process-stat").split()
    fields[13], fields[14] = b"250", b"50"
    found = procfs.stat(b" ".join(fields))
    assert found is not None and (found.user, found.system) == (250 / procfs.TICKS, 50 / procfs.TICKS)


def test_its_status() -> None:
    status = recorded("process-status")
    picked = procfs.pick(procfs.picker("VmSwap", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"), status)
    assert picked["VmSwap"] == 0
    assert set(picked) == {"VmSwap", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"}
    assert procfs.cpus_allowed(status) == 2


@pytest.mark.parametrize(
    ("listed", "cpus"),
    [("0", 1), ("0-63,128-191", 128), ("3,5,9-10", 4), ("5-3", None), ("", None), ("0-", None), ("0-9" * 9, None)],
)
def test_cpus_that_a_process_may_run_on(listed: str, cpus: int | None) -> None:
    assert procfs.cpus_allowed(f"Name:\tx\nCpus_allowed_list:\t{listed}\n".encode()) == cpus


def test_its_main_thread() -> None:
    running, waiting, _ = recorded("process-schedstat").split()
    assert procfs.schedstat(recorded("process-schedstat")) == (int(running) / 1e9, int(waiting) / 1e9)


def test_cpu_time_of_the_node() -> None:
    modes, cpus = procfs.cpu_seconds(recorded("stat"))
    fields = [int(field) for field in recorded("stat").split(b"\n")[0].split()[1:]]
    assert cpus == 2
    assert set(modes) == {"user", "system", "iowait", "steal", "idle"}
    assert sum(modes.values()) == pytest.approx(sum(fields[:8]) / procfs.TICKS)
    assert modes["idle"] == fields[3] / procfs.TICKS


def test_loads() -> None:
    assert list(procfs.loads(recorded("loadavg"))) == ["1m", "5m", "15m"]
    assert procfs.loads(b"nan inf -1 3/86 365") == {}


def test_memory_and_paging() -> None:
    assert procfs.pick(procfs.picker("MemTotal", "HugePages_Total", "Hugepagesize"), recorded("meminfo")) == {
        "MemTotal": 24684096,
        "HugePages_Total": 0,
        "Hugepagesize": 2048,
    }
    assert procfs.pick(procfs.picker("pswpin", "oom_kill"), recorded("vmstat")) == {"pswpin": 0, "oom_kill": 0}


def test_pressure_is_in_seconds() -> None:
    lines = recorded("pressure-io").split(b"\n")
    some, full = (int(line.split(b"total=")[1]) / 1e6 for line in lines[:2])
    assert procfs.pressure(recorded("pressure-io")) == {"some": some, "full": full}
    assert procfs.pressure(recorded("v2-cpu.pressure")) == {"some": 0.0, "full": 0.0}


def test_only_whole_disks() -> None:
    line = next(line for line in recorded("diskstats").split(b"\n") if b" vda " in line)
    fields = [int(field) for field in line.split()[3:]]
    assert procfs.disks(recorded("diskstats")) == {"vda": [fields[2] * 512.0, fields[6] * 512.0, fields[9] / 1e3]}


@pytest.mark.parametrize("name", ["sda1", "nvme0n1p2", "loop0", "dm-0", "md127", "zram0", "mmcblk0p1", "nvme0c0n1"])
def test_what_would_count_twice(name: str) -> None:
    assert procfs.disks(recorded("diskstats").replace(b" vda ", f" {name} ".encode())) == {}


@pytest.mark.parametrize("name", ["sdaa", "nvme10n1", "xvda", "mmcblk0"])
def test_disks_of_other_kinds(name: str) -> None:
    assert list(procfs.disks(recorded("diskstats").replace(b" vda ", f" {name} ".encode()))) == [name]


def test_only_real_interfaces() -> None:
    line = next(line for line in recorded("net-dev").split(b"\n") if b"eth0:" in line)
    fields = [float(field) for field in line.partition(b":")[2].split()]
    assert procfs.interfaces(recorded("net-dev")) == {
        "eth0": [fields[0], fields[3], fields[2], fields[8], fields[11], fields[10]]
    }


@pytest.mark.parametrize(
    "name", ["veth12ab", "docker0", "br-12ab", "cali1", "cilium_host", "lxc12", "kube-ipvs0", "tunl0"]
)
def test_interfaces_of_containers_are_not_the_nodes(name: str) -> None:
    assert procfs.interfaces(recorded("net-dev").replace(b"eth0:", f"{name}:".encode())) == {}


def test_a_node_with_very_many_devices() -> None:
    head, line = b"Inter-| x\n", recorded("net-dev").split(b"eth0:")[1].split(b"\n")[0]
    text = head + b"\n".join(b"eth%d:%s" % (i, line) for i in range(500))
    assert len(procfs.interfaces(text)) == procfs.MAX_DEVICES


def test_tcp() -> None:
    found = procfs.protocols(recorded("net-snmp")) | procfs.protocols(recorded("net-netstat"))
    assert found["Tcp.OutSegs"] > found["Tcp.RetransSegs"] > 0
    assert found["TcpExt.ListenOverflows"] == 0
    assert "Tcp.MaxConn" not in found  # it is -1, which is no count


def test_addresses_of_a_network() -> None:
    found = procfs.addresses(recorded("net-fib_trie"), recorded("net-if_inet6"))
    assert {"127.0.0.1", "192.0.2.2", "::1"} <= found
    assert "192.0.2.0" not in found  # the network's, and no host's


def test_mounts_of_both_versions() -> None:
    found = procfs.mounts(recorded("mountinfo-hybrid"))
    assert [mount.point for mount in found if mount.kind == "cgroup2"] == ["/sys/fs/cgroup/unified"]
    cpu = next(mount for mount in found if mount.kind == "cgroup" and "cpu" in mount.options)
    assert (cpu.root, cpu.point) == ("/", "/sys/fs/cgroup/cpu")


def test_a_mount_point_with_a_space() -> None:
    line = b"36 35 98:0 /mnt\\0401 /my\\040disk rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    assert procfs.mounts(line)[0][:3] == ("/mnt 1", "/my disk", "ext3")


def test_the_cgroups_of_a_process() -> None:
    assert cgroups.controllers(recorded("cgroup-hybrid")) == {
        "": "/",
        "cpu": "/",
        "memory": "/system.slice/vllm.service",
        "pids": "/",
    }
    # As proc(5) has it: controllers that share a hierarchy, and a cgroup that was removed.
    assert cgroups.controllers(b"5:cpuacct,cpu,cpuset:/daemons (deleted)\n") == {"cpu": "/daemons"}


def test_quotas() -> None:
    quota, period = recorded("v1-cpu.cfs_quota_us"), recorded("v1-cpu.cfs_period_us")
    assert procfs.cfs_quota(quota, period) == pytest.approx(0.3)
    assert procfs.cfs_quota(b"-1\n", period) == math.inf
    assert procfs.cpu_max(b"max 100000\n") == math.inf  # after the kernel's documentation
    assert procfs.cpu_max(b"250000 100000\n") == 2.5
    assert [procfs.cpu_max(text) for text in (b"", b"1 0", b"x 1", b"1")] == [None] * 4


def test_limits() -> None:
    assert procfs.limit(recorded("v1-memory.limit_in_bytes")) == math.inf
    assert procfs.limit(b"max\n") == math.inf
    assert procfs.limit(b"1073741824\n") == 2.0**30
    assert procfs.limit(b"") is None


def test_paths_upwards() -> None:
    assert list(procfs.ancestors("/a/b.slice/c")) == ["/a/b.slice/c", "/a/b.slice", "/a", "/"]
    assert list(procfs.ancestors("/")) == ["/"]


texts = st.one_of(
    st.binary(max_size=400),
    st.sampled_from(sorted(RECORDED.glob("*.txt"))).map(Path.read_bytes),
)


@given(texts, st.integers(0, 4000), st.binary(max_size=20), texts)
def test_any_text(text: bytes, at: int, put: bytes, other: bytes) -> None:
    """Cut, garbled, or of another file: an answer, and no negative or unreal number in it."""
    for garbled in (text, text[:at], text[:at] + put + text[at:], text[:at] + other):
        procfs.stat(garbled)
        procfs.schedstat(garbled)
        assert (procfs.cpus_allowed(garbled) or 1) >= 1
        modes, cpus = procfs.cpu_seconds(garbled)
        numbers = [*modes.values(), float(cpus), *procfs.loads(garbled).values(), *procfs.pressure(garbled).values()]
        numbers += [
            n for found in (procfs.disks(garbled), procfs.interfaces(garbled)) for v in found.values() for n in v
        ]
        numbers += procfs.protocols(garbled).values()
        assert all(n >= 0 and math.isfinite(n) for n in numbers)
        procfs.addresses(garbled, garbled)
        for mount in procfs.mounts(garbled):
            assert mount.kind
        for path in cgroups.controllers(garbled).values():
            assert path.startswith("/")
        procfs.cpu_max(garbled)
        procfs.limit(garbled)
        procfs.cfs_quota(garbled, garbled)

"""From looks at the node to families: what adds up, what ends, what a recording from anywhere may hold."""

from __future__ import annotations

import math

import msgspec
import pytest
import yaml
from host_stage import LABELS, Watched, engine, process, record
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.collectors.host import HostSense
from kvitals.agent.exports.metrics_page import newest
from kvitals.agent.records import CgroupSample, HostRecord, NodeSample, ProcessSample, RdmaPort
from kvitals.diagnoser.signals import EvaluationSpan, Signals
from kvitals.rules.loader import ROOT, family_of, load
from kvitals.series.window import Window

KNOWLEDGE = load()


@pytest.fixture
def watched() -> Watched:
    return Watched()


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
        from kvitals.agent.collectors import host_series

        monkeypatch.setattr(host_series, "MAX_TOTALS", 50)
        for t in range(200):
            watched.feed(record(t + 1.0, process(target=f"http://{t}")))
        assert len(watched.sense._series._counters._totals) <= 60
        assert len(watched.sense._series._rows._columns) < 20

    def test_a_ring_of_cgroups_ends(self, watched: Watched) -> None:
        levels = [CgroupSample(key="/a", parent="/b", cores=1.0), CgroupSample(key="/b", parent="/a", cores=2.0)]
        watched.feed(record(1.0, process(cgroups=("/a",)), levels=levels))
        assert watched.values()["kvitals_engine_cpu_limit_cores{engine=a/0}"] == 1

    def test_a_process_that_does_not_compute_is_counted_by_its_state(self, watched: Watched) -> None:
        states = {1: "S", 2: "T", 3: "t", 4: "D"}
        watched.feed(record(1.0, *(process(pid, run_state=letter) for pid, letter in states.items())))
        family = "kvitals_engine_processes_halted{{engine=a/0,part=worker,state={}}}"
        values = watched.values()
        assert [values[family.format(state)] for state in ("stopped", "uninterruptible", "zombie")] == [2, 1, 0]
        watched.feed(record(6.0, process(1, run_state="S"), process(2, state="gone", run_state="Z")))
        values = watched.values()
        assert [values[family.format(state)] for state in ("stopped", "uninterruptible", "zombie")] == [0, 0, 1]

    def test_a_recording_without_states_has_no_series_of_them(self, watched: Watched) -> None:
        watched.feed(record(1.0, process(1)))
        assert not [key for key in watched.values() if "halted" in key]

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
            rdma={"mlx5_0/1": RdmaPort(active=True, rate=1.0, sent=1.0, received=1.0, faults={"link": 1.0})},
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
        full = process(
            run_state="S", swapped=1.0, fds=1, main_running=1.0, main_waiting=1.0, voluntary=1, involuntary=1
        )
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
        known = Signals(KNOWLEDGE, watched.window).observe(EvaluationSpan(at=1060.0))
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
                rdma=st.dictionaries(
                    texts, st.builds(RdmaPort, active=st.booleans(), rate=numbers, sent=numbers), max_size=2
                ),
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

"""Near its memory limit the agent refuses new data, counts it, and takes it again below."""

from pathlib import Path

import pytest

from kvitals.agent import memory_limit
from kvitals.agent.ledger.event import BlockEventBatch, KvEventsRecord
from kvitals.agent.memory_limit import DEFAULT_BYTES, MemoryLimit, cgroup_limit, limit_of, resident_bytes
from kvitals.agent.node import Node
from kvitals.agent.request_collectors import RequestSenses
from kvitals.agent.requests.observation import PartsRecord
from kvitals.config import AgentTable, Config, ConfigError, build
from kvitals.series.types import Labels
from kvitals.series.window import Window

MB = 1 << 20


def test_it_refuses_from_80_percent_until_75_and_counts() -> None:
    used = [70 * MB]
    limit = MemoryLimit(100 * MB, lambda: used[0])
    for megabytes, refusing in ((70, False), (81, True), (78, True), (74, False), (79, False), (300, True)):
        used[0] = megabytes * MB
        limit.check()
        assert limit.refusing is refusing, megabytes
        assert limit.refuses("parts", 2) is refusing
    assert limit.refused == {"parts": 6}
    said = {labels["__name__"]: value for labels, value in limit.series({"node": "n"}).items()}
    assert said["kvitals_memory_limit_bytes"] == 100 * MB
    assert said["kvitals_memory_refusing"] == 1.0
    assert said["kvitals_memory_refused_total"] == 6.0


def test_free_memory_is_given_back_from_a_fifth_of_the_limit_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given, used = list[float](), [0]
    monkeypatch.setattr(memory_limit, "trim", lambda: given.append(used[0]))
    limit = MemoryLimit(100 * MB, lambda: used[0])
    for megabytes in (10, 19, 21, 30, 50):  # at most once in half a minute
        used[0] = megabytes * MB
        limit.check()
    assert given == [21 * MB]
    monkeypatch.setattr(memory_limit, "TRIM_SECONDS", 0.0)
    limit.check()
    assert given == [21 * MB, 50 * MB]


def test_the_limit_is_the_configured_one_or_a_share_of_the_lowest_cgroup(tmp_path: Path) -> None:
    assert limit_of(800, tmp_path) == 800 * MB
    assert limit_of(None, tmp_path) == DEFAULT_BYTES
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/agent\n")
    (tmp_path / "sys/fs/cgroup/pod/agent").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/pod/agent/memory.max").write_text("max\n")
    assert cgroup_limit(tmp_path) is None
    (tmp_path / "sys/fs/cgroup/pod/memory.max").write_text(f"{500 * MB}\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{900 * MB}\n")
    assert cgroup_limit(tmp_path) == limit_of(None, tmp_path) == 400 * MB
    (tmp_path / "sys/fs/cgroup/pod/agent/memory.high").write_text(f"{300 * MB}\n")
    assert limit_of(None, tmp_path) == 300 * MB
    assert 10 * MB < resident_bytes() < 8 << 30


def test_a_limit_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory_limit must be from 128"):
        build({"agent": {"memory_limit": 12}})


def test_a_window_that_is_full_keeps_what_it_has() -> None:
    window = Window(60.0, 10)
    group = window.group("g")
    known = group.column(Labels({"__name__": "a"}))
    window.takes_new_series = False
    assert group.column(Labels({"__name__": "b"})) is None
    assert window.refused_series == 1
    assert group.column(Labels({"__name__": "a"})) == known and group.append(1.0, [known or 0], [1.0])
    window.takes_new_series = True
    assert group.column(Labels({"__name__": "b"})) is not None


async def test_parts_are_asked_for_again_and_kv_events_become_a_hole(tmp_path: Path) -> None:
    node = Node(Config(agent=AgentTable(discover=False)))
    node.context.memory = MemoryLimit(100, lambda: 1000)
    node.context.memory.check()
    senses = RequestSenses(tmp_path, refuses=node.context.memory.refuses)
    assert not senses.take(PartsRecord(t=1.0, source="tap", parts=()))
    batch = BlockEventBatch(sequence=1, at=1.0, events=())
    (record,) = node.kv_events.within_memory(
        [KvEventsRecord(t=1.0, target="x", rank="0", batches=(batch, batch), lost=1)]
    )
    assert isinstance(record, KvEventsRecord)
    assert record.batches == () and record.lost == 3 and record.state == "partial"
    assert node.context.memory.refused == {"parts": 1, "kv_events": 2}

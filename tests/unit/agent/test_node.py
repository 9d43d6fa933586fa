"""The node: targets come and go, records go to and come from captures."""

from pathlib import Path

import pytest

from kvitals.agent.node import Node
from kvitals.agent.records import FactsRecord, ProbeRecord, ScrapeRecord, decode, encode
from kvitals.config import AgentTable, Config, ConfigError, SloTable, TargetTable
from kvitals.series.promql import evaluate
from kvitals.series.recordings import Record

DEAD, DEAD_TOO = "http://127.0.0.1:9", "http://127.0.0.1:10"


@pytest.mark.parametrize(
    "record",
    [
        ScrapeRecord(t=1.0, target="x", body=b"a 1\n", status=200),
        FactsRecord(t=1.0, target="x", source="command line", facts={"slots": 2.0}),
        ProbeRecord(t=1.0, target="x", answered=True, seconds=0.1),
    ],
)
def test_a_record_survives_a_capture(record: ScrapeRecord | FactsRecord | ProbeRecord) -> None:
    captured = encode(record)
    assert captured.sense == type(record).__struct_config__.tag
    assert decode(captured) == record


def test_what_this_version_does_not_know_is_passed_over() -> None:
    assert decode(Record(1.0, "telepathy", "x", b"\x81\xa4type\xa9telepathy")) is None
    assert decode(Record(1.0, "scrape", "x", b"\xff\x00")) is None


async def test_nothing_to_watch_says_what_to_do() -> None:
    node = Node(Config(agent=AgentTable(discover=False)))
    with pytest.raises(ConfigError, match=r"\[\[target\]\]"):
        await node.open()


async def test_a_targets_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "targets"
    file.write_text(f"{DEAD}\n")
    node = Node(Config(agent=AgentTable(targets_file=(file,), discover=False)))
    await node.open()
    try:
        file.write_text(f"{DEAD_TOO}  # moved\n")
        said = await node.refresh(at_once=True)
        assert node.targets == [DEAD_TOO]
        assert any("new, watched" in line for line in said)
        assert any("forgotten" in line for line in said)
        file.write_text("ht tp://nonsense\n")
        (line,) = await node.refresh(at_once=True)
        assert "is not the URL" in line and "the agent keeps its 1 earlier targets" in line
        assert node.targets == [DEAD_TOO]
        assert await node.refresh(at_once=True) == []  # said once
    finally:
        await node.close()


async def test_targets_that_were_named_stay_as_they_are() -> None:
    node = Node(Config())
    await node.open([DEAD])
    assert await node.refresh() == []
    assert node.targets == [DEAD]
    await node.close()


async def test_a_dead_target_is_down_with_a_reason_and_has_its_objectives() -> None:
    node = Node(Config(slo=SloTable(ttft_p99_seconds=0.5)), {"itl_p99": "command line"})
    await node.open([DEAD])
    records = await node.read()
    for record in records:
        node.ingest_recorded(record)
    await node.close()
    at = max(r.t for r in records) + 1
    up = evaluate("kvitals_target_up", node.window, at)
    assert not isinstance(up, float)
    assert [(labels["engine"], value) for labels, value in up] == [("127.0.0.1:9", 0.0)]
    slo = evaluate("kvitals_slo_seconds", node.window, at)
    assert not isinstance(slo, float)
    assert {(labels["slo"], labels["source"], value) for labels, value in slo} == {
        ("ttft_p99", "configuration", 0.5),
        ("itl_p99", "command line", 0.2),
    }
    assert "Nothing listens there" in node.watched.problems()[0]


async def test_facts_of_the_configuration_reach_the_window() -> None:
    node = Node(Config(targets=(TargetTable(url=DEAD, name="chat", facts={"slots": 7.0}),)))
    await node.open()
    records = [*await node.read(), *await node.read()]
    for record in records:
        node.ingest_recorded(record)
    await node.close()
    slots = evaluate('kvitals_engine_fact{fact="slots"}', node.window, max(r.t for r in records) + 1)
    assert not isinstance(slots, float)
    assert [(labels["engine"], labels["source"], value) for labels, value in slots] == [("chat", "configuration", 7.0)]


@pytest.mark.parametrize(
    "targets",
    ["x", [3], [{"name": "no url"}], [{"url": "no url"}], [{"url": DEAD, "labels": {"engine": "x"}}]],
)
def test_a_recording_with_a_strange_header_is_refused(targets: object) -> None:
    with pytest.raises(ConfigError, match="the recording names"):
        Node(Config()).expect({"targets": targets})


def test_a_recording_can_not_have_a_file_read(tmp_path: Path) -> None:
    node = Node(Config())
    node.expect({"targets": [{"url": DEAD, "bearer_file": str(tmp_path / "missing")}]})
    assert node.targets == [DEAD]

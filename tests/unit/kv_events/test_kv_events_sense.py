"""Records of the sense, the families made of them, and who is listened to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine, batch, until

from kvitals.agent.collectors import kv_events
from kvitals.agent.collectors.kv_events import DROPPED, MIN_SERVED_TOKENS, REASONS, RECORD_BLOCKS, KvEventsSense
from kvitals.agent.collectors.kv_events_in import KvEventsIn
from kvitals.agent.collectors.kv_events_sources import PublisherSource, Refusal
from kvitals.agent.command_line import LAUNCHERS, parse
from kvitals.agent.kv_event_collectors import KvEventSenses, KvTarget
from kvitals.agent.ledger.event import BlockEventBatch, BlocksRemoved, BlocksStored, KvEventsRecord
from kvitals.agent.node import Node
from kvitals.agent.records import decode, encode
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import Config, ConfigError, KvEventsSource, KvEventsTable, TargetTable, TenantsTable, build
from kvitals.series.types import METRIC_NAME, Matcher, MatchOp, is_stale
from kvitals.series.window import Window
from tests.support.processes import free_port

URL = "http://127.0.0.1:8000"


def names() -> TenantNames:
    return TenantNames(TenantsTable(), b"k" * 32)


@pytest.fixture
def sense() -> Iterator[KvEventsSense]:
    made = KvEventsSense(names())
    yield made
    made.close()


def source(**more: Any) -> PublisherSource:
    return msgspec.structs.replace(PublisherSource("engine", f"tcp://127.0.0.1:{free_port()}", topic="kv"), **more)


def state(sense: KvEventsSense, t: float = 1e6, **served: float) -> tuple[str, str]:
    [*_, last] = sense.read(t, served)
    return last.state, last.reason


def test_a_record_has_what_came(sense: KvEventsSense) -> None:
    own = source(rank="1")
    sense.listen_to([own], [])
    with FakeEngine(own.endpoint) as engine:
        until(lambda: state(sense) == ("ok", "ok"))
        engine.publish(batch(1), batch(2))
        found: list[KvEventsRecord] = []
        until(lambda: bool(found.extend(sense.read(5.0, {})) or any(one.batches for one in found)))
    record = next(one for one in found if one.batches)
    assert (record.target, record.rank, record.t, record.state) == ("engine", "1", 5.0, "ok")
    assert isinstance(record.batches[0].events[0], BlocksStored)


def test_a_record_is_of_bounded_size(sense: KvEventsSense) -> None:
    own = source()
    sense.listen_to([own], [])
    wide = msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": list(range(RECORD_BLOCKS // 2))}], 0])
    found: list[KvEventsRecord] = []
    with FakeEngine(own.endpoint) as engine:
        until(lambda: state(sense) == ("ok", "ok"))
        engine.lose(b"")
        engine.publish(*[wide] * 6)
        until(lambda: bool(found.extend(sense.read(5.0, {})) or sum(len(one.batches) for one in found) == 6))
    sizes = [sum(len(e.hashes) for b in one.batches for e in b.events if isinstance(e, BlocksRemoved)) for one in found]
    assert max(sizes) <= RECORD_BLOCKS + RECORD_BLOCKS // 2
    assert sum(one.late for one in found) == 1  # of several records of a run, only the first says what was before it


def test_who_does_not_come_is_told_what_to_do(sense: KvEventsSense) -> None:
    bound, connected = source(bind=True), source(target="other")
    sense.listen_to([bound, connected], [])
    until(lambda: {one.reason for one in sense.read(1e12, {})} == {"nobody_came", "not_connected"})
    here, there = sense.read(1e12, {})
    assert bound.endpoint in here.message and "kvitals must connect" in here.message
    assert connected.endpoint in there.message and "must bind it" in there.message
    assert {one.reason for one in sense.read(0.0, {})} == {"connecting"}


def test_an_engine_that_computes_and_says_nothing(sense: KvEventsSense) -> None:
    own = source()
    sense.listen_to([own], [])
    with FakeEngine(own.endpoint, topic="other"):
        until(lambda: state(sense, engine=100.0) == ("ok", "ok"))
        assert sense.unheard == {"engine"}
        assert state(sense, engine=100.0 + MIN_SERVED_TOKENS) == ("ok", "ok")
        assert state(sense, engine=101.0 + MIN_SERVED_TOKENS) == ("unknown", "silent")
        assert state(sense) == ("ok", "ok")  # where nobody tells how much it computed, nothing is concluded


def test_an_engine_that_said_something_once_may_be_silent(sense: KvEventsSense) -> None:
    own = source()
    sense.listen_to([own], [])
    with FakeEngine(own.endpoint) as engine:
        until(lambda: state(sense) == ("ok", "ok"))
        engine.publish(batch(1))
        until(lambda: bool(sense.read(1.0, {})) and not sense.unheard)
        sense.read(1.0, {})
        assert state(sense, engine=1e9) == ("ok", "ok")


def test_a_refusal_is_told_with_every_look(sense: KvEventsSense) -> None:
    sense.listen_to([], [("engine", Refusal("0", "inproc", "give it tcp://*:PORT"))])
    [record] = sense.read(1.0, {})
    assert (record.state, record.reason, record.rank) == ("failed", "inproc", "0")
    assert record.message == "give it tcp://*:PORT"


def test_reasons_and_drops_are_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "kv-events.md").read_text()
    assert [one for one in (*REASONS, *DROPPED) if f"`{one}`" not in text] == []
    assert {*kv_events._FAILED, *kv_events._PARTIAL} < set(REASONS)


def record(t: float, **more: Any) -> KvEventsRecord:
    return KvEventsRecord(t=t, target="engine", **more)


def values(window: Window, family: str) -> dict[str, float]:
    """The newest value of each series, by its reason or state."""
    found = {}
    for frame in window.select([Matcher(METRIC_NAME, MatchOp.EQ, f"kvitals_kv_event_{family}")], 0.0, 1e9):
        for labels, column in zip(frame.labels, frame.values.T, strict=True):
            if not is_stale(column[-1]):
                found[labels.get("reason", "")] = float(column[-1])
    return found


def test_families_count_what_came_and_what_did_not() -> None:
    window = Window(3600.0, 1000)
    into = KvEventsIn(window)
    some = tuple(BlockEventBatch(number, 90.0 + number, ()) for number in range(3))
    labels = {"engine": "e", "node": "n"}
    into.feed(record(100.0, batches=some, seconds=0.25), labels)
    assert values(window, "batches_total") == {"": 0.0}
    into.feed(record(101.0, lost=4, replayed=2, restarted=True, late=True, state="partial", reason="lost"), labels)
    into.feed(record(101.0, lost=-1, dropped={"malformed": 3}), labels)
    into.feed(record(102.0, seconds=0.5), labels)
    expected = {"batches": 3.0, "batches_replayed": 2.0, "batches_lost": 4.0, "gaps": 2.0, "late": 1.0, "restarts": 1.0}
    assert {name: values(window, f"{name}_total")[""] for name in expected} == expected
    assert values(window, "dropped_total") == {"malformed": 3.0}
    assert values(window, "state") == {"ok": 1.0}
    assert values(window, "up") == {"": 1.0}
    assert values(window, "age_seconds") == {"": 10.0}
    assert values(window, "duration_seconds") == {"": 0.5}
    into.gone("engine")
    assert values(window, "batches_total") == {}


def test_reasons_of_a_strange_recording_are_bounded() -> None:
    window = Window(3600.0, 1000)
    into = KvEventsIn(window)
    for t in range(3):
        into.feed(
            record(100.0 + t, dropped={f"r{number}": 1 for number in range(1000)}, state="s" * 1000), {"engine": "e"}
        )
    assert len(values(window, "dropped_total")) <= 17


def test_a_capture_keeps_a_record_as_it_is() -> None:
    whole = record(
        5.0,
        batches=(BlockEventBatch(1, 2.0, (BlocksRemoved((1 << 63, 7)), BlocksStored((5,), None, 32)), "0"),),
        late=True,
    )
    assert decode(encode(whole)) == whole


def test_a_replayed_record_becomes_families() -> None:
    node = Node(Config())
    node.expect({"targets": [{"url": URL, "labels": {"node": "n"}}]})
    key = f"{URL}/metrics"
    for t in (1.0, 2.0):
        node.ingest_recorded(
            encode(
                KvEventsRecord(t=t, target=key, batches=(BlockEventBatch(int(t), t, (BlocksStored((5,), None, 32),)),))
            )
        )
    node.ingest_recorded(encode(KvEventsRecord(t=3.0, target="nobody", batches=())))
    assert values(node.window, "batches_total") == {"": 2.0}


def view(**more: Any) -> KvTarget:
    return KvTarget(**({"key": "k", "url": URL, "is_here": True, "is_loopback": True, "system": "vllm"} | more))


class Asked:
    """Answers of an engine's endpoints."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.paths: list[str] = []

    async def __call__(self, key: str, path: str) -> tuple[int, bytes]:
        self.paths.append(path)
        found = self.answers.get(path.strip("/"))
        return (404, b"") if found is None else (200, json.dumps(found).encode())


async def heard(senses: KvEventSenses, *views: KvTarget, ask: Asked) -> list[KvEventsRecord]:
    await senses.look(views, ask)
    return await senses.read({})


async def test_an_engine_is_found_and_heard() -> None:
    port = free_port()
    told = {"0": {"publisher": "zmq", "endpoint": f"tcp://*:{port}", "topic": "kv"}}
    senses = KvEventSenses(KvEventsTable(), names)
    try:
        with FakeEngine(f"tcp://127.0.0.1:{port}"):
            [first] = await heard(senses, view(), ask=Asked(kv_event_sources=told))
            assert first.target == "k"
    finally:
        await senses.close()


async def test_nothing_is_made_where_nobody_publishes() -> None:
    def opened() -> TenantNames:
        raise AssertionError("no key is to be made")

    ask = Asked()
    senses = KvEventSenses(KvEventsTable(), opened)
    assert await heard(senses, view(), view(key="other", system="sglang"), ask=ask) == []
    assert ask.paths == ["/kv_event_sources", "/server_info"]
    assert await heard(senses, view(), view(key="other", system="sglang"), ask=ask) == []
    assert len(ask.paths) == 2  # they are not asked again with every look


async def test_switched_off_and_elsewhere_nobody_is_asked() -> None:
    ask = Asked()
    assert await heard(KvEventSenses(KvEventsTable(enabled=False), names), view(), ask=ask) == []
    assert await heard(KvEventSenses(KvEventsTable(), names), view(is_here=False), ask=ask) == []
    assert ask.paths == []


async def test_a_command_line_where_the_endpoint_is_not_known() -> None:
    flags = parse(LAUNCHERS[0], ["--kv-events-config", '{"enable_kv_cache_events":true,"endpoint":"inproc://x"}'])
    senses = KvEventSenses(KvEventsTable(), names)
    try:
        [told] = await heard(senses, view(flags=flags), ask=Asked())
        assert (told.state, told.reason) == ("failed", "inproc")
    finally:
        await senses.close()


async def test_the_configuration_comes_first_and_opens_its_own_host() -> None:
    own = KvEventsSource(target="http://10.0.0.9:8000", endpoint=f"tcp://10.0.0.9:{free_port()}", bind=False)
    senses = KvEventSenses(KvEventsTable(source=(own,)), names)
    ask = Asked()
    try:
        remote = view(url="http://10.0.0.9:8000", is_here=False, is_loopback=False)
        [told] = await heard(senses, remote, ask=ask)
        assert told.reason == "connecting" and own.endpoint in told.message and ask.paths == []
        senses.configure(KvEventsTable())
        assert await heard(senses, remote, ask=ask) == []
    finally:
        await senses.close()


async def test_a_restarted_engine_is_asked_again_and_one_that_is_down_keeps_its_place() -> None:
    port = free_port()
    told = {"0": {"publisher": "zmq", "endpoint": f"tcp://*:{port}", "topic": "kv"}}
    ask = Asked(kv_event_sources=told)
    senses = KvEventSenses(KvEventsTable(), names)
    try:
        await heard(senses, view(), ask=ask)
        senses.restarted("k")

        async def down(key: str, path: str) -> tuple[int, bytes]:
            return 0, b""

        await senses.look([view()], down)
        assert len(await senses.read({})) == 1
        told["0"]["endpoint"] = f"tcp://*:{free_port()}"
        senses.restarted("k")
        [now] = await heard(senses, view(), ask=ask)
        assert told["0"]["endpoint"].rpartition(":")[2] in now.message
        assert await heard(senses, ask=ask) == []  # it is no target any more
    finally:
        await senses.close()


async def test_a_key_that_can_not_be_read_is_told_and_the_rest_goes_on() -> None:
    def broken() -> TenantNames:
        raise ConfigError("the key of tenants' pseudonyms cannot be read")

    told = {"0": {"publisher": "zmq", "endpoint": f"tcp://*:{free_port()}"}}
    assert await heard(KvEventSenses(KvEventsTable(), broken), view(), ask=Asked(kv_event_sources=told)) == []


def test_configuration() -> None:
    table = {
        "hosts": ["10.0.0.5"],
        "source": [{"target": "10.0.0.9:8000", "endpoint": "tcp://10.0.0.9:5557", "topic": "kv"}],
    }
    made = build({"kv_events": table}).kv_events
    assert made.source[0].target == "http://10.0.0.9:8000" and made.source[0].bind is None
    assert build({}).kv_events.enabled


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"sources": []}, "source"),
        ({"hosts": ["a b"]}, "not a name or address"),
        ({"source": [{"target": "h:1", "endpoint": "http://x"}]}, "tcp://127.0.0.1:5557"),
        ({"source": [{"target": "h:1", "endpoint": "tcp://h:1", "topics": "x"}]}, "topics"),
        ({"source": [{"target": "h:1", "endpoint": "tcp://h:1", "topic": "x" * 201}]}, "200"),
        ({"source": [{"target": "h:1", "endpoint": "tcp://h:1"}] * 257}, "256"),
    ],
)
def test_configuration_that_is_wrong(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build({"kv_events": table})


async def test_a_node_listens_to_the_engines_that_it_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the page to the capture's record, over real sockets. The engine's HTTP side is left out: it is down."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    port = free_port()
    own = KvEventsSource(target=URL, endpoint=f"tcp://*:{port}", topic="kv")
    node = Node(Config(targets=(TargetTable(url=URL),), kv_events=KvEventsTable(source=(own,))))
    try:
        with FakeEngine(f"tcp://127.0.0.1:{port}") as engine:
            await node.open(requests=tmp_path)
            engine.publish(batch(0))
            found = [decode(captured) for _ in range(3) for captured in await node.read()]
    finally:
        await node.close()
    kept = [one for one in found if isinstance(one, KvEventsRecord)]
    assert kept and all(one.target == f"{URL}/metrics" for one in kept)

"""The thread that listens, before publishers on real sockets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from fake_engine import FakeEngine, batch, until

from kvitals.agent.collectors import kv_events_publisher, kv_events_sockets
from kvitals.agent.collectors.kv_events_publisher import BatchRun, PublisherBatches
from kvitals.agent.collectors.kv_events_sockets import ROW, Ears
from kvitals.agent.collectors.kv_events_sources import PublisherSource
from kvitals.agent.collectors.zmq_sockets import MAX_MESSAGE_BYTES
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import TenantsTable
from tests.support.processes import ended, free_port


@pytest.fixture
def ears() -> Iterator[Ears]:
    made = Ears(TenantNames(TenantsTable(), b"k" * 32))
    yield made
    made.close()


class Listened:
    """Gathers what each source brought over several looks."""

    def __init__(self, ears: Ears) -> None:
        self._ears = ears
        self.chunks: dict[PublisherSource, list[BatchRun]] = {}
        self.last: dict[PublisherSource, PublisherBatches] = {}
        self.dropped: dict[str, int] = {}

    def look(self) -> None:
        for heard in self._ears.read():
            self.last[heard.source] = heard
            self.chunks.setdefault(heard.source, []).extend(heard.chunks)
            for reason, count in heard.dropped.items():
                self.dropped[reason] = self.dropped.get(reason, 0) + count

    def sequences(self, source: PublisherSource) -> list[int]:
        self.look()
        return [batch.sequence for chunk in self.chunks.get(source, []) for batch in chunk.batches]

    def connected(self, source: PublisherSource) -> bool:
        self.look()
        return source in self.last and self.last[source].connections > 0

    def obstacle(self, source: PublisherSource) -> str:
        self.look()
        return self.last[source].obstacle if source in self.last else ""

    def lost(self, source: PublisherSource) -> int:
        return sum(chunk.lost for chunk in self.chunks.get(source, []))


def source(port: int, **more: object) -> PublisherSource:
    return msgspec.structs.replace(PublisherSource("engine", f"tcp://127.0.0.1:{port}", topic="kv"), **more)


def test_an_engine_that_binds(ears: Ears) -> None:
    own = source(free_port())
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as engine:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(batch(1), batch(2), batch(3))
        until(lambda: heard.sequences(own) == [0, 1, 2])
    assert not any(chunk.late or chunk.lost or chunk.restarted for chunk in heard.chunks[own])


def test_a_fault_while_listening_is_reported_and_ends_nothing_for_good(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ended, and no engine's events were read until the agent was restarted."""
    monkeypatch.setattr(kv_events_sockets, "FAULT_RETRY_SECONDS", 0.5)
    own = source(free_port())
    heard = Listened(ears)
    serve, faults = Ears._serve, [ValueError("a fault"), KeyError("another")]

    def faulty(self: Ears, *given: object) -> None:
        if faults:
            raise faults.pop()
        serve(self, *given)  # type: ignore[arg-type]

    with FakeEngine(own.endpoint) as engine:
        monkeypatch.setattr(Ears, "_serve", faulty)
        ears.listen_to([own])
        until(lambda: heard.obstacle(own) == "stopped")
        until(lambda: heard.obstacle(own) == "" and heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [0])


def test_an_engine_that_connects_finds_us_listening(ears: Ears) -> None:
    own = source(free_port(), bind=True)
    heard = Listened(ears)
    ears.listen_to([own])
    with FakeEngine(own.endpoint, connect=True) as engine:
        until(lambda: heard.connected(own))
        engine.publish(batch(1), batch(2))
        until(lambda: heard.sequences(own) == [0, 1])


def test_an_address_that_the_engine_bound_though_it_looks_like_ours(ears: Ears) -> None:
    """SGLang binds a loopback address where its configuration says so; nothing in its answer does."""
    own = source(free_port(), bind=True)
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as engine:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [0])


@pytest.mark.parametrize("with_topic", [True, False], ids=["vLLM 0.26", "vLLM 0.25"])
def test_what_was_published_before_is_brought(ears: Ears, with_topic: bool) -> None:
    own = source(free_port(), replay=f"tcp://127.0.0.1:{free_port()}")
    heard = Listened(ears)
    with FakeEngine(own.endpoint, replay=own.replay, with_topic=with_topic) as engine:
        engine.publish(*map(batch, range(5)))
        ears.listen_to([own])
        until(lambda: heard.sequences(own) == [0, 1, 2, 3, 4])
        engine.publish(batch(5))
        until(lambda: heard.sequences(own) == [0, 1, 2, 3, 4, 5])
    assert engine.asked == [0]
    assert sum(chunk.replayed for chunk in heard.chunks[own]) == 5
    assert not any(chunk.late or chunk.lost for chunk in heard.chunks[own])


def test_without_replays_the_beginning_is_missing_and_said(ears: Ears) -> None:
    own = source(free_port())
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as engine:
        engine.lose(batch(0))
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [1])
    assert [chunk.late for chunk in heard.chunks[own]] == [True]


@pytest.mark.parametrize("replays", [True, False])
def test_a_gap(ears: Ears, replays: bool) -> None:
    own = source(free_port(), replay=f"tcp://127.0.0.1:{free_port()}" if replays else "")
    heard = Listened(ears)
    with FakeEngine(own.endpoint, replay=own.replay) as engine:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(batch(0), batch(1))
        until(lambda: heard.sequences(own) == [0, 1])
        engine.lose(batch(2), batch(3))
        engine.publish(batch(4))
        until(lambda: heard.sequences(own)[-1:] == [4])
    assert heard.sequences(own) == ([0, 1, 2, 3, 4] if replays else [0, 1, 4])
    assert heard.lost(own) == (0 if replays else 2)


def test_a_restart_is_heard_again_and_said(ears: Ears) -> None:
    own = source(free_port(), replay=f"tcp://127.0.0.1:{free_port()}")
    heard = Listened(ears)
    ears.listen_to([own])
    with FakeEngine(own.endpoint, replay=own.replay) as engine:
        until(lambda: heard.connected(own))
        engine.publish(batch(0), batch(1), batch(2))
        until(lambda: heard.sequences(own) == [0, 1, 2])
    until(lambda: not heard.connected(own))
    with FakeEngine(own.endpoint, replay=own.replay) as engine:
        engine.publish(*map(batch, range(50, 55)))
        until(lambda: len(heard.sequences(own)) >= 8)
    assert heard.sequences(own)[3:] == [0, 1, 2, 3, 4]
    assert [chunk.restarted for chunk in heard.chunks[own]].count(True) == 1
    assert heard.lost(own) == 0


def test_several_engines_at_one_address_are_told_apart_by_their_topics(ears: Ears) -> None:
    port = free_port()
    one, other = source(port, bind=True, topic="kv@a"), source(port, bind=True, topic="kv@ab", target="other")
    heard = Listened(ears)
    ears.listen_to([one, other])
    with (
        FakeEngine(one.endpoint, connect=True, topic="kv@a") as first,
        FakeEngine(one.endpoint, connect=True, topic="kv@ab") as second,
        FakeEngine(one.endpoint, connect=True, topic="kv@abc") as stranger,
    ):
        until(lambda: heard.connected(one) and heard.last[one].connections == 3)
        first.publish(batch(1), batch(2))
        second.publish(batch(3))
        stranger.publish(batch(4))
        until(lambda: heard.sequences(one) == [0, 1] and heard.sequences(other) == [0])
        until(lambda: heard.sequences(one) == [0, 1] and heard.dropped == {"other_topic": 1})


def test_two_publishers_with_one_topic_are_refused(ears: Ears) -> None:
    port = free_port()
    one, other = source(port, bind=True), source(port, bind=True, target="other")
    heard = Listened(ears)
    ears.listen_to([one, other])
    until(lambda: heard.obstacle(other) == "shared")
    assert heard.obstacle(one) == ""


def test_another_collector_that_has_the_address_is_told_from_an_engine(ears: Ears) -> None:
    own = source(free_port(), bind=True)
    heard = Listened(ears)
    with zmq.Context() as context, context.socket(zmq.SUB) as other:
        other.bind(own.endpoint)
        ears.listen_to([own])
        until(lambda: heard.obstacle(own) == "stranger")


def test_garbage_of_one_does_not_stop_another(ears: Ears) -> None:
    bad, good = source(free_port()), source(free_port(), target="other")
    heard = Listened(ears)
    with zmq.Context() as context, context.socket(zmq.PUB) as hostile, FakeEngine(good.endpoint) as engine:
        hostile.setsockopt(zmq.LINGER, 0)
        hostile.bind(bad.endpoint)
        ears.listen_to([bad, good])
        until(lambda: heard.connected(bad) and heard.connected(good))
        hostile.send_multipart([b"kv"])
        hostile.send_multipart([b"kv", b"\0"])
        hostile.send_multipart([b"kv", bytes(8), batch(0), b"more", *[b"parts"] * 1000])
        hostile.send_multipart([b"kv", b"\xff" * 8, batch(0)])
        hostile.send_multipart([b"kv", bytes(8), b"\x91" * 100_000])
        hostile.send_multipart([b"kv", (1).to_bytes(8, "big"), batch(1)])
        engine.publish(batch(1))
        until(lambda: heard.sequences(good) == [0] and heard.sequences(bad) == [1])
        assert heard.dropped == {"malformed": 5}
        assert heard.lost(bad) == 1


@pytest.mark.system
def test_a_message_that_is_too_large_never_comes_in(ears: Ears) -> None:
    own = source(free_port())
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as engine:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(bytes(MAX_MESSAGE_BYTES + 1))
        until(lambda: not heard.connected(own))
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [1])
    assert any(chunk.late for chunk in heard.chunks[own])


def test_a_replay_endpoint_that_does_not_answer_holds_nothing_up_for_long(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvitals.agent.collectors.kv_events_stream.SILENT_SECONDS", 0.3)
    own = source(free_port(), replay=f"tcp://127.0.0.1:{free_port()}")
    heard = Listened(ears)
    with FakeEngine(own.endpoint, replay=own.replay, answers=False) as engine:
        engine.lose(batch(0))
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [1])


def test_what_waits_is_bounded_and_the_oldest_leave(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events_publisher, "MAX_READY_BLOCKS", 5)
    monkeypatch.setattr(kv_events_sockets, "SETTLE_BYTES", 1)
    own = source(free_port())
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as engine:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(*map(batch, range(20)))
        publisher = ears._publishers[own]
        until(lambda: publisher.stream._last == 19)
    assert heard.sequences(own) == list(range(15, 20))
    assert heard.chunks[own][0].lost == 15
    assert heard.dropped == {"overflow": 15}


def test_sources_that_go_and_come(ears: Ears) -> None:
    own, other = source(free_port()), source(free_port(), target="other")
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as first, FakeEngine(other.endpoint) as second:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        ears.listen_to([own, other])
        until(lambda: heard.connected(other))
        first.publish(batch(1))
        second.publish(batch(2))
        until(lambda: heard.sequences(own) == [0] and heard.sequences(other) == [0])
        ears.listen_to([other])
        assert [one.source for one in ears.read()] == [other]
        second.publish(batch(3))
        until(lambda: heard.sequences(other) == [0, 1])


def test_an_address_that_is_none(ears: Ears) -> None:
    own = source(0, endpoint="tcp://no.such.host.invalid:5557", bind=True)
    heard = Listened(ears)
    ears.listen_to([own])
    until(lambda: heard.obstacle(own) == "bad_endpoint")


def test_a_socket_in_the_file_system(ears: Ears, tmp_path: object) -> None:
    own = source(0, endpoint=f"ipc://{tmp_path}/kv.sock")
    heard = Listened(ears)
    with FakeEngine(own.endpoint) as engine:
        ears.listen_to([own])
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [0])


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ended a connection."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.system
def test_an_address_has_a_limit_of_connections_and_strangers_do_not_cut_a_publisher(ears: Ears) -> None:
    port = free_port()
    own = source(port, bind=True)
    heard = Listened(ears)
    ears.listen_to([own])
    with FakeEngine(own.endpoint, connect=True) as engine, contextlib.ExitStack() as stack:
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own) == [0])
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(ROW.connections + 20)
        ]
        until(lambda: sum(map(is_closed, strangers)) > 20)
        until(lambda: all(map(is_closed, strangers)), 15)  # none completes the handshake
        engine.publish(batch(2))
        until(lambda: heard.sequences(own) == [0, 1])
        assert heard.last[own].connections == 1
    assert heard.dropped["connections"] > 20
    assert not any(chunk.restarted or chunk.lost for chunk in heard.chunks[own])


def test_a_peer_has_a_share_of_the_connections(ears: Ears) -> None:
    """ZeroMQ takes messages from each connection in turn, so connections are shares of what is ingested."""
    port = free_port()
    own = source(port, bind=True)
    heard = Listened(ears)
    ears.listen_to([own])
    until(lambda: heard.look() is None and heard.last[own].since is not None)
    with contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.0.{2 + n % 2}", 0))
            )
            for n in range(2 * ROW.connections)
        ]
        of_one, of_other = crowd[::2], crowd[1::2]
        until(lambda: sum(map(is_closed, crowd)) >= ROW.connections)
        assert max(sum(not is_closed(one) for one in half) for half in (of_one, of_other)) <= ROW.per_peer
    with contextlib.ExitStack() as stack, FakeEngine(own.endpoint, connect=True) as engine:
        until(lambda: heard.look() is None and heard.last[own].connections == 0)
        for _ in range(ROW.connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)))
        until(lambda: heard.connected(own))
        engine.publish(batch(1))
        until(lambda: heard.sequences(own)[-1:] == [0])


def test_a_replay_has_a_limit_in_bytes(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events_sockets, "MAX_REPLAYED_BYTES", 40 * len(batch(1)))
    own = source(free_port(), replay=f"tcp://127.0.0.1:{free_port()}")
    heard = Listened(ears)
    with FakeEngine(own.endpoint, replay=own.replay) as engine:
        engine.publish(*map(batch, range(100)))
        ears.listen_to([own])
        until(lambda: heard.look() is None and heard.dropped.get("replay_limit") == 1)
        engine.publish(batch(100))
        until(lambda: heard.sequences(own)[-1:] == [100])
    assert engine.asked == [0]
    got = len(heard.sequences(own))
    assert 5 < got < 40
    assert heard.lost(own) == 101 - got


def test_near_the_memory_limit_the_address_is_closed_and_opened_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that never end took the process from 255 to 639 MB in 0.6 s."""
    monkeypatch.setattr(kv_events_sockets, "SHUT_SECONDS", 0.5)
    full = threading.Event()
    ears = Ears(TenantNames(TenantsTable(), b"k" * 32), is_full=full.is_set)
    own, heard = source(free_port()), Listened(ears)
    try:
        with FakeEngine(own.endpoint) as engine:
            ears.listen_to([own])
            until(lambda: heard.connected(own))
            engine.publish(batch(0))
            until(lambda: heard.sequences(own) == [0])
            full.set()
            until(lambda: heard.obstacle(own) == "memory" and not heard.connected(own))
            engine.publish(batch(1))
            full.clear()
            until(lambda: heard.connected(own))
            engine.publish(batch(2))
            until(lambda: heard.sequences(own) == [0, 2])
        assert heard.obstacle(own) == "" and heard.chunks[own][-1].restarted  # nothing of before counts
    finally:
        ears.close()


OUT_OF_FILES = """
import resource, sys, time
from kvitals.agent.collectors.kv_events_sockets import Ears
from kvitals.agent.collectors.kv_events_sources import PublisherSource
from kvitals.agent.collectors.zmq_sockets import MAX_MESSAGE_BYTES
from kvitals.agent.requests.tenant_names import TenantNames
from kvitals.config import TenantsTable

ears = Ears(TenantNames(TenantsTable(), b"k" * 32))
ears.listen_to([PublisherSource("engine", f"tcp://127.0.0.1:{sys.argv[1]}", bind=True)])
while ears.read()[0].since is None:
    time.sleep(0.1)
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
print("listening", flush=True)
while ears.read()[0].obstacle != "files":
    time.sleep(0.1)
before = time.process_time()
time.sleep(3)
print("cpu", time.process_time() - before, flush=True)
sys.stdin.read()
"""


@pytest.mark.system
def test_the_limit_of_open_files_is_reported_and_does_not_spin() -> None:
    port = free_port()
    command = [sys.executable, "-c", OUT_OF_FILES, str(port)]
    pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as agent, ended(agent), contextlib.ExitStack() as stack:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"listening\n"
        with contextlib.suppress(ConnectionRefusedError):  # the agent closes the address once its limit is reached
            for _ in range(40):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        lines = iter(agent.stdout.readline, b"")
        cpu = next(float(line.split()[1]) for line in lines if line.startswith(b"cpu"))
    assert cpu < 1.0  # over 3 s
